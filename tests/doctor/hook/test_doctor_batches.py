# SPDX-License-Identifier: Apache-2.0
"""Batches that are kept and handed out again, and what is told apart by a digest."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest

from feedrate.doctor.hook.feedrate_hook.record import loader_clone

torch = pytest.importorskip("torch")

from feedrate.doctor.hook.feedrate_hook.experiment import batches  # noqa: E402

Pair = namedtuple("Pair", "image label")


class Record:
    """A batch that is an object of the user's own."""

    def __init__(self, image: Any) -> None:
        self.image = image
        self.names = ["a", "b"]


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(6.0),
        [torch.arange(6.0), torch.tensor([1])],
        (torch.arange(6.0), {"mask": torch.ones(2, dtype=torch.bool)}),
        Pair(torch.arange(6.0), torch.tensor(3)),
        {"x": torch.arange(6.0).reshape(2, 3), "names": ["a", "b"], "nothing": None},
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_kept_batch_is_given_as_it_was(batch: Any) -> None:
    kept = batches.Kept(batch)
    first, second = kept.again(), kept.again()
    assert type(first) is type(second) is type(batch)
    assert batches.digest_of(first) == batches.digest_of(second) == batches.digest_of(batch)


def test_what_the_loop_does_to_a_batch_is_undone_before_it_is_given_again() -> None:
    kept = batches.Kept({"x": torch.arange(6.0), "more": [torch.ones(2)], "names": ["a"]})
    batch = kept.again()
    batch.pop("x").mul_(7)
    batch["more"].clear()
    batch["names"].append("b")
    again = kept.again()
    assert again["x"].tolist() == list(range(6))
    assert again["more"][0].tolist() == [1, 1]
    assert again["names"] == ["a"]


def test_a_batch_that_was_not_changed_is_not_copied() -> None:
    kept = batches.Kept(torch.arange(6.0))
    assert kept.again().data_ptr() == kept.again().data_ptr()


def test_a_gradient_that_the_loop_asks_for_stays_with_the_loop() -> None:
    kept = batches.Kept(torch.arange(6.0))
    kept.again().requires_grad_().sum().backward()
    assert kept.again().requires_grad is False
    assert kept.again().grad is None


def test_the_memory_format_of_a_kept_batch_is_that_of_the_batch() -> None:
    image = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert batches.Kept(image).again().stride() == image.stride()


def test_an_object_of_the_users_own_is_kept_with_its_tensors() -> None:
    kept = batches.Kept(Record(torch.arange(4.0)))
    kept.again().image.zero_()
    assert kept.again().image.tolist() == [0, 1, 2, 3]
    assert kept.again().names == ["a", "b"]


def test_batches_are_kept_under_inference_mode() -> None:
    with torch.inference_mode():
        kept = batches.Kept(torch.arange(3.0))
        kept.again().add_(1)
        assert kept.again().tolist() == [0, 1, 2]


def test_one_changed_sample_changes_the_digest() -> None:
    image = torch.rand(64, 3, 32, 32)
    other = image.clone()
    other[63] = other[63].flip(-1)
    assert batches.digest_of(image) == batches.digest_of(image.clone())
    assert batches.digest_of(image) != batches.digest_of(other)


def test_digests_compare_only_where_both_are_known() -> None:
    assert batches.are_same([1, None, 3], [1, 2, 3, 4]) is True
    assert batches.are_same([1, 2], [1, 3]) is False
    assert batches.are_same([None], [1]) is None


def test_a_copy_of_a_loader_goes_on_epoch_after_epoch_without_touching_the_random_state() -> None:
    loader = torch.utils.data.DataLoader(list(range(6)), batch_size=2)
    before = torch.get_rng_state()
    iterator = iter(loader_clone.copy_loader(loader, 0))
    assert [next(iterator).tolist() for _ in range(5)] == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_copy_can_be_made_of_given_indices_only() -> None:
    loader = torch.utils.data.DataLoader(list(range(6)), batch_size=2)
    iterator = iter(loader_clone.copy_loader(loader, 0, [[5, 1], [2]]))
    assert [next(iterator).tolist() for _ in range(3)] == [[5, 1], [2], [5, 1]]


def test_a_loader_that_is_gone_is_known_by_its_iterator() -> None:
    iterator = iter(torch.utils.data.DataLoader(list(range(6)), batch_size=4, drop_last=True))
    remains = loader_clone.Remains(iterator)
    assert (len(remains), remains.batch_size, remains.num_workers) == (1, 4, 0)
    assert next(iter(loader_clone.copy_loader(remains, 0))).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("context", "wanted"),
    [
        (None, loader_clone.FORKED_TIMEOUT_S),
        ("fork", loader_clone.FORKED_TIMEOUT_S),
        ("spawn", loader_clone.TIMEOUT_S),
    ],
)
def test_workers_that_import_everything_anew_have_longer_to_begin(context: str | None, wanted: float) -> None:
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": context}
    copied = loader_clone.copy_loader(torch.utils.data.DataLoader(list(range(6)), **options), 1)
    assert copied.timeout == wanted
