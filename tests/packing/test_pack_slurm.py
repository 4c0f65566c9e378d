# SPDX-License-Identifier: Apache-2.0
"""What feedrate hands to Slurm and takes from it, with programs in Slurm's place (a real one: slow/)."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from feedrate import Engine, PackOptions, Recode, pack
from feedrate.errors import FeedrateError, StorageError, UsageError
from feedrate.format.fields import Coding, Field, Kind
from feedrate.packing.build.plan import ShardTask
from feedrate.packing.build.slurm import dump_tasks, load_tasks
from feedrate.packing.mapping import Map
from support.images import read_tree
from support.traps import Traps

SLURM = PackOptions(shard_bytes=10_000, engine=Engine("slurm", array_size=2, minutes=5))

# It runs the jobs of an array one after the other; BEFORE is Python that runs first, knowing `folder`.
SBATCH = """#!{python}
import os, re, subprocess, sys
script = sys.stdin.read()
words = dict(w.partition("=")[::2] for w in sys.argv[1:])
folder = os.path.dirname(words["--output"]).replace("%%", "%")
with open(os.environ["SEEN"], "a") as seen:
    print(oct(os.stat(folder).st_mode & 0o777), len(os.listdir(folder)), *sys.argv[1:], file=seen)
{before}
last = int(re.match("0-([0-9]+)", words["--array"])[1])
for index in range(last + 1):
    environment = dict(os.environ, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID=str(index))
    subprocess.run(["bash"], input=script, text=True, env=environment, check=False)
print("7;here")
"""


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setattr("feedrate.packing.build.slurm._POLL_S", 0.0)
    return tmp_path / "seen"


@pytest.fixture
def slurm(tmp_path: Path, seen: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    assert not seen.exists()

    def install(before: str = "") -> None:
        programs = tmp_path / "bin"
        programs.mkdir()
        scripts = {
            "sbatch": SBATCH.format(python=sys.executable, before=before),
            "squeue": "#!/bin/sh\n",
            "scancel": "#!/bin/sh\n",
        }
        for name, text in scripts.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    return install


def test_a_slurm_job_runs_no_module_of_the_working_folder(
    jpeg_folder: Path, tmp_path: Path, slurm: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    traps = Traps(tmp_path)
    monkeypatch.setenv("RAN", traps.environ["RAN"])
    slurm("os.chdir(os.environ['WORK'])")
    monkeypatch.setenv("WORK", str(traps.folder))
    pack(jpeg_folder, tmp_path / "pack", SLURM)
    assert traps.what_ran() == ""


def test_slurm_jobs_make_the_pack_of_one_process_and_find_their_tasks_in_no_file_of_the_target(
    jpeg_folder: Path, tmp_path: Path, slurm: Callable[..., None], seen: Path
) -> None:
    slurm()
    pack(jpeg_folder, tmp_path / "local", PackOptions(shard_bytes=10_000, workers=1))
    target = tmp_path / "100% of p"
    pack(jpeg_folder, target, dataclasses.replace(SLURM, workers=2))
    assert read_tree(target) == read_tree(tmp_path / "local")
    (line,) = seen.read_text().splitlines()
    assert line.startswith("0o700 0 ")
    assert "--array=0-1%2" in line
    assert "--time=5" in line
    assert "100%% of p/packing.jobs/%A_%a.log" in line


def test_a_job_hands_its_error_back_with_its_kind(
    jpeg_folder: Path, tmp_path: Path, slurm: Callable[..., None]
) -> None:
    slurm("os.unlink(os.path.join(os.path.dirname(folder), 'packing.listing'))")
    with pytest.raises(StorageError, match=r"does not see .*/p$") as caught:
        pack(jpeg_folder, tmp_path / "p", SLURM)
    assert caught.value.hint == "source and pack must lie where every node finds them under the same path"


@pytest.mark.parametrize(
    ("result", "words"),
    [("no JSON", "wrote a result that cannot be read"), ('{"error": 3}', "that cannot be read")],
)
def test_a_result_that_is_none_counts_as_a_lost_job(
    jpeg_folder: Path, tmp_path: Path, slurm: Callable[..., None], result: str, words: str
) -> None:
    slurm(
        "script = 'exit'\n"
        f"for i in range(2): open(os.path.join(folder, '7_' + str(i) + '.json'), 'w').write({result!r})"
    )
    with pytest.raises(FeedrateError, match=f"was begun 3 times and never finished: .*{words}"):
        pack(jpeg_folder, tmp_path / "p", SLURM)


def test_a_job_without_a_result_is_named_with_its_log(
    jpeg_folder: Path, tmp_path: Path, slurm: Callable[..., None]
) -> None:
    slurm("script = 'exit'")
    with pytest.raises(FeedrateError, match=r"Slurm job 7_0 ended without a word; see .*/7_0\.log"):
        pack(jpeg_folder, tmp_path / "p", SLURM)


def test_a_folder_for_jobs_that_is_a_link_is_refused(
    jpeg_folder: Path, tmp_path: Path, slurm: Callable[..., None], seen: Path
) -> None:
    slurm("sys.exit('not now')")
    with pytest.raises(FeedrateError, match="not now"):
        pack(jpeg_folder, tmp_path / "p", SLURM)
    seen.unlink()
    (tmp_path / "p" / "packing.jobs").rename(tmp_path / "elsewhere")
    (tmp_path / "p" / "packing.jobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FeedrateError, match=r"packing\.jobs is not a folder of yours alone"):
        pack(jpeg_folder, tmp_path / "p", SLURM)
    assert not seen.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user needs root")
def test_a_folder_for_jobs_that_another_user_put_there_is_refused_by_jobs_and_by_the_command(
    jpeg_folder: Path, tmp_path: Path, slurm: Callable[..., None], seen: Path
) -> None:
    slurm("os.chown(folder, 12345, 12345)")
    with pytest.raises(FeedrateError, match=r"packing\.jobs is not a folder of yours alone"):
        pack(jpeg_folder, tmp_path / "p", SLURM)
    assert not list((tmp_path / "p").glob("shard-*"))
    seen.unlink()
    with pytest.raises(FeedrateError, match=r"packing\.jobs is not a folder of yours alone"):
        pack(jpeg_folder, tmp_path / "p", SLURM)
    assert not seen.exists()


def test_slurm_refuses_in_words(jpeg_folder: Path, tmp_path: Path, slurm: Callable[..., None]) -> None:
    slurm("sys.exit('sbatch: error: invalid partition specified: gpu')")
    with pytest.raises(
        FeedrateError, match=r"Slurm did not take the jobs: .*invalid partition specified: gpu"
    ):
        pack(jpeg_folder, tmp_path / "p", SLURM)


def test_a_function_that_has_no_name_cannot_go_to_slurm(jpeg_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be imported by the processes that pack"):
        pack(
            jpeg_folder,
            tmp_path / "p",
            PackOptions(workers=1, engine=Engine("slurm")),
            map=lambda sample: sample,
        )


def test_tasks_come_to_a_job_as_they_were_handed_over() -> None:
    made = (Field("image", Kind.IMAGE, coding=Coding.RAW), Field("label", Kind.NUMBER, dtype="int64"))
    found = Map("maps:shrink", "/home/\udcff", "0123", modules=(("helper", "4567"),))
    one = ShardTask(
        "s3://b", "/p", 3, 0, 7, "plan", 5, Recode(resize=64), 9, 8, False, "hdf5", found, made, 150
    )
    two = one._replace(number=4, first=7, last=9, source_bytes=1, expected_bytes=2)
    groups = [(one,), (two, one)]
    assert load_tasks(dump_tasks(groups, 2)) == (groups, 2)
    plain = [(one._replace(map=found._replace(modules=None)),)]
    assert load_tasks(dump_tasks(plain, 1)) == (plain, 1)
