# SPDX-License-Identifier: Apache-2.0
"""The proof of a loader: what it compares, how it ends, and what it leaves of the script as it was."""

from __future__ import annotations

import array
import contextlib
import copy
import os
import random
import signal
import socket
import tempfile
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from feedrate.run.inside import apart, counters, switch
from feedrate.run.inside.counters import Left
from feedrate.run.inside.proof import SAMPLES, Verdict, _digest, explain, prove
from support.fake_gains import Either, Gains

Box = namedtuple("Box", "left top")


def test_equal_samples_that_take_less_cpu_time_are_taken() -> None:
    proof = prove(DataLoader(Gains(100), batch_size=32))
    assert (proof.verdict, proof.samples) == (Verdict.EQUAL, SAMPLES)
    assert proof.gain > 2
    assert proof.gain_first == proof.gain  # nothing was scanned


def test_a_scan_counts_for_the_first_epoch_alone() -> None:
    class Scans(Gains):
        def make_image(self) -> None:
            super().make_image()
            if switch.here.is_on:
                counters.take("scan_ns", 100_000)

    proof = prove(DataLoader(Scans(), batch_size=16))
    assert proof.gain > proof.gain_first > 1


def test_a_sample_that_differs_is_named_with_its_file() -> None:
    class Folder(Gains):
        samples = [(f"/data/cat/{number}.jpg", 0) for number in range(32)]  # noqa: RUF012

        def make_sample(self, index: int) -> Any:
            return index + (switch.here.is_on and index == 21)

    proof = prove(DataLoader(Folder(32), batch_size=32))
    assert (proof.verdict, proof.differing) == (Verdict.DIFFERS, 21)
    assert proof.sample == "sample 21 (/data/cat/21.jpg)"


def test_a_sample_is_named_by_what_the_sampler_asked_for() -> None:
    class Differs(Gains):
        def make_sample(self, index: int) -> Any:
            return index + (switch.here.is_on and index == 3)

    order = [7, 6, 5, 4, 3, 2, 1, 0]
    proof = prove(DataLoader(Differs(8), batch_size=2, sampler=order))
    assert (proof.differing, proof.sample) == (4, "sample 3")


def _objects(**attributes: Any) -> list[Any]:
    one = SimpleNamespace(**attributes)
    return [one, one, SimpleNamespace(of=one)]


class _Slots:
    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


def _boxes(form: str) -> Any:
    boxes = torch.zeros(2, 4)
    boxes.format = form
    return boxes


_TENSOR = torch.arange(12.0).reshape(3, 4)
_ARRAY = np.arange(6, dtype=np.int16).reshape(2, 3)
_GRAY = Image.new("L", (4, 3))


@pytest.mark.parametrize(
    ("bare", "lazy"),
    [
        (_TENSOR, _TENSOR + 1e-6 * torch.eye(3, 4)),
        (_TENSOR, _TENSOR.t().contiguous().t()),
        (_TENSOR, _TENSOR.double()),
        (_TENSOR, _TENSOR.reshape(4, 3)),
        (_TENSOR, _TENSOR.numpy()),
        (_TENSOR.bfloat16(), _TENSOR.half()),
        (_TENSOR.to_sparse(), _TENSOR.flip(0).to_sparse()),
        (_boxes("xyxy"), _boxes("xywh")),
        (_ARRAY, _ARRAY.astype(np.uint16)),
        (_ARRAY, np.asfortranarray(_ARRAY)),
        (_ARRAY, np.array([[0, 1, 2], [3, 4, 6]], np.int16)),
        (np.array(["a", None]), np.array(["a", "None"], object)),
        (np.int64(1), np.int32(1)),
        (_GRAY, Image.new("P", (4, 3))),
        (_GRAY, Image.new("L", (3, 4))),
        (_GRAY, Image.new("L", (4, 3), 1)),
        ({"image": 1}, {"picture": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, OrderedDict(a=1)),
        ({"a": 1}, {"a": 2}),
        ([1, 2], [2, 1]),
        ([1, 2], (1, 2)),
        ([[1], []], [[], [1]]),
        (Box(1, 2), (1, 2)),
        ({1, 2}, {1, 3}),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (None, 0),
        ("text", "texts"),
        (b"bytes", "bytes"),
        (bytearray(b"one"), bytearray(b"two")),
        (array.array("h", [1]), array.array("h", [2])),
        (Path("a.jpg"), Path("b.jpg")),
        (_objects(a=1), _objects(a=2)),
        (_objects(a=_TENSOR), _objects(a=_TENSOR + 1)),
        (_Slots(1), _Slots(2)),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_difference_of_any_kind_is_seen(bare: Any, lazy: Any) -> None:
    assert _digest([bare], 1) != _digest([lazy], 1)
    assert _digest([bare], 1) == _digest([copy.deepcopy(bare)], 1)


def test_what_belongs_to_no_single_sample_makes_the_first_one_differ() -> None:
    proof = prove(DataLoader(Either("bare", "lazy"), batch_size=16, collate_fn=list))
    assert (proof.verdict, proof.sample) == (Verdict.DIFFERS, "sample 0")


def test_objects_that_refer_to_one_another_come_to_an_end() -> None:
    first, second = SimpleNamespace(), SimpleNamespace()
    for one in (first, second):
        one.all = [first, second, one]
    assert prove(DataLoader(Either(first, first), batch_size=16, collate_fn=list)).verdict.is_good


def test_samples_that_differ_from_run_to_run_prove_nothing() -> None:
    class Restless(Gains):
        def make_sample(self, _: int) -> Any:
            return os.urandom(8)

    proof = prove(DataLoader(Restless(16), batch_size=16))
    assert (proof.verdict, proof.sample) == (Verdict.RESTLESS, "")


def test_what_is_drawn_is_drawn_alike_and_leaves_the_scripts_state() -> None:
    class Draws(Gains):
        drawn = 0

        def make_sample(self, index: int) -> Any:
            self.drawn += 1
            return index, random.random(), np.random.random(), torch.rand(3)

    def states() -> list[Any]:
        return [
            random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(),
            chance.get_state().tolist(), counters.here.current.as_dict(), torch.get_num_threads(),
            switch.here.is_on, get_worker_info(), draws.drawn,
        ]  # fmt: skip

    chance = torch.Generator().manual_seed(5)
    draws = Draws(48)
    before = states()
    for workers in (0, 2):
        loader = DataLoader(draws, batch_size=16, shuffle=True, generator=chance, num_workers=workers)
        assert prove(loader).verdict is Verdict.EQUAL
    assert states() == before


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
def test_a_loader_of_workers_is_proved_as_its_first_worker() -> None:
    class Asks(Gains):
        def make_sample(self, index: int) -> Any:
            info = get_worker_info()
            wrong = info is None or (info.id, info.num_workers, begun) != (0, 3, [0])
            return index + (wrong and switch.here.is_on)

    begun: list[int] = []
    assert prove(DataLoader(Asks(16), num_workers=3, worker_init_fn=begun.append)).verdict is Verdict.EQUAL
    assert begun == []


@pytest.mark.parametrize("batch_size", [None, 1, 7, 100])
def test_no_more_samples_are_made_than_were_asked_for(batch_size: int | None) -> None:
    assert prove(DataLoader(Gains(100), batch_size=batch_size), most=20).samples == 20
    assert prove(DataLoader(Gains(10), batch_size=batch_size), most=20).samples == 10


def test_an_iterable_dataset_is_asked_for_its_next_samples() -> None:
    class Stream(IterableDataset[Any]):
        def __init__(self, differs: int) -> None:
            self.differs, self.given = differs, 0

        def __iter__(self) -> Iterator[Any]:
            gains = Gains()
            for number in range(1000):
                self.given += 1
                gains.make_image()
                yield number + (switch.here.is_on and number == self.differs)

    stream = Stream(-1)
    proof = prove(DataLoader(stream, batch_size=8))
    assert (proof.verdict, proof.samples, stream.given) == (Verdict.EQUAL, SAMPLES, 0)
    proof = prove(DataLoader(Stream(30), batch_size=8))
    assert (proof.verdict, proof.sample) == (Verdict.DIFFERS, "sample 30")


def test_samples_that_are_not_made_quicker_are_left() -> None:
    proof = prove(DataLoader(Gains(quicker=0.25), batch_size=16))
    assert proof.verdict is Verdict.NO_GAIN
    assert proof.gain < 0.5


def test_a_loader_without_images_is_told_from_one_that_gains_nothing() -> None:
    class Tokens(Gains):
        def make_image(self) -> None:
            if switch.here.is_on:
                counters.leave(Left.OTHER_FORMAT)

    proof = prove(DataLoader(Tokens(16), batch_size=8))
    assert (proof.verdict, proof.left) == (Verdict.NO_IMAGES, {"other-format": 16})


def test_a_sample_that_fails_fails_both_ways() -> None:
    class Fails(Gains):
        def make_sample(self, index: int) -> Any:
            if index == 20:
                raise FileNotFoundError(f"no sample {index}")
            return index

    assert prove(DataLoader(Fails(64), batch_size=16)).verdict is Verdict.EQUAL


def test_a_sample_that_fails_with_recipes_alone_differs() -> None:
    class Fails(Gains):
        def make_sample(self, _: int) -> Any:
            raise ValueError("with" if switch.here.is_on else "without")

    proof = prove(DataLoader(Fails(4), batch_size=4))
    assert proof.verdict is Verdict.DIFFERS


def test_a_dataset_that_always_fails_proves_nothing() -> None:
    class Fails(Gains):
        def make_sample(self, _: int) -> Any:
            raise ValueError("no sample")

    proof = prove(DataLoader(Fails(4), batch_size=4))
    assert proof.verdict is Verdict.NOTHING_MADE
    assert explain(proof.verdict, proof.sample, {}).endswith(": ValueError: no sample")


def test_a_process_that_is_killed_while_images_are_recipes_is_told() -> None:
    class Dies(Gains):
        def make_sample(self, index: int) -> Any:
            if switch.here.is_on and index == 40:
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    proof = prove(DataLoader(Dies(64), batch_size=16))
    assert (proof.verdict, proof.samples) == (Verdict.ENDED, 32)


def test_the_time_ends_a_proof_after_the_samples_that_it_had_room_for() -> None:
    proof = prove(DataLoader(Gains(64), batch_size=16), seconds=0.0)
    assert (proof.verdict, proof.samples) == (Verdict.EQUAL, 16)


def test_nothing_is_left_behind(capfd: pytest.CaptureFixture[str]) -> None:
    class Loud(Gains):
        def make_sample(self, index: int) -> Any:
            print("to Python's stream")
            os.write(1, b"to the descriptor")
            os.write(2, b"to the other one")
            os.fork() or os._exit(0)
            return index

    def look() -> tuple[int, str]:
        return len(os.listdir("/proc/self/fd")), Path("/proc/thread-self/children").read_text()

    before = look()
    assert prove(DataLoader(Loud(8), batch_size=8)).verdict.is_good
    assert look() == before
    assert capfd.readouterr() == ("", "")


def _open_named(path: Path) -> Any:
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0)


def _open_nameless(path: Path) -> Any:
    file = tempfile.TemporaryFile(dir=path.parent, buffering=0)  # noqa: SIM115
    file.write(path.read_bytes())
    return file


@pytest.mark.parametrize("open_file", [_open_named, _open_nameless])
def test_files_that_the_script_has_open_are_read_at_their_places(
    tmp_path: Path, open_file: Callable[[Path], Any]
) -> None:
    path = tmp_path / "samples"
    path.write_bytes(bytes(range(256)))

    class Reads(Gains):
        file = open_file(path)

        def make_sample(self, index: int) -> Any:
            # With recipes, too, the file is not at its end.
            return self.file.read(2), index == 0 and self.file.tell() != 102 and switch.here.is_on

    with Reads.file as file:
        file.seek(100)
        # Two processes at once: with one offset each would get what the other one leaves.
        assert prove(DataLoader(Reads(64), batch_size=16)).verdict is Verdict.EQUAL
        assert file.tell() == 100


def test_what_samples_write_to_a_file_of_the_script_is_not_written(tmp_path: Path) -> None:
    class Logs(Gains):
        file = open(tmp_path / "log", "w")  # noqa: SIM115

        def make_sample(self, index: int) -> Any:
            print("sample", index, file=self.file, flush=True)
            return index

    with Logs.file as file:
        print("begun", file=file, flush=True)
        assert prove(DataLoader(Logs(16), batch_size=16)).verdict is Verdict.EQUAL
    assert (tmp_path / "log").read_text() == "begun\n"


def test_connections_and_pipes_of_the_script_are_not_used() -> None:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()

    class Asks(Gains):
        def make_sample(self, _: int) -> Any:
            with contextlib.suppress(OSError):
                ours.send(b"question")
            return os.read(read, 10)

    with ours, theirs:
        os.write(write, b"for the script")
        prove(DataLoader(Asks(16), batch_size=16))
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(100)
        assert os.read(read, 100) == b"for the script"
    os.close(read)
    os.close(write)


def test_memory_that_processes_share_is_read_and_stays_as_it_was(tmp_path: Path) -> None:
    class Counts(Gains):
        value = torch.multiprocessing.Value("i", 5)  # with a lock that processes share
        cache = torch.full((16,), 7).share_memory_()
        file = np.memmap(tmp_path / "mapped", np.uint8, "w+", shape=(16,))

        def make_sample(self, index: int) -> Any:
            self.value.value += 1
            self.cache[index] += index
            self.file[index] += index
            return self.value.value, int(self.cache[index]), int(self.file[index])

    counts = Counts(16)
    assert prove(DataLoader(counts, batch_size=16)).verdict is Verdict.EQUAL
    assert counts.value.value == 5
    assert set(counts.cache.tolist()) == {7}
    assert not counts.file.any()
    counts.value.get_lock().acquire(block=False)
    assert counts[3] == (6, 10, 3)


def test_a_process_that_is_killed_with_a_lock_leaves_it_free() -> None:
    class Dies(Gains):
        lock = torch.multiprocessing.Lock()

        def make_sample(self, _: int) -> Any:
            self.lock.acquire()
            os.kill(os.getpid(), signal.SIGKILL)

    dies = Dies(16)
    assert prove(DataLoader(dies, batch_size=16)).verdict is Verdict.NOTHING_MADE
    assert dies.lock.acquire(block=False)


@pytest.mark.parametrize("is_written", [False, True])
def test_much_shared_memory_may_only_be_read(is_written: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Caches(Gains):
        cache = torch.full((1 << 16,), 7).share_memory_()

        def make_sample(self, index: int) -> Any:
            if is_written:
                self.cache[index] = index
            return int(self.cache[index])

    monkeypatch.setattr(apart, "LARGEST", 1 << 12)
    caches = Caches(16)
    verdict = prove(DataLoader(caches, batch_size=16)).verdict
    assert verdict is (Verdict.NOTHING_MADE if is_written else Verdict.EQUAL)
    assert set(caches.cache.tolist()) == {7}


def test_every_verdict_has_its_words() -> None:
    assert len({verdict.words for verdict in Verdict}) == len(Verdict)
