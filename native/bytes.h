// SPDX-License-Identifier: Apache-2.0
// A range of bytes in memory, and the numbers that files store in bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedrate {

// The caller owns the bytes.
struct Bytes {
    const uint8_t* data = nullptr;
    size_t size = 0;

    const uint8_t* end() const { return data + size; }
};

inline int big_u16(const uint8_t* at) { return at[0] << 8 | at[1]; }

inline uint32_t big_u32(const uint8_t* at) {
    return static_cast<uint32_t>(big_u16(at)) << 16 | static_cast<uint32_t>(big_u16(at + 2));
}

inline int little_u16(const uint8_t* at) { return at[1] << 8 | at[0]; }

inline uint32_t little_u32(const uint8_t* at) {
    return static_cast<uint32_t>(little_u16(at)) | static_cast<uint32_t>(little_u16(at + 2)) << 16;
}

}  // namespace feedrate
