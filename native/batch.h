// SPDX-License-Identifier: Apache-2.0
// Reads, checks and decodes the samples of a batch, in the pool's threads or in the calling one. The caller owns every
// array until the call returns. Each thread keeps its decoder and buffers from one sample to the next.
#pragma once

#include <cstdint>

#include "files.h"
#include "jpeg.h"
#include "pool.h"

namespace feedrate {

// Arrays of equal length; `crc` may be null: not checked.
struct Ranges {
    const int32_t* file = nullptr;
    const int64_t* offset = nullptr;
    const int64_t* length = nullptr;
    const uint32_t* crc = nullptr;
};

struct DecodeRequest {
    int64_t count;
    Ranges images;
    Ranges entries;        // file null: none
    const int32_t* boxes;  // left, top, right, bottom
    const uint8_t* flips;
    const uint8_t* filters;  // by Pillow's numbers
    bool before_13;          // Pillow's order of passes, for filters with lobes
    uint8_t* out;            // count x height x width x channels
    int height, width, channels;
    const uint8_t* raw;   // per sample: the image is raw rows, and its entry their table (raw.h); 0: an image file
    int64_t* bytes_read;  // per sample, whatever its outcome
};

// One outcome per sample; a sample that is not ok leaves its part of `out` zeroed. False: the pool is closed.
bool decode_batch(Files& files, const DecodeRequest& request, Pool* pool, Outcome* outcomes);

// Whether each range is inside its file. Files are looked at only where the ranges add up to more than kTrustedBytes.
bool check_ranges(Files& files, const Ranges& ranges, int64_t count, Pool* pool, Outcome* outcomes);

// Reads each range to `buffer` + starts[i].
bool read_ranges(Files& files, const Ranges& ranges, int64_t count, const int64_t* starts, uint8_t* buffer, Pool* pool,
                 Outcome* outcomes);

struct RowsRequest {
    int64_t count;
    int columns;
    const int32_t* file;
    const int64_t* row;
    const int64_t* bases;    // count x columns
    const int64_t* strides;  // columns
    const int64_t* sizes;    // columns; the last is 4: the crc32c of the bytes before it
    int64_t row_size;        // what the sizes add up to
    uint8_t* out;            // count x row_size
};

void gather_rows(Files& files, const RowsRequest& request, Outcome* outcomes);

// CPU seconds of decode_one up to each step: the checksum, then the stages of jpeg.h. The least of `repeats` times.
struct StageTimes {
    static constexpr int kCount = 6;
    double seconds[kCount];
};
Outcome profile_one(Bytes file, Bytes entries, const Box& box, const Target& target, int repeats, StageTimes& times);

// One image in memory; catches what the batch catches.
Outcome decode_one(Bytes file, Bytes entries, const Box& box, const Target& target);

// The same of pixels in memory, of the target's channels, rows of `width`; the box lies inside.
Outcome resize_one(const uint8_t* pixels, int width, const Box& box, const Target& target);

}  // namespace feedrate
