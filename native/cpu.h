// SPDX-License-Identifier: Apache-2.0
// Hot loops are compiled twice on x86-64, once plainly and once for AVX2 and BMI2; which one runs is asked once. (Not by
// target_clones: its resolvers run before a sanitizer is up, and musl has none.)
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(FEEDRATE_PLAIN)
#define FEEDRATE_X86 1
#define FEEDRATE_AVX2 __attribute__((target("avx2,bmi,bmi2")))
#else
#define FEEDRATE_X86 0
#endif

#define FEEDRATE_INLINE inline __attribute__((always_inline))
#define FEEDRATE_UNLIKELY(x) __builtin_expect(!!(x), 0)

namespace feedrate {

inline bool has_avx2() {
#if FEEDRATE_X86
    static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
    return has;
#else
    return false;
#endif
}

}  // namespace feedrate
