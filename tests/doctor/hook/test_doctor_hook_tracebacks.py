# SPDX-License-Identifier: Apache-2.0
"""What Python prints of an exception under the doctor: the same as without it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path

import pytest

from feedrate.doctor.hook.feedrate_hook import patches, wrapping
from support.doctor_scripts import PRELUDE, Run, run_script

pytest.importorskip("torch")

RAISING = """
class Bad(Numbers):
    def __getitem__(self, index):
        if index == 37:
            raise ValueError("corrupt image 37")
        return super().__getitem__(index)

class Net(torch.nn.Module):
    def forward(self, x):
        if LEFT and x.max() > 40:
            raise ArithmeticError("too large") from LEFT.pop()
        return x

LEFT = []
"""


def run_bare(folder: Path) -> subprocess.CompletedProcess[str]:
    """The script that run_script has left there, without the doctor."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(folder / "train.py")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def run_both(folder: Path, body: str) -> tuple[Run, subprocess.CompletedProcess[str]]:
    run = run_script(folder, textwrap.dedent(body), prelude=PRELUDE + RAISING, is_forked=False)
    return run, run_bare(folder)


def test_a_dataset_and_a_model_that_raise_are_printed_as_without_the_doctor(tmp_path: Path) -> None:
    run, bare = run_both(
        tmp_path,
        """
        try:
            for x, y in DataLoader(Bad(), batch_size=BATCH):
                train(x, y)
        except ValueError as error:
            LEFT.append(error)
        net = Net()
        for x, y in DataLoader(Numbers(), batch_size=BATCH):
            net(x)
        """,
    )
    assert run.errors == bare.stderr
    assert "The above exception was the direct cause" in run.errors
    assert run.code == bare.returncode == 1


@pytest.mark.parametrize("module", ["cv2", "imageio.v2"])
def test_an_interrupt_in_the_midst_of_an_import_is_printed_as_without_the_doctor(
    tmp_path: Path, module: str
) -> None:
    (tmp_path / "imageio").mkdir()
    (tmp_path / "imageio" / "__init__.py").touch()
    for name in ("cv2.py", "imageio/v2.py"):  # modules that have patches
        (tmp_path / name).write_text("def load():\n    raise KeyboardInterrupt\nload()\n")
    run = run_script(tmp_path, f"import {module}", prelude="", is_forked=False)
    bare = run_bare(tmp_path)
    assert run.errors == bare.stderr
    assert "KeyboardInterrupt" in run.errors
    assert run.code == bare.returncode


def test_exceptions_behind_one_another_are_mended_even_in_a_circle() -> None:
    def fail() -> None:
        raise KeyError("deep")

    @wrapping.unseen
    def call() -> None:
        fail()

    errors = []
    for _ in range(2):
        with pytest.raises(KeyError) as caught:
            call()
        errors.append(caught.value)
    errors[0].__cause__, errors[1].__context__ = errors[1], errors[0]
    patches.hide_hook(errors[0])
    for error in errors:
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert names[-1] == "fail"
        assert "call" not in names


@pytest.mark.slow
def test_an_excepthook_of_the_users_is_called_and_keeps_the_exit_code(tmp_path: Path) -> None:
    run, bare = run_both(
        tmp_path,
        """
        import traceback

        def hook(kind, error, trace):
            print("mine", kind.__name__, trace is error.__traceback__)
            traceback.print_exception(kind, error, trace, file=sys.stdout)

        assert sys.excepthook is sys.__excepthook__
        sys.excepthook = hook
        for x, y in DataLoader(Bad(), batch_size=BATCH):
            train(x, y)
        """,
    )
    assert run.output.startswith("mine ValueError True\n")
    assert (run.output, run.errors, run.code) == (bare.stdout, bare.stderr, bare.returncode)


@pytest.mark.slow
def test_the_traceback_that_a_worker_sends_has_no_line_of_the_hook(tmp_path: Path) -> None:
    run, bare = run_both(
        tmp_path,
        """
        for x, y in DataLoader(Bad(), batch_size=BATCH, num_workers=1):
            train(x, y)
        """,
    )
    sent = [text.partition("Original Traceback")[2] for text in (run.errors, bare.stderr)]
    assert "corrupt image 37" in sent[0]
    assert sent[0] == sent[1]
    assert "feedrate_hook" not in run.errors
    assert "<feedrate" not in run.errors
    assert run.code == bare.returncode == 1
