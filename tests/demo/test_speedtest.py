# SPDX-License-Identifier: Apache-2.0
"""`speedtest`: which command the doctor gets, what the totals are, and the script itself for a few steps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feedrate import PackOptions, pack
from feedrate.demo import speedtest
from feedrate.demo.speedtest import SpeedOptions, run_speedtest, sum_up
from feedrate.doctor.analyse.readings import READINGS
from feedrate.doctor.options import DoctorOptions
from feedrate.doctor.results import Curve, Diagnosis
from feedrate.errors import DoctorError, NotFound, StorageError, UsageError
from support.diagnoses import make_decode_bound
from support.images import save_image


class FakeDoctor:
    """Takes note of what it would examine."""

    def __init__(self) -> None:
        self.command: list[str] = []
        self.options = DoctorOptions()
        self.images = 0

    def __call__(self, command: Sequence[str], options: DoctorOptions, **_: Any) -> Diagnosis:
        self.command, self.options = list(command), options
        self.images = len(list(Path(command[2]).rglob("*.jpg")))
        return make_decode_bound()


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeDoctor:
    fake = FakeDoctor()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(speedtest, "examine", fake)
    return fake


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speed") / "photos"
    for number in range(6):
        save_image(folder / ("cat", "dog")[number % 2] / f"{number}.jpg", number)
    pack(folder, folder.parent / "pack", PackOptions())
    return folder


def try_speed(source: Path | None, options: SpeedOptions | None = None) -> Any:
    told: list[str] = []
    options = options or SpeedOptions()
    return run_speedtest(source and str(source), options, say=told.append, watch=told.append)


def test_the_doctor_gets_the_script_the_dataset_and_what_the_user_said(
    doctor: FakeDoctor, photos: Path
) -> None:
    result = try_speed(photos, SpeedOptions("resnet18", 4, 32, "cpu", 1))
    python, script, data, *words = doctor.command
    assert (python, data) == (sys.executable, str(photos))
    assert Path(script).is_file()
    assert " ".join(words).startswith(
        "--model resnet18 --device cpu --batch-size 4 --side 32 --workers 1 --temporary "
    )
    assert (result.source, result.model) == (str(photos), "resnet18")
    assert os.listdir(photos.parents[0]) == ["photos", "pack"] or photos.exists()


def test_what_the_user_does_not_say_is_left_to_the_script(doctor: FakeDoctor, photos: Path) -> None:
    try_speed(photos)
    assert not {"--device", "--batch-size", "--side"} & set(doctor.command)


def test_quick_sees_fewer_steps(doctor: FakeDoctor, photos: Path) -> None:
    try_speed(photos)
    whole = doctor.options
    try_speed(photos, SpeedOptions(is_quick=True))
    assert doctor.options.steps < whole.steps
    assert doctor.options.seconds < whole.seconds


def test_without_a_dataset_images_are_made_and_nothing_is_left(
    doctor: FakeDoctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(speedtest, "QUICK_IMAGES", 10)
    assert try_speed(None, SpeedOptions(is_quick=True)).source is None
    assert doctor.images == 10
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.usefixtures("doctor")
def test_a_training_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> Diagnosis:
        raise DoctorError("the command ended", exit_code=7)

    monkeypatch.setattr(speedtest, "QUICK_IMAGES", 10)
    monkeypatch.setattr(speedtest, "examine", fail)
    with pytest.raises(DoctorError, match="the command ended"):
        try_speed(None, SpeedOptions(is_quick=True))
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.usefixtures("doctor")
def test_a_disk_that_is_full_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(speedtest, "write_photographs", fail)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        try_speed(None)
    assert caught.value.hint == "set TMPDIR to a folder with more room"


@pytest.mark.usefixtures("doctor")
def test_a_dataset_that_cannot_be_trained_on_as_it_is_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no dataset at /no/such/folder"):
        try_speed(Path("/no/such/folder"))
    archive = tmp_path / "some images.tar"
    archive.write_bytes(b"")
    for source in (archive, tmp_path / "temporary"):
        with pytest.raises(UsageError, match=f"and {source} is neither") as caught:
            try_speed(source)
        assert caught.value.hint is not None
        assert "make a pack of it first: feedrate pack " in caught.value.hint


def test_a_pack_is_trained_on_as_it_is(doctor: FakeDoctor, photos: Path) -> None:
    try_speed(photos.parent / "pack")
    assert doctor.command[2] == str(photos.parent / "pack")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "gpu"}, "--device must be cpu, cuda or cuda:N, got 'gpu'"),
        ({"model": "resnet51"}, "there is no model 'resnet51'"),
        ({"model": "vit_b_16", "side": 100}, "multiple of 16"),
    ],
)
def test_options_that_make_no_sense_are_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        SpeedOptions(**options)


def test_totals_are_those_of_the_steps_that_were_seen() -> None:
    diagnosis = make_decode_bound()
    cores = Curve(READINGS["cores_ours"].curve, "cores", (), (), None, 2.0)
    result = sum_up(replace(diagnosis, curves=(cores,)), "photos", "resnet18")
    assert result.steps_s == pytest.approx(110 * 0.312)
    assert result.cpu_s == pytest.approx(2 * result.steps_s)
    assert result.device_s == pytest.approx(0.34 * result.steps_s)
    assert sum_up(diagnosis, "photos", "resnet18").cpu_s is None


@pytest.mark.parametrize("kind", ["photos", "pack"])
def test_the_script_trains_on_its_own_whatever_lies_in_the_working_folder(
    kind: str, photos: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "numpy.py").write_text("raise SystemExit('this is not numpy')")
    script = Path(speedtest.__file__).with_name("standard.py")
    # A step is enough; it would go on without end.
    code = (
        "import runpy, sys; sys.argv = sys.argv[1:]; import feedrate.lab.device as device\n"
        "device.Step.__call__ = lambda *_: sys.exit(7)\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    words = ["--model", "resnet18", "--device", "cpu", "--batch-size", "2", "--side", "32", "--workers", "1"]
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(script), str(photos.parent / kind), *words,
         "--temporary", str(tmp_path)],
        cwd=tmp_path, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
