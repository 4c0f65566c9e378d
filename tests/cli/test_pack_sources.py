# SPDX-License-Identifier: Apache-2.0
"""`feedrate pack` of archives and record files, as it is typed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feedrate.cli import main
from support.sources import dump_example, jpeg, write_tar, write_tfrecord, write_zip


def test_a_zip_is_packed_and_its_odd_files_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"ant/1.jpg": jpeg(1), "bee/2.jpg": jpeg(2), "bee/notes.md": b"x", "bee/3.jpg": b"no image"}
    source = write_zip(tmp_path / "d.zip", files)
    assert main(["pack", str(source), str(tmp_path / "p"), "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"packed 2 samples (2 classes) into {tmp_path}/p\n")
    assert "ignored  1 .md file" in out
    assert "bee/3.jpg" in out


def test_features_that_were_left_out_are_told_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = [
        dump_example({"image": [jpeg(n)], "label": [n], **({"odd": [1]} if not n else {})}) for n in range(3)
    ]
    source = write_tfrecord(tmp_path / "d.tfrecord", examples)
    assert main(["pack", str(source), str(tmp_path / "p"), "--workers", "1"]) == 0
    assert "ignored  1 feature odd\n" in capsys.readouterr().out


def test_an_archive_that_is_refused_gets_a_sentence_and_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_tar(tmp_path / "d.tar", {"a.jpg": jpeg(0), "../.ssh/authorized_keys": b"x"})
    assert main(["pack", str(source), str(tmp_path / "p")]) == 1
    err = capsys.readouterr().err
    words = "leads out of the folder it would be unpacked to: refused"
    assert f"error: {source}: the name '../.ssh/authorized_keys' {words}" in err
    assert "hint: unpack the archive with a tool you trust" in err
    assert not (tmp_path / "p").exists()


def test_pixels_of_an_hdf5_file_are_told_to_go_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["image"] = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    assert main(["pack", str(tmp_path / "d.h5"), str(tmp_path / "p"), "--workers", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if "6 through Pillow, which is slower" in line)
    assert lines[at + 1].strip() == "stored as pixels anyway: with --raw the kernel reads them"
    assert main(["pack", str(tmp_path / "d.h5"), str(tmp_path / "raw"), "--raw", "--workers", "1"]) == 0
    assert "all 6 images by the kernel" in capsys.readouterr().out
