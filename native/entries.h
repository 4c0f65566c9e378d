// SPDX-License-Identifier: Apache-2.0
// Entry points as bytes: jpeg.h describes the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "jpeg.h"

namespace feedrate {

struct Entry {
    uint32_t bit = 0;
    int predictor[kMaxComponents] = {};
};

// Whether entries are whole and those of the file with this checksum. None at all is fine.
Outcome check_entries(Bytes bytes, uint32_t file_crc);

// Entries that were checked against the file.
class Entries {
public:
    // `bytes` have passed check_entries; empty means that there are none.
    Outcome open(Bytes bytes, const Header& header);
    bool empty() const { return per_row_ == 0; }
    int step() const { return step_; }
    // A multiple of the step: the columns at which a walk compares its position with the entry. Every entry, unless
    // they are closer than kBytesPerEntry: to stop at each would take too long.
    int check_step() const { return check_step_; }
    int64_t count() const { return static_cast<int64_t>(entries_.size()); }
    int64_t number(int row, int column) const { return static_cast<int64_t>(row) * per_row_ + column / step_; }
    // Gives memory back that only an image of very many entries needed; there are none then.
    void trim(size_t limit);
    const Entry& at(int64_t number) const { return entries_[number]; }

private:
    int step_ = 1, check_step_ = 1, per_row_ = 0;
    std::vector<Entry> entries_;
};

}  // namespace feedrate
