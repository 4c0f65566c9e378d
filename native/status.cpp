// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>

#include "status.h"

namespace feedrate {
namespace {

// Of files that are no JPEG; parse.cpp recognises them.
const char* const kFormats[] = {"unknown format", "PNG", "GIF", "WebP", "BMP", "TIFF", "JPEG 2000", "text"};

const char* const kSentences[] = {
#define FEEDRATE_SENTENCE(name, sentence) sentence,
    FEEDRATE_REASONS(FEEDRATE_SENTENCE)
#undef FEEDRATE_SENTENCE
};

}  // namespace

std::string words(const Outcome& outcome) {
    char text[160];
    const auto a = static_cast<long long>(outcome.a);
    const auto b = static_cast<long long>(outcome.b);
    switch (outcome.why) {
        case Why::cannot_open: return std::string("cannot be opened: ") + std::strerror(static_cast<int>(a));
        case Why::cannot_read: return std::string("cannot be read: ") + std::strerror(static_cast<int>(a));
        case Why::not_jpeg: return std::string("not a JPEG (") + kFormats[a >= 0 && a < 8 ? a : 0] + ")";
        case Why::sampling:
            std::snprintf(text, sizeof text, "sampling factors %lldx%lld with %lldx%lld", a >> 4, a & 15, b >> 4,
                          b & 15);
            return text;
        default: break;
    }
    const auto number = static_cast<size_t>(outcome.why);
    if (number >= std::size(kSentences)) return "unknown reason";
    // The formats are the literals of status.h; the compiler cannot see that.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
    std::snprintf(text, sizeof text, kSentences[number], a, b);
#pragma GCC diagnostic pop
    return text;
}

}  // namespace feedrate
