// SPDX-License-Identifier: Apache-2.0
// What CUDA source needs to run on the CPU: a thread block is one thread, or as many real ones, and blocks run one after another.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static

struct Place {
    unsigned x = 0, y = 0, z = 0;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

static thread_local Place threadIdx, blockIdx;
static Place blockDim, gridDim;
static pthread_barrier_t block_barrier;

inline void __syncthreads() {
    if (blockDim.x > 1) pthread_barrier_wait(&block_barrier);
}
inline int atomicOr(int* at, int bits) { return __atomic_fetch_or(at, bits, __ATOMIC_RELAXED); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((((static_cast<uint64_t>(high) << 32) | low) << (shift & 31)) >> 32);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
    return result;
}
using std::max;
using std::min;

template <class... Args, size_t... I>
void call(void (*kernel)(Args...), void* const* args, std::index_sequence<I...>) {
    kernel(*static_cast<std::decay_t<Args>*>(args[I])...);
}

// `args` points to the arguments. A kernel must be right for any number of threads in a block.
template <class... Args>
void run_grid(void (*kernel)(Args...), unsigned across, unsigned down, unsigned threads, void* const* args) {
    gridDim = {across, down, 1};
    blockDim = {threads, 1, 1};
    pthread_barrier_init(&block_barrier, nullptr, threads);
    const auto run = [&](unsigned x, unsigned y, unsigned thread) {
        blockIdx = {x, y, 0};
        threadIdx = {thread, 0, 0};
        call(kernel, args, std::index_sequence_for<Args...>());
    };
    for (unsigned y = 0; y < down; ++y)
        for (unsigned x = 0; x < across; ++x) {
            std::vector<std::thread> others;
            for (unsigned thread = 1; thread < threads; ++thread) others.emplace_back(run, x, y, thread);
            run(x, y, 0);
            for (std::thread& other : others) other.join();
        }
    pthread_barrier_destroy(&block_barrier);
}
