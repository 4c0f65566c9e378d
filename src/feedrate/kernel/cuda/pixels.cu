// SPDX-License-Identifier: Apache-2.0
// From planes to the batch: chroma at full size by libjpeg's triangle filter, its integer conversion to RGB, then Pillow's resize in two
// passes with eight bits between them (native/colour.cpp, native/resize.cpp: the same weights, rounding and order of passes).
// Pixels of four bytes lie between the steps, so that one load brings a pixel; a warp's loads are of neighbours in a line.

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
    if (image.half_height) return (3 * (3 * at[column] + other[column]) + 3 * at[beside] + other[beside] + (x % 2 == 0 ? 8 : 7)) >> 4;
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

extern "C" __global__ void convert_pixels(const GpuImage* images, const unsigned char* samples, unsigned* pixels, int channels) {
    const GpuImage& image = images[blockIdx.y];
    for (int y = blockIdx.x; y < image.height; y += gridDim.x) {
        unsigned* to = pixels + image.pixels + (long long)y * image.width;
        for (int x = threadIdx.x; x < image.width; x += blockDim.x)
            to[x] = pixel_at(image, samples + image.samples, image.left + x, image.top + y, channels == 1);
    }
}

// The sum over `count` pixels, `apart` from each other, with weights that are `weights_apart`.
__device__ unsigned weigh(const unsigned* from, int count, int apart, const int* weight, int weights_apart) {
    const int half = 1 << (kGpuWeightBits - 1);
    int r = half, g = half, b = half;
    for (int k = 0; k < count; ++k) {
        const unsigned pixel = from[(long long)k * apart];
        const int w = weight[k * weights_apart];
        r += (int)(pixel & 255) * w;
        g += (int)(pixel >> 8 & 255) * w;
        b += (int)(pixel >> 16 & 255) * w;
    }
    return to_byte(r >> kGpuWeightBits) | to_byte(g >> kGpuWeightBits) << 8 | to_byte(b >> kGpuWeightBits) << 16;
}

// Output pixel x, y of one pass. `stride` is that of what comes in.
__device__ unsigned pass_across(const unsigned* from, long long stride, int x, int y, const int* bounds, const int* weights, int out_width) {
    return weigh(from + y * stride + bounds[2 * x], bounds[2 * x + 1], 1, weights + x, out_width);
}

__device__ unsigned pass_down(const unsigned* from, int stride, int x, int y, const int* bounds, const int* weights, int out_height) {
    return weigh(from + (long long)bounds[2 * y] * stride + x, bounds[2 * y + 1], stride, weights + y, out_height);
}

extern "C" __global__ void resize_first(const GpuImage* images, const unsigned* pixels, const int* bounds, const int* weights, unsigned* between,
                                        int width, int height) {
    const GpuImage& image = images[blockIdx.y];
    const int* own = bounds + (long long)blockIdx.y * 2 * (width + height);
    const unsigned* from = pixels + image.pixels;
    const int rows = image.down_first ? height : image.height, columns = image.down_first ? image.width : width;
    for (int y = blockIdx.x; y < rows; y += gridDim.x) {
        unsigned* to = between + image.between + (long long)y * columns;
        for (int x = threadIdx.x; x < columns; x += blockDim.x)
            to[x] = image.down_first ? pass_down(from, image.width, x, y, own + 2 * width, weights + image.weights[1], height)
                                     : pass_across(from, image.width, x, y, own, weights + image.weights[0], width);
    }
}

extern "C" __global__ void resize_last(const GpuImage* images, const unsigned* between, const int* bounds, const int* weights, const int* statuses,
                                       unsigned char* out, int width, int height, int channels) {
    const GpuImage& image = images[blockIdx.y];
    const int* own = bounds + (long long)blockIdx.y * 2 * (width + height);
    const unsigned* from = between + image.between;
    const bool good = statuses[image.sample] == 0;
    for (int y = blockIdx.x; y < height; y += gridDim.x) {
        unsigned char* to = out + ((long long)image.sample * height + y) * width * channels;
        for (int x = threadIdx.x; x < width; x += blockDim.x) {
            unsigned pixel = image.down_first ? pass_across(from, image.width, x, y, own, weights + image.weights[0], width)
                                              : pass_down(from, width, x, y, own + 2 * width, weights + image.weights[1], height);
            pixel = good ? pixel : 0;
            unsigned char* at = to + (image.flip ? width - 1 - x : x) * channels;
            at[0] = (unsigned char)pixel;
            if (channels == 3) at[1] = (unsigned char)(pixel >> 8), at[2] = (unsigned char)(pixel >> 16);
        }
    }
}
