# SPDX-License-Identifier: Apache-2.0
"""What users may import, and what importing costs them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import feedrate


def test_the_public_names_are_these() -> None:
    names = (
        "Cache Dataset Loader View cached decode decode_batch stage CenterCrop RandomCrop RandomResizedCrop"
        " Resize ColorJitter Grayscale GaussianBlur Solarize RandomErasing MixUp CutMix __version__"
    )
    errors = "AlreadyExists BadSample FeedrateError MissingExtra NotFound PackError SourceError StorageError"
    assert sorted(feedrate.__all__) == sorted([*names.split(), *errors.split(), "UsageError"])
    assert all(getattr(feedrate, name) is not None for name in feedrate.__all__)


@pytest.mark.parametrize("statement", ["import feedrate", "import feedrate.cli; feedrate.cli.make_parser()"])
def test_importing_feedrate_brings_in_no_heavy_package(statement: str) -> None:
    check = "import sys; print(sorted({'torch', 'pyarrow', 'PIL', 'rich'} & set(sys.modules)))"
    shown = subprocess.run(
        [sys.executable, "-c", f"{statement}; {check}"], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "[]\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Loadr"):
        _ = feedrate.Loadr
