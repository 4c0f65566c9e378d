// SPDX-License-Identifier: Apache-2.0
// Vectors of 256 and, where the level has them, 512 bits by the same names, for loops that are written once. As with
// the instructions, packing, interleaving and shuffling stay within 128 bits, and swap_fours within 256.

#define FEEDRATE_VECTOR(Name, Raw, of, broadcast)                                                                \
    struct Name {                                                                                                \
        Raw v;                                                                                                   \
        HOT_INLINE static Name repeat(int value) { return {of##_set1_epi32(value)}; }                            \
        HOT_INLINE static Name repeat_word(int value) { return {of##_set1_epi16(static_cast<int16_t>(value))}; } \
        HOT_INLINE static Name repeat(const void* four_bytes) {                                                  \
            int32_t word;                                                                                        \
            std::memcpy(&word, four_bytes, 4);                                                                   \
            return repeat(word);                                                                                 \
        }                                                                                                        \
    };                                                                                                           \
    HOT_INLINE Name operator+(Name a, Name b) { return {of##_add_epi32(a.v, b.v)}; }                             \
    HOT_INLINE Name operator-(Name a, Name b) { return {of##_sub_epi32(a.v, b.v)}; }                             \
    HOT_INLINE Name operator>>(Name a, int bits) { return {of##_srai_epi32(a.v, bits)}; }                        \
    HOT_INLINE Name operator<<(Name a, int bits) { return {of##_slli_epi32(a.v, bits)}; }                        \
    HOT_INLINE Name add_words(Name a, Name b) { return {of##_add_epi16(a.v, b.v)}; }                             \
    HOT_INLINE Name subtract_words(Name a, Name b) { return {of##_sub_epi16(a.v, b.v)}; }                        \
    HOT_INLINE Name halve_words(Name a) { return {of##_srai_epi16(a.v, 1)}; }                                    \
    HOT_INLINE Name high_products(Name a, Name b) { return {of##_mulhi_epi16(a.v, b.v)}; }                       \
    HOT_INLINE Name add_products(Name a, Name b) { return {of##_madd_epi16(a.v, b.v)}; }                         \
    HOT_INLINE Name add_byte_products(Name bytes, Name b) { return {of##_maddubs_epi16(bytes.v, b.v)}; }         \
    HOT_INLINE Name even_bytes(Name a) { return {a.v & of##_set1_epi16(0xFF)}; }                                 \
    HOT_INLINE Name odd_bytes(Name a) { return {of##_srli_epi16(a.v, 8)}; }                                      \
    HOT_INLINE Name pack_words(Name a, Name b) { return {of##_packs_epi32(a.v, b.v)}; }                          \
    HOT_INLINE Name pack_bytes(Name a, Name b) { return {of##_packus_epi16(a.v, b.v)}; }                         \
    HOT_INLINE Name low_bytes(Name a, Name b) { return {of##_unpacklo_epi8(a.v, b.v)}; }                         \
    HOT_INLINE Name high_bytes(Name a, Name b) { return {of##_unpackhi_epi8(a.v, b.v)}; }                        \
    HOT_INLINE Name low_words(Name a, Name b) { return {of##_unpacklo_epi16(a.v, b.v)}; }                        \
    HOT_INLINE Name high_words(Name a, Name b) { return {of##_unpackhi_epi16(a.v, b.v)}; }                       \
    HOT_INLINE Name low_fours(Name a, Name b) { return {of##_unpacklo_epi64(a.v, b.v)}; }                        \
    HOT_INLINE Name high_fours(Name a, Name b) { return {of##_unpackhi_epi64(a.v, b.v)}; }                       \
    HOT_INLINE Name shuffle(Name a, __m128i order) { return {of##_shuffle_epi8(a.v, broadcast(order))}; }

FEEDRATE_VECTOR(Vector256, __m256i, _mm256, _mm256_broadcastsi128_si256)
HOT_INLINE __m128i part_of(Vector256 a, int i) {
    return i ? _mm256_extracti128_si256(a.v, 1) : _mm256_castsi256_si128(a.v);
}
HOT_INLINE Vector256 swap_fours(Vector256 a) { return {_mm256_permute4x64_epi64(a.v, 0xD8)}; }

#if FEEDRATE_WIDE
FEEDRATE_VECTOR(Vector512, __m512i, _mm512, _mm512_broadcast_i32x4)
HOT_INLINE Vector512 swap_fours(Vector512 a) { return {_mm512_permutex_epi64(a.v, 0xD8)}; }
HOT_INLINE Vector512 join(__m256i a, __m256i b) { return {_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1)}; }
HOT_INLINE __m256i half_of(Vector512 a, int i) {
    return i ? _mm512_extracti64x4_epi64(a.v, 1) : _mm512_castsi512_si256(a.v);
}
HOT_INLINE __m128i part_of(Vector512 a, int i) { return part_of(Vector256{half_of(a, i / 2)}, i % 2); }
using Widest = Vector512;
#else
using Widest = Vector256;
#endif
