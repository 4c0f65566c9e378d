// SPDX-License-Identifier: Apache-2.0
// For NEON: included by idct.h, inside its namespace. Sums wrap as those of the other levels do.

// One dimension of eight lines of eight values: transforms across the lines.
template <int kShift>
FEEDRATE_HOT_INLINE int16x4_t scaled(int32x4_t sum) {
    return vqmovn_s32(vshrq_n_s32(sum, kShift));
}

// What half a line of inputs a and b adds.
FEEDRATE_HOT_INLINE int32x4_t product(int16x4_t a, int16x4_t b, const int (&factor)[2]) {
    return vmlal_n_s16(vmull_n_s16(a, static_cast<int16_t>(factor[0])), b, static_cast<int16_t>(factor[1]));
}

template <int kShift>
FEEDRATE_HOT_INLINE void transform_half(const int16x4_t (&in)[8], int16x4_t (&out)[8]) {
    int32x4_t even[4];
    const int32x4_t round = vdupq_n_s32(1 << (kShift - 1));
    for (int j = 0; j < 2; ++j) {
        const int32x4_t a = vaddq_s32(product(in[0], in[4], kEven04[j]), round), b = product(in[2], in[6], kEven26[j]);
        even[j] = vaddq_s32(a, b);
        even[3 - j] = vsubq_s32(a, b);
    }
    for (int j = 0; j < 4; ++j) {
        const int32x4_t odd = vaddq_s32(product(in[1], in[5], kOdd15[j]), product(in[3], in[7], kOdd37[j]));
        out[j] = scaled<kShift>(vaddq_s32(even[j], odd));
        out[7 - j] = scaled<kShift>(vsubq_s32(even[j], odd));
    }
}

template <int kShift>
FEEDRATE_HOT_INLINE void transform(int16x8_t (&lines)[8]) {
    int16x4_t low[8], high[8];
    for (int i = 0; i < 8; ++i) low[i] = vget_low_s16(lines[i]), high[i] = vget_high_s16(lines[i]);
    int16x4_t low_out[8], high_out[8];
    transform_half<kShift>(low, low_out);
    transform_half<kShift>(high, high_out);
    for (int i = 0; i < 8; ++i) lines[i] = vcombine_s16(low_out[i], high_out[i]);
}

FEEDRATE_HOT_INLINE void transpose(int16x8_t (&lines)[8]) {
    int32x4_t pairs[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = vreinterpretq_s32_s16(vtrn1q_s16(lines[i], lines[i + 1]));
        pairs[i + 1] = vreinterpretq_s32_s16(vtrn2q_s16(lines[i], lines[i + 1]));
    }
    int64x2_t fours[8];
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; ++j) {
            fours[i + j] = vreinterpretq_s64_s32(vtrn1q_s32(pairs[i + j], pairs[i + j + 2]));
            fours[i + j + 2] = vreinterpretq_s64_s32(vtrn2q_s32(pairs[i + j], pairs[i + j + 2]));
        }
    for (int i = 0; i < 4; ++i) {
        lines[i] = vreinterpretq_s16_s64(vtrn1q_s64(fours[i], fours[i + 4]));
        lines[i + 4] = vreinterpretq_s16_s64(vtrn2q_s64(fours[i], fours[i + 4]));
    }
}

FEEDRATE_HOT_INLINE void transform_block(const int16_t* coefficients, const int16_t* quant, uint8_t* samples,
                                         ptrdiff_t stride) {
    int16x8_t lines[8];
    for (int i = 0; i < 4; ++i) {
        // Takes rows i and i + 4 apart.
        const int16x8x2_t c = vld2q_s16(coefficients + 16 * i), q = vld2q_s16(quant + 16 * i);
        lines[i] = vmulq_s16(c.val[0], q.val[0]);
        lines[i + 4] = vmulq_s16(c.val[1], q.val[1]);
    }
    transform<kShift1>(lines);
    transpose(lines);
    transform<kShift2>(lines);
    transpose(lines);
    for (int y = 0; y < 8; ++y) {
        const uint8x8_t row = veor_u8(vreinterpret_u8_s8(vqmovn_s16(lines[y])), vdup_n_u8(0x80));
        vst1_u8(samples + y * stride, row);
    }
}
