# SPDX-License-Identifier: Apache-2.0
"""More ways in which a spoilt run could write or leave its loop, each in a script of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedrate.doctor.hook.feedrate_hook import layout
from support.doctor_scripts import SAVERS, run_script

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

# What the script does at every step; what the guard does about it: "held" (the loop goes on), or "end".
STEPS = {
    "torch.jit.save": ("torch.jit.save(scripted, 'out/model.pt')", "held"),
    "a scripted module's save": ("scripted.save('out/model.pt')", "held"),
    "opencv": ("cv2.imwrite('out/image.png', numpy.zeros((4, 4, 3), numpy.uint8))", "held"),
    "parquet": ("pyarrow.parquet.write_table(pyarrow.table({'step': [step]}), 'out/t.parquet')", "held"),
    "a C++ writer that nobody knows": ("pyarrow.OSFile('out/os.bin', 'wb').write(b'x')", "end"),
    "mmap of a new file": ("numpy.memmap('out/m.bin', dtype='u1', mode='w+', shape=(9,))[:] = 1", "held"),
    "a file that is rolled over": ("rolling.info('x' * 100)", "held"),
    "a file opened in unbuffered mode": ("open('out/u.bin', 'ab', buffering=0).write(b'x')", "held"),
    "a function imported by name": ("remove('out/victim.txt') if step >= 20 else None", "held"),
    "a shell command": ("os.system('echo x >> out/shell.txt')", "end"),
    "a program": ("subprocess.run(['touch', f'out/{step}'], check=True)", "end"),
    "a pipe to a program": ("cat.stdin.write(b'x'); cat.stdin.flush()", "held"),
    "a database opened again": ("sqlite3.connect('out/db.sqlite')", "end"),
    "a queue to another process": ("queue.put(step)", "end"),
    "a socket": ("client.sendall(b'x')", "end"),
    "a message without a connection": ("datagram.sendto(b'x', server.getsockname())", "held"),
    "a process of its own": ("Process(target=print).start()", "end"),
    "exec in a child": ("os.fork() or os._exit(0)", "end"),
    "hard link": ("os.link('out/victim.txt', f'out/hard{step}')", "held"),
    "truncation of an open file": ("opened.truncate(0)", "held"),
    "an open file read back": ("opened.seek(0); assert opened.read().startswith('text')", "held"),
    "a temporary folder": ("tempfile.TemporaryDirectory(dir='out').cleanup()", "held"),
}


SCRIPT = """
import logging.handlers, multiprocessing, numpy, pickle, socket, sqlite3, subprocess, tempfile
import pyarrow, pyarrow.parquet
from multiprocessing import Process
from os import remove

scripted = torch.jit.script(model)
rolling = logging.getLogger("rolling")
rolling.setLevel(logging.INFO)
rolling.addHandler(logging.handlers.RotatingFileHandler("out/rolling.txt", maxBytes=250, backupCount=2))
open("out/victim.txt", "w").write("text")
opened = open("out/opened.txt", "w+")
opened.write("text")
cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=open("out/cat.txt", "w"))
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

def listen(queue):
    while True:
        with open("out/queue.txt", "a") as file:
            file.write(str(queue.get()))

queue = multiprocessing.Queue()
listener = Process(target=listen, args=(queue,), daemon=True)
if "queue" in {what!r}:
    listener.start()
if "opencv" in {what!r}:
    import cv2
for step, (x, y) in enumerate(make()):
    train(x, y)
    {code}
"""


@pytest.mark.parametrize("what", STEPS)
def test_what_a_step_does_leaves_no_trace_once_the_run_is_spoilt(tmp_path: Path, what: str) -> None:
    if what == "opencv":
        pytest.importorskip("cv2", reason="OpenCV is not installed: pip install opencv-python-headless")
    code, outcome = STEPS[what]
    run = run_script(tmp_path, SCRIPT.format(code=code, what=what))
    before, after = run.tree("before"), run.tree("out")
    if (
        "queue" in what or "pipe" in what
    ):  # another process writes what it was sent before, when it gets to it
        before.pop("queue.txt", None), after.pop("queue.txt", None)
        before.pop("cat.txt", None), after.pop("cat.txt", None)
    assert before == after
    assert run.code == 0
    assert run.leftovers == ()
    assert run.of("end")[-1]["how"] == "experiments"
    if outcome == "held":
        assert run.of("end")[-1]["error"] is None
        assert layout.REPLAY in run.phases()
    else:
        assert run.of("end")[-1]["error"] is not None
        assert layout.REPLAY not in run.phases()


@pytest.mark.parametrize("has_landlock", [True, False])
def test_the_functions_of_python_are_held_with_and_without_the_fence(
    tmp_path: Path, has_landlock: bool
) -> None:
    run = run_script(tmp_path, SAVERS, settings={"landlock": has_landlock})
    assert run.tree("out") == run.tree("before")
    assert run.of("end")[-1]["error"] is None


LEAVINGS = {
    "break": "break",
    "exit": "sys.exit(5)",
    "an interrupt": "raise KeyboardInterrupt",
    "another loader": "next(iter(make()))",
}


@pytest.mark.parametrize("how", LEAVINGS)
def test_leaving_the_loop_ends_the_run_before_it_can_save(tmp_path: Path, how: str) -> None:
    run = run_script(
        tmp_path,
        f"""
        try:
            for step, (x, y) in enumerate(make()):
                train(x, y)
                if step > STEPS + 10:
                    {LEAVINGS[how]}
            print("left")
            torch.save(model, "out/final.pt")
        finally:
            torch.save(model, "out/finally.pt")
        """,
        settings={"experiment_seconds": 0.5},  # more than a busy machine needs for ten steps
    )
    assert run.code == (130 if how == "an interrupt" else 0)
    assert run.output == run.errors == ""
    assert run.tree("out") == {}
    assert run.detail(layout.REPLAY)["cut"] is True
    assert run.leftovers == ()


def test_an_open_database_cannot_be_held_back_so_the_loop_is_left_alone(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        import sqlite3
        database = sqlite3.connect("out/db.sqlite")
        database.execute("create table losses (loss)")
        for x, y in make():
            database.execute("insert into losses values (?)", (train(x, y),))
            database.commit()
        """,
    )
    assert run.phases() == [layout.DRAIN, layout.AGAIN]
    assert "db.sqlite is open for writing" in run.of("skipped")[0]["why"]
    assert run.tree("out") == run.tree("before")


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_of_every_kind_are_gone_at_the_end(tmp_path: Path, context: str) -> None:
    run = run_script(
        tmp_path,
        f"""
        def main():
            for epoch in range(9):
                for x, y in make(num_workers=2, multiprocessing_context={context!r}, persistent_workers=True):
                    train(x, y)
        if __name__ == "__main__":
            main()
        """,
        settings={"try_workers": [1]},
    )
    assert run.phases() == [layout.DRAIN, layout.AGAIN, layout.REPLAY, layout.TRIAL, layout.TRIAL]
    assert (run.output, run.errors) == ("", "")
    assert run.leftovers == ()


def test_two_ranks_make_the_same_number_of_steps_and_end_together(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data.distributed import DistributedSampler
        dist.init_process_group("gloo")
        data = Numbers()
        loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data), num_workers=1)
        model = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for epoch in range(99):
            for x, y in loader:
                train(x, y)
            if dist.get_rank() == 0:
                torch.save(model.module.state_dict(), "out/last.pt")
        dist.destroy_process_group()
        """,
        launcher=["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"],
    )
    assert run.code == 0, run.errors
    replays = [fact["batches"] for fact in run.of("phase") if fact["phase"] == layout.REPLAY]
    assert len(replays) == 2
    assert replays[0] == replays[1]
    ends = [fact for fact in run.of("end") if fact["how"] == "experiments"]
    assert [end["error"] for end in ends] == [None, None]
    assert run.tree("out") == {}
    assert run.leftovers == ()


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_dataset_and_its_workers_write_nothing_however_they_were_started(
    tmp_path: Path, context: str
) -> None:
    run = run_script(
        tmp_path,
        f"""
        class Logged(Numbers):
            def __getitem__(self, index):
                with open("out/asked.txt", "a") as file:
                    print(index, file=file)
                return super().__getitem__(index)

        def begin(worker):
            with open("out/begun.txt", "a") as file:
                print(worker, file=file)

        if __name__ == "__main__":
            for x, y in DataLoader(Logged(), batch_size=BATCH, num_workers=2, worker_init_fn=begin,
                                   multiprocessing_context={context!r}):
                train(x, y)
        """,
    )
    lines = (tmp_path / "out" / "asked.txt").read_text().splitlines()
    assert 20 * 4 <= len(lines) <= (20 + 4) * 4
    assert sorted((tmp_path / "out" / "begun.txt").read_text().split()) == ["0", "1"]
    assert layout.REPLAY in run.phases()
    assert run.leftovers == ()


def test_a_dataset_may_use_temporary_files_and_programs_in_the_experiments(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        import subprocess, tempfile
        class Converted(Numbers):
            def __getitem__(self, index):
                with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                    print(index, file=file, flush=True)
                    text = subprocess.run(["cat", file.name], stdout=subprocess.PIPE, check=True).stdout
                return torch.full((3,), float(text)), index % 2

        for x, y in DataLoader(Converted(), batch_size=BATCH):
            train(x, y)
        """,
    )
    assert run.phases() == [layout.DRAIN, layout.AGAIN, layout.REPLAY]
    assert run.of("hook-error") == []
    assert run.leftovers == ()


def test_a_dataset_that_writes_to_a_mapped_file_does_not_reach_it_in_the_experiments(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        import numpy
        numpy.zeros(400).tofile("out/seen.bin")
        class Counted(Numbers):
            def __init__(self):
                self.seen = numpy.memmap("out/seen.bin", dtype="float64")
            def __getitem__(self, index):
                self.seen[index] += 1
                return super().__getitem__(index)

        for x, y in DataLoader(Counted(), batch_size=BATCH, num_workers=1):
            train(x, y)
        """,
    )
    import numpy

    assert 80 <= numpy.fromfile(tmp_path / "out" / "seen.bin").sum() <= 88
    assert layout.REPLAY in run.phases()


def test_a_daemon_thread_that_saves_is_waited_for(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        import threading, time
        def save():
            with open("out/last.pt", "wb") as file:
                for _ in range(100):
                    file.write(bytes(2000))
                    time.sleep(0.02)
        for step, (x, y) in enumerate(make()):
            train(x, y)
            if step == STEPS - 1:
                threading.Thread(target=save, daemon=True).start()
        """,
    )
    assert run.tree("out") == {"last.pt": bytes(200_000)}
    assert layout.REPLAY in run.phases()


@pytest.mark.parametrize(
    "start",
    ["threading.Thread(target=save).start()", "concurrent.futures.ThreadPoolExecutor(1).submit(save)"],
    ids=["thread", "pool"],
)
def test_a_thread_that_does_nothing_before_it_opens_its_file_is_waited_for(
    tmp_path: Path, start: str
) -> None:
    run = run_script(
        tmp_path,
        f"""
        import concurrent.futures, threading, time
        def save():
            time.sleep(3)  # for the answer of a server, say
            with open("out/last.pt", "wb") as file:
                file.write(bytes(200_000))
        for step, (x, y) in enumerate(make()):
            train(x, y)
            if step == STEPS - 1:
                {start}
        """,
    )
    assert run.tree("out") == {"last.pt": bytes(200_000)}
    assert layout.REPLAY in run.phases()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_large_file_that_is_open_for_writing_is_read_as_it_is(tmp_path: Path, workers: int) -> None:
    run = run_script(
        tmp_path,
        f"""
        with open("large.bin", "wb") as file:
            file.truncate(70 << 20)
            file.seek(69 << 20)
            file.write(bytes([7]) * 400)

        class Stored(Numbers):
            def __init__(self):
                self.file = open("large.bin", "r+b", buffering=0)
            def __getitem__(self, index):
                assert os.pread(self.file.fileno(), 1, (69 << 20) + index) == bytes([7])
                with open("large.bin", "r+b") as again:
                    again.seek((69 << 20) + index)
                    assert again.read(1) == bytes([7])
                return super().__getitem__(index)

        for x, y in DataLoader(Stored(), batch_size=BATCH, num_workers={workers}):
            train(x, y)
        """,
    )
    assert run.phases() == [layout.DRAIN, layout.AGAIN, layout.REPLAY]
    assert run.of("hook-error") == []
