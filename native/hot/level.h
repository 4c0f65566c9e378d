// SPDX-License-Identifier: Apache-2.0
// What is compiled once per level. The including file defines FEEDRATE_LEVEL (a namespace), FEEDRATE_TARGET (an
// attribute) and FEEDRATE_VECTORS, the bits of vectors: 256 for AVX2 (with BMI2), 128 for NEON, 0 for none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../colour.h"
#include "../level.h"

#if FEEDRATE_VECTORS == 256
#include <immintrin.h>
#elif FEEDRATE_VECTORS == 128
#include <arm_neon.h>
#endif

// Every function in hot/ carries one of these. No lambdas there: they would not inherit the target.
#define HOT FEEDRATE_TARGET
#define HOT_INLINE FEEDRATE_TARGET FEEDRATE_INLINE

namespace feedrate::FEEDRATE_LEVEL {
namespace {

// Pieces of one file: entropy.h uses idct.h, some use vectors.h, the others stand alone.
// clang-format off
#if FEEDRATE_VECTORS == 256
#include "vectors.h"
#endif
#include "idct.h"
#include "entropy.h"
#include "colour.h"
#include "resize.h"
// clang-format on

}  // namespace

inline Level make_level(const char* name) {
    return {name,     unstuff,    read_mcus, read_mcu_pairs, convert_rgb, widen,
            add_rows, widen_sums, shrink,    lower,          pack_rgb,    spread_rgb};
}

}  // namespace feedrate::FEEDRATE_LEVEL
