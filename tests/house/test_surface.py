# SPDX-License-Identifier: Apache-2.0
"""What users may import, and what importing costs them."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys

import pytest

import feedrate
from support.paths import ROOT


def test_the_public_names_are_these() -> None:
    names = (
        "Cache Dataset Loader View cached decode decode_batch stage CenterCrop RandomCrop RandomResizedCrop"
        " Resize ColorJitter Grayscale GaussianBlur Solarize RandomErasing MixUp CutMix __version__"
        " pack PackOptions FieldSpec Recode Engine index set_entries unpack verify append AppendOptions"
        " split extend_split SplitOptions add_column ColumnOptions"
    )
    errors = "AlreadyExists BadSample FeedrateError MissingExtra NotFound PackError SourceError StorageError"
    assert sorted(feedrate.__all__) == sorted([*names.split(), *errors.split(), "UsageError"])
    assert all(getattr(feedrate, name) is not None for name in feedrate.__all__)


@pytest.mark.parametrize("name", sorted({*feedrate.__all__} - {"__version__"}))
def test_a_public_name_has_a_docstring_of_its_own_and_is_in_the_documents(name: str) -> None:
    found = getattr(feedrate, name)
    assert found.__name__ == name
    assert inspect.cleandoc(found.__doc__)
    assert not found.__doc__.startswith(f"{name}("), "a dataclass makes such a docstring by itself"
    assert re.search(rf"`{name}`", (ROOT / "docs" / "python.md").read_text())


def test_type_checkers_see_the_names_that_are_loaded_and_where_they_come_from() -> None:
    tree = ast.parse(inspect.getsource(feedrate))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {*seen, "__version__"} == {*feedrate.__all__}
    assert seen == {name: getattr(feedrate, name).__module__ for name in seen}


@pytest.mark.parametrize("statement", ["import feedrate", "import feedrate.cli; feedrate.cli.make_parser()"])
def test_importing_feedrate_brings_in_no_heavy_package(statement: str) -> None:
    check = "import sys; print(sorted({'torch', 'numpy', 'pyarrow', 'PIL', 'rich'} & set(sys.modules)))"
    shown = subprocess.run(
        [sys.executable, "-c", f"{statement}; {check}"], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "[]\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Loadr"):
        _ = feedrate.Loadr
