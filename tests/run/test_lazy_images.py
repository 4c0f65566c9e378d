# SPDX-License-Identifier: Apache-2.0
"""Images that stay recipes: what is pending, what makes pixels, what is Pillow's, and what is counted."""

from __future__ import annotations

import inspect
import io
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image, ImageDraw, ImageFile, ImageOps, JpegImagePlugin

from feedrate.run.inside import images, selftest, source, switch
from feedrate.run.inside.counters import Counters
from support.images import save_image
from support.lazy_images import MemoryCache, counted, lazy, lazy_pillow, pending_of

__all__ = ["lazy"]
SAME = selftest.run()


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    return save_image(tmp_path / "photo.jpg", 1, width=200, height=150, quality=90)


def bare(path: Path) -> Any:
    """Return an image that Pillow has decoded."""
    was, switch.here.is_on = switch.here.is_on, False
    try:
        image = Image.open(path)
        image.load()
        return image
    finally:
        switch.here.is_on = was


def train(image: Any) -> Any:
    image = image.convert("RGB").crop((20, 10, 180, 140)).resize((64, 56), Image.Resampling.BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def test_a_crop_a_resize_and_a_flip_are_left_pending_until_pixels_are_asked_for(
    photo: Path, lazy: Counters
) -> None:
    image = train(Image.open(photo))
    assert pending_of(image) is not None
    assert counted(lazy) == {"scanned": 1}
    assert np.array_equal(np.asarray(image), np.asarray(train(bare(photo))))
    assert counted(lazy) == {"scanned": 1, "taken": 1}


def test_size_and_mode_are_known_without_pixels(photo: Path, lazy: Counters) -> None:
    image = train(Image.open(photo))
    assert (image.size, image.width, image.height, image.mode, image.getbands()) == (
        (64, 56), 64, 56, "RGB", ("R", "G", "B")
    )  # fmt: skip
    assert counted(lazy) == {"scanned": 1}


@pytest.mark.usefixtures("lazy")
def test_the_class_at_every_stage_is_that_of_a_bare_pillow(photo: Path) -> None:
    image = Image.open(photo)
    assert (type(image), image.format) == (JpegImagePlugin.JpegImageFile, "JPEG")
    image.load()
    assert (type(image), image.format) == (JpegImagePlugin.JpegImageFile, "JPEG")
    for made in (image.convert("RGB"), image.crop((1, 1, 9, 9)), image.resize((9, 9)), image.copy()):
        assert pending_of(made) is not None
        assert (type(made), made.format) == (Image.Image, None)


@pytest.mark.usefixtures("lazy")
def test_an_operation_that_is_not_known_meets_an_ordinary_image(photo: Path) -> None:
    image = train(Image.open(photo))
    draw = ImageDraw.Draw(image)
    draw.line((0, 0, 60, 50), fill=(255, 0, 0))
    assert pending_of(image) is None
    assert "_feedrate" not in vars(image)
    expected = train(bare(photo))
    ImageDraw.Draw(expected).line((0, 0, 60, 50), fill=(255, 0, 0))
    assert image.tobytes() == expected.tobytes()


@pytest.mark.usefixtures("lazy")
def test_a_change_in_place_does_not_reach_what_was_made_before_and_does_reach_what_is_made_after(
    photo: Path,
) -> None:
    image = Image.open(photo).convert("RGB")
    before = image.crop((0, 0, 50, 50))
    image.paste((1, 2, 3), (0, 0, 30, 30))
    after = image.crop((0, 0, 50, 50))
    assert before.tobytes() == bare(photo).crop((0, 0, 50, 50)).tobytes()
    assert after.getpixel((5, 5)) == (1, 2, 3)
    assert before.getpixel((5, 5)) != (1, 2, 3)


@pytest.mark.usefixtures("lazy")
def test_pixels_written_through_what_load_returned_are_those_of_the_image(photo: Path) -> None:
    image = Image.open(photo)
    pixels, sibling = image.load(), image.copy()
    pixels[3, 4] = (9, 8, 7)
    assert image.getpixel((3, 4)) == (9, 8, 7)
    assert image.crop((3, 4, 4, 5)).tobytes() == bytes((9, 8, 7))
    assert sibling.getpixel((3, 4)) != (9, 8, 7)
    image.putpixel((0, 0), (4, 5, 6))
    assert pixels[0, 0] == (4, 5, 6)


@pytest.mark.usefixtures("lazy")
@pytest.mark.parametrize("name", ["draft", "thumbnail", "reduce", "gap"])
def test_what_decodes_at_a_smaller_scale_is_left_to_pillow(photo: Path, name: str) -> None:
    def shrink(image: Any) -> Any:
        if name == "draft":
            return image.draft("RGB", (50, 50)) and image
        if name == "thumbnail":
            image.thumbnail((40, 40))
            return image
        return image.reduce(3) if name == "reduce" else image.resize((20, 20), reducing_gap=2.0)

    image = shrink(Image.open(photo))
    switch.here.is_on = False
    expected = shrink(Image.open(photo))
    assert image.size == expected.size
    assert image.tobytes() == expected.tobytes()


@pytest.mark.usefixtures("lazy")
def test_a_damaged_file_is_refused_by_the_call_that_refuses_it_with_a_bare_pillow(photo: Path) -> None:
    photo.write_bytes(photo.read_bytes()[:2000])
    with Image.open(photo) as image, pytest.raises(OSError, match="image file is truncated"):
        image.convert("RGB")


@pytest.mark.usefixtures("lazy")
def test_wrong_arguments_are_refused_before_the_file_is_read(photo: Path) -> None:
    photo.write_bytes(photo.read_bytes()[:2000])
    with Image.open(photo) as image, pytest.raises(ValueError, match="'right' is less than 'left'"):
        image.crop((9, 0, 1, 9))


def test_a_truncated_file_is_read_by_pillow_where_the_script_wants_that(
    photo: Path, lazy: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert pending_of(Image.open(photo).convert("RGB")) is not None
    photo.write_bytes(photo.read_bytes()[:2000])
    assert Image.open(photo).convert("RGB").tobytes() == bare(photo).tobytes()
    assert counted(lazy) == {"scanned": 2, "left_truncated-wanted": 1}


def test_a_file_of_pillows_is_closed_when_pillow_closes_it(photo: Path, lazy: Counters) -> None:
    image = Image.open(photo)
    file: Any = image.fp
    image.load()
    assert file.closed
    assert image.fp is None
    assert counted(lazy) == {"scanned": 1}


@pytest.mark.usefixtures("lazy")
@pytest.mark.parametrize("tail", [0, 5, 65536, 200_000])
def test_a_file_of_the_scripts_stays_open_where_pillow_leaves_it(photo: Path, tail: int) -> None:
    data = photo.read_bytes() + bytes(tail)
    for file in (io.BytesIO(data), open(photo.with_suffix(".long"), "w+b")):  # noqa: SIM115
        with file:
            if not isinstance(file, io.BytesIO):
                file.write(data)
                file.flush()
            positions = []
            for is_on in (True, False):
                switch.here.is_on = is_on
                Image.open(file).load()
                positions.append(file.tell())
            assert positions[0] == positions[1]


@pytest.mark.usefixtures("lazy")
def test_an_image_that_was_closed_says_so(photo: Path) -> None:
    image = Image.open(photo).convert("RGB")
    image.close()
    with pytest.raises(ValueError, match="Operation on closed image"):
        image.resize((5, 5))


@pytest.mark.usefixtures("lazy")
def test_an_image_is_pickled_with_its_pixels(photo: Path) -> None:
    image = train(Image.open(photo))
    back = pickle.loads(pickle.dumps(image))
    assert back.tobytes() == train(bare(photo)).tobytes()
    assert "_feedrate" not in vars(back)


@pytest.mark.usefixtures("lazy")
def test_exif_is_read_and_followed(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save_image(tmp_path / "turned.jpg", 3, exif=exif)
    image = Image.open(path)
    image.load()
    assert image.getexif()[0x0112] == 6
    turned = ImageOps.exif_transpose(image)
    assert turned.size == (48, 64)
    assert turned.tobytes() == ImageOps.exif_transpose(bare(path)).tobytes()


def test_many_regions_of_one_image_are_cut_from_pixels_that_are_decoded_once(
    photo: Path, lazy: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    draw = source.draw
    monkeypatch.setattr(source, "_latest", [0])
    monkeypatch.setattr(
        source, "draw", lambda *args, **kwargs: decoded.append(args[2]) or draw(*args, **kwargs)
    )
    for _ in range(2):
        image = Image.open(photo).convert("RGB")
        for at in range(5):
            image.crop((at, at, at + 60, at + 60)).resize((32, 32)).tobytes()
    # Of the first image a region, and then all of it; of the second, all of it at once.
    assert [recipe.size for recipe in decoded] == [(32, 32), None, None]
    assert counted(lazy) == {"scanned": 2, "taken": 2}


def test_why_an_image_is_left_is_counted(tmp_path: Path, lazy: Counters) -> None:
    save_image(tmp_path / "progressive.jpg", 1, progressive=True)
    save_image(tmp_path / "cmyk.jpg", 2, mode="CMYK")
    save_image(tmp_path / "picture.png", 3)
    whole = save_image(tmp_path / "whole.jpg", 4)
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:-40])
    for name in ("progressive.jpg", "cmyk.jpg", "picture.png"):
        Image.open(tmp_path / name).load()
    with Image.open(tmp_path / "cut.jpg") as cut, pytest.raises(OSError, match="truncated"):
        cut.load()
    Image.open(OwnFile(whole.read_bytes())).load()
    drafted = Image.open(whole)
    drafted.draft("L", (9, 9))
    drafted.load()
    Image.open(whole).convert("RGB").rotate(30)
    assert counted(lazy) == {
        "left_not-taken": 2, "left_other-format": 1, "left_damaged": 1, "left_no-bytes": 1,
        "left_other-reader": 1, "scanned": 2, "taken": 1,
    }  # fmt: skip


class OwnFile(io.BytesIO):
    """A file object that may do anything."""


def test_what_this_pillow_decodes_otherwise_is_left_to_it(photo: Path) -> None:
    with lazy_pillow(same=SAME._replace(subsamplings=frozenset({"gray"}))):
        image = Image.open(photo)
        image.load()
        assert pending_of(image) is None


@pytest.mark.parametrize(
    ("same", "call"),
    [
        (SAME._replace(modes=frozenset({"RGB"})), lambda image: image.convert("L")),
        (SAME._replace(filters=frozenset({0, 3})), lambda image: image.resize((20, 20), 2)),
    ],
)
def test_an_operation_that_this_pillow_does_otherwise_is_left_to_it(
    photo: Path, same: Any, call: Any
) -> None:
    with lazy_pillow(same=same):
        made = call(Image.open(photo))
        assert pending_of(made) is None
        assert made.tobytes() == call(bare(photo)).tobytes()


def test_images_opened_while_the_switch_is_off_are_pillows(photo: Path, lazy: Counters) -> None:
    switch.here.is_on = False
    image = Image.open(photo)
    switch.here.is_on = True
    image.load()
    assert "_feedrate" not in vars(image)
    assert counted(lazy) == {}


def test_images_opened_before_the_switch_goes_off_are_pillows_if_not_yet_read(
    photo: Path, lazy: Counters
) -> None:
    image = Image.open(photo)
    pending = Image.open(photo).convert("RGB")
    switch.here.is_on = False
    assert image.convert("RGB").tobytes() == pending.tobytes()
    assert pending_of(image) is None
    assert counted(lazy) == {"scanned": 1, "taken": 1}


@pytest.mark.usefixtures("lazy")
def test_methods_that_somebody_replaced_decode_the_image(
    photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        JpegImagePlugin.JpegImageFile, "load_end", lambda self: self.im.putpixel((0, 0), (1, 2, 3))
    )
    image = Image.open(photo).convert("RGB")
    assert image.getpixel((0, 0)) == (1, 2, 3)


@pytest.mark.usefixtures("lazy")
def test_pixels_that_the_kernel_does_not_make_are_made_by_pillow(
    photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("no")

    image = train(Image.open(photo))
    monkeypatch.setattr(source, "draw", refuse)
    assert image.tobytes() == train(bare(photo)).tobytes()


@pytest.mark.parametrize(
    "facts",
    [
        (1, 3, 200, 150, 900),  # an earlier version
        (2, 77, 200, 150, 900),  # no such kind
        (2, 3, 0, 150, 900),
        (2, 3, 200, 150, 0),
        (2, 3, 200, 150, 1 << 60),  # behind the file's end
        (2, 3, 20, 15, 900),  # of another image
    ],
)
@pytest.mark.parametrize("entries", [b"", b"\xff" * 30])
def test_values_of_a_cache_that_cannot_be_are_not_believed(
    photo: Path, facts: tuple[int, ...], entries: bytes
) -> None:
    value = source._HEAD.pack(*facts, source._check_ends(photo.read_bytes())) + entries
    for read in (value, value[:7]):
        cache = MemoryCache()
        cache.find = lambda *_, read=read: read  # type: ignore[method-assign]
        with lazy_pillow(cache):
            assert train(Image.open(photo)).tobytes() == train(bare(photo)).tobytes()


def test_entry_points_that_are_not_of_this_file_are_not_used(photo: Path) -> None:
    other = save_image(photo.with_name("other.jpg"), 5, width=200, height=150, quality=90)
    first = MemoryCache()
    with lazy_pillow(first):
        Image.open(other).load()
    (value,) = first.values.values()
    forged = MemoryCache()
    forged.find = lambda *_: value  # type: ignore[method-assign]
    with lazy_pillow(forged):
        assert train(Image.open(photo)).tobytes() == train(bare(photo)).tobytes()


def test_what_was_scanned_once_is_found_later(photo: Path, tmp_path: Path) -> None:
    cache = MemoryCache()
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(photo.read_bytes()[:-100])
    mine = Counters(bytearray(4096))
    with pytest.MonkeyPatch.context() as patch, lazy_pillow(cache):
        patch.setattr("feedrate.run.inside.counters.here.current", mine)
        for _ in range(3):
            Image.open(photo).load()
            with Image.open(broken) as image, pytest.raises(OSError, match="truncated"):
                image.load()
    assert counted(mine) == {"scanned": 2, "found": 4, "left_damaged": 3}


@pytest.mark.usefixtures("lazy")
def test_patched_methods_look_like_pillows() -> None:
    assert inspect.signature(Image.Image.resize).parameters.keys() >= {"size", "resample", "box"}
    assert (Image.Image.crop.__name__, Image.Image.crop.__module__) == ("crop", "PIL.Image")
    assert Image.Image.__copy__ is Image.Image.copy
    assert images.patches[:2] == ["PIL.Image.OPEN['JPEG']", f"PIL.Image.Image.{images.Pending.core_name}"]
    assert {"PIL.Image.Image.resize", "PIL.ImageFile.ImageFile.load"} < set(images.patches)


@pytest.mark.usefixtures("lazy")
def test_images_without_a_core_image_have_no_such_attribute() -> None:
    with pytest.raises(AttributeError):
        getattr(Image.Image, images.Pending.core_name)


def test_a_pillow_that_is_not_known_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PIL, "__version__", "99.0")
    assert images.install(SAME) == "Pillow 99.0 is not one of those that feedrate knows: 10 to 13"
    assert images.patches == []


def test_a_pillow_that_somebody_else_patched_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "resize", lambda self: self)
    assert images.install(SAME) == "something has replaced PIL.Image.Image.resize already"


def test_a_pillow_with_other_pixels_is_left_alone() -> None:
    why = images.install(SAME._replace(subsamplings=frozenset()))
    assert why == f"Pillow {PIL.__version__} here makes other pixels of JPEGs than feedrate's kernel"


@pytest.mark.usefixtures("lazy")
def test_threads_that_look_at_one_image_see_one_core_image(photo: Path) -> None:
    image = Image.open(photo).convert("RGB")
    seen: list[Any] = []
    threads = [threading.Thread(target=lambda: seen.append(image.im)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(core) for core in seen}) == 1


@pytest.fixture(autouse=True)
def pillow_is_bare_again() -> Iterator[None]:
    yield
    assert images.patches == []
    assert Image.OPEN["JPEG"][0] is JpegImagePlugin.jpeg_factory
    assert not switch.here.is_on
