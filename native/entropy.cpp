// SPDX-License-Identifier: Apache-2.0
#include "entropy.h"

#include <algorithm>
#include <cstring>

#include "markers.h"

namespace feedrate {

constexpr size_t kWindow = 16 << 10;  // half of the first-level cache

Outcome make_tables(const Header& header, bool paired, McuTables& tables) {
    tables.block_count = 0;
    tables.is_paired = true;
    tables.component_count = header.component_count;
    for (int i = 0; i < header.component_count; ++i) {
        const Component& c = header.component[i];
        HuffmanTable &dc = tables.dc[c.dc], &ac = tables.ac[c.ac];
        if (!dc.build(header.dc[c.dc], true, false)) return corrupt(Why::huffman_bad, c.dc, 0);
        if (!ac.build(header.ac[c.ac], false, paired)) return corrupt(Why::huffman_bad, c.ac, 1);
        tables.is_paired = tables.is_paired && ac.is_paired;
        for (int k = 0; k < 64; ++k) tables.quant[i][kPlace[k]] = static_cast<int16_t>(header.quant[c.quant][k]);
        tables.advance[i] = 8 * c.h;
        for (int y = 0; y < c.v; ++y)
            for (int x = 0; x < c.h; ++x)
                tables.block[tables.block_count++] = {i, &dc, &ac, tables.quant[i], 8 * x, 8 * y};
    }
    return {};
}

void Entropy::start(const uint8_t* data, const Header& header, const McuTables& tables) {
    header_ = &header;
    tables_ = &tables;
    begin_ = data + header.scan_begin;
    end_ = data + header.scan_end;
    window_.resize(kWindow + kUnstuffSlack + static_cast<size_t>(kMaxMcuBytes) + 16);
    const int none[kMaxComponents] = {};
    seek(0, 0, none, 0);
}

void Entropy::seek(int64_t mcu, uint32_t bit, const int* predictors, int64_t bytes) {
    load(begin_ + bit / 8, bit % 8, static_cast<size_t>(std::max<int64_t>(bytes, 0)));
    mcu_ = arrived_ = mcu;
    std::copy(predictors, predictors + kMaxComponents, stream_.predictor);
}

// Fills the window with about `bytes`, and stands at `bit` of the first.
void Entropy::load(const uint8_t* from, unsigned bit, size_t bytes) {
    const size_t room = std::min(bytes + static_cast<size_t>(kMaxMcuBytes) + 8, kWindow);
    size_t size = 0;
    stop_ = level().unstuff(from, end_, end_, window_.data(), room, size);
    std::fill_n(window_.data() + size, 16, uint8_t{0});
    known_ = 0;
    known_from_ = from;
    stream_.end = window_.data() + size;
    stream_.to_the_end = size < room;
    stream_.in = BitReader();
    stream_.in.at = window_.data();
    stream_.in.refill();
    stream_.in.drop(bit);
}

int64_t Entropy::position() {
    const int64_t size = (stream_.end - window_.data()) * 8;
    const int64_t bit = std::min(size - stream_.bits_left(), size);
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
    if (!stream_.to_the_end) slide();
    if (!stream_.to_the_end || stream_.bits_left() >= 8) return fault(Why::restart_order);
    const uint8_t* at = skip_fill(stop_, end_);
    if (at >= end_) return fault(Why::ends_early);
    if (*at != restart_marker(mcu_ / interval - 1)) return fault(Why::restart_order);
    load(at + 1, 0, kWindow);
    std::fill(stream_.predictor, stream_.predictor + kMaxComponents, 0);
    arrived_ = mcu_;
    return {};
}

// Takes a marker and fills the window, if that must be; brings `until` down to the next marker.
Outcome Entropy::get_ready(int64_t& until) {
    if (const Outcome arrived = arrive(); !arrived.ok()) return arrived;
    if (stream_.bits_left() < stream_.bits_needed()) slide();
    if (const int interval = header_->restart_interval) until = std::min(until, (mcu_ / interval + 1) * interval);
    stream_.bad_code = stream_.bad_dc = false;
    return {};
}

// Whether the stream can go on after fewer MCUs than were wanted.
Outcome Entropy::judge() const {
    if (stream_.bits_left() < 0) {
        // The data stops at a marker: the end of the image, or a restart marker that comes too soon.
        const bool restart = end_ - stop_ > 1 && *stop_ == 0xFF;
        return fault(restart ? Why::restart_order : Why::ends_early);
    }
    if (stream_.bad_code) return fault(Why::bad_code);
    return stream_.bad_dc ? fault(Why::dc_overflow) : Outcome{};
}

Planes Entropy::from_here(const Planes& planes, int64_t first) const {
    Planes moved = planes;
    for (int i = 0; i < header_->component_count; ++i)
        moved.first[i] += planes.first[i] ? (mcu_ - first) * tables_->advance[i] : 0;
    return moved;
}

Outcome Entropy::walk(int64_t count, Blocks blocks, const Planes& planes) {
    const int64_t first = mcu_, stop = mcu_ + count;
    while (mcu_ < stop) {
        int64_t until = stop;
        if (const Outcome outcome = get_ready(until); !outcome.ok()) return outcome;
        const Planes rest = from_here(planes, first);
        const int64_t todo = until - mcu_, done = level().read_mcus(*tables_, stream_, todo, blocks, &rest);
        mcu_ += done;
        if (const Outcome outcome = done < todo ? judge() : Outcome{}; !outcome.ok()) return outcome;
    }
    return {};
}

Outcome Entropy::walk_both(Entropy* both, int64_t count, Blocks blocks, const Planes (&planes)[2]) {
    Entropy &a = both[0], &b = both[1];
    const int64_t first[2] = {a.mcu_, b.mcu_}, stop[2] = {a.mcu_ + count, b.mcu_ + count};
    while (a.mcu_ < stop[0]) {
        int64_t until[2] = {stop[0], stop[1]};
        Outcome outcome = a.get_ready(until[0]);
        if (outcome.ok()) outcome = b.get_ready(until[1]);
        if (!outcome.ok()) return outcome;
        const Planes rest[2] = {a.from_here(planes[0], first[0]), b.from_here(planes[1], first[1])};
        McuStream streams[2] = {a.stream_, b.stream_};
        const int64_t todo = std::min(until[0] - a.mcu_, until[1] - b.mcu_);
        const int64_t done = level().read_mcu_pairs(*a.tables_, streams, todo, blocks, rest);
        a.stream_ = streams[0], b.stream_ = streams[1];
        a.mcu_ += done, b.mcu_ += done;
        if (done < todo) outcome = a.judge();
        if (done < todo && outcome.ok()) outcome = b.judge();
        if (!outcome.ok()) return outcome;
    }
    return {};
}

}  // namespace feedrate
