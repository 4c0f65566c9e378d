// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstring>
#include <string>

#include "status.h"

namespace feedrate {

namespace {

// Of files that are no JPEG; parse.cpp recognises them.
const char* const kFormats[] = {"unknown format", "PNG", "GIF", "WebP", "BMP", "TIFF", "JPEG 2000", "text"};

// printf formats; each takes a and b, in this order, as long long.
const char* format_of(Why why) {
    switch (why) {
        case Why::none: return "";
        case Why::cannot_open:
        case Why::cannot_read: return "";
        case Why::no_such_number: return "file number %lld is not one of the %lld files";
        case Why::bad_range: return "offset %lld with length %lld is not a byte range";
        case Why::file_ends: return "the file ends at byte %lld, the range needs bytes up to %lld";
        case Why::crc_differs: return "crc32c is %08llx, the index says %08llx";
        case Why::out_of_memory: return "out of memory";
        case Why::not_jpeg: return "";
        case Why::progressive: return "progressive";
        case Why::arithmetic: return "arithmetic coding";
        case Why::lossless: return "lossless or hierarchical JPEG";
        case Why::precision: return "%lld-bit";
        case Why::cmyk: return "CMYK";
        case Why::components: return "%lld colour components";
        case Why::rgb_adobe: return "RGB colour (Adobe transform 0)";
        case Why::rgb_ids: return "RGB colour (component ids R, G, B)";
        case Why::sampling: return "";
        case Why::not_interleaved: return "non-interleaved scans";
        case Why::scan_order: return "components out of order in the scan";
        case Why::scan_parameters: return "unusual scan parameters";
        case Why::too_large: return "%lld x %lld pixels is beyond what JPEG decoders take";
        case Why::file_too_large: return "the file has %lld bytes, the kernel takes at most 512 MB";
        case Why::empty_file: return "the file is empty";
        case Why::headers_end: return "JPEG ends inside its headers, after %lld bytes";
        case Why::bad_marker: return "no JPEG marker where one must be, at byte %lld";
        case Why::bad_segment: return "JPEG segment %02llx at byte %lld is malformed";
        case Why::no_scan: return "JPEG without image data";
        case Why::no_size: return "JPEG with zero width or height";
        case Why::quant_missing: return "quantisation table %lld is missing";
        case Why::huffman_missing: return "Huffman table %lld of class %lld is missing";
        case Why::huffman_bad: return "Huffman table %lld of class %lld is malformed";
        case Why::ends_early: return "JPEG ends early: %lld of %lld MCU rows are there";
        case Why::bad_code: return "invalid Huffman code in MCU row %lld of %lld";
        case Why::dc_overflow: return "DC value out of range in MCU row %lld of %lld";
        case Why::restart_order: return "restart markers out of order in MCU row %lld of %lld";
        case Why::box_empty: return "the crop box is empty";
        case Why::box_outside: return "the crop box is not inside the image of %lld x %lld pixels";
        case Why::crop_too_large: return "the crop has %lld pixels, the limit is %lld";
        case Why::entries_version: return "entry points of version %lld, this kernel reads version 1";
        case Why::entries_short: return "entry points have %lld bytes, %lld are needed";
        case Why::entries_crc: return "entry points are damaged (their checksum differs)";
        case Why::entries_other_file: return "entry points belong to another file (its checksum differs)";
        case Why::entries_geometry: return "entry points do not fit the size of the image";
        case Why::entries_offsets: return "entry point %lld lies outside the image data or before its predecessor";
        case Why::entries_wrong: return "decoding does not arrive at entry point %lld";
        case Why::raw_version:
            return "the index has no table of raw rows that this kernel reads (kind %lld, version %lld)";
        case Why::raw_length: return "raw image of %lld bytes, the index speaks of %lld";
        case Why::rows_differ: return "rows %lld to %lld are not those that were packed (checksum)";
    }
    return "unknown reason";
}

}  // namespace

std::string words(const Outcome& outcome) {
    char text[160];
    const auto a = static_cast<long long>(outcome.a);
    const auto b = static_cast<long long>(outcome.b);
    switch (outcome.why) {
        case Why::cannot_open: return std::string("cannot be opened: ") + std::strerror(static_cast<int>(a));
        case Why::cannot_read: return std::string("cannot be read: ") + std::strerror(static_cast<int>(a));
        case Why::not_jpeg: return std::string("not a JPEG (") + kFormats[a >= 0 && a < 8 ? a : 0] + ")";
        case Why::sampling:
            std::snprintf(text, sizeof text, "sampling factors %lldx%lld with %lldx%lld", a >> 4, a & 15, b >> 4,
                          b & 15);
            return text;
        default: break;
    }
        // The formats are the literals above; the compiler cannot see that through the function.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
    std::snprintf(text, sizeof text, format_of(outcome.why), a, b);
#pragma GCC diagnostic pop
    return text;
}

}  // namespace feedrate
