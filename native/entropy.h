// SPDX-License-Identifier: Apache-2.0
// Walks over the MCUs of a scan: decodes or skips them, takes restart markers, knows where it is, and can be set to an
// entry point. Bytes are unstuffed into a window of their own, piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "huffman.h"
#include "jpeg.h"
#include "level.h"

namespace feedrate {

// Builds the tables of a file. Without pairs (huffman.h) its MCUs can only be skipped.
Outcome make_tables(const Header& header, bool paired, McuTables& tables);

class Entropy {
public:
    // Stands before the first MCU. All three must outlive the use.
    void start(const uint8_t* data, const Header& header, const McuTables& tables);
    // Stands before MCU number `mcu`, at `bit` in the entropy-coded data. About `bytes` of it will be read.
    void seek(int64_t mcu, uint32_t bit, const int* predictors, int64_t bytes);
    // Takes the restart marker, if one must stand before the next MCU. Called before position(), and by those below.
    Outcome arrive();
    Outcome skip(int64_t count) {
        return walk(count, tables_->is_paired ? Blocks::skip : Blocks::skip_singly, Planes{});
    }
    // `count` MCUs of one row.
    Outcome walk(int64_t count, Blocks blocks, const Planes& planes);
    // `count` MCUs each of two rows, which is faster.
    static Outcome walk_both(Entropy* both, int64_t count, Blocks blocks, const Planes (&planes)[2]);

    int64_t mcu() const { return mcu_; }
    // In bits from the start of the entropy-coded data, stuffed bytes counted.
    int64_t position();
    const int* predictors() const { return stream_.predictor; }

private:
    Outcome get_ready(int64_t& until);
    Outcome judge() const;
    void load(const uint8_t* from, unsigned bit, size_t bytes);
    void slide();
    Planes from_here(const Planes& planes, int64_t first) const;
    Outcome fault(Why why) const;

    const Header* header_ = nullptr;
    const McuTables* tables_ = nullptr;
    const uint8_t *begin_ = nullptr, *end_ = nullptr;  // the entropy-coded data
    McuStream stream_;
    int64_t mcu_ = 0;
    int64_t arrived_ = 0;  // the MCU whose restart marker has been taken
    std::vector<uint8_t> window_;
    const uint8_t* stop_ = nullptr;  // in the data: what follows the window
    // A byte of the window and the place it came from; moves forward only.
    int64_t known_ = 0;
    const uint8_t* known_from_ = nullptr;
};

}  // namespace feedrate
