// SPDX-License-Identifier: Apache-2.0
// Entry points as bytes: jpeg.h describes the format.
#pragma once

#include <cstdint>
#include <string>

#include "jpeg.h"

namespace feedrate {

struct Entry {
    uint32_t bit = 0;
    int predictor[kMaxComponents] = {};
};

// Collects entries while a file is scanned.
class EntriesWriter {
public:
    explicit EntriesWriter(const Header& header);
    int step() const { return step_; }
    void add(uint32_t bit, const int* predictors);
    std::string finish(const uint8_t* data, size_t size);

private:
    const Header& header_;
    int step_;
    std::string bytes_;
};

// Whether entries are whole and those of the file with this size and checksum. None at all is fine.
Outcome check_entries(Bytes bytes, size_t file_size, uint32_t file_crc);

// Reads entries; does not own them.
class Entries {
public:
    // `bytes` have passed check_entries. Empty means that there are none.
    Outcome open(Bytes bytes, const Header& header);
    bool empty() const { return per_row_ == 0; }
    int step() const { return step_; }
    int64_t number(int row, int column) const { return static_cast<int64_t>(row) * per_row_ + column / step_; }
    Entry at(int64_t number) const;

private:
    const uint8_t* first_ = nullptr;
    int components_ = 0, step_ = 1, per_row_ = 0;
};

}  // namespace feedrate
