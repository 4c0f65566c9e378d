# SPDX-License-Identifier: Apache-2.0
"""From the first spoilt step on nothing of the run is written: files are compared byte for byte."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import util
from multiprocessing.connection import Client, Listener
from pathlib import Path
from types import SimpleNamespace

import pytest

from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.hook.feedrate_hook.guard.guard import Guard
from support.doctor_scripts import BATCH, PRELUDE, SAVERS, STEPS, Run, run_script

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def saving_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_script(tmp_path_factory.mktemp("savers"), SAVERS)


def test_nothing_that_a_script_saves_changes_after_the_first_experiment(saving_run: Run) -> None:
    before, after = saving_run.tree("before"), saving_run.tree("out")
    assert sorted(before) == sorted(after)
    assert [name for name in before if before[name] != after[name]] == []
    assert saving_run.leftovers == ()


def test_the_loop_of_a_script_that_saves_much_is_measured_to_the_end(saving_run: Run) -> None:
    assert saving_run.phases() == [layout.DRAIN, layout.AGAIN, layout.REPLAY]
    assert saving_run.of("end")[-1]["error"] is None


def test_what_was_written_before_is_on_the_disk_though_nobody_closed_the_file(saving_run: Run) -> None:
    lines = (saving_run.folder / "out" / "lines.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == [str(step) for step in range(20)]


@pytest.mark.parametrize("what", ["torch.save", "os.remove", "os.replace", "shutil.copy", "open for writing"])
def test_the_report_can_say_what_was_held_back_and_where(saving_run: Run, what: str) -> None:
    assert any(what in fact["what"] and "train.py:" in fact["what"] for fact in saving_run.of("blocked"))


def test_a_folder_that_was_not_made_is_empty_for_the_one_who_made_it(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        import pathlib
        for step, (x, y) in enumerate(make()):
            train(x, y)
            folder = pathlib.Path(f"out/{step}")
            folder.mkdir()
            os.makedirs(name=f"out/more/{step}")
            found = [*os.listdir(folder), *folder.iterdir(), *os.scandir(f"out/more/{step}")]
            assert not found
            if step >= STEPS:
                try:
                    os.listdir("nowhere")
                except FileNotFoundError:
                    continue
                raise AssertionError("nobody made this one")
        """,
    )
    assert run.of("end")[-1]["error"] is None
    assert run.tree("before") == run.tree("out")
    assert "out/more/20" not in {str(path) for path in run.folder.rglob("*")}


def test_no_code_after_the_loop_can_write(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        import atexit
        def leave(name):
            torch.save(model.state_dict(), f"out/{name}.pt")
            open(f"out/{name}.txt", "w").write(name)
            print(name, flush=True)
        atexit.register(leave, "atexit")
        sys.excepthook = lambda *error: leave("hook")
        class Closing:
            def __enter__(self):
                return self
            def __exit__(self, *error):
                leave("exit")
            def __del__(self):
                leave("del")
        closing = Closing()
        steps = 0
        try:
            with closing:
                for x, y in make():
                    train(x, y)
                    steps += 1
                    if steps > STEPS + 8:
                        raise ValueError("broken")
        except ValueError:
            leave("except")
            raise
        finally:
            leave("finally")
        """,
        settings={"experiment_seconds": 0.5},  # more than a busy machine needs for eight steps
    )
    assert run.code == 0
    assert (run.output, run.errors) == ("", "")
    assert run.tree("out") == {}
    assert run.phases() == [layout.DRAIN, layout.AGAIN, layout.REPLAY]
    assert run.detail(layout.REPLAY)["cut"] is True
    assert run.of("end")[-1]["error"] == "ValueError: broken"


# A dataset that keeps a list of what was asked of it; the second argument says when its file is opened.
LOGGING = """
class Logged(Numbers):
    def __init__(self, once):
        self.file = open("out/asked.txt", "a") if once else None
    def __getitem__(self, index):
        file = self.file or open("out/asked.txt", "a")
        print(index, file=file, flush=True)
        return super().__getitem__(index)
"""


def count_asked(run: Run) -> int:
    return len((run.folder / "out" / "asked.txt").read_text().splitlines())


@pytest.mark.parametrize(("workers", "once"), [(0, False), (2, True)])
def test_what_a_dataset_writes_when_the_doctor_asks_it_is_held_back(
    tmp_path: Path, workers: int, once: bool
) -> None:
    run = run_script(
        tmp_path,
        f"""
        for x, y in DataLoader(Logged({once}), batch_size=BATCH, num_workers={workers}):
            train(x, y)
        """,
        prelude=PRELUDE + LOGGING,
        settings={"try_workers": [1]},
    )
    ahead = 2 * workers  # batches that the real run had asked for when it stood still
    assert BATCH * STEPS <= count_asked(run) <= BATCH * (STEPS + ahead)
    assert run.phases() == [layout.DRAIN, layout.AGAIN, layout.REPLAY, *[layout.TRIAL] * 2]
    assert run.of("end")[-1]["error"] is None
    assert run.leftovers == ()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_look_after_a_scripts_end_writes_nothing_and_leaves_the_script_its_own_exit(
    tmp_path: Path, workers: int
) -> None:
    run = run_script(
        tmp_path,
        f"""
        import atexit
        data = Logged(True)
        atexit.register(lambda: open("out/end.txt", "w").write("the end"))
        atexit.register(lambda: print(-1, file=data.file))
        part = torch.utils.data.Subset(data, range(40))
        loader = DataLoader(part, batch_size=BATCH, num_workers={workers})
        for x, y in loader:
            train(x, y)
        """,
        prelude=PRELUDE + LOGGING,
    )
    assert run.phases() == [layout.DRAIN, layout.AGAIN]
    assert count_asked(run) == 41
    assert run.tree("out")["end.txt"] == b"the end"
    assert (run.code, run.output, run.errors, run.leftovers) == (0, "", "", ())


def test_a_dataset_that_needs_what_it_writes_ends_the_experiments_with_a_reason(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        class Converted(Numbers):
            def __getitem__(self, index):
                with open(f"out/{index}.txt", "w") as file:
                    file.write(str(index))
                return torch.full((3,), float(open(f"out/{index}.txt").read())), index % 2

        for x, y in DataLoader(Converted(), batch_size=BATCH):
            train(x, y)
        """,
    )
    reasons = {fact["phase"]: fact["why"] for fact in run.of("skipped")}
    assert reasons[layout.DRAIN].startswith("it failed: FileNotFoundError")
    assert run.tree("out") == run.tree("before")
    assert run.of("end")[-1]["error"] is None


# Writes for longer than all experiments take, a little at a time.
SAVING = """
import threading, time
def save(path):
    with open(path, "wb") as file:
        for _ in range(100):
            file.write(bytes(2000))
            time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "start",
    [
        "threading.Thread(target=save, args=('out/last.pt',)).start()",
        "multiprocessing.Process(target=save, args=('out/last.pt',)).start()",
    ],
    ids=["thread", "process"],
)
def test_a_checkpoint_that_is_being_written_is_waited_for(tmp_path: Path, start: str) -> None:
    run = run_script(
        tmp_path,
        f"""
        import multiprocessing
        for step, (x, y) in enumerate(make()):
            train(x, y)
            if step == STEPS - 1:
                {start}
        """,
        prelude=PRELUDE + SAVING,
    )
    assert run.tree("out") == {"last.pt": bytes(200_000)}
    assert run.phases() == [layout.DRAIN, layout.AGAIN, layout.REPLAY]
    assert run.leftovers == ()


def test_a_writer_that_does_not_come_to_its_end_is_left_alone_and_there_are_no_experiments(
    tmp_path: Path,
) -> None:
    run = run_script(
        tmp_path,
        """
        import threading
        ended = threading.Event()
        def save():
            with open("out/last.pt", "wb") as file:
                while not ended.is_set():
                    file.write(b"x")
                    sum(range(100))
                file.write(b"the end")
        threading.Thread(target=save, name="saver").start()
        for x, y in make():
            train(x, y)
        ended.set()
        sys.exit(4)
        """,
        settings={"writers_seconds": 0.2},
    )
    assert run.code == 4
    assert run.phases() == []
    assert run.tree("out")["last.pt"].endswith(b"the end")
    assert {fact["why"].split(" after")[0] for fact in run.of("skipped")} <= {
        "the thread saver was still at work",
        f"whoever writes {run.folder}/out/last.pt was still at work",
    }
    assert run.of("end")[-1]["how"] == "script"


def test_an_idle_thread_that_was_there_before_the_loop_is_not_waited_for(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        import threading
        threading.Thread(target=os.read, args=(os.pipe()[0], 1)).start()  # nothing comes
        for x, y in make():
            train(x, y)
        """,
        settings={"writers_seconds": 0.2},
    )
    assert run.phases() == [layout.DRAIN, layout.AGAIN, layout.REPLAY]


def test_a_thread_that_reports_to_standard_output_is_not_waited_for_where_that_is_a_file(
    tmp_path: Path,
) -> None:
    run = run_script(
        tmp_path,
        """
        import threading
        os.dup2(os.open("out/log.txt", os.O_WRONLY | os.O_CREAT), 1)
        def report(out, pipe):
            os.read(pipe, 1)  # nothing comes
            print("the end", file=out)
        threading.Thread(target=report, args=(sys.stdout, os.pipe()[0]), daemon=True).start()
        for x, y in make():
            train(x, y)
        """,
        settings={"writers_seconds": 0.2},
    )
    assert run.phases() == [layout.DRAIN, layout.AGAIN, layout.REPLAY]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="there is no /proc")
def test_sockets_of_workers_have_short_paths_where_temporary_folders_have_long_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / ("long" * 20)
    run.mkdir()
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {})
    guard = SimpleNamespace(_scope=SimpleNamespace(run_folder=str(run)))
    Guard._keep_sockets_of_workers_short(guard)  # type: ignore[arg-type]
    with Listener(family="AF_UNIX") as listener, Client(listener.address) as client, listener.accept() as end:
        client.send_bytes(b"a batch")
        assert end.recv_bytes() == b"a batch"
        assert len(os.listdir(run / "mp")) == 1
    os.close(int(Path(util.get_temp_dir()).name))
