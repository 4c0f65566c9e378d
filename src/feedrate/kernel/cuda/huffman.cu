// SPDX-License-Identifier: Apache-2.0
// Huffman decoding, one thread per item: from an entry point to the next. The threads of a warp decode MCUs of one
// image in step, block by block, with that image's tables in shared memory.
//
// A block's coefficients gather in shared memory and go out as a whole: single ones would be 32 stores to 32 places
// for a warp. Bytes come without stuffing, four at a time, one word ahead of their use. Loops end after a known number
// of MCUs, blocks and coefficients, whatever the bits say. Where an item ends is looked at once per block, and behind
// the last item there is room for as much as a block can read (kGpuReadAhead): no word needs a check of its own.

// The next 32 bits are those of `high` and `low` from `bit` on.
struct BitReader {
    const unsigned* words;
    unsigned at;  // the next word to load
    unsigned high, low, bit;
    unsigned next;  // as it lies in memory: who turned it at once would wait for it

    __device__ void begin(const unsigned* from, unsigned word, unsigned first_bit) {
        words = from;
        at = word + 3;
        high = turned(words[word]);
        low = turned(words[word + 1]);
        next = words[word + 2];
        bit = first_bit;
    }
    __device__ static unsigned turned(unsigned word) { return __byte_perm(word, 0, 0x0123); }
    __device__ unsigned peek() const { return __funnelshift_l(low, high, bit); }
    // 31 bits at the most.
    __device__ void drop(unsigned count) {
        bit += count;
        if (bit >= 32) {
            bit -= 32;
            high = low;
            low = turned(next);
            next = words[at++];
        }
    }
    __device__ unsigned position(unsigned first_word) const { return (at - 3 - first_word) * 32 + bit; }
};

// A code that the lookup does not hold. `top`: the next 32 bits. 0 when they begin no code.
__device__ unsigned find_long(const unsigned* longer, int lookahead, unsigned top) {
    for (int length = lookahead; length <= 16; ++length) {
        const unsigned code = top >> (32 - length);
        if (code >= longer[length - 8]) continue;
        const unsigned number = (code + longer[9 + length - 8]) & 255;
        return make_symbol(code, length, longer[18 + number / 4] >> (8 * (number % 4)) & 255, top >> (31 - length) & 1);
    }
    return 0;
}

__device__ short value_of(unsigned symbol, unsigned top) {
    return (short)((top >> ((0u - symbol) & 31)) + (symbol >> 8));
}

// What a block of the MCU needs to know; in shared memory.
struct GpuBlock {
    int component, dc, ac;  // tables, in words
    int offset, across,
        down;   // number of the block in MCU 0, 0 of the window; what an MCU to the right and one below add
    int quant;  // of the DC value
};

// Where something lies in shared memory. The compiler would work that out anew for every symbol, which takes longer
// than all the rest: so it is not told where the number comes from.
#ifdef __CUDA_ARCH__
typedef unsigned SharedAt;
__device__ SharedAt shared_at(const void* memory) {
    SharedAt at;
    asm volatile("{\n .reg .u64 wide;\n cvta.to.shared.u64 wide, %1;\n cvt.u32.u64 %0, wide;\n}"
                 : "=r"(at)
                 : "l"(memory)
                 : "memory");
    return at;
}
__device__ unsigned load_word(SharedAt at, unsigned number) {
    unsigned word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at + 4 * number));
    return word;
}
__device__ void store_word(SharedAt at, unsigned number, unsigned word) {
    asm volatile("st.shared.u32 [%0], %1;" : : "r"(at + 4 * number), "r"(word));
}
__device__ void store_half(SharedAt at, unsigned offset, short value) {
    asm volatile("st.shared.u16 [%0], %1;" : : "r"(at + offset), "h"(value));
}
#else
typedef unsigned char* SharedAt;
__device__ SharedAt shared_at(const void* memory) { return (SharedAt)memory; }
__device__ unsigned load_word(SharedAt at, unsigned number) {
    unsigned word;
    memcpy(&word, at + 4 * number, 4);
    return word;
}
__device__ void store_word(SharedAt at, unsigned number, unsigned word) { memcpy(at + 4 * number, &word, 4); }
__device__ void store_half(SharedAt at, unsigned offset, short value) { memcpy(at + offset, &value, 2); }
#endif

struct GpuShared {
    unsigned tables[kGpuPairs * kGpuPairWords];
    unsigned place[64];  // in bytes, of a zigzag index among a thread's coefficients
    GpuBlock blocks[kGpuMaxBlocks];
    // Of each thread one block, two coefficients to a word. Words of equal number lie side by side: threads never want
    // the same bank.
    unsigned coefficients[32 * kGpuGroupItems];
};

// Decodes the AC symbols of one block. The index that it ends with: 63, or 128 more than that of the last coefficient,
// or, for what is no code or runs past the block, something between.
__device__ int read_ac(BitReader& in, const GpuShared& shared, int table, SharedAt lookup, SharedAt place, SharedAt own,
                       bool wanted) {
    unsigned k = 0;
    while (k < 63) {
        const unsigned top = in.peek();
        unsigned symbol = load_word(lookup, top >> (32 - kGpuAcLookahead));
        if (!symbol) {
            symbol = find_long(shared.tables + table + (1 << kGpuAcLookahead), kGpuAcLookahead, top);
            if (!symbol) return 64;
        }
        k += symbol >> 24;
        in.drop(symbol & 63);
        if (wanted && k < 64) store_half(own, load_word(place, k), value_of(symbol, top));
    }
    return (int)k;
}

__device__ unsigned take_word(SharedAt own, unsigned number) {
    const unsigned word = load_word(own, number * kGpuGroupItems);
    store_word(own, number * kGpuGroupItems, 0);
    return word;
}

// Stores the block of a thread, and leaves zeros.
__device__ void put_block(SharedAt own, short* to) {
#pragma unroll
    for (unsigned row = 0; row < 8; ++row) {
        const unsigned x = take_word(own, 4 * row), y = take_word(own, 4 * row + 1), z = take_word(own, 4 * row + 2),
                       w = take_word(own, 4 * row + 3);
        *(uint4*)(to + 8 * row) = make_uint4(x, y, z, w);
    }
}

__device__ int read_item(const GpuItem& item, const GpuShared& shared, int block_count, const unsigned* words,
                         short* coefficients) {
    const SharedAt tables = shared_at(shared.tables), place = shared_at(shared.place),
                   own = shared_at(shared.coefficients + threadIdx.x);
    for (unsigned i = 0; i < 32; ++i) store_word(own, i * kGpuGroupItems, 0);
    BitReader in;
    in.begin(words, item.word, item.first_bit);
    int a = item.predictor[0], b = item.predictor[1], c = item.predictor[2];
    for (int mcu = 0; mcu < item.count; ++mcu) {
        const int column = item.column + mcu;
        for (int i = 0; i < block_count; ++i) {
            const GpuBlock block = shared.blocks[i];
            const unsigned top = in.peek();
            unsigned symbol = load_word(tables, block.dc + (top >> (32 - kGpuDcLookahead)));
            if (!symbol) {
                symbol = find_long(shared.tables + block.dc + (1 << kGpuDcLookahead), kGpuDcLookahead, top);
                if (!symbol) return kGpuBadCode;
            }
            in.drop(symbol & 63);
            const int dc = (block.component == 0 ? a : block.component == 1 ? b : c) + value_of(symbol, top);
            if (dc != (short)dc) return kGpuBadValue;
            if (block.component == 0) a = dc;
            if (block.component == 1) b = dc;
            if (block.component == 2) c = dc;
            const bool wanted = column >= 0;
            const int k = read_ac(in, shared, block.ac, tables + 4 * block.ac, place, own, wanted);
            if (k > 63 && k < 128) return kGpuBadCode;
            if (wanted) {
                store_half(own, 0, (short)dc);
                put_block(
                    own, coefficients + (long long)(block.offset + item.row * block.down + column * block.across) * 64);
            }
            // A block of one value is decoded in another way, which differs where no encoder goes.
            const int flat = dc * block.quant;
            if (k == 128 && (flat > 8191 || flat < -8192)) return kGpuBadValue;
            if (in.position(item.word) > item.end) return kGpuBadEnd;
        }
    }
    const unsigned left = item.end - in.position(item.word);
    const bool same = a == item.end_predictor[0] && b == item.end_predictor[1] && c == item.end_predictor[2];
    if (item.how_it_ends == kGpuEndsAt && (left || !same)) return kGpuBadEnd;
    return item.how_it_ends == kGpuEndsPadded && left >= 8 ? kGpuBadEnd : 0;
}

__device__ const unsigned char kNatural[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

extern "C" __global__ void read_coefficients(const GpuImage* __restrict__ images, const GpuGroup* __restrict__ groups,
                                             const GpuItem* __restrict__ items, const unsigned* __restrict__ words,
                                             const unsigned* __restrict__ tables, short* __restrict__ coefficients,
                                             int* __restrict__ statuses) {
    __shared__ GpuShared shared;
    const GpuGroup group = groups[blockIdx.x];
    const GpuImage& image = images[group.image];
    const unsigned* from = tables + (long long)group.image * kGpuPairs * kGpuPairWords;
    for (int i = threadIdx.x; i < kGpuPairs * kGpuPairWords; i += blockDim.x) shared.tables[i] = from[i];
    for (int i = threadIdx.x; i < 64; i += blockDim.x)
        shared.place[i] = kNatural[i] / 2 * 4 * kGpuGroupItems + kNatural[i] % 2 * 2;
    if (threadIdx.x == 0) {
        int n = 0;
        for (int i = 0; i < image.components; ++i) {
            const GpuComponent& c = image.component[i];
            const int dc = c.pair * kGpuPairWords;
            for (int y = 0; y < c.v; ++y)
                for (int x = 0; x < c.h && n < kGpuMaxBlocks; ++x, ++n) {
                    const GpuBlock block = {i,   dc,           dc + kGpuDcWords, c.first_block + y * c.wide + x,
                                            c.h, c.v * c.wide, image.quant[i][0]};
                    shared.blocks[n] = block;
                }
        }
    }
    __syncthreads();
    short* own = coefficients + image.first_block * 64;
    for (int i = threadIdx.x; i < group.count; i += blockDim.x) {
        const GpuItem item = items[group.first + i];
        const int bad = read_item(item, shared, image.blocks_per_mcu, words, own);
        if (bad) atomicOr(statuses + image.sample, bad);
    }
}
