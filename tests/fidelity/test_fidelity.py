# SPDX-License-Identifier: Apache-2.0
"""`feedrate fidelity`: what it compares, what it leaves out, and when it says no."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedrate import PackOptions, Recode, pack
from feedrate.errors import NotFound, SourceError, UsageError
from feedrate.fidelity import measuring
from feedrate.fidelity.measuring import FidelityOptions, Pair, choose_gain, draw_pictures, measure_fidelity
from feedrate.fidelity.results import Fidelity, ImageDifference
from feedrate.kernel import U8
from feedrate.lab.decode import Samples
from support.damage import edit_manifest, flip_byte
from support.images import save_image

SMALL = FidelityOptions(side=32)


@pytest.fixture
def packed(jpeg_folder: Path, tmp_path: Path) -> Path:
    pack(jpeg_folder, tmp_path / "pack", PackOptions(workers=1))
    return tmp_path / "pack"


def measure(*sources: Path, options: FidelityOptions = SMALL) -> Fidelity:
    return measure_fidelity([str(source) for source in sources], options)[0]


def test_a_folder_and_its_pack_say_the_same(jpeg_folder: Path, packed: Path) -> None:
    for result in (measure(jpeg_folder), measure(packed)):
        assert result.is_good
        assert (result.sampled, result.dataset_images) == (16, 16)
        assert result.pillow is not None
        assert result.pillow.images == 14
        assert result.pillow.outside == 0
        assert sum(result.pillow.level_shares) == pytest.approx(1)


def test_images_that_go_through_pillow_anyway_are_counted_and_prove_nothing(jpeg_folder: Path) -> None:
    result = measure(jpeg_folder / "cat" / "progressive.jpg", jpeg_folder / "dog" / "picture.png")
    assert result.pillow is None
    assert result.is_good
    assert sum(result.by_pillow.values()) == 2
    assert "progressive" in result.by_pillow


def test_the_sample_is_as_large_as_asked_and_depends_on_the_seed(jpeg_folder: Path) -> None:
    first = measure(jpeg_folder, options=FidelityOptions(images=4, side=32))
    assert (first.sampled, first.dataset_images) == (4, 16)
    assert first == dataclasses.replace(
        measure(jpeg_folder, options=FidelityOptions(images=4, side=32)), machine=first.machine
    )


def test_wrong_pixels_are_found_named_and_shown(jpeg_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Samples.decode_one

    def spoil(self: Samples, number: int, *others: object) -> tuple[U8, object]:
        pixels, report = honest(self, number, *others)  # type: ignore[arg-type]
        if self.names[number].endswith("cat/3.jpg"):
            pixels[4, 5] ^= 16
        return pixels, report

    monkeypatch.setattr(Samples, "decode_one", spoil)
    result, pictures = measure_fidelity([str(jpeg_folder)], SMALL)
    assert not result.is_good
    assert result.pillow is not None
    assert result.pillow.outside == 1
    assert result.pillow.worst[0].name.endswith("cat/3.jpg")
    assert result.pillow.largest_difference >= 15
    shown = pictures.pillow[0]
    assert shown.difference == result.pillow.worst[0]
    ours, theirs = (np.asarray(Image.open(io.BytesIO(png))) for png in (shown.ours, shown.theirs))
    assert (np.abs(ours.astype(int) - theirs) > 2).any(axis=-1).sum() == 1


def test_a_file_that_nobody_decodes_is_named_and_is_not_our_fault(jpeg_folder: Path) -> None:
    (jpeg_folder / "broken.jpg").write_bytes(b"no image")
    result = measure(jpeg_folder)
    assert result.is_good
    assert [Path(one.path).name for one in result.not_compared] == ["broken.jpg"]


def test_too_little_memory_for_an_image_is_not_taken_for_damage(
    jpeg_folder: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*_: object) -> U8:
        raise MemoryError

    with monkeypatch.context() as short:
        short.setattr(measuring, "decode_as_torchvision", decode)
        with pytest.raises(MemoryError):
            measure(jpeg_folder)
    monkeypatch.setattr(measuring._Look, "_decode_original", decode)
    with pytest.raises(MemoryError):
        measure(packed, options=dataclasses.replace(SMALL, originals=jpeg_folder))


def test_damage_in_a_pack_is_a_failure(packed: Path) -> None:
    flip_byte(packed / "shard-00000.tar", 700)
    result = measure(packed)
    assert not result.is_good
    assert len(result.refused) == 1
    assert "crc32c" in result.refused[0].reason


def test_the_filter_that_was_asked_for_is_the_one_that_is_compared(
    jpeg_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = measuring.decode_as_torchvision
    monkeypatch.setattr(measuring, "decode_as_torchvision", lambda *given: honest(*given[:4]))  # bilinear
    assert not measure(jpeg_folder, options=FidelityOptions(side=32, interpolation="lanczos")).is_good


def test_a_lossless_pack_is_held_to_the_same_limits_against_its_originals(
    jpeg_folder: Path, packed: Path
) -> None:
    result = measure(packed, options=dataclasses.replace(SMALL, originals=jpeg_folder))
    assert result.originals is not None
    assert (result.originals.images, result.originals.outside, result.originals.lossy) == (16, 0, False)
    save_image(jpeg_folder / "cat" / "2.jpg", 99, subsampling=2)
    changed = measure(packed, options=dataclasses.replace(SMALL, originals=jpeg_folder))
    assert not changed.is_good
    assert changed.originals is not None
    assert changed.originals.worst[0].name == "cat/2.jpg"


def test_a_pack_that_was_made_smaller_is_compared_with_the_same_part_of_its_originals(tmp_path: Path) -> None:
    for number in range(4):
        large = save_image(tmp_path / "large" / f"{number}.png", number, width=320, height=240)
        (tmp_path / "half").mkdir(exist_ok=True)
        # A PNG inside, so that nothing but the smaller size is lost.
        Image.open(large).resize((160, 120), Image.Resampling.BOX).save(tmp_path / "half" / f"{number}.png")
    pack(tmp_path / "half", tmp_path / "pack", PackOptions(workers=1))
    edit_manifest(tmp_path / "pack", lambda document: document["settings"].update(resize=120))
    options = FidelityOptions(side=32, originals=tmp_path / "large")
    result = measure(tmp_path / "pack", options=options)
    assert result.settings == {"resize": 120}
    assert result.originals is not None
    assert result.originals.lossy
    assert result.is_good
    # Smooth pictures: a part that lay half a pixel beside the right one would be far from 40 dB.
    assert result.originals.lowest_psnr_db is not None
    assert result.originals.lowest_psnr_db > 45


def test_packs_of_raw_pixels_are_compared_like_files(tmp_path: Path) -> None:
    for number in range(4):
        save_image(tmp_path / "photos" / f"{number}.jpg", number, width=160, height=120)
    pack(tmp_path / "photos", tmp_path / "raw", PackOptions(workers=1, recode=Recode(raw=True)))
    small = Recode(raw=True, resize=60)
    pack(tmp_path / "photos", tmp_path / "small", PackOptions(workers=1, recode=small))
    options = FidelityOptions(side=32, originals=tmp_path / "photos")
    whole, resized = (measure(tmp_path / name, options=options) for name in ("raw", "small"))
    for result in (whole, resized):
        assert result.is_good
        assert result.pillow is not None
        assert (result.pillow.images, result.pillow.outside) == (4, 0)
    assert whole.originals is not None
    assert (whole.originals.lossy, whole.originals.outside) == (False, 0)
    assert resized.settings == {"resize": 60}
    assert resized.originals is not None
    assert resized.originals.lossy


def test_originals_that_are_not_there_are_named(jpeg_folder: Path, packed: Path) -> None:
    (jpeg_folder / "cat" / "1.jpg").unlink()
    (jpeg_folder / "cat" / "2.jpg").write_bytes(b"no image")
    result = measure(packed, options=dataclasses.replace(SMALL, originals=jpeg_folder))
    found = {one.path: one.reason for one in result.missing}
    assert found["cat/1.jpg"] == "is not there"
    assert found["cat/2.jpg"] == "not an image that feedrate knows"
    assert result.originals is not None
    assert result.originals.images == 14


def test_what_makes_no_sense_is_said_in_words(jpeg_folder: Path, packed: Path, tmp_path: Path) -> None:
    originals = dataclasses.replace(SMALL, originals=jpeg_folder)
    with pytest.raises(UsageError, match="is not a pack: --originals compares a pack"):
        measure(jpeg_folder, options=originals)
    with pytest.raises(UsageError, match="is a pack: give it alone"):
        measure(jpeg_folder, packed)
    with pytest.raises(NotFound, match="no folder of originals at"):
        measure(packed, options=dataclasses.replace(SMALL, originals=tmp_path / "gone"))
    with pytest.raises(NotFound, match="no folder, file or pack at"):
        measure(tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no images in"):
        measure(tmp_path / "empty")
    (packed / "pack.json").unlink()
    with pytest.raises(NotFound, match="is an unfinished pack"):
        measure(packed)
    with pytest.raises(UsageError, match="--images must be at least 1, got 0"):
        FidelityOptions(images=0)


def test_only_broken_files_are_no_proof(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    assert not measure(tmp_path).is_good


def test_memory_holds_the_pixels_of_a_few_pairs_only(jpeg_folder: Path) -> None:
    _, pictures = measure_fidelity([str(jpeg_folder)], SMALL)
    assert len(pictures.pillow) == measuring._WORST


@pytest.mark.parametrize(("level", "gain"), [(0, 64), (1, 64), (3, 64), (4, 32), (100, 2), (200, 1)])
def test_differences_are_amplified_until_they_show(level: int, gain: int) -> None:
    dark = np.zeros((8, 8, 3), np.uint8)
    one = ImageDifference("x", 8, 8, (0, 0, 8, 8), False, 30.0, level, 0.0)
    pairs = [Pair(one, dark, np.full_like(dark, level))]
    assert choose_gain(pairs) == gain
    shown = np.asarray(Image.open(io.BytesIO(draw_pictures(pairs)[0].amplified)))
    assert (shown == level * gain).all()
