// SPDX-License-Identifier: Apache-2.0
// The markers of a JPEG file and the segments behind them: one reader for headers, coefficients and restart markers. It
// checks lengths before it reads, and leaves it to its callers which images they take.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bytes.h"
#include "jpeg.h"
#include "status.h"

namespace feedrate {

constexpr int kSof0 = 0xC0, kSof1 = 0xC1, kSof2 = 0xC2, kDht = 0xC4, kJpg = 0xC8, kDac = 0xCC, kSof15 = 0xCF;
constexpr int kRst0 = 0xD0, kRst7 = 0xD7, kSoi = 0xD8, kEoi = 0xD9, kSos = 0xDA, kDqt = 0xDB, kDnl = 0xDC, kDri = 0xDD;
constexpr int kApp0 = 0xE0, kApp1 = 0xE1, kApp14 = 0xEE, kApp15 = 0xEF, kCom = 0xFE;

inline bool is_jpeg(Bytes file) { return file.size >= 2 && file.data[0] == 0xFF && file.data[1] == kSoi; }
inline bool is_restart(int marker) { return marker >= kRst0 && marker <= kRst7; }
inline bool is_application(int marker) { return marker >= kApp0 && marker <= kApp15; }
// Restart markers count modulo eight; `number` counts from zero.
inline int restart_marker(int64_t number) { return kRst0 + static_cast<int>(number & 7); }

// Any number of bytes 0xFF may stand before the byte that names a marker. Returns where that byte is, or `end`.
inline const uint8_t* skip_fill(const uint8_t* at, const uint8_t* end) {
    while (at < end && *at == 0xFF) ++at;
    return at;
}

// Where the next marker begins in entropy-coded data, or `end`. Restart markers count only if `restarts` says so.
const uint8_t* find_marker(const uint8_t* from, const uint8_t* end, bool restarts);

struct Segment {
    int marker = 0;
    int64_t offset = 0;  // of its length, in the file
    Bytes body;          // what follows the length
};

inline Outcome malformed(const Segment& segment) { return corrupt(Why::bad_segment, segment.marker, segment.offset); }

class MarkerReader {
public:
    // Stands behind the two bytes that is_jpeg() has seen.
    explicit MarkerReader(Bytes file) : file_(file), at_(file.data + 2) {}
    // Reads the next segment, or the end of the image, which has no body. Passes over restart markers.
    Outcome next(Segment& segment);
    // Where the next marker must begin.
    const uint8_t* at() const { return at_; }
    void go_to(const uint8_t* at) { at_ = at; }
    // Whether fill bytes or restart markers stood between the segments so far. Simpler readers lose their way there.
    bool is_irregular() const { return is_irregular_; }

private:
    Bytes file_;
    const uint8_t* at_;
    bool is_irregular_ = false;
};

// Adds the tables of a DQT segment. False: the segment is malformed, or a value is zero.
bool read_quantisers(Bytes body, uint16_t (&quant)[4][64], bool (&is_defined)[4]);

// Calls take(is_ac, number, table) for every table of a DHT segment. False: the segment is malformed, or `take` says
// so.
template <class Take>
bool read_huffman(Bytes body, const Take& take) {
    const uint8_t* p = body.data;
    while (p < body.end()) {
        const int kind = *p >> 4, number = *p & 15;
        ++p;
        if (kind > 1 || number > 3 || body.end() - p < 16) return false;
        int count = 0;
        for (int i = 0; i < 16; ++i) count += p[i];
        if (count > 256 || body.end() - p < 16 + count) return false;
        if (!take(kind == 1, number, HuffmanSpec{p, p + 16, count})) return false;
        p += 16 + count;
    }
    return true;
}

// A SOF segment.
struct Frame {
    int bits = 0, height = 0, width = 0;
    int count = 0;  // of components, of which four at most are read
    struct {
        int id, h, v, quant;
    } component[4] = {};

    bool has_sound_components() const;
};

// False: the segment is too short, or its length does not fit its components. What was seen is set.
bool read_frame(Bytes body, Frame& frame);

// A SOS segment.
struct ScanHeader {
    int count = 0;  // of components, of which four at most are read
    struct {
        int id, dc, ac;
    } component[4] = {};
    int first = 0, last = 63, high = 0,
        low = 0;  // coefficients by zigzag index; bits that came before, and still to come
};

// False: the length of the segment does not fit its components.
bool read_scan(Bytes body, ScanHeader& scan);

}  // namespace feedrate
