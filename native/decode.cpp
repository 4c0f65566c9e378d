// SPDX-License-Identifier: Apache-2.0
// Decodes the part of a JPEG that a crop needs. Planes are rings of four MCU rows: one or two rows of MCUs are decoded
// at a time, and every line whose chroma is complete goes to the resizer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "colour.h"
#include "entries.h"
#include "entropy.h"
#include "resize.h"

namespace feedrate {

constexpr size_t kScratchLimit = size_t{32} << 20;

Outcome check_box(const Box& box, int64_t width, int64_t height) {
    if (box.left >= box.right || box.top >= box.bottom) return {Status::bad_box, Why::box_empty, 0, 0};
    if (box.left < 0 || box.top < 0 || box.right > width || box.bottom > height)
        return {Status::bad_box, Why::box_outside, width, height};
    if (box.pixels() > kMaxCropPixels) return {Status::bad_box, Why::crop_too_large, box.pixels(), kMaxCropPixels};
    return {};
}

static Span needed_mcus(int begin, int end, bool half, int mcu_size, int mcus) {
    const int margin = half ? 2 : 0;
    return {std::max(begin - margin, 0) / mcu_size, std::min((end - 1 + margin) / mcu_size + 1, mcus)};
}

Span needed_rows(const Box& box, const Header& h) {
    return needed_mcus(box.top, box.bottom, h.half_height, h.mcu_height, h.mcu_rows);
}

Span needed_columns(const Box& box, const Header& h) {
    return needed_mcus(box.left, box.right, h.half_width, h.mcu_width, h.mcus_per_row);
}

bool is_possible(const Header& header) {
    int64_t blocks = 0;
    for (int i = 0; i < header.component_count; ++i) blocks += header.component[i].h * header.component[i].v;
    const int64_t mcus = static_cast<int64_t>(header.mcus_per_row) * header.mcu_rows;
    return static_cast<int64_t>(header.scan_end - header.scan_begin) * 4 >= mcus * blocks;
}

struct Decoder::Scratch {
    Header header;
    McuTables tables;
    Entropy entropy[2];
    Entries entries;
    Resizer resizer;
    std::vector<uint8_t> plane[kMaxComponents];
    std::vector<uint8_t> chroma[2];  // one line of full-size chroma each
    std::vector<uint16_t> sums;
    Box box{};
    Span rows{}, columns{};
    bool gray = false;
    Blocks wanted_blocks = Blocks::transform;

    Outcome decode_rows(int row, int count);
    Outcome go_to(Entropy& to, int row, int column);
    Outcome walk_to(int row, int count, int column);
    Outcome check_entry(Entropy& at, int row, int column);
    Planes planes_of(int row);
    void take_memory();
    int stride(int i) const { return (columns.end - columns.begin) * 8 * header.component[i].h; }
    int ring(int i) const { return 32 * header.component[i].v; }
    const uint8_t* line(int i, int y) const {
        return plane[i].data() + static_cast<size_t>(y % ring(i)) * static_cast<size_t>(stride(i));
    }
    int lines_ready(int rows_done) const;
    void write_line(int y, uint32_t* out);
    const uint8_t* chroma_line(int i, int y);
};

void Decoder::Scratch::take_memory() {
    for (int i = 0; i < header.component_count; ++i)
        plane[i].resize(static_cast<size_t>(stride(i)) * static_cast<size_t>(ring(i)));
    for (auto& line : chroma) line.resize(static_cast<size_t>(box.right - box.left) + 4);
    sums.resize(static_cast<size_t>(box.right - box.left) / 2 + 6);
}

// Whether the entry at `column`, if there is one, says what was found there.
Outcome Decoder::Scratch::check_entry(Entropy& at, int row, int column) {
    if (column == header.mcus_per_row) row += 1, column = 0;
    if (entries.empty() || column % entries.step() || row == header.mcu_rows) return {};
    if (const Outcome outcome = at.arrive(); !outcome.ok()) return outcome;
    const int64_t number = entries.number(row, column);
    const Entry entry = entries.at(number);
    const bool same = at.position() == entry.bit &&
                      std::equal(entry.predictor, entry.predictor + header.component_count, at.predictors());
    return same ? Outcome{} : Outcome{Status::bad_entries, Why::entries_wrong, number, 0};
}

// Moves to the entry at or before `column`; without entries, to `column` itself.
Outcome Decoder::Scratch::go_to(Entropy& to, int row, int column) {
    const int64_t row_start = static_cast<int64_t>(row) * header.mcus_per_row;
    if (entries.empty()) return to.skip(row_start + column - to.mcu());
    const int start = column / entries.step() * entries.step();
    const Entry entry = entries.at(entries.number(row, start));
    const int64_t after = entries.number(row, columns.end - 1) + 1;
    const int64_t bytes = after < entries.count() ? (entries.at(after).bit - entry.bit) / 8 : 0;
    to.seek(row_start + start, entry.bit, entry.predictor, bytes);
    return {};
}

Planes Decoder::Scratch::planes_of(int row) {
    Planes planes{};
    for (int i = 0; i < header.component_count; ++i) {
        planes.first[i] = const_cast<uint8_t*>(line(i, row * 8 * header.component[i].v));
        planes.stride[i] = stride(i);
    }
    return planes;
}

// Goes on to `column` in one or two rows, and checks the entries on the way. What lies before the crop is skipped.
Outcome Decoder::Scratch::walk_to(int row, int count, int column) {
    int at = static_cast<int>(entropy[0].mcu() - static_cast<int64_t>(row) * header.mcus_per_row);
    const Planes whole[2] = {planes_of(row), planes_of(row + count - 1)};
    while (at < column) {
        const bool wanted = at >= columns.begin;
        int next = wanted ? column : columns.begin;
        if (!entries.empty()) next = std::min(next, (at / entries.check_step() + 1) * entries.check_step());
        Planes planes[2] = {whole[0], whole[1]};
        for (auto& one : planes)
            for (int i = 0; i < header.component_count; ++i)
                one.first[i] += wanted ? (at - columns.begin) * tables.advance[i] : 0;
        const Blocks blocks = wanted ? wanted_blocks : Blocks::skip;
        Outcome outcome = count == 2 ? Entropy::walk_both(entropy, next - at, blocks, planes)
                                     : entropy[0].walk(next - at, blocks, planes[0]);
        for (int i = 0; i < count && outcome.ok(); ++i) outcome = check_entry(entropy[i], row + i, next);
        if (!outcome.ok()) return outcome;
        at = next;
    }
    return {};
}

Outcome Decoder::Scratch::decode_rows(int row, int count) {
    for (int i = 0; i < count; ++i) {
        if (const Outcome outcome = go_to(entropy[i], row + i, columns.begin); !outcome.ok()) return outcome;
    }
    return walk_to(row, count, columns.end);
}

// Lines of the image that can be written once the MCU rows before `rows_done` are decoded.
int Decoder::Scratch::lines_ready(int rows_done) const {
    const int lines = rows_done * header.mcu_height;
    return header.half_height && rows_done < header.mcu_rows ? lines - 1 : lines;
}

const uint8_t* Decoder::Scratch::chroma_line(int i, int y) {
    const Component& c = header.component[i];
    const int origin = columns.begin * 8 * c.h;
    const bool blend = !(header.half_width && c.width <= 2);
    const int near = header.half_height ? y / 2 : y;
    const bool above = y % 2 == 0;
    const int far =
        header.half_height && blend ? std::min(std::max(above ? near - 1 : near + 1, 0), c.height - 1) : near;
    if (!header.half_width && !header.half_height) return line(i, y) + (box.left - origin);
    uint8_t* out = chroma[i - 1].data();
    // Columns are counted from the start of the image; the pointers stand where column 0 would be.
    ChromaLine source{line(i, near) - origin, line(i, far) - origin, above, box.left, box.right - 1, c.width};
    if (!header.half_width) {
        blend_rows(source, out);
        return out;
    }
    source.first = box.left / 2;
    source.last = (box.right - 1) / 2;
    if (!blend)
        repeat_width(source, out);
    else if (header.half_height)
        double_both(source, sums.data(), out);
    else
        double_width(source, out);
    return out + box.left % 2;
}

void Decoder::Scratch::write_line(int y, uint32_t* out) {
    const int count = box.right - box.left;
    const uint8_t* luma = line(0, y) + (box.left - columns.begin * header.mcu_width);
    if (header.component_count == 1)
        write_gray_pixels(luma, count, out);
    else
        write_pixels(luma, chroma_line(1, y), chroma_line(2, y), count, gray, out);
}

Decoder::Decoder() : scratch_(new Scratch) {}
Decoder::~Decoder() = default;

Outcome Decoder::decode(Bytes file, uint32_t file_crc, Bytes entries, const Box& box, const Target& target,
                        Stage last) {
    Scratch& s = *scratch_;
    // First of all: entries of another file mean that an index is wrong, whatever kind of image the file is.
    Outcome outcome = check_entries(entries, file_crc);
    // Entries are of files that were scanned to their end.
    if (outcome.ok()) outcome = parse_jpeg(file.data, file.size, s.header, entries.size == 0);
    if (outcome.ok()) outcome = check_box(box, s.header.width, s.header.height);
    if (!outcome.ok()) return outcome;
    if (!is_possible(s.header)) {  // find out how much of it is there
        std::string unused;
        return scan_jpeg(file.data, file.size, file_crc, s.header, unused);
    }
    outcome = s.entries.open(entries, s.header);
    if (outcome.ok()) outcome = make_tables(s.header, true, s.tables);
    if (!outcome.ok()) return outcome;
    for (Entropy& one : s.entropy) one.start(file.data, s.header, s.tables);
    const Box part = s.resizer.begin(box.right - box.left, box.bottom - box.top, target);
    s.box = {box.left + part.left, box.top + part.top, box.left + part.right, box.top + part.bottom};
    s.gray = target.channels == 1;
    s.wanted_blocks = last == Stage::huffman ? Blocks::store : Blocks::transform;
    s.rows = needed_rows(s.box, s.header), s.columns = needed_columns(s.box, s.header);
    s.take_memory();
    if (last == Stage::headers) return {};
    int y = s.box.top;
    // Two rows at once need to know where the second begins.
    const int most = s.entries.empty() ? 1 : 2;
    for (int row = s.rows.begin, count; row < s.rows.end; row += count) {
        count = std::min(most, s.rows.end - row);
        if (outcome = s.decode_rows(row, count); !outcome.ok()) return outcome;
        if (last < Stage::colour) continue;
        for (const int stop = std::min(s.lines_ready(row + count), s.box.bottom); y < stop; ++y) {
            s.write_line(y, s.resizer.line());
            if (last == Stage::resize) s.resizer.push();
        }
    }
    return {};
}

void Decoder::trim() {
    Scratch& s = *scratch_;
    for (auto* buffer : {&s.plane[0], &s.plane[1], &s.plane[2], &s.chroma[0], &s.chroma[1]})
        if (buffer->capacity() > kScratchLimit) std::vector<uint8_t>().swap(*buffer);
    s.entries.trim(kScratchLimit);
    s.resizer.trim(kScratchLimit);
}

}  // namespace feedrate
