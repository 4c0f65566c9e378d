// SPDX-License-Identifier: Apache-2.0
// For NEON: included by colour.h, inside its namespace.

// (sum + kHalf) >> 16 of both halves.
FEEDRATE_HOT_INLINE int16x8_t round_sums(int32x4_t low, int32x4_t high) {
    return vcombine_s16(vrshrn_n_s32(low, 16), vrshrn_n_s32(high, 16));
}

FEEDRATE_HOT_INLINE int16x8_t round_product(int16x8_t value, int16_t factor) {
    return round_sums(vmull_n_s16(vget_low_s16(value), factor), vmull_n_s16(vget_high_s16(value), factor));
}

// The factors have a whole number taken out, so that they have 16 bits.
FEEDRATE_HOT_INLINE void convert_8(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, uint32_t* out) {
    constexpr auto kRest = static_cast<int16_t>(kGreenRed + 65536);
    const uint8x8_t center = vdup_n_u8(128);
    const int16x8_t luma = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(y)));
    const int16x8_t u = vreinterpretq_s16_u16(vsubl_u8(vld1_u8(cb), center)),
                    v = vreinterpretq_s16_u16(vsubl_u8(vld1_u8(cr), center));
    const int32x4_t green_low =
        vmlal_n_s16(vmull_n_s16(vget_low_s16(u), static_cast<int16_t>(kGreenBlue)), vget_low_s16(v), kRest);
    const int32x4_t green_high =
        vmlal_n_s16(vmull_n_s16(vget_high_s16(u), static_cast<int16_t>(kGreenBlue)), vget_high_s16(v), kRest);
    const int16x8_t r = vaddq_s16(vaddq_s16(luma, v), round_product(v, static_cast<int16_t>(kRed - 65536)));
    const int16x8_t g = vsubq_s16(vaddq_s16(luma, round_sums(green_low, green_high)), v);
    const int16x8_t b =
        vaddq_s16(vaddq_s16(luma, vaddq_s16(u, u)), round_product(u, static_cast<int16_t>(kBlue - 2 * 65536)));
    const uint8x8x4_t pixels = {{vqmovun_s16(r), vqmovun_s16(g), vqmovun_s16(b), vdup_n_u8(0)}};
    vst4_u8(reinterpret_cast<uint8_t*>(out), pixels);
}

FEEDRATE_HOT void convert_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int count, uint32_t* out) {
    int i = 0;
    for (; i + 8 <= count; i += 8) convert_8(y + i, cb + i, cr + i, out + i);
    if (i == count) return;
    // The last ones go together with some that are already there.
    if (count >= 8)
        convert_8(y + count - 8, cb + count - 8, cr + count - 8, out + count - 8);
    else
        convert_some(y, cb, cr, count, out);
}
