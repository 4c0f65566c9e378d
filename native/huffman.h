// SPDX-License-Identifier: Apache-2.0
// Huffman codes: a table built from a JPEG's specification, and what the loop over MCUs (hot/entropy.h) works on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu.h"
#include "jpeg.h"

namespace feedrate {

// A decoded symbol, in one word, from the lowest bit:
//    6  bits of code and value together
//    8  (from bit 8) how far the zigzag index moves: the run of zeros plus one, kEndOfBlock, or kNotHere when the
//       lookup does not hold the code. The last two move it out of the block: one comparison per symbol finds them
//   16  (from bit 16) added to the bits of code and value: takes the code away, and makes the value negative if the
//       first bit after the code says so
struct Symbol {
    uint32_t word;

    FEEDRATE_INLINE uint64_t move() const { return word >> 8 & 0xFF; }
    // One bit at least belongs to a symbol, so that the shift is 63 at most.
    FEEDRATE_INLINE int16_t value(uint64_t buffer) const {
        return static_cast<int16_t>((buffer >> ((0u - word) & 63)) + (word >> 16));
    }
};
constexpr int kEndOfBlock = 128, kNotHere = 64;

// One AC symbol, or two that follow each other, in one word, from the lowest bit:
//    6  bits of all
//    8  (from bit 8) how far the index moves with the first; 0 when that is the end of the block
//    8  (from bit 16) how far it moves with all; kNotHere as above
//   16  (from bit 32) the value of the first of two
//   16  (from bit 48) as in Symbol, for the last one: added to the bits of all
struct Pair {
    uint64_t word;

    FEEDRATE_INLINE uint64_t first_move() const { return word >> 8 & 0xFF; }
    FEEDRATE_INLINE uint64_t move() const { return word >> 16 & 0xFF; }
    FEEDRATE_INLINE int16_t first_value() const { return static_cast<int16_t>(word >> 32); }
    FEEDRATE_INLINE int16_t value(uint64_t buffer) const {
        return static_cast<int16_t>((buffer >> ((0u - word) & 63)) + (word >> 48));
    }
};

struct HuffmanTable {
    // 11 bits hold nearly all codes of photographs with the bit after them, and mostly two symbols. The tables stay in
    // the first-level cache; with 12 bits, photographs at 4:4:4 are slower. A lookup takes 25 bits at most (a code of
    // 10, a value of 15). One lookup and one long code with its value, 31 bits, fit between refills of 56 bits.
    static constexpr int kLookahead = 11;
    Pair pairs[1 << kLookahead];     // AC, if is_paired
    Symbol lookup[1 << kLookahead];  // DC, and AC where a pair does not fit what is left of a block
    uint8_t place[64];               // kPlace, where the loop over symbols reaches it without another register
    int32_t code_end[17];            // by length: one past the last code; 0 when there is none
    int32_t symbol_offset[17];
    uint8_t symbols[256];
    uint8_t counts[16] = {};
    bool is_built = false, is_dc = false, is_paired = false;
    int met = 0;  // how often it was wanted again

    // False when the counts do not make a prefix code, or a DC symbol is not a size. Quick when the same table was
    // built before. Pairs take most of the time: a caller that reads little does without, unless the table comes often.
    bool build(const HuffmanSpec& spec, bool dc, bool paired);
    void make_pairs();
    // For codes that the lookup does not hold. `next` is the next 17 bits; kNotHere when they begin no code.
    Symbol long_code(uint32_t next) const;
};

// Where the coefficient of a zigzag index is stored, and its quantiser. The IDCT reads rows r and r + 4 together, value
// by value. The DC coefficient is the first.
extern const uint8_t kPlace[64];
constexpr int place_of(int row, int column) { return row % 4 * 16 + column * 2 + row / 4; }

// The next bits stand at the top of `buffer`; only the low six bits of `bits` are used. Reads up to 8 bytes at `at`.
struct BitReader {
    uint64_t buffer = 0;
    uint64_t bits = 0;
    const uint8_t* at = nullptr;

    // 56 bits or more afterwards. Bits beyond the counted ones equal those at `at`: to read them again changes nothing.
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
    // Only the low six bits of `count` are used.
    FEEDRATE_INLINE void drop(uint64_t count) {
        buffer <<= count & 63;
        bits -= count;
    }
};

// A block has 64 codes of 16 bits with 15 bits of value at most; an MCU has 10 blocks.
constexpr int kMaxBlocks = 10;
constexpr int64_t kMaxMcuBytes = int64_t{kMaxBlocks} * 64 * 31 / 8;
constexpr size_t kUnstuffSlack = 32;

// What the loop over MCUs needs to know of a file.
struct McuTables {
    struct Block {  // one of the MCU
        int component;
        const HuffmanTable *dc, *ac;
        const int16_t* quant;
        int x, y;  // in samples, inside the MCU
    };
    Block block[kMaxBlocks];
    int block_count = 0, component_count = 0;
    bool is_paired = false;                         // all AC tables are
    ptrdiff_t advance[kMaxComponents] = {};         // samples from one MCU to the next
    alignas(32) int16_t quant[kMaxComponents][64];  // as in kPlace
    HuffmanTable dc[4], ac[4];
};

// Where that loop is. It checks once per MCU where the data ends, so it may read kMaxMcuBytes + 16 bytes beyond `end`.
struct McuStream {
    BitReader in;
    const uint8_t* end = nullptr;
    bool to_the_end = false;  // no more bytes come after `end`: an MCU may begin when less than kMaxMcuBytes are left
    bool bad_code = false;    // why fewer MCUs are good: bits that are no code, or a run past the block
    bool bad_dc = false;      // or a DC value beyond 16 bits
    int predictor[kMaxComponents] = {};

    // Negative: more bits were used than there are.
    FEEDRATE_INLINE int64_t bits_left(const BitReader& reader) const {
        return (end - reader.at) * 8 + static_cast<int64_t>(reader.bits & 63);
    }
    int64_t bits_left() const { return bits_left(in); }
    // What must be left for an MCU to begin.
    int64_t bits_needed() const { return to_the_end ? 0 : kMaxMcuBytes * 8; }
};

}  // namespace feedrate
