// SPDX-License-Identifier: Apache-2.0
// One input of the fuzzer: how to decode (18 bytes), then a JPEG. Decodes it from the top, with its own entry points
// and with spoilt ones; beyond "no crash" it demands that entry points change no pixel and that a sound scan decodes.
// An excerpt of a resize has to be what the whole has there, and what a resize of the decoded crop gives. Then the same
// bytes once more as rows of a raw image, with a right table and a spoilt one, and as a table themselves. And the JPEG
// is written again as baseline, turned by byte 1: what was read twice must be the same. Last the JPEG is planned for a
// GPU, with its own entry points, with spoilt and with forged ones, into a buffer of the size asked for.
//
//   0  what the entries are: bit 0, spoil them; bits 1 to 7, where
//   1  spoiling value; four times that is also how far apart entry points stand in bytes (0: as usual)
//   2  box: left, top, right, bottom, as parts of 256 of the size
//   6  output: low 5 bits height - 1, top bit gray; between them the low bits of the filter (0: bilinear)
//   7  output: low 5 bits width - 1, top bit flip; between them the top bit of the filter, and Pillow's order before 13
//   8  bit 0, the output is an excerpt; bit 1, of a reach; bit 2, upside down; bit 3, that order for all filters
//   9  excerpt: by how much the whole is larger, width and height; then where in it, left and top, as parts of 256
//  13  reach: left, top, right, bottom, as parts of 256 of the crop and of what is left of it; then unused
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../coefficients.h"
#include "../crc32c.h"
#include "../gpu_plan.h"
#include "../jpeg.h"
#include "../raw.h"
#include "forged_entries.h"

using namespace feedrate;

// Of everything that was decoded, so that builds can be compared with each other.
uint32_t fuzz_checksum = 0;

namespace {

constexpr size_t kHead = 18;

void demand(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "broken promise: %s\n", what);
    std::abort();
}

void put_u32(std::string& to, size_t at, uint32_t value) {
    for (size_t i = 0; i < 4; ++i) to[at + i] = static_cast<char>(value >> (8 * i) & 0xFF);
}

// Changes one byte behind the fingerprint, and makes the checksum right again, so that the change is not found by it.
std::string spoil(std::string entries, uint8_t where, uint8_t value) {
    if (entries.size() <= 12) return entries;
    const size_t at = 12 + static_cast<size_t>(where) * 37 % (entries.size() - 12);
    entries[at] = static_cast<char>(entries[at] ^ value);
    const auto* bytes = reinterpret_cast<const uint8_t*>(entries.data());
    put_u32(entries, 8, crc32c(bytes + 12, entries.size() - 12, crc32c(bytes, 8, 0)));
    return entries;
}

// A table (raw.h) that fits `file`, whatever that is.
std::string make_table(Bytes file, int channels, uint32_t width, uint32_t block_rows) {
    const uint32_t row_bytes = width * static_cast<uint32_t>(channels),
                   height = static_cast<uint32_t>(file.size) / row_bytes;
    const uint32_t rows = std::min(block_rows, height);
    const size_t start = file.size - static_cast<size_t>(height) * row_bytes;
    std::string table(24, '\0');
    table[0] = 'R', table[1] = 1, table[2] = static_cast<char>(channels);
    put_u32(table, 4, rows), put_u32(table, 8, width), put_u32(table, 12, height),
        put_u32(table, 16, static_cast<uint32_t>(start));
    for (size_t at = start; at < file.size; at += static_cast<size_t>(rows) * row_bytes) {
        table.append(4, '\0');
        put_u32(table, table.size() - 4,
                crc32c(file.data + at, std::min(static_cast<size_t>(rows) * row_bytes, file.size - at), 0));
    }
    return table;
}

// A crop that was decoded already, resized.
void resize(const std::vector<uint8_t>& pixels, int width, int height, const Target& target) {
    static Resizer resizer;
    const Box part = resizer.begin(width, height, target);
    demand(part.left >= 0 && part.top >= 0 && part.left < part.right && part.top < part.bottom && part.right <= width &&
               part.bottom <= height,
           "what is needed lies inside");
    for (int y = part.top; y < part.bottom; ++y) {
        uint32_t* line = resizer.line();
        const uint8_t* in = &pixels[(static_cast<size_t>(y) * static_cast<size_t>(width)) * 3];
        for (int x = part.left; x < part.right; ++x)
            line[x - part.left] = static_cast<uint32_t>(in[3 * x] | in[3 * x + 1] << 8 | in[3 * x + 2] << 16);
        resizer.push();
    }
}

Outcome crop_raw(Bytes file, std::string table, const Box& box, const Target& target) {
    static Resizer resizer;
    const std::unique_ptr<uint8_t[]> exact(new uint8_t[table.size()]);
    const auto* bytes = reinterpret_cast<const uint8_t*>(table.data());
    if (table.size() >= 24) put_u32(table, 20, crc32c(bytes + 24, table.size() - 24, crc32c(bytes, 20, 0)));
    std::memcpy(exact.get(), table.data(), table.size());
    RawCrop crop;
    const Outcome opened = crop.open({exact.get(), table.size()}, static_cast<int64_t>(file.size), box);
    demand(opened.ok() || !words(opened).empty(), "every failure has words");
    if (!opened.ok()) return opened;
    demand(crop.offset() >= 0 && crop.size() > 0 && crop.offset() + crop.size() <= static_cast<int64_t>(file.size),
           "reads lie inside the file");
    const std::unique_ptr<uint8_t[]> read(new uint8_t[static_cast<size_t>(crop.size())]);
    std::memcpy(read.get(), file.data + crop.offset(), static_cast<size_t>(crop.size()));
    return crop.decode(read.get(), target, resizer);
}

void try_raw(const uint8_t* input, Bytes file, const Target& target) {
    const int channels = input[0] & 2 ? 1 : 3;
    const uint32_t width = input[1] + 1u;
    const auto height = static_cast<int>(file.size / (width * static_cast<uint32_t>(channels)));
    const auto part = [&](int byte, int whole) { return whole * input[byte] / 256; };
    const Box box{part(2, static_cast<int>(width)), part(3, height), part(4, static_cast<int>(width)) + 1,
                  part(5, height) + 1};
    if (height > 0) {
        std::string table = make_table(file, channels, width, (input[0] >> 2) + 1u);
        const Outcome right = crop_raw(file, table, box, target);
        demand(right.ok() || right.status == Status::bad_box, "rows with a right table are taken");
        const size_t at = static_cast<size_t>(input[6]) * 37 % table.size();
        table[at] = static_cast<char>(table[at] ^ (input[7] | 1));
        crop_raw(file, table, box, target);
    }
    crop_raw(file, std::string(reinterpret_cast<const char*>(file.data), file.size), box, target);
}

// The window of a resize, of a reach perhaps, in three ways. The crop is known to decode.
void try_excerpt(const uint8_t* input, Bytes file, const Box& box, Target target, Decoder& decoder) {
    const int width = box.right - box.left, height = box.bottom - box.top;
    Excerpt excerpt{target.width + input[9], target.height + input[10], {}, {}};
    const int left = input[9] * input[11] / 255, top = input[10] * input[12] / 255;
    excerpt.window = {left, top, left + target.width, top + target.height};
    excerpt.reach[2] = static_cast<float>(width), excerpt.reach[3] = static_cast<float>(height);
    for (int i = 0; i < 2 && input[8] & 2; ++i) {
        float &from = excerpt.reach[i], &to = excerpt.reach[i + 2];
        from = to * static_cast<float>(input[13 + i]) / 256;
        to = std::min(from + (to - from) * static_cast<float>(input[15 + i] + 1) / 256, to);
    }
    const auto bytes = [](int wide, int high, int channels) {
        return static_cast<size_t>(wide) * static_cast<size_t>(high) * static_cast<size_t>(channels);
    };
    const size_t row = bytes(target.width, 1, target.channels);
    target.excerpt = &excerpt;
    demand(decoder.decode(file, 0, {}, box, target).ok(), "an excerpt decodes");
    fuzz_checksum = crc32c(target.pixels, row * static_cast<size_t>(target.height), fuzz_checksum);

    Excerpt all = excerpt;
    all.window = {0, 0, excerpt.width, excerpt.height};
    std::vector<uint8_t> whole(bytes(all.width, all.height, target.channels));
    Target larger = target;
    larger.pixels = whole.data(), larger.width = all.width, larger.height = all.height, larger.excerpt = &all;
    demand(decoder.decode(file, 0, {}, box, larger).ok(), "the whole decodes");
    // Flips are of what is kept.
    const int x = target.flip ? all.width - excerpt.window.right : left,
              y = target.upside_down ? all.height - excerpt.window.bottom : top;
    for (int line = 0; line < target.height; ++line)
        demand(!std::memcmp(&whole[bytes(all.width, y + line, target.channels) + bytes(x, 1, target.channels)],
                            target.pixels + static_cast<size_t>(line) * row, row),
               "an excerpt is what the whole has there");

    if (target.channels != 3 || box.pixels() > 1 << 16) return;
    std::vector<uint8_t> crop(bytes(width, height, 3)), again(row * static_cast<size_t>(target.height));
    demand(decoder.decode(file, 0, {}, box, {crop.data(), height, width, 3, false}).ok(), "the crop decodes");
    Target same = target;
    same.pixels = again.data();
    resize(crop, width, height, same);
    demand(!std::memcmp(again.data(), target.pixels, again.size()), "a resize of the crop gives the same");
}

void try_baseline(const uint8_t* input, Bytes file) {
    Coefficients image, again;
    if (!read_coefficients(file.data, file.size, image).ok()) return;
    turn(image, input[1] % 8 + 1);
    std::string written;
    if (!write_baseline(image, written).ok()) return;
    const std::unique_ptr<uint8_t[]> exact(new uint8_t[written.size()]);
    std::memcpy(exact.get(), written.data(), written.size());
    demand(read_coefficients(exact.get(), written.size(), again).ok(), "what was written is read");
    for (size_t i = 0; i < image.planes.size(); ++i)
        demand(image.planes[i].values == again.planes[i].values, "no coefficient changes");
}

// Two crops of the file, as a GPU would take them. Whether they are taken is not demanded, only where bytes go.
void try_plan(Bytes file, const std::string& entries, const Box& box, const Target& target) {
    static GpuPlan plan;
    const std::unique_ptr<uint8_t[]> exact(new uint8_t[entries.size()]);
    std::memcpy(exact.get(), entries.data(), entries.size());
    Input input;
    input.file = file, input.entries = {exact.get(), entries.size()};
    const int32_t file_of[] = {0, 0};
    int32_t boxes[] = {box.left, box.top, box.right, box.bottom, 0, 0, box.right, box.bottom};
    const uint8_t flips[] = {target.flip, 0},
                  filters[] = {static_cast<uint8_t>(target.filter), static_cast<uint8_t>(target.filter)};
    Taken taken[2];
    GpuRequest request{};
    request.count = 2, request.files = 1, request.file_of = file_of;
    request.inputs = &input;
    const size_t room = file.size + 64 + kGpuReadAhead;
    const std::unique_ptr<uint8_t[]> words(new uint8_t[room]);
    request.words = words.get(), request.words_room = static_cast<int64_t>(room);
    request.boxes = boxes, request.flips = flips, request.filters = filters,
    request.before_13 = target.order != Order::pillow_13;
    request.height = target.height, request.width = target.width, request.most_memory = int64_t{1} << 28;
    plan.look(request, nullptr, taken);
    // As large as was asked for and no larger: a byte behind it is then seen.
    const std::unique_ptr<uint8_t[]> staged(new uint8_t[static_cast<size_t>(plan.sizes().staged)]);
    plan.fill(nullptr, staged.get());
}

Bytes view(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
    if (size < kHead) return 0;
    // A copy of the exact size: a read past its end is then seen.
    const std::unique_ptr<uint8_t[]> copy(new uint8_t[size - kHead]);
    std::memcpy(copy.get(), input + kHead, size - kHead);
    const Bytes file{copy.get(), size - kHead};

    Header header;
    std::string entries;
    const uint32_t crc = crc32c(file.data, file.size, 0);
    const Outcome scanned =
        scan_jpeg(file.data, file.size, crc, header, entries, input[1] ? 4 * input[1] : kBytesPerEntry);
    demand(!words(scanned).empty() || scanned.ok(), "every failure has words");
    if (static_cast<int64_t>(header.width) * header.height > (16 << 20)) return 0;

    const auto part = [&](int byte, int whole) { return whole * input[byte] / 256; };
    Box box{part(2, header.width), part(3, header.height), part(4, header.width) + 1, part(5, header.height) + 1};
    const int height = (input[6] & 31) + 1, width = (input[7] & 31) + 1, channels = input[6] & 128 ? 1 : 3;
    const size_t out_size = static_cast<size_t>(height) * static_cast<size_t>(width) * static_cast<size_t>(channels);
    const std::unique_ptr<uint8_t[]> from_top(new uint8_t[out_size]()), entered(new uint8_t[out_size]());
    const auto filter = static_cast<Filter>((2 + (input[6] >> 5 & 3) + 4 * (input[7] >> 5 & 1)) % kFilters);
    const Order order = input[8] & 8 ? Order::across : order_of(input[7] & 64);
    const auto target = [&](uint8_t* pixels) {
        return Target{pixels, height, width, channels, (input[7] & 128) != 0, filter, order, (input[8] & 4) != 0};
    };

    try_baseline(input, file);
    try_raw(input, file, target(entered.get()));
    fuzz_checksum = crc32c(entered.get(), out_size, fuzz_checksum);

    static Decoder decoder;
    const Outcome top = decoder.decode(file, 0, {}, box, target(from_top.get()));
    fuzz_checksum = crc32c(from_top.get(), out_size, fuzz_checksum);
    if (scanned.ok()) {
        demand(top.ok() || top.status == Status::bad_box, "what scans decodes");
        const Outcome right = decoder.decode(file, crc, view(entries), box, target(entered.get()));
        demand(right.status == top.status, "entry points change no outcome");
        if (top.ok()) demand(!std::memcmp(from_top.get(), entered.get(), out_size), "entry points change no pixel");
        if (input[0] & 1) {
            const std::string spoilt = spoil(entries, input[0] >> 1, input[1]);
            decoder.decode(file, crc, view(spoilt), box, target(entered.get()));
        }
    }
    if (top.ok() && input[8] & 1) try_excerpt(input, file, box, target(entered.get()), decoder);
    Header found;
    if (parse_jpeg(file.data, file.size, found, false).ok()) {
        try_plan(file, entries, box, target(nullptr));
        try_plan(file, spoil(entries, input[0] >> 1, input[1]), box, target(nullptr));
        const uint32_t seed = input[0] | input[1] << 8;
        try_plan(file, forge_entries(file, found, seed), box, target(nullptr));
    }
    decoder.trim();
    return 0;
}
