# SPDX-License-Identifier: Apache-2.0
"""Any call that a disk refuses ends in a sentence, loses nothing, and the same command then succeeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedrate import PackOptions, pack, verify
from feedrate.packing.check.describe import describe
from support.faults import Trial, injector, run_with_faults
from support.images import read_tree, save_image

__all__ = ["injector"]
pytestmark = pytest.mark.slow

ONE = ["--workers", "1"]
COMMANDS: dict[str, tuple[list[str], list[list[str]]]] = {
    "pack": (["pack", "new", "out", *ONE], []),
    "pack hdf5": (["pack", "new", "out", *ONE, "--format", "hdf5"], []),
    "append": (["append", "new", "p", *ONE], []),
    "split": (["split", "p", "train=0.5", "test=0.5"], []),
    "add-column": (["add-column", "p", "t.csv", "--column", "age"], []),
    "unpack": (["unpack", "p", "out", *ONE], []),
    "index": (["index", "new", "out", *ONE], []),
    "stage": (["stage", "p", "--scratch", "scr"], []),
    "stage files": (["stage", "new", "--scratch", "scr"], []),
    "gc": (["scratch", "gc", "--scratch", "scr", "--limit", "1"], [["stage", "new", "--scratch", "scr"]]),
}


@pytest.fixture
def start(tmp_path: Path) -> Path:
    folder = tmp_path / "start"
    for number in range(2):
        save_image(folder / "old" / "dog" / f"{number}.jpg", number)
        save_image(folder / "new" / ("ape" if number % 2 else "dog") / f"n{number}.jpg", 20 + number)
    (folder / "new" / "dog" / "bad.jpg").write_text("no image")
    pack(folder / "old", folder / "p", PackOptions(workers=1))
    lines = describe(folder / "p", samples=10).first_samples
    (folder / "t.csv").write_text("path,age\n" + "".join(f"{s.path},{i}\n" for i, s in enumerate(lines)))
    (folder / "scr").mkdir()
    return folder


def read_result(folder: Path) -> dict[str, bytes]:
    """Return all but what tells times and processes; a copy's name depends on where its source is."""
    tree = read_tree(folder)
    copied = {name: name.split("/data/")[1] for name in tree if name.startswith("scr/") and "/data/" in name}
    others = {name: data for name, data in tree.items() if not name.startswith("scr/")}
    return others | {f"copy/{short}": tree[name] for name, short in copied.items()}


def find_fault(trial: Trial, before: dict[str, bytes], after: dict[str, bytes]) -> str:
    """Return what is wrong; "": nothing."""
    now = read_result(trial.folder)
    if trial.code not in (0, 1) or "Traceback" in trial.said or "Traceback" in trial.said_again:
        return "a traceback"
    if trial.code == 1 and not any(line.startswith("error: ") for line in trial.said.splitlines()):
        return "no sentence"
    if any(now.get(name) != data for name, data in before.items() if name.startswith(("old/", "new/"))):
        return "a source was changed"
    if trial.code_again not in (0, 1) or (trial.code_again and "already" not in trial.said_again):
        return "it does not go on"
    left = [name for name in now.keys() - after.keys() if not name.endswith(".lock")]
    other = [name for name, data in after.items() if now.get(name) != data]
    if left or other:
        return f"another result: {left[:3]} too many, {other[:3]} missing or others"
    if any(trial.folder.glob("scr/feedrate-*/.*")):
        return "something is left on scratch"
    return ""


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_call_that_fails_ends_in_a_sentence_and_the_command_then_succeeds(
    start: Path, tmp_path: Path, injector: Path, name: str
) -> None:
    command, prepare = COMMANDS[name]
    (whole,) = run_with_faults(tmp_path, injector, command, prepare, first=0, last=0)
    assert whole.code == 0, whole.said
    before, after = read_tree(start), read_result(whole.folder)
    trials = run_with_faults(tmp_path, injector, command, prepare)
    found = [(trial, find_fault(trial, before, after)) for trial in trials]
    wrong = [(trial.call, fault, trial.said, trial.said_again) for trial, fault in found if fault]
    harmless = sum(trial.code == 0 for trial in trials[:-1])
    print(f"{name}: {len(trials) - 1} faults, {harmless} of them harmless")  # pytest -s
    assert not wrong, "\n\n".join("\n".join(one) for one in wrong)
    for folder in ("p", "out"):
        if (whole.folder / folder / "pack.json").exists():
            assert verify(whole.folder / folder, workers=1).problems == ()
