// SPDX-License-Identifier: Apache-2.0
// Entry points as a forger writes them: whole, with the right checksums, at places where none may stand.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "../crc32c.h"
#include "../jpeg.h"

namespace feedrate {

inline void put_forged(std::string& to, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) to.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

// Draws as many bits as there are entry points. Most stand on stuffed zeros, on markers or beside them; some are
// crowded, so that there is little room and what is due lies far behind; some are in the wrong order.
inline std::vector<uint32_t> draw_points(Bytes scan, size_t count, std::mt19937& random) {
    const auto most = static_cast<uint32_t>(std::max<size_t>(8 * scan.size, 2));
    std::vector<uint32_t> traps;
    for (uint32_t at = 0; at + 3 < scan.size; ++at)
        if (scan.data[at] == 0xFF) traps.insert(traps.end(), {8 * at, 8 * at + 8, 8 * at + 16});
    const bool is_trapped = !traps.empty() && random() % 4, is_crowded = random() % 4 == 0;
    const auto first = static_cast<uint32_t>(1 + random() % most);
    std::vector<uint32_t> points(count);
    for (uint32_t n = 0; n < count; ++n) {
        const auto trap = is_trapped ? traps[random() % traps.size()] + (random() % 2 ? random() % 8 : 0) : 0;
        points[n] = static_cast<uint32_t>(is_crowded ? first + n : is_trapped ? trap : random() % most);
    }
    if (random() % 8 == 0) return points;
    std::sort(points.begin(), points.end());
    for (size_t n = 1; n < count; ++n) points[n] = std::max(points[n], points[n - 1] + 1);
    return points;
}

// `header` is that of the file. All predictors are zero.
inline std::string forge_entries(Bytes file, const Header& header, uint32_t seed) {
    std::mt19937 random(seed);
    const auto across = static_cast<uint32_t>(header.mcus_per_row), step = static_cast<uint32_t>(1 + random() % across);
    const size_t count = static_cast<size_t>((across + step - 1) / step) * static_cast<size_t>(header.mcu_rows);
    const Bytes scan{file.data + header.scan_begin, header.scan_end - header.scan_begin};
    std::string head, tail;
    put_forged(tail, 32, 1);
    tail.append(3 * static_cast<size_t>(header.component_count), '\0');
    uint32_t before = 0;
    for (const uint32_t point : draw_points(scan, count, random)) {
        const uint32_t at = tail.size() > 1 + 3 * static_cast<size_t>(header.component_count) ? point : 0;
        put_forged(tail, at - before, 4);
        before = at;
    }
    put_forged(head, 1, 1);
    put_forged(head, static_cast<uint32_t>(header.component_count), 1);
    put_forged(head, step, 2);
    put_forged(head, crc32c(file.data, file.size, 0), 4);
    const uint32_t crc = crc32c(reinterpret_cast<const uint8_t*>(head.data()), head.size(), 0);
    put_forged(head, crc32c(reinterpret_cast<const uint8_t*>(tail.data()), tail.size(), crc), 4);
    return head + tail;
}

}  // namespace feedrate
