// SPDX-License-Identifier: Apache-2.0
// The same source as for AVX2, with more registers, two blocks in a vector and, where the compiler makes the vectors,
// wider ones.
#include "cpu.h"
#if FEEDRATE_X86
#define FEEDRATE_LEVEL avx512
#ifdef __clang__
#define FEEDRATE_TARGET __attribute__((target("avx2,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq")))
#else
// GCC 12 means its own header.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define FEEDRATE_TARGET \
    __attribute__((target("avx2,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")))
#endif
#define FEEDRATE_VECTORS 256
#define FEEDRATE_WIDE 1
#include "hot/level.h"

namespace feedrate {
extern const Level kAvx512 = avx512::make_level("avx512");
}
#endif
