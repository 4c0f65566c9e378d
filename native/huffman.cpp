// SPDX-License-Identifier: Apache-2.0
#include "huffman.h"

#include <algorithm>

namespace feedrate {

const uint8_t kNatural[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,   //
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,  //
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,  //
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

namespace {

Symbol make_symbol(int length, uint8_t value) {
    const int size = value & 15, run = value >> 4;
    const int move = size == 0 && run != 15 ? kEndOfBlock : run + 1;
    return static_cast<Symbol>(length + size) | static_cast<Symbol>(length) << 8 | static_cast<Symbol>(63 - size) << 16 | static_cast<Symbol>(move) << 24;
}

}  // namespace

bool HuffmanTable::build(const HuffmanSpec& spec, bool dc) {
    std::memcpy(symbols, spec.symbols, static_cast<size_t>(spec.symbol_count));
    code_end[0] = symbol_offset[0] = 0;
    int code = 0, used = 0;
    Symbol* at = lookup;
    for (int length = 1; length <= 16; ++length, code <<= 1) {
        const int count = spec.counts[length - 1];
        // No code is all ones; libjpeg refuses such a table too.
        if (code + count >= 1 << length) return false;
        symbol_offset[length] = used - code;
        code_end[length] = count ? code + count : 0;
        for (int i = 0; i < count; ++i, ++code, ++used) {
            if (dc && symbols[used] > 15) return false;
            if (length > kLookahead) continue;
            const int copies = 1 << (kLookahead - length);
            std::fill(at, at + copies, make_symbol(length, symbols[used]));
            at += copies;
        }
    }
    std::fill(at, lookup + (1 << kLookahead), static_cast<Symbol>(kNotHere) << 24);
    return true;
}

Symbol HuffmanTable::long_code(uint32_t next) const {
    for (int length = kLookahead + 1; length <= 16; ++length) {
        const int code = static_cast<int>(next >> (16 - length));
        // Codes grow with their length, so the first length whose last code is not below this one is the right one.
        if (code < code_end[length]) return make_symbol(length, symbols[code + symbol_offset[length]]);
    }
    return 0;
}

}  // namespace feedrate
