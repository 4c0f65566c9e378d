// SPDX-License-Identifier: Apache-2.0
// The GPU's source as a library for the CPU. DECODER names the file that batch.source() wrote.
#include "shim.h"

#include DECODER

extern "C" int launch(const char* name, unsigned across, unsigned down, unsigned threads, void* const* args) {
#define FEEDRATE_KERNEL(kernel) \
    if (!std::strcmp(name, #kernel)) return run_grid(kernel, across, down, threads, args), 0
    FEEDRATE_KERNEL(prepare);
    FEEDRATE_KERNEL(read_coefficients);
    FEEDRATE_KERNEL(transform_blocks);
    FEEDRATE_KERNEL(convert_pixels);
    FEEDRATE_KERNEL(resize_first);
    FEEDRATE_KERNEL(resize_last);
    FEEDRATE_KERNEL(prepare_crops);
    FEEDRATE_KERNEL(take_pixels);
    FEEDRATE_KERNEL(store_pixels);
    return 1;
}
