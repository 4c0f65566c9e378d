// SPDX-License-Identifier: Apache-2.0
// JPEG headers: which tables, which geometry, and whether the file is of a kind the kernel takes.
#include <cstdint>
#include <cstring>

#include "jpeg.h"
#include "markers.h"

namespace feedrate {
namespace {

constexpr size_t kMaxFile = size_t{1} << 29;  // bit offsets in entry points have 32 bits

// What a file is that is no JPEG, as status.cpp numbers the formats.
int sniff(const uint8_t* d, size_t n) {
    const auto starts = [&](const char* magic, size_t length) { return n >= length && !std::memcmp(d, magic, length); };
    if (starts("\x89PNG", 4)) return 1;
    if (starts("GIF8", 4)) return 2;
    if (n >= 12 && starts("RIFF", 4) && !std::memcmp(d + 8, "WEBP", 4)) return 3;
    if (starts("BM", 2)) return 4;
    if (starts("II*\0", 4) || starts("MM\0*", 4)) return 5;
    if (starts("\0\0\0\x0cjP", 6) || starts("\xff\x4f\xff\x51", 4)) return 6;
    for (size_t i = 0; i < n && i < 64; ++i)
        if (d[i] >= 0x7f || (d[i] < 0x20 && d[i] != '\n' && d[i] != '\r' && d[i] != '\t')) return 0;
    return 7;
}

// What the segments say, before it is judged.
struct Reading {
    bool jfif = false, adobe = false, has_frame = false;
    int adobe_transform = 0;
    Frame frame;
};

Outcome judge_frame(const Segment& segment, Header& header, Reading& seen) {
    if (seen.has_frame) return malformed(segment);
    seen.has_frame = true;
    Frame& frame = seen.frame;
    const bool is_whole = read_frame(segment.body, frame);
    header.width = frame.width, header.height = frame.height;
    if (!is_whole || frame.count == 0) return malformed(segment);
    if (!frame.width || !frame.height) return corrupt(Why::no_size);
    const int marker = segment.marker;
    if (marker == kSof2) return not_taken(Why::progressive);
    if (marker == 0xC9 || marker == 0xCA || marker == 0xCB) return not_taken(Why::arithmetic);
    if (marker > kSof1) return not_taken(Why::lossless);
    if (frame.bits != 8) return not_taken(Why::precision, frame.bits);
    if (frame.count == 4) return not_taken(Why::cmyk);
    if (frame.count != 1 && frame.count != 3) return not_taken(Why::components, frame.count);
    if (frame.width > kMaxDimension || frame.height > kMaxDimension)
        return not_taken(Why::too_large, frame.width, frame.height);
    return frame.has_sound_components() ? Outcome{} : malformed(segment);
}

// Colour as libjpeg decides it: JFIF means YCbCr, then Adobe's marker, then the component ids.
Outcome judge_colour(const Reading& seen) {
    if (seen.frame.count == 1 || seen.jfif) return {};
    if (seen.adobe) return seen.adobe_transform == 0 ? not_taken(Why::rgb_adobe) : Outcome{};
    const auto& c = seen.frame.component;
    if (c[0].id == 'R' && c[1].id == 'G' && c[2].id == 'B') return not_taken(Why::rgb_ids);
    return {};
}

Outcome judge_geometry(const Frame& frame, Header& header) {
    const int count = header.component_count = frame.count;
    for (int i = 0; i < count; ++i) {
        const auto& from = frame.component[i];
        Component& c = header.component[i];
        c.id = from.id, c.quant = from.quant;
        // A scan of one component has one block per MCU, whatever the frame says.
        c.h = count == 1 ? 1 : from.h, c.v = count == 1 ? 1 : from.v;
    }
    const Component &luma = header.component[0], &chroma = header.component[count - 1];
    if (count == 3) {
        const bool alike = header.component[1].h == chroma.h && header.component[1].v == chroma.v;
        const bool wide = luma.h == chroma.h || luma.h == 2 * chroma.h;
        const bool high = luma.v == chroma.v || luma.v == 2 * chroma.v;
        const bool powers = luma.h != 3 && luma.v != 3;
        if (!alike || !wide || !high || !powers || luma.h * luma.v + 2 * chroma.h * chroma.v > 10)
            return not_taken(Why::sampling, luma.h * 16 + luma.v, chroma.h * 16 + chroma.v);
    }
    header.half_width = luma.h == 2 * chroma.h;
    header.half_height = luma.v == 2 * chroma.v;
    header.mcu_width = 8 * luma.h;
    header.mcu_height = 8 * luma.v;
    header.mcus_per_row = ceil_div(header.width, header.mcu_width);
    header.mcu_rows = ceil_div(header.height, header.mcu_height);
    for (int i = 0; i < count; ++i) {
        Component& c = header.component[i];
        c.width = ceil_div(header.width * c.h, luma.h);
        c.height = ceil_div(header.height * c.v, luma.v);
    }
    return {};
}

Outcome judge_scan(const Segment& segment, Header& header, const Reading& seen) {
    Outcome outcome = judge_colour(seen);
    if (outcome.ok() && seen.has_frame) outcome = judge_geometry(seen.frame, header);
    if (!outcome.ok()) return outcome;
    ScanHeader scan;
    if (!seen.has_frame || !read_scan(segment.body, scan)) return malformed(segment);
    if (scan.count != header.component_count) return not_taken(Why::not_interleaved);
    for (int i = 0; i < scan.count; ++i) {
        Component& c = header.component[i];
        if (scan.component[i].id != c.id) return not_taken(Why::scan_order);
        c.dc = scan.component[i].dc, c.ac = scan.component[i].ac;
        if (c.dc > 3 || c.ac > 3) return malformed(segment);
        if (!header.quant_defined[c.quant]) return corrupt(Why::quant_missing, c.quant);
        if (!header.dc[c.dc].counts) return corrupt(Why::huffman_missing, c.dc, 0);
        if (!header.ac[c.ac].counts) return corrupt(Why::huffman_missing, c.ac, 1);
    }
    const bool is_whole = scan.first == 0 && scan.last == 63 && scan.high == 0 && scan.low == 0;
    return is_whole ? Outcome{} : not_taken(Why::scan_parameters);
}

Outcome read_segment(const Segment& segment, Header& header, Reading& seen) {
    const int marker = segment.marker;
    const Bytes body = segment.body;
    const auto starts = [&](const char* text, size_t length) { return !std::memcmp(body.data, text, length); };
    const auto demand = [&](bool is_sound) { return is_sound ? Outcome{} : malformed(segment); };
    const auto keep = [&](bool is_ac, int number, const HuffmanSpec& table) {
        (is_ac ? header.ac : header.dc)[number] = table;
        return true;
    };
    switch (marker) {
        case kDht: return demand(read_huffman(body, keep));
        case kDqt: return demand(read_quantisers(body, header.quant, header.quant_defined));
        case kDri:
            if (body.size == 2) header.restart_interval = big_u16(body.data);
            return demand(body.size == 2);
        case kApp0: seen.jfif = seen.jfif || (body.size >= 14 && starts("JFIF", 5)); return {};
        case kApp1: header.may_have_exif = header.may_have_exif || (body.size >= 6 && starts("Exif\0", 6)); return {};
        case kApp14:
            if (body.size >= 12 && starts("Adobe", 5)) seen.adobe = true, seen.adobe_transform = body.data[11];
            return {};
        case kSos: return judge_scan(segment, header, seen);
        case kEoi: return corrupt(Why::no_scan);
        case kDac: return not_taken(Why::arithmetic);
        // libjpeg passes over comments and numbers of lines, too.
        case kCom:
        case kDnl: return {};
        default: break;
    }
    if (is_application(marker)) return {};
    if (marker >= kSof0 && marker <= kSof15 && marker != kJpg) return judge_frame(segment, header, seen);
    // Reserved: libjpeg refuses these, since nobody knows what they say about the image.
    return corrupt(Why::bad_marker, segment.offset - 1);
}

}  // namespace

Outcome parse_jpeg(const uint8_t* data, size_t size, Header& header, bool find_end) {
    header = Header();
    if (size == 0) return corrupt(Why::empty_file);
    if (!is_jpeg({data, size})) return not_taken(Why::not_jpeg, sniff(data, size));
    if (size > kMaxFile) return not_taken(Why::file_too_large, static_cast<int64_t>(size));
    Reading seen;
    MarkerReader reader({data, size});
    for (Segment segment; segment.marker != kSos;) {
        Outcome outcome = reader.next(segment);
        if (outcome.ok()) outcome = read_segment(segment, header, seen);
        // Who looks for EXIF may lose the way between irregular markers, and find some where there is none.
        header.may_have_exif = header.may_have_exif || reader.is_irregular();
        if (!outcome.ok()) return outcome;
    }
    header.scan_begin = static_cast<size_t>(reader.at() - data);
    header.scan_end = find_end ? static_cast<size_t>(find_marker(reader.at(), data + size, false) - data) : size;
    return {};
}

size_t end_of_image(Bytes file, const Header& header) {
    const uint8_t* name = skip_fill(file.data + header.scan_end, file.end());
    return name != file.end() && *name == kEoi ? static_cast<size_t>(name + 1 - file.data) : 0;
}

const char* sampling_name(const Header& header) {
    if (header.component_count == 1) return "gray";
    if (header.half_width) return header.half_height ? "4:2:0" : "4:2:2";
    return header.half_height ? "4:4:0" : "4:4:4";
}

}  // namespace feedrate
