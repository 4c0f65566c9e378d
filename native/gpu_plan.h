// SPDX-License-Identifier: Apache-2.0
// What a GPU needs to decode a batch. The plan reads headers, checks entry points, and lays out the entropy-coded bytes
// under the crops, without their stuffing, for the kernels in src/feedrate/kernel/cuda. Images that it does not take
// (no entry points, damage, too little room) are left to decode(); those that it takes come to the same pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../src/feedrate/kernel/cuda/layout.h"
#include "batch.h"
#include "files.h"
#include "jpeg.h"
#include "pool.h"

namespace feedrate {

// The caller owns every array, and keeps them until look() returns.
struct GpuRequest {
    int64_t count;  // of crops
    int64_t files;
    const int32_t* file_of;  // of each crop, from 0 to files - 1; a file that several share is decoded once
    // Files in memory, one behind the other, with files + 1 numbers for where each begins; entry points the same way.
    const uint8_t* data;
    const int64_t* starts;
    const uint8_t* entries;
    const int64_t* entry_starts;
    // Files on disk, which look() reads and checks: a thread plans what its cache still holds. Null: in memory.
    Files* disk;
    Ranges images, entry_ranges;
    const uint32_t* crcs;  // crc32c of each file; of those in memory already checked
    const int32_t* boxes;  // left, top, right, bottom
    const uint8_t* flips;
    const uint8_t* filters;  // by Pillow's numbers
    bool before_13;          // Pillow's order of passes, for filters with lobes
    int height, width;       // of all outputs
    int64_t most_memory;     // bytes on the device that all buffers together may take
};

// How large the buffers are, in elements, and where the parts of what is staged begin, in bytes.
struct GpuSizes {
    int64_t images = 0, groups = 0, tiles = 0;
    int64_t groups_at = 0, tiles_at = 0, items_at = 0, words_at = 0, staged = 0;
    int64_t blocks = 0, samples = 0, pixels = 0, between = 0, weights = 0;

    // Bytes on the device. The pixels take the place of the coefficients.
    int64_t memory(int height, int width) const;
};

class GpuPlan {
public:
    GpuPlan() = default;
    GpuPlan(const GpuPlan&) = delete;
    GpuPlan& operator=(const GpuPlan&) = delete;
    // Sets taken[i] to 1 where the plan holds crop i. False: the pool is closed. Throws std::bad_alloc.
    bool look(const GpuRequest& request, Pool* pool, uint8_t* taken);
    const GpuSizes& sizes() const { return sizes_; }
    // Of sample `i` of what look() saw: 1 (gray) or 3; 0: it was not taken.
    int components(size_t i) const {
        return i < samples_.size() && samples_[i].is_taken ? samples_[i].image.components : 0;
    }
    // Of what look() saw; -1 when it did not come to its end.
    int64_t data_bytes() const { return data_bytes_; }
    // Writes sizes().staged bytes; `data` is what look() saw in memory. The buffer is aligned to 16 bytes.
    bool fill(const uint8_t* data, Pool* pool, uint8_t* staged);

private:
    // A crop. The first one of a file holds the items and blocks for all crops of that file.
    struct Sample {
        bool is_taken = false, is_short_of_memory = false;
        GpuImage image;
        std::vector<GpuItem> runs;  // from one entry to the next; `word` and `end`: bits in the entropy-coded data
        size_t file = 0;
        int64_t scan = 0, scan_bytes = 0;  // where in `data`, or in what was read
        int restart_interval = 0, mcus_per_row = 0, first_row = 0, first_column = 0;
        int64_t items = 0, tiles = 0, bytes = 0;  // room for what is staged
        int64_t blocks = 0, samples = 0, pixels = 0, between = 0, weights = 0;
        // Where its parts go.
        int number = 0;
        int64_t first_item = 0, first_group = 0, first_tile = 0, first_byte = 0;
    };
    bool find_bytes(const GpuRequest& request, int64_t file, Bytes& image, Bytes& entries);
    void look_at(const GpuRequest& request, int64_t file, const int64_t* crops, int64_t count);
    void place(const GpuRequest& request, int64_t i);
    void sort_by_file(const GpuRequest& request);
    bool stage(const uint8_t* data, const Sample& sample, GpuItem* items, uint8_t* bytes, int64_t word,
               int64_t& count) const;
    void fill_one(const uint8_t* data, const Sample& sample, uint8_t* staged) const;

    std::vector<Sample> samples_;
    std::vector<int64_t> crops_, first_crop_;  // the crops by their files; where each file's begin
    std::vector<Buffer> read_;                 // what look() read, by file; memory is kept for the next batch
    bool is_read_ = false;
    GpuSizes sizes_;
    int64_t data_bytes_ = -1;
};

}  // namespace feedrate
