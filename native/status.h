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

// Why a sample is not ok, and the sentence for it: a printf format that takes `a` and `b` as long long. words() makes
// the sentences that are empty here: `a` is an errno, a number of a format, sampling factors (h * 16 + v, `b` chroma).
#define FEEDRATE_REASONS(REASON)                                                                               \
    REASON(none, "")                                                                                           \
    /* Reading. */                                                                                             \
    REASON(cannot_open, "")                                                                                    \
    REASON(cannot_read, "")                                                                                    \
    REASON(no_such_number, "file number %lld is not one of the %lld files")                                    \
    REASON(bad_range, "offset %lld with length %lld is not a byte range")                                      \
    REASON(file_ends, "the file ends at byte %lld, the range needs bytes up to %lld")                          \
    REASON(crc_differs, "crc32c is %08llx, the index says %08llx")                                             \
    REASON(out_of_memory, "out of memory")                                                                     \
    /* Kinds of image that the kernel leaves to others. */                                                     \
    REASON(not_jpeg, "")                                                                                       \
    REASON(progressive, "progressive")                                                                         \
    REASON(arithmetic, "arithmetic coding")                                                                    \
    REASON(lossless, "lossless or hierarchical JPEG")                                                          \
    REASON(precision, "%lld-bit")                                                                              \
    REASON(cmyk, "CMYK")                                                                                       \
    REASON(components, "%lld colour components")                                                               \
    REASON(rgb_adobe, "RGB colour (Adobe transform 0)")                                                        \
    REASON(rgb_ids, "RGB colour (component ids R, G, B)")                                                      \
    REASON(sampling, "")                                                                                       \
    REASON(not_interleaved, "non-interleaved scans")                                                           \
    REASON(scan_order, "components out of order in the scan")                                                  \
    REASON(scan_parameters, "unusual scan parameters")                                                         \
    REASON(too_large, "%lld x %lld pixels is beyond what JPEG decoders take")                                  \
    REASON(file_too_large, "the file has %lld bytes, the kernel takes at most 512 MB")                         \
    /* Damage. */                                                                                              \
    REASON(empty_file, "the file is empty")                                                                    \
    REASON(headers_end, "JPEG ends inside its headers, after %lld bytes")                                      \
    REASON(bad_marker, "no JPEG marker where one must be, at byte %lld")                                       \
    REASON(bad_segment, "JPEG segment %02llx at byte %lld is malformed")                                       \
    REASON(no_scan, "JPEG without image data")                                                                 \
    REASON(no_size, "JPEG with zero width or height")                                                          \
    REASON(quant_missing, "quantisation table %lld is missing")                                                \
    REASON(huffman_missing, "Huffman table %lld of class %lld is missing")                                     \
    REASON(huffman_bad, "Huffman table %lld of class %lld is malformed")                                       \
    REASON(ends_early, "JPEG ends early: %lld of %lld MCU rows are there")                                     \
    REASON(bad_code, "invalid Huffman code in MCU row %lld of %lld")                                           \
    REASON(dc_overflow, "DC value out of range in MCU row %lld of %lld")                                       \
    REASON(restart_order, "restart markers out of order in MCU row %lld of %lld")                              \
    /* The request. */                                                                                         \
    REASON(box_empty, "the crop box is empty")                                                                 \
    REASON(box_outside, "the crop box is not inside the image of %lld x %lld pixels")                          \
    REASON(crop_too_large, "the crop has %lld pixels, the limit is %lld")                                      \
    /* Entry points. */                                                                                        \
    REASON(entries_version, "entry points of version %lld, this kernel reads version 1")                       \
    REASON(entries_short, "entry points have %lld bytes, %lld are needed")                                     \
    REASON(entries_crc, "entry points are damaged (their checksum differs)")                                   \
    REASON(entries_other_file, "entry points belong to another file (its checksum differs)")                   \
    REASON(entries_geometry, "entry points do not fit the size of the image")                                  \
    REASON(entries_offsets, "entry point %lld lies outside the image data or before its predecessor")          \
    REASON(entries_wrong, "decoding does not arrive at entry point %lld")                                      \
    /* Raw rows. */                                                                                            \
    REASON(raw_version, "the index has no table of raw rows that this kernel reads (kind %lld, version %lld)") \
    REASON(raw_length, "raw image of %lld bytes, the index speaks of %lld")                                    \
    REASON(rows_differ, "rows %lld to %lld are not those that were packed (checksum)")

enum class Why : int32_t {
#define FEEDRATE_NAME(name, sentence) name,
    FEEDRATE_REASONS(FEEDRATE_NAME)
#undef FEEDRATE_NAME
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
