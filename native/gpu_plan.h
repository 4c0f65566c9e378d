// SPDX-License-Identifier: Apache-2.0
// What a GPU needs to decode a batch. The plan reads headers, checks entry points, and lays out the entropy-coded bytes
// under the crops, without their stuffing, for the kernels in src/feedrate/kernel/cuda. Images that it does not take
// (no entry points, damage, too little room) are left to decode(); those that it takes come to the same pixels.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../src/feedrate/kernel/cuda/layout.h"
#include "batch.h"
#include "entries.h"
#include "files.h"
#include "inputs.h"
#include "jpeg.h"
#include "pool.h"

namespace feedrate {

// The caller owns every array, and keeps them until look() returns.
struct GpuRequest {
    int64_t count;  // of crops
    int64_t files;
    const int32_t* file_of;  // of each crop, from 0 to files - 1; a file that several share is decoded once
    const int32_t* samples;  // where each crop's pixels and status go; null: in this order
    // Files in memory, or with a path: a thread finds what it needs of one, and plans what its cache still holds.
    Input* inputs;
    int64_t bytes_per_entry;  // of entry points that are to be found; 0: files without are not taken
    // Ranges of files on disk, which look() reads and checks, where there are no inputs.
    Files* disk;
    Ranges images, entry_ranges;
    int64_t most_pixels;  // not 0: whole images of no more pixels are wanted, and look() writes their boxes
    int32_t* boxes;       // left, top, right, bottom
    const uint8_t* flips;
    const uint8_t* filters;  // by Pillow's numbers
    bool before_13;          // Pillow's order of passes, for filters with lobes
    int height, width;       // of all outputs
    int64_t most_memory;     // bytes on the device that all buffers together may take
    // For the entropy-coded bytes under the crops, aligned to 16 bytes. A thread writes those of an image while its
    // cache holds the file. As much as the files have and 64 bytes for each is enough but for tall thin ones.
    uint8_t* words;
    int64_t words_room;
};

// How large the buffers are, in elements, and where the parts of what is staged begin; that, and words, in bytes.
struct GpuSizes {
    int64_t images = 0, groups = 0, tiles = 0;
    int64_t groups_at = 0, tiles_at = 0, items_at = 0, staged = 0, words = 0;
    int64_t blocks = 0, samples = 0, pixels = 0, between = 0, weights = 0;

    // Bytes on the device. The pixels take the place of the coefficients.
    int64_t memory(int height, int width) const;
};

enum class Taken : uint8_t { no, yes, has_no_room };

class GpuPlan {
public:
    GpuPlan() = default;
    GpuPlan(const GpuPlan&) = delete;
    GpuPlan& operator=(const GpuPlan&) = delete;
    // Says of each crop whether the plan holds it, and writes sizes().words bytes. False: the pool is closed. Throws
    // std::bad_alloc.
    bool look(const GpuRequest& request, Pool* pool, Taken* taken);
    const GpuSizes& sizes() const { return sizes_; }
    // Of each of `samples`: 1 (gray) or 3; 0: it was not taken.
    void components(uint8_t* out, size_t samples) const;
    // Writes sizes().staged bytes. The buffer is aligned to 16 bytes.
    bool fill(Pool* pool, uint8_t* staged) const;

private:
    // A crop. The first one of a file holds the items and blocks for all crops of that file.
    struct Sample {
        bool is_found = false, is_taken = false, is_short_of_memory = false;
        GpuImage image;
        std::vector<GpuItem> items;
        size_t leader = 0;              // the crop that carries the items and blocks of this one, or itself
        int64_t words_end = 0;          // in what look() writes; beyond its room: there was none
        int64_t groups = 0, tiles = 0;  // room for what is staged
        int64_t blocks = 0, samples = 0, pixels = 0, between = 0, weights = 0;
        // Where its parts go.
        int number = 0;
        int64_t first_item = 0, first_group = 0, first_tile = 0;

        void share(const Sample& other);
    };
    void look_at(const GpuRequest& request, const int64_t* crops, int64_t count);
    void place(const GpuRequest& request, int64_t i, size_t leader);
    void sort_by_file(const GpuRequest& request);
    void lay_out(const GpuRequest& request, Taken* taken);
    void fill_one(const Sample& sample, uint8_t* staged) const;

    std::vector<Sample> samples_;
    size_t count_ = 0;                         // of the samples that are in use
    std::vector<int64_t> crops_, first_crop_;  // the crops by their files; where those of each file begin
    std::atomic<int64_t> words_{0};            // bytes that were given out
    GpuSizes sizes_;
};

}  // namespace feedrate
