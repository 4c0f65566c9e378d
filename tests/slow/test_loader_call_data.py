# SPDX-License-Identifier: Apache-2.0
"""Which samples the code to paste trains on: the folder, the share and the validation of hooked scripts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from feedrate.cli import main
from feedrate.doctor.analyse.data_folders import LoaderFacts, find_place
from feedrate.doctor.analyse.loader_call import share_of
from feedrate.doctor.analyse.machine import read_machine
from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.examine import measure_run
from feedrate.doctor.findings.feed import replace_loader
from feedrate.doctor.findings.loader import decode_faster
from feedrate.doctor.options import DoctorOptions
from feedrate.doctor.results import Remedy
from support.hooked import PREAMBLE, run_script
from support.images import save_image
from support.paths import TESTS

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.slow

SCRIPT = f"""{PREAMBLE}
sys.path.append({str(TESTS / "lookalikes")!r})
import csv
from PIL import Image
from torch.utils.data import Sampler, Subset, SubsetRandomSampler, random_split
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
ROOT = sys.argv[1]
tf = T.Compose([T.RandomResizedCrop(32), T.ToTensor()])
fixed = T.Compose([T.Resize((32, 32)), T.ToTensor()])
model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

class Rows(Dataset):  # of a table, those of these folds
    def __init__(self, table, folder, folds=("0", "1", "2", "3")):
        with open(table) as file:
            self.rows = [row for row in csv.DictReader(file) if row["fold"] in folds]
        self.folder = folder
    def __len__(self): return len(self.rows)
    def __getitem__(self, index):
        row = self.rows[index]
        with Image.open(self.folder + "/" + row["photo"]) as image:
            return tf(image.convert("RGB")), int(row["fold"])

def train(data, validation=None, sampler=None):
    loader = DataLoader(data, batch_size=4, shuffle=sampler is None, sampler=sampler)
    for _ in range(6):
        for images, labels in loader:
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        with torch.no_grad():
            for images, labels in validation or ():
                model(images)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs below train/ and val/, and a folder that is neither."""
    root = tmp_path_factory.mktemp("photos")
    for part, count in (("train", 16), ("val", 4)):
        for number in range(count):
            path = root / part / ("ash", "birch")[number % 2] / f"{number:02}.jpg"
            save_image(path, number, width=640, height=480, quality=95)
    flat = root / "flat"
    rows = ["photo,fold"]
    for number in range(16):
        save_image(flat / f"{number:02}.jpg", number, width=640, height=480, quality=95)
        rows.append(f"{number:02}.jpg,{number % 4}")
    (root / "rows.csv").write_text("\n".join(rows))
    return root


@pytest.fixture(autouse=True)
def _no_share_of_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long the script's own code takes is judged elsewhere: here the machine may be busy."""
    monkeypatch.setattr("feedrate.doctor.findings.feed._OWN_SHARE", 1.0)


def examine(tmp_path: Path, root: Path, body: str) -> tuple[Measured, Remedy]:
    run = run_script(tmp_path, SCRIPT + body, str(root))
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    measured = measure_run(run.recording, read_machine(run.folder), DoctorOptions(steps=12, passive=True))
    assert measured is not None
    remedy = replace_loader(measured)
    assert remedy is not None
    return measured, remedy


def test_train_and_val_below_one_root_get_a_pack_and_a_loader_each(tmp_path: Path, root: Path) -> None:
    body = """
train(ImageFolder(ROOT + "/train", tf), DataLoader(ImageFolder(ROOT + "/val", fixed), batch_size=2))
"""
    measured, remedy = examine(tmp_path, root, body)
    assert measured.machine.data is not None
    assert measured.machine.data.folder == str(root / "train")
    assert remedy.command == f"feedrate pack {root}/train train.pack && feedrate pack {root}/val val.pack"
    assert remedy.code is not None
    _, _, validation = remedy.code.partition("validation_loader = feedrate.Loader(")
    assert 'feedrate.Loader(\n    "train.pack"' in remedy.code or 'Loader("train.pack"' in remedy.code
    assert '"val.pack"' in validation
    assert "shuffle=False" in validation
    assert "feedrate.Resize(32)" in validation
    assert measured.tried.call is not None
    assert measured.loop.asked[measured.tried.call.validates][1] > 0  # so that the gain counts it


def test_validation_that_was_not_reached_has_its_command(tmp_path: Path, root: Path) -> None:
    _, remedy = examine(tmp_path, root, 'train(ImageFolder(ROOT + "/train", tf))')
    assert remedy.command == f"feedrate pack {root}/train PACK"
    assert any(f"feedrate pack {root}/val val.pack" in text for text in remedy.left_out)


def test_a_validation_loader_that_was_not_asked_by_then_has_its_code(tmp_path: Path, root: Path) -> None:
    body = """
small = T.Compose([T.Resize((24, 24)), T.ToTensor()])
later = DataLoader(ImageFolder(ROOT + "/val", small), batch_size=2)
train(ImageFolder(ROOT + "/train", tf))
"""
    _, remedy = examine(tmp_path, root, body)
    assert remedy.command == f"feedrate pack {root}/train train.pack && feedrate pack {root}/val val.pack"
    _, _, validation = (remedy.code or "").partition("validation_loader = feedrate.Loader(")
    assert '"val.pack", batch_size=2, shuffle=False' in validation
    assert "feedrate.Resize(24)" in validation
    assert not any("size" in text for text in remedy.left_out)


def test_a_loader_that_was_not_asked_and_hides_its_transform_has_a_pack_alone(
    tmp_path: Path, root: Path
) -> None:
    body = """
class Hidden:
    def __call__(self, image): return fixed(image)
later = DataLoader(ImageFolder(ROOT + "/val", Hidden()), batch_size=2)
train(ImageFolder(ROOT + "/train", tf))
"""
    _, remedy = examine(tmp_path, root, body)
    assert "validation_loader" not in (remedy.code or "")
    assert f"validation reads {root}/val: it needs a pack of its own" in remedy.left_out


def test_a_subset_becomes_a_share_of_the_pack(tmp_path: Path, root: Path) -> None:
    body = 'train(Subset(ImageFolder(ROOT + "/train", tf), range(12)))'
    measured, remedy = examine(tmp_path, root, body)
    assert remedy.code is not None
    assert "split=(0, 0.75)" in remedy.code
    assert any("split=(0.75, 1)" in text for text in remedy.left_out)
    decoder = decode_faster(measured)
    assert decoder is not None
    assert "feedrate.Dataset('PACK', split=(0, 0.75), transform=...)" in (decoder.change or "")


def test_indices_in_an_array_become_a_share_too(tmp_path: Path, root: Path) -> None:
    body = 'train(Subset(ImageFolder(ROOT + "/train", tf), np.random.permutation(16)[:12]))'
    _, remedy = examine(tmp_path, root, body)
    assert "split=(0, 0.75)" in (remedy.code or "")


@pytest.mark.parametrize(("samples", "of"), [(107, 160), (2, 3), (1_231_167, 1_281_167), (1, 1_281_167)])
def test_a_share_is_exactly_the_number_of_samples(samples: int, of: int) -> None:
    assert round(share_of(samples, of) * of) == samples  # as Loader cuts a pack


def test_samplers_of_a_part_each_become_shares_of_one_pack(tmp_path: Path, root: Path) -> None:
    body = """
data, order = ImageFolder(ROOT + "/train", tf), torch.randperm(16)
held_out = DataLoader(data, batch_size=2, sampler=SubsetRandomSampler(order[12:]))
train(data, held_out, SubsetRandomSampler(order[:12].tolist()))
"""
    _, remedy = examine(tmp_path, root, body)
    assert remedy.command == f"feedrate pack {root}/train PACK"
    training, _, validation = (remedy.code or "").partition("validation_loader = feedrate.Loader(")
    assert "split=(0, 0.75)" in training
    assert "split=(0.75, 1)" in validation
    assert not any("split=(0, 0.25)" in text for text in remedy.left_out)


def test_an_unknown_crop_means_no_code_and_the_dataset_that_keeps_it(tmp_path: Path, root: Path) -> None:
    body = """
class Held: pass
held = Held()
held.tf, tf = tf, lambda image: held.tf(image)
train(ImageFolder(ROOT + "/train", tf))
"""
    measured, remedy = examine(tmp_path, root, body)
    assert remedy.code is None
    assert "RandomResizedCrop was timed" in (remedy.note or "")
    decoder = decode_faster(measured)
    assert decoder is not None
    assert "feedrate.Dataset('PACK', transform=...)" in (decoder.change or "")
    assert "no code is given" not in (decoder.note or "")


def test_a_sampler_of_the_scripts_own_beside_validation_on_the_same_files_gets_no_code(
    tmp_path: Path, root: Path
) -> None:
    body = """
class Fold(Sampler):
    def __iter__(self): return iter(range(12))
    def __len__(self): return 12
data = ImageFolder(ROOT + "/train", tf)
train(data, DataLoader(Subset(data, range(12, 16))), Fold())
"""
    measured, remedy = examine(tmp_path, root, body)
    assert remedy.code is None
    assert "Fold chooses the script's samples" in (remedy.note or "")
    decoder = decode_faster(measured)
    assert decoder is not None
    assert decoder.change is None


def test_images_that_were_not_counted_leave_the_comparison_to_the_user(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedrate.doctor.analyse.data_folders._COUNTING_S", -1.0)
    _, remedy = examine(tmp_path, root, 'train(ImageFolder(ROOT + "/train", tf))')
    assert "the images were not counted: the pack must have the script's 16 samples" in remedy.left_out


def test_a_dataset_of_other_samples_than_the_folder_gets_no_code(tmp_path: Path, root: Path) -> None:
    body = """
data = ImageFolder(ROOT + "/train", tf)
data.samples = data.samples[:10]
data.__class__ = type("Fold", (ImageFolder,), {"__len__": lambda self: 10})
train(data)
"""
    _, remedy = examine(tmp_path, root, body)
    assert remedy.code is None
    assert f"has 10 samples, and {root}/train holds 16 images" in (remedy.note or "")


def test_two_roots_get_a_pack_and_a_loader_each(tmp_path: Path, root: Path) -> None:
    others = tmp_path / "other photos"
    for number in range(4):
        save_image(others / f"{number % 2}" / f"{number}.jpg", number, width=64, height=64)
    body = f"""
train(ImageFolder(ROOT + "/train", tf), DataLoader(ImageFolder({str(others)!r}, fixed), batch_size=2))
"""
    _, remedy = examine(tmp_path, root, body)
    assert remedy.command == f"feedrate pack {root}/train train.pack && feedrate pack '{others}' val.pack"
    assert remedy.code is not None
    assert '"val.pack"' in remedy.code


def test_random_split_gives_both_loaders_their_share_of_one_pack(tmp_path: Path, root: Path) -> None:
    body = """
first, second = random_split(ImageFolder(ROOT + "/train", tf), [12, 4])
train(first, DataLoader(second, batch_size=2))
"""
    _, remedy = examine(tmp_path, root, body)
    assert remedy.command == f"feedrate pack {root}/train PACK"
    assert remedy.code is not None
    training, _, validation = remedy.code.partition("validation_loader = feedrate.Loader(")
    assert "split=(0, 0.75)" in training
    assert "split=(0.75, 1)" in validation


def test_folds_of_a_table_get_no_code_and_the_way_to_a_split(tmp_path: Path, root: Path) -> None:
    body = """
table, flat = ROOT + "/rows.csv", ROOT + "/flat"
train(Rows(table, flat, "012"), DataLoader(Rows(table, flat, "3")))
"""
    _, remedy = examine(tmp_path, root, body)
    assert remedy.code is None
    assert f"the script takes 12 of the 16 rows of {root}/rows.csv" in (remedy.note or "")
    assert "feedrate split PACK --file train=train.txt validation=rest" in (remedy.note or "")


def test_a_table_that_the_script_read_labels_a_flat_folder(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, remedy = examine(tmp_path, root, 'train(Rows(ROOT + "/rows.csv", ROOT + "/flat"))')
    table = f"--labels {root}/rows.csv --path-column photo --label-column fold"
    assert remedy.command == f"feedrate pack {root}/flat PACK {table}"
    monkeypatch.chdir(tmp_path)
    assert main(remedy.command.split()[1:]) == 0
    names: dict[str, Any] = {}
    assert remedy.code is not None
    exec(remedy.code, names)  # its loop takes images and labels apart
    assert set(names["labels"].tolist()) <= {0, 1, 2, 3}


def test_files_below_no_folder_but_the_root_name_a_placeholder(tmp_path: Path, root: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as second:
        for number in range(4):
            save_image(Path(second) / f"{number}.jpg", number, width=640, height=480, quality=95)
        body = f"""
class Both(Rows):
    def __init__(self): super().__init__(ROOT + "/rows.csv", ROOT + "/flat")
    def __getitem__(self, index):
        Image.open({second!r} + f"/{{index % 4}}.jpg").load()
        return super().__getitem__(index)
train(Both())
"""
        measured, remedy = examine(tmp_path, root, body)
    assert (remedy.command or "").startswith("feedrate pack IMAGES PACK")
    assert any("IMAGES stands for it" in note for note in measured.machine.notes)


def test_a_home_folder_is_not_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_image(tmp_path / "ash" / "1.jpg", 1, width=64, height=64)
    monkeypatch.setenv("HOME", str(tmp_path))
    facts = LoaderFacts({"dataset_len": 1}, {}, {"layers": [{"classes": 1, "root": str(tmp_path)}]})
    assert find_place([str(tmp_path / "2.jpg")], facts).word == "IMAGES"
