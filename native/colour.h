// SPDX-License-Identifier: Apache-2.0
// From planes to lines of pixels: chroma to full width and height as libjpeg's triangle filter does it, then its
// integer YCbCr to RGB.
#pragma once

#include <cstdint>

namespace feedrate {

constexpr int32_t kRed = 91881, kBlue = 116130, kGreenRed = -46802, kGreenBlue = -22554;  // of Cr, Cb, in 1/65536
constexpr int32_t kHalf = 1 << 15;

// Pixels of four bytes: R, G, B, 0. For `gray`, what make_gray() makes of them.
void write_pixels(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int count, bool gray, uint32_t* out);
void write_gray_pixels(const uint8_t* y, int count, uint32_t* out);
// Pillow's convert("L") of such pixels, in the lowest byte.
void make_gray(int count, uint32_t* pixels);

// What one line of full-size chroma is made of. `near` and `far` are the lines of half-size chroma (the same one twice
// when the height is not halved); `first` to `last` are the columns to expand, `width` the columns in the image.
struct ChromaLine {
    const uint8_t *near, *far;
    bool above;  // the far line lies above the near one
    int first, last, width;
};

// Three parts of near, one part of far.
void blend_rows(const ChromaLine& line, uint8_t* out);
// Doubles the width of `near`; writes 2 * (last - first + 1) samples. Reads the columns beside first and last, too.
void double_width(const ChromaLine& line, uint8_t* out);
// Both at once, with the rounding of both. `sums` holds last - first + 3.
void double_both(const ChromaLine& line, uint16_t* sums, uint8_t* out);
// Images of one or two columns of chroma are not blended, only repeated.
void repeat_width(const ChromaLine& line, uint8_t* out);

}  // namespace feedrate
