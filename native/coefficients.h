// SPDX-License-Identifier: Apache-2.0
// All quantised coefficients of a Huffman-coded JPEG, baseline or progressive, gray or three components: read, turned,
// and written as one baseline scan. No coefficient is rounded on the way, so nothing is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "status.h"

namespace feedrate {

struct Plane {
    int id = 0;
    int h = 1, v = 1;                    // blocks per MCU
    int wide = 0, high = 0;              // blocks, up to whole MCUs
    int coded_wide = 0, coded_high = 0;  // blocks that a scan of this component alone has
    uint16_t quant[64] = {};             // by row and column
    std::vector<int16_t> values;         // block after block, by row and column

    int16_t* block(int x, int y) { return values.data() + (static_cast<size_t>(y) * wide + x) * 64; }
    const int16_t* block(int x, int y) const { return values.data() + (static_cast<size_t>(y) * wide + x) * 64; }
};

struct Coefficients {
    int width = 0, height = 0;
    std::vector<Plane> planes;
    int h_max = 1, v_max = 1;
    std::string segments;  // application data and comments, as they stand in the file

    int mcu_width() const { return 8 * h_max; }
    int mcu_height() const { return 8 * v_max; }
};

// Zigzag index -> place by row and column.
extern const uint8_t kNatural[64];

// What is cut short, refined only in part or damaged in any way is not ok: then the caller has pixels, but not these.
Outcome read_coefficients(const uint8_t* data, size_t size, Coefficients& image);

// Turns an image upright that has this EXIF orientation (1 to 8). False, and nothing done, when blocks at an edge that
// is not whole would come to lie inside.
bool turn(Coefficients& image, int orientation);

// One baseline scan with Huffman tables made for it; not ok when a coefficient is beyond what baseline JPEG holds.
Outcome write_baseline(const Coefficients& image, std::string& out);

}  // namespace feedrate
