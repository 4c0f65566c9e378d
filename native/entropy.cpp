// SPDX-License-Identifier: Apache-2.0
#include "entropy.h"

#include <algorithm>

#include "idct.h"

namespace feedrate {

namespace {

// Four or eight vector stores; a memset of this size becomes a slow string instruction in GCC 12.
FEEDRATE_INLINE void clear(int16_t* coefficients) {
    typedef uint64_t Words __attribute__((vector_size(32), may_alias));
    auto* words = reinterpret_cast<Words*>(coefficients);
    for (int i = 0; i < 4; ++i) words[i] = Words{};
}

}  // namespace

Outcome Entropy::start(const uint8_t* data, const Header& header) {
    header_ = &header;
    begin_ = data + header.scan_begin;
    in_ = BitReader();
    in_.end = data + header.scan_end;
    block_count_ = 0;
    bool built_dc[4] = {}, built_ac[4] = {};
    for (int i = 0; i < header.component_count; ++i) {
        const Component& c = header.component[i];
        if (!built_dc[c.dc] && !dc_[c.dc].build(header.dc[c.dc], true)) return corrupt(Why::huffman_bad, c.dc, 0);
        if (!built_ac[c.ac] && !ac_[c.ac].build(header.ac[c.ac], false)) return corrupt(Why::huffman_bad, c.ac, 1);
        built_dc[c.dc] = built_ac[c.ac] = true;
        std::fill(quant_[i], quant_[i] + kBlockSize, uint16_t{0});
        std::copy(header.quant[c.quant], header.quant[c.quant] + 64, quant_[i]);
        for (int y = 0; y < c.v; ++y)
            for (int x = 0; x < c.h; ++x) block_[block_count_++] = {i, &dc_[c.dc], &ac_[c.ac], quant_[i], 8 * x, 8 * y};
    }
    const int none[kMaxComponents] = {};
    seek(0, 0, none);
    return {};
}

void Entropy::seek(int64_t mcu, uint32_t bit, const int* predictors) {
    in_.seek(begin_, bit);
    mcu_ = arrived_ = mcu;
    std::copy(predictors, predictors + kMaxComponents, predictor_);
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
    if (in_.bits - in_.made_up >= 8) return fault(Why::restart_order);
    const uint8_t* at = in_.at;
    if (at >= in_.end) return fault(Why::ends_early);
    if (*at != 0xFF) return fault(Why::restart_order);
    while (at < in_.end && *at == 0xFF) ++at;
    if (at >= in_.end) return fault(Why::ends_early);
    if (*at != 0xD0 + ((mcu_ / interval - 1) & 7)) return fault(Why::restart_order);
    in_.at = at + 1;
    in_.buffer = 0;
    in_.bits = in_.made_up = 0;
    std::fill(predictor_, predictor_ + kMaxComponents, 0);
    arrived_ = mcu_;
    return {};
}

Outcome Entropy::walk(int64_t count, const Planes* planes) {
    const int interval = header_->restart_interval;
    const int64_t first = mcu_, stop = mcu_ + count;
    while (mcu_ < stop) {
        const Outcome arrived = arrive();
        if (!arrived.ok()) return arrived;
        const int64_t until = interval ? std::min(stop, (mcu_ / interval + 1) * interval) : stop;
        Planes rest = planes ? *planes : Planes{};
        for (int i = 0; planes && i < header_->component_count; ++i)
            rest.first[i] += (mcu_ - first) * 8 * header_->component[i].h;
        bool bad_code = false;
        const int64_t todo = until - mcu_;
        const int64_t done = has_avx2() ? run_avx2(todo, planes ? &rest : nullptr, bad_code)
                                        : run_plain(todo, planes ? &rest : nullptr, bad_code);
        mcu_ += done;
        if (done == todo) continue;
        if (in_.overran()) {
            // The data stops at a marker: the end of the image, or a restart marker that comes too soon.
            const bool restart = in_.end - in_.at > 1 && in_.at[0] == 0xFF;
            return fault(restart ? Why::restart_order : Why::ends_early);
        }
        return fault(bad_code ? Why::bad_code : Why::dc_overflow);
    }
    return {};
}

// Returns how many MCUs are good.
template <bool kStore>
FEEDRATE_INLINE int64_t Entropy::run(int64_t count, const Planes* planes, bool& bad_code) {
    BitReader in = in_;
    const Idct idct = choose_idct();
    int64_t done = 0;
    alignas(32) int16_t coefficients[kBlockSize];
    ptrdiff_t advance[kMaxComponents] = {};
    for (int i = 0; i < header_->component_count; ++i) advance[i] = 8 * header_->component[i].h;
    for (; done < count; ++done) {
        for (int i = 0; i < block_count_; ++i) {
            const Block& b = block_[i];
            if (kStore) clear(coefficients);
            const int last = decode_block<kStore>(in, *b.dc, *b.ac, b.quant, predictor_[b.component], coefficients);
            if (FEEDRATE_UNLIKELY(last < 0)) {
                bad_code = true;
                in_ = in;
                return done;
            }
            if (kStore) {
                const ptrdiff_t stride = planes->stride[b.component];
                idct(coefficients, last, planes->first[b.component] + done * advance[b.component] + b.y * stride + b.x, stride);
            }
        }
        bool wild = in.overran();
        for (int i = 0; i < header_->component_count; ++i) wild |= predictor_[i] != static_cast<int16_t>(predictor_[i]);
        if (FEEDRATE_UNLIKELY(wild)) break;
    }
    in_ = in;
    return done;
}

int64_t Entropy::run_plain(int64_t count, const Planes* planes, bool& bad_code) {
    return planes ? run<true>(count, planes, bad_code) : run<false>(count, planes, bad_code);
}

#if FEEDRATE_X86
FEEDRATE_AVX2 int64_t Entropy::run_avx2(int64_t count, const Planes* planes, bool& bad_code) {
    return planes ? run<true>(count, planes, bad_code) : run<false>(count, planes, bad_code);
}
#else
int64_t Entropy::run_avx2(int64_t count, const Planes* planes, bool& bad_code) { return run_plain(count, planes, bad_code); }
#endif

}  // namespace feedrate
