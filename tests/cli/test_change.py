# SPDX-License-Identifier: Apache-2.0
"""append, split, add-column and merge as people type them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedrate import Dataset, PackOptions, pack
from feedrate.cli import main
from feedrate.packing import mapping
from feedrate.packing.check.describe import describe
from support.damage import without_digest
from support.images import save_image


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: `old` and `new`, of which `old` is packed as `p`, and a table of ages."""
    monkeypatch.chdir(tmp_path)
    for number in range(10):
        save_image(Path("old") / ("cat" if number % 2 else "dog") / f"{number}.jpg", number)
        save_image(Path("new") / ("ape" if number % 2 else "dog") / f"n{number}.jpg", 20 + number)
    pack("old", "p", PackOptions(workers=1))
    rows = [f"{line.path},{i}\n" for i, line in enumerate(describe("p", samples=10).first_samples)]
    Path("t.csv").write_text("path,age\n" + "".join(rows))
    return tmp_path


@pytest.mark.usefixtures("home")
def test_split_says_what_each_part_has_and_what_comes_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["split", "p", "train=80%", "validation=0.2", "--stratify"]) == 0
    assert capsys.readouterr().out == (
        "split 10 samples of p ('split')\n"
        "  train       8 samples, 80.00% (cat 4, dog 4)\n"
        "  validation  2 samples, 20.00% (cat 1, dog 1)\n"
        '\nnext: Loader("p", split="train")\n'
    )
    assert main(["ls", "p"]) == 0
    assert "  parts    split: train 8, validation 2\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["p", "--by", "age", "train=0.8", "val=0.2"],
        ["--by", "age", "p", "train=0.8", "val=0.2"],
        ["p", "train=0.8", "--by", "age", "val=0.2"],
        ["p", "--stratify", "train=0.8", "val=0.2"],
        ["p", "train=0.8", "--stratify", "val=0.2"],
        ["--stratify", "train=0.8", "p", "val=0.2"],
        ["p", "--stratify", "label", "train=0.8", "val=0.2"],
        ["p", "--seed", "3", "train=0.8", "--by", "age", "--stratify", "val=0.2", "--name", "split"],
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("home")
def test_options_of_split_may_stand_anywhere(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["add-column", "p", "t.csv"])
    capsys.readouterr()
    assert main(["split", *words, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["parts"] == {"train": 8, "val": 2}
    assert list(document["parts"]) == ["train", "val"]
    assert bool(document["groups"]) == ("--by" in words)


@pytest.mark.usefixtures("home")
def test_an_option_that_split_does_not_have_is_still_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["split", "p", "--seed", "1", "--stratifi", "train=0.8", "val=0.2"])
    error = capsys.readouterr().err
    assert error.startswith("error: unknown option: --stratifi\n")
    assert "did you mean '--stratify'?" in error


@pytest.mark.usefixtures("home")
def test_split_says_how_even_whole_groups_allow_the_classes_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    # Two patients, who cannot be in both parts: one has three of the five cats and a dog.
    patient = {"cat/1.jpg": "a", "cat/3.jpg": "a", "cat/5.jpg": "a", "dog/0.jpg": "a"}
    paths = [line.path for line in describe("p", samples=10).first_samples]
    Path("patients.csv").write_text(
        "path,patient\n" + "".join(f"{path},{patient.get(str(path), 'b')}\n" for path in paths)
    )
    main(["add-column", "p", "patients.csv"])
    capsys.readouterr()
    assert main(["split", "p", "--by", "patient", "--stratify", "train=0.6", "val=0.4"]) == 0
    assert capsys.readouterr().out == (
        "split 10 samples of p ('split')\n"
        "  train    6 samples in 1 group, 60.00% (dog 4, cat 2)\n"
        "  val      4 samples in 1 group, 40.00% (cat 3, dog 1)\n"
        "  classes  within 25.0 points of the whole: cat 75.0% of val, 50.0% of all\n"
        '\nnext: Loader("p", split="train")\n'
    )


@pytest.mark.usefixtures("home")
def test_lists_may_stand_before_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    Path("val.txt").write_text("cat/1.jpg\n")
    assert main(["split", "p", "--file", "validation=val.txt", "train=rest", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["parts"]) == ("split", {"validation": 1, "train": 9})


@pytest.mark.usefixtures("home")
def test_add_column_says_what_it_added(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add-column", "p", "t.csv"]) == 0
    out = capsys.readouterr().out
    assert re.fullmatch(
        r"added 'age' \(number, int64\) for 10 samples of p, from t\.csv\n  size     [\d.]+ K?B\n", out
    )
    assert main(["add-column", "p", "t.csv"]) == 1
    assert capsys.readouterr().err == (
        "error: p already has a field 'age' (number)\n\n"
        "hint: replace it with --replace, or choose another name: --name NAME\n"
    )


@pytest.mark.usefixtures("home")
def test_append_tells_of_new_classes_and_of_the_split(capsys: pytest.CaptureFixture[str]) -> None:
    main(["split", "p", "train=0.5", "test=0.5"])
    capsys.readouterr()
    assert main(["append", "new", "p", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("appended 10 samples to p, which has 20 samples now\n")
    assert "  classes  new: ape\n" in out
    assert "the new samples are in no part of 'split' yet: feedrate split p --name split --extend\n" in out
    assert main(["split", "p", "--name", "split", "--extend"]) == 0
    assert "  train  10 samples, 50.00%" in capsys.readouterr().out
    assert main(["append", "new", "p", "--workers", "1"]) == 1
    assert "hint: pass over files that the pack has: --skip-existing" in capsys.readouterr().err
    assert main(["append", "new", "p", "--skip-existing"]) == 0
    assert capsys.readouterr().out == "nothing new in new: 10 files the pack has already\n"


@pytest.mark.usefixtures("home")
def test_append_with_the_pack_in_front_prints_the_right_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["append", "p", "new"]) == 1
    error, hint = [line for line in capsys.readouterr().err.splitlines() if line][-2:]
    assert error == "error: new is not a pack, and p is: the source comes first, then the pack"
    assert hint == "hint: feedrate append new p"
    assert main([*hint.split()[2:], "--workers", "1"]) == 0
    assert len(Dataset("p")) == 20


@pytest.mark.usefixtures("home")
def test_append_of_nothing_but_a_damaged_file_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("old/cat/more.jpg").write_bytes(b"no image")
    assert main(["append", "old", "p", "--workers", "1", "--skip-existing", "--strict"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("nothing new in old: 10 files the pack has already\n\nrejected: 1\n")
    assert ": cat/more.jpg\n" in out
    assert err.endswith("error: 1 sample left out, and --strict allows none\n\nhint: see the list above\n")


@pytest.mark.usefixtures("home")
def test_append_of_a_pack_says_that_it_is_referred_to(capsys: pytest.CaptureFixture[str]) -> None:
    pack("old", "q", PackOptions(workers=1))
    assert main(["append", "q", "p", "--prefix", "again"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("appended 10 samples to p, which has 20 samples now\n")
    assert "the new shards lie in q, which must stay where it is\n" in out
    assert out.endswith("\nnext: feedrate verify p\n")
    assert main(["verify", "p"]) == 0


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["split", "p", "train"], "'train' is not a part"),
        (["split", "p", "a=0.5", "a=0.5"], "part 'a' is given twice"),
        (["split", "p", "--file", "val.txt"], "'val.txt' names no list"),
        (["split", "p", "--extend"], "p has no split 'split'"),
        (["split", "p", "a=0.5", "b=0.5", "--extend"], "give no others"),
        (["append", "new", "p", "--default", "age"], "'age' gives no value"),
        (["append", "p", "p"], "p is the source itself"),
        (["split", "nowhere", "a=0.5", "b=0.5"], "no pack at nowhere"),
        (["add-column", "p", "none.csv"], "cannot read the table none.csv"),
    ],
)
def test_mistakes_are_sentences(command: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 1
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("command", "written"),
    [
        ("split p train=80% rest=20%", "p"),
        ("add-column p t.csv", "p"),
        ("append new p --workers 1", "p"),
        ("index old i --workers 1", "i"),
        ("append q p --prefix q", "p"),
    ],
)
def test_every_command_that_writes_pack_json_gives_it_its_digest_also_of_a_pack_that_had_none(
    command: str, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path("p/pack.json").read_bytes()
    Path("p/pack.json").write_bytes(without_digest(text))
    pack("old", "q", PackOptions(workers=1))
    assert main(command.split()) == 0
    capsys.readouterr()
    assert b'\n "digest": "' in Path(written, "pack.json").read_bytes()
    assert main(["verify", written, "--workers", "1"]) == 0
    done = "indexed" if command.startswith("index") else "packed"
    assert capsys.readouterr().out.endswith(f"\ngood: every byte is as it was {done}\n")


MAPS = """
from pathlib import Path

Path("imported").touch()


def smaller(sample):
    return {"image": sample["image"].reduce(2)}


def same(sample):
    return {}
"""


@pytest.fixture
def mapped(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pack that was made with a map, whose module no process has imported since."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("change_maps.py").write_text(MAPS)
    assert main(["pack", "old", "mapped", "--map", "change_maps:smaller", "--workers", "1"]) == 0
    Path("imported").unlink()
    sys.modules.pop("change_maps")
    mapping._found.clear()
    yield home / "mapped"
    sys.modules.pop("change_maps", None)


@pytest.mark.usefixtures("mapped")
def test_append_imports_nothing_that_only_the_pack_names_and_says_what_to_type(
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    assert main(["append", "new", "mapped", "--workers", "1"]) == 1
    assert capsys.readouterr().err == (
        "appending new to mapped\n"
        "error: mapped was made with a function, change_maps:smaller, and code is not imported because a "
        "pack names it\n\n"
        "hint: if that is your code: feedrate append new mapped --map change_maps:smaller\n"
    )
    assert not Path("imported").exists()


@pytest.mark.usefixtures("mapped")
def test_append_with_the_map_that_the_pack_was_made_with_goes_through_it() -> None:
    assert main(["append", "new", "mapped", "--workers", "1", "--map", "change_maps:smaller"]) == 0
    assert len(Dataset("mapped")) == 20
    assert {Dataset("mapped", fields=("image",))[i].size for i in range(20)} == {(32, 24)}


@pytest.mark.usefixtures("mapped")
def test_append_with_another_function_of_the_same_module_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    assert main(["append", "new", "mapped", "--workers", "1", "--map", "change_maps:same"]) == 1
    assert "error: mapped was made with change_maps:smaller, not with change_maps:same\n" in (
        capsys.readouterr().err
    )
