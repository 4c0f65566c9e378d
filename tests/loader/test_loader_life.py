# SPDX-License-Identifier: Apache-2.0
"""However an iteration ends, nothing of it remains: no thread, no open file, no memory."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedrate import Loader, RandomResizedCrop
from feedrate.errors import UsageError
from support.packs import write_images, write_numbers
from support.scratches import wait_for


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return write_images(tmp_path / "pack", count=40)


@pytest.fixture(scope="module", autouse=True)
def warm_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Load once, so that libraries have started the threads they keep for themselves."""
    with Loader(write_images(tmp_path_factory.mktemp("packs") / "warm", count=4)) as loader:
        list(loader)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    gc.collect()
    threads, tasks, files = find_remains()
    yield
    gc.collect()
    now = find_remains()
    assert now[0] - threads == set()
    # Fewer is no fault: what an earlier test left may end now, and OpenBLAS ends its own threads at a fork.
    assert now[2] <= files
    # The kernel lists a thread for a moment after it was joined.
    wait_for(lambda: find_remains()[1] <= tasks, "threads to be gone")


def find_remains() -> tuple[set[threading.Thread], int, int]:
    return set(threading.enumerate()), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def test_the_threads_of_a_finished_epoch_end_with_the_first_batches_of_the_next(pack: Path):
    with Loader(pack, 4) as loader:
        threads, tasks, _ = find_remains()
        assert len(list(loader)) == 10
        for maker in set(threading.enumerate()) - threads:
            maker.join()  # by itself: nobody asks for more
        wait_for(lambda: find_remains()[1] <= tasks, "threads of the kernel to be gone")


def test_a_loop_that_takes_all_batches_and_asks_for_no_more_leaves_no_thread(pack: Path):
    with Loader(pack, 4, transform=dict) as loader:
        threads, tasks, _ = find_remains()
        iterator = iter(loader)
        for _ in range(10):
            next(iterator)
        for maker in set(threading.enumerate()) - threads:
            maker.join()
        wait_for(lambda: find_remains()[1] <= tasks, "threads of the kernel to be gone")


def test_leaving_the_loop_early_stops_the_threads(pack: Path):
    with Loader(pack, 4) as loader:
        for _ in loader:
            break
        assert not [t for t in threading.enumerate() if "maker" in t.name]


def test_an_exception_in_the_loop_stops_the_threads(pack: Path):
    def train() -> None:
        for _ in Loader(pack, 4):
            raise RuntimeError("loss is nan")

    with pytest.raises(RuntimeError, match="nan"):
        train()


def test_a_loader_that_is_never_closed_cleans_up_when_collected(pack: Path):
    loader = Loader(pack, 4)
    iterator = iter(loader)
    next(iterator)
    gone = weakref.ref(iterator)
    del iterator, loader
    assert gone() is None


def test_an_iterator_keeps_its_loader_alive(pack: Path):
    iterator = iter(Loader(pack, 4))
    assert len(list(iterator)) == 10


def test_an_iterator_in_a_cycle_is_collected(pack: Path):
    class Trainer:
        def __init__(self) -> None:
            self.batches = iter(Loader(pack, 4))
            self.me = self

    gone = weakref.ref(Trainer())
    gc.collect()
    assert gone() is None


def test_a_new_iteration_ends_the_one_before(pack: Path):
    with Loader(pack, 4) as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        with pytest.raises(UsageError, match="a newer iteration of this loader has begun"):
            next(old)
        assert len(list(new)) == 10


def test_two_loaders_do_not_disturb_each_other(pack: Path):
    with Loader(pack, 4, seed=1) as one, Loader(pack, 4, seed=1) as two:
        for (a, _), (b, _) in zip(one, two, strict=True):
            assert (a == b).all()


def test_closing_twice_is_fine_and_a_closed_loader_says_so(pack: Path):
    loader = Loader(pack, 4)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    loader.close()
    with pytest.raises(UsageError, match="the loader of this iterator is closed"):
        next(iterator)
    with pytest.raises(UsageError, match="this loader is closed; make a new one"):
        iter(loader)


def test_a_loader_that_was_never_iterated_can_be_closed(pack: Path):
    Loader(pack).close()


def test_closing_from_another_thread_wakes_the_consumer(pack: Path):
    started, release = threading.Event(), threading.Event()

    def wait(sample: dict) -> dict:
        started.set()
        release.wait()
        return sample

    loader = Loader(pack, 4, transform=wait)
    caught: list[BaseException] = []

    def consume() -> None:
        try:
            next(iter(loader))
        except UsageError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    started.wait()
    closer = threading.Thread(target=loader.close)
    closer.start()
    consumer.join()
    release.set()
    closer.join()
    assert "closed" in str(caught[0])
    caught.clear()


def test_an_iterator_that_failed_says_so_when_used_again(pack: Path):
    def fail(sample: dict) -> dict:
        raise ValueError(f"bad idea with {len(sample)} fields")

    with Loader(pack, 4, transform=fail) as loader:
        iterator = iter(loader)
        with pytest.raises(ValueError, match="bad idea"):
            next(iterator)
        with pytest.raises(UsageError, match="it ended with ValueError: bad idea with"):
            next(iterator)
        with pytest.raises(ValueError, match="bad idea"):
            next(iter(loader))


def test_batches_outlive_the_loader(pack: Path):
    with Loader(pack, 40, shuffle=False, output="numpy") as loader:
        images, _ = next(iter(loader))
    with Loader(pack, 40, shuffle=False, output="numpy") as loader:
        again, _ = next(iter(loader))
    del loader
    assert (images == again).all()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_iterates_for_itself(pack: Path):
    with Loader(pack, 4, seed=2, image=RandomResizedCrop(8), output="numpy") as loader:
        iterator = iter(loader)
        next(iterator)
        code = run_in_fork(lambda: child_checks(loader, iterator))
        assert code == 0
        assert len(list(iterator)) == 9


def child_checks(loader: Loader, iterator: Iterator) -> bool:
    try:
        next(iterator)
    except UsageError as error:
        refused = "this is a fork of it" in str(error)
    loader.set_epoch(0)
    loader.stats()
    whole = len(list(loader)) == 10
    del iterator
    loader.close()
    return refused and whole


def run_in_fork(check) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_script(pack: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = f"from feedrate import Loader\npack = {str(pack)!r}\n{text}"
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "text",
    [
        "it = iter(Loader(pack, 4, output='numpy')); next(it); print('bye')",
        "l = Loader(pack, 4, output='numpy')\nfor b in l: break\nprint('bye')",
        "import sys\nit = iter(Loader(pack, 4, output='numpy')); next(it); print('bye'); sys.exit(0)",
        "kept = [b for b in Loader(pack, 4, output='torch')]; print('bye')",
        "l = Loader(pack, 4, output='numpy')\nfor b in l: pass\nprint('bye')",
        "import os\nit = iter(Loader(pack, 4, output='numpy')); next(it)\n"
        "if os.fork() == 0: raise SystemExit(0)\n_, code = os.wait(); assert code == 0; print('bye')",
    ],
)
def test_the_interpreter_exits_cleanly_with_a_live_iterator(pack: Path, text: str):
    if "torch" in text:
        pytest.importorskip("torch", reason="torch is not installed")
    ran = run_script(pack, text)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("bye\n", "", 0)


def test_a_loader_refuses_to_be_pickled(tmp_path: Path):
    import pickle

    with (
        Loader(write_numbers(tmp_path / "numbers", 3)) as loader,
        pytest.raises(UsageError, match="another process"),
    ):
        pickle.dumps(loader)


def test_a_finished_iterator_stays_finished_when_a_new_one_begins(pack: Path):
    with Loader(pack, 20) as loader:
        old = iter(loader)
        assert len(old) == 2
        list(old)
        iter(loader)
        assert list(old) == []


def test_an_interrupt_while_waiting_ends_the_iteration(pack: Path):
    def interrupt(sample: dict) -> dict:
        if sample["label"] == 2:
            raise KeyboardInterrupt
        return sample

    with Loader(pack, 4, transform=interrupt) as loader, pytest.raises(KeyboardInterrupt):
        list(loader)


def test_a_transform_that_hangs_is_named_and_left_behind(
    pack: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("feedrate.loader.pipeline.STOP_S", 0.01)
    both, release, calls = threading.Barrier(3), threading.Event(), []

    def hang_on_a_lock(sample: dict) -> dict:
        calls.append(1)
        both.wait()
        release.wait()
        return sample

    before = set(threading.enumerate())
    loader = Loader(pack, 20, transform=hang_on_a_lock, threads=2)
    iterator = iter(loader)
    both.wait()
    loader.close()  # would hang
    loader.close()
    with pytest.raises(UsageError, match="closed"):
        next(iterator)
    (message,) = [record.getMessage() for record in caplog.records if record.name == "feedrate"]
    assert "left 2 threads behind" in message
    assert f"in hang_on_a_lock ({__file__}, line " in message
    left = set(threading.enumerate()) - before
    assert all(thread.daemon for thread in left)
    release.set()
    for thread in left:
        thread.join()
    assert len(calls) == 2, "of twenty samples each, none was begun after the end"


# Hangs in a transform, and says so once.
HANGING = """
import sys, threading
import feedrate.loader.pipeline
from feedrate import Loader

feedrate.loader.pipeline.STOP_S = 0.05
never = threading.Event()

def hang(sample):
    print("begun", flush=True)
    never.wait()

for batch in Loader(sys.argv[1], 4, transform=hang, threads=1, prefetch=1, output="numpy"):
    pass
"""


def test_an_interrupt_ends_a_loop_whose_transform_hangs(pack: Path):
    words = [sys.executable, "-c", HANGING, str(pack)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "begun\n"
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=120)  # would hang
        finally:
            child.kill()
    assert child.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert errors.count("left a thread behind, still busy after 0.05 s in hang (<string>, line ") == 1
