# SPDX-License-Identifier: Apache-2.0
"""`feedrate run` in front of torchrun: each rank takes its loaders, and trains as it does bare."""

from __future__ import annotations

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
