// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), by the processor's instruction where it has one; and the CRC-32 of PNG.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedrate {

// Continues from `value`, which is 0 at the start.
uint32_t crc32c(const uint8_t* data, size_t size, uint32_t value);

// The table method that runs where there is no instruction; public so that a test can compare the two.
uint32_t crc32c_by_table(const uint8_t* data, size_t size, uint32_t value);

// Another polynomial, by table.
uint32_t crc32(const uint8_t* data, size_t size);

}  // namespace feedrate
