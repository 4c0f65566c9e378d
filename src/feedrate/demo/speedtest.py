# SPDX-License-Identifier: Apache-2.0
"""`feedrate speedtest`: a standard training (standard.py), and what the doctor says of it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from feedrate.demo.results import SpeedtestResult
from feedrate.doctor.analyse.readings import READINGS
from feedrate.doctor.examine import examine
from feedrate.doctor.options import DoctorOptions
from feedrate.doctor.results import Diagnosis
from feedrate.errors import NotFound, StorageError, UsageError, suggest_path
from feedrate.format.manifest import is_pack
from feedrate.lab.device import check_side, choose_device
from feedrate.lab.photographs import write_photographs
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.isolated import script_command
from feedrate.model.gpus import check_model
from feedrate.source.folders import has_images
from feedrate.units import format_count, shell_quote

Say = Callable[[str], None]

IMAGES, QUICK_IMAGES = 2000, 600  # that are made where there is no dataset
QUICK = DoctorOptions(steps=40, seconds=12.0)


@dataclass(frozen=True, slots=True)
class SpeedOptions:
    """What the user may say. None: chosen by what the device allows."""

    model: str = "densenet121"
    batch_size: int | None = None
    side: int | None = None
    device: str | None = None
    workers: int | None = None
    is_quick: bool = False

    def __post_init__(self) -> None:
        check_model(self.model)
        if self.side is not None:
            check_side(self.model, self.side)
        if self.device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise UsageError(f"--device must be cpu, cuda or cuda:N, got '{self.device}'")
        if self.device not in (None, "cpu"):
            choose_device(self.device)


def run_speedtest(source: str | None, options: SpeedOptions, *, say: Say, watch: Say) -> SpeedtestResult:
    """Train on the images of a folder or a pack, or on images that are made, under the doctor.

    Args:
        watch: is told what the doctor does.

    Raises:
        NotFound, UsageError: there is no dataset, or none that can be trained on as it is.
        StorageError: there is no room for the images.
        DoctorError: the training ended before there was something to see.
    """
    if source is not None:
        _check_source(source)
    with _temporary() as folder:
        data = source
        if data is None:
            images = QUICK_IMAGES if options.is_quick else IMAGES
            say(f"making {format_count(images, 'image')} that look like photographs in {folder}")
            data = str(_make_images(folder / "images", images))
        words = {"--model": options.model, "--device": options.device, "--batch-size": options.batch_size,
                 "--side": options.side, "--workers": options.workers or count_usable_cores(),
                 "--temporary": folder}  # fmt: skip
        given = (str(word) for pair in words.items() if pair[1] is not None for word in pair)
        command = script_command(Path(__file__).with_name("standard.py"), data, *given)
        diagnosis = examine(command, QUICK if options.is_quick else DoctorOptions(), watch=watch)
    return sum_up(diagnosis, source, options.model)


def sum_up(diagnosis: Diagnosis, source: str | None, model: str) -> SpeedtestResult:
    run, means = diagnosis.run, {curve.name: curve.mean for curve in diagnosis.curves}
    steps_s = run.steps * run.seconds_per_step
    cores = means.get(READINGS["cores_ours"].curve)
    return SpeedtestResult(
        source=source,
        model=model,
        steps_s=steps_s,
        cpu_s=None if cores is None else cores * steps_s,
        device_s=(1 - run.exposed_wait_share) * steps_s,
        diagnosis=diagnosis,
    )


def _check_source(source: str) -> None:
    if not Path(source).exists():
        raise NotFound(f"no dataset at {source}", hint=suggest_path(source))
    if not is_pack(source) and not (Path(source).is_dir() and has_images(source)):
        raise UsageError(
            f"the speed test trains on a folder of images or on a pack, and {source} is neither",
            hint=f"make a pack of it first: feedrate pack {shell_quote(source)} PACK",
        )


@contextmanager
def _temporary() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="feedrate-speedtest-")
    except OSError as error:
        raise StorageError(
            f"cannot make a temporary folder: {error.strerror or error}",
            hint="set TMPDIR to a folder that you may write to",
        ) from error
    with folder as name:
        yield Path(name)


def _make_images(folder: Path, images: int) -> Path:
    try:
        write_photographs(folder, images, seed=0)
    except OSError as error:
        raise StorageError(
            f"cannot write to {folder}: {error.strerror}", hint="set TMPDIR to a folder with more room"
        ) from error
    return folder
