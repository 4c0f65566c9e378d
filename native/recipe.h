// SPDX-License-Identifier: Apache-2.0
// What is to be made of a JPEG, as feedrate.kernel.Recipe says it: a value that knows nothing of the file yet.
#pragma once

#include <cstdint>

#include "jpeg.h"

namespace feedrate {

struct Recipe {
    Box crop{};
    Excerpt excerpt{};  // of the crop
    int channels = 3, filter = 0;
    bool mirrored = false, upside_down = false;

    // Null, or why nobody can make it. Whether the crop lies inside the image is not known here.
    const char* fault() const;
    // The recipe has to live as long as the target.
    Target target(uint8_t* pixels, Order order) const;
};

}  // namespace feedrate
