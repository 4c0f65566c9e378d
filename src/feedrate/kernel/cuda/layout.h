// SPDX-License-Identifier: Apache-2.0
// What native/gpu_plan.cpp hands to the kernels of this folder: the one description for both. It compiles as C++ and,
// without any other header, as CUDA.
//
// Terms: an item is a run of MCUs of one row that one thread decodes; a group is what one thread block takes, items
// of one image; the window is the MCUs that a crop needs. A kernel trusts what the planner wrote (numbers of blocks,
// places in buffers) and nothing that comes from the entropy-coded data or the entry points.
#pragma once

enum {
    // Bits that a Huffman lookup sees: a code and the bit behind it. Longer codes are one in 300 of photographs' AC
    // symbols.
    kGpuDcLookahead = 9,
    kGpuAcLookahead = 11,
    kGpuLongWords = 2 * 9 + 64,  // for lengths 8 to 16 code ends and symbol offsets, then symbols
    kGpuDcWords = (1 << kGpuDcLookahead) + kGpuLongWords,
    kGpuAcWords = (1 << kGpuAcLookahead) + kGpuLongWords,
    kGpuPairWords = kGpuDcWords + kGpuAcWords,
    kGpuPairs = 2,          // of Huffman tables that an image may have
    kGpuGroupItems = 160,   // at the most: so many threads share tables
    kGpuIdctThreads = 128,  // at the most
    kGpuTilePixels = 4096,  // about as many as one thread block converts
    kGpuMaxBlocks = 10,     // of an MCU
    kGpuWeightBits = 22,    // Pillow's
    // Behind the last item: bytes that a thread may read before it looks where its item ends, a block of 64 codes of 31
    // bits and what is read ahead.
    kGpuReadAhead = 512,
};

// How an item must end.
enum {
    kGpuEndsBefore = 0,  // not past `end`
    kGpuEndsAt = 1,      // at `end`, with end_predictor: the next entry point says so
    kGpuEndsPadded = 2,  // less than eight bits before `end`: a restart marker follows
};

// Why the pixels of an image are not good; bits, of which several may be set. 0: they are.
enum {
    kGpuRefused = 1,   // the planner found markers where none may be
    kGpuBadCode = 2,   // bits that are no code, or run past a block
    kGpuBadValue = 4,  // a DC value beyond what is decoded alike everywhere
    kGpuBadEnd = 8,    // the data ends early, or an entry point is wrong
    kGpuUnsure = 16,   // a weight so close to a rounding border that another sine might round it otherwise
};

struct GpuItem {
    unsigned word;  // the one it begins in
    unsigned end;   // in bits from the start of that word
    short predictor[3], end_predictor[3];
    unsigned short row;       // of the window
    short column;             // of the window; below zero: MCUs to pass over
    unsigned short count;     // MCUs
    unsigned char first_bit;  // where it begins in its first word
    unsigned char how_it_ends;
};

struct GpuGroup {
    int image, first, count;
};

// Lines of one crop: images differ in size, so that an equal share of each would leave one large image for last.
struct GpuTile {
    int image, first, count;
};

struct GpuComponent {
    int h, v;               // blocks per MCU
    int wide, first_block;  // blocks in a row of the window; number of its first block among the image's
    int plane;              // where its samples begin among the image's
    int width, height;      // of the whole image, in samples
    int left, top;          // of the window, in samples
    int pair;               // of Huffman tables
};

struct GpuCode {
    unsigned char counts[16], symbols[256];
};

// Aligned, so that eight quantisers are one load.
struct alignas(16) GpuImage {
    unsigned short quant[3][64];  // of each component, by row and column
    GpuComponent component[3];
    GpuCode code[2 * kGpuPairs];         // DC and AC of the first pair, then of the second
    long long first_block;               // of its coefficients
    long long samples, pixels, between;  // where these begin: in bytes, in pixels, in pixels
    long long weights[2];                // across, down
    int taps[2];                         // weights per output pixel at the most
    int sample;                          // its number in the batch
    int leader;  // the sample that carries what this one is cut from: another's window, or its own
    int status;  // what it begins with
    int components, blocks;
    int half_width, half_height;   // of chroma
    int left, top, width, height;  // the crop
    int flip, filter, down_first;
    int blocks_per_mcu;
};
