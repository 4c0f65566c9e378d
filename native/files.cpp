// SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

namespace feedrate {

constexpr size_t kMaxOpen = 128;  // far below the usual limit of 1024 descriptors, enough for every shard in flight

uint8_t* Buffer::make_room(size_t size) {
    if (size > capacity_) {
        bytes_.reset();
        capacity_ = 0;
        const size_t wanted = size + size / 4 + 64;
        bytes_.reset(new uint8_t[wanted]);
        capacity_ = wanted;
    }
    return bytes_.get();
}

void Buffer::trim(size_t limit) {
    if (capacity_ <= limit) return;
    bytes_.reset();
    capacity_ = 0;
}

Files::Shared Files::find_open(int64_t file, Outcome& outcome) {
    State& state = state_.get();
    {
        const std::lock_guard<std::mutex> lock(state.mutex);
        const auto found = state.open.find(file);
        if (found != state.open.end()) {
            found->second.used = ++state.clock;
            return found->second.descriptor;
        }
    }
    // Not under the lock: on a network file system this takes a while. O_NONBLOCK: a named pipe must not hold us up.
    const char* path = paths_[file].c_str();
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        outcome = {Status::unreadable, Why::cannot_open, errno, 0};
        return nullptr;
    }
    Shared descriptor = std::make_shared<const Descriptor>(fd);
    const std::lock_guard<std::mutex> lock(state.mutex);
    if (state.open.size() >= kMaxOpen) {
        auto oldest = state.open.begin();
        for (auto i = state.open.begin(); i != state.open.end(); ++i)
            if (i->second.used < oldest->second.used) oldest = i;
        state.open.erase(oldest);
    }
    state.open[file] = {descriptor, ++state.clock};
    return descriptor;
}

void Files::forget(int64_t file) {
    State& state = state_.get();
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.open.erase(file);
}

void Files::close() {
    State& state = state_.get();
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.open.clear();
}

Outcome Files::check_range(int64_t file, int64_t offset, int64_t length, bool always) {
    if (file < 0 || file >= static_cast<int64_t>(paths_.size()))
        return {Status::unreadable, Why::no_such_number, file, static_cast<int64_t>(paths_.size())};
    if (offset < 0 || length < 0 || length > std::numeric_limits<int64_t>::max() - offset)
        return {Status::unreadable, Why::bad_range, offset, length};
    if (length <= kTrustedBytes && !always) return {};
    Outcome outcome;
    const Shared descriptor = find_open(file, outcome);
    if (!descriptor) return outcome;
    struct stat facts;
    if (::fstat(descriptor->get(), &facts) != 0) return {Status::unreadable, Why::cannot_read, errno, 0};
    if (facts.st_size < offset + length) return {Status::cut_short, Why::file_ends, facts.st_size, offset + length};
    return {};
}

Outcome Files::read(int64_t file, int64_t offset, int64_t length, Buffer& to) {
    if (const Outcome outcome = check_range(file, offset, length); !outcome.ok()) return outcome;
    return read(file, offset, length, to.make_room(static_cast<size_t>(length)));
}

Outcome Files::read(int64_t file, int64_t offset, int64_t length, uint8_t* to) {
    Outcome outcome = check_range(file, offset, length);
    if (!outcome.ok()) return outcome;
    const Shared descriptor = find_open(file, outcome);
    if (!descriptor) return outcome;
    for (int64_t done = 0; done < length;) {
        const ssize_t got = ::pread(descriptor->get(), to + done, static_cast<size_t>(length - done), offset + done);
        if (got > 0) {
            done += got;
        } else if (got == 0) {
            struct stat facts;
            const bool known = ::fstat(descriptor->get(), &facts) == 0;
            return {Status::cut_short, Why::file_ends, known ? static_cast<int64_t>(facts.st_size) : offset + done,
                    offset + length};
        } else if (errno != EINTR) {
            outcome = {Status::unreadable, Why::cannot_read, errno, 0};
            forget(file);  // a stale handle opens anew next time
            return outcome;
        }
    }
    return {};
}

}  // namespace feedrate
