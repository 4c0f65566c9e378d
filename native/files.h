// SPDX-License-Identifier: Apache-2.0
// Files by number: opened when first needed, a bounded number at a time, the least recently used one closed first. Safe
// for any number of threads; a file that is being read stays open until the read is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "handles.h"
#include "per_process.h"
#include "status.h"

namespace feedrate {

// A longer range is compared with the file's size before memory is taken for it.
constexpr int64_t kTrustedBytes = int64_t{16} << 20;

// Memory that is reused: make_room() may grow it, trim() gives it back.
class Buffer {
public:
    uint8_t* make_room(size_t size);
    const uint8_t* data() const { return bytes_.get(); }
    void trim(size_t limit);

private:
    std::unique_ptr<uint8_t[]> bytes_;
    size_t capacity_ = 0;
};

class Files {
public:
    explicit Files(std::vector<std::string> paths) : paths_(std::move(paths)) {}

    // Reads exactly `length` bytes. A buffer gets its room only after check_range().
    Outcome read(int64_t file, int64_t offset, int64_t length, uint8_t* to);
    Outcome read(int64_t file, int64_t offset, int64_t length, Buffer& to);
    // Whether a range is inside its file. Up to kTrustedBytes the file is looked at only if `always` says so.
    Outcome check_range(int64_t file, int64_t offset, int64_t length, bool always = false);
    // They open again when they are next needed.
    void close();

private:
    using Shared = std::shared_ptr<const Descriptor>;
    struct Slot {
        Shared descriptor;
        uint64_t used = 0;
    };
    struct State {
        std::mutex mutex;
        std::unordered_map<int64_t, Slot> open;
        uint64_t clock = 0;
    };

    Shared find_open(int64_t file, Outcome& outcome);
    void forget(int64_t file);

    std::vector<std::string> paths_;
    PerProcess<State> state_;
};

}  // namespace feedrate
