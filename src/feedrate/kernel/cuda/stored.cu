// SPDX-License-Identifier: Apache-2.0
// Whole images that stay on the device, one byte per channel: written once, then crops are cut from them in every
// epoch. What a crop goes through after that is the resize of pixels.cu, which reads the same structures as for an
// image that was just decoded.

// A crop of a stored image: a row of CROP in stored.py.
struct GpuCrop {
    long long address;          // of the stored image's first byte
    long long pixels, between;  // where these begin, in pixels
    long long weights[2];
    int stride, channels;  // of the stored image: pixels in a row, bytes of a pixel (1: gray)
    int left, top, width, height;
    int flip, filter, down_first;
    int taps[2];
    int sample;  // its number in the batch
};

enum { kGpuImageRoom = 2048 };  // as in stored.py
static_assert(sizeof(GpuCrop) == 88 && sizeof(GpuImage) <= kGpuImageRoom, "stored.py knows other sizes");

// Once per crop: what the resize reads of its image, and its weights.
extern "C" __global__ void prepare_crops(const GpuCrop* __restrict__ crops, GpuImage* images, int* bounds, int* weights,
                                         int* statuses, int width, int height) {
    const GpuCrop crop = crops[blockIdx.x];
    GpuImage& image = images[blockIdx.x];
    if (threadIdx.x == 0) {
        statuses[crop.sample] = 0;
        image.sample = crop.sample, image.status = 0;
        image.pixels = crop.pixels, image.between = crop.between;
        image.left = crop.left, image.top = crop.top, image.width = crop.width, image.height = crop.height;
        image.flip = crop.flip, image.filter = crop.filter, image.down_first = crop.down_first;
        for (int i = 0; i < 2; ++i) image.weights[i] = crop.weights[i], image.taps[i] = crop.taps[i];
    }
    int* own = bounds + (long long)blockIdx.x * 2 * (width + height);
    const bool sure_across = make_taps(crop.width, width, crop.filter, crop.taps[0], own, weights + crop.weights[0]);
    const bool sure_down =
        make_taps(crop.height, height, crop.filter, crop.taps[1], own + 2 * width, weights + crop.weights[1]);
    __syncthreads();
    if (!sure_across || !sure_down) atomicOr(statuses + crop.sample, kGpuUnsure);
}

// In the place of convert_pixels: the same pixels, from what is stored. A gray value three times, as there.
extern "C" __global__ void take_pixels(const GpuCrop* __restrict__ crops, const GpuTile* __restrict__ tiles,
                                       unsigned* __restrict__ pixels) {
    const GpuTile tile = tiles[blockIdx.x];
    const GpuCrop crop = crops[tile.image];
    const unsigned char* stored = (const unsigned char*)crop.address;
    for (int y = tile.first; y < tile.first + tile.count; ++y) {
        const unsigned char* from = stored + ((long long)(crop.top + y) * crop.stride + crop.left) * crop.channels;
        unsigned* to = pixels + crop.pixels + (long long)y * crop.width;
        for (int x = threadIdx.x; x < crop.width; x += blockDim.x)
            to[x] = crop.channels == 1 ? from[x] * 0x010101u
                                       : from[3 * x] | from[3 * x + 1] << 8 | (unsigned)from[3 * x + 2] << 16;
    }
}

// In the place of convert_pixels: pixels of images that are decoded whole go to `addresses`, by number in the batch (0:
// nowhere).
extern "C" __global__ void store_pixels(const GpuImage* __restrict__ images, const GpuTile* __restrict__ tiles,
                                        const unsigned char* __restrict__ samples,
                                        const long long* __restrict__ addresses, int channels) {
    const GpuTile tile = tiles[blockIdx.x];
    const GpuImage& image = images[tile.image];
    unsigned char* stored = (unsigned char*)addresses[image.sample];
    if (!stored) return;
    const int stored_channels = image.components == 1 ? 1 : channels;
    for (int y = tile.first; y < tile.first + tile.count; ++y) {
        unsigned char* to = stored + (long long)y * image.width * stored_channels;
        for (int x = threadIdx.x; x < image.width; x += blockDim.x)
            store_pixel(to + stored_channels * x,
                        pixel_at(image, samples + image.samples, image.left + x, image.top + y, channels == 1),
                        stored_channels);
    }
}
