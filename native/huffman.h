// SPDX-License-Identifier: Apache-2.0
// Huffman codes: a table built from a JPEG's specification, a bit reader that removes byte stuffing as it goes, and the
// decoding of one block. Everything here is inlined into the loop over MCUs in entropy.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu.h"
#include "jpeg.h"

namespace feedrate {

// A decoded symbol: four bytes, from the lowest: bits of code and value together; bits of the code (0: not a code);
// bits of the value; run of zeros plus one.
using Symbol = uint32_t;
constexpr Symbol kCodeBits = 0x0000FF00, kValueBits = 0x00FF0000;

struct HuffmanTable {
    // 10 bits hold nearly all codes of photographs, and four tables stay in the first-level cache.
    static constexpr int kLookahead = 10;
    Symbol lookup[1 << kLookahead];  // 0: the code is longer, or there is none
    int32_t code_end[17];            // by length: one past the last code; 0 when there is none
    int32_t symbol_offset[17];
    uint8_t symbols[256];

    // False when the counts do not make a prefix code, or a DC symbol is not a size.
    bool build(const HuffmanSpec& spec, bool dc);
    // For codes that the lookup does not hold. `next` is the next 16 bits; 0 when they begin no code.
    Symbol long_code(uint32_t next) const;
};

// Indices of the zigzag order in a block of rows; a run past the end lands in the padding behind the block.
extern const uint8_t kNatural[80];
constexpr int kBlockSize = 64 + 16;

// The next bits stand at the top of `buffer`. Past a marker or the end, zeros are handed out and counted in `made_up`.
struct BitReader {
    uint64_t buffer = 0;
    int bits = 0;
    int made_up = 0;
    const uint8_t* at = nullptr;
    const uint8_t* end = nullptr;

    // Has used bits that are not in the file.
    bool overran() const { return bits < made_up; }
    // 32 bits or more afterwards: enough for any code and its value.
    FEEDRATE_INLINE void refill();
    FEEDRATE_INLINE void drop(int count) {
        buffer <<= count;
        bits -= count;
    }
    // In bits from `begin`, stuffed bytes counted.
    int64_t position(const uint8_t* begin) const;
    void seek(const uint8_t* begin, uint32_t bit);
};

// By value and not inlined, so that the reader of the hot loop stays in registers.
BitReader refill_by_bytes(BitReader in);

FEEDRATE_INLINE void BitReader::refill() {
    if (bits >= 32) return;
    if (end - at >= 8) {
        uint64_t word;
        std::memcpy(&word, at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        word = __builtin_bswap64(word);
#endif
        const bool has_ff = (~word - 0x0101010101010101u) & word & 0x8080808080808080u;
        if (!FEEDRATE_UNLIKELY(has_ff)) {
            // Bits past the counted ones are those of the bytes at `at`; reading them again leaves them as they are.
            buffer |= word >> bits;
            at += (63 - bits) >> 3;
            bits |= 56;
            return;
        }
    }
    *this = refill_by_bytes(*this);
}

// The value that `size` bits after a code stand for (figure F.12 of the JPEG standard), for size 1 to 15.
FEEDRATE_INLINE int extend(uint64_t after_code, int size) {
    const uint64_t negative = ~static_cast<uint64_t>(static_cast<int64_t>(after_code) >> 63);
    const uint64_t magnitude = (after_code ^ negative) >> ((64 - size) & 63);
    return static_cast<int>((magnitude ^ negative) - negative);
}

// Decodes one block; stores dequantised coefficients when kStore. Returns the zigzag index of the last coefficient, or -1
// when the bits are no code or run past the block.
template <bool kStore>
FEEDRATE_INLINE int decode_block(BitReader& in, const HuffmanTable& dc, const HuffmanTable& ac, const uint16_t* quant, int& predictor,
                                 int16_t* block) {
    in.refill();
    Symbol symbol = dc.lookup[in.buffer >> (64 - HuffmanTable::kLookahead)];
    if (FEEDRATE_UNLIKELY(!symbol)) {
        symbol = dc.long_code(static_cast<uint32_t>(in.buffer >> 48));
        if (!symbol) return -1;
    }
    const int size = (symbol >> 16) & 0xFF;
    if (size) predictor += extend(in.buffer << ((symbol >> 8) & 0xFF), size);
    in.drop(symbol & 0xFF);
    if (kStore) block[0] = static_cast<int16_t>(predictor * quant[0]);
    int k = 0, last = 0;
    do {
        in.refill();
        symbol = ac.lookup[in.buffer >> (64 - HuffmanTable::kLookahead)];
        if (FEEDRATE_UNLIKELY(!(symbol & kValueBits))) {
            if (!symbol) symbol = ac.long_code(static_cast<uint32_t>(in.buffer >> 48));
            if (!symbol) return -1;
            if (!(symbol & kValueBits)) {
                in.drop(symbol & 0xFF);
                if (symbol >> 24 != 16) break;  // end of block
                k += 16;
                continue;
            }
        }
        k += symbol >> 24;
        if (kStore) {
            const int value = extend(in.buffer << ((symbol >> 8) & 0xFF), (symbol >> 16) & 0xFF);
            block[kNatural[k]] = static_cast<int16_t>(value * quant[k]);
        }
        last = k;
        in.drop(symbol & 0xFF);
    } while (k < 63);
    return FEEDRATE_UNLIKELY(k > 63) ? -1 : last;
}

}  // namespace feedrate
