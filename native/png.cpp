// SPDX-License-Identifier: Apache-2.0
#include "png.h"

#include <array>
#include <cstring>

namespace feedrate {

namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

Tables make_tables() {
    Tables tables{};
    for (uint32_t n = 0; n < 256; ++n) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        tables[0][n] = crc;
    }
    for (uint32_t n = 0; n < 256; ++n)
        for (size_t t = 1; t < 8; ++t) tables[t][n] = tables[t - 1][n] >> 8 ^ tables[0][tables[t - 1][n] & 255];
    return tables;
}

// CRC-32 as PNG has it (another polynomial than crc32c.h), eight bytes at a time.
uint32_t crc32(const uint8_t* data, size_t size) {
    static const Tables tables = make_tables();
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; data += 8, size -= 8) {
        crc ^= static_cast<uint32_t>(data[0]) | static_cast<uint32_t>(data[1]) << 8 |
               static_cast<uint32_t>(data[2]) << 16 | static_cast<uint32_t>(data[3]) << 24;
        crc = tables[7][crc & 255] ^ tables[6][crc >> 8 & 255] ^ tables[5][crc >> 16 & 255] ^ tables[4][crc >> 24] ^
              tables[3][data[4]] ^ tables[2][data[5]] ^ tables[1][data[6]] ^ tables[0][data[7]];
    }
    for (; size; ++data, --size) crc = crc >> 8 ^ tables[0][(crc ^ *data) & 255];
    return ~crc;
}

uint32_t big_endian(const uint8_t* at) {
    return static_cast<uint32_t>(at[0]) << 24 | static_cast<uint32_t>(at[1]) << 16 | static_cast<uint32_t>(at[2]) << 8 |
           at[3];
}

bool is(const uint8_t* at, const char* kind) { return std::memcmp(at, kind, 4) == 0; }

// Depths that a kind of colour may have, by the standard.
bool allowed(int depth, int colour) {
    switch (colour) {
        case 0: return depth == 1 || depth == 2 || depth == 4 || depth == 8 || depth == 16;
        case 3: return depth == 1 || depth == 2 || depth == 4 || depth == 8;
        case 2:
        case 4:
        case 6: return depth == 8 || depth == 16;
        default: return false;
    }
}

constexpr uint32_t kMaxSide = 65'000;        // beyond this, whoever decodes it must say
constexpr uint64_t kMaxPixels = 50'000'000;  // Pillow has a limit too, and words for it

}  // namespace

bool check_png(const uint8_t* data, size_t size, PngFacts& facts) {
    static const uint8_t kBegin[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (size < sizeof kBegin || std::memcmp(data, kBegin, sizeof kBegin) != 0) return false;
    bool has_data = false, has_palette = false, is_first = true;
    int colour = 0, depth = 0;
    uint32_t w = 0, h = 0;
    for (size_t at = sizeof kBegin; size - at >= 12;) {
        const uint32_t length = big_endian(data + at);
        if (length > size - at - 12) return false;
        const uint8_t* kind = data + at + 4;
        const uint8_t* body = kind + 4;
        if (crc32(kind, length + size_t{4}) != big_endian(body + length)) return false;
        if (is_first != is(kind, "IHDR")) return false;
        if (is_first) {
            if (length != 13) return false;
            w = big_endian(body), h = big_endian(body + 4), depth = body[8], colour = body[9];
            if (!w || !h || w > kMaxSide || h > kMaxSide || uint64_t{w} * h > kMaxPixels) return false;
            if (!allowed(depth, colour) || body[10] || body[11] || body[12] > 1) return false;
        }
        is_first = false;
        if (is(kind, "acTL") || is(kind, "eXIf")) return false;
        has_palette |= is(kind, "PLTE");
        has_data |= is(kind, "IDAT") && length > 0;
        if (is(kind, "IEND")) {
            if (length || !has_data || (colour == 3 && !has_palette)) return false;
            facts = {static_cast<int>(w), static_cast<int>(h), depth, colour};
            return true;
        }
        at += length + size_t{12};
    }
    return false;
}

}  // namespace feedrate
