// SPDX-License-Identifier: Apache-2.0
// Huffman codes: a table built from a JPEG's specification, and what the loop over MCUs (hot/entropy.h) works on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu.h"
#include "jpeg.h"

namespace feedrate {

// A decoded symbol: four bytes, from the lowest: bits of code and value together; bits of the code; 63 less the bits of the
// value; how far the zigzag index moves. That is the run of zeros plus one, or kEndOfBlock, or kNotHere when the code is longer
// than the lookup, or there is none. With these two the index leaves the block, so that one comparison per symbol finds them.
using Symbol = uint32_t;
constexpr int kEndOfBlock = 128, kNotHere = 64;

struct HuffmanTable {
    // 10 bits hold nearly all codes of photographs, and four tables stay in the first-level cache. A code found here and its
    // value take 25 bits at most: two of them fit between refills of 56 bits.
    static constexpr int kLookahead = 10;
    Symbol lookup[1 << kLookahead];
    int32_t code_end[17];  // by length: one past the last code; 0 when there is none
    int32_t symbol_offset[17];
    uint8_t symbols[256];

    // False when the counts do not make a prefix code, or a DC symbol is not a size.
    bool build(const HuffmanSpec& spec, bool dc);
    // For codes that the lookup does not hold. `next` is the next 16 bits; 0 when they begin no code.
    Symbol long_code(uint32_t next) const;
};

// Indices of the zigzag order in a block of rows.
extern const uint8_t kNatural[64];

// The next bits stand at the top of `buffer`; only the low six bits of `bits` count. Reads up to 8 bytes at `at`.
struct BitReader {
    uint64_t buffer = 0;
    uint64_t bits = 0;
    const uint8_t* at = nullptr;

    // 56 bits or more afterwards. Bits past the counted ones are those of the bytes at `at`; reading them again leaves them as
    // they are.
    FEEDRATE_INLINE void refill() {
        uint64_t word;
        std::memcpy(&word, at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        word = __builtin_bswap64(word);
#endif
        buffer |= word >> (bits & 63);
        at += (~bits >> 3) & 7;
        bits |= 56;
    }
    FEEDRATE_INLINE void drop(uint64_t count) {
        buffer <<= count & 63;
        bits -= count;
    }
};

// A block has 64 codes of 16 bits with 15 bits of value at most; an MCU has 10 blocks.
constexpr int kMaxBlocks = 10;
constexpr int64_t kMaxMcuBytes = int64_t{kMaxBlocks} * 64 * 31 / 8;
constexpr size_t kUnstuffSlack = 32;

// The state of the loop over MCUs. Reads unstuffed bytes up to `end`, then up to kMaxMcuBytes + 16 of whatever follows: where
// the data ends is looked at once per MCU.
struct McuReader {
    struct Block {  // one of the MCU
        int component;
        const HuffmanTable *dc, *ac;
        const int16_t* quant;
        int x, y;  // in samples, inside the MCU
    };
    BitReader in;
    const uint8_t* end = nullptr;
    bool to_the_end = false;  // no more bytes come after `end`: an MCU may begin when less than kMaxMcuBytes are left
    bool bad_code = false;    // why fewer MCUs are good: bits that are no code, or a run past the block
    bool bad_dc = false;      // or a DC value beyond 16 bits
    int predictor[kMaxComponents] = {};
    Block block[kMaxBlocks];
    int block_count = 0, component_count = 0;
    ptrdiff_t advance[kMaxComponents] = {};  // samples from one MCU to the next
    alignas(32) int16_t quant[kMaxComponents][64];  // in rows
    HuffmanTable dc[4], ac[4];

    // Negative: bits were used that are not there.
    FEEDRATE_INLINE int64_t bits_left(const BitReader& reader) const { return (end - reader.at) * 8 + static_cast<int64_t>(reader.bits & 63); }
};

}  // namespace feedrate
