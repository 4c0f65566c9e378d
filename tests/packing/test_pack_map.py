# SPDX-License-Identifier: Apache-2.0
"""The deterministic part of a pipeline, done once: a user's function that every sample goes through."""

from __future__ import annotations

import io
import itertools
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedrate import (
    AppendOptions,
    Dataset,
    FieldSpec,
    Loader,
    PackOptions,
    Recode,
    append,
    pack,
    unpack,
    verify,
)
from feedrate.errors import AlreadyExists, SourceError, UsageError
from feedrate.format.fields import Coding, Kind
from feedrate.format.manifest import read_manifest
from feedrate.packing.mapping import Map, find_map
from feedrate.progress import Tick
from support.images import read_tree, save_image
from support.paths import ROOT

ONE = PackOptions(workers=1)
_numbers = itertools.count()

WriteMap = Callable[..., str]


@pytest.fixture
def write_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteMap]:
    """Write a module with the function `change` into the current folder; return how --map names it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    written = []

    def write(code: str, name: str | None = None) -> str:
        name = name or f"maps{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        sys.modules.pop(name, None)
        written.append(name)
        return f"{name}:change"

    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.fixture
def xrays(tmp_path: Path) -> Path:
    """Gray PNGs of two classes, as large as such things are for their purpose."""
    for number in range(6):
        save_image(
            tmp_path / "xrays" / ("ill" if number % 2 else "well") / f"{number}.png", number,
            width=200, height=160, mode="L",
        )  # fmt: skip
    return tmp_path / "xrays"


SHRINK = """
    def change(sample):
        image = sample["image"]
        return {"image": image.resize((50, 40))}
"""


def read_samples(folder: Path) -> list[dict[str, Any]]:
    dataset = Dataset(folder)
    return [dataset[i] for i in range(len(dataset))]


def test_an_xray_is_shrunk_once_and_stays_what_pillow_made_of_it(
    xrays: Path, tmp_path: Path, write_map: WriteMap
) -> None:
    result = pack(xrays, tmp_path / "p", ONE, map=write_map(SHRINK))
    manifest = read_manifest(tmp_path / "p")
    image = manifest.field("image")
    assert result.samples == 6
    assert image is not None
    assert (image.kind, image.coding, image.shape) == (Kind.IMAGE, Coding.RECODED, (40, 50))
    assert manifest.field("label").classes == ("ill", "well")
    assert verify(tmp_path / "p").is_good
    unpack(tmp_path / "p", tmp_path / "back")
    for path in sorted(xrays.rglob("*.png")):
        with (
            Image.open(path) as before,
            Image.open(tmp_path / "back" / path.relative_to(xrays)) as after,
        ):
            np.testing.assert_array_equal(np.asarray(after), np.asarray(before.resize((50, 40))))


@pytest.mark.parametrize(
    ("recode", "coding"),
    [
        (Recode(raw=True), Coding.RAW),
        (Recode(quality=95), Coding.RECODED),
        (Recode(normalise=True), Coding.RECODED),
    ],
    ids=["raw", "quality", "normalise"],
)
def test_what_a_map_makes_is_stored_as_asked_for(
    xrays: Path, tmp_path: Path, write_map: WriteMap, recode: Recode, coding: Coding
) -> None:
    result = pack(xrays, tmp_path / "p", PackOptions(workers=1, recode=recode), map=write_map(SHRINK))
    image = read_manifest(tmp_path / "p").field("image")
    assert image is not None
    assert image.coding is coding
    assert result.by_kernel == 6
    assert verify(tmp_path / "p").is_good


def test_a_spectrogram_becomes_an_array_and_the_sound_is_dropped(tmp_path: Path, write_map: WriteMap) -> None:
    root = tmp_path / "sounds"
    root.mkdir()
    rng = np.random.default_rng(0)
    sounds = {f"{i}.npy": rng.normal(size=2048).astype(np.float32) for i in range(4)}
    lines = ["path,label,sound"]
    for name, sound in sounds.items():
        np.save(root / name, sound)
        save_image(root / f"{name}.png", 1)
        lines.append(f"{name}.png,{name[0]},{name}")
    (root / "labels.csv").write_text("\n".join(lines))
    name = write_map("""
        import numpy as np

        def change(sample):
            frames = sample["sound"].reshape(-1, 256)
            spectrum = np.abs(np.fft.rfft(frames)).astype(np.float32)
            return {"sound": None, "image": None, "spectrum": spectrum}
    """)
    options = PackOptions(
        labels=root / "labels.csv", fields=(FieldSpec("sound", Kind.ARRAY, "sound"),), workers=1
    )
    pack(root, tmp_path / "p", options, map=name)
    fields = {field.name: field for field in read_manifest(tmp_path / "p").fields}
    assert list(fields) == ["label", "spectrum"]
    assert (fields["spectrum"].dtype, fields["spectrum"].shape) == ("float32", (8, 129))
    with Loader(tmp_path / "p", batch_size=4, fields=("spectrum", "label"), shuffle=False) as loader:
        spectra, labels = next(iter(loader))
    for spectrum, label in zip(np.asarray(spectra), np.asarray(labels).tolist(), strict=True):
        expected = np.abs(np.fft.rfft(sounds[f"{label}.npy"].reshape(-1, 256))).astype(np.float32)
        np.testing.assert_array_equal(spectrum, expected)


def test_a_text_is_tokenised_and_arrays_may_differ_in_length(
    jpeg_folder: Path, tmp_path: Path, write_map: WriteMap
) -> None:
    (jpeg_folder / "captions.jsonl").write_text(
        "\n".join(
            json.dumps({"path": f"cat/{i}.jpg", "label": i, "caption": "one two three"[: 3 + 4 * (i % 2)]})
            for i in range(6)
        )
    )
    name = write_map("""
        import numpy as np

        def change(sample):
            words = sample["caption"].split()
            return {"tokens": np.array([len(word) for word in words], np.int32), "words": len(words)}
    """)
    options = PackOptions(
        labels=jpeg_folder / "captions.jsonl", fields=(FieldSpec("caption", Kind.TEXT, "caption"),), workers=1
    )
    result = pack(jpeg_folder, tmp_path / "p", options, map=name)
    tokens = read_manifest(tmp_path / "p").field("tokens")
    assert result.samples == 6
    assert tokens is not None
    assert (tokens.kind, tokens.dtype, tokens.shape) == (Kind.ARRAY, "int32", None)
    with Loader(
        tmp_path / "p", batch_size=6, fields=("label", "tokens", "words", "caption"), shuffle=False
    ) as loader:
        batch = next(iter(loader))
    for label, ids, words, caption in zip(*batch, strict=True):
        assert np.asarray(ids).tolist() == [3] * (1 + int(label) % 2)
        assert int(words) == len(caption.split())


def test_images_that_a_map_does_not_return_stay_bit_for_bit(
    jpeg_folder: Path, tmp_path: Path, write_map: WriteMap
) -> None:
    name = write_map("""
        def change(sample):
            return {**sample, "width": sample["image"].width}
    """)
    pack(jpeg_folder, tmp_path / "p", ONE, map=name)
    unpack(tmp_path / "p", tmp_path / "back")
    originals = {path: data for path, data in read_tree(jpeg_folder).items() if not path.endswith(".txt")}
    assert read_tree(tmp_path / "back") == originals


def test_a_map_that_fails_rejects_the_sample_with_its_words_and_place(
    xrays: Path, tmp_path: Path, write_map: WriteMap
) -> None:
    name = write_map("""
        def change(sample):
            if sample["key"].endswith("3"):
                raise ValueError("no lungs in sight")
            return {"mean": float(sample["label"])}
    """)
    result = pack(xrays, tmp_path / "p", ONE, map=name)
    module = name.partition(":")[0]
    assert result.samples == 5
    assert [(r.path, r.reason) for r in result.rejected] == [
        ("ill/3.png", f"{name} failed: ValueError: no lungs in sight ({module}.py, line 4)")
    ]
    assert result.quality is not None
    assert [(o.code, o.done) for o in result.quality.oddities if o.code == "map-failed"] == [
        ("map-failed", {"rejected": 1})
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_too_little_memory_in_a_map_ends_packing_and_rejects_no_sample(
    xrays: Path, tmp_path: Path, write_map: WriteMap, workers: int
) -> None:
    name = write_map("""
        import numpy as np

        def change(sample):
            return {"mean": np.zeros(2**50)} if sample["key"].endswith("3") else {}
    """)
    with pytest.raises(MemoryError, match=f"^out of memory in {name}, for the sample 'ill/3'$"):
        pack(xrays, tmp_path / "p", PackOptions(workers=workers), map=name)
    assert not (tmp_path / "p" / "pack.json").exists()


def test_a_map_that_fails_for_all_stops_before_anything_is_packed(
    xrays: Path, tmp_path: Path, write_map: WriteMap
) -> None:
    name = write_map("def change(sample): return sample['picture']")
    with pytest.raises(SourceError, match=r"failed: KeyError: 'picture' .* each of the first 6 samples"):
        pack(xrays, tmp_path / "p", ONE, map=name)
    assert not (tmp_path / "p").exists()


def test_a_map_that_returns_none_leaves_the_sample_out_without_blame(
    xrays: Path, tmp_path: Path, write_map: WriteMap
) -> None:
    name = write_map("def change(sample): return {} if sample['label'] else None")
    result = pack(xrays, tmp_path / "p", ONE, map=name)
    assert (result.samples, result.rejected) == (3, ())
    assert result.mapped is not None
    assert result.mapped.left_out == 3


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ("'text'", "returned 'made' as text; the first samples had array of int64"),
        ("np.zeros(3, np.float32)", "'made' as array of float32; the first samples had array of int64"),
        ("None", "returned no 'made', as it did for the first samples"),
        ("{1, 2}", "the map returned 'made' as set, which no field can hold"),
        ("np.array(['a'])", "the map returned 'made' as an array of <U1, not of numbers"),
    ],
    ids=["kind", "dtype", "missing", "set", "strings"],
)  # fmt: skip
def test_what_does_not_fit_the_first_samples_is_rejected(
    xrays: Path, tmp_path: Path, write_map: WriteMap, second: str, words: str
) -> None:
    name = write_map(f"""
        import numpy as np

        def change(sample):
            return {{"made": {second} if sample["key"] == "well/4" else np.zeros(2, np.int64)}}
    """)
    result = pack(xrays, tmp_path / "p", ONE, map=name)
    assert result.samples == 5
    assert [r.path for r in result.rejected] == ["well/4.png"]
    assert words in result.rejected[0].reason


def test_a_field_that_the_first_samples_lack_is_rejected(
    xrays: Path, tmp_path: Path, write_map: WriteMap
) -> None:
    # The trial sees the first eight samples that work; there must be more than that.
    for number in range(10, 20):
        save_image(xrays / "well" / f"{number}.png", number, mode="L")
    name = write_map("def change(sample): return {'more': 1} if sample['key'] == 'well/4' else {'one': 1}")
    result = pack(xrays, tmp_path / "p", ONE, map=name)
    assert [r.reason for r in result.rejected] == [
        f"{name} returned 'more', which it did not for the first samples"
    ]


def test_whole_numbers_and_others_make_a_field_of_others(
    xrays: Path, tmp_path: Path, write_map: WriteMap
) -> None:
    name = write_map("def change(sample): return {'age': 3 if sample['label'] else 2.5}")
    pack(xrays, tmp_path / "p", ONE, map=name)
    age = read_manifest(tmp_path / "p").field("age")
    assert age is not None
    assert age.dtype == "float64"


def test_an_image_beyond_8_bits_is_rejected_in_words(
    xrays: Path, tmp_path: Path, write_map: WriteMap
) -> None:
    name = write_map("def change(sample): return {'image': sample['image'].convert('I')}")
    with pytest.raises(SourceError, match="as an image of mode I has more than 8 bits per channel"):
        pack(xrays, tmp_path / "p", ONE, map=name)


def halve(sample: dict[str, Any]) -> dict[str, Any]:
    image = sample["image"]
    return {"image": image.resize((image.width // 2, image.height // 2))}


def test_workers_and_one_process_make_the_same_pack(xrays: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        options = PackOptions(shard_bytes=10_000, workers=workers)
        assert pack(xrays, tmp_path / f"p{workers}", options, map=halve).shards > 1
    assert read_tree(tmp_path / "p1") == read_tree(tmp_path / "p2")


class Stop(Exception):
    pass


def stop(tick: Tick) -> None:
    if tick.stage == "packing" and tick.done >= 4:
        raise Stop("stopped by the test")


def test_a_pack_goes_on_with_the_same_code_and_is_refused_with_another(
    xrays: Path, tmp_path: Path, write_map: WriteMap
) -> None:
    options = PackOptions(shard_bytes=3000, workers=1)
    name = write_map(SHRINK, "resumed_maps")
    with pytest.raises(Stop, match="stopped"):
        pack(xrays, tmp_path / "p", options, map=name, watch=stop)
    write_map(SHRINK.replace("(50, 40)", "(40, 50)"), "resumed_maps")
    with pytest.raises(AlreadyExists, match="the map function, or its code, is another one"):
        pack(xrays, tmp_path / "p", options, map=name)
    with pytest.raises(AlreadyExists, match="the map function, or its code, is another one"):
        pack(xrays, tmp_path / "p", options)
    write_map(SHRINK, "resumed_maps")
    assert pack(xrays, tmp_path / "p", options, map=name).resumed_shards > 0
    pack(xrays, tmp_path / "undisturbed", options, map=name)
    assert read_tree(tmp_path / "p") == read_tree(tmp_path / "undisturbed")


def test_pack_json_names_the_function_and_its_code(xrays: Path, tmp_path: Path, write_map: WriteMap) -> None:
    name = write_map(SHRINK)
    pack(xrays, tmp_path / "p", ONE, map=name)
    settings = read_manifest(tmp_path / "p").settings["map"]
    assert settings == {"function": name, "source": find_map(name).digest, "modules": {}}


HELPED = """
import json
import re
import textwrap

import numpy as np
from PIL import Image


def change(sample):
    from helping_size import SIZE  # when it is needed

    return {"image": sample["image"].resize(SIZE)}
"""


def write_helpers(write_map: WriteMap, tmp_path: Path, size: str = "(50, 40)") -> str:
    """Write a map whose helper, a package, has a helper of its own."""
    package = tmp_path / "helping_package"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "values.py").write_text(f"SIZE = {size}\n")
    (package / "unused.py").write_text("raise ImportError")
    for name in ("helping_package", "helping_package.values"):
        sys.modules.pop(name, None)
    write_map("from helping_package.values import SIZE\n", "helping_size")
    return write_map(HELPED, "helped_maps")


def test_the_digest_covers_modules_of_ones_own_that_the_map_imports_and_no_installed_ones(
    xrays: Path, tmp_path: Path, write_map: WriteMap
) -> None:
    pack(xrays, tmp_path / "p", ONE, map=write_helpers(write_map, tmp_path))
    modules = read_manifest(tmp_path / "p").settings["map"]["modules"]
    assert list(modules) == ["helping_package", "helping_package.values", "helping_size"]


def test_the_digest_covers_a_helper_that_is_called_like_a_module_of_python(
    write_map: WriteMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "sched", raising=False)
    write_map("SIZE = 4", "sched")
    name = write_map("import abc, math, sys, wave\nfrom sched import SIZE\ndef change(sample): return {}")
    assert [module for module, _ in find_map(name).modules or ()] == ["sched"]


def test_a_pack_is_not_gone_on_with_when_a_helper_of_the_map_has_changed(
    xrays: Path, tmp_path: Path, write_map: WriteMap
) -> None:
    options = PackOptions(shard_bytes=3000, workers=1)
    name = write_helpers(write_map, tmp_path)
    with pytest.raises(Stop, match="stopped"):
        pack(xrays, tmp_path / "p", options, map=name, watch=stop)
    write_helpers(write_map, tmp_path, "(40, 50)")
    with pytest.raises(AlreadyExists, match="the map function, or its code, is another one"):
        pack(xrays, tmp_path / "p", options, map=name)


def test_nothing_is_appended_when_a_helper_of_the_map_has_changed(
    xrays: Path, tmp_path: Path, write_map: WriteMap
) -> None:
    pack(xrays, tmp_path / "p", ONE, map=write_helpers(write_map, tmp_path))
    name = write_helpers(write_map, tmp_path, "(40, 50)")
    save_image(tmp_path / "more" / "ill" / "more.png", 9, mode="L")
    words = f"the code of {name} is no longer what the pack was made with: helping_package.values is another"
    with pytest.raises(UsageError, match=re.escape(words)):
        append(tmp_path / "more", tmp_path / "p", AppendOptions(workers=1, map=name))


def forget_modules(path: Path) -> None:
    """Make pack.json or packing.json that of a version whose digest covered one module."""
    document = json.loads(path.read_bytes())
    document.pop("digest", None)
    del document["settings"]["map"]["modules"]
    path.write_text(json.dumps(document))


def test_a_pack_with_the_digest_of_one_module_grows_by_that(
    xrays: Path, tmp_path: Path, write_map: WriteMap
) -> None:
    name = write_helpers(write_map, tmp_path)
    pack(xrays, tmp_path / "p", ONE, map=name)
    forget_modules(tmp_path / "p" / "pack.json")
    save_image(tmp_path / "more" / "ill" / "more.png", 9, mode="L")
    assert append(tmp_path / "more", tmp_path / "p", AppendOptions(workers=1, map=name)).added == 1


def test_an_unfinished_pack_with_the_digest_of_one_module_goes_on_by_that(
    xrays: Path, tmp_path: Path, write_map: WriteMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = PackOptions(shard_bytes=3000, workers=1)
    name = write_helpers(write_map, tmp_path)
    with monkeypatch.context() as before:
        before.setattr(Map, "settings", lambda self: {"function": self.name, "source": self.digest})
        with pytest.raises(Stop, match="stopped"):
            pack(xrays, tmp_path / "p", options, map=name, watch=stop)
    assert pack(xrays, tmp_path / "p", options, map=name).resumed_shards > 0
    with pytest.raises(AlreadyExists, match=r"a finished pack of 6 samples$"):
        pack(xrays, tmp_path / "p", options, map=name)


def test_what_the_map_saves_per_epoch_is_measured(xrays: Path, tmp_path: Path, write_map: WriteMap) -> None:
    mapped = pack(xrays, tmp_path / "p", ONE, map=write_map(SHRINK)).mapped
    assert mapped is not None
    assert (mapped.samples, mapped.packed) == (6, 6)
    assert mapped.seconds_per_epoch == pytest.approx(mapped.seconds)
    assert mapped.seconds > 0


def count_letters(sample: dict[str, Any]) -> dict[str, Any]:
    return {"letters": len(sample["key"])}


def test_a_function_itself_may_be_given(xrays: Path, tmp_path: Path) -> None:
    pack(xrays, tmp_path / "p", ONE, map=count_letters)
    assert read_manifest(tmp_path / "p").settings["map"]["function"].endswith(":count_letters")
    assert read_manifest(tmp_path / "p").field("letters") is not None


def test_a_lambda_is_refused_where_other_processes_would_call_it(xrays: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be imported by the processes that pack"):
        pack(xrays, tmp_path / "p", PackOptions(workers=2), map=lambda sample: {"n": len(sample)})
    assert pack(xrays, tmp_path / "p", ONE, map=lambda sample: {"n": len(sample)}).samples == 6


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shrink", "'shrink' does not name a function"),
        ("maps.py:shrink", r"'maps\.py' is a file; a module has no suffix"),
        ("nothere_at_all:shrink", "there is no module 'nothere_at_all'"),
        ("json:dump_it", "json has no function 'dump_it'"),
        ("json:__doc__", "is not a function: str"),
    ],
)
def test_a_map_that_cannot_be_found_gets_a_sentence(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_map(name)


def test_a_module_that_fails_to_import_says_why(write_map: WriteMap) -> None:
    with pytest.raises(UsageError, match="cannot be imported: ZeroDivisionError: division by zero"):
        find_map(write_map("1 / 0"))


def test_a_name_that_no_field_can_have_is_refused(xrays: Path, tmp_path: Path, write_map: WriteMap) -> None:
    name = write_map("def change(sample): return {'Two Words': 1}")
    with pytest.raises(SourceError, match="'Two Words' cannot be the name of a field"):
        pack(xrays, tmp_path / "p", ONE, map=name)


def test_a_mapped_mask_keeps_its_values(tmp_path: Path, write_map: WriteMap) -> None:
    root = tmp_path / "street"
    root.mkdir()
    save_image(root / "a.jpg", 1)
    mask = (np.arange(48 * 64).reshape(48, 64) % 7).astype(np.uint8)
    Image.fromarray(mask).save(root / "m.png")
    (root / "labels.csv").write_text("path,label,mask\na.jpg,0,m.png\n")
    name = write_map("""
        import numpy as np

        def change(sample):
            return {"mask": np.asarray(sample["mask"])[:, ::-1]}
    """)
    options = PackOptions(
        labels=root / "labels.csv", fields=(FieldSpec("mask", Kind.MASK, "mask"),), workers=1
    )
    pack(root, tmp_path / "p", options, map=name)
    unpack(tmp_path / "p", tmp_path / "back")
    with Image.open(io.BytesIO((tmp_path / "back" / "m.png").read_bytes())) as image:
        np.testing.assert_array_equal(np.asarray(image), mask[:, ::-1])


def test_the_maps_of_the_documentation_do_what_it_says(write_map: WriteMap) -> None:
    page = (ROOT / "docs" / "preprocess.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    module = write_map(code, "documented_maps").partition(":")[0]
    shrink, spectrogram, tokenise = (
        find_map(f"{module}:{name}").load() for name in ("shrink", "spectrogram", "tokenise")
    )
    small = shrink({"image": Image.new("I;16", (1024, 1024))})
    assert small is not None
    assert (small["image"].size, small["image"].mode) == ((256, 256), "L")
    made = spectrogram({"sound": np.zeros(4096, np.float32)})
    assert made is not None
    assert (made["sound"], made["spectrum"].shape) == (None, (8, 257))
    tokens = tokenise({"caption": "two words"})
    assert tokens is not None
    assert (tokens["tokens"].dtype, tokens["length"]) == (np.int32, 2)
    assert tokenise({"caption": " "}) is None
