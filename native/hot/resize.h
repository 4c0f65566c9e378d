// SPDX-License-Identifier: Apache-2.0
// The two passes of Pillow's resize: sums of bytes times weights of kWeightBits bits, rounded and limited to 0 .. 255,
// which sums leave on both sides: some weights are below zero, and all are rounded.

constexpr int32_t kRound = 1 << (kWeightBits - 1);

HOT_INLINE uint8_t to_byte(int32_t sum) { return static_cast<uint8_t>(std::min(std::max(sum >> kWeightBits, 0), 255)); }

// One pixel, by 32-bit products: any number of taps.
HOT_INLINE uint32_t shrink_widely(const uint32_t* line, const int32_t* weight, int count) {
    const auto* in = reinterpret_cast<const uint8_t*>(line);
    int32_t sum[4] = {kRound, kRound, kRound, kRound};
    for (int k = 0; k < count; ++k)
        for (int i = 0; i < 4; ++i) sum[i] += in[4 * k + i] * weight[k];
    uint8_t bytes[4];
    for (int i = 0; i < 4; ++i) bytes[i] = to_byte(sum[i]);
    uint32_t pixel;
    std::memcpy(&pixel, bytes, 4);
    return pixel;
}

HOT void shrink_line_widely(const uint32_t* line, const Taps& taps, int out_width, uint32_t* out) {
    const int32_t* weight = taps.weight.data();
    for (int x = 0; x < out_width; ++x, weight += taps.width)
        out[x] = shrink_widely(line + taps.first[x], weight, taps.count[x]);
}

// A part of a line, by 32-bit products: any number of taps.
HOT_INLINE void lower_widely(const uint8_t* const* rows, int count, const int32_t* weight, int x, uint8_t* out) {
    int32_t sum[kLineChunk];
    for (int i = 0; i < kLineChunk; ++i) sum[i] = kRound;
    for (int k = 0; k < count; ++k) {
        const uint8_t* in = rows[k] + x;
        for (int i = 0; i < kLineChunk; ++i) sum[i] += in[i] * weight[k];
    }
    for (int i = 0; i < kLineChunk; ++i) out[x + i] = to_byte(sum[i]);
}

#if FEEDRATE_VECTORS == 256

// Four pixels of each of as many lines as a vector has parts.
constexpr int kParts = sizeof(Widest) / 16;

HOT_INLINE Widest load_parts(const uint32_t* const* lines, int at) {
    __m128i part[4];
    for (int i = 0; i < kParts; ++i) part[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lines[i] + at));
    const __m256i first = _mm256_inserti128_si256(_mm256_castsi128_si256(part[0]), part[1], 1);
#if FEEDRATE_WIDE
    return join(first, _mm256_inserti128_si256(_mm256_castsi128_si256(part[2]), part[3], 1));
#else
    return {first};
#endif
}

// One pixel of each line, kGroups (0: `groups`) times four taps. Unused ones have weight zero: a count that changes
// from pixel to pixel cannot be predicted. Products are of bytes for the high parts of the weights, of words for the
// low.
template <int kGroups>
HOT_INLINE Widest shrink_pixel(const uint32_t* const* lines, int at, const SplitFour* weight, int groups) {
    const int count = kGroups ? kGroups : groups;
    // Four reds, four greens, four blues, in each part.
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    Widest high = Widest::repeat(0), low = Widest::repeat(kRound);
    for (int i = 0; i < count; ++i) {
        const Widest pixels = shuffle(load_parts(lines, at + 4 * i), order);
        high = add_words(high, add_byte_products(pixels, Widest::repeat(weight[i].high)));
        low = low + add_products(even_bytes(pixels), Widest::repeat(weight[i].low));
        low = low + add_products(odd_bytes(pixels), Widest::repeat(weight[i].low + 2));
    }
    return ((add_products(high, Widest::repeat_word(1)) << 16) + low) >> kWeightBits;
}

template <int kGroups>
HOT void shrink_groups(const uint32_t* const* lines, const Taps& taps, int out_width, uint32_t* const* out) {
    const SplitFour* weight = taps.split.data();
    const int* first = taps.first.data();
    const int groups = kGroups ? kGroups : taps.groups;
    int x = 0;
    for (; x + 4 <= out_width; x += 4, weight += 4 * groups) {
        Widest pixel[4];
        for (int i = 0; i < 4; ++i) pixel[i] = shrink_pixel<kGroups>(lines, first[x + i], weight + i * groups, groups);
        const Widest bytes = pack_bytes(pack_words(pixel[0], pixel[1]), pack_words(pixel[2], pixel[3]));
        for (int i = 0; i < kParts; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(out[i] + x), part_of(bytes, i));
    }
    for (; x < out_width; ++x, weight += groups) {
        const Widest words = pack_words(shrink_pixel<kGroups>(lines, first[x], weight, groups), Widest::repeat(0));
        const Widest bytes = pack_bytes(words, words);
        for (int i = 0; i < kParts; ++i) out[i][x] = static_cast<uint32_t>(_mm_cvtsi128_si32(part_of(bytes, i)));
    }
}

HOT void shrink(const uint32_t* const (&lines)[kLines], const Taps& taps, int out_width,
                uint32_t* const (&out)[kLines]) {
    for (int i = 0; i < kLines; i += kParts) {
        // What saturates is a product of a pair of bytes: the high parts of two weights of one sign add up to less than
        // 128. Sums may wrap around: what they come to in 32 bits is within range.
        switch (taps.groups) {
            case 1: shrink_groups<1>(lines + i, taps, out_width, out + i); break;
            case 2: shrink_groups<2>(lines + i, taps, out_width, out + i); break;
            default:
                if (taps.groups <= 32)
                    shrink_groups<0>(lines + i, taps, out_width, out + i);
                else
                    for (int k = i; k < i + kParts; ++k) shrink_line_widely(lines[k], taps, out_width, out[k]);
        }
    }
}

// Weights in two parts as in SplitFour. A pair of taps is then one product of bytes for the high parts and one of words
// for the low parts, of which 64 stay within 32 bits. The high sums may wrap around on their way; with the carry they
// are within 16 bits.
struct SplitPair {
    __m256i high, low;
};

HOT_INLINE SplitPair split(int32_t a, int32_t b) {
    const auto low_a = static_cast<int16_t>(a & 0xFFFF), low_b = static_cast<int16_t>(b & 0xFFFF);
    const int32_t high_a = (a - low_a) >> 16, high_b = (b - low_b) >> 16;
    return {_mm256_set1_epi16(static_cast<int16_t>((high_a & 0xFF) | high_b * 256)),
            _mm256_set1_epi32(static_cast<int32_t>(static_cast<uint16_t>(low_a) |
                                                   static_cast<uint32_t>(static_cast<uint16_t>(low_b)) << 16))};
}

struct Sums {
    __m256i high[2], low[4];
};

HOT_INLINE void add_pair(Sums& sums, const uint8_t* row0, const uint8_t* row1, const SplitPair& weight) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row0)),
                  b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row1));
    const __m256i zero = _mm256_setzero_si256();
    const __m256i pairs[2] = {_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)};
    for (int i = 0; i < 2; ++i) {
        sums.high[i] = _mm256_add_epi16(sums.high[i], _mm256_maddubs_epi16(pairs[i], weight.high));
        sums.low[2 * i] =
            _mm256_add_epi32(sums.low[2 * i], _mm256_madd_epi16(_mm256_unpacklo_epi8(pairs[i], zero), weight.low));
        sums.low[2 * i + 1] =
            _mm256_add_epi32(sums.low[2 * i + 1], _mm256_madd_epi16(_mm256_unpackhi_epi8(pairs[i], zero), weight.low));
    }
}

HOT_INLINE void store_sums(const Sums& sums, uint8_t* out) {
    __m256i words[2];
    for (int i = 0; i < 2; ++i) {
        const __m256i carry =
            _mm256_packs_epi32(_mm256_srai_epi32(sums.low[2 * i], 16), _mm256_srai_epi32(sums.low[2 * i + 1], 16));
        words[i] = _mm256_srai_epi16(_mm256_add_epi16(sums.high[i], carry), kWeightBits - 16);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_packus_epi16(words[0], words[1]));
}

template <int kPairs>
HOT void lower_pairs(const uint8_t* const* rows, int count, const int32_t* weight, int width, uint8_t* out) {
    constexpr int kMost = kPairs ? kPairs : 32;
    SplitPair weights[kMost];
    const uint8_t* lines[2 * kMost];
    const int pairs = kPairs ? kPairs : (count + 1) / 2;
    for (int i = 0; i < pairs; ++i) {
        const bool both = 2 * i + 1 < count;
        weights[i] = split(weight[2 * i], both ? weight[2 * i + 1] : 0);
        lines[2 * i] = rows[2 * i];
        lines[2 * i + 1] = rows[both ? 2 * i + 1 : 2 * i];
    }
    for (int x = 0; x < width; x += kLineChunk) {
        Sums sums;
        for (auto& high : sums.high) high = _mm256_set1_epi16(kRound >> 16);
        for (auto& low : sums.low) low = _mm256_setzero_si256();
        for (int i = 0; i < pairs; ++i) add_pair(sums, lines[2 * i] + x, lines[2 * i + 1] + x, weights[i]);
        store_sums(sums, out + x);
    }
}

HOT void lower(const uint8_t* const* rows, int count, const int32_t* weight, int width, uint8_t* out) {
    switch ((count + 1) / 2) {
        case 1: return lower_pairs<1>(rows, count, weight, width, out);
        case 2: return lower_pairs<2>(rows, count, weight, width, out);
        case 3: return lower_pairs<3>(rows, count, weight, width, out);
        default: break;
    }
    if (count <= 64) return lower_pairs<0>(rows, count, weight, width, out);
    for (int x = 0; x < width; x += kLineChunk) lower_widely(rows, count, weight, x, out);
}

// The first pixels of a line, four at a time; returns how many. A store is four bytes longer than its pixels.
HOT_INLINE size_t pack_most(const uint32_t* line, size_t width, bool flip, uint8_t* out) {
    const __m128i straight = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const __m128i mirrored = _mm_setr_epi8(12, 13, 14, 8, 9, 10, 4, 5, 6, 0, 1, 2, -1, -1, -1, -1);
    const __m128i order = flip ? mirrored : straight;
    size_t x = 0;
    for (; x + 6 <= width; x += 4) {
        const __m128i pixels =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(flip ? line + width - 4 - x : line + x));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * x), _mm_shuffle_epi8(pixels, order));
    }
    return x;
}

// The same the other way; the load is four bytes longer than its pixels.
HOT_INLINE int spread_most(const uint8_t* in, int count, uint32_t* out) {
    const __m128i order = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    int x = 0;
    for (; x + 6 <= count; x += 4) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 3 * x));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + x), _mm_shuffle_epi8(bytes, order));
    }
    return x;
}

#elif FEEDRATE_VECTORS == 128

// Weights are split as for AVX2, and sums of the high parts may wrap around, too. The sums of four taps of one line:
// `high` has those of taps 0 and 2 in its lower half, of 1 and 3 in its upper.
struct Sums {
    int16x8_t high;
    int32x4_t low;
};

HOT_INLINE void add_four(Sums& sums, const uint32_t* line, int16x8_t high_first, int16x8_t high_second, int16x4_t low) {
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

HOT_INLINE uint16x4_t finish(const Sums& sums) {
    const int16x4_t high = vadd_s16(vget_low_s16(sums.high), vget_high_s16(sums.high));
    const int32x4_t sum = vaddq_s32(sums.low, vshll_n_s16(high, 16));
    return vqmovun_s32(vshrq_n_s32(sum, kWeightBits));
}

HOT_INLINE uint32_t to_pixel(uint16x4_t words) {
    return vget_lane_u32(vreinterpret_u32_u8(vqmovn_u16(vcombine_u16(words, words))), 0);
}

HOT void shrink_two(const uint32_t* const* lines, const Taps& taps, int out_width, uint32_t* const* out) {
    const uint8_t kEach[16] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
    const uint8x16_t each = vld1q_u8(kEach);
    const SplitFour* weight = taps.split.data();
    const int groups = taps.groups;
    for (int x = 0; x < out_width; ++x, weight += groups) {
        const int first = taps.first[x];
        Sums sums[2] = {{vdupq_n_s16(0), vdupq_n_s32(kRound)}, {vdupq_n_s16(0), vdupq_n_s32(kRound)}};
        for (int i = 0; i < groups; ++i) {
            uint32_t word;
            std::memcpy(&word, weight[i].high, 4);
            const int8x16_t high = vreinterpretq_s8_u8(vqtbl1q_u8(vreinterpretq_u8_u32(vdupq_n_u32(word)), each));
            const int16x8_t high_first = vmovl_s8(vget_low_s8(high)), high_second = vmovl_high_s8(high);
            const int16x4_t low = vld1_s16(weight[i].low);
            add_four(sums[0], lines[0] + first + 4 * i, high_first, high_second, low);
            add_four(sums[1], lines[1] + first + 4 * i, high_first, high_second, low);
        }
        out[0][x] = to_pixel(finish(sums[0]));
        out[1][x] = to_pixel(finish(sums[1]));
    }
}

HOT void shrink(const uint32_t* const (&lines)[kLines], const Taps& taps, int out_width,
                uint32_t* const (&out)[kLines]) {
    // As for AVX2.
    for (int i = 0; taps.groups > 32 && i < kLines; ++i) shrink_line_widely(lines[i], taps, out_width, out[i]);
    for (int i = 0; taps.groups <= 32 && i < kLines; i += 2) shrink_two(lines + i, taps, out_width, out + i);
}

// Sixteen bytes of a line.
HOT_INLINE void lower_16(const uint8_t* const* rows, int count, const int16_t* high, const int16_t* low, int x,
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

HOT void lower(const uint8_t* const* rows, int count, const int32_t* weight, int width, uint8_t* out) {
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

HOT_INLINE uint8x8x3_t mirror(const uint8x8x3_t& planes) {
    return {{vrev64_u8(planes.val[0]), vrev64_u8(planes.val[1]), vrev64_u8(planes.val[2])}};
}

// The first pixels of a line, as far as eight at a time go; returns how many.
HOT_INLINE size_t pack_most(const uint32_t* line, size_t width, bool flip, uint8_t* out) {
    size_t x = 0;
    for (; x + 8 <= width; x += 8) {
        const uint8x8x4_t pixels = vld4_u8(reinterpret_cast<const uint8_t*>(flip ? line + width - 8 - x : line + x));
        const uint8x8x3_t planes = {{pixels.val[0], pixels.val[1], pixels.val[2]}};
        vst3_u8(out + 3 * x, flip ? mirror(planes) : planes);
    }
    return x;
}

HOT_INLINE int spread_most(const uint8_t* in, int count, uint32_t* out) {
    int x = 0;
    for (; x + 8 <= count; x += 8) {
        const uint8x8x3_t planes = vld3_u8(in + 3 * x);
        const uint8x8x4_t pixels = {{planes.val[0], planes.val[1], planes.val[2], vdup_n_u8(0)}};
        vst4_u8(reinterpret_cast<uint8_t*>(out + x), pixels);
    }
    return x;
}

#else

HOT_INLINE size_t pack_most(const uint32_t*, size_t, bool, uint8_t*) { return 0; }
HOT_INLINE int spread_most(const uint8_t*, int, uint32_t*) { return 0; }

HOT void shrink(const uint32_t* const (&lines)[kLines], const Taps& taps, int out_width,
                uint32_t* const (&out)[kLines]) {
    for (int i = 0; i < kLines; ++i) shrink_line_widely(lines[i], taps, out_width, out[i]);
}

HOT void lower(const uint8_t* const* rows, int count, const int32_t* weight, int width, uint8_t* out) {
    for (int x = 0; x < width; x += kLineChunk) lower_widely(rows, count, weight, x, out);
}

#endif

HOT void pack_rgb(const uint32_t* line, size_t width, bool flip, uint8_t* out) {
    size_t x = pack_most(line, width, flip, out);
    if (x == width) return;
    const ptrdiff_t step = flip ? -1 : 1;
    const uint32_t* in = flip ? line + (width - 1 - x) : line + x;
    out += 3 * x;
    // Four bytes at a time, the fourth is overwritten by the next pixel; the last pixel goes alone.
    for (; x + 1 < width; ++x, in += step, out += 3) std::memcpy(out, in, 4);
    std::memcpy(out, in, 3);
}

HOT void spread_rgb(const uint8_t* in, int count, uint32_t* out) {
    int x = spread_most(in, count, out);
    for (; x < count; ++x)
        out[x] = in[3 * x] | static_cast<uint32_t>(in[3 * x + 1]) << 8 | static_cast<uint32_t>(in[3 * x + 2]) << 16;
}
