// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "coefficients.h"

namespace feedrate {
namespace {

// Rows become columns. Blocks that fill the last MCUs up stay at the far edges.
void transpose(Coefficients& image) {
    for (Plane& plane : image.planes) {
        std::vector<int16_t> turned(plane.values.size());
        for (int y = 0; y < plane.high; ++y)
            for (int x = 0; x < plane.wide; ++x) {
                const int16_t* from = plane.block(x, y);
                int16_t* to = turned.data() +
                              (static_cast<size_t>(x) * static_cast<size_t>(plane.high) + static_cast<size_t>(y)) * 64;
                for (int i = 0; i < 64; ++i) to[i] = from[i % 8 * 8 + i / 8];
            }
        plane.values.swap(turned);
        for (int i = 0; i < 64; ++i)
            if (i % 8 > i / 8) std::swap(plane.quant[i], plane.quant[i % 8 * 8 + i / 8]);
        std::swap(plane.wide, plane.high);
        std::swap(plane.coded_wide, plane.coded_high);
        std::swap(plane.h, plane.v);
    }
    std::swap(image.width, image.height);
    std::swap(image.h_max, image.v_max);
}

void mirror(Coefficients& image) {
    for (Plane& plane : image.planes)
        for (int y = 0; y < plane.high; ++y) {
            for (int x = 0; x < plane.wide / 2; ++x)
                std::swap_ranges(plane.block(x, y), plane.block(x, y) + 64, plane.block(plane.wide - 1 - x, y));
            int16_t* row = plane.block(0, y);
            for (int i = 0; i < plane.wide * 64; ++i)
                if (i & 1) row[i] = static_cast<int16_t>(-row[i]);
        }
}

void turn_over(Coefficients& image) {
    for (Plane& plane : image.planes) {
        const int row = plane.wide * 64;
        for (int y = 0; y < plane.high / 2; ++y)
            std::swap_ranges(plane.block(0, y), plane.block(0, y) + row, plane.block(0, plane.high - 1 - y));
        for (size_t i = 0; i < plane.values.size(); ++i)
            if (i >> 3 & 1) plane.values[i] = static_cast<int16_t>(-plane.values[i]);
    }
}

int size_of(int value) {
    int magnitude = value < 0 ? -value : value, size = 0;
    for (; magnitude; magnitude >>= 1) ++size;
    return size;
}

struct Code {
    uint16_t code[256] = {};
    uint8_t length[256] = {};
    uint8_t counts[16] = {};
    std::string symbols;

    // A prefix code for these frequencies, no code longer than 16 bits and none all ones (JPEG's Annex K.2).
    void make(const std::vector<int64_t>& frequency) {
        std::vector<int64_t> weight = frequency;
        weight.push_back(1);  // stands for the code of all ones
        int size[257] = {}, other[257];
        std::fill(other, other + 257, -1);
        for (;;) {
            int least = -1, next = -1;
            for (int i = 0; i < 257; ++i) {
                if (!weight[i]) continue;
                if (least < 0 || weight[i] <= weight[least]) {
                    next = least, least = i;
                } else if (next < 0 || weight[i] <= weight[next]) {
                    next = i;
                }
            }
            if (next < 0) break;
            weight[least] += weight[next];
            weight[next] = 0;
            int end = least;
            for (;; end = other[end]) {
                ++size[end];
                if (other[end] < 0) break;
            }
            other[end] = next;
            for (int i = next; i >= 0; i = other[i]) ++size[i];
        }
        // Weights are counts of symbols, so that no code is longer than a Fibonacci number takes to reach 2**40.
        int bits[80] = {};
        for (const int s : size)
            if (s) ++bits[std::min(s, 79)];
        for (int i = 79; i > 16; --i)
            while (bits[i] > 0) {
                int j = i - 2;
                while (!bits[j]) --j;
                bits[i] -= 2, ++bits[i - 1], bits[j + 1] += 2, --bits[j];
            }
        int longest = 16;
        while (!bits[longest]) --longest;
        --bits[longest];
        for (int i = 0; i < 16; ++i) counts[i] = static_cast<uint8_t>(bits[i + 1]);
        for (int s = 1; s < 80; ++s)
            for (int i = 0; i < 256; ++i)
                if (size[i] == s) symbols.push_back(static_cast<char>(i));
        int value = 0;
        size_t used = 0;
        for (int i = 0; i < 16; ++i, value <<= 1)
            for (int n = 0; n < counts[i]; ++n, ++value, ++used) {
                const auto symbol = static_cast<uint8_t>(symbols[used]);
                code[symbol] = static_cast<uint16_t>(value);
                length[symbol] = static_cast<uint8_t>(i + 1);
            }
    }
};

// Calls `emit(is_ac, symbol, value, bits)` for all that a block is coded as; false when baseline JPEG cannot hold it.
template <class Emit>
bool code_block(const int16_t* values, int& predictor, const Emit& emit) {
    const int difference = values[0] - predictor;
    predictor = values[0];
    const int size = size_of(difference);
    if (size > 11) return false;
    emit(false, size, difference, size);
    int zeros = 0;
    for (int k = 1; k < 64; ++k) {
        const int value = values[kNatural[k]];
        if (!value) {
            ++zeros;
            continue;
        }
        for (; zeros > 15; zeros -= 16) emit(true, 0xF0, 0, 0);
        const int bits = size_of(value);
        if (bits > 10) return false;
        emit(true, zeros << 4 | bits, value, bits);
        zeros = 0;
    }
    if (zeros) emit(true, 0, 0, 0);
    return true;
}

template <class Emit>
bool code_image(const Coefficients& image, const Emit& emit) {
    const Plane& luma = image.planes[0];
    std::vector<int> predictor(image.planes.size());
    for (int y = 0; y < luma.high / luma.v; ++y)
        for (int x = 0; x < luma.wide / luma.h; ++x)
            for (size_t i = 0; i < image.planes.size(); ++i) {
                const Plane& plane = image.planes[i];
                const auto send = [&](bool is_ac, int symbol, int value, int bits) {
                    emit(i > 0, is_ac, symbol, value, bits);
                };
                for (int b = 0; b < plane.h * plane.v; ++b)
                    if (!code_block(plane.block(x * plane.h + b % plane.h, y * plane.v + b / plane.h), predictor[i],
                                    send))
                        return false;
            }
    return true;
}

class BitWriter {
public:
    explicit BitWriter(std::string& out) : out_(out) {}
    void put(uint32_t value, int bits) {
        buffer_ = buffer_ << bits | (value & ((1u << bits) - 1));
        count_ += bits;
        for (; count_ >= 8; count_ -= 8) {
            const auto byte = static_cast<char>(buffer_ >> (count_ - 8));
            out_.push_back(byte);
            if (byte == '\xFF') out_.push_back('\0');
        }
    }
    void finish() { put(0x7F, 7); }

private:
    std::string& out_;
    uint64_t buffer_ = 0;
    int count_ = 0;
};

void put_word(std::string& out, int value) {
    out.push_back(static_cast<char>(value >> 8));
    out.push_back(static_cast<char>(value));
}

void put_quantiser(std::string& out, int number, const uint16_t* quant) {
    const bool wide = *std::max_element(quant, quant + 64) > 255;
    out += "\xFF\xDB";
    put_word(out, 3 + 64 * (1 + wide));
    out.push_back(static_cast<char>(wide << 4 | number));
    for (int i = 0; i < 64; ++i) {
        if (wide) out.push_back(static_cast<char>(quant[kNatural[i]] >> 8));
        out.push_back(static_cast<char>(quant[kNatural[i]]));
    }
}

void put_frame(std::string& out, const Coefficients& image) {
    const auto is_wide = [](const Plane& plane) { return *std::max_element(plane.quant, plane.quant + 64) > 255; };
    // Baseline knows quantisers of 8 bits; with others it is "extended sequential", and decoded alike.
    const bool extended = std::any_of(image.planes.begin(), image.planes.end(), is_wide);
    const auto count = static_cast<int>(image.planes.size());
    for (int i = 0; i < count; ++i) put_quantiser(out, i, image.planes[i].quant);
    out += extended ? "\xFF\xC1" : "\xFF\xC0";
    put_word(out, 8 + 3 * count);
    out.push_back(8);
    put_word(out, image.height);
    put_word(out, image.width);
    out.push_back(static_cast<char>(count));
    for (int i = 0; i < count; ++i) {
        const Plane& plane = image.planes[i];
        out.push_back(static_cast<char>(plane.id));
        out.push_back(static_cast<char>(plane.h << 4 | plane.v));
        out.push_back(static_cast<char>(i));
    }
}

void put_codes(std::string& out, int kind, int number, const Code& code) {
    out += "\xFF\xC4";
    put_word(out, 19 + static_cast<int>(code.symbols.size()));
    out.push_back(static_cast<char>(kind << 4 | number));
    out.append(reinterpret_cast<const char*>(code.counts), 16);
    out += code.symbols;
}

}  // namespace

bool turn(Coefficients& image, int orientation) {
    const bool sideways = orientation >= 5;
    // After rows have become columns, if they do.
    const bool mirrored = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
    const bool upside_down = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
    const int width = sideways ? image.height : image.width, height = sideways ? image.width : image.height;
    const int mcu_width = sideways ? image.mcu_height() : image.mcu_width(),
              mcu_height = sideways ? image.mcu_width() : image.mcu_height();
    if ((mirrored && width % mcu_width) || (upside_down && height % mcu_height)) return false;
    if (sideways) transpose(image);
    if (mirrored) mirror(image);
    if (upside_down) turn_over(image);
    return true;
}

Outcome write_baseline(const Coefficients& image, std::string& out) {
    std::vector<int64_t> frequency[2][2];  // luma and chroma, DC and AC
    for (auto& kind : frequency)
        for (auto& one : kind) one.assign(256, 0);
    const bool fits =
        code_image(image, [&](bool chroma, bool is_ac, int symbol, int, int) { ++frequency[chroma][is_ac][symbol]; });
    if (!fits) return not_taken(Why::scan_parameters);
    const int kinds = image.planes.size() > 1 ? 2 : 1;
    Code codes[2][2];
    out = "\xFF\xD8" + image.segments;
    put_frame(out, image);
    for (int kind = 0; kind < kinds; ++kind)
        for (int is_ac = 0; is_ac < 2; ++is_ac) {
            codes[kind][is_ac].make(frequency[kind][is_ac]);
            put_codes(out, is_ac, kind, codes[kind][is_ac]);
        }
    const auto count = static_cast<int>(image.planes.size());
    out += "\xFF\xDA";
    put_word(out, 6 + 2 * count);
    out.push_back(static_cast<char>(count));
    for (int i = 0; i < count; ++i) {
        out.push_back(static_cast<char>(image.planes[i].id));
        out.push_back(static_cast<char>(i > 0 ? 0x11 : 0));
    }
    out.append("\x00\x3F\x00", 3);
    BitWriter writer(out);
    code_image(image, [&](bool chroma, bool is_ac, int symbol, int value, int bits) {
        const Code& code = codes[chroma][is_ac];
        writer.put(code.code[symbol], code.length[symbol]);
        if (bits) writer.put(static_cast<uint32_t>(value < 0 ? value - 1 : value), bits);
    });
    writer.finish();
    out += "\xFF\xD9";
    return {};
}

}  // namespace feedrate
