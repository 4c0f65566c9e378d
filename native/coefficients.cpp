// SPDX-License-Identifier: Apache-2.0
#include "coefficients.h"

#include <algorithm>
#include <cstring>

#include "jpeg.h"
#include "markers.h"

namespace feedrate {

const uint8_t kNatural[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,   //
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,  //
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,  //
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

namespace {

// Coefficients take 2 bytes each: 800 MB at the most. Larger images have to go another way.
constexpr int64_t kMaxPixels = int64_t{1} << 27;

// Entropy-coded bytes up to the next marker. Behind it stand zeros, which must not be needed.
class Bits {
public:
    void start(const uint8_t* at, const uint8_t* end) {
        at_ = at, end_ = end;
        buffer_ = 0, count_ = 0, invented_ = 0;
    }
    uint32_t peek16() {
        if (count_ < 16) fill();
        return static_cast<uint32_t>(buffer_ >> (count_ - 16)) & 0xFFFF;
    }
    void drop(int n) { count_ -= n; }
    int get(int n) {  // n at most 16
        if (n == 0) return 0;
        const uint32_t next = peek16();
        drop(n);
        return static_cast<int>(next >> (16 - n));
    }
    bool overrun() const { return count_ < invented_; }
    // Where the next marker begins, or the end.
    const uint8_t* marker() const { return find_marker(at_, end_, true); }

private:
    void fill() {
        while (count_ <= 48) {
            int byte = 0;
            if (at_ < end_ && *at_ != 0xFF) {
                byte = *at_++;
            } else if (end_ - at_ >= 2 && at_[1] == 0) {
                byte = 0xFF;
                at_ += 2;
            } else {
                invented_ += 8;
            }
            buffer_ = buffer_ << 8 | static_cast<uint64_t>(byte);
            count_ += 8;
        }
    }
    const uint8_t *at_ = nullptr, *end_ = nullptr;
    uint64_t buffer_ = 0;
    int64_t count_ = 0, invented_ = 0;
};

struct Codes {
    uint16_t lookup[512] = {};  // length << 8 | symbol; 0: the code is longer
    int end[17] = {}, offset[17] = {};
    uint8_t symbols[256] = {};
    bool defined = false;

    // False: the counts do not make a prefix code.
    bool build(const HuffmanSpec& table) {
        *this = Codes();
        std::memcpy(symbols, table.symbols, static_cast<size_t>(table.symbol_count));
        int code = 0, used = 0;
        for (int length = 1; length <= 16; ++length, code <<= 1) {
            const int count = table.counts[length - 1];
            if (code + count >= 1 << length) return false;
            offset[length] = used - code;
            end[length] = count ? code + count : 0;
            for (int i = 0; i < count; ++i, ++code, ++used) {
                if (length > 9) continue;
                for (int j = 0; j < 1 << (9 - length); ++j)
                    lookup[(code << (9 - length)) + j] = static_cast<uint16_t>(length << 8 | symbols[used]);
            }
        }
        return defined = true;
    }
    // -1: these bits are no code.
    int decode(Bits& bits) const {
        const uint32_t next = bits.peek16();
        if (const int found = lookup[next >> 7]) {
            bits.drop(found >> 8);
            return found & 0xFF;
        }
        for (int length = 10; length <= 16; ++length) {
            const int code = static_cast<int>(next >> (16 - length));
            if (code < end[length]) {
                bits.drop(length);
                return symbols[code + offset[length]];
            }
        }
        return -1;
    }
};

int extend(int value, int size) { return size && value < 1 << (size - 1) ? value - (1 << size) + 1 : value; }

struct Scan : ScanHeader {
    std::vector<int> planes;
};

class Reader {
public:
    Reader(Bytes file, Coefficients& image) : end_(file.end()), image_(image), markers_(file) {}

    Outcome read() {
        for (Segment segment;;) {
            Outcome outcome = markers_.next(segment);
            if (outcome.ok() && segment.marker == kEoi) return judge();
            if (outcome.ok()) outcome = take(segment);
            if (!outcome.ok()) return outcome;
        }
    }

private:
    Outcome take(const Segment& segment) {
        const int marker = segment.marker;
        const Bytes body = segment.body;
        const auto demand = [&](bool is_sound) { return is_sound ? Outcome{} : malformed(segment); };
        const auto build = [&](bool is_ac, int number, const HuffmanSpec& table) {
            return (is_ac ? ac_ : dc_)[number].build(table);
        };
        if (marker == kSos) return scan(segment);
        if (marker == kDht) return demand(read_huffman(body, build));
        if (marker == kDqt) return demand(read_quantisers(body, quant_, quant_defined_));
        if (marker == kDri) {
            if (body.size == 2) restart_ = big_u16(body.data);
            return demand(body.size == 2);
        }
        if (is_application(marker) || marker == kCom) {
            // With the marker and the length, which take four bytes.
            if (!scans_) image_.segments.append(reinterpret_cast<const char*>(body.data - 4), body.size + 4);
            return {};
        }
        return marker == kSof0 || marker == kSof1 || marker == kSof2 ? frame(segment) : not_taken(Why::arithmetic);
    }

    Outcome frame(const Segment& segment) {
        Frame frame;
        if (!image_.planes.empty() || !read_frame(segment.body, frame)) return malformed(segment);
        if (frame.bits != 8) return not_taken(Why::precision, frame.bits);
        const int count = frame.count, width = frame.width, height = frame.height;
        if (count != 1 && count != 3) return not_taken(Why::components, count);
        if (!width || !height) return corrupt(Why::no_size);
        if (width > kMaxDimension || height > kMaxDimension || int64_t{width} * height > kMaxPixels)
            return not_taken(Why::too_large, width, height);
        if (!frame.has_sound_components()) return malformed(segment);
        progressive_ = segment.marker == kSof2;
        image_.width = width, image_.height = height;
        image_.planes.resize(static_cast<size_t>(count));
        int blocks = 0;
        for (int i = 0; i < count; ++i) {
            const auto& from = frame.component[i];
            Plane& plane = image_.planes[i];
            plane.id = from.id, quant_of_[i] = from.quant;
            plane.h = count == 1 ? 1 : from.h, plane.v = count == 1 ? 1 : from.v;
            image_.h_max = std::max(image_.h_max, plane.h), image_.v_max = std::max(image_.v_max, plane.v);
            blocks += plane.h * plane.v;
        }
        if (blocks > 10) return malformed(segment);
        const int columns = ceil_div(width, image_.mcu_width()), rows = ceil_div(height, image_.mcu_height());
        int64_t least_bits = 0;
        for (Plane& plane : image_.planes) {
            plane.wide = columns * plane.h, plane.high = rows * plane.v;
            plane.coded_wide = ceil_div(ceil_div(width * plane.h, image_.h_max), 8);
            plane.coded_high = ceil_div(ceil_div(height * plane.v, image_.v_max), 8);
            least_bits += int64_t{plane.coded_wide} * plane.coded_high;
        }
        // The first value of every block takes a bit or more. A small file that claims a huge image is refused before
        // memory is taken for it.
        if (least_bits / 8 > end_ - markers_.at()) return corrupt(Why::ends_early, 0, rows);
        for (Plane& plane : image_.planes)
            plane.values.assign(static_cast<size_t>(plane.wide) * static_cast<size_t>(plane.high) * 64, 0);
        std::memset(left_, 0xFF, sizeof left_);
        return {};
    }

    Outcome scan(const Segment& segment) {
        Scan scan;
        if (image_.planes.empty() || !read_scan(segment.body, scan) || scan.count < 1 || scan.count > 3)
            return malformed(segment);
        int previous = -1;
        for (int i = 0; i < scan.count; ++i) {
            const auto& from = scan.component[i];
            int found = -1;
            for (size_t j = 0; j < image_.planes.size(); ++j)
                if (image_.planes[j].id == from.id) found = static_cast<int>(j);
            if (found <= previous || from.dc > 3 || from.ac > 3) return malformed(segment);
            scan.planes.push_back(previous = found);
        }
        if (const Outcome outcome = accept(scan); !outcome.ok()) return outcome;
        ++scans_;
        bits_.start(markers_.at(), end_);
        const Outcome outcome = walk(scan);
        markers_.go_to(bits_.marker());
        return outcome;
    }

    // Whether a scan brings what can come next, and from which tables.
    Outcome accept(const Scan& scan) {
        const bool whole = scan.first == 0 && scan.last == 63 && scan.high == 0 && scan.low == 0;
        const bool dc_only = scan.first == 0 && scan.last == 0;
        const bool ac_only = scan.first > 0 && scan.last >= scan.first && scan.last < 64 && scan.planes.size() == 1;
        if (!(progressive_ ? dc_only || ac_only : whole) || scan.low > 13) return not_taken(Why::scan_parameters);
        for (size_t i = 0; i < scan.planes.size(); ++i) {
            const int plane = scan.planes[i];
            const int table = quant_of_[plane];
            if (!quant_defined_[table]) return corrupt(Why::quant_missing, table);
            // The quantiser of a component is the one that stands when its first scan begins.
            if (left_[plane][0] == 0xFF)
                for (int k = 0; k < 64; ++k) image_.planes[plane].quant[kNatural[k]] = quant_[table][k];
            if (scan.first > 0 && left_[plane][0] == 0xFF) return not_taken(Why::scan_parameters);
            for (int k = scan.first; k <= scan.last; ++k) {
                const int expected = scan.high ? scan.high : 0xFF;
                if (left_[plane][k] != expected || (scan.high && scan.low != scan.high - 1))
                    return not_taken(Why::scan_parameters);
                left_[plane][k] = static_cast<uint8_t>(scan.low);
            }
            const int dc = scan.component[i].dc, ac = scan.component[i].ac;
            if (scan.first == 0 && scan.high == 0 && !dc_[dc].defined) return corrupt(Why::huffman_missing, dc, 0);
            if (scan.last > 0 && !ac_[ac].defined) return corrupt(Why::huffman_missing, ac, 1);
        }
        return {};
    }

    Outcome walk(const Scan& scan) {
        const bool alone = scan.planes.size() == 1;
        const Plane& only = image_.planes[scan.planes[0]];
        const int columns = alone ? only.coded_wide : ceil_div(image_.width, image_.mcu_width());
        const int rows = alone ? only.coded_high : ceil_div(image_.height, image_.mcu_height());
        forget();
        int left = restart_, restarts = 0;
        for (int y = 0; y < rows; ++y) {
            for (int x = 0; x < columns; ++x) {
                if (restart_ && left == 0) {
                    const uint8_t* marker = skip_fill(bits_.marker(), end_);
                    if (marker == end_ || *marker != restart_marker(restarts++))
                        return corrupt(Why::restart_order, y, rows);
                    left = restart_;
                    bits_.start(marker + 1, end_);
                    forget();
                }
                --left;
                for (size_t i = 0; i < scan.planes.size(); ++i) {
                    Plane& plane = image_.planes[scan.planes[i]];
                    const int h = alone ? 1 : plane.h, v = alone ? 1 : plane.v;
                    for (int b = 0; b < h * v; ++b)
                        if (!block(scan, i, plane.block(x * h + b % h, y * v + b / h)))
                            return corrupt(bits_.overrun() ? Why::ends_early : Why::bad_code, y, rows);
                }
            }
            if (bits_.overrun()) return corrupt(Why::ends_early, y, rows);
        }
        return {};
    }

    void forget() {
        std::memset(predictor_, 0, sizeof predictor_);
        run_ = 0;
    }

    bool block(const Scan& scan, size_t i, int16_t* values) {
        const Codes &dc = dc_[scan.component[i].dc], &ac = ac_[scan.component[i].ac];
        if (scan.first == 0) {
            if (scan.high) {
                if (bits_.get(1)) values[0] = static_cast<int16_t>(values[0] | 1 << scan.low);
                return true;
            }
            const int size = dc.decode(bits_);
            if (size < 0 || size > 15) return false;
            int& predictor = predictor_[scan.planes[i]];
            predictor += extend(bits_.get(size), size);
            const int value = predictor * (1 << scan.low);
            if (value < -32768 || value > 32767) return false;
            values[0] = static_cast<int16_t>(value);
            return scan.last == 0 || first(scan, ac, values, 1);
        }
        return scan.high ? refine(scan, ac, values) : first(scan, ac, values, scan.first);
    }

    bool first(const Scan& scan, const Codes& ac, int16_t* values, int k) {
        if (run_) {
            --run_;
            return true;
        }
        while (k <= scan.last) {
            const int symbol = ac.decode(bits_);
            if (symbol < 0) return false;
            const int zeros = symbol >> 4, size = symbol & 15;
            if (size) {
                k += zeros;
                if (k > scan.last) return false;
                const int value = extend(bits_.get(size), size) * (1 << scan.low);
                if (value < -32768 || value > 32767) return false;
                values[kNatural[k++]] = static_cast<int16_t>(value);
            } else if (zeros == 15) {
                k += 16;
            } else {
                if (zeros && !progressive_) return false;
                run_ = (1 << zeros) - 1 + bits_.get(zeros);
                return true;
            }
        }
        return k == scan.last + 1;
    }

    bool refine(const Scan& scan, const Codes& ac, int16_t* values) {
        const int step = 1 << scan.low;
        int k = scan.first;
        const auto more = [&](int16_t& value) {
            if (bits_.get(1) && !(value & step)) value = static_cast<int16_t>(value + (value > 0 ? step : -step));
        };
        if (!run_) {
            for (; k <= scan.last; ++k) {
                const int symbol = ac.decode(bits_);
                if (symbol < 0) return false;
                int zeros = symbol >> 4, value = 0;
                if (symbol & 15) {
                    if ((symbol & 15) != 1) return false;
                    value = bits_.get(1) ? step : -step;
                } else if (zeros != 15) {
                    run_ = (1 << zeros) + bits_.get(zeros);
                    break;
                }
                for (; k <= scan.last; ++k) {
                    int16_t& at = values[kNatural[k]];
                    if (at) {
                        more(at);
                    } else if (zeros-- == 0) {
                        break;
                    }
                }
                if (value) {
                    if (k > scan.last) return false;
                    values[kNatural[k]] = static_cast<int16_t>(value);
                }
            }
        }
        if (run_) {
            for (; k <= scan.last; ++k)
                if (int16_t& at = values[kNatural[k]]; at) more(at);
            --run_;
        }
        return true;
    }

    // libjpeg smooths over what has not come yet, so that its pixels would not be those of the coefficients.
    Outcome judge() const {
        if (!scans_) return corrupt(Why::no_scan);
        for (size_t i = 0; i < image_.planes.size(); ++i)
            for (int k = 0; k < 64; ++k)
                if (left_[i][k] != 0) return not_taken(Why::scan_parameters);
        return {};
    }

    const uint8_t* end_;
    Coefficients& image_;
    MarkerReader markers_;
    Bits bits_;
    Codes dc_[4], ac_[4];
    uint16_t quant_[4][64] = {};  // zigzag order
    bool quant_defined_[4] = {};
    int quant_of_[3] = {};
    bool progressive_ = false;
    int restart_ = 0, scans_ = 0, run_ = 0;
    int predictor_[3] = {};
    uint8_t left_[3][64] = {};  // low bits still to come, by zigzag index; 0xFF: nothing came yet
};

}  // namespace

Outcome read_coefficients(const uint8_t* data, size_t size, Coefficients& image) {
    image = Coefficients();
    const Bytes file{data, size};
    return is_jpeg(file) ? Reader(file, image).read() : not_taken(Why::not_jpeg);
}

}  // namespace feedrate
