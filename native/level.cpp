// SPDX-License-Identifier: Apache-2.0
#include "level.h"

#include <cstdlib>

#include "cpu.h"

namespace feedrate {

extern const Level kPlain;
#if FEEDRATE_X86
extern const Level kAvx2, kAvx512;
#endif
#if FEEDRATE_NEON
extern const Level kNeon;
#endif

namespace {

std::vector<const Level*> find_levels() {
    std::vector<const Level*> found;
#if FEEDRATE_X86
    // The compiler's runtime asks the operating system too whether it saves the registers.
    __builtin_cpu_init();
    const bool has_avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (has_avx2 && has_avx512) found.push_back(&kAvx512);
    if (has_avx2) found.push_back(&kAvx2);
#endif
#if FEEDRATE_NEON
    found.push_back(&kNeon);
#endif
    found.push_back(&kPlain);
    return found;
}

struct Choice {
    const Level* level = levels().front();
    std::string error;

    Choice() {
        const char* wanted = std::getenv("FEEDRATE_SIMD");
        if (!wanted || !*wanted) return;
        std::string names;
        for (const Level* one : levels()) {
            if (one->name == std::string(wanted)) {
                level = one;
                return;
            }
            names += (names.empty() ? "" : ", ") + std::string(one->name);
        }
        error = "FEEDRATE_SIMD is \"" + std::string(wanted) + "\", and this machine has " + names +
                "; set it to one of them, or not at all";
    }
};

const Choice& choice() {
    static const Choice made;
    return made;
}

}  // namespace

const std::vector<const Level*>& levels() {
    static const std::vector<const Level*> found = find_levels();
    return found;
}

const Level& level() { return *choice().level; }
std::string level_error() { return choice().error; }

}  // namespace feedrate
