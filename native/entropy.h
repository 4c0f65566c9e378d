// SPDX-License-Identifier: Apache-2.0
// Walks over the MCUs of a scan: decodes or skips them, takes restart markers, knows where it is, and can be set to an
// entry point.
#pragma once

#include "huffman.h"
#include "jpeg.h"

namespace feedrate {

// Where the blocks of a row of MCUs go: the first MCU's top left sample of each component.
struct Planes {
    uint8_t* first[kMaxComponents];
    ptrdiff_t stride[kMaxComponents];
};

class Entropy {
public:
    // Builds the tables, stands before the first MCU. `data` and `header` must outlive the use.
    Outcome start(const uint8_t* data, const Header& header);
    // Stands before MCU number `mcu`, at `bit` in the entropy-coded data.
    void seek(int64_t mcu, uint32_t bit, const int* predictors);
    // Takes the restart marker, if one must stand before the next MCU. Called before position(), and by the two below.
    Outcome arrive();
    Outcome skip(int64_t count) { return walk(count, nullptr); }
    // `count` MCUs of one row.
    Outcome decode(int64_t count, const Planes& planes) { return walk(count, &planes); }

    int64_t mcu() const { return mcu_; }
    int64_t position() const { return in_.position(begin_); }
    const int* predictors() const { return predictor_; }

private:
    struct Block {  // one of the MCU
        int component;
        const HuffmanTable *dc, *ac;
        const uint16_t* quant;
        int x, y;  // in samples, inside the MCU
    };
    Outcome walk(int64_t count, const Planes* planes);
    template <bool kStore>
    FEEDRATE_INLINE int64_t run(int64_t count, const Planes* planes, bool& bad_code);
    int64_t run_plain(int64_t count, const Planes* planes, bool& bad_code);
    int64_t run_avx2(int64_t count, const Planes* planes, bool& bad_code);
    Outcome fault(Why why) const;

    const Header* header_ = nullptr;
    const uint8_t* begin_ = nullptr;
    BitReader in_;
    int64_t mcu_ = 0;
    int64_t arrived_ = 0;  // the MCU whose restart marker has been taken
    int predictor_[kMaxComponents] = {};
    Block block_[10];
    int block_count_ = 0;
    uint16_t quant_[kMaxComponents][kBlockSize];
    HuffmanTable dc_[4], ac_[4];
};

}  // namespace feedrate
