# SPDX-License-Identifier: Apache-2.0
"""A dataset on a mount whose server never answers: a sentence in time, and a process that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.paths import ROOT

pytestmark = pytest.mark.slow

CORPUS = ROOT / "tests" / "doctor_corpus"
# Every call takes an hour. The kernel does not let go of a process whose request the server has read.
SURVEY = """
import sys
from feedrate.errors import StorageError
from feedrate.plan import survey
survey._HANG_S = 1.0
try:
    survey.survey_dataset(sys.argv[1], seconds=1.0, say=lambda _: None)
except StorageError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse")
def test_a_mount_that_hangs_ends_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    slow = [str(tmp_path / "source"), str(tmp_path / "mount"), "3600000", "3600000", "1"]
    command = [sys.executable, str(CORPUS / "surroundings.py"), "--slow", *slow, "--"]
    inner = [sys.executable, "-c", SURVEY, str(tmp_path / "mount")]
    began = time.monotonic()
    done = subprocess.run([*command, *inner], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 77:
        pytest.skip(done.stderr)
    assert "did not answer" in done.stdout
    assert done.returncode == 0
    assert time.monotonic() - began < 60
