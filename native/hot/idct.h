// SPDX-License-Identifier: Apache-2.0
// The inverse DCT of one block, bit for bit that of libjpeg's accurate integer method. The factors are those that
// jidctint.c of the Independent JPEG Group arrives at (the method of Loeffler, Ligtenberg and Moschytz, ICASSP 1989,
// with 13-bit constants), multiplied out: a sum of products each, which is the same number in integers and one vector
// instruction per pair. Scaling and rounding follow jidctint.c too, so that every sample is libjpeg's.

constexpr int kConstBits = 13;  // of the factors
constexpr int kPass1Bits = 2;   // kept between the passes
constexpr int kShift1 = kConstBits - kPass1Bits, kShift2 = kConstBits + kPass1Bits + 3;

// Rows: what the inputs 0 and 4, or 2 and 6, add to the even sums.
constexpr int kEven04[2][2] = {{8192, 8192}, {8192, -8192}};
constexpr int kEven26[2][2] = {{10703, 4433}, {4433, -10704}};
// What the inputs 1 and 5, and 3 and 7, add to the odd sums.
constexpr int kOdd15[4][2] = {{11363, 6437}, {9633, -11362}, {6437, 2261}, {2260, 9633}};
constexpr int kOdd37[4][2] = {{9633, 2260}, {-2259, -6436}, {-11362, 9633}, {-6436, -11363}};

HOT_INLINE uint8_t to_sample(int value) { return static_cast<uint8_t>(std::min(std::max(value + 128, 0), 255)); }

// What both passes make of a DC value alone.
HOT_INLINE void fill_flat(int dc, uint8_t* samples, ptrdiff_t stride) {
    // 16 bits between the passes, as in libjpeg-turbo's vector code: a value that no encoder writes wraps there too.
    const int between = static_cast<int16_t>(dc * (1 << kPass1Bits));
    const uint64_t word = to_sample((between + 16) >> (kPass1Bits + 3)) * uint64_t{0x0101010101010101};
    for (int y = 0; y < 8; ++y) std::memcpy(samples + y * stride, &word, 8);
}

#if FEEDRATE_VECTORS == 256

// From halves to value by value.
template <class Vector>
HOT_INLINE Vector zip(Vector a) {
    return shuffle(swap_fours(a), _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
}

// Lines i and i + 4 in x[i], eight 16-bit values each: value by value as input, one per half as output. A vector of 512
// bits holds those of two blocks.
template <class Vector>
struct Lines {
    Vector x[4];
};

template <class Vector>
HOT_INLINE Vector multiply(Vector a, const int (&factor)[2]) {
    const auto low = static_cast<uint32_t>(factor[0] & 0xFFFF), high = static_cast<uint32_t>(factor[1]) << 16;
    return add_products(a, Vector::repeat(static_cast<int>(low | high)));
}

// Transforms across the lines, and turns rows into columns.
template <int kShift, class Vector>
HOT_INLINE Lines<Vector> transform(const Lines<Vector>& in) {
    const Vector(&p)[4] = in.x;
    Vector even[4], r[8];
    const Vector round = Vector::repeat(1 << (kShift - 1));
    for (int j = 0; j < 2; ++j) {
        const Vector a = multiply(p[0], kEven04[j]) + round, b = multiply(p[2], kEven26[j]);
        even[j] = a + b;
        even[3 - j] = a - b;
    }
    for (int j = 0; j < 4; ++j) {
        const Vector odd = multiply(p[1], kOdd15[j]) + multiply(p[3], kOdd37[j]);
        r[j] = (even[j] + odd) >> kShift;
        r[7 - j] = (even[j] - odd) >> kShift;
    }
    // Columns 0 to 3 in the lower half, 4 to 7 in the upper.
    const Vector a = pack_words(r[0], r[1]), b = pack_words(r[2], r[3]), c = pack_words(r[4], r[5]),
                 d = pack_words(r[6], r[7]);
    const Vector ab0 = low_words(a, b), ab1 = high_words(a, b), cd0 = low_words(c, d), cd1 = high_words(c, d);
    const Vector top01 = low_words(ab0, ab1), top23 = high_words(ab0, ab1);
    const Vector low01 = low_words(cd0, cd1), low23 = high_words(cd0, cd1);
    return {{low_fours(top01, low01), high_fours(top01, low01), low_fours(top23, low23), high_fours(top23, low23)}};
}

template <class Vector>
HOT_INLINE void transform_both_ways(Lines<Vector>& lines) {
    lines = transform<kShift1>(lines);
    for (Vector& x : lines.x) x = zip(x);
    lines = transform<kShift2>(lines);
}

HOT_INLINE void store_two(__m128i rows, uint8_t* first, uint8_t* second) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(first), rows);
    _mm_storeh_pd(reinterpret_cast<double*>(second), _mm_castsi128_pd(rows));
}

// Lines i, i + 1, i + 4 and i + 5.
HOT_INLINE void store_four(__m256i first, __m256i second, int i, uint8_t* samples, ptrdiff_t stride) {
    const __m256i center = _mm256_set1_epi8(static_cast<char>(0x80));
    const __m256i rows = _mm256_xor_si256(_mm256_packs_epi16(first, second), center);
    store_two(_mm256_castsi256_si128(rows), samples + i * stride, samples + (i + 1) * stride);
    store_two(_mm256_extracti128_si256(rows, 1), samples + (i + 4) * stride, samples + (i + 5) * stride);
}

HOT_INLINE void transform_block(const int16_t* coefficients, const int16_t* quant, uint8_t* samples, ptrdiff_t stride) {
    Lines<Vector256> lines;
    for (int i = 0; i < 4; ++i) {
        const auto *c = reinterpret_cast<const __m256i*>(coefficients + 16 * i),
                   *q = reinterpret_cast<const __m256i*>(quant + 16 * i);
        lines.x[i].v = _mm256_mullo_epi16(_mm256_load_si256(c), _mm256_load_si256(q));
    }
    transform_both_ways(lines);
    for (int i = 0; i < 4; i += 2) store_four(lines.x[i].v, lines.x[i + 1].v, i, samples, stride);
}

#if FEEDRATE_WIDE
HOT_INLINE void transform_blocks(const int16_t (&coefficients)[2][64], const int16_t* quant, uint8_t* (&samples)[2],
                                 const ptrdiff_t (&stride)[2]) {
    Lines<Vector512> lines;
    for (int i = 0; i < 4; ++i) {
        const auto *a = reinterpret_cast<const __m256i*>(coefficients[0] + 16 * i),
                   *b = reinterpret_cast<const __m256i*>(coefficients[1] + 16 * i),
                   *q = reinterpret_cast<const __m256i*>(quant + 16 * i);
        const Vector512 both = join(_mm256_load_si256(a), _mm256_load_si256(b));
        lines.x[i].v = _mm512_mullo_epi16(both.v, _mm512_broadcast_i64x4(_mm256_load_si256(q)));
    }
    transform_both_ways(lines);
    for (int block = 0; block < 2; ++block)
        for (int i = 0; i < 4; i += 2)
            store_four(half_of(lines.x[i], block), half_of(lines.x[i + 1], block), i, samples[block], stride[block]);
}
#endif

#elif FEEDRATE_VECTORS == 128

// One dimension of eight lines of eight values: transforms across the lines.
template <int kShift>
HOT_INLINE int16x4_t scaled(int32x4_t sum) {
    return vqmovn_s32(vshrq_n_s32(sum, kShift));
}

// What half a line of inputs a and b adds.
HOT_INLINE int32x4_t product(int16x4_t a, int16x4_t b, const int (&factor)[2]) {
    return vmlal_n_s16(vmull_n_s16(a, static_cast<int16_t>(factor[0])), b, static_cast<int16_t>(factor[1]));
}

template <int kShift>
HOT_INLINE void transform_half(const int16x4_t (&in)[8], int16x4_t (&out)[8]) {
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
HOT_INLINE void transform(int16x8_t (&lines)[8]) {
    int16x4_t low[8], high[8];
    for (int i = 0; i < 8; ++i) low[i] = vget_low_s16(lines[i]), high[i] = vget_high_s16(lines[i]);
    int16x4_t low_out[8], high_out[8];
    transform_half<kShift>(low, low_out);
    transform_half<kShift>(high, high_out);
    for (int i = 0; i < 8; ++i) lines[i] = vcombine_s16(low_out[i], high_out[i]);
}

HOT_INLINE void transpose(int16x8_t (&lines)[8]) {
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

HOT_INLINE void transform_block(const int16_t* coefficients, const int16_t* quant, uint8_t* samples, ptrdiff_t stride) {
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

#else

// Sums wrap instead of overflowing: only damaged files get there.
HOT_INLINE uint32_t product(int32_t a, int32_t b, const int (&factor)[2]) {
    return static_cast<uint32_t>(a) * static_cast<uint32_t>(factor[0]) +
           static_cast<uint32_t>(b) * static_cast<uint32_t>(factor[1]);
}

template <int kShift>
HOT_INLINE int16_t scaled(uint32_t sum) {
    return static_cast<int16_t>(std::min(std::max(static_cast<int32_t>(sum) >> kShift, -32768), 32767));
}

// One dimension of eight lines: in[8 * i + line] to out[8 * i + line].
template <int kShift>
HOT void transform(const int16_t* in, int16_t* out) {
    for (int i = 0; i < 8; ++i) {
        uint32_t even[4], odd[4];
        for (int j = 0; j < 2; ++j) {
            const uint32_t a = product(in[i], in[32 + i], kEven04[j]) + (1u << (kShift - 1)),
                           b = product(in[16 + i], in[48 + i], kEven26[j]);
            even[j] = a + b;
            even[3 - j] = a - b;
        }
        for (int j = 0; j < 4; ++j)
            odd[j] = product(in[8 + i], in[40 + i], kOdd15[j]) + product(in[24 + i], in[56 + i], kOdd37[j]);
        for (int j = 0; j < 4; ++j) {
            out[8 * j + i] = scaled<kShift>(even[j] + odd[j]);
            out[8 * (7 - j) + i] = scaled<kShift>(even[j] - odd[j]);
        }
    }
}

HOT void transform_block(const int16_t* coefficients, const int16_t* quant, uint8_t* samples, ptrdiff_t stride) {
    int16_t a[64], b[64];
    for (int i = 0; i < 64; ++i) {
        const int place = place_of(i / 8, i % 8);
        a[i] = static_cast<int16_t>(coefficients[place] * quant[place]);
    }
    transform<kShift1>(a, b);
    for (int i = 0; i < 64; ++i) a[i] = b[i % 8 * 8 + i / 8];
    transform<kShift2>(a, b);
    for (int y = 0; y < 8; ++y)
        for (int x = 0; x < 8; ++x) samples[y * stride + x] = to_sample(b[8 * x + y]);
}

#endif

// `coefficients` and `quant`: 64, as in kPlace, aligned to 32 bytes.
HOT_INLINE void inverse_dct(const int16_t* coefficients, const int16_t* quant, int last, uint8_t* samples,
                            ptrdiff_t stride) {
    if (last == 0)
        fill_flat(static_cast<int16_t>(coefficients[0] * quant[0]), samples, stride);
    else
        transform_block(coefficients, quant, samples, stride);
}

// Two blocks of one component.
HOT_INLINE void inverse_dcts(const int16_t (&coefficients)[2][64], const int16_t* quant, const int (&last)[2],
                             uint8_t* (&samples)[2], const ptrdiff_t (&stride)[2]) {
#if FEEDRATE_WIDE
    if (last[0] && last[1]) return transform_blocks(coefficients, quant, samples, stride);
#endif
    for (int i = 0; i < 2; ++i) inverse_dct(coefficients[i], quant, last[i], samples[i], stride[i]);
}
