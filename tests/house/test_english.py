# SPDX-License-Identifier: Apache-2.0
"""No branch on the words of a sentence: a code stands beside it, so that the sentence may be written anew.

Found are comparisons with a constant of several words, and comparisons of a variable that is named as
sentences are (`why`, `reason`, ...) with any word. What other programs say has no code: that is allowed, and
says why.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from support.paths import ROOT

SENTENCES = re.compile(
    r"(^|_)(text|words|said|why|why_not|reason|message|label|needs|title|note|sentence|cause|problem|verdict|"
    r"remedy|detail)$"
)
SEARCHES = {"startswith", "endswith", "find", "rfind", "index", "partition", "rpartition", "count"}

# What others say: (below src/feedrate, a part of the comparison) -> who says it.
OTHERS_SAY = {
    ("cli/__init__.py", "'invalid choice'"): "argparse, in its message",
    ("cli/__init__.py", "'unrecognized'"): "argparse, in its message",
    ("cli/split.py", "'=rest'"): "the user, on the command line",
    ("packing/change/split.py", "'rest'"): "the user, on the command line",
    ("remote/addresses.py", "'support range requests'"): "fsspec, in its error",
    ("doctor/hook/feedrate_hook/guard/kernel.py", "' (deleted)'"): "Linux, in /proc",
    ("doctor/hook/feedrate_hook/guard/guard.py", "' (deleted)'"): "Linux, in /proc",
    ("watch/devices.py", "' (deleted)'"): "Linux, in /proc",
    ("machine/describe.py", "'model name'"): "Linux, in /proc/cpuinfo",
    ("machine/process.py", "'some '"): "Linux, in /proc/pressure",
    ("machine/process.py", "' with fstype nfs'"): "Linux, in mountstats",
    ("machine/process.py", "' mounted on '"): "Linux, in mountstats",
    ("machine/process.py", "'per-op statistics'"): "Linux, in mountstats",
    ("model/gpus.py", "'pcie'"): "NVIDIA, in the name of a GPU",
}


def is_words(node: ast.AST, pattern: str) -> bool:
    """Whether a constant, or one in a tuple of constants, has a match."""
    if isinstance(node, (ast.Tuple, ast.Set, ast.List)):
        return any(is_words(one, pattern) for one in node.elts)
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and bool(re.search(pattern, node.value))
    )


def is_sentence(node: ast.AST) -> bool:
    return is_words(node, r"[A-Za-z]") and is_words(node, " ")


def is_named_as_one(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return bool(SENTENCES.search(name))


def is_branch(one: ast.AST, other: ast.AST) -> bool:
    return is_sentence(one) or (is_words(one, r"[A-Za-z]{2}") and is_named_as_one(other))


def find_branches(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for left, operator, right in zip(sides, node.ops, node.comparators, strict=False):
                is_question = isinstance(operator, (ast.In, ast.NotIn, ast.Eq, ast.NotEq))
                if is_question and (is_branch(left, right) or is_branch(right, left)):
                    yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            searched = node.func.value
            if node.func.attr in SEARCHES and any(is_branch(word, searched) for word in node.args):
                yield node


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("'is empty' in error", 1),
        ("way.why.startswith('may')", 1),
        ("reason == 'gone'", 1),
        ("line.startswith(('a b', 'c'))", 1),
        ("code == 'gone' and ', ' in names and why == ''", 0),
    ],
)
def test_a_branch_on_a_sentence_is_found(code: str, count: int) -> None:
    assert len(list(find_branches(ast.parse(code)))) == count


def test_nothing_branches_on_the_words_of_a_sentence() -> None:
    source = ROOT / "src" / "feedrate"
    known = OTHERS_SAY.keys()
    new, met = [], set()
    for path in sorted(source.rglob("*.py")):
        name = str(path.relative_to(source))
        for node in find_branches(ast.parse(path.read_text())):
            code = ast.unparse(node)
            named = {(file, part) for file, part in known if file == name and part in code}
            met |= named
            if not named:
                new.append(f"{name}:{node.lineno}: {code}")
    assert new == [], "carry a code beside the sentence, and ask that"
    assert known - met == set(), "take these off the list: it only shrinks"
