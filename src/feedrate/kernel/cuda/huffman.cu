// SPDX-License-Identifier: Apache-2.0
// Huffman decoding, one thread per item: from an entry point to the next. The threads of a warp decode MCUs of one image in
// step, block by block, with that image's tables in shared memory.
//
// A thread clears a block's coefficients when it begins the block, so that nobody else has to; it stores them interleaved with those of 31 other blocks,
// as the IDCT loads them. Bytes come without stuffing, four at a time, one word ahead of their use. Loops end after a known number of
// MCUs, blocks and coefficients, whatever the bits say, and no word past the last is read.

// The next 32 bits are those of `high` and `low` from `bit` on.
struct BitReader {
    const unsigned* words;
    unsigned at, limit;  // the next word to load; how many there are
    unsigned high, low, next, bit;

    __device__ unsigned load() {
        const unsigned word = at < limit ? __byte_perm(words[at], 0, 0x0123) : 0;
        ++at;
        return word;
    }
    __device__ unsigned peek() const { return __funnelshift_l(low, high, bit); }
    // 31 bits at the most.
    __device__ void drop(unsigned count) {
        bit += count;
        if (bit >= 32) {
            bit -= 32;
            high = low;
            low = next;
            next = load();
        }
    }
};

// `top`: the next 32 bits. 0 when they begin no code.
__device__ unsigned find_symbol(const unsigned* table, unsigned top) {
    const unsigned symbol = table[top >> (32 - kGpuLookahead)];
    if (symbol) return symbol;
    const unsigned* ends = table + (1 << kGpuLookahead);
    for (int length = kGpuLookahead + 1; length <= 16; ++length) {
        const unsigned code = top >> (32 - length);
        if (code >= ends[length - 11]) continue;
        const unsigned number = (code + ends[6 + length - 11]) & 255;
        return make_symbol(length, ends[12 + number / 4] >> (8 * (number % 4)) & 255);
    }
    return 0;
}

// The value that stands behind the code.
__device__ int value_of(unsigned symbol, unsigned top) {
    const unsigned rest = top << (symbol >> 8 & 31), size = symbol >> 16 & 15;
    const int magnitude = (int)(rest >> 1 >> (31 - size));
    return (int)rest < 0 ? magnitude : magnitude + 1 - (1 << size);
}

// What a block of the MCU needs to know; in shared memory.
struct GpuBlock {
    int component, dc, ac;  // tables, in words
    int offset, across, down;  // number of the block in MCU 0, 0 of the window; what an MCU to the right and one below add
    int quant;                 // of the DC value
};

// Decodes the AC symbols of one block. The index that it ends with: 63, or 128 more than that of the last coefficient, or, for what is no
// code or runs past the block, something between.
__device__ int read_ac(BitReader& in, const unsigned* table, const unsigned short* place, short* to) {
    int k = 0;
    while (k < 63) {
        const unsigned top = in.peek(), symbol = find_symbol(table, top);
        if (!symbol) return 64;
        k += symbol >> 24;
        in.drop(symbol & 63);
        if (to && k < 64) to[place[k]] = (short)value_of(symbol, top);
    }
    return k;
}

__device__ void clear_block(short* to, int dc) {
    const int apart = kGpuBlocksTogether * 8;
    *(uint4*)to = make_uint4(dc & 0xFFFF, 0, 0, 0);
    for (int row = 1; row < 8; ++row) *(uint4*)(to + row * apart) = make_uint4(0, 0, 0, 0);
}

__device__ int read_item(const GpuItem& item, const GpuBlock* blocks, int block_count, const unsigned* tables, const unsigned short* place,
                         const unsigned* words, unsigned word_count, short* coefficients) {
    BitReader in;
    in.words = words, in.at = item.word, in.limit = word_count, in.bit = item.first_bit;
    in.high = in.load(), in.low = in.load(), in.next = in.load();
    int a = item.predictor[0], b = item.predictor[1], c = item.predictor[2];
    for (int mcu = 0; mcu < item.count; ++mcu) {
        const int column = item.column + mcu;
        for (int i = 0; i < block_count; ++i) {
            const GpuBlock block = blocks[i];
            const unsigned top = in.peek(), symbol = find_symbol(tables + block.dc, top);
            if (!symbol) return kGpuBadCode;
            in.drop(symbol & 63);
            const int dc = (block.component == 0 ? a : block.component == 1 ? b : c) + value_of(symbol, top);
            if (dc != (short)dc) return kGpuBadValue;
            if (block.component == 0) a = dc;
            if (block.component == 1) b = dc;
            if (block.component == 2) c = dc;
            short* to = 0;
            if (column >= 0) {
                const long long number = block.offset + item.row * block.down + column * block.across;
                to = coefficients + (number / kGpuBlocksTogether * 64 * kGpuBlocksTogether + number % kGpuBlocksTogether * 8);
                clear_block(to, dc);
            }
            const int k = read_ac(in, tables + block.ac, place, to);
            if (k > 63 && k < 128) return kGpuBadCode;
            // A block of one value is decoded in another way, which differs where no encoder goes.
            const int flat = dc * block.quant;
            if (k == 128 && (flat > 8191 || flat < -8192)) return kGpuBadValue;
            if ((in.at - 3 - item.word) * 32 + in.bit > item.end) return kGpuBadEnd;
        }
    }
    const unsigned left = item.end - ((in.at - 3 - item.word) * 32 + in.bit);
    const bool same = a == item.end_predictor[0] && b == item.end_predictor[1] && c == item.end_predictor[2];
    if (item.how_it_ends == kGpuEndsAt && (left || !same)) return kGpuBadEnd;
    return item.how_it_ends == kGpuEndsPadded && left >= 8 ? kGpuBadEnd : 0;
}

__device__ const unsigned char kNatural[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

extern "C" __global__ void read_coefficients(const GpuImage* images, const GpuGroup* groups, const GpuItem* items, const unsigned* words,
                                             const unsigned* tables, short* coefficients, int* statuses, int word_count) {
    __shared__ unsigned own_tables[kGpuTables * kGpuTableWords];
    __shared__ unsigned short place[64];
    __shared__ GpuBlock blocks[kGpuMaxBlocks];
    const GpuGroup group = groups[blockIdx.x];
    const GpuImage& image = images[group.image];
    const unsigned* from = tables + (long long)group.image * kGpuTables * kGpuTableWords;
    for (int i = threadIdx.x; i < kGpuTables * kGpuTableWords; i += blockDim.x) own_tables[i] = from[i];
    for (int i = threadIdx.x; i < 64; i += blockDim.x) place[i] = (unsigned short)(kNatural[i] / 8 * 8 * kGpuBlocksTogether + kNatural[i] % 8);
    if (threadIdx.x == 0) {
        int n = 0;
        for (int i = 0; i < image.components; ++i) {
            const GpuComponent& c = image.component[i];
            const int dc = 2 * c.pair * kGpuTableWords;
            for (int y = 0; y < c.v; ++y)
                for (int x = 0; x < c.h && n < kGpuMaxBlocks; ++x, ++n) {
                    const GpuBlock block = {i, dc, dc + kGpuTableWords, c.first_block + y * c.wide + x, c.h, c.v * c.wide, image.quant[i][0]};
                    blocks[n] = block;
                }
        }
    }
    __syncthreads();
    short* own = coefficients + image.first_block * 64;
    for (int i = threadIdx.x; i < group.count; i += blockDim.x) {
        const GpuItem item = items[group.first + i];
        const int bad = read_item(item, blocks, image.blocks_per_mcu, own_tables, place, words, (unsigned)word_count, own);
        if (bad) atomicOr(statuses + image.sample, bad);
    }
}
