// SPDX-License-Identifier: Apache-2.0
#include "cpu.h"
#if FEEDRATE_X86
#define FEEDRATE_LEVEL avx2
#define FEEDRATE_TARGET __attribute__((target("avx2,bmi,bmi2")))
#define FEEDRATE_VECTORS 256
#include "hot/level.h"

namespace feedrate {
extern const Level kAvx2 = avx2::make_level("avx2");
}
#endif
