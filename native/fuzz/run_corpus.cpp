// SPDX-License-Identifier: Apache-2.0
// Runs the fuzzer's entry over the files of a list, one path per line of standard input: for sanitizers that come without a fuzzer.
// Prints how many there were and the checksum of what they decoded to.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size);
extern uint32_t fuzz_checksum;

int main() {
    int count = 0;
    for (std::string path; std::getline(std::cin, path); ++count) {
        std::ifstream file(path, std::ios::binary);
        const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    }
    std::printf("%d files, checksum %08x\n", count, fuzz_checksum);
}
