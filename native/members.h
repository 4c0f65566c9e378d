// SPDX-License-Identifier: Apache-2.0
// Image files become members of a tar: read, looked at, checksummed, with their headers, into one buffer. What is out
// of the ordinary (a damaged image, a name that must be escaped) is left to the caller, one by one.
#pragma once

#include <cstdint>
#include <string>

#include "bytes.h"
#include "pool.h"
#include "status.h"

namespace feedrate {

constexpr int64_t kTarBlock = 512;

struct MembersRequest {
    int64_t count;
    std::string root;      // the paths are relative to it
    const uint8_t* paths;  // one behind the other, path i from path_starts[i] to path_starts[i + 1]
    const int64_t* path_starts;
    const int64_t* sizes;     // what each file had when it was listed
    const int64_t* labels;    // null: no label; else KEY.cls holds it
    const uint8_t* header;    // a tar header of an empty name and size 0
    bool scan;                // note entry points; else only sizes of images are looked at
    int64_t bytes_per_entry;  // how far apart these are
    const int64_t* starts;    // where in `out` a sample's members go; room_of says how much they take
    uint8_t* out;
};

// Numbers as kernel/members.py has them. Of PNGs, only kinds that need no second look.
enum class ImageKind { jpeg, gray_jpeg, png_gray, png_rgb, png_palette, png_gray_alpha, png_rgb_alpha, png_bits };

// What became of a sample: filled unless it is left.
struct MemberFacts {
    bool left = true;  // not done: for the caller
    uint32_t crc = 0;  // crc32c of the file
    int width = 0, height = 0;
    ImageKind kind = ImageKind::jpeg;
    bool has_exif = false;  // of a JPEG: it may have been turned
    std::string key;        // of the sample
    std::string entries;
};

int64_t room_of(int64_t size, bool has_label);

// False: the pool is closed.
bool make_members(const MembersRequest& request, Pool* pool, MemberFacts* facts);

// A hash of the key that a path gets: the path without suffix, with '_' for dots in its last part.
uint64_t hash_stem(Bytes path);

}  // namespace feedrate
