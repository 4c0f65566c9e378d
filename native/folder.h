// SPDX-License-Identifier: Apache-2.0
// The contents of one folder, sorted by name. Datasets have millions of files, and a Python object per file is slow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace feedrate {

enum class FolderEntry : uint8_t {
    wanted = 0,  // a regular file whose suffix is one of those asked for
    other = 1,   // another regular file
    folder = 2,
    odd = 3,     // a pipe, a device, ...
    unknown = 4  // it cannot be looked at; its size is the errno
};

struct FolderList {
    std::string names;            // one behind the other
    std::vector<int64_t> starts;  // where each begins, and the end
    std::vector<int64_t> sizes;
    std::vector<int64_t> times_ns;  // of the last change of the contents
    std::vector<FolderEntry> kinds;
};

// Links are followed; names that begin with a dot are left out. `suffixes` are like ".jpg", in lower case. Returns an
// errno, 0 for none; ECANCELED soon after `*stop` is set.
int list_folder(const std::string& path, const std::vector<std::string>& suffixes, int most_threads,
                const uint8_t* stop, FolderList& list);

}  // namespace feedrate
