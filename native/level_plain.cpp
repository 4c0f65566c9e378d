// SPDX-License-Identifier: Apache-2.0
// For any machine. On 64-bit Arm the compiler makes vectors of the same loops: every such machine has NEON.
#define FEEDRATE_LEVEL plain
#define FEEDRATE_TARGET
#define FEEDRATE_VECTORS 0
#include "hot/level.h"

namespace feedrate {
#ifdef __aarch64__
extern const Level kPlain = plain::make_level("neon");
#else
extern const Level kPlain = plain::make_level("plain");
#endif
}  // namespace feedrate
