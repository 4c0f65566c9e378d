// SPDX-License-Identifier: Apache-2.0
#include "recipe.h"

namespace feedrate {
namespace {

constexpr int kMost = 1 << 24;  // a float counts pixels up to here

bool is_inside(const Box& box, int width, int height) {
    return box.left >= 0 && box.top >= 0 && box.left < box.right && box.top < box.bottom && box.right <= width &&
           box.bottom <= height;
}

}  // namespace

const char* Recipe::fault() const {
    const Excerpt& e = excerpt;
    const float* reach = e.reach;
    if (channels != 1 && channels != 3) return "a recipe's mode must be RGB or L";
    if (filter < 0 || filter >= kFilters) return "the kernel does not have this filter";
    if (!is_inside(crop, kMost, kMost)) return "the crop is empty, or not inside an image";
    if (!(e.width > 0 && e.height > 0 && e.width <= kMost && e.height <= kMost))
        return "the size must be 1 to 16,777,216 pixels to each side";
    // Written so that NaN is a fault.
    if (!(reach[0] >= 0 && reach[1] >= 0 && reach[0] < reach[2] && reach[1] < reach[3] &&
          reach[2] <= static_cast<float>(crop.right - crop.left) &&
          reach[3] <= static_cast<float>(crop.bottom - crop.top)))
        return "the reach is empty, or not inside the crop";
    if (!is_inside(e.window, e.width, e.height)) return "the window is empty, or not inside the size";
    return e.window.pixels() > kMaxCropPixels ? "the recipe makes more pixels than the kernel does" : nullptr;
}

Target Recipe::target(uint8_t* pixels, Order order) const {
    const Box& window = excerpt.window;
    return {pixels,
            window.bottom - window.top,
            window.right - window.left,
            channels,
            mirrored,
            static_cast<Filter>(filter),
            order,
            upside_down,
            &excerpt};
}

}  // namespace feedrate
