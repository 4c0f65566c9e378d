// SPDX-License-Identifier: Apache-2.0
// Weights follow Pillow's rule (Resample.c): a curve as wide as the scale, normalised, in fixed point of 22 bits; eight
// bits between the passes. The order of the passes shows in the last bit. Pillow 13 decides by the sizes of the whole
// image and the whole result. Earlier versions begin with the horizontal pass: at most one level of difference, but
// many at edges for filters with weights below zero. Order::across_if_lobes is theirs for those filters alone, which is
// how packs are loaded.
#include "resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "level.h"

namespace feedrate {
namespace {

constexpr int kGroup = 4;  // of taps, in SplitFour

// Lines are made a whole number of chunks long, so that `lower` needs no remainder.
size_t padded(int pixels) { return (static_cast<size_t>(pixels) * 4 + kLineChunk - 1) / kLineChunk * kLineChunk / 4; }

// The curves and their supports, with Pillow's expressions: another order of the same sums would show in the last bit.
constexpr double kPi = 3.14159265358979323846;

double sinc(double x) { return x == 0.0 ? 1.0 : std::sin(x * kPi) / (x * kPi); }

double curve_at(Filter filter, double x) {
    const double far = std::fabs(x);
    switch (filter) {
        case Filter::box: return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
        case Filter::hamming: return far >= 1.0 ? 0.0 : sinc(far) * (0.54f + 0.46f * std::cos(far * kPi));
        case Filter::bicubic:
            if (far < 1.0) return (1.5 * far - 2.5) * far * far + 1;
            return far < 2.0 ? (((far - 5) * far + 8) * far - 4) * -0.5 : 0.0;
        case Filter::lanczos: return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
        default: return far < 1.0 ? 1.0 - far : 0.0;
    }
}

double support_of(Filter filter) {
    switch (filter) {
        case Filter::box: return 0.5;
        case Filter::bicubic: return 2.0;
        case Filter::lanczos: return 3.0;
        default: return 1.0;
    }
}

double support_in(double scale, Filter filter) { return support_of(filter) * std::max(scale, 1.0); }

int32_t to_fixed(double share) { return static_cast<int32_t>((share < 0 ? -0.5 : 0.5) + share * (1 << kWeightBits)); }

Side side_of(int in_size, const Target& target, bool is_down) {
    const int size = is_down ? target.height : target.width;
    if (!target.excerpt) return {in_size, size, 0, static_cast<double>(in_size), {0, size}};
    const Excerpt& e = *target.excerpt;
    const float from = e.reach[is_down], to = e.reach[2 + is_down];
    const Span kept = is_down ? Span{e.window.top, e.window.bottom} : Span{e.window.left, e.window.right};
    return {in_size, is_down ? e.height : e.width, from, to - from, kept};
}

// Of a dimension whose pixels only move, those that stay.
Span moved(const Side& side) {
    const int by = static_cast<int>(side.from);
    return {side.kept.begin + by, side.kept.end + by};
}

}  // namespace

void Taps::make(const Side& side, Filter filter) {
    const int in_size = side.in;
    const double scale = side.length / side.out;
    const double filter_scale = std::max(scale, 1.0);
    const double support = support_in(scale, filter);
    const bool is_nearest = filter == Filter::nearest;
    width = is_nearest ? kGroup : (static_cast<int>(std::ceil(support)) * 2 + kGroup) / kGroup * kGroup;
    const size_t n = static_cast<size_t>(side.kept.end - side.kept.begin);
    most = is_nearest;
    first.resize(n), count.resize(n), weight.assign(n * static_cast<size_t>(width), 0);
    if (is_nearest) {
        // One tap of weight one. Pillow adds the scale up, and rounding adds up with it (Geometry.c).
        double center = side.from + scale * 0.5;
        for (int i = 0; i < side.kept.begin; ++i) center += scale;
        for (size_t i = 0; i < n; ++i, center += scale) {
            first[i] = std::min(static_cast<int>(center), in_size - 1);
            count[i] = 1;
            weight[i * static_cast<size_t>(width)] = 1 << kWeightBits;
        }
        return;
    }
    std::vector<double> w(static_cast<size_t>(width));
    const double step = 1.0 / filter_scale;
    for (size_t i = 0; i < n; ++i) {
        const double center = side.from + (side.kept.begin + static_cast<double>(i) + 0.5) * scale;
        const int low = std::max(static_cast<int>(center - support + 0.5), 0);
        const int high = std::min(static_cast<int>(center + support + 0.5), in_size);
        double total = 0;
        for (int x = 0; x < high - low; ++x) {
            w[x] = curve_at(filter, (x + low - center + 0.5) * step);
            total += w[x];
        }
        for (int x = 0; x < high - low; ++x) {
            const double share = total != 0.0 ? w[x] / total : w[x];
            weight[i * static_cast<size_t>(width) + static_cast<size_t>(x)] = to_fixed(share);
        }
        first[i] = low;
        count[i] = high - low;
        most = std::max(most, count[i]);
    }
}

Span Taps::move_to_first() {
    const Span span{first.front(), first.back() + count.back()};
    for (int& one : first) one -= span.begin;
    return span;
}

void Taps::make_groups() {
    groups = (most + kGroup - 1) / kGroup;
    split.resize(first.size() * static_cast<size_t>(groups));
    const int32_t* from = weight.data();
    SplitFour* to = split.data();
    for (size_t x = 0; x < first.size(); ++x, from += width)
        for (int i = 0; i < groups * kGroup; i += kGroup, ++to)
            for (int k = 0; k < kGroup; ++k) {
                const auto low = static_cast<int16_t>(from[i + k] & 0xFFFF);
                to->high[k] = static_cast<int8_t>((from[i + k] - low) >> 16);
                to->low[k % 2 * 2 + k / 2] = low;
            }
}

int most_taps(int in_size, int out_size, Filter filter) {
    if (in_size == out_size || filter == Filter::nearest) return 1;
    return static_cast<int>(std::ceil(support_in(static_cast<double>(in_size) / out_size, filter))) * 2 + 1;
}

bool is_down_first(int in_width, int in_height, const Target& target) {
    const Side across = side_of(in_width, target, false), down = side_of(in_height, target, true);
    if (across.is_moved() || down.is_moved()) return !down.is_moved();
    const int fewer_rows = in_height - down.out, fewer_columns = in_width - across.out;
    const bool has_lobes = target.filter == Filter::bicubic || target.filter == Filter::lanczos;
    if (target.order == Order::across || (target.order == Order::across_if_lobes && has_lobes)) return false;
    return fewer_rows > 0 && fewer_rows > 2 * fewer_columns;
}

Box Resizer::begin(int in_width, int in_height, const Target& target) {
    const Side across = side_of(in_width, target, false), down = side_of(in_height, target, true);
    target_ = target;
    pushed_ = stored_ = lowered_ = 0;
    horizontal_ = !across.is_moved();
    vertical_ = !down.is_moved();
    lower_first_ = is_down_first(in_width, in_height, target);
    Span columns{0, in_width}, rows{0, in_height};
    size_t spare = 0;  // taps of weight zero may read past the line
    if (horizontal_) {
        across_.make(across, target.filter);
        if (target.excerpt) columns = across_.move_to_first();
        across_.make_groups();
        spare = 4 * static_cast<size_t>(across_.groups);
    } else {
        columns = moved(across);
    }
    in_width_ = columns.end - columns.begin;
    for (auto& line : line_) line.resize(padded(std::max(in_width_, target.width)) + spare);
    for (auto& line : narrow_) line.resize(padded(target.width));
    if (vertical_) {
        down_.make(down, target.filter);
        if (target.excerpt) rows = down_.move_to_first();
        rows_.resize(static_cast<size_t>(down_.most));
        ring_lines_ = down_.most + kLines;  // so many are written at a time
        ring_stride_ = padded(lower_first_ ? in_width_ : target.width);
        ring_.resize(ring_stride_ * static_cast<size_t>(ring_lines_));
    } else {
        rows = moved(down);
    }
    in_height_ = rows.end - rows.begin;
    return {columns.begin, rows.begin, columns.end, rows.end};
}

// Narrows the lines that are in hand, if they are kLines or the last of `all`: into the ring, unless they are the
// vertical pass's own. Returns how many.
int Resizer::shrink_lines(int done, int all) {
    const int count = (done - 1) % kLines + 1;
    if (count < kLines && done < all) return 0;
    const uint32_t* in[kLines];
    uint32_t* out[kLines];
    for (int i = 0; i < kLines; ++i) {
        in[i] = line_[std::min(i, count - 1)].data();  // the last stands in for those that there are not
        out[i] = vertical_ && !lower_first_ ? slot(stored_ + i) : narrow_[i].data();
    }
    level().shrink(in, across_, target_.width, out);
    return count;
}

void Resizer::push() {
    ++pushed_;
    if (lower_first_) {
        ++stored_;
        lower_ready();
        return;
    }
    if (!horizontal_) return emit(line_[(pushed_ - 1) % kLines].data(), pushed_ - 1);
    const int count = shrink_lines(pushed_, in_height_);
    if (vertical_) {
        stored_ += count;
        lower_ready();
        return;
    }
    for (int i = 0; i < count; ++i) emit(narrow_[i].data(), pushed_ - count + i);
}

// Makes the lines of the vertical pass whose taps are all in the ring.
void Resizer::lower_ready() {
    const int width = lower_first_ ? in_width_ : target_.width;
    while (lowered_ < target_.height) {
        const size_t y = static_cast<size_t>(lowered_);
        const int first = down_.first[y], count = down_.count[y];
        if (first + count > stored_) return;
        for (int k = 0; k < count; ++k) rows_[k] = reinterpret_cast<const uint8_t*>(slot(first + k));
        uint32_t* out = line_[lowered_ % kLines].data();
        const int32_t* weight = &down_.weight[y * static_cast<size_t>(down_.width)];
        level().lower(rows_.data(), count, weight, static_cast<int>(padded(width) * 4),
                      reinterpret_cast<uint8_t*>(out));
        ++lowered_;
        if (!lower_first_ || !horizontal_) {
            emit(out, lowered_ - 1);
            continue;
        }
        const int narrowed = shrink_lines(lowered_, target_.height);
        for (int i = 0; i < narrowed; ++i) emit(narrow_[i].data(), lowered_ - narrowed + i);
    }
}

void Resizer::emit(const uint32_t* line, int y) {
    const size_t width = static_cast<size_t>(target_.width), channels = static_cast<size_t>(target_.channels);
    const int row = target_.upside_down ? target_.height - 1 - y : y;
    uint8_t* out = target_.pixels + static_cast<size_t>(row) * width * channels;
    if (channels == 3) return level().pack_rgb(line, width, target_.flip, out);
    for (size_t x = 0; x < width; ++x) out[x] = static_cast<uint8_t>(line[target_.flip ? width - 1 - x : x]);
}

void Resizer::trim(size_t limit) {
    if (ring_.capacity() * 4 > limit) std::vector<uint32_t>().swap(ring_);
    for (auto* lines : {line_, narrow_})
        for (int i = 0; i < kLines; ++i)
            if (lines[i].capacity() * 4 > limit) std::vector<uint32_t>().swap(lines[i]);
    for (Taps* taps : {&across_, &down_})
        if (taps->weight.capacity() * 4 > limit) *taps = Taps();
}

}  // namespace feedrate
