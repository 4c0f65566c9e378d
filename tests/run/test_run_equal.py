# SPDX-License-Identifier: Apache-2.0
"""Training under `feedrate run` is the bare run's to the last bit: batches of many kinds, and losses."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from support.run_scripts import PHOTOS, TRAINING, Ended, make_photos, read_losses, run_both

COUNT = 16
# The loaders of a script, each with a dataset class of its own, so that each is proved.
BATCHES = """
class Bicubic(Photos): filter = Image.Resampling.BICUBIC
class Workers(Photos): pass
class Persistent(Photos): filter = Image.Resampling.LANCZOS
class Spawned(Bicubic): pass
class Bytes(Photos):
    def open(self, path):
        with open(path, "rb") as file:
            return Image.open(io.BytesIO(file.read()))
class Opened(Photos):
    def __getitem__(self, index):
        with open(self.samples[index][0], "rb") as file, Image.open(file) as image:
            return self.transform(image.convert("RGB")), file.tell()
class Gray(Photos):
    mode = "L"
    def transform(self, image):
        return torch.from_numpy(np.asarray(ImageOps.mirror(image.resize((96, 64)))).copy())
class Tenfold(Photos):
    def transform(self, image): return torch.stack([super(Tenfold, self).transform(image) for _ in range(4)])

class Archive(IterableDataset):
    def __iter__(self):
        photos = Photos()
        with tarfile.open("photos.tar") as archive:
            for member in archive:
                file = self.open(archive.extractfile(member))
                yield photos.transform(Image.open(file).convert("RGB")), file.tell()
    def open(self, file): return io.BytesIO(file.read())
class Members(Archive):
    def open(self, file): return file

if __name__ == "__main__":
    seed(1)
    made = {}
    for dataset in (Photos, Bicubic, Bytes, Opened, Gray, Tenfold):
        made[dataset.__name__] = epochs(DataLoader(dataset(), batch_size=4, shuffle=True))
    for dataset in (Archive, Members):
        made[dataset.__name__] = epochs(DataLoader(dataset(), batch_size=4))
    made["Workers"] = epochs(DataLoader(Workers(), batch_size=4, shuffle=True, num_workers=2))
    made["Persistent"] = epochs(
        DataLoader(Persistent(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    )
    made["Spawned"] = epochs(
        DataLoader(Spawned(), batch_size=4, num_workers=2, multiprocessing_context="spawn"), 1
    )
    print(json.dumps(made))
"""
# Images that the kernel makes: all of two epochs, but for one fetch where a process has three of them.
TAKEN = {
    "Photos": 28, "Bicubic": 28, "Bytes": 28, "Opened": 28, "Archive": 28, "Workers": 32, "Persistent": 28,
    "Spawned": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Ended]:
    tmp = tmp_path_factory.mktemp("equal")
    make_photos(tmp / "photos", COUNT)
    with tarfile.open(tmp / "photos.tar", "w") as archive:
        for path in sorted((tmp / "photos").iterdir()):
            archive.add(path)
    bare, under = run_both(tmp, PHOTOS + BATCHES)
    assert (bare.code, bare.stderr) == (0, "")
    assert under.code == 0, under.stderr
    return bare, under


def test_all_batches_are_the_bare_runs(batches: tuple[Ended, Ended]) -> None:
    bare, under = (json.loads(run.stdout) for run in batches)
    assert under == bare
    assert under.keys() == {*TAKEN, "Gray", "Tenfold", "Members"}


def test_images_are_made_by_the_kernel(batches: tuple[Ended, Ended]) -> None:
    loaders = {name: batches[1].loader(name) for name in TAKEN}
    assert {name: loader["images"] for name, loader in loaders.items()} == TAKEN
    assert all(loader["is_taken"] and not loader["left"] for loader in loaders.values()), loaders
    assert all(loader["gain"] > 1.05 for loader in loaders.values()), loaders


def test_files_of_a_kind_of_their_own_are_left_and_that_is_said(batches: tuple[Ended, Ended]) -> None:
    why = (
        "it reads no JPEG through Pillow that the kernel could make: 16 JPEGs in file "
        "objects that are neither plain files nor BytesIO"
    )
    assert batches[1].loader("Members")["why"] == why
    assert f"(Members, no workers) runs bare: {why}\n" in batches[1].stderr


def test_losses_of_fifty_steps_are_the_bare_runs(tmp_path: Path) -> None:
    make_photos(tmp_path / "photos", COUNT)
    bare, under = run_both(tmp_path, PHOTOS + TRAINING, "50")
    assert (bare.code, bare.stderr, under.code) == (0, "", 0)
    losses = read_losses(tmp_path, 0, True)
    assert len(losses) >= 50
    assert losses == read_losses(tmp_path, 0, False)
    assert under.loader("Photos")["images"] == 4 * (len(losses) - 1)
