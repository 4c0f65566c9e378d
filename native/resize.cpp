// SPDX-License-Identifier: Apache-2.0
// The rule for the weights is Pillow's (Resample.c): a triangle as wide as the scale, normalised, in fixed point of 22
// bits; eight bits between the passes. Which pass comes first shows in the last bit. The rule is that of Pillow 13, found by
// trying sizes; earlier ones always begin with the horizontal pass, and differ by at most one level.
#include "resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu.h"

#if FEEDRATE_X86
#include <immintrin.h>
#endif

namespace feedrate {

namespace {

constexpr int kPrecision = 32 - 8 - 2;
constexpr int32_t kHalf = 1 << (kPrecision - 1);

// Two lines at once: a pixel of `pair` is one pixel of each. Weights are rounded one by one, so that many of them can add up to
// a little more than one: hence the limit of 255.
void shrink_plain(const uint64_t* pair, const Taps& taps, int out_width, uint32_t* out0, uint32_t* out1) {
    for (int x = 0; x < out_width; ++x) {
        const auto* in = reinterpret_cast<const uint8_t*>(pair + taps.first[static_cast<size_t>(x)]);
        const int32_t* weight = &taps.weight[static_cast<size_t>(x) * static_cast<size_t>(taps.width)];
        const int count = taps.count[static_cast<size_t>(x)];
        int32_t sum[8];
        for (int i = 0; i < 8; ++i) sum[i] = kHalf;
        for (int k = 0; k < count; ++k)
            for (int i = 0; i < 8; ++i) sum[i] += in[8 * k + i] * weight[k];
        uint8_t bytes[8];
        for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(std::min(sum[i] >> kPrecision, 255));
        std::memcpy(out0 + x, bytes, 4);
        std::memcpy(out1 + x, bytes + 4, 4);
    }
}

#if FEEDRATE_X86
// kCount taps for every pixel (0: taps.most), the unused ones of weight zero: a count that changes from pixel to pixel cannot
// be predicted.
template <int kCount>
FEEDRATE_AVX2 void shrink_count(const uint64_t* pair, const Taps& taps, int out_width, uint32_t* out0, uint32_t* out1) {
    const int32_t* weight = taps.weight.data();
    const int* first = taps.first.data();
    const int count = kCount ? kCount : taps.most;
    for (int x = 0; x < out_width; ++x, weight += taps.width) {
        const uint64_t* in = pair + first[x];
        __m256i sum = _mm256_set1_epi32(kHalf);
        for (int k = 0; k < count; ++k) {
            const __m256i pixels = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + k)));
            sum = _mm256_add_epi32(sum, _mm256_mullo_epi32(pixels, _mm256_set1_epi32(weight[k])));
        }
        const __m256i words = _mm256_packs_epi32(_mm256_srai_epi32(sum, kPrecision), _mm256_setzero_si256());
        const __m256i bytes = _mm256_packus_epi16(words, words);
        out0[x] = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm256_castsi256_si128(bytes)));
        out1[x] = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm256_extracti128_si256(bytes, 1)));
    }
}

void shrink_avx2(const uint64_t* pair, const Taps& taps, int out_width, uint32_t* out0, uint32_t* out1) {
    switch (taps.most) {
        case 2: return shrink_count<2>(pair, taps, out_width, out0, out1);
        case 3: return shrink_count<3>(pair, taps, out_width, out0, out1);
        case 4: return shrink_count<4>(pair, taps, out_width, out0, out1);
        case 5: return shrink_count<5>(pair, taps, out_width, out0, out1);
        default: return shrink_count<0>(pair, taps, out_width, out0, out1);
    }
}

// Four pixels at a time; returns how many were written. The store is four bytes longer than the pixels, so the last ones are left.
FEEDRATE_AVX2 size_t pack_rgb_avx2(const uint32_t* line, size_t width, bool flip, uint8_t* out) {
    const __m128i straight = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const __m128i mirrored = _mm_setr_epi8(12, 13, 14, 8, 9, 10, 4, 5, 6, 0, 1, 2, -1, -1, -1, -1);
    size_t x = 0;
    for (; x + 6 <= width; x += 4) {
        const __m128i pixels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(flip ? line + width - 4 - x : line + x));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * x), _mm_shuffle_epi8(pixels, flip ? mirrored : straight));
    }
    return x;
}
#endif

FEEDRATE_INLINE void interleave(const uint32_t* line0, const uint32_t* line1, int width, uint64_t* pair) {
    for (int x = 0; x < width; ++x) pair[x] = line0[x] | static_cast<uint64_t>(line1[x]) << 32;
}

// One output line from `count` lines of `width` bytes.
FEEDRATE_INLINE void lower(const uint8_t* const* rows, int count, const int32_t* weight, int width, uint8_t* out) {
    constexpr int kChunk = 32;
    int32_t sum[kChunk];
    for (int x = 0; x < width; x += kChunk) {
        for (int i = 0; i < kChunk; ++i) sum[i] = kHalf;
        for (int k = 0; k < count; ++k) {
            const uint8_t* in = rows[k] + x;
            for (int i = 0; i < kChunk; ++i) sum[i] += in[i] * weight[k];
        }
        for (int i = 0; i < kChunk; ++i) out[x + i] = static_cast<uint8_t>(std::min(sum[i] >> kPrecision, 255));
    }
}

void lower_plain(const uint8_t* const* rows, int count, const int32_t* weight, int width, uint8_t* out) {
    lower(rows, count, weight, width, out);
}
#if FEEDRATE_X86
FEEDRATE_AVX2 void lower_avx2(const uint8_t* const* rows, int count, const int32_t* weight, int width, uint8_t* out) {
    lower(rows, count, weight, width, out);
}
#else
constexpr auto shrink_avx2 = shrink_plain;
constexpr auto lower_avx2 = lower_plain;
#endif

// Lines are made a whole number of chunks long, so that `lower` needs no remainder.
size_t padded(int pixels) { return (static_cast<size_t>(pixels) + 7) / 8 * 8; }

}  // namespace

void Taps::make(int in_size, int out_size) {
    const double scale = static_cast<double>(in_size) / out_size;
    const double filter_scale = std::max(scale, 1.0);
    const double support = filter_scale;
    width = static_cast<int>(std::ceil(support)) * 2 + 1;
    const size_t n = static_cast<size_t>(out_size);
    most = 0;
    first.resize(n), count.resize(n), weight.assign(n * static_cast<size_t>(width), 0);
    std::vector<double> w(static_cast<size_t>(width));
    const double step = 1.0 / filter_scale;
    for (size_t i = 0; i < n; ++i) {
        const double center = (static_cast<double>(i) + 0.5) * scale;
        const int low = std::max(static_cast<int>(center - support + 0.5), 0);
        const int high = std::min(static_cast<int>(center + support + 0.5), in_size);
        double total = 0;
        for (int x = 0; x < high - low; ++x) {
            const double distance = std::fabs((x + low - center + 0.5) * step);
            w[static_cast<size_t>(x)] = distance < 1.0 ? 1.0 - distance : 0.0;
            total += w[static_cast<size_t>(x)];
        }
        for (int x = 0; x < high - low; ++x) {
            const double share = total != 0.0 ? w[static_cast<size_t>(x)] / total : w[static_cast<size_t>(x)];
            weight[i * static_cast<size_t>(width) + static_cast<size_t>(x)] = static_cast<int32_t>(0.5 + share * (1 << kPrecision));
        }
        first[i] = low;
        count[i] = high - low;
        most = std::max(most, count[i]);
    }
}

void Resizer::begin(int in_width, int in_height, const Target& target) {
    target_ = target;
    in_width_ = in_width;
    in_height_ = in_height;
    pushed_ = stored_ = lowered_ = 0;
    horizontal_ = in_width != target.width;
    vertical_ = in_height != target.height;
    const int fewer_rows = in_height - target.height, fewer_columns = in_width - target.width;
    lower_first_ = vertical_ && (!horizontal_ || (fewer_rows > 0 && fewer_rows > 2 * fewer_columns));
    for (auto& line : line_) line.resize(padded(std::max(in_width, target.width)));
    for (auto& line : narrow_) line.resize(padded(target.width));
    if (horizontal_) {
        across_.make(in_width, target.width);
        // Taps of weight zero may read past the line.
        pair_.resize(padded(in_width) + static_cast<size_t>(across_.most));
    }
    if (vertical_) {
        down_.make(in_height, target.height);
        rows_.resize(static_cast<size_t>(down_.most));
        ring_lines_ = down_.most + 2;  // two are written at a time
        ring_stride_ = padded(lower_first_ ? in_width : target.width);
        ring_.resize(ring_stride_ * static_cast<size_t>(ring_lines_));
    }
}

void Resizer::shrink_pair(const uint32_t* line0, const uint32_t* line1, uint32_t* out0, uint32_t* out1) {
    interleave(line0, line1, in_width_, pair_.data());
    (has_avx2() ? shrink_avx2 : shrink_plain)(pair_.data(), across_, target_.width, out0, out1);
}

void Resizer::push() {
    ++pushed_;
    if (lower_first_) {
        ++stored_;
        lower_ready();
        return;
    }
    if (!horizontal_) return emit(line_[(pushed_ - 1) % 2].data(), pushed_ - 1);
    // Lines are narrowed in pairs; the last of an odd number stands for both.
    if (pushed_ % 2 == 1 && pushed_ < in_height_) return;
    const int count = pushed_ % 2 == 1 ? 1 : 2;
    uint32_t* out[2] = {vertical_ ? slot(stored_) : narrow_[0].data(), vertical_ ? slot(stored_ + 1) : narrow_[1].data()};
    shrink_pair(line_[0].data(), line_[count - 1].data(), out[0], out[1]);
    if (vertical_) {
        stored_ += count;
        lower_ready();
        return;
    }
    for (int i = 0; i < count; ++i) emit(out[i], pushed_ - count + i);
}

// Makes the lines of the vertical pass whose taps are all in the ring.
void Resizer::lower_ready() {
    const int width = lower_first_ ? in_width_ : target_.width;
    while (lowered_ < target_.height) {
        const size_t y = static_cast<size_t>(lowered_);
        const int first = down_.first[y], count = down_.count[y];
        if (first + count > stored_) return;
        for (int k = 0; k < count; ++k) rows_[static_cast<size_t>(k)] = reinterpret_cast<const uint8_t*>(slot(first + k));
        uint32_t* out = line_[lowered_ % 2].data();
        const int32_t* weight = &down_.weight[y * static_cast<size_t>(down_.width)];
        (has_avx2() ? lower_avx2 : lower_plain)(rows_.data(), count, weight, static_cast<int>(padded(width) * 4), reinterpret_cast<uint8_t*>(out));
        ++lowered_;
        if (!lower_first_ || !horizontal_) {
            emit(out, lowered_ - 1);
        } else if (lowered_ % 2 == 0 || lowered_ == target_.height) {
            const int both = lowered_ % 2 == 0 ? 2 : 1;
            shrink_pair(line_[0].data(), line_[both - 1].data(), narrow_[0].data(), narrow_[1].data());
            for (int i = 0; i < both; ++i) emit(narrow_[i].data(), lowered_ - both + i);
        }
    }
}

void Resizer::emit(const uint32_t* line, int y) {
    const size_t width = static_cast<size_t>(target_.width), channels = static_cast<size_t>(target_.channels);
    uint8_t* out = target_.pixels + static_cast<size_t>(y) * width * channels;
    const uint32_t* in = target_.flip ? line + width - 1 : line;
    const ptrdiff_t step = target_.flip ? -1 : 1;
    if (channels == 1) {
        for (size_t x = 0; x < width; ++x, in += step) out[x] = static_cast<uint8_t>(*in);
        return;
    }
    size_t x = 0;
#if FEEDRATE_X86
    if (has_avx2()) x = pack_rgb_avx2(line, width, target_.flip, out);
#endif
    out += 3 * x;
    in += step * static_cast<ptrdiff_t>(x);
    // Four bytes at a time, the fourth is overwritten by the next pixel; the last pixel goes alone.
    for (; x + 1 < width; ++x, in += step, out += 3) std::memcpy(out, in, 4);
    std::memcpy(out, in, 3);
}

void Resizer::trim(size_t limit) {
    if (ring_.capacity() * 4 > limit) std::vector<uint32_t>().swap(ring_);
    for (auto* lines : {line_, narrow_})
        for (int i = 0; i < 2; ++i)
            if (lines[i].capacity() * 4 > limit) std::vector<uint32_t>().swap(lines[i]);
    if (pair_.capacity() * 8 > limit) std::vector<uint64_t>().swap(pair_);
    for (Taps* taps : {&across_, &down_})
        if (taps->weight.capacity() * 4 > limit) *taps = Taps();
}

}  // namespace feedrate
