// SPDX-License-Identifier: Apache-2.0
// From entropy-coded bytes to samples: takes out the stuffing, decodes Huffman codes block by block, and hands each block to the IDCT.
namespace feedrate::FEEDRATE_LEVEL {

namespace {

// Whether a byte of the next ones is 0xFF, and where the first one is.
#if FEEDRATE_VECTORS
constexpr int kUnstuffStep = 32;
FEEDRATE_HOT_INLINE uint32_t copy_step(const uint8_t* from, uint8_t* to) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
    return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(-1))));
}
FEEDRATE_HOT_INLINE int first_of(uint32_t found, const uint8_t*) { return __builtin_ctz(found); }
#else
constexpr int kUnstuffStep = 8;
FEEDRATE_HOT_INLINE uint64_t copy_step(const uint8_t* from, uint8_t* to) {
    uint64_t word;
    std::memcpy(&word, from, 8);
    std::memcpy(to, &word, 8);
    return (~word - 0x0101010101010101u) & word & 0x8080808080808080u;
}
FEEDRATE_HOT_INLINE int first_of(uint64_t, const uint8_t* from) {
    int i = 0;
    while (from[i] != 0xFF) ++i;
    return i;
}
#endif

FEEDRATE_HOT const uint8_t* unstuff(const uint8_t* from, const uint8_t* end, uint8_t* to, size_t room, size_t& size) {
    uint8_t* out = to;
    uint8_t* const full = to + room;
    while (out < full && end - from > kUnstuffStep) {
        const auto found = copy_step(from, out);
        if (!found) {
            from += kUnstuffStep;
            out += kUnstuffStep;
            continue;
        }
        const int i = first_of(found, from);
        from += i;
        out += i;
        if (from[1] != 0) {
            size = static_cast<size_t>(out - to);
            return from;
        }
        from += 2;
        out += 1;
    }
    while (out < full && from < end) {
        const bool stuffed = *from == 0xFF;
        if (stuffed && !(end - from > 1 && from[1] == 0)) break;
        *out++ = *from;
        from += stuffed ? 2 : 1;
    }
    size = static_cast<size_t>(out - to);
    return from;
}

// The value that the bits after a code stand for (figure F.12 of the JPEG standard); zero bits make zero.
FEEDRATE_HOT_INLINE int value_of(uint64_t buffer, Symbol symbol) {
    const uint64_t after_code = buffer << ((symbol >> 8) & 63);
    const uint64_t negative = ~static_cast<uint64_t>(static_cast<int64_t>(after_code) >> 63);
    const uint64_t magnitude = ((after_code ^ negative) >> 1) >> ((symbol >> 16) & 63);
    return static_cast<int>((magnitude ^ negative) - negative);
}

// Decodes one block; stores coefficients when kStore. Returns the zigzag index of the last coefficient, or more where zeros follow
// it; -1 when the bits are no code or run past the block.
template <bool kStore>
FEEDRATE_HOT_INLINE int decode_block(BitReader& in, const HuffmanTable& dc, const HuffmanTable& ac, int& predictor, int16_t* block) {
    in.refill();
    Symbol symbol = dc.lookup[in.buffer >> (64 - HuffmanTable::kLookahead)];
    if (FEEDRATE_UNLIKELY((symbol >> 24) == kNotHere)) {
        symbol = dc.long_code(static_cast<uint32_t>(in.buffer >> 48));
        if (!symbol) return -1;
        predictor += value_of(in.buffer, symbol);
        in.drop(symbol);
        in.refill();
    } else {
        predictor += value_of(in.buffer, symbol);
        in.drop(symbol);
    }
    if (kStore) block[0] = static_cast<int16_t>(predictor);
    unsigned k = 0;
    for (bool refilled = true;; refilled = !refilled) {
        if (!refilled) in.refill();
        symbol = ac.lookup[in.buffer >> (64 - HuffmanTable::kLookahead)];
        k += symbol >> 24;
        if (FEEDRATE_UNLIKELY(k >= 63)) {
            if (symbol >> 24 == kEndOfBlock) {
                in.drop(symbol);
                return static_cast<int>(k - kEndOfBlock);
            }
            if (symbol >> 24 == kNotHere) {
                symbol = ac.long_code(static_cast<uint32_t>(in.buffer >> 48));
                if (!symbol) return -1;
                k += (symbol >> 24) - kNotHere;
                if (symbol >> 24 == kEndOfBlock) {
                    in.drop(symbol);
                    return static_cast<int>(k - kEndOfBlock);
                }
                if (k > 63) return -1;
                if (kStore) block[kNatural[k]] = static_cast<int16_t>(value_of(in.buffer, symbol));
                in.drop(symbol);
                if (k == 63) return 63;
                refilled = true;  // the other one of the pair has no room left
                continue;
            }
            if (k > 63) return -1;
            if (kStore) block[63] = static_cast<int16_t>(value_of(in.buffer, symbol));
            in.drop(symbol);
            return 63;
        }
        if (kStore) block[kNatural[k]] = static_cast<int16_t>(value_of(in.buffer, symbol));
        in.drop(symbol);
    }
}

// Four or eight vector stores; a memset of this size becomes a slow string instruction in GCC 12.
FEEDRATE_HOT_INLINE void clear(int16_t* coefficients) {
    typedef uint64_t Words __attribute__((vector_size(32), may_alias));
    auto* words = reinterpret_cast<Words*>(coefficients);
    for (int i = 0; i < 4; ++i) words[i] = Words{};
}

template <Blocks kBlocks>
FEEDRATE_HOT int64_t read_mcus_as(McuReader& reader, int64_t count, const Planes* planes) {
    BitReader in = reader.in;
    alignas(32) int16_t coefficients[64];
    const int64_t least = reader.to_the_end ? 0 : kMaxMcuBytes * 8;
    int64_t done = 0;
    for (; done < count && reader.bits_left(in) >= least; ++done) {
        for (int i = 0; i < reader.block_count; ++i) {
            const McuReader::Block& b = reader.block[i];
            if (kBlocks != Blocks::skip) clear(coefficients);
            const int last = decode_block<kBlocks != Blocks::skip>(in, *b.dc, *b.ac, reader.predictor[b.component], coefficients);
            if (FEEDRATE_UNLIKELY(last < 0)) {
                reader.bad_code = true;
                reader.in = in;
                return done;
            }
            if (kBlocks == Blocks::transform) {
                const ptrdiff_t stride = planes->stride[b.component];
                inverse_dct(coefficients, b.quant, last, planes->first[b.component] + done * reader.advance[b.component] + b.y * stride + b.x, stride);
            }
        }
        for (int i = 0; i < reader.component_count; ++i) reader.bad_dc |= reader.predictor[i] != static_cast<int16_t>(reader.predictor[i]);
        if (FEEDRATE_UNLIKELY(reader.bad_dc || reader.bits_left(in) < 0)) break;
    }
    reader.in = in;
    return done;
}

FEEDRATE_HOT int64_t read_mcus(McuReader& reader, int64_t count, Blocks blocks, const Planes* planes) {
    switch (blocks) {
        case Blocks::skip: return read_mcus_as<Blocks::skip>(reader, count, planes);
        case Blocks::store: return read_mcus_as<Blocks::store>(reader, count, planes);
        default: return read_mcus_as<Blocks::transform>(reader, count, planes);
    }
}

}  // namespace

}  // namespace feedrate::FEEDRATE_LEVEL
