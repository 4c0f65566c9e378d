// SPDX-License-Identifier: Apache-2.0
#include "entries.h"

#include <algorithm>

#include "crc32c.h"

namespace feedrate {

namespace {

constexpr int kVersion = 1;
constexpr size_t kHeaderSize = 24, kChecked = 20;
// Entries this far apart cost less than 1 % of a photograph; halving the distance saves 2 % of the decoding.
constexpr int64_t kBytesPerEntry = 1500;

int entry_size(int components) { return 4 + 2 * components; }

void put(std::string& to, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) to.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

uint32_t get(const uint8_t* from, int bytes) {
    uint32_t value = 0;
    for (int i = 0; i < bytes; ++i) value |= static_cast<uint32_t>(from[i]) << (8 * i);
    return value;
}

uint32_t own_crc(const uint8_t* bytes, size_t size) {
    return crc32c(bytes + kHeaderSize, size - kHeaderSize, crc32c(bytes, kChecked, 0));
}

Outcome bad(Why why, int64_t a = 0, int64_t b = 0) { return {Status::bad_entries, why, a, b}; }

}  // namespace

EntriesWriter::EntriesWriter(const Header& header) : header_(header) {
    const int64_t scan_bytes = static_cast<int64_t>(header.scan_end - header.scan_begin);
    const int64_t per_row = (scan_bytes / header.mcu_rows + kBytesPerEntry / 2) / kBytesPerEntry;
    const int64_t parts = std::min<int64_t>(std::max<int64_t>(per_row, 1), header.mcus_per_row);
    step_ = static_cast<int>((header.mcus_per_row + parts - 1) / parts);
    bytes_.assign(kHeaderSize, '\0');
}

void EntriesWriter::add(uint32_t bit, const int* predictors) {
    put(bytes_, bit, 4);
    for (int i = 0; i < header_.component_count; ++i) put(bytes_, static_cast<uint16_t>(predictors[i]), 2);
}

std::string EntriesWriter::finish(const uint8_t* data, size_t size) {
    std::string head;
    put(head, kVersion, 1);
    put(head, static_cast<uint32_t>(header_.component_count), 1);
    put(head, static_cast<uint32_t>(step_), 2);
    put(head, static_cast<uint32_t>(size), 4);
    put(head, crc32c(data, size, 0), 4);
    put(head, static_cast<uint32_t>(header_.mcus_per_row), 2);
    put(head, static_cast<uint32_t>(header_.mcu_rows), 2);
    put(head, static_cast<uint32_t>(header_.scan_begin), 4);
    bytes_.replace(0, kChecked, head);
    head.clear();
    put(head, own_crc(reinterpret_cast<const uint8_t*>(bytes_.data()), bytes_.size()), 4);
    bytes_.replace(kChecked, 4, head);
    return bytes_;
}

Outcome check_entries(Bytes bytes, size_t file_size, uint32_t file_crc) {
    if (bytes.size == 0) return {};
    const uint8_t* p = bytes.data;
    if (p[0] != kVersion) return bad(Why::entries_version, p[0]);
    if (bytes.size < kHeaderSize) return bad(Why::entries_short, static_cast<int64_t>(bytes.size), kHeaderSize);
    if (own_crc(p, bytes.size) != get(p + 20, 4)) return bad(Why::entries_crc);
    const bool same_file = get(p + 4, 4) == file_size && get(p + 8, 4) == file_crc;
    return same_file ? Outcome{} : bad(Why::entries_other_file);
}

Outcome Entries::open(Bytes bytes, const Header& header) {
    if (bytes.size == 0) return {};
    const uint8_t* p = bytes.data;
    components_ = p[1];
    step_ = static_cast<int>(get(p + 2, 2));
    if (components_ != header.component_count || step_ < 1 || static_cast<int>(get(p + 12, 2)) != header.mcus_per_row ||
        static_cast<int>(get(p + 14, 2)) != header.mcu_rows || get(p + 16, 4) != header.scan_begin)
        return bad(Why::entries_geometry);
    const int per_row = (header.mcus_per_row + step_ - 1) / step_;
    const int64_t count = static_cast<int64_t>(per_row) * header.mcu_rows;
    const int64_t needed = static_cast<int64_t>(kHeaderSize) + count * entry_size(components_);
    if (static_cast<int64_t>(bytes.size) != needed) return bad(Why::entries_short, static_cast<int64_t>(bytes.size), needed);
    first_ = p + kHeaderSize;
    const int64_t end = static_cast<int64_t>(header.scan_end - header.scan_begin) * 8;
    int64_t before = -1;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t bit = get(first_ + i * entry_size(components_), 4);
        if (bit <= before || bit >= end) return bad(Why::entries_offsets, i);
        before = bit;
    }
    per_row_ = per_row;
    return {};
}

Entry Entries::at(int64_t number) const {
    const uint8_t* p = first_ + number * entry_size(components_);
    Entry entry;
    entry.bit = get(p, 4);
    for (int i = 0; i < components_; ++i) entry.predictor[i] = static_cast<int16_t>(get(p + 4 + 2 * i, 2));
    return entry;
}

}  // namespace feedrate
