# SPDX-License-Identifier: Apache-2.0
"""JPEGs that the script's Pillow opens stay recipes until somebody needs their pixels.

The factory of JPEGs is wrapped, and the methods that make recipes of recipes. All else asks for the core
image, which is made at that moment: what is not known here meets an ordinary Pillow image. Whatever fails
here is Pillow's again, which then raises what it raises without us.
"""

from __future__ import annotations

import functools
import io
import os
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

from feedrate.run.inside import counters, switch
from feedrate.run.inside.counters import Left
from feedrate.run.inside.pending import (
    OPENED,
    STATE,
    CoreImage,
    Pending,
    PixelAccess,
    Steps,
    find_pending,
)  # fmt: skip
from feedrate.run.inside.selftest import SelfTest
from feedrate.run.inside.source import Entries, open_source

patches: list[str] = []  # names of what was replaced

_KNOWN = range(10, 14)  # major versions
_LARGEST = 64 << 20  # bytes: a JPEG with a film behind it is Pillow's, which reads no more than it needs
_BLOCK_MARGIN = 64  # bytes
_READING = ("load_read", "load_prepare", "load_end")


class _Shape(NamedTuple):
    """What Pillow's `_new` looks at in a core image."""

    mode: str
    size: tuple[int, int]


def install(same: SelfTest, cache: Entries | None = None) -> str:
    """Patch this process's Pillow, once; return why it is left as it is, "" when it is not.

    `PIL.JpegImagePlugin` was imported before. JPEGs that are opened while `switch.here.is_on` stay recipes.
    """
    from PIL import Image, ImageFile, JpegImagePlugin

    if patches:
        return ""
    why = _why_left_alone(Image, ImageFile, JpegImagePlugin, same)
    if why:
        return why
    Pending.core_name = _find_core_name(Image)
    taker = _Taker(Image, ImageFile, JpegImagePlugin.JpegImageFile, same, cache)
    factory, accept = Image.OPEN["JPEG"]
    Image.OPEN["JPEG"] = (_wrap_factory(factory, JpegImagePlugin.JpegImageFile), accept)
    patches.append("PIL.Image.OPEN['JPEG']")
    setattr(Image.Image, Pending.core_name, CoreImage())
    patches.append(f"PIL.Image.Image.{Pending.core_name}")
    steps = Steps(same, lambda: Image.MAX_IMAGE_PIXELS)
    for name in _STEPS:
        _replace(Image.Image, name, _wrap_step(getattr(Image.Image, name), getattr(steps, name)))
    Image.Image.__copy__ = Image.Image.copy
    patches.append("PIL.Image.Image.__copy__")
    _replace(Image.Image, "tobytes", _wrap_tobytes(Image.Image.tobytes))
    _replace(Image.Image, "load", _wrap_load(Image.Image.load, None))
    _replace(ImageFile.ImageFile, "load", _wrap_load(ImageFile.ImageFile.load, taker))
    return ""


_STEPS = ("convert", "crop", "resize", "transpose", "copy")


def _why_left_alone(image: Any, image_file: Any, plugin: Any, same: SelfTest) -> str:
    import PIL

    major = PIL.__version__.split(".")[0]
    if not major.isdecimal() or int(major) not in _KNOWN:
        return (
            f"Pillow {PIL.__version__} is not one of those that feedrate knows: {_KNOWN[0]} to {_KNOWN[-1]}"
        )
    if not same.subsamplings:
        return f"Pillow {PIL.__version__} here makes other pixels of JPEGs than feedrate's kernel"
    methods = [(image.Image, name) for name in (*_STEPS, "tobytes", "load")]
    for owner, name in (*methods, (image_file.ImageFile, "load")):
        if getattr(owner.__dict__.get(name), "__module__", "") != owner.__module__:
            return f"something has replaced {owner.__module__}.{owner.__name__}.{name} already"
    factory = image.OPEN.get("JPEG", (None,))[0]
    if factory is not plugin.jpeg_factory:
        return "something has replaced what Pillow opens JPEGs with already"
    names = image.new("L", (1, 1)).__dict__
    if not {"_mode", "_size", "info"} <= set(names) or not _find_core_name(image):
        return f"images of Pillow {PIL.__version__} here have other attributes than feedrate knows"
    return ""


def _find_core_name(image: Any) -> str:
    names = image.new("L", (1, 1)).__dict__
    return next((name for name in ("_im", "im") if name in names), "")


def _replace(owner: Any, name: str, method: Any) -> None:
    setattr(owner, name, method)
    patches.append(f"{owner.__module__}.{owner.__name__}.{name}")


def _wrap_factory(own: Callable[..., Any], kind: type) -> Callable[..., Any]:
    @functools.wraps(own)
    def factory(*args: Any, **kwargs: Any) -> Any:
        image = own(*args, **kwargs)
        if switch.here.is_on and type(image) is kind:
            image.__dict__[STATE] = OPENED
        return image

    return factory


def _wrap_step(own: Callable[..., Any], step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if STATE in self.__dict__:
            made = _follow_step(self, step, args, kwargs)
            if made is not None:
                return made
        return own(self, *args, **kwargs)

    return method


def _follow_step(image: Any, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return a pending image; None: Pillow makes one."""
    values = image.__dict__
    if "transparency" in image.info:
        return None
    if values[STATE] is OPENED:
        # What is wrong with the arguments comes before what is wrong with the file, but where Pillow has it
        # the other way round: it then loads first itself.
        whole = _start_recipe(image)
        if _try(step, whole, image.mode, *args, **kwargs) is None:
            return None
        image.load()
    pending = find_pending(image)
    if pending is None:
        return None
    recipe = _try(step, pending.recipe, pending.source.mode, *args, **kwargs)
    if recipe is None:
        return None
    pixels = pending.pixels if recipe == pending.recipe else None
    made = image._new(_Shape(recipe.mode, (recipe.shape[1], recipe.shape[0])))
    del made.__dict__[Pending.core_name]
    made.__dict__[STATE] = Pending(pending.source, recipe, pixels)
    return made


def _start_recipe(image: Any) -> Any:
    from feedrate.kernel import Recipe

    return Recipe(image.mode, (0, 0, *image.size))


def _try(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return work(*args, **kwargs)
    except Exception:  # arguments of any kind: Pillow raises what it raises
        return None


def _wrap_tobytes(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if STATE in self.__dict__ and not kwargs and args in ((), ("raw",), ("raw", self.mode)):
            self.load()
            pending = find_pending(self)
            if pending is not None:
                return pending.draw().tobytes()
        return own(self, *args, **kwargs)

    return method


def _wrap_load(own: Callable[..., Any], taker: _Taker | None) -> Callable[..., Any]:
    @functools.wraps(own)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        values = self.__dict__
        if STATE in values and not args and not kwargs:
            if taker is not None and values[STATE] is OPENED:
                taker.take(self)
            pending = find_pending(self)
            if pending is not None:
                return PixelAccess(pending, values.get("_readonly", values.get("readonly", 0)))
        elif taker is not None and switch.here.is_on and values.get("tile"):
            taker.count_other(self)
        return own(self, *args, **kwargs)

    return method


class _Taker:
    """Reads and scans a file in the place of Pillow's decoder, and leaves all as that does."""

    def __init__(
        self, image: Any, image_file: Any, kind: type, same: SelfTest, cache: Entries | None
    ) -> None:
        self._image = image
        self._image_file = image_file
        self._kind = kind
        self._same = same
        self._cache = cache
        self._readers = self._list_readers()

    def take(self, image: Any) -> None:
        """Make an opened image pending; where it stays opened no more, it is Pillow's."""
        values = image.__dict__
        del values[STATE]
        if not switch.here.is_on or image.fp is None:
            return
        try:
            found = self._why_left(image) or self._start(image)
        except Exception:  # of the script's file object, or of memory: Pillow meets it, too
            found = Left.NO_BYTES
        if isinstance(found, Left):
            counters.leave(found)
        else:
            del values[Pending.core_name]
            values[STATE] = found

    def count_other(self, image: Any) -> None:
        if type(image) is not self._kind:
            counters.leave(Left.OTHER_READER if image.format == "JPEG" else Left.OTHER_FORMAT)

    def _why_left(self, image: Any) -> Left | None:
        plain: Any = [("jpeg", (0, 0, *image.size), 0, (image.mode, ""))]
        if image.mode not in ("RGB", "L") or image.info.get("progressive"):
            return Left.NOT_TAKEN
        is_changed = (
            image.tile != plain
            or image.decoderconfig != ()
            or self._list_readers() != self._readers
            or not image.__dict__.keys().isdisjoint(_READING)
            or hasattr(image, "load_seek")
            or image.__dict__.get(Pending.core_name) is not None
            or type(image) is not self._kind
        )
        return Left.OTHER_READER if is_changed else None

    def _list_readers(self) -> list[Any]:
        """Return what Pillow calls to decode a JPEG: somebody may have put something else there."""
        methods = [getattr(self._kind, name) for name in _READING]
        core = self._image.core
        return [*methods, self._image._getdecoder, core.jpeg_decoder, self._image.DECODERS.get("jpeg")]

    def _start(self, image: Any) -> Pending | Left:
        file, is_ours = image.fp, image._exclusive_fp and image._close_exclusive_fp_after_loading
        data = _read(file)
        if data is None:
            return Left.NO_BYTES
        source = open_source(data, image.mode, image.size, self._cache, self._same)
        if isinstance(source, Left):
            # Of a sound file this switch changes nothing.
            is_wanted = source is Left.DAMAGED and self._image_file.LOAD_TRUNCATED_IMAGES
            return Left.TRUNCATED_WANTED if is_wanted else source
        if not is_ours:
            position = _position_after(data, source.end, image.decodermaxblock)
            if position is None:
                return Left.NO_BYTES
            file.seek(position)
        image.tile = []
        image.map = None
        image.readonly = 0
        if is_ours:
            file.close()
        image.fp = None
        return Pending(source, _start_recipe(image))


def _read(file: Any) -> bytes | None:
    """Return all bytes of a file object that is of a plain kind; None: it is not."""
    if not getattr(file, "__dict__", {}).keys().isdisjoint(("read", "seek", "tell", "close")):
        return None
    if type(file) is io.BytesIO:
        data = file.getvalue()
        return data if len(data) <= _LARGEST else None
    raw = file.raw if type(file) in (io.BufferedReader, io.BufferedRandom) else file
    if type(raw) is not io.FileIO:
        return None
    facts = os.fstat(raw.fileno())
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > _LARGEST:
        return None
    file.seek(0)
    read: bytes = file.read()
    return read


def _position_after(data: bytes, end: int, block: int) -> int | None:
    """Return where Pillow's decoder stops reading: at the end of the block with the last of the pixels.

    It needs neither what fills the file up behind them nor the marker that ends the image. Where they may end
    in one block and the marker in another, it cannot be told.
    """
    if len(data) <= block:
        return len(data)
    filled = data[max(end - (block << 2), 0) : end - 2]
    first = max(end - 2 - len(filled) + len(filled.rstrip(b"\0\xff")) - _BLOCK_MARGIN, 0) // block
    return min((first + 1) * block, len(data)) if first == (end - 1) // block else None
