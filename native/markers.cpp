// SPDX-License-Identifier: Apache-2.0
#include "markers.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace feedrate {

const uint8_t* find_marker(const uint8_t* from, const uint8_t* end, bool restarts) {
    while (from < end) {
        const auto* found = static_cast<const uint8_t*>(std::memchr(from, 0xFF, static_cast<size_t>(end - from)));
        if (!found) return end;
        const uint8_t* marker = skip_fill(found, end);
        if (marker == end || (*marker != 0 && (restarts || !is_restart(*marker)))) return found;
        from = marker + 1;
    }
    return end;
}

Outcome MarkerReader::next(Segment& segment) {
    const Outcome ends = corrupt(Why::headers_end, static_cast<int64_t>(file_.size));
    const uint8_t* const end = file_.end();
    do {
        if (at_ >= end) return ends;
        if (*at_ != 0xFF) return corrupt(Why::bad_marker, at_ - file_.data);
        const uint8_t* name = skip_fill(at_, end);
        if (name == end) return ends;
        segment.marker = *name;
        is_irregular_ = is_irregular_ || name - at_ != 1 || is_restart(segment.marker);
        at_ = name + 1;
    } while (is_restart(segment.marker));
    segment.offset = at_ - file_.data;
    segment.body = {};
    if (segment.marker == kEoi) return {};
    if (segment.marker <= 0x01 || segment.marker == kSoi) return corrupt(Why::bad_marker, segment.offset - 1);
    if (end - at_ < 2) return ends;
    const int length = big_u16(at_);
    if (length < 2) return malformed(segment);
    if (end - at_ < length) return ends;
    segment.body = {at_ + 2, static_cast<size_t>(length - 2)};
    at_ += length;
    return {};
}

bool read_quantisers(Bytes body, uint16_t (&quant)[4][64], bool (&is_defined)[4]) {
    const uint8_t* p = body.data;
    while (p < body.end()) {
        const int wide = *p >> 4, number = *p & 15;
        ++p;
        if (wide > 1 || number > 3 || body.end() - p < 64 * (1 + wide)) return false;
        for (int i = 0; i < 64; ++i, p += 1 + wide) {
            quant[number][i] = static_cast<uint16_t>(wide ? big_u16(p) : *p);
            if (!quant[number][i]) return false;
        }
        is_defined[number] = true;
    }
    return true;
}

bool read_frame(Bytes body, Frame& frame) {
    if (body.size < 6) return false;
    const uint8_t* p = body.data;
    frame.bits = p[0], frame.height = big_u16(p + 1), frame.width = big_u16(p + 3), frame.count = p[5];
    if (body.size != 6 + 3 * static_cast<size_t>(frame.count)) return false;
    p += 6;
    for (int i = 0; i < std::min(frame.count, 4); ++i, p += 3) frame.component[i] = {p[0], p[1] >> 4, p[1] & 15, p[2]};
    return true;
}

bool Frame::has_sound_components() const {
    return std::all_of(component, component + std::min(count, 4), [](const auto& one) {
        return one.h >= 1 && one.h <= 4 && one.v >= 1 && one.v <= 4 && one.quant <= 3;
    });
}

bool read_scan(Bytes body, ScanHeader& scan) {
    if (body.size < 1 || body.size != 4 + 2 * static_cast<size_t>(body.data[0])) return false;
    const uint8_t* p = body.data + 1;
    scan.count = body.data[0];
    for (int i = 0; i < std::min(scan.count, 4); ++i)
        scan.component[i] = {p[2 * i], p[2 * i + 1] >> 4, p[2 * i + 1] & 15};
    p += 2 * scan.count;
    scan.first = p[0], scan.last = p[1], scan.high = p[2] >> 4, scan.low = p[2] & 15;
    return true;
}

}  // namespace feedrate
