// SPDX-License-Identifier: Apache-2.0
#include "folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "handles.h"
#include "pool.h"

namespace feedrate {
namespace {

// So many names are looked at by one thread; more are shared out. Most of the time goes by inside the file system:
// several threads help on a local disk, and more so on a network.
constexpr size_t kTogether = 512;

// Whether a name ends in one of `suffixes`, given in lower case, and has something before it.
bool has_suffix(const char* name, size_t size, const std::vector<std::string>& suffixes) {
    for (const std::string& suffix : suffixes) {
        if (size <= suffix.size()) continue;
        const char* at = name + size - suffix.size();
        bool same = true;
        for (size_t i = 0; same && i < suffix.size(); ++i) {
            const char c = at[i] >= 'A' && at[i] <= 'Z' ? static_cast<char>(at[i] - 'A' + 'a') : at[i];
            same = c == suffix[i];
        }
        if (same) return true;
    }
    return false;
}

}  // namespace

int list_folder(const std::string& path, const std::vector<std::string>& suffixes, int most_threads,
                const uint8_t* stop, FolderList& list) {
    const auto is_stopped = [stop] { return __atomic_load_n(stop, __ATOMIC_RELAXED) != 0; };
    const OpenFolder folder(::opendir(path.c_str()));
    if (!folder) return errno;
    std::string names;
    std::vector<std::pair<size_t, size_t>> found;  // where a name begins, and its length
    errno = 0;
    while (const dirent* entry = ::readdir(folder.get())) {
        if (entry->d_name[0] != '.') {
            found.emplace_back(names.size(), std::strlen(entry->d_name));
            names += entry->d_name;
            names += '\0';
        }
        errno = is_stopped() ? ECANCELED : 0;
        if (errno) break;
    }
    if (errno) return errno;
    std::sort(found.begin(), found.end(), [&](const auto& one, const auto& two) {
        const int order =
            std::memcmp(names.data() + one.first, names.data() + two.first, std::min(one.second, two.second));
        return order ? order < 0 : one.second < two.second;
    });
    list.names.reserve(names.size());
    list.starts.push_back(0);
    for (const auto& [at, size] : found) {
        list.names.append(names.data() + at, size);
        list.starts.push_back(static_cast<int64_t>(list.names.size()));
    }
    list.sizes.resize(found.size());
    list.times_ns.resize(found.size());
    list.kinds.resize(found.size());
    const auto look = [&](size_t number) {
        const auto& [at, size] = found[number];
        const char* name = names.data() + at;
        struct stat facts;
        FolderEntry kind = FolderEntry::unknown;
        int64_t size_bytes = 0, time_ns = 0;
        if (::fstatat(::dirfd(folder.get()), name, &facts, 0) != 0) {
            size_bytes = errno;
        } else if (S_ISREG(facts.st_mode)) {
            kind = has_suffix(name, size, suffixes) ? FolderEntry::wanted : FolderEntry::other;
            size_bytes = facts.st_size;
#if defined(__APPLE__)
            const timespec changed = facts.st_mtimespec;
#else
            const timespec changed = facts.st_mtim;
#endif
            time_ns = int64_t{changed.tv_sec} * 1'000'000'000 + changed.tv_nsec;
        } else {
            kind = S_ISDIR(facts.st_mode) ? FolderEntry::folder : FolderEntry::odd;
        }
        list.sizes[number] = size_bytes;
        list.times_ns[number] = time_ns;
        list.kinds[number] = kind;
    };
    const auto look_at_some = [&](int64_t piece) {
        const size_t first = static_cast<size_t>(piece) * kTogether;
        for (size_t i = first; i < std::min(first + kTogether, found.size()) && !is_stopped(); ++i) look(i);
    };
    const auto pieces = static_cast<int64_t>((found.size() + kTogether - 1) / kTogether);
    const auto threads =
        std::min({static_cast<int64_t>(std::thread::hardware_concurrency()), int64_t{most_threads}, pieces});
    bool is_done = false;
    try {
        if (threads > 1) is_done = Pool(static_cast<int>(threads)).run(pieces, look_at_some);
    } catch (const std::system_error&) {
        // No more threads for this process: one will do.
    }
    for (int64_t piece = 0; !is_done && piece < pieces; ++piece) look_at_some(piece);
    return is_stopped() ? ECANCELED : 0;
}

}  // namespace feedrate
