// SPDX-License-Identifier: Apache-2.0
#include "batch.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "bytes.h"
#include "colour.h"
#include "crc32c.h"
#include "level.h"
#include "raw.h"
#include "resize.h"

namespace feedrate {
namespace {

constexpr size_t kBufferLimit = size_t{64} << 20;  // a thread gives back what it took beyond this

struct Worker {
    Decoder decoder;
    Resizer resizer;  // of raw images; the decoder has its own
    Buffer image, entries;

    void trim() {
        decoder.trim(), resizer.trim(kBufferLimit);
        image.trim(kBufferLimit), entries.trim(kBufferLimit);
    }
};

Worker& worker() {
    thread_local std::unique_ptr<Worker> mine;
    if (!mine) mine.reset(new Worker);
    return *mine;
}

// What a thread does for a sample may run out of memory; it must not take the process with it.
template <class Work>
Outcome guarded(Work work) noexcept {
    try {
        return work();
    } catch (...) {
        return {Status::corrupt, Why::out_of_memory, 0, 0};
    }
}

Outcome check_crc(const uint8_t* data, int64_t length, uint32_t expected) {
    const uint32_t crc = crc32c(data, static_cast<size_t>(length), 0);
    return crc == expected ? Outcome{} : Outcome{Status::crc_mismatch, Why::crc_differs, crc, expected};
}

// `crc` is computed when `wanted` says so or the range has one to compare with.
Outcome read_checked(Files& files, const Ranges& ranges, int64_t i, bool wanted, Buffer& buffer, uint32_t& crc) {
    const Outcome outcome = files.read(ranges.file[i], ranges.offset[i], ranges.length[i], buffer);
    if (!outcome.ok() || !(wanted || ranges.crc)) return outcome;
    crc = crc32c(buffer.data(), static_cast<size_t>(ranges.length[i]), 0);
    if (ranges.crc && crc != ranges.crc[i]) return {Status::crc_mismatch, Why::crc_differs, crc, ranges.crc[i]};
    return {};
}

Box box_of(const DecodeRequest& r, int64_t i) {
    const int32_t* b = r.boxes + 4 * i;
    return {b[0], b[1], b[2], b[3]};
}

// Reads the rows under the crop, and no others.
Outcome crop_raw(Files& files, const DecodeRequest& r, int64_t i, const Target& target) {
    Worker& mine = worker();
    uint32_t unused = 0;
    if (!r.entries.file) return {Status::bad_entries, Why::entries_short, 0, 0};
    Outcome outcome = read_checked(files, r.entries, i, false, mine.entries, unused);
    if (!outcome.ok()) return outcome;
    r.bytes_read[i] += r.entries.length[i];
    const Bytes table{mine.entries.data(), static_cast<size_t>(r.entries.length[i])};
    RawCrop crop;
    if (outcome = crop.open(table, r.images.length[i], box_of(r, i)); !outcome.ok()) return outcome;
    int64_t offset = 0;
    if (__builtin_add_overflow(r.images.offset[i], crop.offset(), &offset))
        return {Status::unreadable, Why::bad_range, r.images.offset[i], crop.size()};
    if (outcome = files.read(r.images.file[i], offset, crop.size(), mine.image); !outcome.ok()) return outcome;
    r.bytes_read[i] += crop.size();
    outcome = crop.decode(mine.image.data(), target, mine.resizer);
    mine.trim();
    return outcome;
}

Outcome decode_sample(Files& files, const DecodeRequest& r, int64_t i, uint8_t* out) {
    Worker& mine = worker();
    const auto filter = static_cast<Filter>(r.filters[i]);
    const Target target{out, r.height, r.width, r.channels, r.flips[i] != 0, filter, order_of(r.before_13)};
    if (r.raw[i]) return crop_raw(files, r, i, target);
    const bool enters = r.entries.file && r.entries.length[i] != 0;
    uint32_t crc = 0, entries_crc = 0;
    Outcome outcome = read_checked(files, r.images, i, enters, mine.image, crc);
    if (outcome.ok() && enters) outcome = read_checked(files, r.entries, i, false, mine.entries, entries_crc);
    if (!outcome.ok()) return outcome;
    r.bytes_read[i] = r.images.length[i] + (enters ? r.entries.length[i] : 0);
    const Bytes image{mine.image.data(), static_cast<size_t>(r.images.length[i])};
    const Bytes entries = enters ? Bytes{mine.entries.data(), static_cast<size_t>(r.entries.length[i])} : Bytes{};
    outcome = mine.decoder.decode(image, crc, entries, box_of(r, i), target);
    mine.trim();
    return outcome;
}

}  // namespace

bool decode_batch(Files& files, const DecodeRequest& r, Pool* pool, Outcome* outcomes) {
    const size_t size = static_cast<size_t>(r.height) * static_cast<size_t>(r.width) * static_cast<size_t>(r.channels);
    return for_each(r.count, pool, [&](int64_t i) {
        uint8_t* out = r.out + static_cast<size_t>(i) * size;
        outcomes[i] = guarded([&] { return decode_sample(files, r, i, out); });
        if (!outcomes[i].ok()) std::memset(out, 0, size);
    });
}

bool check_ranges(Files& files, const Ranges& ranges, int64_t count, Pool* pool, Outcome* outcomes) {
    bool is_large = false;
    for (int64_t i = 0, sum = 0; i < count && !is_large; ++i)
        is_large = ranges.length[i] > kTrustedBytes || (sum += std::max<int64_t>(ranges.length[i], 0)) > kTrustedBytes;
    const auto check = [&](int64_t i) {
        outcomes[i] =
            guarded([&] { return files.check_range(ranges.file[i], ranges.offset[i], ranges.length[i], is_large); });
    };
    return for_each(count, is_large ? pool : nullptr, check);
}

bool read_ranges(Files& files, const Ranges& ranges, int64_t count, const int64_t* starts, uint8_t* buffer, Pool* pool,
                 Outcome* outcomes) {
    return for_each(count, pool, [&](int64_t i) {
        uint8_t* to = buffer + starts[i];
        const size_t length = static_cast<size_t>(starts[i + 1] - starts[i]);
        outcomes[i] = guarded([&]() -> Outcome {
            const Outcome outcome = files.read(ranges.file[i], ranges.offset[i], ranges.length[i], to);
            if (!outcome.ok() || !ranges.crc) return outcome;
            return check_crc(to, ranges.length[i], ranges.crc[i]);
        });
        if (!outcomes[i].ok()) std::memset(to, 0, length);
    });
}

void gather_rows(Files& files, const RowsRequest& r, Outcome* outcomes) {
    for (int64_t i = 0; i < r.count; ++i) {
        uint8_t* to = r.out + i * r.row_size;
        outcomes[i] = guarded([&]() -> Outcome {
            uint8_t* at = to;
            for (int c = 0; c < r.columns; at += r.sizes[c], ++c) {
                int64_t offset = 0;
                if (__builtin_mul_overflow(r.row[i], r.strides[c], &offset) ||
                    __builtin_add_overflow(offset, r.bases[i * r.columns + c], &offset))
                    return {Status::unreadable, Why::bad_range, r.bases[i * r.columns + c], r.sizes[c]};
                const Outcome outcome = files.read(r.file[i], offset, r.sizes[c], at);
                if (!outcome.ok()) return outcome;
            }
            return check_crc(to, r.row_size - 4, little_u32(to + r.row_size - 4));
        });
        if (!outcomes[i].ok()) std::memset(to, 0, static_cast<size_t>(r.row_size));
    }
}

Outcome decode_one(Bytes file, Bytes entries, const Box& box, const Target& target) {
    return guarded([&] {
        const uint32_t crc = entries.size ? crc32c(file.data, file.size, 0) : 0;
        const Outcome outcome = worker().decoder.decode(file, crc, entries, box, target);
        worker().decoder.trim();
        return outcome;
    });
}

Outcome resize_one(const uint8_t* pixels, int width, const Box& box, const Target& target) {
    return guarded([&]() -> Outcome {
        Resizer& resizer = worker().resizer;
        const Box part = resizer.begin(box.right - box.left, box.bottom - box.top, target);
        const int count = part.right - part.left, channels = target.channels;
        for (int64_t y = box.top + part.top; y < box.top + part.bottom; ++y) {
            const uint8_t* line = pixels + (y * width + box.left + part.left) * channels;
            if (channels == 3)
                level().spread_rgb(line, count, resizer.line());
            else
                write_gray_pixels(line, count, resizer.line());
            resizer.push();
        }
        resizer.trim(kBufferLimit);
        return {};
    });
}

Outcome profile_one(Bytes file, Bytes entries, const Box& box, const Target& target, int repeats, StageTimes& times) {
    constexpr Stage kStages[] = {Stage::headers, Stage::huffman, Stage::idct, Stage::colour, Stage::resize};
    return guarded([&]() -> Outcome {
        std::fill_n(times.seconds, StageTimes::kCount, 1e9);
        for (int n = 0; n < repeats; ++n) {
            for (int step = 0; step < StageTimes::kCount; ++step) {
                const double before = thread_cpu_seconds();
                const uint32_t crc = crc32c(file.data, file.size, 0);
                if (step) {
                    const Outcome outcome = worker().decoder.decode(file, crc, entries, box, target, kStages[step - 1]);
                    if (!outcome.ok()) return outcome;
                }
                times.seconds[step] = std::min(times.seconds[step], thread_cpu_seconds() - before);
            }
        }
        worker().decoder.trim();
        return {};
    });
}

}  // namespace feedrate
