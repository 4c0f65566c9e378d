# SPDX-License-Identifier: Apache-2.0
"""Parts of a pack: exact, stable, whole groups; and what Loader and Dataset make of them."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate import (
    AppendOptions,
    ColumnOptions,
    Dataset,
    Loader,
    SplitOptions,
    add_column,
    append,
    extend_split,
    split,
)
from feedrate.errors import AlreadyExists, NotFound, PackError, SourceError, UsageError
from feedrate.format.manifest import read_manifest
from feedrate.format.pack import Pack
from feedrate.packing.change.split import (
    count_missing,
    count_shares,
    hash_names,
    parse_shares,
    split_groups,
    split_samples,
    split_strata_of_groups,
)
from feedrate.packing.check.describe import describe
from support.packs import write_images, write_multi_label, write_numbers

SHARES = {"train": 0.8, "validation": 0.2}


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    return write_numbers(tmp_path / "p", 50, shards=3)


def column_of(pack: Path, name: str = "split") -> np.ndarray[Any, Any]:
    opened = Pack(pack)
    try:
        return opened.column(name)
    finally:
        opened.close()


def numbers_given(pack: Path, **options: Any) -> list[int]:
    with Loader(pack, 7, fields=("number",), output="numpy", **options) as loader:
        return [int(n) for (batch,) in loader for n in batch]


@given(
    weights=st.lists(st.integers(1, 100), min_size=2, max_size=5),
    samples=st.integers(1, 300),
    classes=st.integers(1, 4),
    seed=st.integers(0, 2**63 - 1),
)
def test_counts_are_exact_and_each_class_gets_its_share(
    weights: list[int], samples: int, classes: int, seed: int
) -> None:
    shares = {f"part{i}": weight / sum(weights) for i, weight in enumerate(weights)}
    counts = count_shares(shares, samples)
    assert sum(counts) == samples
    assert all(abs(c - s * samples) < 1 + 1e-6 for c, s in zip(counts, shares.values(), strict=True))
    strata = np.arange(samples) % classes
    parts = split_samples(hash_names([b"%d" % n for n in range(samples)], seed), strata, counts)
    assert np.bincount(parts, minlength=len(counts)).tolist() == counts
    for stratum in range(classes):
        inside = np.bincount(parts[strata == stratum], minlength=len(counts))
        expected = np.array(counts) * (strata == stratum).sum() / samples
        assert np.abs(inside - expected).max() <= len(counts)


@given(samples=st.integers(2, 200), seed=st.integers(0, 2**32), order=st.randoms(use_true_random=False))
def test_the_part_of_a_sample_does_not_depend_on_the_order_in_the_pack(
    samples: int, seed: int, order: Any
) -> None:
    names = [b"%d" % n for n in range(samples)]
    shuffled = list(names)
    order.shuffle(shuffled)
    counts, one = count_shares(SHARES, samples), np.zeros(samples, np.int64)
    before = dict(zip(names, split_samples(hash_names(names, seed), one, counts).tolist(), strict=True))
    after = split_samples(hash_names(shuffled, seed), one, counts).tolist()
    assert dict(zip(shuffled, after, strict=True)) == before


@given(samples=st.integers(20, 200), more=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_new_samples_move_no_more_samples_than_they_are(samples: int, more: int, seed: int) -> None:
    names = [b"%d" % n for n in range(samples + more)]
    parts = [
        split_samples(hash_names(names[:n], seed), np.zeros(n, np.int64), count_shares(SHARES, n))
        for n in (samples, samples + more)
    ]
    assert (parts[0] != parts[1][:samples]).sum() <= more


@given(
    groups=st.lists(st.integers(0, 8), min_size=1, max_size=100),
    seed=st.integers(0, 2**32),
    share=st.floats(0.1, 0.9),
)
def test_groups_stay_whole_and_counts_are_near(groups: list[int], seed: int, share: float) -> None:
    names, of_sample = np.unique(groups, return_inverse=True)
    counts = count_shares({"a": share, "b": "rest"}, len(groups))
    parts = split_groups(of_sample, hash_names([b"%d" % n for n in names], seed), counts)
    assert all(len(set(parts[of_sample == group])) == 1 for group in range(len(names)))
    assert abs((parts == 0).sum() - counts[0]) <= np.bincount(of_sample).max()


@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=150),
    draw=st.randoms(use_true_random=False),
    share=st.floats(0.1, 0.9),
)
def test_stratified_groups_stay_whole_and_counts_are_near(
    labels: list[int], draw: random.Random, share: float
) -> None:
    groups = np.array([draw.randrange(len(labels)) for _ in labels])
    names, of_sample = np.unique(groups, return_inverse=True)
    strata = np.unique(labels, return_inverse=True)[1]
    counts = count_shares({"a": share, "b": "rest"}, len(labels))
    hashes = hash_names([b"%d" % n for n in names], 0)
    parts = split_strata_of_groups(of_sample, hashes, strata, counts, np.full(len(labels), -1))
    assert all(len(set(parts[of_sample == group])) == 1 for group in range(len(names)))
    assert abs((parts == 0).sum() - counts[0]) <= 2 * np.bincount(of_sample).max() + len(set(labels))


def make_patients(seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return patient and finding of 3,000 images: most patients have one finding, one finding is rare."""
    draw = np.random.default_rng(seed)
    finding_of = draw.choice(4, 600, p=[0.6, 0.25, 0.12, 0.03])
    patients = np.repeat(np.arange(600), draw.geometric(0.15, 600))[:3000]
    return patients, np.where(draw.random(len(patients)) < 0.8, finding_of[patients], 0)


def worst_share(parts: np.ndarray[Any, Any], strata: np.ndarray[Any, Any]) -> float:
    whole = np.bincount(strata) / len(strata)
    of_part = [np.bincount(strata[parts == part], minlength=len(whole)) for part in range(3)]
    return max(float(np.abs(counts / counts.sum() - whole).max()) for counts in of_part)


@pytest.mark.parametrize("seed", range(5))
def test_stratified_groups_are_more_even_than_groups_by_chance(seed: int) -> None:
    patients, findings = make_patients(seed)
    names, groups = np.unique(patients, return_inverse=True)
    counts = count_shares({"train": 0.7, "validation": 0.15, "test": 0.15}, len(groups))
    hashes = hash_names([b"%d" % name for name in names], seed)
    even = split_strata_of_groups(groups, hashes, findings, counts, np.full(len(groups), -1))
    chance = split_groups(groups, hashes, counts)
    assert worst_share(even, findings) < 0.5 * worst_share(chance, findings)


def test_another_seed_gives_other_stratified_groups() -> None:
    patients, findings = make_patients(0)
    names, groups = np.unique(patients, return_inverse=True)
    none = np.full(len(groups), -1)
    parts = [
        split_strata_of_groups(
            groups, hash_names([b"%d" % name for name in names], seed), findings, [2400, 600], none
        )
        for seed in (0, 0, 1)
    ]
    assert (parts[0] == parts[1]).all()
    assert (parts[0] != parts[2]).sum() > 100


def test_a_split_is_read_by_loader_and_dataset(numbers: Path) -> None:
    result = split(numbers, SHARES)
    assert result.parts == {"train": 40, "validation": 10}
    train, validation = (numbers_given(numbers, split=name) for name in SHARES)
    assert len(train) == 40
    assert len(validation) == 10
    assert sorted(train + validation) == list(range(50))
    dataset = Dataset(numbers, fields=("number", "label"), split="validation")
    assert len(dataset) == 10
    assert [dataset[i][0] for i in range(10)] == sorted(validation)
    assert dataset.targets == [n % 3 for n in sorted(validation)]
    with pytest.raises(IndexError, match="sample 10 of a split 'validation' that has 10"):
        dataset[10]


def test_ranks_share_a_split_and_a_state_goes_on_in_it(numbers: Path) -> None:
    split(numbers, SHARES)
    ranks = [numbers_given(numbers, split="train", rank=rank, world_size=2) for rank in range(2)]
    assert sorted(ranks[0] + ranks[1]) == sorted(numbers_given(numbers, split="train"))
    with Loader(numbers, 4, fields=("number",), output="numpy", split="train") as loader:
        assert len(loader) == 10
        batches = iter(loader)
        first = [int(n) for _ in range(3) for n in next(batches)[0]]
        state = loader.state_dict()
    with Loader(numbers, 4, fields=("number",), output="numpy", split="train") as loader:
        loader.load_state_dict(state)
        rest = [int(n) for (batch,) in loader for n in batch]
    assert sorted(first + rest) == sorted(numbers_given(numbers, split="train"))


def test_a_state_of_another_split_is_refused(numbers: Path) -> None:
    split(numbers, SHARES)
    with Loader(numbers, fields=("number",), split="train") as loader:
        state = loader.state_dict()
    other = Loader(numbers, fields=("number",), split="validation")
    with other, pytest.raises(UsageError, match="is of another split: 'train "):
        other.load_state_dict(state)
    split(numbers, SHARES, SplitOptions(seed=1, replace=True))
    again = Loader(numbers, fields=("number",), split="train")
    with again, pytest.raises(UsageError, match="is of another split: 'train "):
        again.load_state_dict(state)


def test_a_reader_that_has_the_pack_open_keeps_its_split(numbers: Path) -> None:
    split(numbers, SHARES)
    with Loader(numbers, 7, fields=("number", "split"), output="numpy", split="train") as loader:
        split(numbers, SHARES, SplitOptions(seed=1, replace=True))
        assert all((parts == 0).all() for _, parts in loader)


def test_a_worker_that_opens_another_split_of_that_name_says_so(numbers: Path) -> None:
    split(numbers, SHARES)
    dataset = Dataset(numbers, fields=("number",), split="train")
    sent = pickle.dumps(dataset)
    assert pickle.loads(sent)[0] == dataset[0]
    split(numbers, SHARES, SplitOptions(seed=1, replace=True))
    assert len(dataset) == 40
    with pytest.raises(UsageError, match="was made anew since this dataset was opened"):
        len(pickle.loads(sent))


def test_balanced_weights_are_those_of_the_split(numbers: Path) -> None:
    split(numbers, {"few": 4, "rest": "rest"})
    drawn = numbers_given(numbers, split="few", weights="balanced")
    assert set(drawn) <= set(numbers_given(numbers, split="few"))
    assert len(drawn) == 4


def test_several_parts_and_columns_can_be_read_together(numbers: Path) -> None:
    split(numbers, {"0": 0.2, "1": 0.2, "2": 0.6}, SplitOptions(name="fold"))
    assert len(numbers_given(numbers, split="fold:0+2")) == 40
    assert numbers_given(numbers, split="label:cat", shuffle=False) == list(range(0, 50, 3))


def test_a_part_that_is_not_there_is_a_sentence(numbers: Path) -> None:
    with pytest.raises(UsageError, match="has no split: it has no column 'split'") as caught:
        Loader(numbers, split="train")
    assert "feedrate split" in str(caught.value.hint)
    split(numbers, SHARES)
    with pytest.raises(UsageError, match="no part 'trian'; it has train, validation") as caught:
        Loader(numbers, split="trian")
    assert caught.value.hint == "did you mean 'train'?"


def test_a_part_of_several_labels_per_sample_is_a_sentence(tmp_path: Path) -> None:
    pack = write_multi_label(tmp_path / "p")
    with pytest.raises(UsageError, match="it has no column 'labels' of classes") as caught:
        Loader(pack, split="labels:cat")
    assert caught.value.hint == "columns of classes: none"


def test_a_damaged_split_is_refused_not_trained_on(numbers: Path) -> None:
    split(numbers, SHARES)
    path = numbers / read_manifest(numbers).parts[0].name
    data = bytearray(path.read_bytes())
    data[read_manifest(numbers).parts[0].columns["split"][0]] ^= 1
    path.write_bytes(data)
    with pytest.raises(PackError, match="is damaged or gone"):
        Loader(numbers, split="train")


def test_stratified_parts_have_the_same_shares_of_each_class(numbers: Path) -> None:
    result = split(numbers, SHARES, SplitOptions(stratify="label"))
    assert result.parts == {"train": 40, "validation": 10}
    assert sorted(result.class_counts["validation"].values()) == [3, 3, 4]


def test_groups_by_column_path_and_folder_stay_together(tmp_path: Path) -> None:
    pack = write_images(tmp_path / "p", 24)
    paths = [f"source/{n:05d}.image" for n in range(24)]
    table = tmp_path / "patients.csv"
    table.write_text("path,patient\n" + "".join(f"{p},{n // 4}\n" for n, p in enumerate(paths)))
    add_column(pack, table)
    half = {"a": 0.5, "b": 0.5}
    result = split(pack, half, SplitOptions(by="patient"))
    assert sum(result.groups.values()) == 6
    parts = dict(zip(column_of(pack, "number").tolist(), column_of(pack).tolist(), strict=True))
    assert all(len({parts[4 * group + i] for i in range(4)}) == 1 for group in range(6))
    split(pack, half, SplitOptions(by_path=r"(\d)\.image", name="digit"))
    digits = dict(zip(column_of(pack, "number").tolist(), column_of(pack, "digit").tolist(), strict=True))
    assert all(digits[n] == digits[n % 10] for n in range(24))
    with pytest.raises(UsageError, match=r"part '.' would be empty: the pack has 1 group"):
        split(pack, half, SplitOptions(by_folder=True, name="folder"))
    with pytest.raises(SourceError, match="24 of 24 samples have no group: 'x' finds nothing"):
        split(pack, half, SplitOptions(by_path="x", name="x"))


def test_lists_of_paths_or_keys_decide(tmp_path: Path) -> None:
    pack = write_images(tmp_path / "p", 10)
    chosen = tmp_path / "validation.txt"
    chosen.write_text("source/00003.image\n\nsample-00005\n")
    split(pack, {"train": "rest"}, SplitOptions(files={"validation": chosen}))
    assert sorted(numbers_given(pack, split="validation")) == [3, 5]
    assert len(numbers_given(pack, split="train")) == 8
    again = SplitOptions(files={"validation": chosen}, name="again")
    with pytest.raises(SourceError, match="8 of 10 samples have no part: no list names them: 'source/00000"):
        split(pack, {}, again)
    chosen.write_text("sample-00005\nnobody\n")
    with pytest.raises(SourceError, match=r"the lists name 1 sample that .* does not have: 'nobody'"):
        split(pack, {"train": "rest"}, again)
    both = SplitOptions(files={"a": chosen, "b": chosen}, name="again")
    with pytest.raises(SourceError, match="'sample-00005' stands in the lists of 'a' and of 'b'"):
        split(pack, {}, both)
    with pytest.raises(NotFound, match="cannot read the list"):
        split(pack, {"train": "rest"}, SplitOptions(files={"b": tmp_path / "none.txt"}, name="again"))


@pytest.mark.parametrize(
    ("shares", "options", "message"),
    [
        ({"train": 0.8, "validation": 0.1}, {}, "adds up to 45 samples, and the pack has 50"),
        ({"train": 0.8, "validation": 0.3}, {}, "adds up to 55 samples"),
        ({"train": 1.0}, {}, "at least two parts"),
        (
            {"train": 0.999, "validation": 0.001},
            {},
            "part 'validation' would be empty: the pack has 50 samples",
        ),
        ({"a": "rest", "b": "rest"}, {}, "cannot both have the rest"),
        ({"a:b": 0.5, "c": 0.5}, {}, "'a:b' cannot be the name of a part"),
        ({"a": -0.5, "b": 1.5}, {}, "part 'a' must get more than 0"),
        (SHARES, {"by": "colour"}, "has no column 'colour'"),
        (SHARES, {"by": "label", "by_folder": True}, "exclude each other"),
        (SHARES, {"name": "Split"}, "'Split' cannot be the name of a field"),
        (SHARES, {"by_path": "("}, "is not a regular expression"),
    ],
)
def test_what_cannot_be_split_is_a_sentence(
    numbers: Path, shares: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    before = (numbers / "pack.json").read_bytes()
    with pytest.raises(UsageError, match=message):
        split(numbers, shares, SplitOptions(**options))
    assert (numbers / "pack.json").read_bytes() == before


def test_a_split_is_replaced_only_when_asked_for(numbers: Path) -> None:
    split(numbers, SHARES)
    with pytest.raises(AlreadyExists, match="already has a field 'split'"):
        split(numbers, SHARES)
    assert split(numbers, SHARES, SplitOptions(seed=1, replace=True)).replaced
    with pytest.raises(AlreadyExists, match="of kind image, which no column can replace"):
        split(write_images(numbers.parent / "i", 4), SHARES, SplitOptions(name="image", replace=True))


def test_shares_are_read_as_people_write_them() -> None:
    texts = ["train=0.7", "validation=20%", "test=500", "other=rest"]
    assert parse_shares(texts) == {"train": 0.7, "validation": 0.2, "test": 500, "other": "rest"}
    for wrong in ("train", "train=", "train=many"):
        with pytest.raises(UsageError, match="train"):
            parse_shares([wrong])


@given(
    samples=st.integers(10, 120),
    share=st.floats(0.2, 0.8),
    known=st.lists(st.sampled_from([-1, 0, 1]), min_size=120, max_size=120),
)
def test_an_extended_split_meets_its_counts_where_it_can(
    samples: int, share: float, known: list[int]
) -> None:
    given_parts = np.array(known[:samples])
    counts = count_shares({"a": share, "b": "rest"}, samples)
    missing = count_missing(counts, given_parts)
    assert sum(missing) == (given_parts < 0).sum()
    there = np.bincount(given_parts[given_parts >= 0], minlength=2)
    if (there <= counts).all():
        assert (there + missing).tolist() == counts


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"stratify": "label"},
        {"by_path": r"(\d)\.image"},
        {"by_path": r"(\d)\.image", "stratify": "label"},
    ],
)
def test_samples_that_came_later_get_a_part_and_no_other_moves(tmp_path: Path, way: dict[str, Any]) -> None:
    half = {"a": 0.5, "b": 0.5}
    packs = [write_images(tmp_path / name, count) for name, count in (("p", 20), ("q", 30))]
    split(packs[0], half, SplitOptions(seed=3, **way))
    before = column_of(packs[0])
    append(packs[1], packs[0], AppendOptions(prefix="q"))
    assert column_of(packs[0])[20:].tolist() == [-1] * 30
    result = extend_split(packs[0])
    after = column_of(packs[0])
    assert (after[:20] == before).all()
    assert sum(result.parts.values()) == 50
    if "by_path" in way:
        digits = column_of(packs[0], "number") % 10
        assert all(len(set(after[digits == digit])) == 1 for digit in range(10))
    else:
        assert result.parts == {"a": 25, "b": 25}
    with pytest.raises(UsageError, match="has no split 'fold'"):
        extend_split(packs[0], "fold")


def test_ls_shows_the_parts_and_the_pack_says_version_2(numbers: Path) -> None:
    assert read_manifest(numbers).version == 1
    split(numbers, SHARES)
    assert b'"version": 2' in (numbers / "pack.json").read_bytes()
    assert describe(numbers).column_counts == {"split": {"train": 40, "validation": 10}}


def test_columns_of_a_table_can_be_a_split_too(tmp_path: Path) -> None:
    pack = write_images(tmp_path / "p", 6)
    table = tmp_path / "t.csv"
    parts = ["train", "test", "train", "test", "train", "train"]
    table.write_text("key,split\n" + "".join(f"sample-{n:05d},{p}\n" for n, p in enumerate(parts)))
    add_column(pack, table, ColumnOptions(kind="class"))
    assert sorted(numbers_given(pack, split="test")) == [1, 3]
