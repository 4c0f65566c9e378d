# SPDX-License-Identifier: Apache-2.0
"""Less to decode, as explicit choices: smaller images, another quality, raw pixels."""

from __future__ import annotations

import dataclasses
import gc
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from feedrate import (
    Dataset,
    FieldSpec,
    Loader,
    PackOptions,
    RandomResizedCrop,
    Recode,
    kernel,
    pack,
    unpack,
    verify,
)
from feedrate.errors import AlreadyExists, PackError, UsageError
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.manifest import read_manifest
from feedrate.format.pack import Pack
from feedrate.packing.check.describe import describe
from feedrate.progress import Tick
from support.damage import edit_manifest
from support.images import read_tree, save_image

CHOICES = [
    Recode(resize=32),
    Recode(max_side=40),
    Recode(quality=70),
    Recode(resize=32, quality=97),
    Recode(raw=True),
    Recode(resize=32, raw=True),
]
IDS = ["resize", "max-side", "quality", "resize-quality", "raw", "raw-resize"]


def options(recode: Recode, **others: Any) -> PackOptions:
    return PackOptions(**{"shard_bytes": 10_000, "workers": 1, "recode": recode, **others})


def members(folder: Path) -> dict[str, bytes]:
    """Return every member of every shard."""
    found = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for info in archive:
                file = archive.extractfile(info)
                assert file is not None
                found[info.name] = file.read()
    return found


def open_image(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def decode_original(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("recode", CHOICES, ids=IDS)
def test_what_was_chosen_is_good_says_so_and_loads(jpeg_folder: Path, tmp_path: Path, recode: Recode) -> None:
    result = pack(jpeg_folder, tmp_path / "p", options(recode))
    assert result.samples == 16
    assert result.recoded is not None
    checked = verify(tmp_path / "p", workers=1)
    assert checked.problems == ()
    assert checked.pixels == result.recoded.words == describe(tmp_path / "p").pixels
    with Loader(tmp_path / "p", batch_size=4, image=RandomResizedCrop(16), threads=2) as loader:
        assert sum(len(images) for images, _ in loader) == 16
        assert loader.stats().by_pillow == 0
    assert len(Dataset(tmp_path / "p")) == 16
    assert Dataset(tmp_path / "p", output="numpy")[0][0].ndim == 3


@pytest.mark.parametrize("recode", CHOICES, ids=IDS)
def test_workers_and_interruptions_do_not_change_a_byte(
    jpeg_folder: Path, tmp_path: Path, recode: Recode
) -> None:
    class Stop(Exception):
        pass

    def stop(tick: Tick) -> None:
        if tick.stage == "packing" and tick.done >= 9:
            raise Stop("stopped by the test")

    chosen = options(recode, shard_bytes=4000)
    pack(jpeg_folder, tmp_path / "p", chosen)
    with pytest.raises(Stop, match="stopped by the test"):
        pack(jpeg_folder, tmp_path / "again", chosen, watch=stop)
    result = pack(jpeg_folder, tmp_path / "again", dataclasses.replace(chosen, workers=2))
    assert 0 < result.resumed_shards < result.shards
    assert read_tree(tmp_path / "again") == read_tree(tmp_path / "p")


def test_small_images_are_kept_byte_for_byte(jpeg_folder: Path, tmp_path: Path) -> None:
    result = pack(jpeg_folder, tmp_path / "p", options(Recode(resize=48)))
    assert result.recoded is not None
    # All but one are 64 x 48.
    assert (result.recoded.images, result.recoded.resized, result.recoded.kept) == (1, 1, 15)
    stored = members(tmp_path / "p")
    assert stored["dog/picture.png"] == (jpeg_folder / "dog" / "picture.png").read_bytes()
    assert stored["cat/0.jpg"] == (jpeg_folder / "cat" / "0.jpg").read_bytes()
    assert open_image(stored["dog/deeper/still/one.jpg"]).size == (76, 48)


@pytest.mark.parametrize(
    ("recode", "size", "expected"),
    [
        (Recode(resize=256), (500, 375), (341, 256)),
        (Recode(resize=256), (375, 500), (256, 341)),
        (Recode(resize=256), (256, 900), (256, 900)),
        (Recode(resize=256), (100, 100), (100, 100)),
        (Recode(max_side=256), (500, 375), (256, 192)),
        (Recode(max_side=256), (10, 5000), (1, 256)),
        (Recode(max_side=256), (256, 256), (256, 256)),
        (Recode(quality=50), (500, 375), (500, 375)),
    ],
)
def test_the_new_size_keeps_the_shape_and_never_grows(
    recode: Recode, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert recode.new_size(*size) == expected


def test_resized_images_are_jpegs_of_pillows_resize(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "p", options(Recode(resize=32, quality=92)))
    stored = members(tmp_path / "p")
    for name, original in {"cat/0.jpg": "cat/0.jpg", "dog/picture.jpg": "dog/picture.png"}.items():
        with Image.open(jpeg_folder / original) as image:
            resized = image.convert("RGB").resize((42, 32), Image.Resampling.BILINEAR)
        expected = io.BytesIO()
        resized.save(expected, "JPEG", quality=92, subsampling=2, optimize=True)
        assert stored[name] == expected.getvalue()


def test_gray_stays_gray_and_progressive_becomes_baseline(jpeg_folder: Path, tmp_path: Path) -> None:
    result = pack(jpeg_folder, tmp_path / "p", options(Recode(quality=80)))
    stored = members(tmp_path / "p")
    assert open_image(stored["cat/gray.jpg"]).mode == "L"
    assert kernel.scan(stored["cat/progressive.jpg"]).reason is None
    assert (result.by_kernel, result.by_pillow) == (16, {})
    pack(jpeg_folder, tmp_path / "raw", options(Recode(raw=True)))
    stored = members(tmp_path / "raw")
    assert np.load(io.BytesIO(stored["cat/gray.npy"])).shape == (48, 64)
    assert np.load(io.BytesIO(stored["cat/0.npy"])).shape == (48, 64, 3)


@pytest.mark.parametrize(("quality", "sampling"), [(94, "4:2:0"), (95, "4:4:4")])
def test_high_quality_keeps_the_colours_whole(
    jpeg_folder: Path, tmp_path: Path, quality: int, sampling: str
) -> None:
    pack(jpeg_folder, tmp_path / "p", options(Recode(quality=quality)))
    assert kernel.scan(members(tmp_path / "p")["cat/0.jpg"]).sampling == sampling


def test_the_orientation_tag_survives_and_turns_nothing(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a description"
    save_image(tmp_path / "s" / "turned.jpg", 1, exif=exif)
    pack(tmp_path / "s", tmp_path / "p", options(Recode(resize=24)))
    image = open_image(members(tmp_path / "p")["turned.jpg"])
    assert image.size == (32, 24)
    assert dict(image.getexif()) == {0x0112: 6}


def test_the_report_says_what_it_cost(jpeg_folder: Path, tmp_path: Path) -> None:
    result = pack(jpeg_folder, tmp_path / "p", options(Recode(resize=32)))
    recoded = result.recoded
    assert recoded is not None
    assert recoded.words == "lossy: shorter side 32, quality 90"
    assert (recoded.images, recoded.kept) == (16, 0)
    assert recoded.before_bytes == result.source_bytes
    assert recoded.after_bytes == sum(
        len(d) for name, d in members(tmp_path / "p").items() if "cls" not in name
    )
    assert recoded.mean_psnr_db is not None
    assert 25 < recoded.mean_psnr_db < 60
    assert recoded.psnr_images == result.shards  # the first of each, and every fiftieth


def test_the_loss_is_that_of_the_encoding(tmp_path: Path) -> None:
    save_image(tmp_path / "s" / "a.png", 1)
    result = pack(tmp_path / "s", tmp_path / "p", options(Recode(quality=60)))
    before = decode_original(tmp_path / "s" / "a.png").astype(float)
    after = np.asarray(open_image(members(tmp_path / "p")["a.jpg"])).astype(float)
    psnr = 10 * np.log10(255**2 / np.mean((before - after) ** 2))
    assert result.recoded is not None
    assert result.recoded.mean_psnr_db == pytest.approx(psnr, abs=0.1)


def test_raw_pixels_lose_nothing_and_have_no_psnr(jpeg_folder: Path, tmp_path: Path) -> None:
    result = pack(jpeg_folder, tmp_path / "p", options(Recode(raw=True)))
    assert result.recoded is not None
    assert (result.recoded.mean_psnr_db, result.recoded.resized) == (None, 0)
    assert result.recoded.words == "raw: as decoded, uncompressed"
    stored = members(tmp_path / "p")
    for name in ("cat/0.jpg", "dog/deeper/still/one.jpg", "cat/progressive.jpg", "dog/picture.png"):
        key = name.rpartition(".")[0]
        assert np.array_equal(np.load(io.BytesIO(stored[f"{key}.npy"])), decode_original(jpeg_folder / name))


@pytest.mark.parametrize("recode", [Recode(raw=True), Recode(quality=100)], ids=["raw", "quality"])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_images_of_any_mode_become_gray_or_rgb_as_pillow_converts_them(
    tmp_path: Path, mode: str, recode: Recode
) -> None:
    suffix = "tif" if mode == "CMYK" else "png"
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 56, 3), np.uint8))
    (tmp_path / "s").mkdir()
    image.convert(mode).save(tmp_path / "s" / f"a.{suffix}")
    assert pack(tmp_path / "s", tmp_path / "p", options(recode)).rejected == ()
    (data,) = members(tmp_path / "p").values()
    is_gray = mode in ("1", "L", "LA")
    expected = decode_original(tmp_path / "s" / f"a.{suffix}")
    if recode.raw:
        pixels = np.load(io.BytesIO(data))
        assert pixels.shape == ((40, 56) if is_gray else (40, 56, 3))
        assert np.array_equal(pixels if is_gray else pixels[..., 0], expected[..., 0])
        assert np.array_equal(Dataset(tmp_path / "p", fields=["image"], output="numpy")[0], expected)
    else:
        assert open_image(data).mode == ("L" if is_gray else "RGB")


@pytest.mark.filterwarnings("ignore")
def test_webdataset_decodes_raw_pixels_to_arrays(jpeg_folder: Path, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    pack(jpeg_folder, tmp_path / "p", options(Recode(raw=True)))
    shards = [str(path) for path in sorted((tmp_path / "p").glob("*.tar"))]
    samples = list(webdataset.WebDataset(shards, shardshuffle=False, empty_check=False).decode())
    assert len(samples) == 16
    assert {sample["npy"].shape for sample in samples} == {(48, 64, 3), (48, 64), (61, 97, 3)}
    gc.collect()  # it leaves files open, which must not be laid at the next test's door


@pytest.fixture
def street(tmp_path: Path) -> Path:
    """Images of 64 x 48 with masks of several kinds and boxes, and their table."""
    root = tmp_path / "street"
    lines = []
    for i in range(6):
        save_image(root / f"{i}.jpg", i)
        mask = Image.fromarray((np.add.outer(np.arange(48), np.arange(64)) // 7 % 5).astype(np.uint8))
        if i % 2:
            mask = mask.convert("P")
        mask.save(root / f"{i}_mask.{'bmp' if i == 4 else 'png'}")
        box = [i, 3, 40, 33, 7]
        lines.append({"file": f"{i}.jpg", "mask": f"{i}_mask.{'bmp' if i == 4 else 'png'}", "boxes": [box]})
    (tmp_path / "street.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def street_options(tmp_path: Path, recode: Recode) -> PackOptions:
    fields = (FieldSpec("mask", Kind.MASK, "mask"), FieldSpec("boxes", Kind.BOXES, "boxes"))
    return PackOptions(labels=tmp_path / "street.jsonl", fields=fields, workers=1, recode=recode)


@pytest.mark.parametrize("is_raw", [False, True])
def test_masks_and_boxes_follow_the_images(street: Path, tmp_path: Path, is_raw: bool) -> None:
    result = pack(street, tmp_path / "p", street_options(tmp_path, Recode(resize=24, raw=is_raw)))
    assert result.recoded is not None
    assert result.recoded.masks == 6
    assert verify(tmp_path / "p", workers=1).problems == ()
    stored = members(tmp_path / "p")
    for i in range(6):
        mask = open_image(stored[f"{i}.mask.png"])
        with Image.open(next(street.glob(f"{i}_mask.*"))) as original:
            expected = original.resize((32, 24), Image.Resampling.NEAREST)
        assert mask.mode == original.mode
        assert np.array_equal(np.asarray(mask), np.asarray(expected))
        boxes = np.load(io.BytesIO(stored[f"{i}.boxes.npy"]))
        assert boxes.dtype == np.float32
        assert boxes.tolist() == [[i / 2, 1.5, 20, 16.5, 7]]
    codings = {f.name: f.coding for f in read_manifest(tmp_path / "p").fields}
    image = Coding.RAW if is_raw else Coding.RECODED
    assert codings == {"image": image, "mask": Coding.RECODED, "boxes": Coding.FILE}
    with Loader(tmp_path / "p", fields=("image", "mask"), batch_size=6, output="numpy", threads=1) as loader:
        images, masks = next(iter(loader))
    assert (images.shape, masks.shape) == ((6, 24, 32, 3), (6, 24, 32))


def test_a_new_quality_leaves_masks_and_boxes_alone(street: Path, tmp_path: Path) -> None:
    pack(street, tmp_path / "p", street_options(tmp_path, Recode(quality=50)))
    stored = members(tmp_path / "p")
    assert stored["4.mask.bmp"] == (street / "4_mask.bmp").read_bytes()
    assert np.load(io.BytesIO(stored["4.boxes.npy"])).tolist() == [[4, 3, 40, 33, 7]]


@pytest.mark.parametrize("recode", CHOICES, ids=IDS)
def test_unpack_gives_what_is_stored_under_names_that_say_so(
    jpeg_folder: Path, tmp_path: Path, recode: Recode
) -> None:
    pack(jpeg_folder, tmp_path / "p", options(recode))
    result = unpack(tmp_path / "p", tmp_path / "u", workers=1)
    assert result.pixels == describe(tmp_path / "p").pixels != ""
    tree, stored = read_tree(tmp_path / "u"), members(tmp_path / "p")
    suffix = ".npy" if recode.raw else ".jpg"
    assert tree["dog/picture.png" + suffix] == stored["dog/picture" + suffix]
    assert tree["cat/0.jpg" + (".npy" if recode.raw else "")] == stored["cat/0" + suffix]
    # WebDataset's members are called after what they are now.
    assert "dog/picture.png" not in stored


def test_a_plain_pack_says_nothing_of_pixels(jpeg_folder: Path, tmp_path: Path) -> None:
    result = pack(jpeg_folder, tmp_path / "p", options(Recode()))
    assert result.recoded is None
    document = json.loads((tmp_path / "p" / "pack.json").read_text())
    assert set(document["settings"]) == {"seed", "shard_bytes", "rejected", "plan"}
    assert document["fields"]["image"] == {"kind": "image"}
    assert unpack(tmp_path / "p", tmp_path / "u", workers=1).pixels == ""


@pytest.mark.parametrize(
    ("there", "here", "words"),
    [
        (Recode(quality=80), Recode(quality=81), "quality is 81 here, 80 there"),
        (Recode(resize=32), Recode(resize=33), "shorter side is 33 here, 32 there"),
        (Recode(resize=32), Recode(), "shorter side is not set here, 32 there"),
        (Recode(), Recode(max_side=32), "longer side is 32 here, not set there"),
        (Recode(resize=32), Recode(resize=32, quality=90), "what is encoded anew is all images here"),
        (Recode(resize=32), Recode(resize=32, raw=True), "raw is True here, not set there"),
    ],
)
@pytest.mark.parametrize("is_finished", [False, True])
def test_another_choice_for_the_same_pack_is_refused_and_named(
    jpeg_folder: Path, tmp_path: Path, there: Recode, here: Recode, words: str, is_finished: bool
) -> None:
    pack(jpeg_folder, tmp_path / "p", options(there))
    if not is_finished:
        settings = json.loads((tmp_path / "p" / "pack.json").read_text())["settings"]
        (tmp_path / "p" / "packing.json").write_text(json.dumps({"settings": settings, "source": {}}))
    with pytest.raises(AlreadyExists, match=words):
        pack(jpeg_folder, tmp_path / "p", options(here))


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"resize": 0}, "resize must be 1 to 65000 pixels, got 0"),
        ({"max_side": -1}, "max_side must be 1 to 65000 pixels, got -1"),
        ({"resize": 65_001}, "resize must be 1 to 65000 pixels, got 65001"),
        ({"quality": 0}, "quality must be 1 to 100, got 0"),
        ({"quality": 101}, "quality must be 1 to 100, got 101"),
        ({"resize": 5, "max_side": 9}, "give one of them"),
        ({"raw": True, "quality": 90}, "so they have no quality"),
    ],
)
def test_nonsense_is_refused(choice: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Recode(**choice)


def test_bad_images_are_still_rejected_and_damaged_ones_named(jpeg_folder: Path, tmp_path: Path) -> None:
    (jpeg_folder / "cat" / "bad.jpg").write_text("no image")
    whole = (jpeg_folder / "cat" / "0.jpg").read_bytes()
    (jpeg_folder / "cat" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    for recode in (Recode(resize=8), Recode(raw=True)):
        result = pack(jpeg_folder, tmp_path / str(recode.raw), options(recode))
        assert {r.path for r in result.rejected + result.damaged} == {"cat/bad.jpg", "cat/cut.jpg"}
        assert verify(tmp_path / str(recode.raw), workers=1).problems == ()


def test_shards_of_raw_pixels_are_planned_by_what_they_will_take(tmp_path: Path) -> None:
    for i in range(40):
        save_image(tmp_path / "s" / f"{i}.jpg", i, width=120, height=90)
    plain = pack(tmp_path / "s", tmp_path / "plain", PackOptions(shard_bytes=400_000, workers=1))
    raw = pack(tmp_path / "s", tmp_path / "raw", options(Recode(raw=True), shard_bytes=400_000))
    assert plain.shards == 1
    assert raw.shards > 1


def test_an_unknown_coding_is_refused_in_words(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "p", options(Recode(raw=True)))
    edit_manifest(tmp_path / "p", lambda d: d["fields"]["image"].update(coding="zstd"))
    with pytest.raises(
        PackError, match="stores field 'image' as 'zstd'; this feedrate reads file, recoded, raw"
    ):
        Pack(tmp_path / "p")


@pytest.mark.parametrize(
    ("kind", "coding"), [(Kind.TEXT, Coding.RECODED), (Kind.MASK, Coding.RAW), (Kind.BOXES, Coding.RAW)]
)
def test_a_coding_fits_its_kind(kind: Kind, coding: Coding) -> None:
    with pytest.raises(UsageError, match="cannot be stored as"):
        Field("x", kind, coding=coding)


def cut_short(folder: Path) -> Path:
    """Write a whole image, and two that end too early: a JPEG and a PNG."""
    for name in ("cat/whole.jpg", "cat/cut.jpg", "dog/cut.png"):
        save_image(folder / name, 1, width=120, height=90)
    for path in (folder / "cat/cut.jpg", folder / "dog/cut.png"):
        os.truncate(path, path.stat().st_size * 2 // 3)
    return folder


def test_truncated_images_are_kept_on_request_as_pillow_fills_them_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = cut_short(tmp_path / "s")
    result = pack(source, tmp_path / "p", PackOptions(recode=Recode(keep_truncated=True), workers=1))
    assert (result.samples, len(result.rejected), len(result.damaged)) == (3, 0, 2)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    expected = {path.stem + path.suffix: Image.open(path).convert("RGB") for path in source.rglob("*.*")}
    monkeypatch.undo()
    dataset = Dataset(tmp_path / "p", fields=("key", "image"))
    seen = {key: np.asarray(image.convert("RGB")) for key, image in (dataset[i] for i in range(3))}
    assert np.array_equal(seen["cat/cut"], np.asarray(expected["cut.jpg"]))
    assert np.array_equal(seen["dog/cut"], np.asarray(expected["cut.png"]))
    assert verify(tmp_path / "p").is_good


def test_truncated_images_that_were_kept_are_marked(tmp_path: Path) -> None:
    result = pack(
        cut_short(tmp_path / "s"), tmp_path / "p", PackOptions(recode=Recode(keep_truncated=True), workers=1)
    )
    assert result.quality is not None
    odd = {one.code: dict(one.done) for one in result.quality.oddities}
    assert odd["truncated"] == {"filled up": 2}
    assert "wrong-suffix" not in odd
    assert describe(tmp_path / "p").pixels == "truncated images filled up"
    unpack(tmp_path / "p", tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").rglob("*.*"))
    assert names == ["cut.jpg.png", "cut.png", "whole.jpg"]


def test_keeping_truncated_images_needs_the_scan_that_finds_them() -> None:
    with pytest.raises(UsageError, match="nobody sees which images end too early"):
        PackOptions(recode=Recode(keep_truncated=True), scan=False)
