# SPDX-License-Identifier: Apache-2.0
"""What a dataset is, from a sample of it: each kind of dataset, and each kind of bad input, in a sentence."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tarfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from feedrate import PackOptions, index, pack
from feedrate.errors import FeedrateError, NotFound, SourceError, StorageError
from feedrate.figures import Figure
from feedrate.lab import copier, samples, store
from feedrate.lab import trial as loader_trial
from feedrate.machine.disk import describe_storage
from feedrate.plan import contents, survey
from feedrate.plan.contents import _estimate_samples, _Looked
from feedrate.plan.results import Survey
from feedrate.plan.survey import _find_factor, survey_dataset
from support.images import save_image
from support.range_server import serve

COSTS = samples.Costs(Figure.exactly(2e-3), Figure.exactly(4e-4), 3.5, 3.9, Figure.exactly(6e-4))


@pytest.fixture
def real_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What samples cost is measured, for a moment."""
    for name in ("_DRAIN_S", "_ALONE_S", "_WINDOW_S"):
        monkeypatch.setattr(loader_trial, name, 0.01)
    for name in ("_ALONE_S", "_TOGETHER_S", "_PACK_S"):
        monkeypatch.setattr(samples, name, 0.02)


@pytest.fixture(autouse=True)
def _no_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey.Neighbours, "describe", lambda _: "")
    if "real_costs" not in request.fixturenames:
        monkeypatch.setattr(survey, "measure_costs", lambda *_, **__: COSTS)


def look(dataset: Path | str) -> Survey:
    return survey_dataset(str(dataset), seconds=0.5, say=lambda _: None)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty images in three class folders: 64 x 48, or 32 x 32."""
    top = tmp_path_factory.mktemp("images")
    for number in range(30):
        sides = {"width": 32, "height": 32} if number % 3 == 2 else {}
        save_image(top / "abc"[number % 3] / f"{number}.jpg", number, **sides)
    return top


def sum_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.jpg"))


def test_a_small_folder_is_known_exactly(images: Path) -> None:
    found = look(images)
    notes = (f"{store.NOT_SEEN}, and its figures are assumed",)
    assert (found.kind, found.is_partial, found.notes) == ("folders", False, notes)
    assert (found.samples.low, found.samples.value, found.samples.high) == (30, 30, 30)
    assert (found.files.value, found.folders.value) == (30, 4)
    assert found.total_bytes.value == pytest.approx(sum_bytes(images))
    assert found.total_bytes.low == found.total_bytes.high
    assert found.formats == {"jpeg": 1.0}
    assert (found.width, found.height) == (64, 48)
    decoded = 20 * 64 * 48 * 3 + 10 * 32 * 32 * 3
    assert found.decoded_bytes.value == pytest.approx(decoded / 30)
    assert found.factor.value == pytest.approx(decoded / sum_bytes(images))
    assert found.samples.origin == "measured"


@pytest.mark.usefixtures("real_costs")
def test_what_an_image_costs_is_measured_for_pillow_for_a_loader_and_for_packing(images: Path) -> None:
    found = look(images)
    assert found.pillow_s is not None
    assert found.feedrate_s is not None
    assert found.pillow_s.low < found.pillow_s.value < found.pillow_s.high
    assert 0 < found.feedrate_s.value < 0.1
    assert 0 < found.pack_s.value < 0.1
    assert found.pillow_cores >= 1
    assert found.feedrate_cores >= 1


def test_a_pack_tells_by_its_index_what_its_folder_told(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "pack", PackOptions())
    found = look(tmp_path / "pack")
    assert (found.kind, found.samples.value, found.files.value) == ("pack", 30, 1)
    assert found.sample_bytes.value == pytest.approx(sum_bytes(images) / 30)
    assert found.total_bytes.value == (tmp_path / "pack" / "shard-00000.tar").stat().st_size
    assert (found.width, found.height) == (64, 48)


def write_tars(images: Path, folder: Path, count: int) -> Path:
    folder.mkdir()
    for number in range(count):
        with tarfile.open(folder / f"part-{number:02d}.tar", "w") as archive:
            archive.add(images, "images")
    return folder


def test_of_many_tars_some_are_looked_through(images: Path, tmp_path: Path) -> None:
    found = look(write_tars(images, tmp_path / "tars", 12))
    assert (found.kind, found.files.value, found.is_partial) == ("tar", 12, True)
    assert found.samples.low < 360 < found.samples.high
    assert "8 of 12 files" in found.how


@pytest.mark.parametrize("pattern", ["part-*.tar", "part-{00..01}.tar"])
def test_tars_are_named_by_a_pattern(images: Path, tmp_path: Path, pattern: str) -> None:
    found = look(f"{write_tars(images, tmp_path / 'tars', 2)}/{pattern}")
    assert (found.kind, found.samples.low, found.samples.high, found.is_partial) == ("tar", 60, 60, False)


def test_an_index_is_surveyed_as_what_it_is(images: Path, tmp_path: Path) -> None:
    tars = write_tars(images, tmp_path / "tars", 1)
    index(tars / "part-00.tar", tmp_path / "index")
    found = look(tmp_path / "index")
    assert (found.kind, found.samples.value) == ("index", 30)
    assert found.factor.value > 1


@pytest.mark.usefixtures("real_costs")
def test_samples_without_images_have_no_cost_of_decoding(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "arrays.tar", "w") as archive:
        for number in range(20):
            np.save(tmp_path / "x.npy", np.full(500, number))
            archive.add(tmp_path / "x.npy", f"{number:04d}.npy")
            (tmp_path / "x.json").write_text("{}")
            archive.add(tmp_path / "x.json", f"{number:04d}.json")
    found = look(tmp_path / "arrays.tar")
    assert (found.pillow_s, found.feedrate_s, found.factor.value) == (None, None, 1.0)
    assert found.samples.value == 20
    assert any("no images" in note for note in found.notes)


def test_damaged_and_empty_images_and_links_to_nothing_are_noted(tmp_path: Path) -> None:
    for number in range(6):
        save_image(tmp_path / f"{number}.jpg", number)
    (tmp_path / "noise.jpg").write_bytes(random.Random(0).randbytes(3000))
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "lost.jpg").symlink_to("nowhere")
    found = look(tmp_path)
    assert found.samples.value == 9
    assert any("1 of 9 files looked at cannot be read" in note for note in found.notes)
    assert any("2 of 8 samples that were read cannot be used" in note for note in found.notes)


def test_a_file_that_is_not_what_its_suffix_says_counts_as_what_it_is(tmp_path: Path) -> None:
    for number in range(4):
        save_image(tmp_path / f"{number}.png", number).rename(tmp_path / f"{number}.jpg")
    assert look(tmp_path).formats == {"png": 1.0}


def test_a_pack_behind_an_address_is_surveyed_from_there(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "pack", PackOptions())
    with serve(tmp_path) as server:
        found = look(f"{server.url}/pack")
    assert (found.kind, found.samples.value, found.source.kind) == ("pack", 30, "http")
    assert found.sample_bytes.value == pytest.approx(sum_bytes(images) / 30)
    assert found.source.file_s.value > 0
    assert found.resident is None


def test_tars_behind_an_address_are_surveyed_from_there(images: Path, tmp_path: Path) -> None:
    write_tars(images, tmp_path / "tars", 2)
    with serve(tmp_path) as server:
        found = look(f"{server.url}/tars/part-{{00..01}}.tar")
    assert (found.kind, found.samples.value, found.files.value) == ("tar", 60, 2)


def test_an_address_with_neither_is_refused(tmp_path: Path) -> None:
    with serve(tmp_path) as server, pytest.raises(FeedrateError, match="no dataset at http"):
        look(f"{server.url}/nothing")


def make_bad(kind: str, top: Path) -> tuple[type[FeedrateError], str]:
    """Make something that is no dataset; return the error and its words."""
    if kind == "empty folder":
        top.mkdir()
        return SourceError, "no images in .*bad"
    if kind == "arrays":
        top.mkdir()
        (top / "a.npy").touch()
        return SourceError, "no images in .*bad"
    if kind == "broken link":
        top.symlink_to("nowhere")
        return NotFound, "bad is a link to nowhere, which is not there"
    if kind == "one image":
        save_image(top.with_suffix(".jpg"), 0).rename(top)
        return SourceError, "cannot tell what .*bad is"
    if kind == "text":
        top.write_text("hello")
        return SourceError, "cannot tell what .*bad is"
    if kind == "noise":
        top.mkdir()
        (top / "a.jpg").write_bytes(b"noise")
        return SourceError, "none of the 1 image of .*bad that were looked at can be used"
    if kind == "empty images":
        top.mkdir()
        (top / "a.jpg").touch()
        (top / "b.jpg").symlink_to("nowhere")
        return SourceError, "none of the 2 images of .*bad that were looked at holds anything"
    if kind == "several kinds":
        top.mkdir()
        (top / "a.tar").touch()
        (top / "a.zip").touch()
        return SourceError, "files of several kinds"
    return NotFound, "no dataset at .*bad"


@pytest.mark.parametrize(
    "kind",
    [
        "nothing",
        "empty folder",
        "empty images",
        "arrays",
        "broken link",
        "one image",
        "text",
        "noise",
        "several kinds",
    ],
)
def test_what_is_no_dataset_is_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    error, words = make_bad(kind, tmp_path / "bad")
    with pytest.raises(error, match=words):
        look(tmp_path / "bad")


def test_a_folder_without_images_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "a.npy").touch()
    with pytest.raises(SourceError) as error:
        look(tmp_path)
    assert error.value.hint is not None
    assert error.value.hint.startswith("it holds other files: 1 with .npy; ")
    assert "feedrate.cached" in error.value.hint


def test_a_mount_that_hangs_is_an_error_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    forever = threading.Event()
    monkeypatch.setattr(survey, "_HANG_S", 0.05)
    monkeypatch.setattr(survey, "sample_dataset", lambda *_, **__: forever.wait())
    try:
        with pytest.raises(StorageError, match="did not answer"):
            look(tmp_path)
    finally:
        forever.set()


def test_the_interval_of_a_count_from_some_files_holds_the_truth_nine_times_of_ten() -> None:
    draw = random.Random(0)
    hits = 0
    for _ in range(200):
        shards = [(draw.randint(800, 1200), draw.gauss(1, 0.05)) for _ in range(100)]
        sizes = [int(samples * each * 1e5) for samples, each in shards]
        chosen = draw.sample(range(100), 8)
        looked = [_Looked(shards[i][0], sizes[i], True, [], [], True, "") for i in chosen]
        figure, is_whole = _estimate_samples(looked, 100, sum(sizes))
        assert not is_whole
        hits += figure.low <= sum(samples for samples, _ in shards) <= figure.high
    assert hits >= 180


def test_the_interval_of_the_factor_holds_the_truth_nine_times_of_ten() -> None:
    draw = random.Random(0)
    hits = 0
    for _ in range(200):
        encoded = [draw.lognormvariate(11, 0.5) for _ in range(2000)]
        decoded = [size * draw.uniform(3, 9) for size in encoded]
        chosen = draw.sample(range(2000), 100)
        figure = _find_factor([decoded[i] for i in chosen], [encoded[i] for i in chosen], 2000)
        hits += figure.low <= sum(decoded) / sum(encoded) <= figure.high
    assert hits >= 180


@pytest.mark.usefixtures("real_costs")
def test_a_cache_that_cannot_be_tried_leaves_the_rest_of_the_survey(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def try_cache(*_: object) -> tuple[float, float]:
        raise MemoryError

    monkeypatch.setattr("feedrate.lab.trial.try_cache", try_cache)
    found = look(images)
    assert (found.whole_s, found.cached_s) == (None, None)
    assert found.feedrate_s is not None


@pytest.mark.usefixtures("real_costs")
def test_pillow_that_cannot_be_tried_is_noted(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [sys.executable, "-c", "raise SystemExit('no Pillow here')"]
    monkeypatch.setattr("feedrate.lab.child.isolated_command", lambda *_, **__: failing)
    found = look(images)
    assert found.pillow_s is None
    assert found.pillow_cores == found.feedrate_cores  # else its guessed time would be that of one core
    assert "Pillow could not be tried, and is taken to be six times slower: no Pillow here" in found.notes


@pytest.mark.usefixtures("real_costs")
def test_cores_help_a_loader_that_cannot_be_tried_as_they_help_pillow(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedrate.lab.trial.try_loader", lambda *_: (None, "it failed"))
    found = look(images)
    assert found.feedrate_s is None
    assert found.feedrate_cores == found.pillow_cores


def test_residency_is_looked_for_before_anything_is_read(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(contents, "_find_resident", lambda _: order.append("resident") or 0.25)
    monkeypatch.setattr(
        copier, "measure_store", lambda *a, **k: order.append("store") or store_speed(*a, **k)
    )
    store_speed = store.measure_store
    assert look(images).resident == 0.25
    assert order == ["resident", "store"]


@pytest.mark.usefixtures("real_costs")
def test_figures_say_that_they_were_measured(images: Path) -> None:
    found = look(images)
    figures = [value for name in found.__slots__ if isinstance(value := getattr(found, name), Figure)]
    assert len(figures) > 8
    assert {figure.origin for figure in figures} == {"measured"}


def test_files_are_timed_whose_names_nobody_asked_for_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(240):
        (tmp_path / f"{number}.jpg").write_bytes(bytes(100 + number))
    asked: list[str] = []
    ask = contents.ask_size
    monkeypatch.setattr(contents, "ask_size", lambda path: (asked.append(path), ask(path))[1])
    sampled = contents.sample_dataset(str(tmp_path), str(tmp_path / "scratch"), seconds=0.5)
    timed = [path for path, _ in sampled.timed]
    assert len(asked) == 120
    assert not {*timed, *sampled.waited} & set(asked)
    assert not set(timed) & set(sampled.waited)


def test_of_few_files_all_are_asked_for_their_size_and_timed(images: Path, tmp_path: Path) -> None:
    sampled = contents.sample_dataset(str(images), str(tmp_path), seconds=0.5)
    paths = [path for path, _ in sampled.timed]
    assert (sampled.is_all, len({*paths, *sampled.waited, *sampled.copied})) == (True, 30)


def test_files_in_memory_tell_nothing_of_reading(images: Path) -> None:
    paths = [str(path) for path in images.rglob("*.jpg")]
    for path in paths:
        Path(path).read_bytes()
    assert samples._decode_lying(paths, 32) == {"waits": [], "more": []}


@pytest.mark.usefixtures("real_costs")
def test_what_a_file_costs_that_is_not_in_memory(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = iter((1.0, 1.6))
    monkeypatch.setattr("feedrate.lab.store.measure_servers", lambda: next(served))
    on_fuse = replace(describe_storage(images), is_fuse=True)
    monkeypatch.setattr("feedrate.machine.disk.describe_storage", lambda _: on_fuse)
    found = samples.PillowTimes(alone={"0": [1.0]}, waits=[0.2, 0.3, 0.1], more=[0.01, 0.03])
    monkeypatch.setattr("feedrate.lab.child.run_in_process", lambda *_, **__: (asdict(found), 0))
    paths = [str(path) for path in images.rglob("*.jpg")]
    several = [(".jpg", Path(path).read_bytes()) for path in paths]
    costs = samples.measure_costs(several, has_images=True, total=30, side=32, lying=paths, workers=2)
    assert costs.server_s == pytest.approx(0.2)
    assert costs.pillow_wait_s is not None
    assert costs.pillow_read_s is not None
    waited = costs.pillow_wait_s.value, costs.pillow_read_s.value, costs.pillow_wait_s.note
    assert waited == (pytest.approx(0.2), pytest.approx(0.02), "3 files, 2 at a time")


def test_files_where_they_lie_are_decoded_by_as_many_as_are_wanted(images: Path, tmp_path: Path) -> None:
    paths = [str(path) for path in images.rglob("*.jpg")]
    folder = tmp_path / "numbered"
    folder.mkdir()
    (folder / "0.jpg").write_bytes(Path(paths[0]).read_bytes())
    arguments = (str(folder), 1, 32, paths, 3, 0.02, 0.02)
    done = subprocess.run(
        [sys.executable, "-c", COLD.format(arguments=arguments)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["27", "27"]  # the first of each reader loads what Pillow needs


COLD = """
from feedrate.machine import memory
memory.measure_open_residency = lambda *_: 0.0
from feedrate.lab.samples import try_pillow
found = try_pillow(*{arguments!r})
print(len(found["waits"]), len(found["more"]))
"""

KILLED = """
import os, signal, sys
from feedrate.lab import samples

def end(folder, *_):
    os.write(3, folder.encode())
    os.kill(os.getpid(), signal.SIGKILL)

samples._measure_packing = end
os.dup2(1, 3)
from feedrate.cli import main
main(["plan", sys.argv[1]])
"""


def test_files_that_a_killed_plan_left_in_memory_go_with_the_next_one(tmp_path: Path) -> None:
    save_image(tmp_path / "photos" / "cat" / "one.jpg", 1)
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "photos"], stdout=subprocess.PIPE)
    assert killed.returncode == -signal.SIGKILL
    left = Path(os.fsdecode(killed.stdout))
    assert [path.name for path in left.iterdir()] == ["0.jpg"]
    with samples._in_memory([]):
        assert not left.exists()
