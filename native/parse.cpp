// SPDX-License-Identifier: Apache-2.0
// JPEG headers: which tables, which geometry, and whether the file is of a kind the kernel takes.
#include <cstdint>
#include <cstring>

#include "jpeg.h"

namespace feedrate {

namespace {

constexpr int kMaxDimension = 65500;          // libjpeg's limit
constexpr size_t kMaxFile = size_t{1} << 29;  // bit offsets in entry points have 32 bits

const char* const kFormats[] = {"unknown format", "PNG", "GIF", "WebP", "BMP", "TIFF", "JPEG 2000", "text"};

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

int word_at(const uint8_t* p) { return p[0] << 8 | p[1]; }

// What the segments said before anyone judged it.
struct Reading {
    bool jfif = false, adobe = false, frame = false;
    int adobe_transform = 0;
    int ids[4] = {}, h[4] = {}, v[4] = {}, quant[4] = {};
    int count = 0;
};

bool read_quant(const uint8_t* p, const uint8_t* end, Header& header) {
    while (p < end) {
        const int wide = *p >> 4, table = *p & 15;
        ++p;
        if (wide > 1 || table > 3 || end - p < 64 * (1 + wide)) return false;
        for (int i = 0; i < 64; ++i, p += 1 + wide) {
            header.quant[table][i] = static_cast<uint16_t>(wide ? word_at(p) : *p);
            if (!header.quant[table][i]) return false;
        }
        header.quant_defined[table] = true;
    }
    return true;
}

bool read_huffman(const uint8_t* p, const uint8_t* end, Header& header) {
    while (p < end) {
        const int kind = *p >> 4, table = *p & 15;
        ++p;
        if (kind > 1 || table > 3 || end - p < 16) return false;
        int count = 0;
        for (int i = 0; i < 16; ++i) count += p[i];
        if (count > 256 || end - p < 16 + count) return false;
        (kind ? header.ac : header.dc)[table] = {p, p + 16, count};
        p += 16 + count;
    }
    return true;
}

Outcome read_frame(int marker, const uint8_t* p, size_t length, size_t at, Header& header, Reading& seen) {
    if (seen.frame || length < 6) return corrupt(Why::bad_segment, marker, static_cast<int64_t>(at));
    seen.frame = true;
    const int bits = p[0];
    seen.count = p[5];
    header.height = word_at(p + 1);
    header.width = word_at(p + 3);
    if (length != 6 + 3 * static_cast<size_t>(seen.count) || seen.count == 0)
        return corrupt(Why::bad_segment, marker, static_cast<int64_t>(at));
    if (!header.width || !header.height) return corrupt(Why::no_size);
    if (marker == 0xC2) return not_taken(Why::progressive);
    if (marker == 0xC9 || marker == 0xCA || marker == 0xCB) return not_taken(Why::arithmetic);
    if (marker > 0xC1) return not_taken(Why::lossless);
    if (bits != 8) return not_taken(Why::precision, bits);
    if (seen.count == 4) return not_taken(Why::cmyk);
    if (seen.count != 1 && seen.count != 3) return not_taken(Why::components, seen.count);
    if (header.width > kMaxDimension || header.height > kMaxDimension)
        return not_taken(Why::too_large, header.width, header.height);
    for (int i = 0; i < seen.count; ++i) {
        const uint8_t* c = p + 6 + 3 * i;
        seen.ids[i] = c[0];
        seen.h[i] = c[1] >> 4;
        seen.v[i] = c[1] & 15;
        seen.quant[i] = c[2];
        if (seen.h[i] < 1 || seen.h[i] > 4 || seen.v[i] < 1 || seen.v[i] > 4 || c[2] > 3)
            return corrupt(Why::bad_segment, marker, static_cast<int64_t>(at));
    }
    return {};
}

// Colour as libjpeg decides it: JFIF means YCbCr, then Adobe's marker, then the component ids.
Outcome judge_colour(const Reading& seen) {
    if (seen.count == 1 || seen.jfif) return {};
    if (seen.adobe) return seen.adobe_transform == 0 ? not_taken(Why::rgb_adobe) : Outcome{};
    if (seen.ids[0] == 'R' && seen.ids[1] == 'G' && seen.ids[2] == 'B') return not_taken(Why::rgb_ids);
    return {};
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

Outcome judge_geometry(const Reading& seen, Header& header) {
    header.component_count = seen.count;
    for (int i = 0; i < seen.count; ++i) {
        header.component[i].id = seen.ids[i];
        header.component[i].quant = seen.quant[i];
        // A scan of one component has one block per MCU, whatever the frame says.
        header.component[i].h = seen.count == 1 ? 1 : seen.h[i];
        header.component[i].v = seen.count == 1 ? 1 : seen.v[i];
    }
    const Component &luma = header.component[0], &chroma = header.component[seen.count - 1];
    if (seen.count == 3) {
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
    for (int i = 0; i < seen.count; ++i) {
        Component& c = header.component[i];
        c.width = ceil_div(header.width * c.h, luma.h);
        c.height = ceil_div(header.height * c.v, luma.v);
    }
    return {};
}

Outcome read_scan_header(const uint8_t* p, size_t length, size_t at, const Reading& seen, Header& header) {
    if (!seen.frame) return corrupt(Why::bad_segment, 0xDA, static_cast<int64_t>(at));
    if (length < 1 || length != 4 + 2 * static_cast<size_t>(p[0]))
        return corrupt(Why::bad_segment, 0xDA, static_cast<int64_t>(at));
    if (p[0] != seen.count) return not_taken(Why::not_interleaved);
    for (int i = 0; i < seen.count; ++i) {
        Component& c = header.component[i];
        if (p[1 + 2 * i] != c.id) return not_taken(Why::scan_order);
        c.dc = p[2 + 2 * i] >> 4;
        c.ac = p[2 + 2 * i] & 15;
        if (c.dc > 3 || c.ac > 3) return corrupt(Why::bad_segment, 0xDA, static_cast<int64_t>(at));
        if (!header.quant_defined[c.quant]) return corrupt(Why::quant_missing, c.quant);
        if (!header.dc[c.dc].counts) return corrupt(Why::huffman_missing, c.dc, 0);
        if (!header.ac[c.ac].counts) return corrupt(Why::huffman_missing, c.ac, 1);
    }
    const uint8_t* spectral = p + 1 + 2 * seen.count;
    if (spectral[0] != 0 || spectral[1] != 63 || spectral[2] != 0) return not_taken(Why::scan_parameters);
    return {};
}

size_t find_scan_end(const uint8_t* data, size_t begin, size_t size) {
    size_t at = begin;
    while (at < size) {
        const void* found = std::memchr(data + at, 0xFF, size - at);
        if (!found) return size;
        at = static_cast<size_t>(static_cast<const uint8_t*>(found) - data);
        size_t next = at + 1;
        while (next < size && data[next] == 0xFF) ++next;
        if (next >= size) return at;
        if (data[next] != 0 && (data[next] < 0xD0 || data[next] > 0xD7)) return at;
        at = next + 1;
    }
    return size;
}

// One segment that has a length. `done` is set by the start of the scan.
Outcome read_segment(int marker, const uint8_t* p, size_t length, size_t at, Header& header, Reading& seen,
                     bool& done) {
    const auto malformed = [&](bool good) {
        return good ? Outcome{} : corrupt(Why::bad_segment, marker, static_cast<int64_t>(at));
    };
    switch (marker) {
        case 0xC4: return malformed(read_huffman(p, p + length, header));
        case 0xDB: return malformed(read_quant(p, p + length, header));
        case 0xDD:
            if (length == 2) header.restart_interval = word_at(p);
            return malformed(length == 2);
        case 0xE0:
            if (length >= 14 && !std::memcmp(p, "JFIF", 5)) seen.jfif = true;
            return {};
        case 0xE1:
            if (length >= 6 && !std::memcmp(p, "Exif\0", 6)) header.may_have_exif = true;
            return {};
        case 0xEE:
            if (length >= 12 && !std::memcmp(p, "Adobe", 5)) {
                seen.adobe = true;
                seen.adobe_transform = p[11];
            }
            return {};
        case 0xDA: {
            Outcome outcome = judge_colour(seen);
            if (outcome.ok() && seen.frame) outcome = judge_geometry(seen, header);
            if (outcome.ok()) outcome = read_scan_header(p, length, at, seen, header);
            done = true;
            return outcome;
        }
        default: break;
    }
    if (marker == 0xCC) return not_taken(Why::arithmetic);
    if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC8) return read_frame(marker, p, length, at, header, seen);
    // Application data, comments and a number of lines (which libjpeg does not look at either) are passed over. What is
    // left is reserved, and libjpeg refuses it: nobody knows what it says about the image.
    const bool passed_over = (marker >= 0xE0 && marker <= 0xEF) || marker == 0xFE || marker == 0xDC;
    return passed_over ? Outcome{} : corrupt(Why::bad_marker, static_cast<int64_t>(at - 1));
}

}  // namespace

Outcome parse_jpeg(const uint8_t* data, size_t size, Header& header, bool find_end) {
    header = Header();
    if (size == 0) return corrupt(Why::empty_file);
    if (size < 2 || data[0] != 0xFF || data[1] != 0xD8) return not_taken(Why::not_jpeg, sniff(data, size));
    if (size > kMaxFile) return not_taken(Why::file_too_large, static_cast<int64_t>(size));
    Reading seen;
    size_t at = 2;
    const auto ends = corrupt(Why::headers_end, static_cast<int64_t>(size));
    for (bool done = false; !done;) {
        if (at >= size) return ends;
        if (data[at] != 0xFF) return corrupt(Why::bad_marker, static_cast<int64_t>(at));
        const size_t before = at;
        while (at < size && data[at] == 0xFF) ++at;
        if (at >= size) return ends;
        const int marker = data[at++];
        const bool is_alone = marker >= 0xD0 && marker <= 0xD7;
        // Who looks for EXIF may lose the way here, and find some where there is none.
        if (is_alone || at - before != 2) header.may_have_exif = true;
        if (is_alone) continue;
        if (marker == 0xD9) return corrupt(Why::no_scan);
        if (marker == 0x00 || marker == 0x01 || marker == 0xD8)
            return corrupt(Why::bad_marker, static_cast<int64_t>(at - 1));
        if (size - at < 2) return ends;
        const size_t length = static_cast<size_t>(word_at(data + at));
        if (length < 2) return corrupt(Why::bad_segment, marker, static_cast<int64_t>(at));
        if (size - at < length) return ends;
        const Outcome outcome = read_segment(marker, data + at + 2, length - 2, at, header, seen, done);
        if (!outcome.ok()) return outcome;
        at += length;
    }
    header.scan_begin = at;
    header.scan_end = find_end ? find_scan_end(data, at, size) : size;
    return {};
}

const char* sampling_name(const Header& header) {
    if (header.component_count == 1) return "gray";
    if (header.half_width) return header.half_height ? "4:2:0" : "4:2:2";
    return header.half_height ? "4:4:0" : "4:4:4";
}

const char* format_name(int format) { return kFormats[format >= 0 && format < 8 ? format : 0]; }

}  // namespace feedrate
