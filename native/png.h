// SPDX-License-Identifier: Apache-2.0
// Whether a PNG is whole: its chunks follow each other to the end, and each has the checksum that it says. The pixels
// are not decoded.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedrate {

struct PngFacts {
    int width, height;
    int depth, colour;  // as the standard numbers them
};

// False: it is not a PNG, or not whole, or has something that deserves a second look: frames, EXIF, a size beyond all
// measure.
bool check_png(const uint8_t* data, size_t size, PngFacts& facts);

}  // namespace feedrate
