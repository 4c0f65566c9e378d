// SPDX-License-Identifier: Apache-2.0
// For NEON: included by resize.h, inside its namespace. Weights are split as for AVX2; the sums of the high parts may
// wrap around there, too.

// The sums of four taps of one line. `high` has those of taps 0 and 2 in its lower half, of 1 and 3 in its upper.
struct Sums {
    int16x8_t high;
    int32x4_t low;
};

FEEDRATE_HOT_INLINE void add_four(Sums& sums, const uint32_t* line, int16x8_t high_first, int16x8_t high_second,
                                  int16x4_t low) {
    const uint8x16_t pixels = vld1q_u8(reinterpret_cast<const uint8_t*>(line));
    const int16x8_t first = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(pixels))),
                    second = vreinterpretq_s16_u16(vmovl_high_u8(pixels));
    sums.high = vmlaq_s16(sums.high, first, high_first);
    sums.high = vmlaq_s16(sums.high, second, high_second);
    // As SplitFour has them: taps 0, 2, 1, 3.
    sums.low = vmlal_lane_s16(sums.low, vget_low_s16(first), low, 0);
    sums.low = vmlal_high_lane_s16(sums.low, first, low, 2);
    sums.low = vmlal_lane_s16(sums.low, vget_low_s16(second), low, 1);
    sums.low = vmlal_high_lane_s16(sums.low, second, low, 3);
}

FEEDRATE_HOT_INLINE uint16x4_t finish(const Sums& sums) {
    const int16x4_t high = vadd_s16(vget_low_s16(sums.high), vget_high_s16(sums.high));
    const int32x4_t sum = vaddq_s32(sums.low, vshll_n_s16(high, 16));
    return vqmovun_s32(vshrq_n_s32(sum, kWeightBits));
}

FEEDRATE_HOT_INLINE uint32_t to_pixel(uint16x4_t words) {
    return vget_lane_u32(vreinterpret_u32_u8(vqmovn_u16(vcombine_u16(words, words))), 0);
}

FEEDRATE_HOT void shrink(const uint32_t* line0, const uint32_t* line1, const Taps& taps, int out_width, uint32_t* out0,
                         uint32_t* out1) {
    // As for AVX2.
    if (taps.groups > 32) {
        shrink_line_widely(line0, taps, out_width, out0);
        shrink_line_widely(line1, taps, out_width, out1);
        return;
    }
    const uint8_t kEach[16] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
    const uint8x16_t each = vld1q_u8(kEach);
    const SplitFour* weight = taps.split.data();
    const int groups = taps.groups;
    for (int x = 0; x < out_width; ++x, weight += groups) {
        const int first = taps.first[static_cast<size_t>(x)];
        Sums sums[2] = {{vdupq_n_s16(0), vdupq_n_s32(kRound)}, {vdupq_n_s16(0), vdupq_n_s32(kRound)}};
        for (int i = 0; i < groups; ++i) {
            uint32_t word;
            std::memcpy(&word, weight[i].high, 4);
            const int8x16_t high = vreinterpretq_s8_u8(vqtbl1q_u8(vreinterpretq_u8_u32(vdupq_n_u32(word)), each));
            const int16x8_t high_first = vmovl_s8(vget_low_s8(high)), high_second = vmovl_high_s8(high);
            const int16x4_t low = vld1_s16(weight[i].low);
            add_four(sums[0], line0 + first + 4 * i, high_first, high_second, low);
            add_four(sums[1], line1 + first + 4 * i, high_first, high_second, low);
        }
        out0[x] = to_pixel(finish(sums[0]));
        out1[x] = to_pixel(finish(sums[1]));
    }
}

// Sixteen bytes of a line.
FEEDRATE_HOT_INLINE void lower_16(const uint8_t* const* rows, int count, const int16_t* high, const int16_t* low, int x,
                                  uint8_t* out) {
    int16x8_t whole[2] = {vdupq_n_s16(kRound >> 16), vdupq_n_s16(kRound >> 16)};
    int32x4_t rest[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
    for (int k = 0; k < count; ++k) {
        const uint8x16_t bytes = vld1q_u8(rows[k] + x);
        const int16x8_t first = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes))),
                        second = vreinterpretq_s16_u16(vmovl_high_u8(bytes));
        whole[0] = vmlaq_n_s16(whole[0], first, high[k]);
        whole[1] = vmlaq_n_s16(whole[1], second, high[k]);
        rest[0] = vmlal_n_s16(rest[0], vget_low_s16(first), low[k]);
        rest[1] = vmlal_high_n_s16(rest[1], first, low[k]);
        rest[2] = vmlal_n_s16(rest[2], vget_low_s16(second), low[k]);
        rest[3] = vmlal_high_n_s16(rest[3], second, low[k]);
    }
    uint8x8_t bytes[2];
    for (int i = 0; i < 2; ++i) {
        const int16x8_t carry = vcombine_s16(vshrn_n_s32(rest[2 * i], 16), vshrn_n_s32(rest[2 * i + 1], 16));
        const int16x8_t words = vshrq_n_s16(vaddq_s16(whole[i], carry), kWeightBits - 16);
        bytes[i] = vqmovun_s16(words);
    }
    vst1q_u8(out + x, vcombine_u8(bytes[0], bytes[1]));
}

FEEDRATE_HOT void lower(const uint8_t* const* rows, int count, const int32_t* weight, int width, uint8_t* out) {
    constexpr int kMost = 64;
    if (count > kMost) {
        for (int x = 0; x < width; x += kLineChunk) lower_widely(rows, count, weight, x, out);
        return;
    }
    int16_t high[kMost], low[kMost];
    for (int k = 0; k < count; ++k) {
        low[k] = static_cast<int16_t>(weight[k] & 0xFFFF);
        high[k] = static_cast<int16_t>((weight[k] - low[k]) >> 16);
    }
    for (int x = 0; x < width; x += 16) lower_16(rows, count, high, low, x, out);
}

FEEDRATE_HOT_INLINE uint8x8x3_t mirror(const uint8x8x3_t& planes) {
    return {{vrev64_u8(planes.val[0]), vrev64_u8(planes.val[1]), vrev64_u8(planes.val[2])}};
}

// The first pixels of a line, as far as eight at a time go; returns how many.
FEEDRATE_HOT_INLINE size_t pack_most(const uint32_t* line, size_t width, bool flip, uint8_t* out) {
    size_t x = 0;
    for (; x + 8 <= width; x += 8) {
        const uint8x8x4_t pixels = vld4_u8(reinterpret_cast<const uint8_t*>(flip ? line + width - 8 - x : line + x));
        const uint8x8x3_t planes = {{pixels.val[0], pixels.val[1], pixels.val[2]}};
        vst3_u8(out + 3 * x, flip ? mirror(planes) : planes);
    }
    return x;
}

FEEDRATE_HOT_INLINE int spread_most(const uint8_t* in, int count, uint32_t* out) {
    int x = 0;
    for (; x + 8 <= count; x += 8) {
        const uint8x8x3_t planes = vld3_u8(in + 3 * x);
        const uint8x8x4_t pixels = {{planes.val[0], planes.val[1], planes.val[2], vdup_n_u8(0)}};
        vst4_u8(reinterpret_cast<uint8_t*>(out + x), pixels);
    }
    return x;
}
