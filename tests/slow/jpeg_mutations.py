# SPDX-License-Identifier: Apache-2.0
"""JPEG files with seeded damage: `make_mutant(corpus, number)` is the same file on every run and machine.

Most changes know the structure of the file, since random bytes alone seldom get past its headers.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

SOI, EOI = b"\xff\xd8", b"\xff\xd9"
SIZES = [(1, 1), (8, 8), (17, 9), (33, 50), (64, 48), (75, 61), (130, 37)]
WRITTEN: list[dict[str, Any]] = [
    {"quality": 85},
    {"quality": 30, "optimize": True},
    {"quality": 97, "restart_marker_blocks": 3},
    {"quality": 60, "optimize": True, "restart_marker_rows": 1},
    {"quality": 5, "comment": b"hello"},
]
SAMPLINGS = ["gray", "4:4:4", "4:2:2", "4:2:0", "4:4:0"]


@dataclass(frozen=True)
class Mutant:
    data: bytes
    base: int  # the number of the file in the corpus that it was made of
    changes: tuple[str, ...]


def make_corpus() -> list[bytes]:
    rng = np.random.default_rng(7)
    corpus = []
    for width, height in SIZES:
        for sampling in SAMPLINGS:
            corpus += [_encode(rng, width, height, sampling, options) for options in WRITTEN]
    corpus.append(_encode(rng, 40, 30, "4:2:0", {"progressive": True}))
    corpus.append(_encode(rng, 40, 30, "gray", {"progressive": True}))
    return corpus


def _encode(
    rng: np.random.Generator, width: int, height: int, sampling: str, options: dict[str, Any]
) -> bytes:
    if sampling == "4:4:0":  # Pillow writes none: 4:2:2 with as many MCUs each way, and another header
        wide = _encode(rng, -(-width // 8) * 16, -(-height // 16) * 8, "4:2:2", options)
        at = wide.index(b"\xff\xc0")
        frame = struct.pack(">HH", height, width) + b"\3\1\x12"
        return wide[: at + 5] + frame + wide[at + 5 + len(frame) :]
    y, x = np.mgrid[0:height, 0:width]
    planes = [128 + 80 * np.sin((x * a + y * b) / 9) for a, b in rng.uniform(-1, 1, (3, 2))]
    pixels = np.clip(np.stack(planes, -1) + rng.normal(0, 12, (height, width, 3)), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    if sampling == "gray":
        Image.fromarray(pixels[:, :, 0]).save(buffer, "JPEG", **options)
    else:
        Image.fromarray(pixels).save(buffer, "JPEG", subsampling=sampling, **options)
    return buffer.getvalue()


def make_mutant(corpus: list[bytes], number: int) -> Mutant:
    rng = np.random.default_rng([2024, number])
    base = int(rng.integers(len(corpus)))
    data, names = corpus[base], []
    for _ in range(int(rng.choice([0, 1, 2, 3], p=[0.03, 0.62, 0.25, 0.10]))):
        change = CHANGES[int(rng.integers(len(CHANGES)))]
        data = change(Draw(rng, corpus), data)
        names.append(change.__name__)
    return Mutant(data, base, tuple(names))


def split(data: bytes) -> list[bytes]:
    """Return SOI, each segment, the entropy-coded data and the rest; what does not parse is the last part."""
    parts, at = [data[:2]], 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        if data[at + 1] in (0xFF, 0x01, *range(0xD0, 0xDA)):
            end = at + (1 if data[at + 1] == 0xFF else 2)
        else:
            end = at + 2 + max(struct.unpack_from(">H", data, at + 2)[0], 2)
        parts.append(data[at:end])
        if data[at + 1] == 0xDA:
            scan_end = find_scan_end(data, end)
            return [*parts, data[end:scan_end], data[scan_end:]]
        at = end
    return [*parts, data[at:]]


def find_scan_end(data: bytes, at: int) -> int:
    """Return where the first marker that is no restart marker stands, or the end."""
    while (at := data.find(b"\xff", at)) >= 0:
        after = at + 1
        while after < len(data) and data[after] == 0xFF:
            after += 1
        if after >= len(data) or not (data[after] == 0 or 0xD0 <= data[after] <= 0xD7):
            return at
        at = after + 1
    return len(data)


def segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


@dataclass(frozen=True)
class Draw:
    """Random choices, and other files to take parts of."""

    rng: np.random.Generator
    corpus: list[bytes]

    def below(self, stop: int) -> int:
        return int(self.rng.integers(max(stop, 1)))

    def between(self, start: int, stop: int) -> int:
        return start + self.below(stop - start)

    def bytes(self, most: int) -> bytes:
        return self.rng.integers(0, 256, self.between(1, most + 1), np.uint8).tobytes()

    def other(self) -> bytes:
        return self.corpus[self.below(len(self.corpus))]

    def one_of(self, choices: Any) -> Any:
        return choices[self.below(len(choices))]

    def find(self, parts: list[bytes], *markers: int) -> int | None:
        """Return the number of a segment with one of the markers."""
        wanted = {bytes([marker]) for marker in markers}
        found = [i for i, part in enumerate(parts) if i and part[:1] == b"\xff" and part[1:2] in wanted]
        return self.one_of(found) if found else None


Change = Callable[[Draw, bytes], bytes]
FRAMES = (0xC0, 0xC1, 0xC2)


def patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def flipped(draw: Draw, data: bytes, start: int, stop: int) -> bytes:
    at = draw.between(start, stop)
    return patched(data, at, bytes([data[at] ^ 1 << draw.below(8)])) if at < len(data) else data


def scan_range(data: bytes) -> tuple[int, int]:
    parts = split(data)
    start = sum(map(len, parts[:-2]))
    return start, start + len(parts[-2]) if len(parts) > 2 else start


def flip_bit_in_headers(draw: Draw, data: bytes) -> bytes:
    return flipped(draw, data, 2, scan_range(data)[0])


def flip_bit_in_segment(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    i = draw.find(parts, *draw.one_of([(0xDB,), (0xC4,), FRAMES, (0xDA,), (0xDD,), (0xE0,)]))
    if i is not None:
        parts[i] = flipped(draw, parts[i], 1, len(parts[i]))
    return b"".join(parts)


def flip_bits_in_scan(draw: Draw, data: bytes) -> bytes:
    for _ in range(draw.one_of([1, 1, 1, 2, 5])):
        data = flipped(draw, data, *scan_range(data))
    return data


def set_byte(draw: Draw, data: bytes) -> bytes:
    value = draw.one_of([b"\0", b"\xff", draw.bytes(1), draw.bytes(1)])
    return patched(data, draw.below(len(data)), value)


def insert_bytes(draw: Draw, data: bytes) -> bytes:
    at = draw.below(len(data) + 1)
    return data[:at] + draw.bytes(draw.one_of([1, 4])) + data[at:]


def delete_bytes(draw: Draw, data: bytes) -> bytes:
    at = draw.below(len(data))
    return data[:at] + data[at + draw.one_of([1, 1, 2, 7, 60]) :]


def delete_bytes_of_scan(draw: Draw, data: bytes) -> bytes:
    at = draw.between(*scan_range(data))
    return data[:at] + data[at + draw.one_of([1, 2, 20]) :]


def truncate(draw: Draw, data: bytes) -> bytes:
    return data[: draw.below(len(data))]


def truncate_near_the_end(draw: Draw, data: bytes) -> bytes:
    return data[: max(len(data) - draw.between(1, 9), 0)]


def swap_segments(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    i, j = draw.between(1, len(parts)), draw.between(1, len(parts))
    parts[i], parts[j] = parts[j], parts[i]
    return b"".join(parts)


def duplicate_segment(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    parts.insert(draw.between(1, len(parts)), parts[draw.below(len(parts))])
    return b"".join(parts)


def remove_segment(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    del parts[draw.below(len(parts))]
    return b"".join(parts)


def take_segment_of_another_file(draw: Draw, data: bytes) -> bytes:
    parts, others = split(data), split(draw.other())
    parts[draw.between(1, len(parts))] = others[draw.between(1, len(others))]
    return b"".join(parts)


def set_wrong_length(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    i = draw.find(parts, *range(0xC0, 0xD0), *range(0xDA, 0xF0), 0xFE)
    if i is not None and len(parts[i]) >= 4:
        length = struct.unpack_from(">H", parts[i], 2)[0] + draw.one_of([-1, 1, -2, 2, 17, -64, 65, 4000])
        parts[i] = patched(parts[i], 2, struct.pack(">H", draw.one_of([length, length, 0, 1, 2]) & 0xFFFF))
    return b"".join(parts)


def change_size(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    i = draw.find(parts, *FRAMES)
    if i is not None:
        near = draw.one_of([-1, 1, -8, 8, 16, 40])
        at = draw.one_of([5, 7])
        size = struct.unpack_from(">H", parts[i].ljust(9, b"\0"), at)[0] + near
        parts[i] = patched(parts[i], at, struct.pack(">H", draw.one_of([max(size, 0), 0, 1, 300, 20_000])))
    return b"".join(parts)


def change_frame(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    i = draw.find(parts, *FRAMES)
    if i is not None and len(parts[i]) > 12:
        places = [(1, draw.between(0xC0, 0xD0)), (4, 12), (9, draw.below(5))]
        for at in range(10, len(parts[i]) - 2, 3):
            places += [(at, ord("RGB"[at % 3])), (at + 1, draw.one_of([0x11, 0x21, 0x12, 0x22, 0x41, 0x14]))]
            places += [(at + 1, draw.one_of([0x31, 0x44, 0x24])), (at + 2, draw.below(4))]
        at, value = draw.one_of(places)
        parts[i] = patched(parts[i], at, bytes([value]))
    return b"".join(parts)


def change_scan_header(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    i = draw.find(parts, 0xDA)
    if i is not None:
        at = draw.between(4, len(parts[i]))
        parts[i] = patched(parts[i], at, bytes([draw.one_of([0, 1, 2, 3, 0x10, 0x01, 0x11, 62, 63, 64])]))
    return b"".join(parts)


def splice(draw: Draw, data: bytes) -> bytes:
    other = draw.other()
    return data[: draw.below(len(data))] + other[draw.below(len(other)) :]


def splice_at_segments(draw: Draw, data: bytes) -> bytes:
    parts, others = split(data), split(draw.other())
    return b"".join(parts[: draw.between(1, len(parts))] + others[draw.between(1, len(others)) :])


def take_scan_of_another_file(draw: Draw, data: bytes) -> bytes:
    return b"".join([*split(data)[:-2], *split(draw.other())[-2:]])


def add_garbage_behind(draw: Draw, data: bytes) -> bytes:
    more = [draw.bytes(300), bytes(50), draw.other(), b"\xff" * 9, data, b"\xff\xd0\xff\xd1"]
    return data + draw.one_of(more)


def change_what_follows_the_scan(draw: Draw, data: bytes) -> bytes:
    more = [
        b"",
        draw.bytes(40),
        b"\xff",
        SOI,
        segment(0xC4, draw.bytes(30)),
        segment(0xFE, b"late") + EOI,
        split(draw.other())[-3],
        segment(0xDB, b"\0" + bytes(64)) + EOI,
        bytes([0xFF, draw.between(0xC0, 0xFF)]) + draw.bytes(20),
    ]
    return b"".join([*split(data)[:-1], draw.one_of(more)])


def inject_marker(draw: Draw, data: bytes) -> bytes:
    at = draw.below(len(data)) if draw.below(2) else draw.between(*scan_range(data))
    marker = draw.one_of([draw.between(1, 256), draw.between(0xC0, 0xFF), draw.between(0xD0, 0xDA)])
    return data[:at] + bytes([0xFF, marker]) + data[at:]


def inject_segment(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    marker = draw.one_of([draw.between(1, 256), draw.between(0xC0, 0xFF), draw.between(0xE0, 0xF0)])
    starts = [
        b"",
        b"JFIF\0",
        b"JFIF",
        b"Adobe",
        b"Exif\0\0II*\0",
        b"MPF\0",
        b"ICC_PROFILE\0",
        b"Photoshop 3.0\0",
    ]
    payload = draw.one_of(starts) + draw.one_of([b"", draw.bytes(3), draw.bytes(20)])
    parts.insert(draw.between(1, len(parts)), segment(marker, payload))
    return b"".join(parts)


def inject_bare_marker(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    parts.insert(draw.between(1, len(parts)), bytes([0xFF, draw.one_of([0, 1, *range(0xD0, 0xDA)])]))
    return b"".join(parts)


def add_fill_bytes(draw: Draw, data: bytes) -> bytes:
    places = [i for i in range(2, len(data) - 1) if data[i] == 0xFF and (data[i + 1] or draw.below(9) == 0)]
    at = draw.one_of(places) if places else 0
    return data[:at] + b"\xff" * draw.between(1, 4) + data[at:]


def add_dnl(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    i = draw.find(parts, *FRAMES)
    if i is not None:
        height = parts[i][5:7]
        if draw.below(2):
            parts[i] = patched(parts[i], 5, b"\0\0")
        parts.insert(draw.one_of([i, i + 1, len(parts) - 1]), segment(0xDC, height))
    return b"".join(parts)


def add_thumbnail(draw: Draw, data: bytes) -> bytes:
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + draw.one_of([b"\0\0", b"\0\1", b"\0\0\0\0\0\0"]) + draw.other()
    return data[:2] + segment(0xE1, exif[:60_000]) + data[2:]


def add_soi(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    parts.insert(draw.below(len(parts)), SOI)
    return b"".join(parts)


def change_restart_interval(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    i = draw.find(parts, 0xDA)
    parts.insert(i or 1, segment(0xDD, struct.pack(">H", draw.one_of([0, 1, 2, 3, 4, 1000]))))
    return b"".join(parts)


def change_restart_marker(draw: Draw, data: bytes) -> bytes:
    start, stop = scan_range(data)
    places = [i for i in range(start, stop - 1) if data[i] == 0xFF and data[i + 1]]
    if not places:
        return data
    at = draw.one_of(places)
    new = [b"", data[at : at + 2] * 2, bytes([0xFF, 0xD0 + draw.below(8)]), b"\0" + data[at : at + 2]]
    return data[:at] + draw.one_of(new) + data[at + 2 :]


def change_colour(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    i = draw.find(parts, 0xE0)
    if i is not None and draw.below(3):
        del parts[i]
    adobe = segment(0xEE, b"Adobe" + bytes(6) + bytes([draw.below(4)]))
    parts.insert(1, draw.one_of([adobe, adobe[:-1], b"", adobe]))
    return b"".join(parts)


def make_quantisation_coarse(draw: Draw, data: bytes) -> bytes:
    parts = split(data)
    i = draw.find(parts, 0xDB)
    if i is not None:
        wide = draw.below(2)
        values = draw.one_of([[255], [65535], [1], [0], [4096, 1], [32767, 255, 3]])
        table = [values[k % len(values)] for k in range(64)]
        packed = struct.pack(">64H", *table) if wide else bytes(min(value, 255) for value in table)
        parts[i] = segment(0xDB, bytes([wide << 4 | draw.below(2)]) + packed) + draw.one_of([b"", parts[i]])
    return b"".join(parts)


CHANGES: list[Change] = [
    flip_bit_in_headers,
    flip_bit_in_segment,
    flip_bits_in_scan,
    set_byte,
    insert_bytes,
    delete_bytes,
    delete_bytes_of_scan,
    truncate,
    truncate_near_the_end,
    swap_segments,
    duplicate_segment,
    remove_segment,
    take_segment_of_another_file,
    set_wrong_length,
    change_size,
    change_frame,
    change_scan_header,
    splice,
    splice_at_segments,
    take_scan_of_another_file,
    add_garbage_behind,
    change_what_follows_the_scan,
    inject_marker,
    inject_segment,
    inject_bare_marker,
    add_fill_bytes,
    add_dnl,
    add_thumbnail,
    add_soi,
    change_restart_interval,
    change_restart_marker,
    change_colour,
    make_quantisation_coarse,
]
