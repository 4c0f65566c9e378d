# SPDX-License-Identifier: Apache-2.0
"""From the first spoilt step on nothing of the run is written: files before and after are compared byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor_scripts import Run, run_script
from feedrate.doctor.hook.feedrate_hook import layout

pytest.importorskip("torch")

SAVERS = """
import csv, glob, io, json, logging, pathlib, pickle, tempfile, threading, zipfile
import numpy
from PIL import Image
from torch import save

out = pathlib.Path("out")
logging.basicConfig(filename="out/log.txt", level=logging.INFO)
lines = open("out/lines.txt", "w")  # never flushed: what it holds at the first experiment must reach the disk
table = csv.writer(open("out/table.csv", "w", newline=""))
raw = os.open("out/raw.bin", os.O_WRONLY | os.O_CREAT)
(out / "kept").mkdir()

for step, (x, y) in enumerate(make()):
    loss = train(x, y)
    text = f"{step} {loss}"
    logging.info(text)
    lines.write(text + chr(10))
    table.writerow([step, loss])
    os.write(raw, text.encode())
    torch.save(model.state_dict(), f"out/step{step}.pt")
    if os.path.exists(f"out/step{step - 2}.pt"):
        os.remove(f"out/step{step - 2}.pt")
    save(model.state_dict(), "out/by_name.pt")
    with open("out/new.pt", "wb") as file:
        torch.save(model.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace("out/new.pt", "out/replaced.pt")
    numpy.save("out/array.npy", x.numpy())
    numpy.savez("out/arrays.npz", x=x.numpy())
    numpy.savetxt("out/array.txt", x.numpy())
    x.numpy().tofile("out/array.bin")
    Image.new("RGB", (4, 4), (step % 255, 0, 0)).save("out/image.png")
    (out / "text.txt").write_text(text)
    (out / f"step{step}").mkdir(exist_ok=True)
    if step:
        shutil.rmtree(out / f"step{step - 1}")
    shutil.copy("out/text.txt", f"out/kept/{step}.txt")
    for old in sorted(glob.glob("out/kept/*"), key=os.path.getmtime)[:-3]:
        pathlib.Path(old).unlink()
    pickle.dump(text, open("out/object.pkl", "wb"))
    json.dump(text, open("out/object.json", "w"))
    with zipfile.ZipFile("out/archive.zip", "a") as archive:
        archive.writestr(f"{step}.txt", text)
    with tempfile.NamedTemporaryFile(dir="out", suffix=".tmp", delete=False) as file:
        file.write(text.encode())
    os.rename(file.name, "out/renamed.tmp")
    thread = threading.Thread(target=lambda: pathlib.Path("out/thread.txt").write_text(text))
    thread.start()
    thread.join()
    memory = io.BytesIO()
    torch.save(model.state_dict(), memory)  # in memory it is no harm
    assert torch.load(io.BytesIO(memory.getvalue()))
    os.symlink("text.txt", f"out/link{step}")
    os.truncate("out/renamed.tmp", 1)
"""


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
    )
    assert run.code == 0
    assert (run.output, run.errors) == ("", "")
    assert run.tree("out") == {}
    assert run.phases() == [layout.DRAIN, layout.AGAIN, layout.REPLAY]
    assert run.detail(layout.REPLAY)["cut"] is True
    assert run.of("end")[-1]["error"] == "ValueError: broken"


def test_a_file_mapped_for_writing_is_not_held_back_so_the_loop_is_left_alone(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        import numpy
        numpy.zeros(100).tofile("out/map.bin")
        predictions = numpy.memmap("out/map.bin", dtype="float64", mode="r+", shape=(100,))
        for step, (x, y) in enumerate(make()):
            predictions[step] = train(x, y)
        """,
    )
    assert run.phases() == [layout.DRAIN, layout.AGAIN]
    assert "map.bin is mapped into memory for writing" in run.of("skipped")[0]["why"]
    assert run.tree("out") == run.tree("before")
