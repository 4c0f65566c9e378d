// SPDX-License-Identifier: Apache-2.0
// The JPEG part of the kernel: baseline and extended sequential 8-bit Huffman JPEG with one interleaved scan, gray or
// YCbCr with chroma at full or half resolution. Pixels are those of libjpeg-turbo's accurate decode (islow IDCT,
// triangle upsampling, its integer colour conversion) followed by Pillow's crop and resize.
//
// Who owns what: the caller owns the bytes of the file and the output; neither is kept after a call returns. A Header
// points into the bytes of the file. A Decoder owns scratch memory, is used by one thread at a time, and may be reused.
//
// Entry points (a stored format, version 1, little-endian; goes into packs, so it only ever grows new versions):
//
//    0  u8   version, 1
//    1  u8   components in the scan, 1 or 3
//    2  u16  step: entries stand at MCU columns 0, step, 2 * step, ... of every MCU row
//    4  u32  crc32c of the JPEG file: the fingerprint
//    8  u32  crc32c of everything else here: bytes 0 to 7, then 12 to the end
//   12  u8   bits of a distance, 1 to 32; then u8 per component: bits of its DC predictor, 0 to 16
//       i16  per component: the lowest DC predictor
//       entries, by row and then by column, as one string of bits, the lowest bit of a byte first, each:
//         the distance in bits from the entry before it, 0 for the first one, which is where the entropy-coded data
//         begins. Distances are between the MCUs' first bits, behind a restart marker if there is one, in the data of
//         the file as it is: stuffed zero bytes count
//         per component: the DC predictor before the MCU, less the lowest
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bytes.h"
#include "status.h"

namespace feedrate {

constexpr int kMaxComponents = 3;
constexpr int kMaxDimension = 65500;  // libjpeg's limit
// A crop beyond this is refused: it would take gigabytes, and no training image is near it.
constexpr int64_t kMaxCropPixels = int64_t{512} << 20;

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

struct HuffmanSpec {
    const uint8_t* counts = nullptr;   // 16 counts of codes by length; null: the table is not defined
    const uint8_t* symbols = nullptr;  // as many as the counts add up to
    int symbol_count = 0;
};

struct Component {
    int id = 0;
    int h = 1, v = 1;  // blocks per MCU; 1 x 1 when the scan has one component
    int quant = 0, dc = 0, ac = 0;
    int width = 0, height = 0;  // in samples
};

struct Header {
    int width = 0, height = 0;
    int component_count = 0;
    Component component[kMaxComponents];
    bool half_width = false, half_height = false;  // chroma
    int mcu_width = 8, mcu_height = 8;             // in pixels
    int mcus_per_row = 0, mcu_rows = 0;
    int restart_interval = 0;
    bool may_have_exif = false;  // application data says so, or the markers are spaced in a way that hides what does
    uint16_t quant[4][64] = {};  // zigzag order
    bool quant_defined[4] = {};
    HuffmanSpec dc[4], ac[4];
    size_t scan_begin = 0, scan_end = 0;  // the entropy-coded data; scan_end stands at the marker that ends it
};

// Reads the headers. Finds where the entropy-coded data ends, or takes the end of the file for it. Width and height are
// set if they were seen, whatever the outcome.
Outcome parse_jpeg(const uint8_t* data, size_t size, Header& header, bool find_end = true);

// Whether the file is long enough for the image that it claims: every block takes two bits or more. Asked before memory
// is taken.
bool is_possible(const Header& header);

// The offset behind the marker that ends the image, or 0 if another one ends its data. The header is of parse_jpeg,
// which was asked for the end.
size_t end_of_image(Bytes file, const Header& header);

// "4:2:0", "gray", ...
const char* sampling_name(const Header& header);

// The usual distance of entry points in the entropy-coded data. On 250 photographs of 109 KB they take 0.54 % of the
// data. Closer ones gain nothing that can be measured; entries at rows alone (0.22 %) cost 2 % more instructions.
constexpr int64_t kBytesPerEntry = 1000;

// Decodes every Huffman code once. `entries` is empty unless the outcome is ok, and holds `file_crc`, the crc32c of the
// file. Entry points are about `bytes_per_entry` (1 or more) apart, at least an MCU and at most a row of MCUs.
Outcome scan_jpeg(const uint8_t* data, size_t size, uint32_t file_crc, Header& header, std::string& entries,
                  int64_t bytes_per_entry = kBytesPerEntry);

struct Box {
    int left, top, right, bottom;

    int64_t pixels() const { return static_cast<int64_t>(right - left) * (bottom - top); }
};

// Whether a box is not empty, inside an image of this size, and not larger than kMaxCropPixels.
Outcome check_box(const Box& box, int64_t width, int64_t height);

struct Span {
    int begin, end;
};

// The MCUs that hold a box and, where chroma is halved, one chroma sample to each side of it.
Span needed_rows(const Box& box, const Header& header);
Span needed_columns(const Box& box, const Header& header);

// Pillow's filters, by Pillow's numbers.
enum class Filter : uint8_t { nearest, lanczos, bilinear, bicubic, box, hamming };
constexpr int kFilters = 6;

// Which of Pillow's passes comes first where a resize needs both (resize.cpp).
enum class Order : uint8_t { pillow_13, across_if_lobes, across };
// What packs are loaded with.
inline Order order_of(bool before_13) { return before_13 ? Order::across_if_lobes : Order::pillow_13; }

// What is kept of a larger result: Pillow's resize((width, height), filter, box=reach).crop(window).
struct Excerpt {
    int width, height;
    float reach[4];  // left, top, right, bottom in pixels of the crop, inside it, not empty
    Box window;      // inside the result
};

// Where the pixels go: height x width x channels, channels 1 (gray, as Pillow's "L") or 3 (RGB).
struct Target {
    uint8_t* pixels;
    int height, width, channels;
    bool flip;
    Filter filter = Filter::bilinear;
    Order order = Order::pillow_13;
    bool upside_down = false;
    const Excerpt* excerpt = nullptr;  // null: all of the crop becomes all of the target
};

// How far a decode goes. All but the last are for measuring: the time of a stage is what it adds.
enum class Stage { headers, huffman, idct, colour, resize };

class Decoder {
public:
    Decoder();
    ~Decoder();
    Decoder(const Decoder&) = delete;
    Decoder& operator=(const Decoder&) = delete;

    // Decodes `box` of the file into `target`. `entries` may be empty; `file_crc` is looked at only when they are not.
    // Throws std::bad_alloc only.
    Outcome decode(Bytes file, uint32_t file_crc, Bytes entries, const Box& box, const Target& target,
                   Stage last = Stage::resize);

    // Gives memory back that only an unusually large image needed.
    void trim();

private:
    struct Scratch;
    std::unique_ptr<Scratch> scratch_;
};

}  // namespace feedrate
