# SPDX-License-Identifier: Apache-2.0
"""`feedrate bench loader` on the command line: the table, the JSON, the temporary folder."""

from __future__ import annotations

import dataclasses
import json
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest

from feedrate.bench.results import BenchResult
from feedrate.cli import main
from feedrate.demo.run import write_photographs
from feedrate.report.bench import draw_bench
from support.bench_results import make_bench_result

pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    write_photographs(tmp_path / "images", 10, seed=0)
    return tmp_path / "images"


class FakeBench:
    def __init__(self, result: BenchResult | None = None) -> None:
        self.result = result or make_bench_result()
        self.files: list[int] = []

    def __call__(self, files: str, pack: str, *_: Any, **__: Any) -> BenchResult:
        assert (Path(pack) / "pack.json").exists()
        self.files.append(len(list(Path(files).rglob("*.jpg"))))
        return self.result


def run(monkeypatch: pytest.MonkeyPatch, bench: object, *words: str) -> int:
    monkeypatch.setattr("feedrate.bench.loader.bench_loader", bench)
    return main(["bench", "loader", *words])


def test_the_table_shows_both_loaders_the_pixels_and_the_verdict(
    images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FakeBench(), str(images)) == 0
    captured = capsys.readouterr()
    lines = [" ".join(line.split()) for line in captured.out.splitlines()]
    assert "images/s quartiles CPU/image memory first batch" in lines
    assert "DataLoader + Pillow 400 390-410 4.00 ms 600 MB 500 ms" in lines
    assert "feedrate 1,600 1,590-1,610 1.00 ms 300 MB 250 ms" in lines
    assert "ratio 4.00x 0.25x 0.50x 0.50x" in lines
    assert "feedrate gives 4.00x the images per second of DataLoader + Pillow." in lines
    assert "the same but for rounding" in " ".join(lines)
    assert all(len(line) <= 80 for line in draw_bench(make_bench_result(), 80).splitlines())
    assert captured.err.startswith(f"packing {images} into ")


def test_a_folder_is_packed_for_the_run_and_nothing_is_left(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = FakeBench()
    assert run(monkeypatch, bench, str(images)) == 0
    assert bench.files == [10]
    assert list((images.parent / "temporary").iterdir()) == []


def test_a_pack_is_unpacked_for_the_run_and_nothing_is_left(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["pack", str(images), str(images.parent / "pack")]) == 0
    bench = FakeBench()
    assert run(monkeypatch, bench, str(images.parent / "pack")) == 0
    assert bench.files == [10]
    assert list((images.parent / "temporary").iterdir()) == []


def test_files_that_cannot_be_packed_are_kept_from_the_other_loader(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (images / "cold-disc" / "broken.jpg").write_bytes(b"no image")
    bench = FakeBench()
    assert run(monkeypatch, bench, str(images)) == 0
    assert bench.files == [10]


@pytest.mark.parametrize("is_folder", [True, False], ids=["folder", "file"])
def test_images_in_an_archive_are_unpacked_for_the_other_loader(
    is_folder: bool, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = images.parent / "shards"
    shards.mkdir()
    with tarfile.open(shards / "train.tar", "w") as tar:
        tar.add(images, ".")
    bench = FakeBench()
    assert run(monkeypatch, bench, str(shards if is_folder else shards / "train.tar")) == 0
    assert bench.files == [10]


def test_ctrl_c_leaves_nothing(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    assert run(monkeypatch, interrupt, str(images)) == 130
    assert list((images.parent / "temporary").iterdir()) == []


@pytest.mark.usefixtures("hears_sighup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_scheduler_or_a_closing_terminal_leaves_nothing(
    number: signal.Signals, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, lambda *_, **__: signal.raise_signal(number), str(images))
    assert caught.value.code == 128 + number
    assert list((images.parent / "temporary").iterdir()) == []
    assert signal.getsignal(number) == before


def test_a_source_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "loader", "/no/such/folder"]) == 1
    assert capsys.readouterr().err == "error: no folder or pack at /no/such/folder\n"


def test_a_loss_and_wrong_pixels_are_said_plainly(
    images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = make_bench_result()
    pixels = dataclasses.replace(good.pixels, largest_difference=90, is_same=False, lowest_psnr_db=20.0)
    assert run(monkeypatch, FakeBench(dataclasses.replace(good, ratio=0.5, pixels=pixels)), str(images)) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "feedrate loses here: 0.50x the images/s of DataLoader + Pillow." in out
    assert "NOT the same" in out


def test_the_result_goes_to_standard_output_as_json(
    images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FakeBench(), str(images), "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "bench loader"
    assert document["pixels"]["is_same"]
    assert [run["contestant"] for run in document["runs"]] == ["DataLoader + Pillow", "feedrate"]
