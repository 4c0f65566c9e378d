// SPDX-License-Identifier: Apache-2.0
// For any machine: what vectors there are, the compiler makes.
#define FEEDRATE_LEVEL plain
#define FEEDRATE_TARGET
#define FEEDRATE_VECTORS 0
#include "hot/level.h"

namespace feedrate {
extern const Level kPlain = plain::make_level("plain");
}
