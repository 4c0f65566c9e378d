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

// Grows, never shrinks by itself; the bytes past size() are the owner's business.
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
    size_t size() const { return paths_.size(); }

    // Reads exactly `length` bytes to where `room(length)` says; asks for room only after a look at the file's size
    // when the range is large. Throws what `room` throws.
    template <class Room>
    Outcome read(int64_t file, int64_t offset, int64_t length, Room room) {
        const Outcome outcome = check_range(file, offset, length);
        return outcome.ok() ? read_into(file, offset, length, room(static_cast<size_t>(length))) : outcome;
    }
    // Whether a range lies inside its file. One of a few megabytes is believed, and its file not looked at, unless
    // `always` says so.
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

    Outcome read_into(int64_t file, int64_t offset, int64_t length, uint8_t* to);
    Shared find_open(int64_t file, Outcome& outcome);
    void forget(int64_t file);

    std::vector<std::string> paths_;
    PerProcess<State> state_;
};

}  // namespace feedrate
