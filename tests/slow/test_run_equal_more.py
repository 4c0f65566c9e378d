# SPDX-License-Identifier: Apache-2.0
"""`feedrate run` in front of torchrun, and with other versions of Pillow: losses are the bare run's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.run_scripts import PHOTOS, TRAINING, make_photos, read_losses, run_both

pytestmark = pytest.mark.slow
COUNT = 16


def test_losses_of_two_ranks_are_the_bare_runs(tmp_path: Path) -> None:
    make_photos(tmp_path / "photos", COUNT)
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    bare, under = run_both(tmp_path, PHOTOS + TRAINING, "4", launcher=launcher)
    assert (bare.code, under.code) == (0, 0), under.stderr
    for rank in range(2):
        losses = read_losses(tmp_path, rank, True)
        assert losses == read_losses(tmp_path, rank, False)
    assert under.report["ranks"] == 2
    # Of both ranks' third fetch.
    assert under.loader("Photos")["images"] == 2 * 4 * (len(losses) - 1)
    assert under.stderr.count("feedrate run: loader 0 (Photos, 16 samples") == 1


@pytest.mark.parametrize("version", ["10.1.0", "10.4.0", "12.1.1", "12.3.0"])
def test_losses_with_other_pillows_are_the_bare_runs(version: str, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
    installed = subprocess.run(
        [*pip, "--target", tmp_path / "packages", f"pillow=={version}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if installed.returncode:
        pytest.skip(f"Pillow {version} cannot be installed here: {installed.stderr.strip()[-300:]}")
    make_photos(tmp_path / "photos", COUNT)
    body = f"import PIL\nassert PIL.__version__ == {version!r}\n{PHOTOS}{TRAINING}"
    bare, under = run_both(tmp_path, body, "50", packages=tmp_path / "packages")
    assert (bare.code, bare.stderr, under.code) == (0, "", 0)
    losses = read_losses(tmp_path, 0, True)
    assert losses == read_losses(tmp_path, 0, False)
    assert under.loader("Photos")["images"] == 4 * (len(losses) - 1)
