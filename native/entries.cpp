// SPDX-License-Identifier: Apache-2.0
#include "entries.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "bytes.h"
#include "crc32c.h"
#include "entropy.h"

namespace feedrate {
namespace {

constexpr int kVersion = 1;
constexpr size_t kHead = 12, kChecked = 8;

void put(std::string& to, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) to.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

uint32_t own_crc(const uint8_t* bytes, size_t size) {
    return crc32c(bytes + kHead, size - kHead, crc32c(bytes, kChecked, 0));
}

int bits_of(uint32_t value) { return value ? 32 - __builtin_clz(value) : 0; }

class BitWriter {
public:
    explicit BitWriter(std::string& to) : to_(to) {}
    void put(uint32_t value, int bits) {
        held_ |= static_cast<uint64_t>(value) << count_;
        for (count_ += bits; count_ >= 8; count_ -= 8, held_ >>= 8) to_.push_back(static_cast<char>(held_ & 0xFF));
    }
    void finish() {
        if (count_) to_.push_back(static_cast<char>(held_ & 0xFF));
    }

private:
    std::string& to_;
    uint64_t held_ = 0;
    int count_ = 0;
};

uint64_t little_u64(const uint8_t* at) { return little_u32(at) | static_cast<uint64_t>(little_u32(at + 4)) << 32; }

// The last bytes; what lies behind them is zero.
uint64_t last_bytes(const uint8_t* from, const uint8_t* end) {
    uint8_t padded[8] = {};
    std::copy(from, end, padded);
    return little_u64(padded);
}

// 57 bits or more from one of `packed` on.
inline uint64_t bits_at(Bytes packed, size_t bit) {
    const uint8_t* from = packed.data + bit / 8;
    return (packed.end() - from >= 8 ? little_u64(from) : last_bytes(from, packed.end())) >> bit % 8;
}

// How the entries of a file are stored.
struct Widths {
    int distance = 1, predictor[kMaxComponents] = {};

    int bits() const { return distance + predictor[0] + predictor[1] + predictor[2]; }
    int64_t bytes(int64_t count) const { return (count * bits() + 7) / 8; }
};

Outcome bad(Why why, int64_t a = 0, int64_t b = 0) { return {Status::bad_entries, why, a, b}; }

// MCUs from one entry point to the next.
int choose_step(const Header& header, int64_t bytes_per_entry) {
    const int64_t scan_bytes = static_cast<int64_t>(header.scan_end - header.scan_begin);
    const int64_t per_row = (scan_bytes / header.mcu_rows + bytes_per_entry / 2) / bytes_per_entry;
    return ceil_div(header.mcus_per_row, static_cast<int>(std::clamp<int64_t>(per_row, 1, header.mcus_per_row)));
}

// jpeg.h describes the format.
std::string pack_entries(const std::vector<Entry>& entries, int components, int step, uint32_t file_crc) {
    Widths widths;
    int lowest[kMaxComponents] = {}, highest[kMaxComponents] = {};
    for (int i = 0; i < components; ++i) lowest[i] = highest[i] = entries[0].predictor[i];
    for (size_t n = 0; n < entries.size(); ++n) {
        widths.distance = std::max(widths.distance, n ? bits_of(entries[n].bit - entries[n - 1].bit) : 1);
        for (int i = 0; i < components; ++i) {
            lowest[i] = std::min(lowest[i], entries[n].predictor[i]);
            highest[i] = std::max(highest[i], entries[n].predictor[i]);
        }
    }
    for (int i = 0; i < components; ++i) widths.predictor[i] = bits_of(static_cast<uint32_t>(highest[i] - lowest[i]));

    std::string head, tail;
    put(tail, static_cast<uint32_t>(widths.distance), 1);
    for (int i = 0; i < components; ++i) put(tail, static_cast<uint32_t>(widths.predictor[i]), 1);
    for (int i = 0; i < components; ++i) put(tail, static_cast<uint16_t>(lowest[i]), 2);
    BitWriter writer(tail);
    for (size_t n = 0; n < entries.size(); ++n) {
        writer.put(n ? entries[n].bit - entries[n - 1].bit : 0, widths.distance);
        for (int i = 0; i < components; ++i)
            writer.put(static_cast<uint32_t>(entries[n].predictor[i] - lowest[i]), widths.predictor[i]);
    }
    writer.finish();
    put(head, kVersion, 1);
    put(head, static_cast<uint32_t>(components), 1);
    put(head, static_cast<uint32_t>(step), 2);
    put(head, file_crc, 4);
    const uint32_t crc = crc32c(reinterpret_cast<const uint8_t*>(head.data()), head.size(), 0);
    put(head, crc32c(reinterpret_cast<const uint8_t*>(tail.data()), tail.size(), crc), 4);
    return head + tail;
}

// Entropy-coded bytes from which the time for pairs of symbols comes back (measured: 5,000 to 7,500 at 4:2:0).
constexpr size_t kWorthPairs = 6000;

// Small images mostly share their Huffman tables, and building those takes longer than such an image does.
struct Kept {
    McuTables tables;
    Entropy entropy;
};

Kept& kept() {
    thread_local std::unique_ptr<Kept> mine;
    if (!mine) mine.reset(new Kept);
    return *mine;
}

}  // namespace

Outcome scan_jpeg(const uint8_t* data, size_t size, uint32_t file_crc, Header& header, std::string& entries,
                  int64_t bytes_per_entry) {
    entries.clear();
    Outcome outcome = parse_jpeg(data, size, header);
    Kept& mine = kept();
    const bool is_paired = header.scan_end - header.scan_begin >= kWorthPairs;
    if (outcome.ok()) outcome = make_tables(header, is_paired, mine.tables);
    if (!outcome.ok()) return outcome;
    Entropy& entropy = mine.entropy;
    entropy.start(data, header, mine.tables);
    const int step = choose_step(header, bytes_per_entry);
    std::vector<Entry> found;
    for (int row = 0; row < header.mcu_rows; ++row) {
        for (int column = 0; column < header.mcus_per_row; column += step) {
            if (outcome = entropy.arrive(); !outcome.ok()) return outcome;
            Entry& entry = found.emplace_back();
            entry.bit = static_cast<uint32_t>(entropy.position());
            std::copy_n(entropy.predictors(), header.component_count, entry.predictor);
            if (outcome = entropy.skip(std::min(step, header.mcus_per_row - column)); !outcome.ok()) return outcome;
        }
    }
    entries = pack_entries(found, header.component_count, step, file_crc);
    return {};
}

Outcome check_entries(Bytes bytes, uint32_t file_crc) {
    if (bytes.size == 0) return {};
    const uint8_t* p = bytes.data;
    if (p[0] != kVersion) return bad(Why::entries_version, p[0]);
    if (bytes.size < kHead) return bad(Why::entries_short, static_cast<int64_t>(bytes.size), kHead);
    if (own_crc(p, bytes.size) != little_u32(p + 8)) return bad(Why::entries_crc);
    return little_u32(p + 4) == file_crc ? Outcome{} : bad(Why::entries_other_file);
}

void Entries::trim(size_t limit) {
    if (entries_.capacity() * sizeof(Entry) <= limit) return;
    std::vector<Entry>().swap(entries_);
    per_row_ = 0;
}

Outcome Entries::open(Bytes bytes, const Header& header) {
    per_row_ = 0;
    if (bytes.size == 0) return {};
    const uint8_t* p = bytes.data;
    const int components = header.component_count;
    const size_t head = kHead + 1 + 3 * static_cast<size_t>(components);
    if (bytes.size < head) return bad(Why::entries_short, static_cast<int64_t>(bytes.size), static_cast<int64_t>(head));
    step_ = little_u16(p + 2);
    Widths widths;
    widths.distance = p[kHead];
    bool sound = p[1] == components && step_ >= 1 && widths.distance >= 1 && widths.distance <= 32;
    int lowest[kMaxComponents] = {};
    for (int i = 0; i < components; ++i) {
        widths.predictor[i] = p[kHead + 1 + i];
        lowest[i] = static_cast<int16_t>(little_u16(p + kHead + 1 + components + 2 * i));
        sound = sound && widths.predictor[i] <= 16;
    }
    if (!sound) return bad(Why::entries_geometry);
    const int per_row = (header.mcus_per_row + step_ - 1) / step_;
    const int64_t count = static_cast<int64_t>(per_row) * header.mcu_rows;
    const int64_t needed = static_cast<int64_t>(head) + widths.bytes(count);
    if (static_cast<int64_t>(bytes.size) != needed)
        return bad(Why::entries_short, static_cast<int64_t>(bytes.size), needed);

    entries_.resize(static_cast<size_t>(count));
    const Bytes packed{p + head, bytes.size - head};
    const int64_t end = static_cast<int64_t>(header.scan_end - header.scan_begin) * 8;
    const uint64_t distance_mask = (uint64_t{1} << widths.distance) - 1;
    size_t at = 0;
    int64_t bit = 0;
    for (int64_t n = 0; n < count; ++n, at += static_cast<size_t>(widths.bits())) {
        const uint64_t distance = bits_at(packed, at) & distance_mask;
        bit += static_cast<int64_t>(distance);
        if ((distance == 0) != (n == 0) || bit >= end) return bad(Why::entries_offsets, n);
        Entry& entry = entries_[n];
        entry.bit = static_cast<uint32_t>(bit);
        // 48 bits at the most.
        uint64_t values = bits_at(packed, at + static_cast<size_t>(widths.distance));
        for (int i = 0; i < kMaxComponents; ++i) {
            entry.predictor[i] = lowest[i] + static_cast<int>(values & ((uint64_t{1} << widths.predictor[i]) - 1));
            values >>= widths.predictor[i];
        }
    }
    per_row_ = per_row;
    check_step_ = step_ * static_cast<int>(std::clamp<int64_t>(count * kBytesPerEntry * 8 / end, 1, per_row));
    return {};
}

}  // namespace feedrate
