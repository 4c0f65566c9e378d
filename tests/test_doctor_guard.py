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

from doctor_scripts import SAVERS, Run, run_script
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.hook.feedrate_hook.guard import Guard

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
    assert saving_run.phases() == [layout.DRAIN, layout.AGAIN, layout.REPLAY, layout.REPLAY_HALF_BATCH]
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
