// SPDX-License-Identifier: Apache-2.0
// The loops that take most of the time, as one table of functions per level of instructions. The level is chosen once:
// the best that the machine has, or the one that FEEDRATE_SIMD names. All levels give the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "huffman.h"

namespace feedrate {

// Where the blocks of a row of MCUs go: the first MCU's top left sample of each component.
struct Planes {
    uint8_t* first[kMaxComponents];
    ptrdiff_t stride[kMaxComponents];
};

// What is done with the blocks of an MCU. `skip_singly` needs no pairs of symbols in the tables. `store` is for
// measuring: it leaves out the IDCT.
enum class Blocks { skip, skip_singly, store, transform };

// Four weights in two parts: weight = 65536 * high + low, low signed in 16 bits. A weight is between -0.3 and 1.3
// (times 1 << kWeightBits), and so are the sums of those below zero and of those above.
struct SplitFour {
    int8_t high[4];
    int16_t low[4];  // of taps 0, 2, 1, 3
};

// What becomes of one dimension.
struct Side {
    int in, out;          // pixels before and after
    double from, length;  // of those before, what counts as all of them: Pillow's box, whose numbers are floats
    Span kept;            // of those after

    // Whether pixels only move: whatever the filter, each has one weight.
    bool is_moved() const { return from == static_cast<int>(from) && length == out; }
};

// One dimension of a resize: for every output pixel the first input pixel, how many, and their weights.
struct Taps {
    int width = 0;  // weights per output pixel, a multiple of four, the unused ones zero
    int most = 0;   // of the counts
    std::vector<int> first, count;
    std::vector<int32_t> weight;
    // The same weights in groups of four (SplitFour), `groups` per output pixel; made where `shrink` wants them.
    int groups = 0;
    std::vector<SplitFour> split;

    void make(const Side& side, Filter filter);
    // The input pixels that are needed. They are counted from the first of them afterwards.
    Span move_to_first();
    void make_groups();
};
constexpr int kWeightBits = 32 - 8 - 2;  // Pillow's
// Lines are a whole number of these long, in bytes.
constexpr int kLineChunk = 32;
constexpr int kLines = 4;  // that are narrowed at a time

struct Level {
    const char* name;
    // Copies entropy-coded bytes without their stuffing, until a marker, `target`, `end`, or `room` bytes are there.
    // May write kUnstuffSlack bytes more, though none where there is room for all up to `end`. Returns where it stopped
    // in the source; `size` is what was written. It stops behind the target where no byte of 0xFF stands in between.
    const uint8_t* (*unstuff)(const uint8_t* from, const uint8_t* target, const uint8_t* end, uint8_t* to, size_t room,
                              size_t& size);
    // Decodes up to `count` MCUs; returns how many are good.
    int64_t (*read_mcus)(const McuTables& tables, McuStream& stream, int64_t count, Blocks blocks,
                         const Planes* planes);
    // The same for two rows at once, symbol by symbol in turn: one waits for its table while the other computes.
    int64_t (*read_mcu_pairs)(const McuTables& tables, McuStream (&streams)[2], int64_t count, Blocks blocks,
                              const Planes (&planes)[2]);
    // Pixels of four bytes: R, G, B, 0.
    void (*convert_rgb)(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int count, uint32_t* out);
    // The parts of colour.h's double_width and double_both that are far from borders.
    void (*widen)(const uint8_t* in, int count, uint8_t* out);
    void (*add_rows)(const uint8_t* near, const uint8_t* far, int count, uint16_t* sums);
    void (*widen_sums)(const uint16_t* in, int count, uint8_t* out);
    // Some lines at once across. Reads four pixels per group of taps: up to 4 * taps.groups past the end of a line.
    void (*shrink)(const uint32_t* const (&lines)[kLines], const Taps& taps, int out_width,
                   uint32_t* const (&out)[kLines]);
    // One output line from `count` lines of `width` bytes, a multiple of kLineChunk.
    void (*lower)(const uint8_t* const* rows, int count, const int32_t* weight, int width, uint8_t* out);
    // Pixels of four bytes to three, mirrored if asked.
    void (*pack_rgb)(const uint32_t* line, size_t width, bool flip, uint8_t* out);
    // Pixels of three bytes to four.
    void (*spread_rgb)(const uint8_t* in, int count, uint32_t* out);
};

// The chosen one. Falls back to the best when FEEDRATE_SIMD names none of this machine's; level_error() then says so.
const Level& level();
// Those that this machine can run, the best first.
const std::vector<const Level*>& levels();
// Empty, or why the level that FEEDRATE_SIMD names cannot be had.
std::string level_error();

}  // namespace feedrate
