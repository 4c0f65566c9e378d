// SPDX-License-Identifier: Apache-2.0
// Once per image: its status, Huffman lookups from the codes of its headers, and the weights of its resize.
//
// Weights are those of native/resize.cpp: the same expressions in the same order, in doubles, compiled without fused
// multiply-add. A device's sine and cosine may differ from the C library's in the last bit. That shows only where a
// weight lies within a hair of the border between two integers: such an image is marked as unsure, and decoded by the
// CPU.

// A symbol: bits of code and value together; from bit 8 on, in 16 bits, what makes the value of these bits: it takes
// the code away, and more if the first bit of the value is 0; from bit 24 on how far the zigzag index moves (128: end
// of the block). 0: no such code.
__device__ unsigned make_symbol(unsigned code, int length, unsigned symbol, bool positive) {
    const unsigned size = symbol & 15, run = symbol >> 4;
    const unsigned move = size == 0 && run != 15 ? 128 : run + 1;
    const unsigned base = (positive ? 0u : 1u - (1u << size)) - (code << size);
    return (length + size) | (base & 0xFFFF) << 8 | move << 24;
}

// The planner has seen that the counts make a prefix code.
__device__ void build_table(const GpuCode& code, int lookahead, unsigned* table) {
    const int all = 1 << lookahead;
    unsigned* longer = table + all;
    int end = 0;  // of the part of the lookup that codes fill
    int first = 0, used = 0;
    for (int length = 1; length <= 16; ++length) {
        const int count = code.counts[length - 1];
        if (length < lookahead) {
            const int spread = lookahead - length;
            for (int i = threadIdx.x; i < count << spread; i += blockDim.x) {
                const int n = i >> spread;
                table[(first << spread) + i] =
                    make_symbol(first + n, length, code.symbols[(used + n) & 255], i >> (spread - 1) & 1);
            }
            if (count) end = (first + count) << spread;
        }
        if (length >= 8 && threadIdx.x == 0) {
            longer[length - 8] = count ? first + count : 0;
            longer[9 + length - 8] = (unsigned)(used - first);
        }
        first = (first + count) << 1;
        used += count;
    }
    for (int i = end + threadIdx.x; i < all; i += blockDim.x) table[i] = 0;
    for (int i = threadIdx.x; i < 64; i += blockDim.x) {
        const unsigned char* s = code.symbols + 4 * i;
        longer[18 + i] = s[0] | s[1] << 8 | s[2] << 16 | (unsigned)s[3] << 24;
    }
}

__device__ double sinc(double x) {
    const double pi = 3.14159265358979323846;
    return x == 0.0 ? 1.0 : sin(x * pi) / (x * pi);
}

// By Pillow's numbers: 0 nearest, 1 lanczos, 2 bilinear, 3 bicubic, 4 box, 5 hamming.
__device__ double curve_at(int filter, double x) {
    const double pi = 3.14159265358979323846, far = fabs(x);
    switch (filter) {
        case 4: return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
        case 5: return far >= 1.0 ? 0.0 : sinc(far) * (0.54f + 0.46f * cos(far * pi));
        case 3:
            if (far < 1.0) return (1.5 * far - 2.5) * far * far + 1;
            return far < 2.0 ? (((far - 5) * far + 8) * far - 4) * -0.5 : 0.0;
        case 1: return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
        default: return far < 1.0 ? 1.0 - far : 0.0;
    }
}

// `first` and `count` of output pixel i go to bounds[2 * i], its k-th weight to weights[k * out_size + i]. Returns
// false when unsure.
__device__ bool make_taps(int in_size, int out_size, int filter, int most, int* bounds, int* weights) {
    const int one = 1 << kGpuWeightBits;
    if (in_size == out_size) {  // the pass that Pillow leaves out
        for (int i = threadIdx.x; i < out_size; i += blockDim.x)
            bounds[2 * i] = i, bounds[2 * i + 1] = 1, weights[i] = one;
        return true;
    }
    const double scale = (double)in_size / out_size;
    if (filter == 0) {
        // Pillow adds the scale up, and rounding adds up with it: one thread does.
        if (threadIdx.x) return true;
        double center = scale * 0.5;
        for (int i = 0; i < out_size; ++i, center += scale) {
            const int first = (int)center;
            bounds[2 * i] = first < in_size - 1 ? first : in_size - 1, bounds[2 * i + 1] = 1, weights[i] = one;
        }
        return true;
    }
    const double filter_scale = scale > 1.0 ? scale : 1.0, step = 1.0 / filter_scale;
    const double support = (filter == 4 ? 0.5 : filter == 3 ? 2.0 : filter == 1 ? 3.0 : 1.0) * filter_scale;
    const bool by_sine = filter == 1 || filter == 5;
    bool sure = true;
    for (int i = threadIdx.x; i < out_size; i += blockDim.x) {
        const double center = (i + 0.5) * scale;
        int low = (int)(center - support + 0.5), high = (int)(center + support + 0.5);
        low = low > 0 ? low : 0;
        high = high < in_size ? high : in_size;
        const int count = high - low < most ? high - low : most;
        double total = 0;
        for (int x = 0; x < count; ++x) total += curve_at(filter, (x + low - center + 0.5) * step);
        for (int x = 0; x < count; ++x) {
            const double w = curve_at(filter, (x + low - center + 0.5) * step), share = total != 0.0 ? w / total : w;
            const double value = (share < 0 ? -0.5 : 0.5) + share * one;
            const int fixed = (int)value;
            const double rest = fabs(value - fixed);
            if (by_sine && (rest < 1e-7 || rest > 1 - 1e-7)) sure = false;
            weights[x * out_size + i] = fixed;
        }
        bounds[2 * i] = low, bounds[2 * i + 1] = count;
    }
    return sure;
}

extern "C" __global__ void prepare(const GpuImage* images, unsigned* tables, int* bounds, int* weights, int* statuses,
                                   int width, int height) {
    const GpuImage& image = images[blockIdx.x];
    if (threadIdx.x == 0) statuses[image.sample] = image.status;
    for (int pair = 0; image.blocks && pair < kGpuPairs; ++pair) {
        unsigned* to = tables + ((long long)blockIdx.x * kGpuPairs + pair) * kGpuPairWords;
        build_table(image.code[2 * pair], kGpuDcLookahead, to);
        build_table(image.code[2 * pair + 1], kGpuAcLookahead, to + kGpuDcWords);
    }
    int* own = bounds + (long long)blockIdx.x * 2 * (width + height);
    const bool sure_across =
        make_taps(image.width, width, image.filter, image.taps[0], own, weights + image.weights[0]);
    const bool sure_down =
        make_taps(image.height, height, image.filter, image.taps[1], own + 2 * width, weights + image.weights[1]);
    __syncthreads();
    if (!sure_across || !sure_down) atomicOr(statuses + image.sample, kGpuUnsure);
}
