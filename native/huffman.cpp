// SPDX-License-Identifier: Apache-2.0
#include "huffman.h"

#include <algorithm>
#include <cstring>

namespace feedrate {

const uint8_t kPlace[64] = {
    0,  2,  16, 32, 18, 4,  6,  20, 34, 48, 1,  50, 36, 22, 8,  10,  //
    24, 38, 52, 3,  17, 33, 19, 5,  54, 40, 26, 12, 14, 28, 42, 56,  //
    7,  21, 35, 49, 51, 37, 23, 9,  58, 44, 30, 46, 60, 11, 25, 39,  //
    53, 55, 41, 27, 13, 62, 15, 29, 43, 57, 59, 45, 31, 47, 61, 63,
};

namespace {

constexpr Symbol kNone{kNotHere << 8};

Symbol make_symbol(int code, int length, uint8_t value, bool positive) {
    const int size = value & 15, run = value >> 4, total = length + size;
    const int move = size == 0 && run != 15 ? kEndOfBlock : run + 1;
    const int base = (positive ? 0 : 1 - (1 << size)) - code * (1 << size);
    return {static_cast<uint32_t>(total | move << 8) | static_cast<uint32_t>(base) << 16};
}

}  // namespace

bool HuffmanTable::build(const HuffmanSpec& spec, bool dc) {
    const auto size = static_cast<size_t>(spec.symbol_count);
    if (is_built && is_dc == dc && !std::memcmp(counts, spec.counts, 16) && !std::memcmp(symbols, spec.symbols, size)) return true;
    is_built = false;
    std::memcpy(counts, spec.counts, 16);
    std::memcpy(symbols, spec.symbols, size);
    std::memcpy(place, kPlace, sizeof(place));
    code_end[0] = symbol_offset[0] = 0;
    int code = 0, used = 0;
    Symbol* at = lookup;
    for (int length = 1; length <= 16; ++length, code <<= 1) {
        const int count = counts[length - 1];
        // No code is all ones; libjpeg refuses such a table too.
        if (code + count >= 1 << length) return false;
        symbol_offset[length] = used - code;
        code_end[length] = count ? code + count : 0;
        for (int i = 0; i < count; ++i, ++code, ++used) {
            if (dc && symbols[used] > 15) return false;
            if (length >= kLookahead) continue;
            const int half = 1 << (kLookahead - length - 1);
            std::fill_n(at, half, make_symbol(code, length, symbols[used], false));
            std::fill_n(at + half, half, make_symbol(code, length, symbols[used], true));
            at += 2 * half;
        }
    }
    std::fill(at, lookup + (1 << kLookahead), kNone);
    is_dc = dc;
    is_built = true;
    return true;
}

Symbol HuffmanTable::long_code(uint32_t next) const {
    for (int length = kLookahead; length <= 16; ++length) {
        const int code = static_cast<int>(next >> (17 - length));
        // Codes grow with their length, so the first length whose last code is not below this one is the right one.
        if (code < code_end[length]) return make_symbol(code, length, symbols[code + symbol_offset[length]], next >> (16 - length) & 1);
    }
    return kNone;
}

}  // namespace feedrate
