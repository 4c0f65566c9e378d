// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "entries.h"
#include "entropy.h"
#include "jpeg.h"

namespace feedrate {

namespace {

// Entropy-coded bytes from which the time for pairs of symbols comes back (measured: 5,000 to 7,500 at 4:2:0).
constexpr size_t kWorthPairs = 6000;

// Small images mostly share their Huffman tables, and building those takes longer than such an image does.
struct Kept {
    McuTables tables;
    Entropy entropy;
};

Kept& kept() {
    thread_local std::unique_ptr<Kept> mine;
    if (!mine) mine.reset(new Kept);
    return *mine;
}

}  // namespace

Outcome scan_jpeg(const uint8_t* data, size_t size, uint32_t file_crc, Header& header, std::string& entries,
                  int64_t bytes_per_entry) {
    entries.clear();
    Outcome outcome = parse_jpeg(data, size, header);
    if (!outcome.ok()) return outcome;
    Kept& mine = kept();
    McuTables& tables = mine.tables;
    outcome = make_tables(header, header.scan_end - header.scan_begin >= kWorthPairs, tables);
    if (!outcome.ok()) return outcome;
    Entropy& entropy = mine.entropy;
    entropy.start(data, header, tables);
    EntriesWriter writer(header, bytes_per_entry);
    for (int row = 0; row < header.mcu_rows; ++row) {
        for (int column = 0; column < header.mcus_per_row; column += writer.step()) {
            outcome = entropy.arrive();
            if (!outcome.ok()) return outcome;
            writer.add(static_cast<uint32_t>(entropy.position()), entropy.predictors());
            const int left = header.mcus_per_row - column;
            outcome = entropy.skip(left < writer.step() ? left : writer.step());
            if (!outcome.ok()) return outcome;
        }
    }
    entries = writer.finish(file_crc);
    return {};
}

}  // namespace feedrate
