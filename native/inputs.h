// SPDX-License-Identifier: Apache-2.0
// Image files of one call, in memory or on disk. A thread that decodes one finds out first what the caller did not
// give.
#pragma once

#include <cstdint>
#include <string>

#include "bytes.h"
#include "files.h"

namespace feedrate {

// Used by one thread at a time, and from then on where it is: `file` and `entries` may be its own.
struct Input {
    Bytes file, entries;  // the caller's, who keeps them
    std::string path;     // where the file is to be read from; "": it is there
    // What is found out.
    int error = 0;     // why it cannot be read, as errno has it
    uint32_t crc = 0;  // crc32c of the file
    int width = 0, height = 0;

    bool is_unread() const { return !path.empty() && !is_loaded_; }
    // Reads the file, the first time. False: that cannot be done.
    bool try_to_load();
    // Finds the checksum, and entry points where there are none and `bytes_per_entry` is not 0. Throws std::bad_alloc.
    bool prepare(int64_t bytes_per_entry);
    // Finds width and height where the kernel decodes such a file, and they are no more than its bytes can fill.
    void measure();

private:
    bool is_loaded_ = false, is_known_ = false;
    Buffer read_;
    std::string found_;
};

}  // namespace feedrate
