# SPDX-License-Identifier: Apache-2.0
"""The way through Pillow, for what the kernel leaves to it. Every failure is an `Undecodable`, in words.

But for want of memory, which is no fault of an image: that is a `MemoryError`.

Pillow's warnings (large images, odd metadata) are not silenced here: Python's filters belong to the whole
process, and threads must not swap them.
"""

from __future__ import annotations

import io
import math
import mmap
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feedrate.arrays import U8, Pixels
from feedrate.filters import BILINEAR, FILTERS
from feedrate.kernel.depth import Depth, TooDeep, check_mode, crop_uint16, is_deep, to_8_bits

if TYPE_CHECKING:
    from PIL import Image

Box = tuple[int, int, int, int]


# Pillow knows more formats; some would start other programs (EPS), others nobody trains on.
FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "BMP", "DIB", "TIFF", "GIF", "PPM")


_ORIENTATION = 0x0112  # EXIF
_LOADING_TRUNCATED = threading.Lock()
_PNG_EXIF = (b"eXIf", b"rofile type exif", b"rientation")  # a chunk, ImageMagick's, XMP's
NORMAL_QUALITY = 95  # of the JPEGs that normalising makes of other images


class Undecodable(ValueError):
    """Pillow cannot make pixels of this."""


def most_pixels() -> float:
    """Return how many pixels a whole image may have: as many as Pillow opens, by Pillow's own switch."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    return math.inf if limit is None else 2 * limit


def say_too_large(width: int, height: int) -> str:
    return (
        f"the whole image has {width} x {height} pixels, the limit is {most_pixels():,.0f} (twice "
        "PIL.Image.MAX_IMAGE_PIXELS): take a crop of it or, if you trust it, raise the limit with "
        "'import PIL.Image; PIL.Image.MAX_IMAGE_PIXELS = None'"
    )


def measure(data: bytes) -> tuple[int, int, str]:
    """Return width, height and mode of an image; looks at its headers only."""
    with open_image(data) as image:
        return (*image.size, image.mode)


def describe(data: bytes) -> tuple[str, str, int]:
    """Return format, mode and number of frames of an image; looks at its headers only."""
    with open_image(data) as image:
        return image.format or "", image.mode, getattr(image, "n_frames", 1)


def check(data: bytes) -> tuple[int, int]:
    """Decode an image to see whether that works; returns its width and height."""
    with open_image(data) as image:
        _load(image)
        size: tuple[int, int] = image.size
        return size


def decode(
    data: bytes, box: Box, shape: tuple[int, ...], filter_: int = BILINEAR, depth: Depth | None = None
) -> Pixels:
    """Return the crop `box`, resized to `shape` (height, width, channels).

    With depth "uint16" a deep image is H x W x 1 of its own values. Without a depth it is clipped: whether
    that was asked for is looked at elsewhere.
    """
    height, width, channels = shape
    with open_image(data) as image:
        _load(image)
        if depth == "uint16" and is_deep(image.mode):
            return crop_uint16(image, box, (width, height), filter_)[..., None]
        cropped = _to_pixels(image, channels, depth).crop(box)
    return np.asarray(cropped.resize((width, height), filter_)).reshape(shape)


def decode_whole(data: bytes, depth: Depth | None = None) -> U8:
    """Return all pixels of an image, in RGB."""
    with open_image(data) as image:
        _load(image)
        return np.asarray(_to_pixels(image, 3, depth))


def _to_pixels(image: Image.Image, channels: int, depth: Depth | None) -> Image.Image:
    image = to_8_bits(image, depth) if is_deep(image.mode) else image
    return image.convert("RGB" if channels == 3 else "L")


def decode_mask(data: bytes, box: Box, shape: tuple[int, ...]) -> U8:
    """Return the crop `box`, resized to `shape` by nearest neighbour; values stay as they are."""
    from PIL import Image

    height, width, channels = shape
    with open_image(data) as image:
        _load(image)
        cropped = image.crop(box)
    if cropped.mode == "1":
        cropped = cropped.convert("L").point(lambda value: value // 255)
    values = np.asarray(cropped.resize((width, height), Image.Resampling.NEAREST))
    if values.dtype != np.uint8:
        values = _to_8_bits(values, cropped.mode)
    values = values.reshape(height, width, -1)
    if values.shape[2] != channels:
        raise Undecodable(f"mask has {values.shape[2]} channels ({cropped.mode}), {channels} wanted")
    return values


def crop_rows(pixels: Pixels, box: Box, shape: tuple[int, ...], filter_: int | None) -> Pixels:
    """Return of decoded rows (H x W or H x W x 3) what `decode` or, without filter, `decode_mask` return.

    Of 16 bits, rows with colours are taken as they are: whole, and of that size already.
    """
    from PIL import Image

    height, width, channels = shape
    if pixels.dtype == np.uint16 and pixels.ndim == 3:
        return pixels
    image = Image.fromarray(pixels)
    if pixels.dtype == np.uint16:
        return crop_uint16(image, box, (width, height), filter_ or BILINEAR)[..., None]
    if filter_ is not None:
        image = image.convert("RGB" if channels == 3 else "L")
    resized = image.crop(box).resize((width, height), FILTERS["nearest"] if filter_ is None else filter_)
    return np.asarray(resized).reshape(shape)


def resizes_as_kernel() -> bool:
    """Say whether Pillow resizes in the kernel's order: before 13, the last bit may differ."""
    import PIL

    return int(PIL.__version__.split(".")[0]) >= 13


def encode_png(image: Any, *, is_mask: bool, is_brief: bool = False) -> bytes:
    """Return a Pillow image, or uint8 rows, as PNG: pixels as loading would give them, or a mask's values.

    `is_brief`: it will be decoded again at once, so that its size does not matter.

    Raises:
        Undecodable: it holds more than 8 bits a channel, or is no image.
    """
    from PIL import Image

    if isinstance(image, np.ndarray):
        image = Image.fromarray(np.ascontiguousarray(image))
    _load(image)
    if not is_mask and image.mode not in ("L", "RGB"):
        if is_deep(image.mode):
            raise Undecodable(f"an image of mode {image.mode} has more than 8 bits per channel")
        image = image.convert("L" if image.mode in ("1", "LA", "La") else "RGB")
    return _save(image, "PNG", compress_level=1 if is_brief else 6)


def resize_deep(data: bytes, size: tuple[int, int]) -> bytes:
    """Return gray of more than 8 bits, resized to `size` (width, height) in its own values.

    As PNG of 16 bits or, where that cannot hold the values, as TIFF.

    Raises:
        Undecodable: it is no image.
    """
    from PIL import Image

    with open_image(data) as image:
        _load(image)
        whole = (0, 0, *image.size)
        try:
            check_mode(image.mode, "uint16")
            return _save(Image.fromarray(crop_uint16(image, whole, size, BILINEAR)), "PNG")
        except TooDeep:
            resized = image.convert("F").resize(size, BILINEAR)
            return _save(resized if image.mode == "F" else resized.convert("I"), "TIFF")


def _save(image: Any, format_name: str, what: str = "mode", **options: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        image.save(buffer, format_name, **options)
    except MemoryError:
        raise
    except Exception as error:
        words = f"{what} {image.mode} does not go into {format_name}: {_words(error)}"
        raise Undecodable(words) from error
    return buffer.getvalue()


def fill_up(data: bytes) -> bytes:
    """Return an image that ends too early as PNG, filled up as Pillow's LOAD_TRUNCATED_IMAGES does.

    Raises:
        Undecodable: not even that helps.
    """
    from PIL import ImageFile

    with _LOADING_TRUNCATED:  # a switch of the whole process
        before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, True
        try:
            with open_image(data) as image:
                return encode_png(image, is_mask=False)
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = before


def is_gray(data: bytes) -> bool:
    """Say whether an image holds no colours by its kind; looks at its headers only."""
    return measure(data)[2] in ("1", "L", "LA")


def encode_jpeg(pixels: U8, *, quality: int, full_chroma: bool, orientation: int) -> bytes:
    """Return gray (H x W) or RGB (H x W x 3) pixels as a baseline JPEG with Huffman tables made for it.

    Those take 3 % less room than the standard ones and decode as fast (256 pixels, quality 90). `orientation`
    is the EXIF tag; 1, upright, is not written.
    """
    from PIL import Image

    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    buffer = io.BytesIO()
    chosen = {"quality": quality, "subsampling": 0 if full_chroma else 2, "optimize": True}
    Image.fromarray(pixels).save(buffer, "JPEG", **chosen, exif=b"" if orientation == 1 else exif)
    return buffer.getvalue()


def read_orientation(data: bytes) -> int:
    """Return an image's EXIF orientation, 1 to 8; 1 when it has none that makes sense."""
    # A PNG may say it after its pixels, so that Pillow decodes all of them to know.
    if data.startswith(b"\x89PNG") and not any(word in data for word in _PNG_EXIF):
        return 1
    try:
        with open_image(data) as image:
            value = image.getexif().get(_ORIENTATION, 1)
    except MemoryError:
        raise
    except Exception:  # broken EXIF is no reason to refuse good pixels
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def resize_mask(data: bytes, size: tuple[int, int]) -> bytes:
    """Return a mask as PNG, resized to `size` (width, height) by nearest neighbour; values stay."""
    from PIL import Image

    with open_image(data) as image:
        _load(image)
        resized = image.resize(size, Image.Resampling.NEAREST)
        return _save(resized, "PNG", "mask of mode", compress_level=6)


def _to_8_bits(values: npt.NDArray[Any], mode: str) -> U8:
    if values.dtype.kind == "f":
        raise Undecodable("mask has floating-point values")
    if values.min() < 0 or values.max() > 255:
        raise Undecodable(f"mask has {'16-bit values' if '16' in mode else 'values beyond 8 bits'}")
    return values.astype(np.uint8)


def open_image(data: bytes) -> Image.Image:
    """Return an image that has not been decoded yet; it is when its pixels are first asked for."""
    from PIL import Image, UnidentifiedImageError

    Image.init()
    try:
        return Image.open(io.BytesIO(data), formats=[f for f in FORMATS if f in Image.OPEN])
    except UnidentifiedImageError:
        raise Undecodable("not an image that feedrate knows") from None
    except MemoryError:
        raise
    except Image.DecompressionBombError as error:
        how = "if you trust it, raise the limit with 'import PIL.Image; PIL.Image.MAX_IMAGE_PIXELS = None'"
        raise Undecodable(f"{_words(error)}; {how}") from error
    except Exception as error:
        raise Undecodable(_words(error)) from error


def _load(image: Image.Image) -> None:
    # Pillow's readers raise whatever damage leads them into: OSError, SyntaxError, struct.error ...
    try:
        image.load()
    except MemoryError:
        raise
    except Exception as error:
        _check_memory(*image.size)
        raise Undecodable(_words(error)) from error


def _check_memory(width: int, height: int) -> None:
    """Raise MemoryError where there is none for an image: its decoders may have called that a broken file."""
    try:
        mmap.mmap(-1, max(1, 12 * width * height)).close()  # pixels, and coefficients of a progressive JPEG
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"no memory for an image of {width} x {height} pixels") from error


def _words(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    # An address in memory says nothing to anybody.
    return text if text and "0x" not in text else type(error).__name__
