// SPDX-License-Identifier: Apache-2.0
// Numbers in the place of pixels: what comes behind an image (division, normalisation) as a table of 256 per channel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedrate {

// Value `v` of channel `c` becomes table[256 * c + v]; `count` pixels of 1 or 3 channels. `planar`: `out` has all
// numbers of one channel, then those of the next.
void apply_table(const uint8_t* pixels, size_t count, int channels, const float* table, bool planar, float* out);

}  // namespace feedrate
