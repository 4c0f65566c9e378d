// SPDX-License-Identifier: Apache-2.0
// From entropy-coded bytes to samples: takes out the stuffing, decodes blocks, and hands them to the IDCT.

// Whether a byte of the next ones is 0xFF, and where the first one is.
#if FEEDRATE_VECTORS == 256
constexpr int kUnstuffStep = 32;
HOT_INLINE uint32_t copy_step(const uint8_t* from, uint8_t* to) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
    return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(-1))));
}
HOT_INLINE int first_of(uint32_t found, const uint8_t*) { return __builtin_ctz(found); }
#elif FEEDRATE_VECTORS == 128
constexpr int kUnstuffStep = 16;
HOT_INLINE uint64_t copy_step(const uint8_t* from, uint8_t* to) {
    const uint8x16_t bytes = vld1q_u8(from);
    vst1q_u8(to, bytes);
    // Four bits of each byte.
    const uint16x8_t found = vreinterpretq_u16_u8(vceqq_u8(bytes, vdupq_n_u8(0xFF)));
    return vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(found, 4)), 0);
}
HOT_INLINE int first_of(uint64_t found, const uint8_t*) { return __builtin_ctzll(found) / 4; }
#else
constexpr int kUnstuffStep = 8;
HOT_INLINE uint64_t copy_step(const uint8_t* from, uint8_t* to) {
    uint64_t word;
    std::memcpy(&word, from, 8);
    std::memcpy(to, &word, 8);
    return (~word - 0x0101010101010101u) & word & 0x8080808080808080u;
}
HOT_INLINE int first_of(uint64_t, const uint8_t* from) {
    int i = 0;
    while (from[i] != 0xFF) ++i;
    return i;
}
#endif

HOT const uint8_t* unstuff(const uint8_t* from, const uint8_t* target, const uint8_t* end, uint8_t* to, size_t room,
                           size_t& size) {
    uint8_t* out = to;
    uint8_t* const full = to + room;
    while (from < target && out < full && end - from > kUnstuffStep) {
        const auto found = copy_step(from, out);
        if (!found) {
            from += kUnstuffStep;
            out += kUnstuffStep;
            continue;
        }
        const int i = first_of(found, from);
        from += i;
        out += i;
        if (from >= target) break;
        if (from[1] != 0) {
            size = static_cast<size_t>(out - to);
            return from;
        }
        from += 2;
        out += 1;
    }
    while (from < target && out < full && from < end) {
        const bool stuffed = *from == 0xFF;
        if (stuffed && !(end - from > 1 && from[1] == 0)) break;
        *out++ = *from;
        from += stuffed ? 2 : 1;
    }
    size = static_cast<size_t>(out - to);
    return from;
}

// After one or two AC symbols: more follow; the same, but the bits of two steps are used up; the block is complete; the
// bits are no code, or run past the block.
enum class Step { more, more_after_refill, complete, bad };

// A symbol that is not simply taken: its code is long, or with it the block is complete.
template <bool kStore>
HOT_INLINE Step finish_symbol(BitReader& in, const HuffmanTable& ac, Symbol symbol, uint64_t& k, int16_t* block) {
    Step next = Step::complete;
    if (FEEDRATE_UNLIKELY(symbol.move() == kNotHere)) {
        symbol = ac.long_code(static_cast<uint32_t>(in.buffer >> 47));
        if (symbol.move() == kNotHere) return Step::bad;
        k += symbol.move() - kNotHere;
        if (k < 63) next = Step::more_after_refill;
    }
    if (symbol.move() == kEndOfBlock) {
        k -= kEndOfBlock;
    } else {
        if (k > 63) return Step::bad;
        if (kStore) block[ac.place[k]] = symbol.value(in.buffer);
    }
    in.drop(symbol.word);
    return next;
}

// One symbol. Takes 25 bits at most when more follow, or asks for a refill.
template <bool kStore>
HOT_INLINE Step take_symbol(BitReader& in, const HuffmanTable& ac, uint64_t& k, int16_t* block) {
    const Symbol symbol = ac.lookup[in.buffer >> (64 - HuffmanTable::kLookahead)];
    k += symbol.move();
    if (FEEDRATE_UNLIKELY(k >= 63)) return finish_symbol<kStore>(in, ac, symbol, k, block);
    if (kStore) block[ac.place[k]] = symbol.value(in.buffer);
    in.drop(symbol.word);
    return Step::more;
}

// When a pair leaves the block.
template <bool kStore>
HOT_INLINE Step finish_pair(BitReader& in, const HuffmanTable& ac, Pair pair, uint64_t& k, int16_t* block) {
    // The end of the block, alone or second. A first symbol that is the 63rd coefficient has none behind it.
    if (pair.move() >= kEndOfBlock && k + pair.first_move() < 63) {
        k += pair.first_move();
        if (kStore && pair.first_move()) block[ac.place[k]] = pair.first_value();
        in.drop(pair.word);
        return Step::complete;
    }
    return take_symbol<kStore>(in, ac, k, block);
}

// One or two symbols. Takes 25 bits at most when more follow, or asks for a refill.
template <bool kStore>
HOT_INLINE Step take_symbols(BitReader& in, const HuffmanTable& ac, uint64_t& k, int16_t* block) {
    const Pair pair = ac.pairs[in.buffer >> (64 - HuffmanTable::kLookahead)];
    const uint64_t end = k + pair.move();
    if (FEEDRATE_UNLIKELY(end >= 63)) return finish_pair<kStore>(in, ac, pair, k, block);
    if (kStore) {
        // A symbol alone is stored twice, the second time with its value.
        block[ac.place[k + pair.first_move()]] = pair.first_value();
        block[ac.place[end]] = pair.value(in.buffer);
    }
    k = end;
    in.drop(pair.word);
    return Step::more;
}

// Whether the block is at its end after a step; refills where that took the bits of two.
template <bool kStore, bool kPairs = true>
HOT_INLINE bool ends(Step& step, BitReader& in, const HuffmanTable& ac, uint64_t& k, int16_t* block) {
    step = kPairs ? take_symbols<kStore>(in, ac, k, block) : take_symbol<kStore>(in, ac, k, block);
    if (step == Step::more) return false;
    if (step != Step::more_after_refill) return true;
    in.refill();
    return false;
}

// The DC coefficient; false when the bits are no code.
template <bool kStore>
HOT_INLINE bool take_dc(BitReader& in, const HuffmanTable& dc, int& predictor, int16_t* block) {
    in.refill();
    const Symbol symbol = dc.lookup[in.buffer >> (64 - HuffmanTable::kLookahead)];
    if (FEEDRATE_UNLIKELY(symbol.move() == kNotHere)) {
        const Symbol found = dc.long_code(static_cast<uint32_t>(in.buffer >> 47));
        if (found.move() == kNotHere) return false;
        predictor += found.value(in.buffer);
        in.drop(found.word);
        in.refill();
    } else {
        predictor += symbol.value(in.buffer);
        in.drop(symbol.word);
    }
    if (kStore) block[0] = static_cast<int16_t>(predictor);
    return true;
}

// Decodes the AC symbols that follow zigzag index k. Returns the index of the last coefficient, or more where zeros
// follow it; -1 when the bits are no code or run past the block.
template <bool kStore, bool kPairs = true>
HOT_INLINE int take_ac(BitReader& in, const HuffmanTable& ac, uint64_t k, int16_t* block) {
    Step step;
    for (;;) {
        if (ends<kStore, kPairs>(step, in, ac, k, block)) break;
        in.refill();
        if (ends<kStore, kPairs>(step, in, ac, k, block)) break;
    }
    return step == Step::complete ? static_cast<int>(k) : -1;
}

// What is left of a block after a step.
template <bool kStore>
HOT_INLINE int finish_block(Step step, BitReader& in, const HuffmanTable& ac, uint64_t k, int16_t* block) {
    if (step == Step::complete) return static_cast<int>(k);
    if (step == Step::bad) return -1;
    in.refill();
    return take_ac<kStore>(in, ac, k, block);
}

// The AC symbols of one block of each stream. A function of its own, so that both streams stay in registers.
template <bool kStore>
HOT __attribute__((noinline)) void take_ac_pair(BitReader (&in)[2], const HuffmanTable& ac, int16_t* blocks,
                                                int (&last)[2]) {
    BitReader a = in[0], b = in[1];
    uint64_t k_a = 0, k_b = 0;
    Step step_a, step_b = Step::more;
    for (;;) {
        if (ends<kStore>(step_a, a, ac, k_a, blocks)) break;
        if (ends<kStore>(step_b, b, ac, k_b, blocks + 64)) break;
        a.refill();
        b.refill();
        if (ends<kStore>(step_a, a, ac, k_a, blocks)) break;
        if (ends<kStore>(step_b, b, ac, k_b, blocks + 64)) break;
    }
    last[0] = finish_block<kStore>(step_a, a, ac, k_a, blocks);
    last[1] = finish_block<kStore>(step_b, b, ac, k_b, blocks + 64);
    in[0] = a, in[1] = b;
}

// Four or eight vector stores; a memset of this size becomes a slow string instruction in GCC 12.
HOT_INLINE void clear(int16_t* coefficients) {
    typedef uint64_t Words __attribute__((vector_size(32), may_alias));
    auto* words = reinterpret_cast<Words*>(coefficients);
    for (int i = 0; i < 4; ++i) words[i] = Words{};
}

HOT_INLINE uint8_t* samples_of(const McuTables::Block& b, const McuTables& tables, const Planes& planes, int64_t mcu) {
    return planes.first[b.component] + mcu * tables.advance[b.component] + b.y * planes.stride[b.component] + b.x;
}

// Whether the MCU that was just read is good.
HOT_INLINE bool is_good(McuStream& stream, const BitReader& in, int components) {
    for (int i = 0; i < components; ++i)
        stream.bad_dc |= stream.predictor[i] != static_cast<int16_t>(stream.predictor[i]);
    return !stream.bad_dc && stream.bits_left(in) >= 0;
}

template <Blocks kBlocks>
HOT int64_t read_mcus_as(const McuTables& tables, McuStream& stream, int64_t count, const Planes* planes) {
    constexpr bool kPairs = kBlocks != Blocks::skip_singly, kStore = kPairs && kBlocks != Blocks::skip;
    BitReader in = stream.in;
    alignas(32) int16_t coefficients[64];
    const int64_t needed = stream.bits_needed();
    int64_t done = 0;
    for (; done < count && stream.bits_left(in) >= needed; ++done) {
        for (int i = 0; i < tables.block_count; ++i) {
            const McuTables::Block& b = tables.block[i];
            if (kStore) clear(coefficients);
            const bool has_dc = take_dc<kStore>(in, *b.dc, stream.predictor[b.component], coefficients);
            const int last = has_dc ? take_ac<kStore, kPairs>(in, *b.ac, 0, coefficients) : -1;
            if (FEEDRATE_UNLIKELY(last < 0)) {
                stream.bad_code = true;
                stream.in = in;
                return done;
            }
            if (kBlocks == Blocks::transform)
                inverse_dct(coefficients, b.quant, last, samples_of(b, tables, *planes, done),
                            planes->stride[b.component]);
        }
        if (FEEDRATE_UNLIKELY(!is_good(stream, in, tables.component_count))) break;
    }
    stream.in = in;
    return done;
}

template <Blocks kBlocks>
HOT int64_t read_mcu_pairs_as(const McuTables& tables, McuStream (&streams)[2], int64_t count,
                              const Planes (&planes)[2]) {
    constexpr bool kStore = kBlocks != Blocks::skip;
    BitReader in[2] = {streams[0].in, streams[1].in};
    alignas(32) int16_t coefficients[2][64];
    const int64_t needed[2] = {streams[0].bits_needed(), streams[1].bits_needed()};
    int64_t done = 0;
    for (; done < count && streams[0].bits_left(in[0]) >= needed[0] && streams[1].bits_left(in[1]) >= needed[1];
         ++done) {
        for (int i = 0; i < tables.block_count; ++i) {
            const McuTables::Block& b = tables.block[i];
            if (kStore) clear(coefficients[0]), clear(coefficients[1]);
            int last[2] = {-1, -1};
            const bool has_dc = take_dc<kStore>(in[0], *b.dc, streams[0].predictor[b.component], coefficients[0]) &
                                take_dc<kStore>(in[1], *b.dc, streams[1].predictor[b.component], coefficients[1]);
            if (has_dc) take_ac_pair<kStore>(in, *b.ac, coefficients[0], last);
            for (int row = 0; row < 2; ++row) streams[row].bad_code |= last[row] < 0;
            if (FEEDRATE_UNLIKELY(last[0] < 0 || last[1] < 0)) {
                streams[0].in = in[0], streams[1].in = in[1];
                return done;
            }
            if (kBlocks != Blocks::transform) continue;
            uint8_t* samples[2] = {samples_of(b, tables, planes[0], done), samples_of(b, tables, planes[1], done)};
            const ptrdiff_t stride[2] = {planes[0].stride[b.component], planes[1].stride[b.component]};
            inverse_dcts(coefficients, b.quant, last, samples, stride);
        }
        const bool good =
            is_good(streams[0], in[0], tables.component_count) & is_good(streams[1], in[1], tables.component_count);
        if (FEEDRATE_UNLIKELY(!good)) break;
    }
    streams[0].in = in[0], streams[1].in = in[1];
    return done;
}

HOT int64_t read_mcus(const McuTables& tables, McuStream& stream, int64_t count, Blocks blocks, const Planes* planes) {
    switch (blocks) {
        case Blocks::skip: return read_mcus_as<Blocks::skip>(tables, stream, count, planes);
        case Blocks::skip_singly: return read_mcus_as<Blocks::skip_singly>(tables, stream, count, planes);
        case Blocks::store: return read_mcus_as<Blocks::store>(tables, stream, count, planes);
        default: return read_mcus_as<Blocks::transform>(tables, stream, count, planes);
    }
}

HOT int64_t read_mcu_pairs(const McuTables& tables, McuStream (&streams)[2], int64_t count, Blocks blocks,
                           const Planes (&planes)[2]) {
    switch (blocks) {
        case Blocks::skip: return read_mcu_pairs_as<Blocks::skip>(tables, streams, count, planes);
        case Blocks::store: return read_mcu_pairs_as<Blocks::store>(tables, streams, count, planes);
        default: return read_mcu_pairs_as<Blocks::transform>(tables, streams, count, planes);
    }
}
