// SPDX-License-Identifier: Apache-2.0
#include "members.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <numeric>

#include "bytes.h"
#include "crc32c.h"
#include "handles.h"
#include "jpeg.h"

namespace feedrate {
namespace {

constexpr size_t kLongestPart = 180, kLongestName = 100;  // of a key's part; of a tar header's field
constexpr int64_t kMostPerCall = int64_t{1} << 30;        // Linux reads no more than 2 GB at a time
constexpr int kSizeField = 124, kSumField = 148;
constexpr int64_t kLargest = int64_t{1} << 33;  // eleven octal digits

int64_t padded(int64_t size) { return (size + kTarBlock - 1) / kTarBlock * kTarBlock; }

bool is_safe(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::strchr("_.-~+=,@()", c) != nullptr;
}

// Where the last part of a path begins, and its suffix, or the end. The dot of a hidden file begins no suffix.
struct Parts {
    size_t base, suffix;
};

Parts split(const char* path, size_t size) {
    size_t base = size, suffix = size;
    while (base && path[base - 1] != '/') --base;
    for (size_t i = size; i > base + 1; --i)
        if (path[i - 1] == '.') {
            suffix = i - 1;
            break;
        }
    return {base, suffix};
}

// The key of a path that needs no escapes; false: it does, or is too long for one.
bool make_key(const char* path, const Parts& parts, std::string& key) {
    key.assign(path, parts.suffix);
    std::replace(key.begin() + static_cast<std::ptrdiff_t>(parts.base), key.end(), '.', '_');
    if (key.empty() || key.compare(0, 2, "__") == 0) return false;
    size_t begin = 0;
    for (size_t i = 0; i <= key.size(); ++i) {
        if (i < key.size() && key[i] != '/') {
            if (!key[i] || !is_safe(key[i])) return false;
            continue;
        }
        const size_t length = i - begin;
        const bool is_dots =
            (length == 1 && key[begin] == '.') || (length == 2 && key[begin] == '.' && key[begin + 1] == '.');
        if (!length || length > kLongestPart || is_dots) return false;
        begin = i + 1;
    }
    return true;
}

// The header that all others are made of, and the sum that its bytes have in one: the field of the sum is spaces there.
struct Template {
    const uint8_t* bytes;
    uint32_t sum;

    explicit Template(const uint8_t* header)
        : bytes(header), sum(std::accumulate(header, header + kTarBlock, uint32_t{8 * ' '})) {
        sum -= std::accumulate(header + kSumField, header + kSumField + 8, uint32_t{0});
    }
};

// A header as Python's tarfile writes it (PAX): only name, size and checksum differ from member to member.
bool put_header(const Template& header, const std::string& name, int64_t size, uint8_t* out) {
    if (name.size() > kLongestName || size >= kLargest) return false;
    std::memcpy(out, header.bytes, kTarBlock);
    std::memcpy(out, name.data(), name.size());
    uint32_t sum = header.sum;
    for (const char c : name) sum += static_cast<uint8_t>(c);
    for (int digit = 10; digit >= 0; --digit, size >>= 3) {
        out[kSizeField + digit] = static_cast<uint8_t>('0' + (size & 7));
        sum += static_cast<uint32_t>(size & 7);
    }
    for (int digit = 5; digit >= 0; --digit, sum >>= 3) out[kSumField + digit] = static_cast<uint8_t>('0' + (sum & 7));
    out[kSumField + 6] = 0;
    return true;
}

// Reads a file that must have exactly `size` bytes. Asks for one more, which `to` has room for if `has_room`.
bool read_whole(int folder, const char* path, int64_t size, uint8_t* to, bool has_room) {
    const Descriptor file(::openat(folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    const int fd = file.get();
    if (fd < 0) return false;
    int64_t done = 0;
    for (;;) {
        uint8_t beyond;
        const iovec parts[] = {{to + done, static_cast<size_t>(size - done)}, {&beyond, 1}};
        const int64_t wanted = std::min(size - done + 1, kMostPerCall);
        const bool is_last = wanted == size - done + 1;
        const ssize_t got =
            is_last && !has_room ? ::readv(fd, parts, 2) : ::read(fd, to + done, static_cast<size_t>(wanted));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += got;
        // Less than was asked for usually means the end of the file. Otherwise the next call tells.
        if (done >= size && got < wanted) break;
        if (done > size) break;
    }
    return done == size;
}

bool is(const uint8_t* at, const char* kind) { return std::memcmp(at, kind, 4) == 0; }

// Depths that a kind of colour may have, by the standard; 16 bits are left to the caller.
bool allowed(int depth, int colour) {
    if (colour == 0 || colour == 3) return depth == 1 || depth == 2 || depth == 4 || depth == 8;
    return (colour == 2 || colour == 4 || colour == 6) && depth == 8;
}

constexpr uint32_t kMaxSide = 65'000;        // larger ones are left to whoever decodes them
constexpr uint64_t kMaxPixels = 50'000'000;  // larger ones are left to Pillow, which has a limit, too

// Whether a PNG is whole: its chunks follow each other to the end, and each has the checksum that it says. No pixel is
// decoded. False too for what deserves a second look: 16 bits, frames, EXIF, a size beyond the limits above.
bool check_png(const uint8_t* data, size_t size, MemberFacts& facts) {
    constexpr ImageKind kNone = ImageKind::jpeg,
                        kKinds[] = {ImageKind::png_gray,       kNone, ImageKind::png_rgb,      ImageKind::png_palette,
                                    ImageKind::png_gray_alpha, kNone, ImageKind::png_rgb_alpha};
    static const uint8_t kBegin[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (size < sizeof kBegin || std::memcmp(data, kBegin, sizeof kBegin) != 0) return false;
    bool has_data = false, has_palette = false, is_first = true;
    int colour = 0, depth = 0;
    uint32_t w = 0, h = 0;
    for (size_t at = sizeof kBegin; size - at >= 12;) {
        const uint32_t length = big_u32(data + at);
        if (length > size - at - 12) return false;
        const uint8_t* kind = data + at + 4;
        const uint8_t* body = kind + 4;
        if (crc32(kind, length + size_t{4}) != big_u32(body + length)) return false;
        if (is_first != is(kind, "IHDR")) return false;
        if (is_first) {
            if (length != 13) return false;
            w = big_u32(body), h = big_u32(body + 4), depth = body[8], colour = body[9];
            if (!w || !h || w > kMaxSide || h > kMaxSide || uint64_t{w} * h > kMaxPixels) return false;
            if (!allowed(depth, colour) || body[10] || body[11] || body[12] > 1) return false;
        }
        is_first = false;
        if (is(kind, "acTL") || is(kind, "eXIf")) return false;
        has_palette |= is(kind, "PLTE");
        has_data |= is(kind, "IDAT") && length > 0;
        if (is(kind, "IEND")) {
            if (length || !has_data || (colour == 3 && !has_palette)) return false;
            facts.kind = colour == 0 && depth == 1 ? ImageKind::png_bits : kKinds[colour];
            facts.width = static_cast<int>(w), facts.height = static_cast<int>(h);
            return true;
        }
        at += length + size_t{12};
    }
    return false;
}

// Whether the image is of the kind that its name says, and whole as far as can be seen without decoding pixels.
bool look(const uint8_t* data, size_t size, const std::string& suffix, const MembersRequest& r, MemberFacts& facts) {
    if (suffix == ".png") return check_png(data, size, facts);
    if (suffix != ".jpg" && suffix != ".jpeg") return false;
    Header header;
    const Outcome outcome = r.scan ? scan_jpeg(data, size, facts.crc, header, facts.entries, r.bytes_per_entry)
                                   : parse_jpeg(data, size, header);
    facts.width = header.width, facts.height = header.height;
    facts.has_exif = header.may_have_exif;
    facts.kind = header.component_count == 1 ? ImageKind::gray_jpeg : ImageKind::jpeg;
    return outcome.ok();
}

bool make_sample(const MembersRequest& r, const Template& header, int folder, int64_t i, MemberFacts& facts) {
    const char* path = reinterpret_cast<const char*>(r.paths) + r.path_starts[i];
    const auto path_size = static_cast<size_t>(r.path_starts[i + 1] - r.path_starts[i]);
    const Parts parts = split(path, path_size);
    if (!make_key(path, parts, facts.key)) return false;
    std::string suffix(path + parts.suffix, path_size - parts.suffix);
    for (char& c : suffix) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    const int64_t size = r.sizes[i];
    uint8_t* const begin = r.out + r.starts[i];
    uint8_t* const data = begin + kTarBlock;
    if (size <= 0 || !put_header(header, facts.key + suffix, size, begin)) return false;
    const bool has_room = r.labels || size % kTarBlock;
    if (!read_whole(folder, std::string(path, path_size).c_str(), size, data, has_room)) return false;
    facts.crc = crc32c(data, static_cast<size_t>(size), 0);
    if (!look(data, static_cast<size_t>(size), suffix, r, facts)) return false;
    uint8_t* at = data + padded(size);
    std::memset(data + size, 0, static_cast<size_t>(at - data - size));
    if (!r.labels) return true;
    const std::string label = std::to_string(r.labels[i]);
    if (!put_header(header, facts.key + ".cls", static_cast<int64_t>(label.size()), at)) return false;
    std::memset(at + kTarBlock, 0, kTarBlock);
    std::memcpy(at + kTarBlock, label.data(), label.size());
    return true;
}

}  // namespace

int64_t room_of(int64_t size, bool has_label) { return kTarBlock + padded(size) + (has_label ? 2 * kTarBlock : 0); }

bool make_members(const MembersRequest& r, Pool* pool, MemberFacts* facts) {
    // A small file takes less time than to wake a thread, so threads take several. Large ones are taken one by one.
    constexpr int64_t kMost = 16, kMostBytes = 64 << 10;
    const int64_t mean = r.count ? (r.starts[r.count] - r.starts[0]) / r.count : 0;
    const int64_t group_size = std::clamp(kMostBytes / std::max<int64_t>(mean, 1), int64_t{1}, kMost);
    const Template header(r.header);
    // The way to the folder is walked once. Where it cannot be opened, none of its files can.
    const Descriptor folder(::open(r.root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const auto do_group = [&](int64_t n) {
        for (int64_t i = n * group_size; i < std::min(r.count, (n + 1) * group_size); ++i) {
            try {
                facts[i].left = !make_sample(r, header, folder.get(), i, facts[i]);
            } catch (...) {
                facts[i].left = true;  // out of memory: the caller tries again, one by one
            }
        }
    };
    const int64_t groups = (r.count + group_size - 1) / group_size;
    return for_each(groups, pool, do_group);
}

uint64_t hash_stem(Bytes path) {
    const Parts parts = split(reinterpret_cast<const char*>(path.data), path.size);
    uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a, then splitmix64's finaliser
    for (size_t i = 0; i < parts.suffix; ++i)
        hash = (hash ^ (i >= parts.base && path.data[i] == '.' ? '_' : path.data[i])) * 0x100000001B3u;
    hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ hash >> 27) * 0x94D049BB133111EBu;
    return hash ^ hash >> 31;
}

}  // namespace feedrate
