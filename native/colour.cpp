// SPDX-License-Identifier: Apache-2.0
// Weights and rounding follow jdsample.c and jdcolor.c of libjpeg-turbo, so that every pixel is the same.
#include "colour.h"

#include <algorithm>

#include "level.h"

namespace feedrate {

void write_pixels(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int count, bool gray, uint32_t* out) {
    level().convert_rgb(y, cb, cr, count, out);
    if (gray) make_gray(count, out);
}

void make_gray(int count, uint32_t* out) {
    for (int i = 0; i < count; ++i) {
        const uint32_t r = out[i] & 0xFF, g = out[i] >> 8 & 0xFF, b = out[i] >> 16;
        out[i] = (r * 19595 + g * 38470 + b * 7471 + kHalf) >> 16;
    }
}

void write_gray_pixels(const uint8_t* y, int count, uint32_t* out) {
    for (int i = 0; i < count; ++i) out[i] = y[i] * 0x010101u;
}

void blend_rows(const ChromaLine& line, uint8_t* out) {
    const int bias = line.above ? 1 : 2;
    for (int x = line.first; x <= line.last; ++x)
        *out++ = static_cast<uint8_t>((3 * line.near[x] + line.far[x] + bias) >> 2);
}

void double_width(const ChromaLine& line, uint8_t* out) {
    // At the border of the image the sample stands in for its missing neighbour.
    const uint8_t* in = line.near;
    int first = line.first, last = line.last;
    if (first == 0) {
        const int next = in[std::min(1, line.width - 1)];
        *out++ = in[0];
        *out++ = static_cast<uint8_t>((3 * in[0] + next + 2) >> 2);
        ++first;
    }
    const bool at_end = last == line.width - 1 && last >= first;
    if (at_end) --last;
    const int count = std::max(last - first + 1, 0);
    level().widen(in + first, count, out);
    out += 2 * count;
    if (at_end) {
        *out++ = static_cast<uint8_t>((3 * in[last + 1] + in[last] + 1) >> 2);
        *out++ = in[last + 1];
    }
}

void double_both(const ChromaLine& line, uint16_t* sums, uint8_t* out) {
    const int from = std::max(line.first - 1, 0), to = std::min(line.last + 1, line.width - 1);
    uint16_t* inner = sums + 1;  // of column line.first
    level().add_rows(line.near + from, line.far + from, to - from + 1, inner + (from - line.first));
    if (line.first == 0) inner[-1] = inner[0];
    if (line.last == line.width - 1) inner[line.last - line.first + 1] = inner[line.last - line.first];
    level().widen_sums(inner, line.last - line.first + 1, out);
}

void repeat_width(const ChromaLine& line, uint8_t* out) {
    for (int x = line.first; x <= line.last; ++x, out += 2) out[0] = out[1] = line.near[x];
}

}  // namespace feedrate
