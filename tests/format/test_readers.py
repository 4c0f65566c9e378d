# SPDX-License-Identifier: Apache-2.0
"""docs/readers.md: every block runs as it stands, and plain readers find what was packed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedrate import PackOptions, Recode, pack
from support.frameworks import run_with
from support.images import save_image
from support.paths import ROOT

PAGE = ROOT / "docs" / "readers.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
HEAVY = ("tensorflow", "jax")
DUMP = """
import base64, json
print(json.dumps({key: [base64.b64encode(data).decode(), label] for key, (data, label) in samples.items()}))
"""


def blocks_with(words: str) -> list[str]:
    found = [block for block in BLOCKS if words in block]
    assert found, f"no block of the page says {words}"
    return found


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readers")
    for n in range(20):
        save_image(folder / "photos" / ("cat", "dog")[n % 2] / f"{n}.jpg", n)
    for name in ("tar", "tfrecord", "hdf5"):
        options = PackOptions(shard_bytes=15_000, workers=1, container=name)
        pack(folder / "photos", folder / f"photos.{name}", options)
    raw = PackOptions(container="hdf5", recode=Recode(raw=True), workers=1)
    pack(folder / "photos", folder / "photos-raw.hdf5", raw)
    return folder


@pytest.fixture
def inside(packs: Path) -> Iterator[Path]:
    before = Path.cwd()
    os.chdir(packs)
    yield packs
    os.chdir(before)


def expected(folder: Path) -> dict[str, tuple[bytes, int]]:
    paths = sorted((folder / "photos").rglob("*.jpg"))
    return {
        str(path.relative_to(folder / "photos").with_suffix("")): (
            path.read_bytes(),
            int(path.parent.name == "dog"),
        )
        for path in paths
    }


def run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(block, str(PAGE), "exec"), names)
    return names


LIGHT = [block for block in BLOCKS if not any(name in block for name in HEAVY)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", LIGHT, ids=lambda block: block.split("import ")[-1].splitlines()[0])
def test_block_of_the_page_runs(inside: Path, block: str) -> None:
    assert inside.exists()
    run(block)


def test_tarfile_finds_what_was_packed(inside: Path) -> None:
    (block,) = blocks_with("tarfile.open")
    samples = run(block)["samples"]
    assert {name.removesuffix(".jpg"): data for name, data in samples.items() if name.endswith(".jpg")} == {
        key: data for key, (data, _) in expected(inside).items()
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", ["webdataset.WebDataset", 'file["image/data"]'])
def test_plain_readers_find_what_was_packed(inside: Path, words: str) -> None:
    (block,) = blocks_with(words)
    assert run(block)["samples"] == expected(inside)


@pytest.mark.filterwarnings("ignore")
def test_plain_webdataset_finds_images_of_mixed_suffixes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, suffix in enumerate((".jpg", ".png", ".webp", ".jpeg")):
        save_image(tmp_path / "photos" / "cat" / f"{n}{suffix}", n)
    pack(tmp_path / "photos", tmp_path / "photos.tar", PackOptions(workers=1))
    monkeypatch.chdir(tmp_path)
    (block,) = blocks_with("webdataset.WebDataset")
    found = run(block)["samples"]
    assert found == {
        f"cat/{path.stem}": (path.read_bytes(), 0) for path in (tmp_path / "photos" / "cat").iterdir()
    }


@pytest.mark.slow
def test_plain_tensorflow_finds_what_was_packed(inside: Path) -> None:
    import base64

    (block,) = blocks_with("TFRecordDataset")
    found = json.loads(run_with("tensorflow", block + DUMP))
    assert {key: (base64.b64decode(data), label) for key, (data, label) in found.items()} == expected(inside)


@pytest.mark.slow
@pytest.mark.parametrize("module", HEAVY)
def test_block_for_another_framework_runs(inside: Path, module: str) -> None:
    assert inside.exists()
    (block,) = blocks_with(f"feedrate.{module}.")
    run_with(module, block)
