// SPDX-License-Identifier: Apache-2.0
// From planes to the batch: chroma at full size by libjpeg's triangle filter, its integer conversion to RGB, then
// Pillow's resize in two passes with eight bits between them (native/colour.cpp, native/resize.cpp: the same weights,
// rounding and order of passes). Pixels of four bytes lie between the steps, so that one load brings a pixel; a warp's
// loads are of neighbours in a line.

// One sample of full-size chroma; x and y count from the corner of the image.
__device__ int chroma_at(const GpuImage& image, const GpuComponent& c, const unsigned char* plane, int x, int y) {
    const long long stride = c.wide * 8;
    const bool blend = !(image.half_width && c.width <= 2);
    const int near = image.half_height ? y / 2 : y, column = image.half_width ? x / 2 : x;
    const unsigned char* at = plane - c.left + (near - c.top) * stride;
    if (!blend || (!image.half_width && !image.half_height)) return at[column];
    const int far = min(max(y % 2 == 0 ? near - 1 : near + 1, 0), c.height - 1);
    const unsigned char* other = plane - c.left + (far - c.top) * stride;
    if (!image.half_width) return (3 * at[column] + other[column] + (y % 2 == 0 ? 1 : 2)) >> 2;
    const int beside = min(max(x % 2 == 0 ? column - 1 : column + 1, 0), c.width - 1);
    if (image.half_height)
        return (3 * (3 * at[column] + other[column]) + 3 * at[beside] + other[beside] + (x % 2 == 0 ? 8 : 7)) >> 4;
    if (beside == column) return at[column];
    return (3 * at[column] + at[beside] + (x % 2 == 0 ? 1 : 2)) >> 2;
}

__device__ int to_byte(int value) { return min(max(value, 0), 255); }

// R, G, B, 0; a gray value three times. With `gray`, Pillow's convert("L") of that, in the lowest byte.
__device__ unsigned pixel_at(const GpuImage& image, const unsigned char* samples, int x, int y, bool gray) {
    const GpuComponent& luma = image.component[0];
    const int value = samples[luma.plane + (long long)(y - luma.top) * luma.wide * 8 + x - luma.left];
    if (image.components == 1) return value * 0x010101u;
    const int u = chroma_at(image, image.component[1], samples + image.component[1].plane, x, y) - 128;
    const int v = chroma_at(image, image.component[2], samples + image.component[2].plane, x, y) - 128;
    const int r = to_byte(value + ((91881 * v + 32768) >> 16));
    const int g = to_byte(value + ((-22554 * u - 46802 * v + 32768) >> 16));
    const int b = to_byte(value + ((116130 * u + 32768) >> 16));
    if (gray) return (r * 19595u + g * 38470u + b * 7471u + 32768u) >> 16;
    return r | g << 8 | b << 16;
}

extern "C" __global__ void convert_pixels(const GpuImage* __restrict__ images, const GpuTile* __restrict__ tiles,
                                          const unsigned char* __restrict__ samples, unsigned* __restrict__ pixels,
                                          int channels) {
    const GpuTile tile = tiles[blockIdx.x];
    const GpuImage& image = images[tile.image];
    for (int y = tile.first; y < tile.first + tile.count; ++y) {
        unsigned* to = pixels + image.pixels + (long long)y * image.width;
        for (int x = threadIdx.x; x < image.width; x += blockDim.x)
            to[x] = pixel_at(image, samples + image.samples, image.left + x, image.top + y, channels == 1);
    }
}

// Three sums of bytes times weights.
struct Sums {
    int r, g, b;

    __device__ void begin() { r = g = b = 1 << (kGpuWeightBits - 1); }
    __device__ void add(unsigned pixel, int weight) {
        r += (int)(pixel & 255) * weight;
        g += (int)(pixel >> 8 & 255) * weight;
        b += (int)(pixel >> 16 & 255) * weight;
    }
    __device__ unsigned pixel() const {
        return to_byte(r >> kGpuWeightBits) | to_byte(g >> kGpuWeightBits) << 8 | to_byte(b >> kGpuWeightBits) << 16;
    }
};

// One line of the pass down: `from` is the first of `count` lines, which are `stride` pixels apart.
__device__ unsigned weigh_down(const unsigned* from, int count, int stride, const int* weight, int weights_apart) {
    Sums sums;
    sums.begin();
    for (int k = 0; k < count; ++k, from += stride) sums.add(*from, weight[k * weights_apart]);
    return sums.pixel();
}

extern "C" __global__ void resize_first(const GpuImage* __restrict__ images, const GpuTile* __restrict__ tiles,
                                        const unsigned* __restrict__ pixels, const int* __restrict__ bounds,
                                        const int* __restrict__ weights, unsigned* __restrict__ between, int width,
                                        int height) {
    const GpuTile tile = tiles[blockIdx.x];
    const GpuImage& image = images[tile.image];
    const int* own = bounds + (long long)tile.image * 2 * (width + height);
    const unsigned* from = pixels + image.pixels;
    unsigned* to = between + image.between;
    if (image.down_first) {
        const int* weight = weights + image.weights[1];
        // An equal part of the output's lines.
        const int begin = (int)((long long)tile.first * height / image.height),
                  end = (int)((long long)(tile.first + tile.count) * height / image.height);
        for (int y = begin; y < end; ++y) {
            const int first = own[2 * (width + y)], count = own[2 * (width + y) + 1];
            for (int x = threadIdx.x; x < image.width; x += blockDim.x)
                to[(long long)y * image.width + x] =
                    weigh_down(from + (long long)first * image.width + x, count, image.width, weight + y, height);
        }
        return;
    }
    // Two lines at once: they share their weights.
    const int* weight = weights + image.weights[0];
    const int end = tile.first + tile.count;
    for (int y = tile.first; y < end; y += 2) {
        const int other = y + 1 < end ? 1 : 0;
        const unsigned* line = from + (long long)y * image.width;
        for (int x = threadIdx.x; x < width; x += blockDim.x) {
            const int first = own[2 * x], count = own[2 * x + 1];
            Sums sums[2];
            sums[0].begin(), sums[1].begin();
            for (int k = 0; k < count; ++k) {
                const int w = weight[k * width + x];
                sums[0].add(line[first + k], w);
                sums[1].add(line[first + k + other * image.width], w);
            }
            unsigned* at = to + (long long)y * width + x;
            at[0] = sums[0].pixel();
            if (other) at[width] = sums[1].pixel();
        }
    }
}

__device__ void store_pixel(unsigned char* to, unsigned pixel, int channels) {
    to[0] = (unsigned char)pixel;
    if (channels == 3) to[1] = (unsigned char)(pixel >> 8), to[2] = (unsigned char)(pixel >> 16);
}

// Four pixels of a line, aligned to four bytes.
__device__ void store_four(unsigned char* to, const unsigned* pixel, int channels) {
    unsigned* words = (unsigned*)to;
    if (channels == 1) {
        words[0] = (pixel[0] & 255) | (pixel[1] & 255) << 8 | (pixel[2] & 255) << 16 | pixel[3] << 24;
        return;
    }
    words[0] = pixel[0] | pixel[1] << 24;
    words[1] = pixel[1] >> 8 | pixel[2] << 16;
    words[2] = pixel[2] >> 16 | pixel[3] << 8;
}

extern "C" __global__ void resize_last(const GpuImage* __restrict__ images, const unsigned* __restrict__ between,
                                       const int* __restrict__ bounds, const int* __restrict__ weights,
                                       const int* __restrict__ statuses, unsigned char* __restrict__ out, int width,
                                       int height, int channels) {
    const GpuImage& image = images[blockIdx.y];
    const int* own = bounds + (long long)blockIdx.y * 2 * (width + height);
    const unsigned* from = between + image.between;
    const unsigned mask = statuses[image.sample] == 0 ? 0xFFFFFF : 0;
    unsigned char* to = out + (long long)image.sample * height * width * channels;
    const int* across = weights + image.weights[0];
    const int* down = weights + image.weights[1];
    const bool by_four = !image.down_first && width % 4 == 0;
    const int columns = by_four ? width / 4 : width;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < columns * height; i += gridDim.x * blockDim.x) {
        const int y = i / columns, column = i - y * columns;
        const int row = by_four || !image.down_first ? width + y : column, first = own[2 * row],
                  count = own[2 * row + 1];
        unsigned char* line = to + (long long)y * width * channels;
        if (by_four) {
            Sums sums[4];
#pragma unroll
            for (int n = 0; n < 4; ++n) sums[n].begin();
            const unsigned* in = from + (long long)first * width + 4 * column;
            for (int k = 0; k < count; ++k, in += width) {
                const uint4 four = *(const uint4*)in;
                const int w = down[k * height + y];
                sums[0].add(four.x, w), sums[1].add(four.y, w), sums[2].add(four.z, w), sums[3].add(four.w, w);
            }
            unsigned pixel[4];
#pragma unroll
            for (int n = 0; n < 4; ++n) pixel[n] = sums[image.flip ? 3 - n : n].pixel() & mask;
            store_four(line + (image.flip ? width - 4 - 4 * column : 4 * column) * channels, pixel, channels);
            continue;
        }
        unsigned pixel;
        if (image.down_first) {
            Sums sums;
            sums.begin();
            for (int k = 0; k < count; ++k)
                sums.add(from[(long long)y * image.width + first + k], across[k * width + column]);
            pixel = sums.pixel();
        } else {
            pixel = weigh_down(from + (long long)first * width + column, count, width, down + y, height);
        }
        store_pixel(line + (image.flip ? width - 1 - column : column) * channels, pixel & mask, channels);
    }
}
