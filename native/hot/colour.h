// SPDX-License-Identifier: Apache-2.0
// Weights and rounding follow jdsample.c and jdcolor.c of libjpeg-turbo, so that every pixel is the same.

HOT_INLINE int32_t clamp(int32_t value) { return std::min(std::max(value, 0), 255); }

HOT_INLINE void convert_some(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int count, uint32_t* out) {
    for (int i = 0; i < count; ++i) {
        const int32_t u = cb[i] - 128, v = cr[i] - 128;
        const int32_t r = clamp(y[i] + ((kRed * v + kHalf) >> 16));
        const int32_t g = clamp(y[i] + ((kGreenBlue * u + kGreenRed * v + kHalf) >> 16));
        const int32_t b = clamp(y[i] + ((kBlue * u + kHalf) >> 16));
        out[i] = static_cast<uint32_t>(r | g << 8 | b << 16);
    }
}

#if FEEDRATE_VECTORS == 256

// Bytes as words; how many there are in a vector.
constexpr int kStep = sizeof(Widest) / 2;

#if FEEDRATE_WIDE
HOT_INLINE Widest load_bytes(const uint8_t* from) {
    return {_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}

// Four pixels of each part of `low`, then of `high`, part by part.
HOT_INLINE void store_pixels(Widest low, Widest high, uint32_t* out) {
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  last = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    _mm512_storeu_si512(out, _mm512_permutex2var_epi64(low.v, first, high.v));
    _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi64(low.v, last, high.v));
}
#else
HOT_INLINE Widest load_bytes(const uint8_t* from) {
    return {_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}

// Four pixels of each part of `low`, then of `high`, part by part.
HOT_INLINE void store_pixels(Widest low, Widest high, uint32_t* out) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute2x128_si256(low.v, high.v, 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8), _mm256_permute2x128_si256(low.v, high.v, 0x31));
}
#endif

// (twice * factor + 65536) >> 17, in 16 bits: the high half of the product, halved with rounding, is the same number.
HOT_INLINE Widest round_product(Widest twice, int factor) {
    const Widest high = high_products(twice, Widest::repeat_word(factor));
    return halve_words(add_words(high, Widest::repeat_word(1)));
}

// (kGreenBlue * u + kGreenRed * v + kHalf) >> 16, with a whole v taken out of the second factor so that it has 16 bits.
HOT_INLINE Widest green_of(Widest u, Widest v) {
    const Widest factors = Widest::repeat((kGreenBlue & 0xFFFF) | (kGreenRed + 65536) << 16);
    const Widest half = Widest::repeat(kHalf);
    const Widest low = (add_products(low_words(u, v), factors) + half) >> 16;
    const Widest high = (add_products(high_words(u, v), factors) + half) >> 16;
    return subtract_words(pack_words(low, high), v);
}

HOT_INLINE void convert_step(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, uint32_t* out) {
    const Widest center = Widest::repeat_word(128), luma = load_bytes(y);
    const Widest u = subtract_words(load_bytes(cb), center), v = subtract_words(load_bytes(cr), center);
    const Widest u2 = add_words(u, u), v2 = add_words(v, v);
    const Widest r = add_words(add_words(luma, v), round_product(v2, kRed - 65536));
    const Widest g = add_words(luma, green_of(u, v));
    const Widest b = add_words(add_words(luma, u2), round_product(u2, kBlue - 2 * 65536));
    // Within each part: r g r g ..., b 0 b 0 ..., then r g b 0.
    const Widest rb = pack_bytes(r, b), g0 = pack_bytes(g, Widest::repeat(0));
    const Widest rg = low_bytes(rb, g0), b0 = high_bytes(rb, g0);
    store_pixels(low_words(rg, b0), high_words(rg, b0), out);
}

#elif FEEDRATE_VECTORS == 128

constexpr int kStep = 8;

// (sum + kHalf) >> 16 of both halves.
HOT_INLINE int16x8_t round_sums(int32x4_t low, int32x4_t high) {
    return vcombine_s16(vrshrn_n_s32(low, 16), vrshrn_n_s32(high, 16));
}

HOT_INLINE int16x8_t round_product(int16x8_t value, int16_t factor) {
    return round_sums(vmull_n_s16(vget_low_s16(value), factor), vmull_n_s16(vget_high_s16(value), factor));
}

// The factors have a whole number taken out, so that they have 16 bits.
HOT_INLINE void convert_step(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, uint32_t* out) {
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

#endif

HOT void convert_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int count, uint32_t* out) {
#if FEEDRATE_VECTORS
    int i = 0;
    for (; i + kStep <= count; i += kStep) convert_step(y + i, cb + i, cr + i, out + i);
    if (i == count) return;
    // The last ones go together with some that are already there.
    i = count - kStep;
    if (i >= 0) return convert_step(y + i, cb + i, cr + i, out + i);
#endif
    convert_some(y, cb, cr, count, out);
}

HOT void widen(const uint8_t* in, int count, uint8_t* out) {
    for (int i = 0; i < count; ++i) {
        const int here = 3 * in[i];
        out[2 * i] = static_cast<uint8_t>((here + in[i - 1] + 1) >> 2);
        out[2 * i + 1] = static_cast<uint8_t>((here + in[i + 1] + 2) >> 2);
    }
}

HOT void add_rows(const uint8_t* near, const uint8_t* far, int count, uint16_t* sums) {
    for (int i = 0; i < count; ++i) sums[i] = static_cast<uint16_t>(3 * near[i] + far[i]);
}

HOT void widen_sums(const uint16_t* in, int count, uint8_t* out) {
    for (int i = 0; i < count; ++i) {
        const uint16_t here = static_cast<uint16_t>(3 * in[i]);
        out[2 * i] = static_cast<uint8_t>(static_cast<uint16_t>(here + in[i - 1] + 8) >> 4);
        out[2 * i + 1] = static_cast<uint8_t>(static_cast<uint16_t>(here + in[i + 1] + 7) >> 4);
    }
}
