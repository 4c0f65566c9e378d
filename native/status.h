// SPDX-License-Identifier: Apache-2.0
// How one sample ended: a status for programs, a reason with two numbers for people. Nothing in the kernel throws past
// the batch; every function that can fail on a stranger's bytes returns an Outcome.
#pragma once

#include <cstdint>
#include <string>

namespace feedrate {

// The numbers are those of feedrate.kernel.Status.
enum class Status : int32_t {
    ok = 0,
    unreadable = 1,
    cut_short = 2,
    crc_mismatch = 3,
    not_taken = 4,
    corrupt = 5,
    bad_box = 6,
    bad_entries = 7,
};

enum class Why : int32_t {
    none = 0,
    // Reading.
    cannot_open,     // a: errno
    cannot_read,     // a: errno
    no_such_number,  // a: the file's number, b: how many files there are
    bad_range,       // a: offset, b: length
    file_ends,       // a: bytes in the file, b: bytes needed
    crc_differs,     // a: found, b: expected
    out_of_memory,
    // Kinds of image that the kernel leaves to others.
    not_jpeg,  // a: index into the list of formats in status.cpp
    progressive,
    arithmetic,
    lossless,
    precision,  // a: bits
    cmyk,
    components,  // a: how many
    rgb_adobe,
    rgb_ids,
    sampling,  // a: luma h * 16 + v, b: chroma h * 16 + v
    not_interleaved,
    scan_order,
    scan_parameters,
    too_large,       // a: width, b: height
    file_too_large,  // a: bytes
    // Damage.
    empty_file,
    headers_end,  // a: bytes in the file
    bad_marker,   // a: byte offset
    bad_segment,  // a: marker, b: byte offset
    no_scan,
    no_size,
    quant_missing,    // a: table
    huffman_missing,  // a: table, b: 0 DC, 1 AC
    huffman_bad,      // a: table, b: 0 DC, 1 AC
    ends_early,       // a: whole MCU rows present, b: MCU rows in the image
    bad_code,         // a: MCU row, b: MCU rows in the image
    dc_overflow,      // a: MCU row, b: MCU rows in the image
    restart_order,    // a: MCU row, b: MCU rows in the image
    // The request.
    box_empty,
    box_outside,     // a: width, b: height of the image
    crop_too_large,  // a: pixels asked for, b: the limit
    // Entry points.
    entries_version,  // a: found
    entries_short,    // a: bytes there, b: bytes needed
    entries_crc,
    entries_other_file,
    entries_geometry,
    entries_offsets,  // a: number of the entry
    entries_wrong,    // a: number of the entry
    // Raw rows.
    raw_version,  // a: first byte, b: version
    raw_length,   // a: bytes in the stored file, b: bytes that the table speaks of
    rows_differ,  // a: first row, b: last row of the block
};

struct Outcome {
    Status status = Status::ok;
    Why why = Why::none;
    int64_t a = 0;
    int64_t b = 0;

    bool ok() const { return status == Status::ok; }
};

inline Outcome corrupt(Why why, int64_t a = 0, int64_t b = 0) { return {Status::corrupt, why, a, b}; }
inline Outcome not_taken(Why why, int64_t a = 0, int64_t b = 0) { return {Status::not_taken, why, a, b}; }

// One sentence, without the name of the file: the caller knows that.
std::string words(const Outcome& outcome);

}  // namespace feedrate
