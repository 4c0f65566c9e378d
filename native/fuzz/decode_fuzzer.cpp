// SPDX-License-Identifier: Apache-2.0
// One input of the fuzzer: how to decode (8 bytes), then a JPEG. Decodes it from the top, with its own entry points and with
// spoilt ones; beyond "no crash" it demands that entry points change no pixel and that a sound scan decodes.
//
//   0  what the entries are: bit 0, spoil them; bits 1 to 7, where
//   1  spoiling value
//   2  box: left, top, right, bottom, as parts of 256 of the size
//   6  output height and channels: low 5 bits height - 1, top bit gray
//   7  output width: low 5 bits width - 1, top bit flip
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../crc32c.h"
#include "../jpeg.h"

using namespace feedrate;

namespace {

void demand(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "broken promise: %s\n", what);
    std::abort();
}

void put_u32(std::string& to, size_t at, uint32_t value) {
    for (size_t i = 0; i < 4; ++i) to[at + i] = static_cast<char>(value >> (8 * i) & 0xFF);
}

// Changes one byte behind the fingerprint and makes the checksum right again, so that the change is not found at the door.
std::string spoil(std::string entries, uint8_t where, uint8_t value) {
    if (entries.size() <= 12) return entries;
    const size_t at = 12 + static_cast<size_t>(where) * 37 % (entries.size() - 12);
    entries[at] = static_cast<char>(entries[at] ^ value);
    const auto* bytes = reinterpret_cast<const uint8_t*>(entries.data());
    put_u32(entries, 8, crc32c(bytes + 12, entries.size() - 12, crc32c(bytes, 8, 0)));
    return entries;
}

Bytes view(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

}  // namespace

// Of everything that was decoded, so that builds can be compared with each other.
uint32_t fuzz_checksum = 0;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
    if (size < 8) return 0;
    // A copy of the exact size: a read past its end is then seen.
    const std::unique_ptr<uint8_t[]> copy(new uint8_t[size - 8]);
    std::memcpy(copy.get(), input + 8, size - 8);
    const Bytes file{copy.get(), size - 8};

    Header header;
    std::string entries;
    const Outcome scanned = scan_jpeg(file.data, file.size, header, entries);
    demand(!words(scanned).empty() || scanned.ok(), "every failure has words");
    if (static_cast<int64_t>(header.width) * header.height > (16 << 20)) return 0;

    const auto part = [&](int byte, int whole) { return whole * input[byte] / 256; };
    Box box{part(2, header.width), part(3, header.height), part(4, header.width) + 1, part(5, header.height) + 1};
    const int height = (input[6] & 31) + 1, width = (input[7] & 31) + 1, channels = input[6] & 128 ? 1 : 3;
    const size_t out_size = static_cast<size_t>(height) * static_cast<size_t>(width) * static_cast<size_t>(channels);
    const std::unique_ptr<uint8_t[]> from_top(new uint8_t[out_size]()), entered(new uint8_t[out_size]());
    const auto target = [&](uint8_t* pixels) { return Target{pixels, height, width, channels, (input[7] & 128) != 0}; };
    const uint32_t crc = crc32c(file.data, file.size, 0);

    static Decoder decoder;
    const Outcome top = decoder.decode(file, 0, {}, box, target(from_top.get()));
    fuzz_checksum = crc32c(from_top.get(), out_size, fuzz_checksum);
    if (scanned.ok()) {
        demand(top.ok() || top.status == Status::bad_box, "what scans decodes");
        const Outcome right = decoder.decode(file, crc, view(entries), box, target(entered.get()));
        demand(right.status == top.status, "entry points change no outcome");
        if (top.ok()) demand(!std::memcmp(from_top.get(), entered.get(), out_size), "entry points change no pixel");
        if (input[0] & 1) {
            const std::string spoilt = spoil(entries, input[0] >> 1, input[1]);
            decoder.decode(file, crc, view(spoilt), box, target(entered.get()));
        }
    }
    decoder.trim();
    return 0;
}
