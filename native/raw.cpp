// SPDX-License-Identifier: Apache-2.0
#include "raw.h"

#include <algorithm>
#include <cstring>

#include "bytes.h"
#include "colour.h"
#include "crc32c.h"
#include "level.h"

namespace feedrate {
namespace {

constexpr int64_t kHeaderSize = 24, kChecked = 20;
constexpr int64_t kMaxSide = int64_t{1} << 30;  // so that no product below leaves 64 bits

Outcome bad_table(Why why, int64_t a = 0, int64_t b = 0) { return {Status::bad_entries, why, a, b}; }

void write_line(const uint8_t* in, int channels, int count, bool gray, uint32_t* out) {
    if (channels == 1) return write_gray_pixels(in, count, out);
    level().spread_rgb(in, count, out);
    if (gray) make_gray(count, out);
}

}  // namespace

Outcome RawCrop::open(Bytes table, int64_t length, const Box& box) {
    const int64_t size = static_cast<int64_t>(table.size);
    if (size < kHeaderSize) return bad_table(Why::entries_short, size, kHeaderSize);
    const uint8_t* t = table.data;
    if (t[0] != 'R' || t[1] != 1) return bad_table(Why::raw_version, t[0], t[1]);
    if (crc32c(t + kHeaderSize, table.size - kHeaderSize, crc32c(t, kChecked, 0)) != little_u32(t + kChecked))
        return bad_table(Why::entries_crc);
    channels_ = t[2];
    block_rows_ = little_u32(t + 4);
    const int64_t width = little_u32(t + 8), height = little_u32(t + 12), data = little_u32(t + 16);
    if ((channels_ != 1 && channels_ != 3) || t[3] != 0 || width < 1 || height < 1 || width > kMaxSide ||
        height > kMaxSide || block_rows_ < 1 || block_rows_ > height)
        return bad_table(Why::entries_geometry);
    const int64_t blocks = (height + block_rows_ - 1) / block_rows_;
    if (size != kHeaderSize + 4 * blocks) return bad_table(Why::entries_short, size, kHeaderSize + 4 * blocks);
    row_bytes_ = width * channels_;
    if (length != data + height * row_bytes_) return bad_table(Why::raw_length, length, data + height * row_bytes_);

    if (const Outcome inside = check_box(box, width, height); !inside.ok()) return inside;
    const int64_t first_block = box.top / block_rows_, end_block = (box.bottom - 1) / block_rows_ + 1;
    box_ = box;
    crcs_ = t + kHeaderSize + 4 * first_block;
    first_row_ = first_block * block_rows_;
    offset_ = data + first_row_ * row_bytes_;
    size_ = (std::min(end_block * block_rows_, height) - first_row_) * row_bytes_;
    return {};
}

Outcome RawCrop::decode(const uint8_t* bytes, const Target& target, Resizer& resizer) const {
    const int64_t block_bytes = block_rows_ * row_bytes_;
    const uint8_t* crc = crcs_;
    for (int64_t at = 0; at < size_; at += block_bytes, crc += 4) {
        const int64_t length = std::min(block_bytes, size_ - at);
        if (crc32c(bytes + at, static_cast<size_t>(length), 0) != little_u32(crc)) {
            const int64_t row = first_row_ + at / row_bytes_;
            return {Status::crc_mismatch, Why::rows_differ, row, row + length / row_bytes_ - 1};
        }
    }
    const int width = box_.right - box_.left;
    resizer.begin(width, box_.bottom - box_.top, target);
    const uint8_t* in = bytes + (box_.top - first_row_) * row_bytes_ + static_cast<int64_t>(box_.left) * channels_;
    for (int y = box_.top; y < box_.bottom; ++y, in += row_bytes_) {
        write_line(in, channels_, width, target.channels == 1, resizer.line());
        resizer.push();
    }
    return {};
}

}  // namespace feedrate
