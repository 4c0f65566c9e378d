// SPDX-License-Identifier: Apache-2.0
// The inverse DCT, one thread per block: no sums pass between threads, and 32 threads load and store whole lines of
// memory together. Method, scaling and rounding are those of libjpeg's accurate integer IDCT (jidctint.c of the
// Independent JPEG Group; Loeffler, Ligtenberg and Moschytz, ICASSP 1989), with the sums cut to 16 bits between the
// passes as native/hot/idct.h has it. Sums wrap instead of overflowing: only damaged files get there.

// Eight values, `apart` from each other.
__device__ void transform_line(int* v, int apart, int shift) {
    typedef unsigned U;
    const U half = 1u << (shift - 1);
    const U x0 = v[0], x1 = v[apart], x2 = v[2 * apart], x3 = v[3 * apart], x4 = v[4 * apart], x5 = v[5 * apart],
            x6 = v[6 * apart], x7 = v[7 * apart];
    const U s = (x2 + x6) * 4433u, even2 = s - x6 * 15137u, even3 = s + x2 * 6270u;
    const U even0 = ((x0 + x4) << 13) + half, even1 = ((x0 - x4) << 13) + half;
    const U e[4] = {even0 + even3, even1 + even2, even1 - even2, even0 - even3};
    const U z5 = (x7 + x3 + x5 + x1) * 9633u;
    const U z1 = (x7 + x1) * 7373u, z2 = (x5 + x3) * 20995u, z3 = z5 - (x7 + x3) * 16069u, z4 = z5 - (x5 + x1) * 3196u;
    const U o[4] = {x1 * 12299u - z1 + z4, x3 * 25172u - z2 + z3, x5 * 16819u - z2 + z4, x7 * 2446u - z1 + z3};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        v[j * apart] = min(max((int)(e[j] + o[j]) >> shift, -32768), 32767);
        v[(7 - j) * apart] = min(max((int)(e[j] - o[j]) >> shift, -32768), 32767);
    }
}

// Two coefficients times two quantisers, cut to 16 bits.
__device__ void unpack(unsigned pair, unsigned quant, int* to) {
    to[0] = (short)((pair & 0xFFFF) * (quant & 0xFFFF));
    to[1] = (short)((pair >> 16) * (quant >> 16));
}

__device__ unsigned pack(const int* v) {
    unsigned word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) word |= (unsigned)min(max(v[i] + 128, 0), 255) << (8 * i);
    return word;
}

extern "C" __global__ void transform_blocks(const GpuImage* __restrict__ images, const short* __restrict__ coefficients,
                                            unsigned char* __restrict__ samples, int* __restrict__ statuses) {
    // Threads bring each other's blocks, so that they load whole lines; the ninth part keeps them in different banks.
    __shared__ uint4 rows[kGpuIdctThreads * 9];
    const GpuImage& image = images[blockIdx.y];
    // What is cut from bad blocks is bad; what another crop's weights are is not its business.
    if (blockIdx.x == 0 && threadIdx.x == 0 && image.leader != image.sample)
        statuses[image.sample] |= statuses[image.leader] & ~kGpuUnsure;
    // Of a bad image, coefficients are missing: it becomes gray rather than what stood in that memory before.
    const bool is_bad = (statuses[image.leader] & ~kGpuUnsure) != 0;
    const uint4* from = (const uint4*)(coefficients + image.first_block * 64);
    for (int first = blockIdx.x * blockDim.x; first < image.blocks; first += gridDim.x * blockDim.x) {
        const int here = min((int)blockDim.x, image.blocks - first);
        __syncthreads();
        for (int i = threadIdx.x; i < 8 * here; i += blockDim.x)
            rows[i / 8 * 9 + i % 8] = is_bad ? uint4{} : from[8 * (long long)first + i];
        __syncthreads();
        if ((int)threadIdx.x >= here) continue;
        const int n = first + threadIdx.x;
        int i = 0;
        while (i + 1 < image.components && n >= image.component[i + 1].first_block) ++i;
        const GpuComponent& c = image.component[i];
        const int within = n - c.first_block, y = within / c.wide, x = within - y * c.wide;
        int v[64];
#pragma unroll
        for (int row = 0; row < 8; ++row) {
            const uint4 a = rows[threadIdx.x * 9 + row], q = *(const uint4*)(image.quant[i] + 8 * row);
            unpack(a.x, q.x, v + 8 * row), unpack(a.y, q.y, v + 8 * row + 2), unpack(a.z, q.z, v + 8 * row + 4),
                unpack(a.w, q.w, v + 8 * row + 6);
        }
#pragma unroll
        for (int column = 0; column < 8; ++column) transform_line(v + column, 8, 11);
#pragma unroll
        for (int row = 0; row < 8; ++row) transform_line(v + 8 * row, 1, 18);
        const long long stride = c.wide * 8;
        unsigned char* to = samples + image.samples + c.plane + y * 8 * stride + x * 8;
#pragma unroll
        for (int row = 0; row < 8; ++row)
            *(uint2*)(to + row * stride) = make_uint2(pack(v + 8 * row), pack(v + 8 * row + 4));
    }
}
