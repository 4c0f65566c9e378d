// SPDX-License-Identifier: Apache-2.0
// For 64-bit Arm: every such machine has it.
#include "cpu.h"
#if FEEDRATE_NEON
#define FEEDRATE_LEVEL neon
#define FEEDRATE_TARGET
#define FEEDRATE_VECTORS 128
#include "hot/level.h"

namespace feedrate {
extern const Level kNeon = neon::make_level("neon");
}
#endif
