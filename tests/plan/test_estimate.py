# SPDX-License-Identifier: Apache-2.0
"""One-line questions: what the answers are made of, and what is said where nothing can be measured."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feedrate.errors import NotFound, StorageError, UsageError
from feedrate.figures import ASSUMED, GIVEN, MEASURED, STORED, Figure
from feedrate.lab import copier
from feedrate.lab.store import NOT_SEEN
from feedrate.machine.memory import MemoryRoom
from feedrate.machine.results import StoreSpeed
from feedrate.model.ways import COPY_FILE_S
from feedrate.plan import estimate
from feedrate.plan.estimate import estimate_copy, estimate_epoch, estimate_memory, estimate_pack
from support.packs import write_images
from support.plans import make_node, make_store, make_survey, near

# One stream of 100 MB/s, eight at most; a file costs 10 ms, eight files at a time.
STORE = replace(
    make_store(),
    file_s=Figure.exactly(0.01),
    stream_bytes_per_s=Figure.exactly(1e8),
    total_bytes_per_s=Figure.exactly(8e8),
    files_per_s=Figure.exactly(1e5),
    stat_s=Figure.exactly(1e-9),
)

TARGET = replace(STORE, write_bytes_per_s=Figure.exactly(1e10), create_s=Figure.exactly(1e-6))


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Twenty files of 1,000 bytes to copy from, and an empty folder to copy to, both measured by decree."""
    (tmp_path / "nfs" / "a").mkdir(parents=True)
    (tmp_path / "scr").mkdir()
    for number in range(20):
        (tmp_path / "nfs" / "a" / f"{number}.jpg").write_bytes(b"x" * 1000)

    def measure_store(folder: str, files: Sequence[tuple[str, int]], **_: Any) -> StoreSpeed:
        assert files
        assert all(Path(path).stat().st_size == size for path, size in files)
        return replace(STORE, path=folder)

    monkeypatch.setattr(copier, "measure_store", measure_store)
    monkeypatch.setattr(copier, "try_copier", lambda *_, **__: None)
    monkeypatch.setattr(estimate, "find_scratch_speed", lambda *_: TARGET)
    monkeypatch.setattr(estimate.Neighbours, "describe", lambda _: "")
    return tmp_path / "nfs", tmp_path / "scr"


def ask(what: object, folders: tuple[Path, Path], **options: Any) -> Any:
    source = {"source": str(folders[0])} if not Path(str(what)).exists() else {}
    return estimate_copy(str(what), **{"target": str(folders[1]), **source, **options})


def test_a_size_is_copied_as_one_file_and_as_files_like_those_there(folders: tuple[Path, Path]) -> None:
    found = ask("10GB", folders)
    one, many = found.answers.values()
    assert list(found.answers) == ["as one file", f"in 10,000,000 files, as those of {folders[0]}"]
    assert one.value == pytest.approx(12.5, rel=0.2)  # eight streams of 100 MB/s
    assert many.value == pytest.approx(1e7 * (0.01 / 8 + COPY_FILE_S), rel=0.1)  # 10 ms, eight at a time


def test_a_number_of_files_is_taken_as_given(folders: tuple[Path, Path]) -> None:
    found = ask("100MB", folders, files=8000)
    assert list(found.answers) == [""]
    assert found.answers[""].value == pytest.approx(8000 * (0.01 / 8 + COPY_FILE_S), rel=0.1)
    assert found.figures["files"][0] == Figure.exactly(8000, GIVEN)


def test_an_answer_has_an_interval_also_where_every_figure_is_exact(folders: tuple[Path, Path]) -> None:
    answer = ask("100MB", folders, files=8000).answers[""]
    assert answer.low < answer.value < answer.high


def test_a_folder_is_counted_and_the_command_to_stage_it_named(folders: tuple[Path, Path]) -> None:
    found = ask(folders[0], folders)
    assert found.figures["files"][0].value == 20
    assert found.figures["a file"][0].value == 1000
    assert found.commands == (f"feedrate stage {folders[0]} --scratch {folders[1]}",)


def test_a_single_file_is_copied_as_it_is(folders: tuple[Path, Path]) -> None:
    found = ask(folders[0] / "a" / "3.jpg", folders)
    assert found.figures["files"][0] == Figure.exactly(1)


@pytest.mark.parametrize("text", ["100", "1.5", " 7 "])
def test_a_size_without_unit_is_told_what_to_write(text: str, folders: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match=f"'{text.strip()}' has no unit") as raised:
        ask(text, folders)
    assert raised.value.hint == f"write {text.strip()}GB, {text.strip()}MB or {text.strip()}TB"


def test_what_is_neither_a_size_nor_a_path_is_said_with_a_neighbour(folders: tuple[Path, Path]) -> None:
    with pytest.raises(NotFound, match="is neither a size nor a path that is there") as raised:
        estimate_copy(str(folders[0].parent / "nfss"), target=str(folders[1]))
    assert "holds 'nfs'. Did you mean that?" in str(raised.value.hint)


@pytest.mark.parametrize("missing", ["source", "target"])
def test_a_folder_that_is_not_there_is_named(missing: str, folders: tuple[Path, Path]) -> None:
    wrong = str(folders[0].parent / "scrr")
    with pytest.raises(NotFound, match=f"there is no {wrong}") as raised:
        ask("1GB", folders, **{missing: wrong})
    assert "'scr'" in str(raised.value.hint)


def test_a_size_from_nowhere_asks_where_from(folders: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="where are the 1GB copied from"):
        estimate_copy("1GB", target=str(folders[1]))


@pytest.mark.parametrize("option", [{"source": "/"}, {"files": 3}])
def test_a_path_brings_its_own_place_and_files(option: dict[str, Any], folders: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="goes with a size"):
        ask(folders[0], folders, **option)


def test_where_nothing_can_be_read_the_command_that_measures_is_named(folders: tuple[Path, Path]) -> None:
    empty = folders[1]
    with pytest.raises(StorageError, match="there is no file to read in") as raised:
        ask("1GB", folders, source=str(empty))
    assert f"feedrate bench machine --store {empty}" in str(raised.value.hint)
    assert list(empty.iterdir()) == []


def test_where_nothing_can_be_read_stored_numbers_are_used(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stored(value: float) -> Figure:
        return Figure.exactly(value, STORED, "2026-11-02")

    known = replace(STORE, file_s=stored(0.01), write_bytes_per_s=stored(1e9), create_s=stored(1e-5))
    monkeypatch.setattr(estimate, "find_store", lambda *_: known)
    monkeypatch.setattr(estimate, "note_age", lambda _: ("old",))
    found = ask("1GB", folders, source=str(folders[1]), numbers=object(), files=1000)
    assert found.answers[""].origin == STORED
    assert found.figures["opening a file"][0].note == "2026-11-02"
    assert found.notes == ("old",)


def test_a_target_that_cannot_be_written_to_is_another_to(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("cannot write there", hint="--scratch DIR")

    monkeypatch.setattr(estimate, "find_scratch_speed", refuse)
    with pytest.raises(StorageError, match="cannot write there") as raised:
        ask("1GB", folders)
    assert "--to DIR" in str(raised.value.hint)


def test_more_than_the_target_has_room_for_is_said(folders: tuple[Path, Path]) -> None:
    assert "it does not fit: " in ask("900PB", folders).notes[0]


def test_a_copy_to_memory_is_held_against_what_the_job_has_of_it(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shm = replace(estimate.describe_storage(folders[1]), is_memory=True)
    monkeypatch.setattr(estimate, "describe_storage", lambda _: shm)
    room = MemoryRoom(free_bytes=8 << 30, unwritten_bytes=0, limit_bytes=10 << 30)
    monkeypatch.setattr(estimate.MemoryGauge, "measure", lambda _: room)
    note = ask("7GB", folders).notes[0]
    assert note == f"it does not fit: {folders[1]} is memory, of which a copy may take 5.37 GB here"


def test_files_that_were_in_memory_say_nothing_of_the_disk(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask("1GB", folders).notes == ()
    unseen = replace(STORE, file_s=near(0.01, ASSUMED, NOT_SEEN, factor=5.0))
    monkeypatch.setattr(copier, "measure_store", lambda *_, **__: unseen)
    found = ask("1GB", folders, files=100_000)
    assert f"{NOT_SEEN}: {folders[0]}" in found.notes
    assert found.answers[""].origin == ASSUMED
    assert found.answers[""].high > 3 * found.answers[""].value


def test_files_like_those_that_are_there_take_what_the_copier_took(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "try_copier", lambda *_, **__: Figure.exactly(1e5))
    alone, many = ask("1GB", folders).answers.values()
    assert many.value == pytest.approx(1e9 / 1e5 + 1e6 * COPY_FILE_S, rel=0.01)
    assert alone.value < 20
    assert ask(folders[0], folders).figures["copying such files"][0].value == 1e5


def test_a_copy_that_was_asked_for_on_a_busy_machine_says_so(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = ask("1GB", folders, files=1).answers[""]
    busy = "other processes took 1.5 of 2 cores meanwhile"
    monkeypatch.setattr(estimate.Neighbours, "describe", lambda _: busy)
    found = ask("1GB", folders, files=1)
    assert busy in found.notes
    assert (found.answers[""].origin, found.answers[""].low < 0.6 * quiet.low) == (ASSUMED, True)


@pytest.fixture
def surveyed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("survey_dataset", "measure_sizes"):
        monkeypatch.setattr(estimate, name, lambda dataset, **_: make_survey(dataset=dataset))
    monkeypatch.setattr(estimate, "describe_node", lambda *_, **__: make_node())
    monkeypatch.setattr(estimate, "measure_memory", lambda: (Figure.exactly(200e9), "this Slurm job's --mem"))


@pytest.mark.usefixtures("surveyed")
def test_an_epoch_is_answered_in_place_from_a_pack_and_for_the_device_alone() -> None:
    answers = estimate_epoch("/data", model="resnet50").answers
    assert answers["the device alone"].value == pytest.approx(1_281_167 / 1400)
    assert answers["the device alone"].origin == ASSUMED
    in_place = next(one for name, one in answers.items() if name.startswith("read in place, 4 workers"))
    assert in_place.value > next(one for name, one in answers.items() if "from a pack" in name).value


@pytest.mark.usefixtures("surveyed")
def test_the_device_alone_is_left_out_where_its_rate_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "describe_node", lambda *_, **__: make_node(model_rate=None))
    found = estimate_epoch("/data")
    assert "the device alone" not in found.answers
    assert any("--model-rate" in note for note in found.notes)


def test_what_pillow_is_taken_to_need_stands_among_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "survey_dataset", lambda *_, **__: make_survey(pillow_s=None))
    monkeypatch.setattr(estimate, "describe_node", lambda *_, **__: make_node())
    pillow, _ = estimate_epoch("/data").figures["decoding with Pillow, a core"]
    assert (pillow.value, pillow.origin) == (pytest.approx(6 * 0.0019), ASSUMED)


@pytest.mark.usefixtures("surveyed")
def test_packing_is_one_answer_with_the_command() -> None:
    found = estimate_pack("/data")
    assert found.answers[""].origin == MEASURED
    assert found.commands[0].startswith("feedrate pack /data ")


def test_a_pack_is_not_packed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "survey_dataset", lambda *_, **__: make_survey(kind="pack"))
    monkeypatch.setattr(estimate, "describe_node", lambda *_, **__: make_node())
    with pytest.raises(UsageError, match="p is a pack already"):
        estimate_pack("p")


@pytest.mark.usefixtures("surveyed")
@pytest.mark.parametrize(
    ("decoded", "size", "said"),
    [(False, 138e9, "it fits: "), (True, 1_281_167 * 562_500, "it does not fit: ")],
)
def test_memory_is_held_against_the_limit_of_the_job(decoded: bool, size: float, said: str) -> None:
    found = estimate_memory("/data", decoded=decoded)
    assert found.answers[""].value == pytest.approx(size)
    assert found.notes[0].startswith(said)
    most = found.answers[""].high
    assert found.commands == (f"sbatch --mem={math.ceil((most + 2e9) / 0.9 / 1e9)}G ...",)


@pytest.mark.usefixtures("surveyed")
def test_memory_that_may_just_be_enough_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "measure_memory", lambda: (near(155e9), "the machine's memory"))
    assert estimate_memory("/data").notes[0].startswith("it may fit, barely: ")


def test_a_copy_is_said_to_be_one_of_stage_with_eight_files_at_a_time(folders: tuple[Path, Path]) -> None:
    source, target = folders
    found = estimate_copy("1GB", source=str(source), target=str(target), seconds=1.0)
    assert "by 'feedrate stage', 8 files at a time" in found.question


def test_what_memory_a_dataset_takes_is_answered_without_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "photos", 6)
    # Whatever times decoding runs in a process of its own.
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("something was tried"))
    for decoded in (False, True):
        found = estimate_memory(str(tmp_path / "photos"), decoded=decoded, seconds=1.0)
        assert found.answers[""].value > 0
