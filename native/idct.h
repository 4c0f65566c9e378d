// SPDX-License-Identifier: Apache-2.0
// The inverse DCT of one block, bit for bit that of libjpeg's accurate integer method.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedrate {

// `coefficients`: 64, dequantised, in rows, aligned to 16 bytes. `last`: zigzag index of the last that is not zero. Writes 8 x 8 samples.
using Idct = void (*)(const int16_t* coefficients, int last, uint8_t* samples, ptrdiff_t stride);

Idct choose_idct();

}  // namespace feedrate
