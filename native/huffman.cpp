// SPDX-License-Identifier: Apache-2.0
#include "huffman.h"

namespace feedrate {

const uint8_t kNatural[80] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,   //
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,  //
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,  //
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,  //
    64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64,
};

namespace {

Symbol make_symbol(int length, uint8_t value) {
    const int size = value & 15, run = value >> 4;
    return static_cast<Symbol>(length + size) | static_cast<Symbol>(length) << 8 | static_cast<Symbol>(size) << 16 |
           static_cast<Symbol>(run + 1) << 24;
}

}  // namespace

bool HuffmanTable::build(const HuffmanSpec& spec, bool dc) {
    std::memset(lookup, 0, sizeof lookup);
    std::memcpy(symbols, spec.symbols, static_cast<size_t>(spec.symbol_count));
    code_end[0] = symbol_offset[0] = 0;
    int code = 0, used = 0;
    for (int length = 1; length <= 16; ++length, code <<= 1) {
        const int count = spec.counts[length - 1];
        // No code is all ones; libjpeg refuses such a table too.
        if (code + count >= 1 << length) return false;
        symbol_offset[length] = used - code;
        code_end[length] = count ? code + count : 0;
        for (int i = 0; i < count; ++i, ++code, ++used) {
            if (dc && symbols[used] > 15) return false;
            if (length > kLookahead) continue;
            const int first = code << (kLookahead - length);
            for (int j = 0; j < 1 << (kLookahead - length); ++j) lookup[first + j] = make_symbol(length, symbols[used]);
        }
    }
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

BitReader refill_by_bytes(BitReader in) {
    in.buffer &= in.bits ? ~uint64_t{0} << (64 - in.bits) : 0;
    while (in.bits <= 56) {
        const bool there = in.at < in.end;
        const bool stuffed = there && *in.at == 0xFF;
        if (!there || (stuffed && !(in.end - in.at > 1 && in.at[1] == 0))) {
            in.made_up += 64 - in.bits;
            in.bits = 64;
            return in;
        }
        in.buffer |= static_cast<uint64_t>(*in.at) << (56 - in.bits);
        in.bits += 8;
        in.at += stuffed ? 2 : 1;
    }
    return in;
}

int64_t BitReader::position(const uint8_t* begin) const {
    const int unread = bits - made_up;
    const uint8_t* byte = at;
    for (int back = (unread + 7) / 8; back > 0; --back) {
        const bool stuffed = byte - begin >= 2 && byte[-1] == 0 && byte[-2] == 0xFF;
        byte -= stuffed ? 2 : 1;
    }
    return (byte - begin) * 8 + (8 - unread % 8) % 8;
}

void BitReader::seek(const uint8_t* begin, uint32_t bit) {
    at = begin + bit / 8;
    buffer = 0;
    bits = made_up = 0;
    if (bit % 8) {
        *this = refill_by_bytes(*this);
        drop(static_cast<int>(bit % 8));
    }
}

}  // namespace feedrate
