// SPDX-License-Identifier: Apache-2.0
// What the operating system lends, given back when its owner ends. No other file closes anything.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <memory>

namespace feedrate {

// Of a file or folder; below zero where it could not be opened.
class Descriptor {
public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return fd_; }

private:
    const int fd_;
};

struct CloseFolder {
    void operator()(DIR* folder) const { ::closedir(folder); }
};
using OpenFolder = std::unique_ptr<DIR, CloseFolder>;

}  // namespace feedrate
