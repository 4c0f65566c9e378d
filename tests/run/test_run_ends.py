# SPDX-License-Identifier: Apache-2.0
"""Scripts that fail, are interrupted, never end by themselves or find a full disk: under run as bare."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from support.run_scripts import PHOTOS, end_command, make_photos, run_both, start_command

# A worker's error is caught and shown, then one of the training process ends the script.
FAILS = """
import gc, traceback

class Fails(Photos):
    def __getitem__(self, index):
        if index == 13:
            raise LookupError(f"sample {index} is not to be had")
        return super().__getitem__(index)

class Torn(Photos):
    def open(self, path): return super().open("torn.jpg" if "013" in path else path)

def show(dataset):
    seen = 0
    try:
        for images, labels in DataLoader(dataset, batch_size=4, num_workers=1):
            seen += 1
    except Exception:
        print(seen)
        traceback.print_exc(file=sys.stdout)

if __name__ == "__main__":
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.1  # seconds that a worker has to end in
    seed(3)
    for dataset in (Fails(), Torn()):
        show(dataset)
        gc.collect()  # torch complains where a worker of the next loader does that
    for images, labels in DataLoader(Fails(), batch_size=2):
        print(images.double().sum().item().hex(), flush=True)
"""
WAITS = """
if __name__ == "__main__":
    seed(4)
    for images, labels in DataLoader(Photos(), batch_size=4, num_workers=1):
        try:
            print(images.double().sum().item().hex(), flush=True)
            sys.stdin.read()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            raise
"""
# Loops that the script itself leaves, datasets without a length, samples that it skips.
LOOPS = """
class Forever(torch.utils.data.Sampler):
    def __init__(self, photos): self.photos = photos
    def __iter__(self):
        while True:
            yield from torch.randperm(len(self.photos)).tolist()

class Endless(Photos): pass
class Anew(Photos): pass

class Skips(Photos):
    def __getitem__(self, index):
        path, label = self.samples[index]
        try:
            return self.transform(Image.open("torn.jpg" if index % 3 else path).convert("RGB")), label
        except OSError as error:
            return torch.zeros(3, 64, 64), len(str(error))

class Stream(IterableDataset):
    def __init__(self): self.photos = Photos()
    def __iter__(self): return (self.photos[index] for index in range(len(self.photos)))

class Shards(IterableDataset):
    def __init__(self): self.photos = Photos()
    def __iter__(self):
        info = get_worker_info()
        return (self.photos[index] for index in range(info.id, len(self.photos), info.num_workers))

def some(loader, count):
    return epochs([batch for _, batch in zip(range(count), loader)], 1)

if __name__ == "__main__":
    seed(5)
    photos = Endless()
    print(json.dumps({
        "Endless": some(DataLoader(photos, batch_size=4, sampler=Forever(photos)), 10),
        "Anew": [some(DataLoader(Anew(), batch_size=4, shuffle=True), 2) for epoch in range(3)],
        "Skips": epochs(DataLoader(Skips(), batch_size=4)),
        "Stream": epochs(DataLoader(Stream(), batch_size=4)),
        "Shards": epochs(DataLoader(Shards(), batch_size=4, num_workers=2)),
    }))
"""
PLAIN = """
if __name__ == "__main__":
    seed(6)
    print(epochs(DataLoader(Photos(), batch_size=4)))
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A working folder with photographs, and one that a full disk cut off."""
    make_photos(tmp_path / "photos")
    whole = (tmp_path / "photos" / "013.jpg").read_bytes()
    (tmp_path / "torn.jpg").write_bytes(whole[: len(whole) // 2])
    return tmp_path


def _without_ours(text: str) -> list[str]:
    """Return lines without those of feedrate, and without frames of its functions and of Pillow's."""
    kept, is_ours = [], False
    for line in text.splitlines():
        if line.startswith("  File "):
            is_ours = "feedrate/run/" in line or "<feedrate " in line or "/PIL/" in line
        elif not line.startswith("    "):
            is_ours = line.startswith("feedrate run: ")
        if not is_ours:
            kept.append(line)
    return kept


def test_a_dataset_that_fails_ends_the_script_as_it_does_bare(photos: Path) -> None:
    bare, under = run_both(photos, PHOTOS + FAILS)
    assert (bare.code, under.code) == (1, 1)
    assert bare.stderr.startswith("Traceback (most recent call last):\n")
    assert bare.stderr.endswith("\nLookupError: sample 13 is not to be had\n")
    assert "OSError: image file is truncated" in bare.stdout
    assert _without_ours(under.stdout) == _without_ours(bare.stdout)
    assert _without_ours(under.stderr) == _without_ours(bare.stderr)
    # Samples that fail alike are equal, too.
    assert {loader["verdict"] for loader in under.report["loaders"]} == {"equal"}


def test_ctrl_c_ends_a_script_as_it_does_bare(photos: Path) -> None:
    script = photos / "script.py"
    script.write_text(PHOTOS + WAITS)
    said = []
    for is_under in (False, True):
        process = start_command(photos, script, is_under=is_under, has_group=True)
        assert process.stdout is not None
        first = process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        ended = end_command(process, script)
        assert ended.code in (130, -signal.SIGINT)
        said.append([first, ended.stdout, _without_ours(ended.stderr)[-1]])
    bare, under = said
    assert under == bare
    assert under[1:] == ["interrupted\n", "KeyboardInterrupt"]
    assert ended.loader("Photos")["is_taken"]


def test_loops_without_an_end_and_datasets_without_a_length_are_as_bare(photos: Path) -> None:
    bare, under = run_both(photos, PHOTOS + LOOPS)
    assert (bare.code, bare.stderr, under.code) == (0, "", 0)
    assert json.loads(under.stdout) == json.loads(bare.stdout)
    loaders = under.report["loaders"]
    assert [loader["dataset"] for loader in loaders] == ["Endless", "Anew", "Skips", "Stream", "Shards"]
    assert all(loader["is_taken"] for loader in loaders), loaders
    images = {loader["dataset"]: loader["images"] for loader in loaders}
    assert images == {"Endless": 36, "Anew": 20, "Skips": 11, "Stream": 28, "Shards": 32}
    assert under.loader("Skips")["left"] == {"damaged files": 17}
    assert under.loader("Shards")["samples"] is None


def test_a_full_disk_for_entry_points_is_said_and_changes_nothing(photos: Path, small_disk: Path) -> None:
    with open(small_disk / "full", "wb", buffering=0) as file:
        file.write(bytes(1 << 20))
    bare, under = run_both(photos, PHOTOS + PLAIN, options=["--cache", str(small_disk)])
    assert (bare.code, bare.stderr, under.code) == (0, "", 0)
    assert under.stdout == bare.stdout
    assert under.loader("Photos")["images"] == 28
    (note,) = under.report["notes"]
    assert "No space left on device" in note
    assert under.stderr.count("No space left on device") == 1


def test_entry_points_are_found_in_the_next_run(photos: Path) -> None:
    script = photos / "script.py"
    script.write_text(PHOTOS + PLAIN)
    first, second = (end_command(start_command(photos, script, is_under=True), script) for _ in range(2))
    assert first.stdout == second.stdout
    # Nothing is left to scan: the first epoch is as quick as those after it.
    assert second.loader("Photos")["gain_first"] == second.loader("Photos")["gain"]
    assert first.loader("Photos")["gain_first"] < first.loader("Photos")["gain"]
