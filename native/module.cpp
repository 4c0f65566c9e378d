// SPDX-License-Identifier: Apache-2.0
// The door for Python: hands over pointers and lets go of the GIL. feedrate.kernel has checked shapes, types and
// lengths; an array that it could have got wrong is checked here again by its type.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "batch.h"
#include "coefficients.h"
#include "crc32c.h"
#include "folder.h"
#include "gpu_plan.h"
#include "inputs.h"
#include "jpeg.h"
#include "level.h"
#include "members.h"
#include "recipe.h"
#include "table.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace feedrate;

namespace {

template <class T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Details = Array<int64_t>;  // four numbers per sample: status, reason, a, b

Bytes bytes_of(const Array<const uint8_t>& array) { return {array.data(), array.shape(0)}; }

void need(bool condition, const char* message) {
    if (!condition) throw nb::value_error(message);
}

template <class Work>
auto without_gil(const Work& work) {
    nb::gil_scoped_release release;
    return work();
}

// The same for what returns false when the pool is closed.
template <class Work>
void run_in_pool(const Work& work) {
    need(without_gil(work), "the pool is closed");
}

size_t product(int a, int b, int c) { return static_cast<size_t>(a) * static_cast<size_t>(b) * static_cast<size_t>(c); }

Box box_from(const nb::tuple& box) {
    return {nb::cast<int>(box[0]), nb::cast<int>(box[1]), nb::cast<int>(box[2]), nb::cast<int>(box[3])};
}

// `shape` is height and width, and the channels if these are not given.
Target target_from(const Array<uint8_t>& out, const nb::tuple& shape, int channels, bool flip, int filter,
                   bool before) {
    const auto height = nb::cast<int>(shape[0]), width = nb::cast<int>(shape[1]);
    const bool is_given = channels != 0;
    if (!is_given) channels = nb::cast<int>(shape[2]);
    need(filter >= 0 && filter < kFilters, "filter must be one of Pillow's numbers");
    need(height > 0 && width > 0 && (channels == 1 || channels == 3),
         is_given ? "shape must be height and width" : "shape must be height, width and 1 or 3");
    need(out.shape(0) == product(height, width, channels), "out has the wrong size");
    return {out.data(), height, width, channels, flip, static_cast<Filter>(filter), order_of(before)};
}

// A feedrate.kernel.Recipe's members: mode, crop, size, filter, reach, window, mirrored, upside_down.
Recipe recipe_from(const nb::tuple& given, const Array<uint8_t>& out) {
    need(nb::len(given) == 8, "a recipe has eight members");
    Recipe recipe;
    Excerpt& e = recipe.excerpt;
    const nb::object size = given[2], reach = given[4], window = given[5];
    const auto mode = nb::cast<std::string>(given[0]);
    recipe.channels = mode == "RGB" ? 3 : mode == "L" ? 1 : 0;
    recipe.crop = box_from(nb::cast<nb::tuple>(given[1]));
    recipe.filter = nb::cast<int>(given[3]);
    recipe.mirrored = nb::cast<bool>(given[6]), recipe.upside_down = nb::cast<bool>(given[7]);
    const Box& crop = recipe.crop;
    // Before differences are taken.
    need(crop.left >= 0 && crop.top >= 0 && crop.left < crop.right && crop.top < crop.bottom,
         "the crop is empty, or not inside an image");
    e = {crop.right - crop.left, crop.bottom - crop.top, {}, {}};
    e.reach[2] = static_cast<float>(e.width), e.reach[3] = static_cast<float>(e.height);
    if (!size.is_none()) e.width = nb::cast<int>(size[0]), e.height = nb::cast<int>(size[1]);
    need(reach.is_none() || !size.is_none(), "a recipe of no size has no reach");
    for (int i = 0; i < 4 && !reach.is_none(); ++i) e.reach[i] = static_cast<float>(nb::cast<double>(reach[i]));
    e.window = window.is_none() ? Box{0, 0, e.width, e.height} : box_from(nb::cast<nb::tuple>(window));
    if (const char* fault = recipe.fault()) throw nb::value_error(fault);
    const Target target = recipe.target(nullptr, Order::across);
    need(out.shape(0) == product(target.height, target.width, target.channels), "out has the wrong size");
    return recipe;
}

Order order_from(bool across_first) { return across_first ? Order::across : Order::pillow_13; }

void need_filters(const Array<const uint8_t>& filters, size_t count) {
    const auto is_known = [](uint8_t one) { return one < kFilters; };
    need(filters.shape(0) == count && std::all_of(filters.data(), filters.data() + count, is_known),
         "filters need one of Pillow's numbers per sample");
}

// `starts` divides what has `end` elements into `count` pieces.
void check_starts(const Array<const int64_t>& starts, size_t count, size_t end) {
    need(starts.shape(0) == count + 1 && starts.data()[0] == 0 && starts.data()[count] == static_cast<int64_t>(end),
         "starts do not fit what they divide");
    for (size_t i = 0; i < count; ++i) need(starts.data()[i] <= starts.data()[i + 1], "starts are not in order");
}

Bytes piece_of(const Array<const uint8_t>& whole, const Array<const int64_t>& starts, size_t i) {
    return {whole.data() + starts.data()[i], static_cast<size_t>(starts.data()[i + 1] - starts.data()[i])};
}

struct RangeArrays {
    Array<const int32_t> file;
    Array<const int64_t> offset, length;
    Array<const uint32_t> crc;  // empty: not checked
};

// Called with the GIL held.
Ranges ranges_of(const RangeArrays& arrays, size_t count) {
    need(arrays.file.shape(0) == count && arrays.offset.shape(0) == count && arrays.length.shape(0) == count,
         "ranges differ in length");
    const bool checked = arrays.crc.shape(0) != 0;
    need(!checked || arrays.crc.shape(0) == count, "ranges differ in length");
    return {arrays.file.data(), arrays.offset.data(), arrays.length.data(), checked ? arrays.crc.data() : nullptr};
}

RangeArrays arrays_of(nb::tuple ranges) {
    return {nb::cast<Array<const int32_t>>(ranges[0]), nb::cast<Array<const int64_t>>(ranges[1]),
            nb::cast<Array<const int64_t>>(ranges[2]), nb::cast<Array<const uint32_t>>(ranges[3])};
}

// Too little memory is no fault of a sample: nobody may take it for damage and skip it.
void need_memory(const Outcome& outcome) {
    if (outcome.why != Why::out_of_memory) return;
    PyErr_SetString(PyExc_MemoryError,
                    "out of memory while samples were read and decoded; fewer threads and smaller batches need less");
    throw nb::python_error();
}

void write_details(const std::vector<Outcome>& outcomes, const Details& details) {
    for (size_t i = 0; i < outcomes.size(); ++i) {
        need_memory(outcomes[i]);
        int64_t* to = details.data() + 4 * i;
        to[0] = static_cast<int64_t>(outcomes[i].status);
        to[1] = static_cast<int64_t>(outcomes[i].why);
        to[2] = outcomes[i].a;
        to[3] = outcomes[i].b;
    }
}

nb::tuple as_tuple(const Outcome& o) {
    need_memory(o);
    return nb::make_tuple(static_cast<int>(o.status), o.ok() ? std::string() : words(o));
}

void decode_batch_door(Files& files, nb::tuple images, nb::object entries, Array<const int32_t> boxes,
                       Array<const uint8_t> flips, Array<const uint8_t> filters, bool before_13, Array<uint8_t> out,
                       nb::tuple shape, Array<const uint8_t> raw, Pool* pool, Array<int64_t> bytes_read,
                       Details details) {
    const size_t count = flips.shape(0);
    const auto height = nb::cast<int>(shape[0]), width = nb::cast<int>(shape[1]), channels = nb::cast<int>(shape[2]);
    const RangeArrays image_arrays = arrays_of(images);
    RangeArrays entry_arrays;
    DecodeRequest request{};
    request.count = static_cast<int64_t>(count);
    request.images = ranges_of(image_arrays, count);
    if (!entries.is_none()) {
        entry_arrays = arrays_of(nb::cast<nb::tuple>(entries));
        request.entries = ranges_of(entry_arrays, count);
    }
    need(height > 0 && width > 0 && (channels == 1 || channels == 3), "shape must be height, width and 1 or 3");
    need(boxes.shape(0) == 4 * count && details.shape(0) == 4 * count,
         "boxes and details need four numbers per sample");
    need(out.shape(0) == count * product(height, width, channels), "out has the wrong size");
    need_filters(filters, count);
    need(bytes_read.shape(0) == count && raw.shape(0) == count, "bytes_read and raw need one number per sample");
    request.boxes = const_cast<int32_t*>(boxes.data()), request.flips = flips.data();
    request.filters = filters.data(), request.before_13 = before_13;
    request.height = height, request.width = width, request.channels = channels;
    request.out = out.data(), request.raw = raw.data(), request.bytes_read = bytes_read.data();
    std::vector<Outcome> outcomes(count);
    run_in_pool([&] { return decode_batch(files, request, pool, outcomes.data()); });
    write_details(outcomes, details);
}

void check_ranges_door(Files& files, nb::tuple ranges, Pool* pool, Details details) {
    const size_t count = details.shape(0) / 4;
    need(details.shape(0) == 4 * count, "details need four numbers per range");
    const RangeArrays arrays = arrays_of(ranges);
    const Ranges request = ranges_of(arrays, count);
    std::vector<Outcome> outcomes(count);
    run_in_pool([&] { return check_ranges(files, request, static_cast<int64_t>(count), pool, outcomes.data()); });
    write_details(outcomes, details);
}

void read_ranges_door(Files& files, nb::tuple ranges, Array<const int64_t> starts, Array<uint8_t> buffer, Pool* pool,
                      Details details) {
    need(starts.shape(0) > 0, "starts must have one more number than there are ranges");
    const size_t count = starts.shape(0) - 1;
    const RangeArrays arrays = arrays_of(ranges);
    const Ranges request = ranges_of(arrays, count);
    need(details.shape(0) == 4 * count, "details need four numbers per range");
    int64_t at = 0;
    for (size_t i = 0; i < count; ++i) {
        const bool fits =
            starts.data()[i] == at && request.length[i] >= 0 && !__builtin_add_overflow(at, request.length[i], &at);
        need(fits, "starts do not follow from the lengths");
    }
    need(starts.data()[count] == at && buffer.shape(0) == static_cast<size_t>(at), "the buffer has the wrong size");
    std::vector<Outcome> outcomes(count);
    run_in_pool([&] {
        return read_ranges(files, request, static_cast<int64_t>(count), starts.data(), buffer.data(), pool,
                           outcomes.data());
    });
    write_details(outcomes, details);
}

void gather_rows_door(Files& files, Array<const int32_t> file, Array<const int64_t> row, Array<const int64_t> bases,
                      Array<const int64_t> strides, Array<const int64_t> sizes, Array<uint8_t> out, Details details) {
    const size_t count = file.shape(0), columns = strides.shape(0);
    need(row.shape(0) == count && bases.shape(0) == count * columns && sizes.shape(0) == columns && columns > 0,
         "arrays differ in length");
    RowsRequest request{};
    for (size_t c = 0; c < columns; ++c) {
        need(sizes.data()[c] > 0 && sizes.data()[c] < (1 << 20), "a column has no size");
        request.row_size += sizes.data()[c];
    }
    need(request.row_size >= 4 && out.shape(0) == count * static_cast<size_t>(request.row_size) &&
             details.shape(0) == 4 * count,
         "out has the wrong size");
    request.count = static_cast<int64_t>(count);
    request.columns = static_cast<int>(columns);
    request.file = file.data(), request.row = row.data(), request.bases = bases.data();
    request.strides = strides.data(), request.sizes = sizes.data(), request.out = out.data();
    std::vector<Outcome> outcomes(count);
    without_gil([&] { gather_rows(files, request, outcomes.data()); });
    write_details(outcomes, details);
}

// (status, words, width, height); width and height are 0 when they were not seen.
nb::tuple probe_door(Array<const uint8_t> data) {
    Header header;
    Outcome outcome = parse_jpeg(data.data(), data.shape(0), header);
    if (outcome.ok() && !is_possible(header)) {  // find out how much of it is there
        std::string unused;
        outcome = scan_jpeg(data.data(), data.shape(0), 0, header, unused);
    }
    return nb::make_tuple(static_cast<int>(outcome.status), words(outcome), header.width, header.height);
}

// (status, words, width, height, sampling, entries, end of the image)
nb::tuple scan_door(Array<const uint8_t> data, int64_t bytes_per_entry) {
    need(bytes_per_entry > 0, "bytes_per_entry must be at least 1");
    Header header;
    std::string entries;
    const Bytes file = bytes_of(data);
    const Outcome outcome = without_gil([&] {
        return scan_jpeg(file.data, file.size, crc32c(file.data, file.size, 0), header, entries, bytes_per_entry);
    });
    return nb::make_tuple(static_cast<int>(outcome.status), words(outcome), header.width, header.height,
                          outcome.ok() ? sampling_name(header) : "", nb::bytes(entries.data(), entries.size()),
                          outcome.ok() ? end_of_image(file, header) : 0);
}

nb::tuple decode_one_door(Array<const uint8_t> data, Array<const uint8_t> entries, nb::tuple box, Array<uint8_t> out,
                          nb::tuple shape, bool flip, int filter, bool before_13) {
    const Target target = target_from(out, shape, 0, flip, filter, before_13);
    const Box b = box_from(box);
    return as_tuple(without_gil([&] { return decode_one(bytes_of(data), bytes_of(entries), b, target); }));
}

// `pixels` are RGB, `size` their height and width.
void resize_one_door(Array<const uint8_t> pixels, nb::tuple size, nb::tuple box, Array<uint8_t> out, nb::tuple shape,
                     bool flip, int filter, bool before_13) {
    const auto height = nb::cast<int>(size[0]), width = nb::cast<int>(size[1]);
    const Target target = target_from(out, shape, 3, flip, filter, before_13);
    const Box b = box_from(box);
    need(height > 0 && width > 0 && pixels.shape(0) == product(height, width, 3), "pixels have the wrong size");
    need(b.left >= 0 && b.top >= 0 && b.left < b.right && b.top < b.bottom && b.right <= width && b.bottom <= height,
         "the box is not inside the pixels");
    need_memory(without_gil([&] { return resize_one(pixels.data(), width, b, target); }));
}

nb::tuple draw_door(Array<const uint8_t> data, Array<const uint8_t> entries, nb::tuple recipe, bool across_first,
                    Array<uint8_t> out) {
    const Recipe wanted = recipe_from(recipe, out);
    const Target target = wanted.target(out.data(), order_from(across_first));
    return as_tuple(without_gil([&] { return decode_one(bytes_of(data), bytes_of(entries), wanted.crop, target); }));
}

// The same of pixels of the recipe's mode, `size` their height and width.
void draw_from_door(Array<const uint8_t> pixels, nb::tuple size, nb::tuple recipe, bool across_first,
                    Array<uint8_t> out) {
    const Recipe wanted = recipe_from(recipe, out);
    const Target target = wanted.target(out.data(), order_from(across_first));
    const auto height = nb::cast<int>(size[0]), width = nb::cast<int>(size[1]);
    need(height > 0 && width > 0 && pixels.shape(0) == product(height, width, target.channels),
         "pixels have the wrong size");
    need(wanted.crop.right <= width && wanted.crop.bottom <= height, "the crop is not inside the pixels");
    need_memory(without_gil([&] { return resize_one(pixels.data(), width, wanted.crop, target); }));
}

// `table` has 256 numbers per channel; `planar`: those of one channel together.
void apply_table_door(Array<const uint8_t> pixels, int channels, Array<const float> table, bool planar,
                      Array<float> out) {
    const size_t count = pixels.shape(0);
    need((channels == 1 || channels == 3) && count % static_cast<size_t>(channels) == 0 && out.shape(0) == count &&
             table.shape(0) == 256 * static_cast<size_t>(channels),
         "arrays differ in length");
    nb::gil_scoped_release release;
    apply_table(pixels.data(), count / static_cast<size_t>(channels), channels, table.data(), planar, out.data());
}

// (status, words, seconds up to and including each step)
nb::tuple profile_door(Array<const uint8_t> data, Array<const uint8_t> entries, nb::tuple box, Array<uint8_t> out,
                       nb::tuple shape, int repeats, int filter) {
    const Target target = target_from(out, shape, 3, false, filter, false);
    const Box b = box_from(box);
    StageTimes times{};
    const Outcome outcome =
        without_gil([&] { return profile_one(bytes_of(data), bytes_of(entries), b, target, repeats, times); });
    need_memory(outcome);
    nb::list seconds;
    for (const double value : times.seconds) seconds.append(value);
    return nb::make_tuple(static_cast<int>(outcome.status), words(outcome), seconds);
}

// (status, words, file); the file is empty when the image cannot be turned without loss, too.
nb::tuple to_baseline_door(Array<const uint8_t> data, int orientation) {
    need(orientation >= 1 && orientation <= 8, "orientation must be 1 to 8");
    std::string file;
    const Outcome outcome = without_gil([&] {
        Coefficients image;
        const Outcome read = read_coefficients(data.data(), data.shape(0), image);
        return read.ok() && turn(image, orientation) ? write_baseline(image, file) : read;
    });
    return nb::make_tuple(static_cast<int>(outcome.status), words(outcome), nb::bytes(file.data(), file.size()));
}

std::vector<std::string> strings_of(nb::list list) {
    std::vector<std::string> strings;
    for (nb::handle one : list) strings.emplace_back(nb::cast<nb::bytes>(one).c_str(), nb::cast<nb::bytes>(one).size());
    return strings;
}

template <class T>
nb::bytes bytes_from(const std::vector<T>& values) {
    return nb::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// (errno, names, starts, sizes, times, kinds); all but the first as bytes of arrays. `stop`: one byte, see folder.h.
nb::tuple list_folder_door(nb::bytes path, nb::list suffixes, int most_threads, Array<const uint8_t> stop) {
    need(stop.shape(0) == 1, "stop must be one byte");
    const std::string folder(path.c_str(), path.size());
    const std::vector<std::string> wanted = strings_of(suffixes);
    FolderList list;
    const int error = without_gil([&] { return list_folder(folder, wanted, most_threads, stop.data(), list); });
    return nb::make_tuple(error, nb::bytes(list.names.data(), list.names.size()), bytes_from(list.starts),
                          bytes_from(list.sizes), bytes_from(list.times_ns), bytes_from(list.kinds));
}

void hash_stems_door(Array<const uint8_t> paths, Array<const int64_t> starts, Array<uint64_t> out) {
    check_starts(starts, out.shape(0), paths.shape(0));
    for (size_t i = 0; i < out.shape(0); ++i) out.data()[i] = hash_stem(piece_of(paths, starts, i));
}

size_t find_first_door(Array<const uint8_t> texts, Array<const int64_t> starts) {
    need(starts.shape(0) > 1, "there is no text");
    const size_t count = starts.shape(0) - 1;
    check_starts(starts, count, texts.shape(0));
    const auto text = [&](size_t i) {
        const Bytes one = piece_of(texts, starts, i);
        return std::string_view(reinterpret_cast<const char*>(one.data), one.size);
    };
    size_t first = 0;
    for (size_t i = 1; i < count; ++i)
        if (text(i) < text(first)) first = i;
    return first;
}

// Pieces of `data` one behind the other, `before` in front of each; `out` has room for just that.
void join_pieces_door(Array<const uint8_t> data, Array<const int64_t> starts, Array<const int64_t> lengths,
                      nb::bytes before, Array<uint8_t> out) {
    const size_t count = starts.shape(0);
    need(lengths.shape(0) == count, "starts and lengths differ in length");
    const auto size = static_cast<int64_t>(data.shape(0)), room = static_cast<int64_t>(out.shape(0)),
               head = static_cast<int64_t>(before.size());
    int64_t at = 0;
    for (size_t i = 0; i < count; ++i) {
        const int64_t start = starts.data()[i], length = lengths.data()[i];
        need(start >= 0 && length >= 0 && start <= size && length <= size - start, "a piece lies outside of the data");
        need(head <= room - at && length <= room - at - head, "the pieces do not fit");
        std::copy_n(before.c_str(), head, out.data() + at);
        std::copy_n(data.data() + start, length, out.data() + at + head);
        at += head + length;
    }
    need(at == room, "the pieces do not fit");
}

// (keys, entries), each one behind the other. `facts` gets eight numbers per sample: 1 when it is left to the caller,
// crc32c, width, height, kind (members.h), 1 when it may have EXIF, lengths of the key and of the entry points.
nb::tuple make_members_door(nb::bytes root, Array<const uint8_t> paths, Array<const int64_t> path_starts,
                            Array<const int64_t> sizes, nb::object labels, Array<const uint8_t> header, bool scan,
                            int64_t bytes_per_entry, Array<const int64_t> starts, Array<uint8_t> out, Pool* pool,
                            Array<int64_t> facts) {
    const size_t count = sizes.shape(0);
    check_starts(path_starts, count, paths.shape(0));
    check_starts(starts, count, out.shape(0));
    need(bytes_per_entry > 0, "bytes_per_entry must be at least 1");
    need(header.shape(0) == static_cast<size_t>(kTarBlock) && facts.shape(0) == 8 * count,
         "header or facts have the wrong size");
    MembersRequest request{};
    request.count = static_cast<int64_t>(count);
    request.root.assign(root.c_str(), root.size());
    request.paths = paths.data(), request.path_starts = path_starts.data(), request.sizes = sizes.data();
    Array<const int64_t> label_array;
    if (!labels.is_none()) {
        label_array = nb::cast<Array<const int64_t>>(labels);
        need(label_array.shape(0) == count, "labels differ in length");
        request.labels = label_array.data();
    }
    request.header = header.data(), request.scan = scan, request.bytes_per_entry = bytes_per_entry,
    request.starts = starts.data(), request.out = out.data();
    for (size_t i = 0; i < count; ++i)
        need(sizes.data()[i] >= 0 && sizes.data()[i] < int64_t{1} << 40 &&
                 room_of(sizes.data()[i], request.labels != nullptr) == starts.data()[i + 1] - starts.data()[i],
             "starts do not follow from the sizes");
    std::vector<MemberFacts> found(count);
    std::string keys, entries;
    run_in_pool([&] {
        const bool is_open = make_members(request, pool, found.data());
        int64_t* to = facts.data();
        for (MemberFacts& one : found) {
            if (one.left) one.key.clear(), one.entries.clear();
            *to++ = one.left, *to++ = one.crc, *to++ = one.width, *to++ = one.height;
            *to++ = static_cast<int64_t>(one.kind), *to++ = one.has_exif;
            *to++ = static_cast<int64_t>(one.key.size()), *to++ = static_cast<int64_t>(one.entries.size());
            keys += one.key;
            entries += one.entries;
        }
        return is_open;
    });
    return nb::make_tuple(nb::bytes(keys.data(), keys.size()), nb::bytes(entries.data(), entries.size()));
}

// Files of one call. The lists hold bytes, other buffers, and of images paths, and are not changed by anybody else.
class HeldInputs {
public:
    HeldInputs(nb::list images, nb::list entries) : images_(images), entries_(entries), inputs_(nb::len(images)) {
        need(nb::len(entries) == 0 || nb::len(entries) == inputs_.size(), "images and entries differ in length");
        for (size_t i = 0; i < inputs_.size(); ++i) {
            const nb::object image = images[i];
            if (nb::isinstance<nb::str>(image)) {
                const nb::bytes path = nb::steal<nb::bytes>(PyUnicode_EncodeFSDefault(image.ptr()));
                // A name that no file can have is one that cannot be opened.
                if (path.is_valid())
                    inputs_[i].path.assign(path.c_str(), path.size());
                else
                    PyErr_Clear(), inputs_[i].path.assign(1, '\0');
            } else {
                inputs_[i].file = bytes_in(image);
            }
            if (nb::len(entries)) inputs_[i].entries = bytes_in(entries[i]);
        }
    }
    HeldInputs(const HeldInputs&) = delete;
    HeldInputs& operator=(const HeldInputs&) = delete;
    Input* data() { return inputs_.data(); }
    size_t size() const { return inputs_.size(); }
    Input& at(int64_t i) {
        need(i >= 0 && i < static_cast<int64_t>(inputs_.size()), "there is no such image");
        return inputs_[static_cast<size_t>(i)];
    }

private:
    static Bytes bytes_in(const nb::object& object) {
        if (object.is_none()) return {};
        if (PyBytes_Check(object.ptr()))
            return {reinterpret_cast<const uint8_t*>(PyBytes_AsString(object.ptr())),
                    static_cast<size_t>(PyBytes_Size(object.ptr()))};
        return bytes_of(nb::cast<Array<const uint8_t>>(object));
    }
    nb::list images_, entries_;
    std::vector<Input> inputs_;
};

// `facts` gets three numbers for each of some files: width and height, 0 where Pillow is to be asked; an errno.
void measure_inputs_door(HeldInputs& inputs, Array<const int64_t> numbers, Pool* pool, Array<int32_t> facts) {
    const size_t count = numbers.shape(0);
    need(facts.shape(0) == 3 * count, "facts have the wrong size");
    std::vector<Input*> chosen;
    for (size_t n = 0; n < count; ++n) chosen.push_back(&inputs.at(numbers.data()[n]));
    run_in_pool([&] {
        return for_each(static_cast<int64_t>(count), pool, [&](int64_t n) {
            Input& input = *chosen[n];
            int32_t* to = facts.data() + 3 * n;
            input.try_to_load();
            input.measure();
            to[0] = input.width, to[1] = input.height, to[2] = input.error;
        });
    });
}

// Reads those files with these numbers that were not read; returns how many bytes they all have.
int64_t load_inputs_door(HeldInputs& inputs, Array<const int32_t> numbers, Pool* pool) {
    std::vector<int32_t> chosen(numbers.data(), numbers.data() + numbers.shape(0));
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    need(chosen.empty() || (chosen.front() >= 0 && static_cast<size_t>(chosen.back()) < inputs.size()),
         "file_of needs the number of a file per sample");
    std::vector<Input*> unread;
    for (const int32_t n : chosen)
        if (Input& input = inputs.at(n); input.is_unread()) unread.push_back(&input);
    run_in_pool([&] {
        return unread.empty() ||
               for_each(static_cast<int64_t>(unread.size()), pool, [&](int64_t n) { unread[n]->try_to_load(); });
    });
    int64_t size = 0;
    for (const int32_t n : chosen) size += static_cast<int64_t>(inputs.at(n).file.size);
    return size;
}

using View = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;

// The file and the entry points of an input, as far as they are known; the views keep the inputs alive.
nb::tuple input_door(nb::handle_t<HeldInputs> self, int64_t i) {
    const Input& input = nb::cast<HeldInputs&>(self).at(i);
    const auto view = [&](Bytes bytes) { return View(bytes.data, {bytes.size}, self); };
    return nb::make_tuple(view(input.file), view(input.entries));
}

// `crops`: file_of, samples, boxes, flips, filters, one of each per crop; `shape`: height and width of the output. What
// the plan needs is in sizes(); `taken` says of each crop whether the plan holds it, as Taken has it.
void plan_crops(GpuPlan& plan, GpuRequest request, nb::tuple crops, bool before_13, nb::tuple shape,
                int64_t most_memory, Array<uint8_t> words, Pool* pool, Array<uint8_t> taken) {
    need(reinterpret_cast<uintptr_t>(words.data()) % 16 == 0, "words must be aligned to 16 bytes");
    request.words = words.data(), request.words_room = static_cast<int64_t>(words.shape(0));
    need(crops.size() == 5, "crops are file_of, samples, boxes, flips and filters");
    const auto file_of = nb::cast<Array<const int32_t>>(crops[0]), samples = nb::cast<Array<const int32_t>>(crops[1]);
    // Written to only where they are to be found.
    const auto boxes = request.most_pixels ? Array<const int32_t>(nb::cast<Array<int32_t>>(crops[2]))
                                           : nb::cast<Array<const int32_t>>(crops[2]);
    const auto flips = nb::cast<Array<const uint8_t>>(crops[3]), filters = nb::cast<Array<const uint8_t>>(crops[4]);
    const size_t count = taken.shape(0);
    need(flips.shape(0) == count && boxes.shape(0) == 4 * count && samples.shape(0) == count,
         "arrays differ in length");
    const auto is_number = [&](int32_t one) { return one >= 0 && one < request.files; };
    need(file_of.shape(0) == count && std::all_of(file_of.data(), file_of.data() + count, is_number),
         "file_of needs the number of a file per sample");
    need_filters(filters, count);
    const auto height = nb::cast<int>(shape[0]), width = nb::cast<int>(shape[1]);
    need(height > 0 && width > 0 && height <= 1 << 14 && width <= 1 << 14,
         "shape must be height and width, from 1 to 16384");
    request.count = static_cast<int64_t>(count), request.file_of = file_of.data(), request.samples = samples.data(),
    request.boxes = const_cast<int32_t*>(boxes.data()), request.flips = flips.data(), request.filters = filters.data(),
    request.before_13 = before_13;
    request.height = height, request.width = width, request.most_memory = most_memory;
    run_in_pool([&] { return plan.look(request, pool, reinterpret_cast<Taken*>(taken.data())); });
}

void look_door(GpuPlan& plan, HeldInputs& inputs, int64_t bytes_per_entry, int64_t most_pixels, nb::tuple crops,
               bool before_13, nb::tuple shape, int64_t most_memory, Array<uint8_t> words, Pool* pool,
               Array<uint8_t> taken) {
    need(bytes_per_entry >= 0, "bytes_per_entry must be at least 0");
    GpuRequest request{};
    request.files = static_cast<int64_t>(inputs.size()), request.inputs = inputs.data();
    request.bytes_per_entry = bytes_per_entry, request.most_pixels = most_pixels;
    plan_crops(plan, request, crops, before_13, shape, most_memory, words, pool, taken);
}

// The same of files on disk, which are read here.
void read_door(GpuPlan& plan, Files& files, nb::tuple images, nb::tuple entries, nb::tuple crops, bool before_13,
               nb::tuple shape, int64_t most_memory, Array<uint8_t> words, Pool* pool, Array<uint8_t> taken) {
    const RangeArrays image_arrays = arrays_of(images), entry_arrays = arrays_of(entries);
    const size_t count = image_arrays.file.shape(0);
    GpuRequest request{};
    request.files = static_cast<int64_t>(count), request.disk = &files;
    request.images = ranges_of(image_arrays, count), request.entry_ranges = ranges_of(entry_arrays, count);
    need(count == 0 || request.images.crc != nullptr, "the images need their crc32c");
    plan_crops(plan, request, crops, before_13, shape, most_memory, words, pool, taken);
}

nb::tuple plan_sizes_door(const GpuPlan& plan) {
    const GpuSizes& s = plan.sizes();
    return nb::make_tuple(s.images, s.groups, s.tiles, s.groups_at, s.tiles_at, s.items_at, s.staged, s.words, s.blocks,
                          s.samples, s.pixels, s.between, s.weights);
}

void plan_components_door(const GpuPlan& plan, Array<uint8_t> out) { plan.components(out.data(), out.shape(0)); }

void fill_door(GpuPlan& plan, Pool* pool, Array<uint8_t> staged) {
    need(static_cast<int64_t>(staged.shape(0)) >= plan.sizes().staged, "staged is too small");
    need(reinterpret_cast<uintptr_t>(staged.data()) % 16 == 0, "staged must be aligned to 16 bytes");
    run_in_pool([&] { return plan.fill(pool, staged.data()); });
}

// The checksum that each row of a table ends with: that of its other bytes.
void crc32c_rows_door(Array<const uint8_t> rows, size_t width, Array<uint32_t> out) {
    need(width >= 4 && rows.shape(0) == width * out.shape(0), "rows have the wrong size");
    nb::gil_scoped_release release;
    for (size_t i = 0; i < out.shape(0); ++i) out.data()[i] = crc32c(rows.data() + i * width, width - 4, 0);
}

// The checksum of each text; text `i` lies between `starts[i]` and `starts[i + 1]`.
void crc32c_texts_door(Array<const uint8_t> texts, Array<const int64_t> starts, Array<uint32_t> out) {
    check_starts(starts, out.shape(0), texts.shape(0));
    nb::gil_scoped_release release;
    for (size_t i = 0; i < out.shape(0); ++i) {
        const Bytes text = piece_of(texts, starts, i);
        out.data()[i] = crc32c(text.data, text.size, 0);
    }
}

uint32_t crc32c_door(Array<const uint8_t> data, uint32_t value) {
    nb::gil_scoped_release release;
    return crc32c(data.data(), data.shape(0), value);
}

}  // namespace

NB_MODULE(_native, m) {
    // At interpreter exit objects may be kept by other modules' globals; that is no leak worth a message.
    nb::set_leak_warnings(false);
    const std::string error = level_error();
    if (!error.empty()) throw nb::import_error(error.c_str());
    nb::class_<Files>(m, "Files")
        .def("__init__", [](Files* self, nb::list paths) { new (self) Files(strings_of(paths)); })
        .def("close", &Files::close, nb::call_guard<nb::gil_scoped_release>());
    nb::class_<Pool>(m, "Pool")
        .def(nb::init<int, int>())
        .def("set_limit", &Pool::set_limit, nb::call_guard<nb::gil_scoped_release>())
        .def("cpu_seconds", &Pool::cpu_seconds, nb::call_guard<nb::gil_scoped_release>())
        .def("cancel", &Pool::cancel, nb::call_guard<nb::gil_scoped_release>())
        .def("rest", &Pool::rest, nb::call_guard<nb::gil_scoped_release>())
        .def("close", &Pool::close, nb::call_guard<nb::gil_scoped_release>());
    nb::class_<HeldInputs>(m, "Inputs")
        .def(nb::init<nb::list, nb::list>())
        .def("load", &load_inputs_door, "numbers"_a, "pool"_a.none())
        .def("measure", &measure_inputs_door, "numbers"_a, "pool"_a.none(), "facts"_a)
        .def("at", &input_door);
    nb::class_<GpuPlan>(m, "GpuPlan")
        .def(nb::init<>())
        .def("look", &look_door, "inputs"_a, "bytes_per_entry"_a, "most_pixels"_a, "crops"_a, "before_13"_a, "shape"_a,
             "most_memory"_a, "words"_a, "pool"_a.none(), "taken"_a)
        .def("read", &read_door, "files"_a, "images"_a, "entries"_a, "crops"_a, "before_13"_a, "shape"_a,
             "most_memory"_a, "words"_a, "pool"_a.none(), "taken"_a)
        .def("sizes", &plan_sizes_door)
        .def("components", &plan_components_door)
        .def("fill", &fill_door, "pool"_a.none(), "staged"_a);
    m.def("simd_level", [] { return level().name; });
    m.def("simd_levels", [] {
        nb::list names;
        for (const Level* one : levels()) names.append(one->name);
        return names;
    });
    m.def("words", [](int status, int why, int64_t a, int64_t b) {
        return words({static_cast<Status>(status), static_cast<Why>(why), a, b});
    });
    m.def("crc32c", &crc32c_door);
    m.def("crc32c_by_table",
          [](Array<const uint8_t> data, uint32_t value) { return crc32c_by_table(data.data(), data.shape(0), value); });
    m.def("probe", &probe_door);
    m.def("scan", &scan_door);
    m.def("to_baseline", &to_baseline_door);
    m.def("decode_one", &decode_one_door);
    m.def("resize_one", &resize_one_door);
    m.def("draw", &draw_door);
    m.def("draw_from", &draw_from_door);
    m.def("apply_table", &apply_table_door);
    m.def("profile_one", &profile_door);
    m.def("decode_batch", &decode_batch_door, "files"_a, "images"_a, "entries"_a.none(), "boxes"_a, "flips"_a,
          "filters"_a, "before_13"_a, "out"_a, "shape"_a, "raw"_a, "pool"_a.none(), "bytes_read"_a, "details"_a);
    m.def("check_ranges", &check_ranges_door, "files"_a, "ranges"_a, "pool"_a.none(), "details"_a);
    m.def("read_ranges", &read_ranges_door, "files"_a, "ranges"_a, "starts"_a, "buffer"_a, "pool"_a.none(),
          "details"_a);
    m.def("gather_rows", &gather_rows_door);
    m.def("list_folder", &list_folder_door);
    m.def("hash_stems", &hash_stems_door);
    m.def("find_first", &find_first_door);
    m.def("join_pieces", &join_pieces_door);
    m.def("crc32c_rows", &crc32c_rows_door);
    m.def("crc32c_texts", &crc32c_texts_door);
    m.def("make_members", &make_members_door, "root"_a, "paths"_a, "path_starts"_a, "sizes"_a, "labels"_a.none(),
          "header"_a, "scan"_a, "bytes_per_entry"_a, "starts"_a, "out"_a, "pool"_a.none(), "facts"_a);
}
