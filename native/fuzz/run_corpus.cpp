// SPDX-License-Identifier: Apache-2.0
// Runs the fuzzer's entry over the files of a list, one path per line of standard input: for sanitizers that come
// without a fuzzer. Prints the level of vector code, how many there were and the checksum of what they decoded to.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "../level.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size);
extern uint32_t fuzz_checksum;

int main() {
    const std::string error = feedrate::level_error();
    if (!error.empty()) {
        std::fprintf(stderr, "%s\n", error.c_str());
        return 2;
    }
    int count = 0;
    for (std::string path; std::getline(std::cin, path); ++count) {
        std::ifstream file(path, std::ios::binary);
        const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    }
    std::printf("%s: %d files, checksum %08x\n", feedrate::level().name, count, fuzz_checksum);
}
