# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import inspect
import pickle

import pytest

from feedrate import errors
from feedrate.errors import BadSample, FeedrateError

TREE = [
    c
    for _, c in inspect.getmembers(errors, inspect.isclass)
    if issubclass(c, FeedrateError) and c is not FeedrateError
]


@pytest.mark.parametrize("error", TREE, ids=lambda c: c.__name__)
def test_every_error_is_drawn_in_the_tree_and_is_also_a_builtin(error: type[FeedrateError]) -> None:
    builtin = error.__mro__[2] if error.__mro__[1] is FeedrateError else None
    assert builtin is not None
    assert f"{error.__name__} " in (errors.__doc__ or "")
    assert f"({builtin.__name__})" in (errors.__doc__ or "")


def test_an_os_error_prints_its_sentence_not_its_errno() -> None:
    assert str(errors.StorageError("the disk is full", hint="free some")) == "the disk is full"


def test_a_bad_sample_names_key_shard_and_offset_and_survives_pickling() -> None:
    error = BadSample(
        key="cat/7", shard="shard-00003.tar", offset=512, field="image", reason="JPEG ends early"
    )
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == "sample 'cat/7', field 'image' (shard-00003.tar at byte 512): JPEG ends early"
    assert (again.key, again.shard, again.offset) == ("cat/7", "shard-00003.tar", 512)
