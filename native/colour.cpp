// SPDX-License-Identifier: Apache-2.0
// Weights and rounding follow jdsample.c and jdcolor.c of libjpeg-turbo, so that every pixel is the same.
#include "colour.h"

#include <algorithm>

#include "cpu.h"

namespace feedrate {

namespace {

constexpr int32_t kRed = 91881, kBlue = 116130, kGreenRed = -46802, kGreenBlue = -22554;  // of Cr, Cb, in 1/65536
constexpr int32_t kHalf = 1 << 15;

FEEDRATE_INLINE int32_t clamp(int32_t value) { return std::min(std::max(value, 0), 255); }

template <bool kGray>
FEEDRATE_INLINE void convert(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int count, uint32_t* out) {
    for (int i = 0; i < count; ++i) {
        const int32_t u = cb[i] - 128, v = cr[i] - 128;
        const int32_t r = clamp(y[i] + ((kRed * v + kHalf) >> 16));
        const int32_t g = clamp(y[i] + ((kGreenBlue * u + kGreenRed * v + kHalf) >> 16));
        const int32_t b = clamp(y[i] + ((kBlue * u + kHalf) >> 16));
        out[i] = static_cast<uint32_t>(kGray ? (r * 19595 + g * 38470 + b * 7471 + kHalf) >> 16 : r | g << 8 | b << 16);
    }
}

FEEDRATE_INLINE void widen(const uint8_t* in, int count, uint8_t* out) {
    for (int i = 0; i < count; ++i) {
        const int here = 3 * in[i];
        out[2 * i] = static_cast<uint8_t>((here + in[i - 1] + 1) >> 2);
        out[2 * i + 1] = static_cast<uint8_t>((here + in[i + 1] + 2) >> 2);
    }
}

FEEDRATE_INLINE void add_rows(const uint8_t* near, const uint8_t* far, int count, uint16_t* sums) {
    for (int i = 0; i < count; ++i) sums[i] = static_cast<uint16_t>(3 * near[i] + far[i]);
}

FEEDRATE_INLINE void widen_sums(const uint16_t* in, int count, uint8_t* out) {
    for (int i = 0; i < count; ++i) {
        const uint16_t here = static_cast<uint16_t>(3 * in[i]);
        out[2 * i] = static_cast<uint8_t>(static_cast<uint16_t>(here + in[i - 1] + 8) >> 4);
        out[2 * i + 1] = static_cast<uint8_t>(static_cast<uint16_t>(here + in[i + 1] + 7) >> 4);
    }
}

#define FEEDRATE_TWICE(name, parameters, arguments)            \
    void name##_plain parameters { name arguments; }           \
    FEEDRATE_IF_X86(FEEDRATE_AVX2 void name##_avx2 parameters { name arguments; })

#if FEEDRATE_X86
#define FEEDRATE_IF_X86(...) __VA_ARGS__
#define FEEDRATE_BEST(name) (has_avx2() ? name##_avx2 : name##_plain)
#else
#define FEEDRATE_IF_X86(...)
#define FEEDRATE_BEST(name) (name##_plain)
#endif

FEEDRATE_INLINE void convert_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int count, uint32_t* out) {
    convert<false>(y, cb, cr, count, out);
}

FEEDRATE_TWICE(convert_rgb, (const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int count, uint32_t* out), (y, cb, cr, count, out))
FEEDRATE_TWICE(widen, (const uint8_t* in, int count, uint8_t* out), (in, count, out))
FEEDRATE_TWICE(add_rows, (const uint8_t* near, const uint8_t* far, int count, uint16_t* sums), (near, far, count, sums))
FEEDRATE_TWICE(widen_sums, (const uint16_t* in, int count, uint8_t* out), (in, count, out))

}  // namespace

void write_pixels(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int count, bool gray, uint32_t* out) {
    if (gray)
        convert<true>(y, cb, cr, count, out);
    else
        FEEDRATE_BEST(convert_rgb)(y, cb, cr, count, out);
}

void write_gray_pixels(const uint8_t* y, int count, uint32_t* out) {
    for (int i = 0; i < count; ++i) out[i] = y[i] * 0x010101u;
}

void blend_rows(const ChromaLine& line, uint8_t* out) {
    const int bias = line.above ? 1 : 2;
    for (int x = line.first; x <= line.last; ++x) *out++ = static_cast<uint8_t>((3 * line.near[x] + line.far[x] + bias) >> 2);
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
    FEEDRATE_BEST(widen)(in + first, count, out);
    out += 2 * count;
    if (at_end) {
        *out++ = static_cast<uint8_t>((3 * in[last + 1] + in[last] + 1) >> 2);
        *out++ = in[last + 1];
    }
}

void double_both(const ChromaLine& line, uint16_t* sums, uint8_t* out) {
    const int from = std::max(line.first - 1, 0), to = std::min(line.last + 1, line.width - 1);
    uint16_t* inner = sums + 1;  // of column line.first
    FEEDRATE_BEST(add_rows)(line.near + from, line.far + from, to - from + 1, inner + (from - line.first));
    if (line.first == 0) inner[-1] = inner[0];
    if (line.last == line.width - 1) inner[line.last - line.first + 1] = inner[line.last - line.first];
    FEEDRATE_BEST(widen_sums)(inner, line.last - line.first + 1, out);
}

void repeat_width(const ChromaLine& line, uint8_t* out) {
    for (int x = line.first; x <= line.last; ++x, out += 2) out[0] = out[1] = line.near[x];
}

}  // namespace feedrate
