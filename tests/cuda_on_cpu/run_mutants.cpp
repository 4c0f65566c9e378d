// SPDX-License-Identifier: Apache-2.0
// Damaged files and forged entry points through the planner and the GPU's kernels, on the CPU, for the sanitizers to watch:
//   run_mutants ROUNDS < list of JPEG files
// A mutant stands between two copies of its sound file in one batch, and it and one of these are cropped twice. Every buffer is as large as the plan says and no larger. What comes
// out with status 0 must be what decode() makes, and a sound file must come out.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "crc32c.h"
#include "fuzz/forged_entries.h"
#include "gpu_plan.h"
#include "jpeg.h"

extern "C" int launch(const char* name, unsigned across, unsigned down, unsigned threads, void* const* args);

using namespace feedrate;

namespace {

struct Case {
    std::string file, entries;
    int32_t box[4], other_box[4];
};

struct Wanted {
    int height, width, channels;
    uint8_t flip, filter;
};

const uint8_t* bytes(const std::string& text) { return reinterpret_cast<const uint8_t*>(text.data()); }

template <class... Args>
void start(const char* name, int64_t across, int64_t down, Args... args) {
    void* pointers[] = {&args...};
    if (launch(name, static_cast<unsigned>(across), static_cast<unsigned>(down), 1, pointers)) std::abort();
}

using Memory = std::unique_ptr<uint8_t, decltype(&std::free)>;

Memory allocate(int64_t size) {
    Memory memory(static_cast<uint8_t*>(std::malloc(static_cast<size_t>(std::max<int64_t>(size, 16)))), &std::free);
    std::memset(memory.get(), 0xA5, static_cast<size_t>(std::max<int64_t>(size, 16)));
    return memory;
}

// As batch.py has it. First a crop of each, then a second one.
void decode_as_gpu(const std::vector<Case>& cases, const Wanted& w, std::vector<uint8_t>& out, std::vector<int32_t>& statuses) {
    std::vector<int32_t> boxes, file_of;
    for (const Case& one : cases) {
        boxes.insert(boxes.end(), one.box, one.box + 4);
        file_of.push_back(static_cast<int32_t>(file_of.size()));
    }
    for (size_t i = 0; i + 1 < cases.size(); ++i) {
        boxes.insert(boxes.end(), cases[i].other_box, cases[i].other_box + 4);
        file_of.push_back(static_cast<int32_t>(i));
    }
    const size_t count = file_of.size();
    const std::vector<uint8_t> flips(count, w.flip), filters(count, w.filter);
    std::vector<Taken> taken(count);
    // Each exactly as large as it is, so that a read past the end is seen.
    std::vector<std::vector<uint8_t>> own;
    std::vector<Input> inputs(cases.size());
    for (size_t i = 0; i < cases.size(); ++i)
        for (const auto& [text, to] : {std::pair(&cases[i].file, &inputs[i].file), std::pair(&cases[i].entries, &inputs[i].entries)}) {
            own.emplace_back(text->begin(), text->end());
            *to = {own.back().data(), own.back().size()};
        }
    GpuPlan plan;
    GpuRequest request{};
    request.count = static_cast<int64_t>(count), request.files = static_cast<int64_t>(cases.size()), request.file_of = file_of.data();
    request.inputs = inputs.data();
    int64_t room = kGpuReadAhead;
    for (const Case& one : cases) room += static_cast<int64_t>(one.file.size()) + 64;
    const Memory words = allocate(room);
    request.words = words.get(), request.words_room = room;
    request.boxes = boxes.data(), request.flips = flips.data(), request.filters = filters.data();
    request.height = w.height, request.width = w.width, request.most_memory = int64_t{1} << 28;
    plan.look(request, nullptr, taken.data());
    const GpuSizes& s = plan.sizes();
    const Memory staged = allocate(s.staged), coefficients = allocate(s.blocks * 128), samples = allocate(s.samples), pixels = allocate(s.pixels * 4),
                 between = allocate(s.between * 4), weights = allocate(s.weights * 4), bounds = allocate(s.images * (w.height + w.width) * 8),
                 tables = allocate(s.images * kGpuPairs * kGpuPairWords * 4);
    plan.fill(nullptr, staged.get());
    out.assign(count * static_cast<size_t>(w.height * w.width * w.channels), 77);
    statuses.assign(count, -1);
    if (!s.images) return;
    uint8_t *images = staged.get(), *groups = images + s.groups_at, *tiles = images + s.tiles_at, *items = images + s.items_at;
    int32_t* status = statuses.data();
    start("prepare", s.images, 1, images, tables.get(), bounds.get(), weights.get(), status, w.width, w.height);
    start("read_coefficients", s.groups, 1, images, groups, items, words.get(), tables.get(), coefficients.get(), status);
    start("transform_blocks", 2, s.images, images, coefficients.get(), samples.get(), status);
    start("convert_pixels", s.tiles, 1, images, tiles, samples.get(), pixels.get(), w.channels);
    start("resize_first", s.tiles, 1, images, tiles, pixels.get(), bounds.get(), weights.get(), between.get(), w.width, w.height);
    start("resize_last", 3, s.images, images, between.get(), bounds.get(), weights.get(), status, out.data(), w.width, w.height, w.channels);
}

void tie(Case& one) {
    if (one.entries.size() < 12) return;
    const auto put = [&](size_t at, uint32_t value) {
        for (size_t i = 0; i < 4; ++i) one.entries[at + i] = static_cast<char>(value >> (8 * i));
    };
    put(4, crc32c(bytes(one.file), one.file.size(), 0));
    put(8, crc32c(bytes(one.entries) + 12, one.entries.size() - 12, crc32c(bytes(one.entries), 8, 0)));
}

void spoil(std::string& text, size_t from, std::mt19937& random) {
    if (text.size() <= from) return;
    for (unsigned n = 1 + random() % 4; n; --n) {
        char& one = text[from + random() % (text.size() - from)];
        if (random() % 3 == 0)
            one = static_cast<char>(0xFF);
        else if (random() % 2)
            one = static_cast<char>(one ^ (1 << random() % 8));
        else
            one = static_cast<char>(random());
    }
}

}  // namespace

int main(int, char** arguments) {
    const int rounds = std::atoi(arguments[1]);
    std::vector<std::string> files;
    for (std::string path; std::getline(std::cin, path);) {
        std::ifstream file(path, std::ios::binary);
        files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    std::mt19937 random(1);
    Decoder decoder;
    int sound = 0, good = 0, refused = 0;
    for (int round = 0; round < rounds; ++round)
        for (const std::string& file : files) {
            const int64_t apart[] = {1, 40, 200, 100000};
            Header header;
            Case whole{file, "", {}, {}};
            if (!scan_jpeg(bytes(file), file.size(), crc32c(bytes(file), file.size(), 0), header, whole.entries, apart[random() % 4]).ok()) continue;
            const auto draw = [&](int size, int32_t& begin, int32_t& end) {
                begin = static_cast<int32_t>(random() % static_cast<unsigned>(size));
                end = begin + 1 + static_cast<int32_t>(random() % static_cast<unsigned>(size - begin));
            };
            draw(header.width, whole.box[0], whole.box[2]);
            draw(header.height, whole.box[1], whole.box[3]);
            draw(header.width, whole.other_box[0], whole.other_box[2]);
            draw(header.height, whole.other_box[1], whole.other_box[3]);
            Case mutant = whole;
            const unsigned how = random() % 10;
            if (how <= 3) spoil(mutant.file, header.scan_begin, random);
            if (how == 4) spoil(mutant.file, 2, random);
            if (how == 5) mutant.file.resize(random() % mutant.file.size());
            if (how == 6 || how == 7) spoil(mutant.entries, how == 6 ? 12 : 0, random);
            // A restart marker is due after every second MCU, and none stands there.
            if (how == 9) mutant.file.insert(header.scan_begin - 8 - 2 * static_cast<size_t>(header.component_count), "\xFF\xDD\0\4\0\2", 6);
            Header changed;
            if (how >= 8 && parse_jpeg(bytes(mutant.file), mutant.file.size(), changed, false).ok())
                mutant.entries = forge_entries({bytes(mutant.file), mutant.file.size()}, changed, static_cast<uint32_t>(random()));
            if (how == 7) mutant.box[random() % 4] += static_cast<int32_t>(random() % 7) - 3;
            tie(mutant);
            const Wanted w{1 + static_cast<int>(random() % 40), 1 + static_cast<int>(random() % 40), random() % 4 ? 3 : 1, static_cast<uint8_t>(random() % 2),
                           static_cast<uint8_t>(random() % kFilters)};
            std::vector<uint8_t> out;
            std::vector<int32_t> statuses;
            decode_as_gpu({whole, mutant, whole}, w, out, statuses);
            const size_t size = static_cast<size_t>(w.height * w.width * w.channels);
            for (size_t i = 0; i < 5; ++i) {
                const bool is_sound = i != 1 && i != 4;
                const Case& one = is_sound ? whole : mutant;
                const int32_t* box = i < 3 ? one.box : one.other_box;
                std::vector<uint8_t> expected(size);
                const Target target{expected.data(), w.height, w.width, w.channels, w.flip != 0, static_cast<Filter>(w.filter), Order::pillow_13};
                const Outcome outcome = decoder.decode({bytes(one.file), one.file.size()}, crc32c(bytes(one.file), one.file.size(), 0),
                                                       {bytes(one.entries), one.entries.size()}, {box[0], box[1], box[2], box[3]}, target);
                const bool same = outcome.ok() && !std::memcmp(out.data() + i * size, expected.data(), size);
                if ((is_sound && statuses[i] != 0) || (statuses[i] == 0 && !same)) {
                    std::printf("round %d, file of %zu bytes, sample %zu, change %u: status %d, decode() %d, same %d\n", round, file.size(), i, how,
                                statuses[i], static_cast<int>(outcome.status), same);
                    return 1;
                }
            }
            sound += 3;
            for (const size_t i : {size_t{1}, size_t{4}}) (statuses[i] == 0 ? good : refused) += 1;
        }
    std::printf("%d sound, %d damaged and decoded alike, %d damaged and refused\n", sound, good, refused);
    return 0;
}
