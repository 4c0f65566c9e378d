// SPDX-License-Identifier: Apache-2.0
#include "entropy.h"

#include <algorithm>

namespace feedrate {

namespace {

constexpr size_t kWindow = 16 << 10;  // half of the first-level cache

}  // namespace

Outcome Entropy::start(const uint8_t* data, const Header& header) {
    header_ = &header;
    begin_ = data + header.scan_begin;
    end_ = data + header.scan_end;
    window_.resize(kWindow + kUnstuffSlack + static_cast<size_t>(kMaxMcuBytes) + 16);
    reader_.block_count = 0;
    reader_.component_count = header.component_count;
    bool built_dc[4] = {}, built_ac[4] = {};
    for (int i = 0; i < header.component_count; ++i) {
        const Component& c = header.component[i];
        HuffmanTable &dc = reader_.dc[c.dc], &ac = reader_.ac[c.ac];
        if (!built_dc[c.dc] && !dc.build(header.dc[c.dc], true)) return corrupt(Why::huffman_bad, c.dc, 0);
        if (!built_ac[c.ac] && !ac.build(header.ac[c.ac], false)) return corrupt(Why::huffman_bad, c.ac, 1);
        built_dc[c.dc] = built_ac[c.ac] = true;
        for (int k = 0; k < 64; ++k) reader_.quant[i][kNatural[k]] = static_cast<int16_t>(header.quant[c.quant][k]);
        reader_.advance[i] = 8 * c.h;
        for (int y = 0; y < c.v; ++y)
            for (int x = 0; x < c.h; ++x) reader_.block[reader_.block_count++] = {i, &dc, &ac, reader_.quant[i], 8 * x, 8 * y};
    }
    const int none[kMaxComponents] = {};
    seek(0, 0, none, kWindow);
    return {};
}

void Entropy::seek(int64_t mcu, uint32_t bit, const int* predictors, int64_t bytes) {
    load(begin_ + bit / 8, bit % 8, static_cast<size_t>(std::max<int64_t>(bytes, 0)));
    mcu_ = arrived_ = mcu;
    std::copy(predictors, predictors + kMaxComponents, reader_.predictor);
}

// Fills the window with about `bytes`, and stands at `bit` of the first.
void Entropy::load(const uint8_t* from, unsigned bit, size_t bytes) {
    const size_t room = std::min(bytes + static_cast<size_t>(kMaxMcuBytes) + 8, kWindow);
    size_t size = 0;
    stop_ = level().unstuff(from, end_, window_.data(), room, size);
    std::fill_n(window_.data() + size, 16, uint8_t{0});
    known_ = 0;
    known_from_ = from;
    reader_.end = window_.data() + size;
    reader_.to_the_end = size < room;
    reader_.in = BitReader();
    reader_.in.at = window_.data();
    reader_.in.refill();
    reader_.in.drop(bit);
}

// In bits of the window.
int64_t Entropy::place() { return (reader_.in.at - window_.data()) * 8 - static_cast<int64_t>(reader_.in.bits & 63); }

int64_t Entropy::position() {
    const int64_t bit = std::min(place(), (reader_.end - window_.data()) * 8);
    for (int64_t left = bit / 8 - known_; left > 0;) {
        const auto* found = static_cast<const uint8_t*>(std::memchr(known_from_, 0xFF, static_cast<size_t>(left)));
        const int64_t bytes = found ? found - known_from_ + 1 : left;
        known_from_ += found ? bytes + 1 : bytes;
        known_ += bytes;
        left -= bytes;
    }
    return (known_from_ - begin_) * 8 + bit % 8;
}

void Entropy::slide() {
    const int64_t bit = position();
    load(begin_ + bit / 8, static_cast<unsigned>(bit % 8), kWindow);
}

Outcome Entropy::fault(Why why) const {
    const int64_t row = mcu_ / header_->mcus_per_row;
    // Complete rows for an early end, the number of the row, from one, for the others.
    return corrupt(why, why == Why::ends_early ? row : row + 1, header_->mcu_rows);
}

Outcome Entropy::arrive() {
    const int interval = header_->restart_interval;
    if (!interval || mcu_ % interval || arrived_ == mcu_) return {};
    // What is left before the marker must be the padding of the last byte.
    if (!reader_.to_the_end) slide();
    if (!reader_.to_the_end || reader_.bits_left(reader_.in) >= 8) return fault(Why::restart_order);
    const uint8_t* at = stop_;
    if (at >= end_) return fault(Why::ends_early);
    while (at < end_ && *at == 0xFF) ++at;
    if (at >= end_) return fault(Why::ends_early);
    if (*at != 0xD0 + ((mcu_ / interval - 1) & 7)) return fault(Why::restart_order);
    load(at + 1, 0, kWindow);
    std::fill(reader_.predictor, reader_.predictor + kMaxComponents, 0);
    arrived_ = mcu_;
    return {};
}

Outcome Entropy::walk(int64_t count, Blocks blocks, const Planes* planes) {
    const int interval = header_->restart_interval;
    const int64_t first = mcu_, stop = mcu_ + count;
    const auto read_mcus = level().read_mcus;
    while (mcu_ < stop) {
        const Outcome arrived = arrive();
        if (!arrived.ok()) return arrived;
        if (!reader_.to_the_end && reader_.bits_left(reader_.in) < kMaxMcuBytes * 8) slide();
        const int64_t until = interval ? std::min(stop, (mcu_ / interval + 1) * interval) : stop;
        Planes rest = planes ? *planes : Planes{};
        for (int i = 0; planes && i < header_->component_count; ++i) rest.first[i] += (mcu_ - first) * reader_.advance[i];
        reader_.bad_code = reader_.bad_dc = false;
        const int64_t todo = until - mcu_;
        const int64_t done = read_mcus(reader_, todo, blocks, &rest);
        mcu_ += done;
        if (done == todo) continue;
        if (reader_.bits_left(reader_.in) < 0) {
            // The data stops at a marker: the end of the image, or a restart marker that comes too soon.
            const bool restart = end_ - stop_ > 1 && *stop_ == 0xFF;
            return fault(restart ? Why::restart_order : Why::ends_early);
        }
        if (reader_.bad_code) return fault(Why::bad_code);
        if (reader_.bad_dc) return fault(Why::dc_overflow);
    }
    return {};
}

}  // namespace feedrate
