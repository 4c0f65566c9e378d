// SPDX-License-Identifier: Apache-2.0
// Images stored as plain rows of uint8, gray or RGB (the data of a .npy file). Only the rows under the crop are read,
// and what is read is checked: the table that the index keeps for each image holds a checksum per block of rows.
//
// The table (a stored format, version 1, little-endian; goes into packs, so it only ever grows new versions):
//
//    0  u8   'R', where entry points of a JPEG have their version
//    1  u8   version, 1
//    2  u8   channels, 1 or 3
//    3  u8   zero
//    4  u32  rows per block, 1 to height
//    8  u32  width   } at most 2**30
//   12  u32  height  }
//   16  u32  byte offset of the first row in the stored file; the rows follow without gaps and end the file
//   20  u32  crc32c of everything else here: bytes 0 to 19, then the checksums
//   24  u32  per block: crc32c of its rows; the last block may be shorter
#pragma once

#include <cstdint>

#include "jpeg.h"
#include "resize.h"

namespace feedrate {

// One crop of one image: open() says what has to be read, decode() takes those bytes. The caller keeps `table` till
// then.
class RawCrop {
public:
    // `length` is that of the stored file. Everything about the table and the box is checked here.
    Outcome open(Bytes table, int64_t length, const Box& box);
    // The byte range in the stored file: whole blocks.
    int64_t offset() const { return offset_; }
    int64_t size() const { return size_; }
    // `bytes` are those size() bytes. Throws std::bad_alloc only.
    Outcome decode(const uint8_t* bytes, const Target& target, Resizer& resizer) const;

private:
    const uint8_t* crcs_ = nullptr;  // of the first block that is read
    int channels_ = 0;
    int64_t row_bytes_ = 0, block_rows_ = 0, first_row_ = 0, offset_ = 0, size_ = 0;
    Box box_{};
};

}  // namespace feedrate
