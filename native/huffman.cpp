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
constexpr int kOften = 8;  // a table that was met so many times is worth its pairs

Symbol make_symbol(int code, int length, uint8_t value, bool positive) {
    const int size = value & 15, run = value >> 4, total = length + size;
    const int move = size == 0 && run != 15 ? kEndOfBlock : run + 1;
    const int base = (positive ? 0 : 1 - (1 << size)) - code * (1 << size);
    return {static_cast<uint32_t>(total | move << 8) | static_cast<uint32_t>(base) << 16};
}

}  // namespace

bool HuffmanTable::build(const HuffmanSpec& spec, bool dc, bool paired) {
    const auto size = static_cast<size_t>(spec.symbol_count);
    if (is_built && is_dc == dc && !std::memcmp(counts, spec.counts, 16) && !std::memcmp(symbols, spec.symbols, size)) {
        if (!dc && !is_paired && (paired || ++met > kOften)) make_pairs();
        return true;
    }
    is_built = is_paired = false;
    met = 0;
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
    if (!dc && paired) make_pairs();
    is_dc = dc;
    is_built = true;
    return true;
}

void HuffmanTable::make_pairs() {
    constexpr unsigned kAll = 1u << kLookahead;
    for (unsigned i = 0; i < kAll;) {
        const Symbol first = lookup[i];
        const unsigned bits = first.word & 63;
        const uint64_t move = first.move();
        const bool moves = move < kNotHere;
        const uint64_t start = bits | (moves ? move << 8 : 0) | move << 16,
                       alone = start | static_cast<uint64_t>(first.word >> 16) << 48;
        if (!moves || bits >= kLookahead) {
            for (; i < kAll && lookup[i].word == first.word; ++i) pairs[i] = {alone};
            continue;
        }
        // Those that begin with all bits of the symbol. Of the next one the rest of the index is known: enough if all
        // symbols that begin so are the same, and as they stand in order, the first and the last of them tell.
        const unsigned rest = kLookahead - bits, taken = i >> rest;
        const uint64_t value = static_cast<uint16_t>(first.value(static_cast<uint64_t>(i) << (64 - kLookahead)));
        for (unsigned next = 0; next < kAll; next += 1u << bits, ++i) {
            const Symbol second = lookup[next];
            const bool known = second.word == lookup[next + (1u << bits) - 1].word && second.move() != kNotHere;
            const uint64_t base = static_cast<uint16_t>((second.word >> 16) - (taken << (second.word & 63)));
            pairs[i] = {known ? start + (second.word & 63) + (second.move() << 16) + (value << 32) + (base << 48)
                              : alone};
        }
    }
    is_paired = true;
}

Symbol HuffmanTable::long_code(uint32_t next) const {
    for (int length = kLookahead; length <= 16; ++length) {
        const int code = static_cast<int>(next >> (17 - length));
        // Codes grow with their length, so the first length whose last code is not below this one is the right one.
        if (code < code_end[length])
            return make_symbol(code, length, symbols[code + symbol_offset[length]], next >> (16 - length) & 1);
    }
    return kNone;
}

}  // namespace feedrate
