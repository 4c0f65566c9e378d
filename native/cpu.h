// SPDX-License-Identifier: Apache-2.0
// Which instructions the machine has, and marks for the compiler. Hot loops are compiled once per level (hot/,
// level_*.cpp), by a target on every function: nothing inlined from the standard library is then built for instructions
// that a machine may lack.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#define FEEDRATE_X86 1
#else
#define FEEDRATE_X86 0
#endif

#if defined(__aarch64__) && defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define FEEDRATE_NEON 1
#else
#define FEEDRATE_NEON 0
#endif

#define FEEDRATE_INLINE inline __attribute__((always_inline))
#define FEEDRATE_UNLIKELY(x) __builtin_expect(!!(x), 0)
