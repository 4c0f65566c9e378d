// SPDX-License-Identifier: Apache-2.0
#include "gpu_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>

#include "coefficients.h"
#include "crc32c.h"
#include "entries.h"
#include "huffman.h"
#include "level.h"
#include "markers.h"
#include "resize.h"

namespace feedrate {
namespace {

static_assert(sizeof(GpuItem) == 28 && sizeof(GpuGroup) == 12 && sizeof(GpuTile) == 12 && sizeof(GpuImage) % 16 == 0,
              "layout.h has gaps");
static_assert(kGpuMaxBlocks == kMaxBlocks && kGpuWeightBits == kWeightBits, "layout.h differs from the kernel");

constexpr int64_t kAlignment = 256;  // of the parts of what is staged
constexpr int64_t kNoEnd = 0xFFFFFFFF;
constexpr size_t kKeptBytes = size_t{4} << 20;  // of memory that a thread reads files into

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// False when the counts do not make a prefix code, or a DC symbol is not a size (as HuffmanTable::build has it).
bool copy_code(const HuffmanSpec& spec, bool dc, GpuCode& to) {
    int code = 0;
    for (int length = 1; length <= 16; ++length, code <<= 1) {
        code += spec.counts[length - 1];
        if (code >= 1 << length) return false;
    }
    std::memcpy(to.counts, spec.counts, 16);
    std::memcpy(to.symbols, spec.symbols, static_cast<size_t>(spec.symbol_count));
    return !dc ||
           std::all_of(spec.symbols, spec.symbols + spec.symbol_count, [](uint8_t symbol) { return symbol <= 15; });
}

// The tables of all components as two pairs; false where there are more, or one is no code.
bool copy_codes(const Header& header, GpuImage& image) {
    int pairs = 0, dc[2] = {}, ac[2] = {};
    for (int i = 0; i < header.component_count; ++i) {
        const Component& c = header.component[i];
        int pair = 0;
        while (pair < pairs && (dc[pair] != c.dc || ac[pair] != c.ac)) ++pair;
        if (pair == 2) return false;
        if (pair == pairs) {
            dc[pairs] = c.dc, ac[pairs] = c.ac;
            if (!copy_code(header.dc[c.dc], true, image.code[2 * pair]) ||
                !copy_code(header.ac[c.ac], false, image.code[2 * pair + 1]))
                return false;
            ++pairs;
        }
        image.component[i].pair = pair;
    }
    return true;
}

// False: a predictor is beyond 16 bits, which no block can have.
bool copy_predictors(const Entry& entry, short* to) {
    bool fits = true;
    for (int i = 0; i < kMaxComponents; ++i) {
        to[i] = static_cast<short>(entry.predictor[i]);
        fits = fits && to[i] == entry.predictor[i];
    }
    return fits;
}

// Sets what is the file's and the window's. False: it is of an unusual kind.
bool describe(const Header& header, Span rows, Span columns, GpuImage& image) {
    image = GpuImage();
    if (!copy_codes(header, image)) return false;
    image.components = header.component_count;
    image.half_width = header.half_width, image.half_height = header.half_height;
    int64_t blocks = 0;
    for (int n = 0; n < header.component_count; ++n) {
        const Component& from = header.component[n];
        GpuComponent& c = image.component[n];
        for (int k = 0; k < 64; ++k) image.quant[n][kNatural[k]] = header.quant[from.quant][k];
        c.h = from.h, c.v = from.v, c.width = from.width, c.height = from.height;
        c.wide = (columns.end - columns.begin) * c.h;
        c.first_block = static_cast<int>(blocks);
        c.plane = static_cast<int>(blocks * 64);
        c.left = columns.begin * 8 * c.h, c.top = rows.begin * 8 * c.v;
        image.blocks_per_mcu += c.h * c.v;
        blocks += static_cast<int64_t>(c.wide) * (rows.end - rows.begin) * c.v;
        if (blocks * 64 > INT32_MAX) return false;
    }
    image.blocks = static_cast<int>(blocks);
    return true;
}

// An even number: lines are resized two at a time.
int tile_lines(const GpuImage& image) { return std::max(kGpuTilePixels / image.width / 2, 1) * 2; }

bool is_inside(const Box& box, const Header& header) {
    return check_box(box, header.width, header.height).ok() && box.pixels() <= kMaxCropPixels / 2;
}

Box box_of(const GpuRequest& r, int64_t i) {
    return {r.boxes[4 * i], r.boxes[4 * i + 1], r.boxes[4 * i + 2], r.boxes[4 * i + 3]};
}

// Copies entropy-coded bytes without their stuffing, and tells where each goes. Never more is written than the bytes
// that were begun, which are also the room for them: entry points and markers are the file maker's, and may stand
// anywhere.
class Unstuffing {
public:
    explicit Unstuffing(uint8_t* out) : to_(out) {}
    // Goes on with the bytes from `from` to `limit`; what was reached must have been finished.
    void begin(const uint8_t* from, const uint8_t* limit) {
        limit_ = limit;
        go_on(from);
    }
    // Passes over what lies before `from`, such as a marker.
    void go_on(const uint8_t* from) { first_ = from_ = from; }
    // Where the byte at `target` goes; null when a marker stands before it, or it is a stuffed zero. It is not before
    // the one that was reached last.
    uint8_t* reach(const uint8_t* target) {
        if (from_ < target) copy(target);
        const bool is_stuffing = target > first_ && target < limit_ && target[-1] == 0xFF && *target == 0;
        return from_ < target || is_stuffing ? nullptr : to_ - (from_ - target);
    }
    // Where the next marker, or the end of what was begun, would go.
    uint8_t* reach_marker() {
        copy(limit_);
        return to_;
    }
    // Where a copy stopped that came to no end.
    const uint8_t* marker() const { return from_; }
    // What lies behind `target`, which was reached, is not wanted; the next byte goes to where this returns.
    uint8_t* finish(const uint8_t* target) {
        to_ -= from_ - target;
        from_ = target;
        return to_;
    }
    // Skips `count` bytes, then up to a multiple of four.
    void pad(uint8_t* origin, int64_t count) { to_ = origin + round_up(to_ + count - origin, 4); }
    uint8_t* at() const { return to_; }

private:
    void copy(const uint8_t* target) {
        size_t size = 0;
        from_ = unstuff_(from_, target, limit_, to_, static_cast<size_t>(limit_ - from_), size);
        to_ += size;
    }

    decltype(Level::unstuff) unstuff_ = level().unstuff;
    const uint8_t *first_ = nullptr, *limit_ = nullptr,
                  *from_ = nullptr;  // all before `from_` is copied to before `to_`
    uint8_t* to_;
};

struct Found {
    Bytes image, entries;
    uint32_t crc = 0;
};

// Until the thread finds those of the next file. False when there are no entry points, or something cannot be read, or
// is not what it was.
bool find_bytes(const GpuRequest& r, int64_t number, Found& found) {
    if (r.inputs) {
        Input& input = r.inputs[number];
        if (!input.prepare(r.bytes_per_entry)) return false;
        found = {input.file, input.entries, input.crc};
        return found.entries.size != 0;
    }
    const auto read = [&](const Ranges& ranges, Buffer& to, Bytes& bytes) {
        const int64_t length = ranges.length[number];
        const bool is_read = r.disk->read(ranges.file[number], ranges.offset[number], length, to).ok();
        if (is_read) bytes = {to.data(), static_cast<size_t>(length)};
        return is_read;
    };
    thread_local Buffer file, points;
    file.trim(kKeptBytes), points.trim(kKeptBytes);
    if (r.entry_ranges.length[number] <= 0 || !read(r.entry_ranges, points, found.entries)) return false;
    found.crc = r.images.crc[number];
    return read(r.images, file, found.image) && crc32c(found.image.data, found.image.size, 0) == found.crc;
}

// What is staged of a file: the bytes from one entry point to the next, under a window.
struct Scan {
    const uint8_t *begin = nullptr, *limit = nullptr;
    int restart_interval = 0, mcus_per_row = 0, first_row = 0, first_column = 0;
    std::vector<GpuItem> runs;     // `word` and `end`: bits in the entropy-coded data
    int64_t items = 0, bytes = 0;  // room for what is staged, at the most

    bool find_runs(Bytes file, const Header& header, const Entries& entries, Span rows, Span columns);
    bool stage(uint8_t* to, int64_t word, GpuItem* out, size_t& count) const;
};

// Sets the runs under a window, and the room for them. False: no block has such predictors.
bool Scan::find_runs(Bytes file, const Header& header, const Entries& entries, Span rows, Span columns) {
    begin = file.data + header.scan_begin, limit = file.data + header.scan_end;
    restart_interval = header.restart_interval, mcus_per_row = header.mcus_per_row;
    first_row = rows.begin, first_column = columns.begin;
    runs.clear();
    items = 0, bytes = 4 * (rows.end - rows.begin);  // of padding
    const int step = entries.step();
    for (int row = rows.begin; row < rows.end; ++row) {
        int64_t at = entries.number(row, columns.begin);
        for (int column = columns.begin / step * step; column < columns.end; column += step, ++at) {
            const Entry& entry = entries.at(at);
            const int stop = std::min(column + step, header.mcus_per_row), end = std::min(stop, columns.end);
            // In its place: small parts of a copy, put together, would have to be waited for.
            GpuItem& item = runs.emplace_back();
            item.row = static_cast<unsigned short>(row - rows.begin);
            item.column = static_cast<short>(column - columns.begin);
            item.count = static_cast<unsigned short>(end - column);
            item.word = entry.bit;
            item.end = static_cast<unsigned>(kNoEnd);
            bool fits = copy_predictors(entry, item.predictor);
            int64_t between;
            if (at + 1 < entries.count()) {
                const Entry& next = entries.at(at + 1);
                item.end = next.bit;
                item.how_it_ends = end == stop ? kGpuEndsAt : kGpuEndsBefore;
                fits = copy_predictors(next, item.end_predictor) && fits;
                between = next.bit / 8 - entry.bit / 8;
            } else {
                const uint8_t* from = begin + entry.bit / 8;
                limit = find_marker(from, limit, false);
                between = limit - from;
            }
            if (!fits) return false;
            int64_t parts = 1;
            if (const int every = restart_interval) {
                const int64_t first = static_cast<int64_t>(row) * header.mcus_per_row + column;
                parts += (first + item.count - 1) / every - first / every;
            }
            items += parts;
            bytes += between;
        }
    }
    return true;
}

// Writes the items and their bytes; false when a marker stands where none may, or is missing. The bytes begin at `word`
// of all. Their room follows from find_runs: of every row the distance from its first entry point to the
// one behind it, and four bytes more. No byte outside this distance is copied.
bool Scan::stage(uint8_t* to, int64_t word, GpuItem* out, size_t& count) const {
    count = 0;
    const int every = restart_interval;
    const auto end_of = [&](const GpuItem& run) { return run.end != kNoEnd ? begin + run.end / 8 : limit; };
    Unstuffing in(to);
    const GpuItem* last = nullptr;  // of the row
    for (const GpuItem& run : runs) {
        const uint8_t *from = begin + run.word / 8, *end = end_of(run);
        const bool has_end = run.end != kNoEnd, is_exact = run.how_it_ends == kGpuEndsAt;
        if (!last || run.row != last->row) {
            for (last = &run; last != &runs.back() && last[1].row == run.row;) ++last;
            in.begin(from, end_of(*last));
        }
        const uint8_t* at = in.reach(from);
        if (!at) return false;
        int64_t mcu = static_cast<int64_t>(first_row + run.row) * mcus_per_row + first_column + run.column;
        GpuItem* item = out + count;
        *item = run;
        unsigned first_bit = run.word % 8;
        for (int left = run.count; left > 0;) {
            const int64_t until = every ? std::min(mcu + left, (mcu / every + 1) * every) : mcu + left;
            left -= static_cast<int>(until - mcu);
            item->count = static_cast<unsigned short>(until - mcu);
            item->how_it_ends = run.how_it_ends;
            item->word = static_cast<unsigned>(word + (at - to) / 4);
            const int64_t aside = (at - to) % 4;  // bytes of the word before the item's first
            item->first_bit = static_cast<unsigned char>(aside * 8 + first_bit);
            const bool is_marker_due = every && until % every == 0 && (left || is_exact);
            const uint8_t* stop = is_marker_due ? in.reach_marker() : in.reach(end);
            const bool is_at_end = stop && has_end && !is_marker_due;
            if (!stop) {
                // A marker behind what the crop needs does not matter: the decoder stops before it, or refuses.
                if (is_exact) return false;
                stop = in.reach_marker();
            }
            item->end = static_cast<unsigned>((stop - at + aside) * 8);
            if (is_marker_due) {
                in.finish(in.marker());
                const uint8_t *row_end = end_of(*last), *marker = skip_fill(in.marker(), row_end);
                if (marker >= row_end || *marker != restart_marker(until / every - 1)) return false;
                item->how_it_ends = kGpuEndsPadded;
                in.go_on(marker + 1);
                at = in.at();
                // The next entry point stands behind the marker, and begins anew.
                const bool is_anew =
                    marker + 1 == end && run.end % 8 == 0 &&
                    std::all_of(run.end_predictor, run.end_predictor + 3, [](short p) { return p == 0; });
                if (!left && !is_anew) return false;
            } else if (is_at_end) {
                // The byte of the last bits may begin a marker only where the crop does not need those bits.
                const bool is_marker = run.end % 8 && *end == 0xFF && (limit - end < 2 || end[1] != 0);
                if (is_marker && is_exact) return false;
                if (!is_marker) item->end += run.end % 8;
            }
            ++count;
            mcu = until;
            if (left == 0) break;
            item[1] = item[0];
            ++item;
            item->column = static_cast<short>(item->column + item->count);
            first_bit = 0;
            std::fill_n(item->predictor, 3, short{0});
        }
        // The last of its row: its bytes to the end, and what is begun of the next.
        if (&run == last) {
            const bool is_open = in.reach(end) != nullptr;
            in.finish(is_open ? end : in.marker());
            if (is_open && end < limit) *in.at() = *end;
            in.pad(to, is_open && end < limit);
        }
    }
    return true;
}

}  // namespace

int64_t GpuSizes::memory(int height, int width) const {
    const int64_t tables = images * kGpuPairs * kGpuPairWords * 4, bounds = images * 2 * (height + width) * 4;
    return staged + words + std::max(blocks * 128, (pixels + between) * 4) + samples + weights * 4 + tables + bounds;
}

// Sets what belongs to one crop alone: its place and its resize.
void GpuPlan::place(const GpuRequest& r, int64_t i, size_t leader) {
    const auto sample_of = [&](size_t crop) { return r.samples ? r.samples[crop] : static_cast<int>(crop); };
    Sample& s = samples_[i];
    GpuImage& image = s.image;
    const Box box = box_of(r, i);
    const auto filter = static_cast<Filter>(r.filters[i]);
    const Target target{nullptr, r.height, r.width, 3, r.flips[i] != 0, filter, order_of(r.before_13)};
    s.leader = leader;
    image.sample = sample_of(static_cast<size_t>(i)), image.leader = sample_of(leader);
    image.left = box.left, image.top = box.top, image.width = box.right - box.left, image.height = box.bottom - box.top;
    image.flip = target.flip, image.filter = r.filters[i],
    image.down_first = is_down_first(image.width, image.height, target);
    image.taps[0] = most_taps(image.width, r.width, filter), image.taps[1] = most_taps(image.height, r.height, filter);
    s.tiles = (image.height + tile_lines(image) - 1) / tile_lines(image);
    s.pixels = static_cast<int64_t>(image.width) * image.height;
    // Whole quadruples, which are one load.
    s.between = round_up(
        static_cast<int64_t>(image.down_first ? image.width : r.width) * (image.down_first ? r.height : image.height),
        4);
    s.weights = static_cast<int64_t>(image.taps[0]) * r.width + static_cast<int64_t>(image.taps[1]) * r.height;
    s.is_found = true;
}

// Looks at the crops of one file.
void GpuPlan::look_at(const GpuRequest& r, const int64_t* crops, int64_t count) {
    Found found;
    if (!find_bytes(r, r.file_of[*crops], found)) return;
    const Bytes file = found.image;
    Header header;
    thread_local Entries kept;
    Entries& entries = kept;
    if (!check_entries(found.entries, found.crc).ok() || !parse_jpeg(file.data, file.size, header, false).ok()) return;
    if (!is_possible(header) || !entries.open(found.entries, header).ok()) return;
    const Box all{0, 0, header.width, header.height};
    if (r.most_pixels >= all.pixels())
        for (int64_t n = 0; n < count; ++n) std::memcpy(r.boxes + 4 * crops[n], &all, sizeof(all));
    const int64_t* const end = crops + count;
    const auto fits = [&](int64_t i) { return is_inside(box_of(r, i), header); };
    const int64_t* const first = std::find_if(crops, end, fits);
    if (first == end) return;
    Box window = box_of(r, *first);
    for (const int64_t* other = first + 1; other < end; ++other) {
        const Box box = box_of(r, *other);
        if (!is_inside(box, header)) continue;
        window.left = std::min(window.left, box.left), window.right = std::max(window.right, box.right);
        window.top = std::min(window.top, box.top), window.bottom = std::max(window.bottom, box.bottom);
    }
    Sample& s = samples_[*first];
    const Span rows = needed_rows(window, header), columns = needed_columns(window, header);
    thread_local Scan scan;
    if (!describe(header, rows, columns, s.image) || !scan.find_runs(file, header, entries, rows, columns)) return;
    s.blocks = s.image.blocks, s.samples = s.blocks * 64;
    const auto leader = static_cast<size_t>(*first);
    place(r, *first, leader);
    const int64_t room = round_up(scan.bytes, 16), at = words_.fetch_add(room);
    s.words_end = at + room;
    if (s.words_end <= r.words_room - kGpuReadAhead) {
        size_t count = 0;
        s.items.resize(static_cast<size_t>(scan.items));
        const bool is_sound = scan.stage(r.words + at, at / 4, s.items.data(), count);
        if (!is_sound) s.image.status = kGpuRefused;
        s.items.resize(is_sound ? count : 0);
    }
    s.groups = std::max<int64_t>(round_up(static_cast<int64_t>(s.items.size()), kGpuGroupItems) / kGpuGroupItems, 1);
    for (const int64_t* other = first + 1; other < end; ++other)
        if (fits(*other)) {
            samples_[*other].share(s);
            place(r, *other, leader);
        }
}

// Takes the blocks of another crop of the file, whose window holds this one.
void GpuPlan::Sample::share(const Sample& other) {
    image = other.image;
    image.blocks = 0;
    groups = blocks = samples = 0;
    words_end = other.words_end;
    items.clear();
}

void GpuPlan::sort_by_file(const GpuRequest& r) {
    crops_.resize(count_);
    std::iota(crops_.begin(), crops_.end(), 0);
    std::stable_sort(crops_.begin(), crops_.end(), [&](int64_t a, int64_t b) { return r.file_of[a] < r.file_of[b]; });
    first_crop_.clear();
    for (size_t n = 0; n < count_; ++n)
        if (n == 0 || r.file_of[crops_[n]] != r.file_of[crops_[n - 1]]) first_crop_.push_back(static_cast<int64_t>(n));
}

bool GpuPlan::look(const GpuRequest& r, Pool* pool, Taken* taken) {
    sizes_ = GpuSizes();  // nothing can be filled unless this comes to its end
    words_ = 0;
    count_ = static_cast<size_t>(r.count);
    if (samples_.size() < count_) samples_.resize(count_);
    for (size_t i = 0; i < count_; ++i)
        samples_[i].is_found = samples_[i].is_taken = samples_[i].is_short_of_memory = false;
    sort_by_file(r);
    const auto files = static_cast<int64_t>(first_crop_.size());
    first_crop_.push_back(r.count);
    const bool open = for_each(files, pool, [&](int64_t n) {
        const int64_t* crops = crops_.data() + first_crop_[n];
        try {
            look_at(r, crops, first_crop_[n + 1] - first_crop_[n]);
        } catch (const std::bad_alloc&) {
            samples_[*crops].is_short_of_memory = true;
        }
    });
    if (!open) return false;
    for (size_t i = 0; i < count_; ++i)
        if (samples_[i].is_short_of_memory) throw std::bad_alloc();
    lay_out(r, taken);
    return true;
}

void GpuPlan::components(uint8_t* out, size_t samples) const {
    std::fill_n(out, samples, uint8_t{0});
    for (size_t i = 0; i < count_; ++i) {
        const GpuImage& image = samples_[i].image;
        if (samples_[i].is_taken && static_cast<size_t>(image.sample) < samples)
            out[image.sample] = static_cast<uint8_t>(image.components);
    }
}

// Gives each crop its place in what is staged and in the buffers, as long as there is room.
void GpuPlan::lay_out(const GpuRequest& r, Taken* taken) {
    int64_t items = 0;
    for (size_t i = 0; i < count_; ++i) {
        Sample& s = samples_[i];
        taken[i] = s.is_found ? Taken::has_no_room : Taken::no;
        Sample& leader = samples_[s.leader];  // of a lower number, or this one
        if (!s.is_found || (&leader != &s && !leader.is_taken)) continue;
        GpuSizes more = sizes_;
        GpuImage& image = s.image;
        s.number = static_cast<int>(more.images++);
        s.first_group = more.groups, s.first_tile = more.tiles, s.first_item = items;
        image.first_block = more.blocks, image.pixels = more.pixels, image.between = more.between;
        image.samples = &leader == &s ? more.samples : leader.image.samples;
        image.weights[0] = more.weights,
        image.weights[1] = more.weights + static_cast<int64_t>(image.taps[0]) * r.width;
        more.groups += s.groups, more.tiles += s.tiles;
        more.blocks += s.blocks, more.samples += s.samples, more.pixels += s.pixels, more.between += s.between,
            more.weights += s.weights;
        more.words = std::max(more.words, round_up(s.words_end + kGpuReadAhead, kAlignment));
        const int64_t more_items = items + static_cast<int64_t>(s.items.size());
        more.groups_at = round_up(more.images * static_cast<int64_t>(sizeof(GpuImage)), kAlignment);
        more.tiles_at = round_up(more.groups_at + more.groups * static_cast<int64_t>(sizeof(GpuGroup)), kAlignment);
        more.items_at = round_up(more.tiles_at + more.tiles * static_cast<int64_t>(sizeof(GpuTile)), kAlignment);
        more.staged = round_up(more.items_at + more_items * static_cast<int64_t>(sizeof(GpuItem)), kAlignment);
        s.is_taken = s.words_end <= r.words_room - kGpuReadAhead && s.words_end / 4 <= INT32_MAX &&
                     more.memory(r.height, r.width) <= r.most_memory && more_items <= INT32_MAX &&
                     more.tiles <= INT32_MAX;
        if (!s.is_taken) continue;
        taken[i] = Taken::yes;
        sizes_ = more;
        items = more_items;
    }
    sizes_.words = std::min(sizes_.words, r.words_room);
}

void GpuPlan::fill_one(const Sample& s, uint8_t* staged) const {
    const GpuImage& image = s.image;
    std::memcpy(staged + static_cast<size_t>(s.number) * sizeof(GpuImage), &image, sizeof(GpuImage));
    std::copy(s.items.begin(), s.items.end(), reinterpret_cast<GpuItem*>(staged + sizes_.items_at) + s.first_item);
    auto* group = reinterpret_cast<GpuGroup*>(staged + sizes_.groups_at) + s.first_group;
    const auto count = static_cast<int64_t>(s.items.size());
    for (int64_t n = 0; n < s.groups; ++n) {
        const int64_t first = count * n / s.groups, end = count * (n + 1) / s.groups;
        group[n] = {s.number, static_cast<int>(s.first_item + first), static_cast<int>(end - first)};
    }
    auto* tile = reinterpret_cast<GpuTile*>(staged + sizes_.tiles_at) + s.first_tile;
    const int lines = tile_lines(image);
    for (int y = 0; y < image.height; y += lines) *tile++ = {s.number, y, std::min(lines, image.height - y)};
}

bool GpuPlan::fill(Pool* pool, uint8_t* staged) const {
    return for_each(static_cast<int64_t>(count_), pool, [&](int64_t i) {
        if (samples_[i].is_taken) fill_one(samples_[i], staged);
    });
}

}  // namespace feedrate
