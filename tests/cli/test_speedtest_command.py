# SPDX-License-Identifier: Apache-2.0
"""`feedrate speedtest` on the command line: the table, the JSON, the temporary folder, the mistakes."""

from __future__ import annotations

import io
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feedrate.bench.results import SpeedtestResult, Subset
from feedrate.cli import main
from feedrate.progress import Tick
from feedrate.report.progress import TimeBar
from feedrate.report.speedtest import draw_speedtest
from support.bench_results import load_speedtest_result, make_speedtest_result
from support.images import save_image
from support.paths import ROOT

pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    for number in range(6):
        save_image(tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.jpg", number)
    return tmp_path / "photos"


class FakeTest:
    def __init__(self) -> None:
        self.files, self.subset, self.options = 0, Subset(0, 0, 0, 0), None

    def __call__(self, files: str, pack: str, subset: Subset, options: Any, **_: Any) -> SpeedtestResult:
        assert (Path(pack) / "pack.json").exists()
        self.files, self.subset, self.options = len(list(Path(files).rglob("*.jpg"))), subset, options
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(Path(files).parent))
        return make_speedtest_result()


def run(monkeypatch: pytest.MonkeyPatch, test: object, *words: str) -> int:
    monkeypatch.setattr("feedrate.bench.speedtest.run_speedtest", test)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    return main(["speedtest", *words])


def what_is_left(photos: Path) -> list[str]:
    return os.listdir(photos.parent / "temporary")


def test_the_table_shows_both_loaders_and_ends_with_what_to_type(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FakeTest(), str(photos)) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[:8] == [
        "device Fast GPU (cuda)",
        "model densenet121, bfloat16, batches of 128, 224 x 224 pixels",
        "images 2,000 images of 10 labels, 220 MB, drawn from the 1,281,167 images of photos",
        "device alone 2,000 images/s (1,990-2,010), batches on it already",
        "loaders 16 workers or threads each, files in the page cache",
        "storage 3,000 images/s to 16 readers, files as they were found, 25% in the page cache",
        "measured just now, all of it, in 1 min 40 s",
        "note: Fast GPU is here",
    ]
    assert "images/s trained 400 (390-410) 1,600 (1,590-1,610) 4.00x" in lines
    assert "images/s, loader alone 420 1,800" in lines
    assert "waiting for data 80% 10%" in lines
    assert "copy to the device 1% while it computes" in lines
    assert "computing 19% 90%" in lines
    assert "CPU time in total 20.0 s 18.0 s" in lines
    assert "device time in total 2.00 s 9.00 s" in lines
    assert "GPU utilisation 22% 95%" in lines
    assert "GPU power 150 W 600 W" in lines
    assert "loading by DataLoader + Pillow: read 5%, decode 70%, crop, resize, flip 25%" in lines
    assert "loading by feedrate: index 2%, read and decode 98%; 50% of the images on the GPU" in lines
    assert out.endswith(
        "With DataLoader + Pillow the CPU is the limit.\n"
        "Pack the dataset once:\n"
        "  feedrate pack photos PACK\n"
    )


def test_without_a_gpu_nothing_is_said_of_its_power() -> None:
    result = make_speedtest_result()
    bare = {
        name: replace(getattr(result, name), utilisation=None, power_w=None) for name in ("before", "after")
    }
    out = draw_speedtest(replace(result, device_kind="cpu", source=None, **bare), width=80)
    assert "GPU" not in out.replace("Fast GPU", "").replace("on the GPU", "")
    assert "made here" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_dataset_is_copied_and_packed_and_nothing_is_left(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = FakeTest()
    assert run(monkeypatch, test, str(photos), "--model", "resnet18", "--workers", "1") == 0
    assert (test.files, test.subset.images, test.subset.labels) == (6, 6, 2)
    assert what_is_left(photos) == []
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_images_that_cannot_be_packed_are_kept_from_the_other_loader(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "cat" / "broken.jpg").write_bytes(b"no image")
    test = FakeTest()
    assert run(monkeypatch, test, str(photos)) == 0
    assert (test.files, test.subset.images) == (6, 6)


def test_without_a_dataset_images_are_made(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedrate.cli.speedtest._QUICK_IMAGES", 10)
    test = FakeTest()
    assert run(monkeypatch, test, "--quick") == 0
    assert (test.files, test.subset.images, test.subset.labels) == (10, 10, 10)
    assert test.subset.read_images_per_s is None
    assert what_is_left(photos) == []


def test_quick_is_under_a_minute(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, seconds in ((["--quick"], 45), ([], 110), (["--quick", "--seconds", "30"], 30)):
        test = FakeTest()
        assert run(monkeypatch, test, str(photos), *words) == 0
        assert test.options is not None
        assert test.options.seconds == seconds


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "resnet51"], "error: there is no model 'resnet51'"),
        (["--device", "gpu"], "error: --device must be cpu, cuda or cuda:N, got 'gpu'"),
        (["--seconds", "3"], "error: --seconds must be at least 15, got 3"),
        (["/no/such/folder"], "error: no dataset at /no/such/folder"),
    ],
)
def test_mistakes_are_a_sentence(
    words: list[str],
    message: str,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, FakeTest(), *words) == 1
    assert message in capsys.readouterr().err
    assert what_is_left(photos) == []


def test_a_dataset_whose_images_are_all_broken_is_named(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in photos.rglob("*.jpg"):
        path.write_bytes(b"no image")
    assert run(monkeypatch, FakeTest(), str(photos)) == 1
    assert f"error: no image of {photos} can be decoded (" in capsys.readouterr().err
    assert what_is_left(photos) == []


def test_a_temporary_folder_that_cannot_be_made_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    assert run(monkeypatch, FakeTest()) == 1
    assert "hint: set TMPDIR to a folder that you may write to" in capsys.readouterr().err


def test_without_torch_the_line_to_type_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["speedtest"]) == 1
    assert capsys.readouterr().err == (
        "error: the speed test trains a model, so it needs torch, which is not installed\n"
        "\nhint: pip install 'feedrate[torch]'\n"
    )


def test_ctrl_c_leaves_nothing(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    assert run(monkeypatch, interrupt, str(photos)) == 130
    assert what_is_left(photos) == []


@pytest.mark.usefixtures("hears_sighup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_scheduler_or_a_closing_terminal_leaves_nothing(
    number: signal.Signals, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, lambda *_, **__: signal.raise_signal(number), str(photos))
    assert caught.value.code == 128 + number
    assert what_is_left(photos) == []


def test_the_result_goes_to_standard_output_as_json(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FakeTest(), str(photos), "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "speedtest"
    assert document["before"]["limit"] == "cpu"
    assert document["next_command"] == "feedrate pack photos PACK"
    assert document["device_alone"]["images_per_s"] == 2000.0


def test_progress_in_a_file_is_one_line_for_each_thing_that_is_done() -> None:
    stream = io.StringIO()
    with TimeBar(stream) as bar:
        for stage, second in (("training with A", 1), ("training with A", 2), ("training with B", 3)):
            bar.update(Tick(stage, second, 110, unit="second"))
    assert stream.getvalue() == "training with A\ntraining with B\n"
    assert bar.describe(Tick("", 3, 110, unit="second")) == "3 s of 110 s"


def test_the_example_in_the_documents_is_drawn_from_the_committed_result() -> None:
    result = json.loads((ROOT / "benchmarks" / "results" / "speedtest-h200.json").read_text())
    drawn = draw_speedtest(load_speedtest_result(result), width=100)
    assert f"```text\n{drawn}```" in (ROOT / "docs" / "speedtest.md").read_text()
