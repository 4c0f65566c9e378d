# SPDX-License-Identifier: Apache-2.0
"""Parts of a pack: a loader names those it was not asked about, and no sample ever changes sides."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedrate import AppendOptions, Dataset, Loader, PackOptions, append, pack, split
from feedrate.errors import PackError, UsageError
from feedrate.format.manifest import dump_manifest, read_manifest
from feedrate.loader.order import Subset, members
from support.examples import examples
from support.images import save_image
from support.packs import write_numbers

ONE = AppendOptions(workers=1)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Make a pack of 20 samples; `grow` appends to it."""
    return make_source(tmp_path, 0, 20)


def make_source(folder: Path, first: int, count: int) -> Path:
    source = folder / f"from-{first}"
    for number in range(first, first + count):
        save_image(source / f"{number:04}.jpg", number)
    if first:
        return source
    pack(source, folder / "p", PackOptions(workers=1, shard_bytes=8_000))
    return folder / "p"


def grow(packed: Path, first: int, count: int) -> None:
    append(make_source(packed.parent, first, count), packed, ONE)


def keys_of(packed: Path, part: Any) -> set[str]:
    dataset = Dataset(packed, fields=("key",), split=part)
    return set(dataset.__getitems__(range(len(dataset))))


def open_loader(packed: Path, **options: Any) -> Loader:
    return Loader(packed, 4, fields=("number",), output="numpy", threads=1, **options)


def test_a_loader_of_a_pack_with_parts_names_them_once(packed: Path, caplog: Any) -> None:
    split(packed, {"train": 0.5, "validation": 0.5})
    with caplog.at_level(logging.WARNING, "feedrate"):
        for _ in range(2):
            open_loader(packed).close()
        Dataset(packed, fields=("key",))
    (said,) = caplog.messages
    assert "train, validation" in said
    assert 'split="train"' in said
    assert 'split="all"' in said


def test_a_dataset_of_a_pack_with_parts_names_them(packed: Path, caplog: Any) -> None:
    split(packed, {"train": 0.5, "validation": 0.5})
    with caplog.at_level(logging.WARNING, "feedrate"):
        Dataset(packed, fields=("key",))
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("options", [{"split": "all"}, {"split": "train"}, {"order": [0, 1]}])
def test_a_loader_that_says_which_samples_it_wants_names_no_parts(
    packed: Path, caplog: Any, options: Any
) -> None:
    split(packed, {"train": 0.5, "validation": 0.5})
    with caplog.at_level(logging.WARNING, "feedrate"):
        open_loader(packed, **options).close()
    assert not caplog.messages


def test_all_is_every_sample_also_of_a_pack_without_parts_and_in_any_order(packed: Path) -> None:
    with open_loader(packed, split="all", order="windowed") as loader:
        assert sorted(np.concatenate([numbers for (numbers,) in loader])) == list(range(20))
    with open_loader(packed) as plain, open_loader(packed, split="all") as named:
        named.load_state_dict(plain.state_dict())
    assert len(keys_of(packed, "all")) == 20


def test_a_held_out_share_keeps_its_samples_when_the_pack_grows(packed: Path) -> None:
    before = keys_of(packed, (0.9, 1)), keys_of(packed, (0, 0.9))
    grow(packed, 100, 1)
    grow(packed, 200, 10)
    after = keys_of(packed, (0.9, 1)), keys_of(packed, (0, 0.9))
    assert before[0] <= after[0]
    assert before[1] <= after[1]
    assert (len(after[0]), len(after[1])) == (2 + 0 + 1, 18 + 1 + 9)


def test_a_state_of_a_cut_that_differs_is_refused(packed: Path) -> None:
    grow(packed, 100, 10)
    with open_loader(packed, split=(0, 0.5)) as loader:
        state = loader.state_dict()
        loader.load_state_dict(state)
        with pytest.raises(UsageError, match="the state is of another split"):
            loader.load_state_dict({**state, "split": [0.0, 0.5]})  # as it was cut before it knew of appends


def test_a_state_of_a_cut_that_became_the_whole_pack_is_refused(packed: Path) -> None:
    grow(packed, 100, 10)  # 29 of 30 together, and all of 20 and of 10
    with open_loader(packed, split=(0, 0.98)) as loader:
        state = loader.state_dict()
        with pytest.raises(UsageError, match="the state is of another split"):
            loader.load_state_dict({**state, "split": [0.0, 0.98]})


def test_a_state_of_all_samples_of_a_grown_pack_stays_good(packed: Path) -> None:
    grow(packed, 100, 10)
    with open_loader(packed, split=(0, 1)) as loader:
        loader.load_state_dict({**loader.state_dict(), "split": [0.0, 1.0]})


def test_a_pack_whose_appends_do_not_add_up_is_damaged(packed: Path) -> None:
    grow(packed, 100, 10)
    manifest = read_manifest(packed)
    wrong = {**manifest.settings, "appended": [{"samples": 99}]}
    (packed / "pack.json").write_bytes(dump_manifest(dataclasses.replace(manifest, settings=wrong)))
    with pytest.raises(PackError, match="appended"):
        open_loader(packed, split=(0, 0.5))


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    edges=st.lists(st.floats(0, 1), min_size=2, max_size=5),
)
@settings(max_examples=examples(80), deadline=None)
def test_no_sample_changes_sides_whatever_is_appended(sizes: list[int], edges: list[float]) -> None:
    fractions = [*zip(sorted({0.0, *edges, 1.0}), sorted({0.0, *edges, 1.0})[1:], strict=False)]
    side: dict[int, tuple[float, float]] = {}
    for count in range(1, len(sizes) + 1):
        pieces = sizes[:count]
        for part in fractions:
            subset = Subset(tuple(pieces), part)
            assert len(subset) == sum(round(part[1] * n) - round(part[0] * n) for n in pieces)
            for position in members(subset).tolist():
                assert side.setdefault(position, part) == part
        assert len(side) == sum(pieces)


@pytest.mark.parametrize("part", [(0.995, 1), (0, 0.001)])
def test_a_share_that_holds_no_sample_is_refused(tmp_path: Path, part: Any) -> None:
    numbers = write_numbers(tmp_path / "p", 60)
    for make in (open_loader, Dataset):
        with pytest.raises(UsageError, match=r"holds none of the 60 samples"):
            make(numbers, split=part)


def test_an_order_of_no_positions_is_refused(tmp_path: Path) -> None:
    numbers = write_numbers(tmp_path / "p", 60)
    with pytest.raises(UsageError, match="no batch would come"):
        open_loader(numbers, order=[])
    with open_loader(numbers, order=lambda epoch: [1, 2] if epoch == 0 else []) as loader:
        assert len(list(loader)) == 1
        with pytest.raises(UsageError, match="no batch would come: the order of epoch 1"):
            iter(loader)
