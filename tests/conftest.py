# SPDX-License-Identifier: Apache-2.0
"""Fixtures that many tests share. Their data is small, seeded and made here."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import multiprocessing.forkserver
import os
import shutil
import signal
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import cuda_on_cpu
from feedrate.errors import FeedrateError, MissingExtra
from feedrate.kernel.cuda.nvrtc import Nvrtc, load_nvrtc
from support.images import save_image
from support.packs import write_images
from support.range_server import COUNT, RangeServer, serve
from support.worker_forks import fork_worker

# No time limit per example: the machine may be busy with something else. The same examples every time: what
# fails is then the fault of what was changed. `pytest --hypothesis-profile=explore` looks for new ones.
# The fast tier tries a few examples, the slow one all (`support.examples`).
settings.register_profile("explore", deadline=None)
settings.register_profile("thorough", deadline=None, derandomize=True)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("quick")

# Started in the background of a script, we would ignore Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MOST_WORKERS = 8  # of `pytest -n auto`: each has a torch of its own


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many tests run side by side: as many as this process may use cores."""
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that make up examples, so that the slow tier finds them."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("examples")


if importlib.util.find_spec("torch") is None:

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call() -> Generator[None, None, None]:
        """Without torch, what needs it skips and says so: feedrate itself runs without."""
        try:
            return (yield)
        except (ImportError, FeedrateError) as error:
            if "torch" in str(error):
                pytest.skip("torch is not installed")
            raise


@pytest.fixture(scope="session", autouse=True)
def worker_forks() -> None:
    """Start the process that `quick_workers` are forks of, before anybody counts open files."""
    multiprocessing.set_forkserver_preload(
        ["feedrate.packing.build.shard", "feedrate.packing.build.shard", "pyarrow", "PIL.Image"]
    )
    multiprocessing.forkserver.ensure_running()


@pytest.fixture(autouse=True)
def quick_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork workers from a process that has imported what they need.

    They have the environment that this session began with; in slow tests, with real servers whose keys are in
    variables, and in those about their start, workers start as users have them.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("slow") is None:
            patch.setattr("feedrate.packing.workers.start_worker", fork_worker)
        yield


_homes = itertools.count()


@pytest.fixture(autouse=True)
def clean_environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Undo what a test does to the environment; what it notes in its user's home is for itself alone."""
    before = dict(os.environ)
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.getbasetemp() / f"state-{next(_homes)}")
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def jpeg_folder(tmp_path: Path) -> Path:
    """Two class folders: JPEGs in 4:2:0, 4:4:4, gray and progressive, a PNG, one deeper down, a text."""
    root = tmp_path / "photos"
    for number in range(6):
        save_image(root / "cat" / f"{number}.jpg", number, subsampling=2)
        save_image(root / "dog" / f"{number}.JPEG", 10 + number, subsampling=0)
    save_image(root / "cat" / "gray.jpg", 20, mode="L")
    save_image(root / "cat" / "progressive.jpg", 21, progressive=True)
    save_image(root / "dog" / "deeper" / "still" / "one.jpg", 22, width=97, height=61)
    save_image(root / "dog" / "picture.png", 23)
    (root / "dog" / "notes.txt").write_text("not an image")
    return root


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """An empty folder, for copies."""
    (tmp_path / "scr").mkdir()
    return tmp_path / "scr"


@pytest.fixture
def served_pack(tmp_path: Path) -> Path:
    """A pack in five shards; `pack_server` serves it as /pack."""
    return write_images(tmp_path / "served" / "pack", count=COUNT, shards=5)


@pytest.fixture
def pack_server(served_pack: Path) -> Iterator[RangeServer]:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    with serve(served_pack.parent) as server:
        yield server


@pytest.fixture(scope="session")
def nvrtc() -> Nvrtc:
    """CUDA's compiler, which needs no GPU."""
    try:
        return load_nvrtc(12)
    except MissingExtra as error:
        pytest.skip(f"NVRTC is not installed: {error.hint}")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the GPU's kernels as a library for the CPU."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return cuda_on_cpu.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk, in tests that are not about what survives a power cut."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KB; `mount -o remount,size=8m` makes it larger."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    gc.collect()  # what an exception's frames hold keeps files open there
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def hears_sighup() -> Iterator[None]:
    """Take SIGHUP as a terminal's process does, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
