// SPDX-License-Identifier: Apache-2.0
#include "inputs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "crc32c.h"
#include "handles.h"
#include "jpeg.h"

namespace feedrate {
namespace {

// Reads to the end, wherever that is: a file may grow, and some tell no size. Returns 0, or errno.
int read_whole(const std::string& path, Buffer& to, size_t& size) {
    if (path.find('\0') != std::string::npos) return EINVAL;
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    struct stat facts;
    if (file.get() < 0 || ::fstat(file.get(), &facts) != 0) return errno;
    // A byte more, so that the end is seen at once.
    size_t room = static_cast<size_t>(std::max<int64_t>(facts.st_size, 4096)) + 1;
    uint8_t* bytes = to.make_room(room);
    for (size = 0;;) {
        const ssize_t got = ::read(file.get(), bytes + size, room - size);
        if (got == 0) return 0;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        size += static_cast<size_t>(got);
        if (size < room) continue;
        Buffer larger;
        std::memcpy(larger.make_room(room *= 2), bytes, size);
        bytes = const_cast<uint8_t*>(larger.data());
        std::swap(to, larger);
    }
}

}  // namespace

bool Input::try_to_load() {
    if (!is_unread()) return error == 0;
    is_loaded_ = true;
    size_t size = 0;
    try {
        error = read_whole(path, read_, size);
    } catch (const std::bad_alloc&) {
        error = ENOMEM;
    }
    if (error == 0) file = {read_.data(), size};
    return error == 0;
}

bool Input::prepare(int64_t bytes_per_entry) {
    if (!try_to_load()) return false;
    if (is_known_) return true;
    crc = crc32c(file.data, file.size, 0);
    if (entries.size == 0 && bytes_per_entry) {
        Header header;
        scan_jpeg(file.data, file.size, crc, header, found_, bytes_per_entry);
        entries = {reinterpret_cast<const uint8_t*>(found_.data()), found_.size()};
    }
    return is_known_ = true;
}

void Input::measure() {
    Header header;
    if (parse_jpeg(file.data, file.size, header, false).ok() && is_possible(header))
        width = header.width, height = header.height;
}

}  // namespace feedrate
