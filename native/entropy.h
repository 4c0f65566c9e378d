// SPDX-License-Identifier: Apache-2.0
// Walks over the MCUs of a scan: decodes or skips them, takes restart markers, knows where it is, and can be set to an
// entry point. Bytes are unstuffed into a window of their own, piece by piece.
#pragma once

#include <vector>

#include "huffman.h"
#include "jpeg.h"
#include "level.h"

namespace feedrate {

class Entropy {
public:
    // Builds the tables, stands before the first MCU. `data` and `header` must outlive the use.
    Outcome start(const uint8_t* data, const Header& header);
    // Stands before MCU number `mcu`, at `bit` in the entropy-coded data. About `bytes` of it will be read.
    void seek(int64_t mcu, uint32_t bit, const int* predictors, int64_t bytes);
    // Takes the restart marker, if one must stand before the next MCU. Called before position(), and by the two below.
    Outcome arrive();
    Outcome skip(int64_t count) { return walk(count, Blocks::skip, nullptr); }
    // `count` MCUs of one row.
    Outcome decode(int64_t count, Blocks blocks, const Planes& planes) { return walk(count, blocks, &planes); }

    int64_t mcu() const { return mcu_; }
    // In bits from the start of the entropy-coded data, stuffed bytes counted.
    int64_t position();
    const int* predictors() const { return reader_.predictor; }

private:
    Outcome walk(int64_t count, Blocks blocks, const Planes* planes);
    void load(const uint8_t* from, unsigned bit, size_t bytes);
    void slide();
    int64_t place();
    Outcome fault(Why why) const;

    const Header* header_ = nullptr;
    const uint8_t *begin_ = nullptr, *end_ = nullptr;  // the entropy-coded data
    McuReader reader_;
    int64_t mcu_ = 0;
    int64_t arrived_ = 0;  // the MCU whose restart marker has been taken
    std::vector<uint8_t> window_;
    const uint8_t* stop_ = nullptr;  // in the data: what follows the window
    // A byte of the window and the place it came from; moves forward only.
    int64_t known_ = 0;
    const uint8_t* known_from_ = nullptr;
};

}  // namespace feedrate
