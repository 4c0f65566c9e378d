// SPDX-License-Identifier: Apache-2.0
#include "crc32c.h"

#include <array>
#include <cstring>

#include "bytes.h"
#include "cpu.h"

#if FEEDRATE_X86
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace feedrate {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // bits reflected

using Tables = std::array<std::array<uint32_t, 256>, 8>;

Tables make_tables(uint32_t polynomial) {
    Tables tables{};
    for (uint32_t i = 0; i < 256; ++i) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ polynomial : value >> 1;
        tables[0][i] = value;
    }
    for (size_t t = 1; t < 8; ++t)
        for (size_t i = 0; i < 256; ++i) tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 0xFF];
    return tables;
}

uint32_t crc_by_table(const Tables& t, const uint8_t* data, size_t size, uint32_t value) {
    value = ~value;
    for (; size >= 8; size -= 8, data += 8) {
        const uint32_t low = value ^ little_u32(data);
        value = t[7][low & 0xFF] ^ t[6][low >> 8 & 0xFF] ^ t[5][low >> 16 & 0xFF] ^ t[4][low >> 24] ^ t[3][data[4]] ^
                t[2][data[5]] ^ t[1][data[6]] ^ t[0][data[7]];
    }
    for (; size; --size, ++data) value = value >> 8 ^ t[0][(value ^ *data) & 0xFF];
    return ~value;
}

// Three streams at once hide the instruction's latency of three cycles; this shifts a stream's value over the others'.
// Built once: the operator "append kStripe zero bytes", applied byte by byte of the value.
constexpr size_t kStripe = 1024;

struct Shift {
    uint32_t table[4][256];
    Shift() {
        static const uint8_t zeros[kStripe] = {};
        for (uint32_t byte = 0; byte < 4; ++byte)
            for (uint32_t i = 0; i < 256; ++i) table[byte][i] = ~crc32c_by_table(zeros, kStripe, ~(i << (8 * byte)));
    }
    uint32_t operator()(uint32_t value) const {
        return table[0][value & 0xFF] ^ table[1][value >> 8 & 0xFF] ^ table[2][value >> 16 & 0xFF] ^
               table[3][value >> 24];
    }
};

#if FEEDRATE_X86
#define FEEDRATE_CRC_TARGET __attribute__((target("sse4.2")))
#define FEEDRATE_CRC8(value, word) static_cast<uint32_t>(__builtin_ia32_crc32di(value, word))
#define FEEDRATE_CRC1(value, byte) __builtin_ia32_crc32qi(value, byte)
bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__linux__)
#define FEEDRATE_CRC_TARGET __attribute__((target("+crc")))
#define FEEDRATE_CRC8(value, word) __crc32cd(value, word)
#define FEEDRATE_CRC1(value, byte) __crc32cb(value, byte)
bool has_instruction() { return getauxval(AT_HWCAP) & HWCAP_CRC32; }
#endif

#ifdef FEEDRATE_CRC8
uint64_t load(const uint8_t* p) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    return word;
}

FEEDRATE_CRC_TARGET uint32_t crc32c_by_instruction(const uint8_t* data, size_t size, uint32_t value) {
    static const Shift shift;
    value = ~value;
    for (; size >= 3 * kStripe; size -= 3 * kStripe, data += 3 * kStripe) {
        uint32_t a = value, b = 0, c = 0;
        for (size_t i = 0; i < kStripe; i += 8) {
            a = FEEDRATE_CRC8(a, load(data + i));
            b = FEEDRATE_CRC8(b, load(data + kStripe + i));
            c = FEEDRATE_CRC8(c, load(data + 2 * kStripe + i));
        }
        value = shift(shift(a) ^ b) ^ c;
    }
    for (; size >= 8; size -= 8, data += 8) value = FEEDRATE_CRC8(value, load(data));
    for (; size; --size, ++data) value = FEEDRATE_CRC1(value, *data);
    return ~value;
}
#endif

#if FEEDRATE_X86
// The reflected remainder of x to a power, times x: what a product of reflected halves needs.
uint64_t power(int exponent) {
    uint32_t value = 0x80000000u;
    for (; exponent; --exponent) value = value & 1 ? value >> 1 ^ kPolynomial : value >> 1;
    return uint64_t{value} << 1;
}

// For each 16 bytes what its halves are multiplied with, to move them on by some bits.
struct Factors {
    uint64_t pairs[8];
    explicit Factors(int bits) {
        for (int i = 0; i < 8; i += 2) pairs[i] = power(bits + 32), pairs[i + 1] = power(bits - 32);
    }
};

#define FEEDRATE_FOLD_TARGET __attribute__((target("avx512f,vpclmulqdq,sse4.2")))
constexpr size_t kFolded = 4 * sizeof(__m512i);

// Moves each 16 bytes on, and adds what is there.
FEEDRATE_FOLD_TARGET inline __m512i fold(__m512i block, __m512i factors, __m512i to) {
    const __m512i low = _mm512_clmulepi64_epi128(block, factors, 0x00);
    return _mm512_ternarylogic_epi64(low, _mm512_clmulepi64_epi128(block, factors, 0x11), to, 0x96);
}

// Without carries 64 bytes are multiplied at once: folded into one another until the last 64 are left, whose checksum
// is that of all.
FEEDRATE_FOLD_TARGET uint32_t crc32c_by_folding(const uint8_t* data, size_t size, uint32_t value) {
    static const Factors far(8 * kFolded), near(8 * sizeof(__m512i));
    const __m512i factors = _mm512_loadu_si512(far.pairs), last = _mm512_loadu_si512(near.pairs);
    __m512i block[4];
    for (int i = 0; i < 4; ++i) block[i] = _mm512_loadu_si512(data + 64 * i);
    block[0] = _mm512_xor_si512(block[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~value))));
    for (data += kFolded, size -= kFolded; size >= kFolded; data += kFolded, size -= kFolded)
        for (int i = 0; i < 4; ++i) block[i] = fold(block[i], factors, _mm512_loadu_si512(data + 64 * i));
    for (int i = 1; i < 4; ++i) block[i] = fold(block[i - 1], last, block[i]);
    uint8_t left[64];
    _mm512_storeu_si512(left, block[3]);
    return crc32c_by_instruction(data, size, crc32c_by_instruction(left, sizeof(left), ~uint32_t{0}));
}

bool can_fold() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq") &&
           __builtin_cpu_supports("sse4.2");
}
#endif

}  // namespace

uint32_t crc32c_by_table(const uint8_t* data, size_t size, uint32_t value) {
    static const Tables tables = make_tables(kPolynomial);
    return crc_by_table(tables, data, size, value);
}

uint32_t crc32(const uint8_t* data, size_t size) {
    static const Tables tables = make_tables(0xEDB88320u);
    return crc_by_table(tables, data, size, 0);
}

uint32_t crc32c(const uint8_t* data, size_t size, uint32_t value) {
#if FEEDRATE_X86
    static const bool folds = can_fold();
    if (folds && size >= 2 * kFolded) return crc32c_by_folding(data, size, value);
#endif
#ifdef FEEDRATE_CRC8
    static const bool has = has_instruction();
    if (has) return crc32c_by_instruction(data, size, value);
#endif
    return crc32c_by_table(data, size, value);
}

}  // namespace feedrate
