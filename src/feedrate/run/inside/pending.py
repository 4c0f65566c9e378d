# SPDX-License-Identifier: Apache-2.0
"""An image that is still a recipe: what operations make of the recipe, and its pixels when they are wanted.

A recipe refers to the bytes of a file and never to another image, so nothing that happens to one image
changes another. None in the place of a recipe: it cannot say that, and Pillow does it with pixels.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from feedrate.arrays import U8
from feedrate.filters import FILTERS
from feedrate.kernel import Recipe
from feedrate.kernel.pillow import Box
from feedrate.run.inside.selftest import SelfTest
from feedrate.run.inside.source import Source

# In an image's __dict__: OPENED, or a Pending in the place of the core image.
STATE = "_feedrate"
OPENED = object()  # its headers were read by Pillow, and its file may be taken when its pixels are asked for

_BICUBIC = FILTERS["bicubic"]  # what Pillow resizes with where no filter is named
_MOST_PIXELS = 1 << 26  # of a resized image: who asks for more gets Pillow's answer at once
_FLIPS = {0: (True, False), 1: (False, True), 3: (True, True)}  # Pillow's numbers; 3 turns by 180 degrees


class Pending:
    """Bytes and a recipe; `core` is what Pillow keeps pixels in, from the moment they are looked at."""

    core_name = "_im"  # in an image's __dict__; "im" before Pillow 11

    def __init__(self, source: Source, recipe: Recipe, pixels: U8 | None = None) -> None:
        height, width = recipe.shape
        self.source = source
        self.recipe = recipe
        self.mode = recipe.mode
        self.size = (width, height)
        self.pixels = pixels
        self.core: Any = None

    def draw(self) -> U8:
        """Return the pixels, H x W x C; nobody may write to them."""
        if self.pixels is None:
            self.pixels = self.source.draw(self.recipe)
        return self.pixels

    def make_core(self) -> Any:
        """Return a core image of these pixels, always the same one."""
        if self.core is None:
            from PIL import Image

            pillow: Any = Image
            core = pillow.core.new(self.mode, self.size)
            decoder = pillow._getdecoder(self.mode, "raw", (self.mode, 0, 1))
            decoder.setimage(core, (0, 0, *self.size))
            left, error = decoder.decode(self.draw())
            if left >= 0 or error:
                raise ValueError(f"Pillow does not take {self.size} pixels of mode {self.mode}")
            # Of two threads that come here at once, both go on with the first one's.
            self.core = self.__dict__.setdefault("_first_core", core)
        return self.core


def find_pending(image: Any) -> Pending | None:
    """Return an image's recipe, if it is still nothing else."""
    values = image.__dict__
    state = values.get(STATE)
    if not isinstance(state, Pending):
        return None
    if state.core is not None:  # made for what `load` returned
        values.setdefault(Pending.core_name, state.core)
    if Pending.core_name in values:
        values.pop(STATE, None)
        return None
    return state if values.get("_size") == state.size and values.get("_mode") == state.mode else None


class CoreImage:
    """The core image of pending images: they have none in their __dict__, and it is made when asked for."""

    def __get__(self, image: Any, _owner: Any = None) -> Any:
        state = None if image is None else image.__dict__.get(STATE)
        if state is None or state is OPENED:
            raise AttributeError(Pending.core_name)
        core = image.__dict__.setdefault(Pending.core_name, state.make_core())
        image.__dict__.pop(STATE, None)
        return core


class PixelAccess:
    """What `load` returns of a pending image: Pillow's own, once it is used."""

    def __init__(self, pending: Pending, readonly: Any) -> None:
        self._pending = pending
        self._readonly = readonly

    def _own(self) -> Any:
        return self._pending.make_core().pixel_access(self._readonly)

    def __getitem__(self, at: Any) -> Any:
        return self._own()[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self._own()[at] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._own(), name)


class Steps(NamedTuple):
    """Pillow's operations on recipes, with the arguments that Pillow's methods have.

    Each is given a recipe and the mode of its file, and returns a recipe or None. Whatever is odd about the
    arguments is an exception or None: Pillow then says so.
    """

    same: SelfTest
    most_pixels: Callable[[], float | None]

    def convert(
        self, recipe: Recipe, file_mode: str, mode: Any = None, matrix: Any = None, *_: Any, **__: Any
    ) -> Recipe | None:
        if matrix:
            return None
        if not mode or mode == recipe.mode:
            return recipe
        if mode not in self.same.modes:
            return None
        # Gray files commute with everything; colours turn gray before they are resized.
        is_said = file_mode == "L" or (recipe.mode == "RGB" and recipe.size is None)
        return recipe._replace(mode=mode) if is_said else None

    def crop(self, recipe: Recipe, _mode: str, box: Any = None) -> Recipe | None:
        if box is None:
            return recipe
        if not isinstance(box, (tuple, list)):
            return None
        left, top, right, bottom = (round(one) for one in box)
        height, width = recipe.shape
        if not (0 <= left < right <= width and 0 <= top < bottom <= height):
            return None
        most = self.most_pixels()
        if most is not None and (right - left) * (bottom - top) > most:
            return None
        if recipe.mirrored:
            left, right = width - right, width - left
        if recipe.upside_down:
            top, bottom = height - bottom, height - top
        outer = recipe.window or ((0, 0, 0, 0) if recipe.size else recipe.crop)
        inner = (left + outer[0], top + outer[1], right + outer[0], bottom + outer[1])
        return recipe._replace(window=inner) if recipe.size else recipe._replace(crop=inner)

    def resize(
        self,
        recipe: Recipe,
        _mode: str,
        size: Any,
        resample: Any = None,
        box: Any = None,
        reducing_gap: Any = None,
    ) -> Recipe | None:
        resample = _BICUBIC if resample is None else operator.index(resample)
        if reducing_gap is not None or resample not in self.same.filters or not _is_plain(size, 2):
            return None
        width, height = (operator.index(one) for one in size)
        reach = _read_reach(box, recipe.shape)
        if reach is None:
            return None
        whole = (0, 0, recipe.shape[1], recipe.shape[0])
        if (height, width) == recipe.shape and reach == whole:
            return recipe
        if recipe.size or recipe.mirrored or recipe.upside_down:
            return None
        if min(width, height) < 1 or width * height > _MOST_PIXELS:
            return None
        return recipe._replace(size=(width, height), filter=resample, reach=None if reach == whole else reach)

    def transpose(self, recipe: Recipe, _mode: str, method: Any) -> Recipe | None:
        flips = _FLIPS.get(operator.index(method))
        if flips is None:
            return None
        return recipe._replace(
            mirrored=recipe.mirrored != flips[0], upside_down=recipe.upside_down != flips[1]
        )

    def copy(self, recipe: Recipe, _mode: str) -> Recipe:
        return recipe


def _is_plain(value: Any, length: int) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == length


def _read_reach(box: Any, shape: tuple[int, int]) -> tuple[float, float, float, float] | Box | None:
    height, width = shape
    if box is None:
        return (0, 0, width, height)
    if not _is_plain(box, 4):
        return None
    left, top, right, bottom = (float(one) for one in box)
    is_inside = 0 <= left < right <= width and 0 <= top < bottom <= height
    return (left, top, right, bottom) if is_inside else None
