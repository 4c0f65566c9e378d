// SPDX-License-Identifier: Apache-2.0
// Pillow's resize, bit for bit, fed line by line; then mirrored and packed into the target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg.h"
#include "level.h"

namespace feedrate {

// How many weights a pixel of the output has at the most.
int most_taps(int in_size, int out_size, Filter filter);
// Whether the vertical pass comes before the horizontal one; resize.cpp says why it matters.
bool is_down_first(int in_width, int in_height, const Target& target);

// Lines are pixels of four bytes (R, G, B and nothing); a gray image carries its value three times. The lines that the
// vertical pass still needs are kept in a ring, so that memory does not grow with the height.
class Resizer {
public:
    // Returns the part of an image of this size that has to come in: all of it, unless the target is an excerpt.
    Box begin(int in_width, int in_height, const Target& target);
    // Where the caller writes the next line of that part; then it calls push(). After the last line all is written.
    uint32_t* line() { return lower_first_ ? slot(stored_) : line_[pushed_ % kLines].data(); }
    void push();
    void trim(size_t limit);

private:
    uint32_t* slot(int row) { return ring_.data() + static_cast<size_t>(row % ring_lines_) * ring_stride_; }
    int shrink_lines(int done, int all);
    void lower_ready();
    void emit(const uint32_t* line, int y);

    Target target_{};
    int in_width_ = 0, in_height_ = 0;
    bool horizontal_ = false, vertical_ = false;
    bool lower_first_ = false;                   // what comes in goes to the vertical pass
    int pushed_ = 0, stored_ = 0, lowered_ = 0;  // lines so far: taken, put into the ring, made by the vertical pass
    Taps across_, down_;
    int ring_lines_ = 1;
    size_t ring_stride_ = 0;
    std::vector<uint32_t> ring_, line_[kLines], narrow_[kLines];
    std::vector<const uint8_t*> rows_;
};

}  // namespace feedrate
