# SPDX-License-Identifier: Apache-2.0
"""The feedrate.Loader that the doctor writes in the place of a script's DataLoader, seen from hooked scripts.

The scripts use look-alikes of torchvision, timm and albumentations (tests/lookalikes), or Pillow alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedrate
from feedrate.doctor.analyse.call_draft import write_code
from feedrate.doctor.analyse.data_folders import LoaderFacts
from feedrate.doctor.analyse.loader_call import recognise_call
from feedrate.doctor.analyse.metrics import LoaderCall
from support.hooked import PREAMBLE, Run, run_script
from support.images import save_image
from support.paths import TESTS

pytest.importorskip("torch", reason="torch is not installed")

LOOKALIKES = TESTS / "lookalikes"
CLASSES = ("ash", "birch", "cedar")

HEAD = f"""{PREAMBLE}
sys.path.append({str(LOOKALIKES)!r})
import glob
from PIL import Image
ROOT = sys.argv[1]

def run(loader, keys=None):
    for _ in range(3):
        for batch in loader:
            pass

class Files(Dataset):
    def __init__(self, root=ROOT):
        self.files = sorted(glob.glob(root + "/*/*"))
        self.names = sorted({{os.path.dirname(file) for file in self.files}})
    def __len__(self): return len(self.files)
    def label(self, index): return self.names.index(os.path.dirname(self.files[index]))
    def open(self, index): return Image.open(self.files[index]).convert("RGB")

def to_floats(image):
    return torch.from_numpy(np.asarray(image, np.float32) / 255).permute(2, 0, 1)
"""

TORCHVISION = """
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
normalize = T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders of smooth photographs, upright and lying."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(24):
        width, height = (128, 96) if number % 2 else (96, 160)
        path = root / CLASSES[number % 3] / f"{number:02}.jpg"
        save_image(path, number, width=width, height=height, quality=95)
    return root


@pytest.fixture(scope="module")
def large_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs whose decoding is most of what a sample costs, so that a Loader is worth its code."""
    root = tmp_path_factory.mktemp("large-photos")
    for number in range(12):
        save_image(
            root / CLASSES[number % 3] / f"{number:02}.jpg", number, width=1280, height=960, quality=95
        )
    return root


@pytest.fixture(scope="module")
def pack(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pack(photos, tmp_path_factory.mktemp("packs") / "PACK")


def make_pack(photos: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "feedrate", "pack", str(photos), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def see(tmp_path: Path, photos: Path, body: str) -> Run:
    run = run_script(tmp_path, HEAD + body, str(photos))
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    return run


def recognise(run: Run, **more: Any) -> LoaderCall:
    known = (run.facts(kind)[0] for kind in ("loader", "batch", "pipeline"))
    call = recognise_call(LoaderFacts(*known, run.facts("calls")), **more)
    assert call is not None
    return call


def paste(call: LoaderCall, pack: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the code as it stands, where PACK is the pack."""
    assert max(map(len, call.code.splitlines())) <= 78
    monkeypatch.chdir(pack.parent)
    names: dict[str, Any] = {}
    exec(call.code, names)
    return names


def test_a_torchvision_recipe_is_carried_over(
    tmp_path: Path, photos: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = see(
        tmp_path,
        photos,
        TORCHVISION
        + """
torch.manual_seed(5)
tf = T.Compose([
    T.RandomResizedCrop(64, scale=(0.3, 1.0), interpolation=T.InterpolationMode.BICUBIC),
    T.RandomHorizontalFlip(0.3), T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
    T.RandomGrayscale(0.2), T.ToTensor(), normalize, T.RandomErasing(0.25, value="random"),
])
run(DataLoader(ImageFolder(ROOT, tf), batch_size=6, shuffle=True, drop_last=True))
""",
    )
    call = recognise(run, on_gpu=True)
    assert dict(call.options) == {
        "batch_size": 6,
        "shuffle": True,
        "drop_last": True,
        "seed": 5,
        "image": feedrate.RandomResizedCrop(64, scale=(0.3, 1.0), interpolation="bicubic"),
        "flip": 0.3,
        "normalize": "imagenet",
        "on_device": [
            feedrate.ColorJitter(0.4, 0.4, 0.2, 0.1, p=0.8),
            feedrate.Grayscale(p=0.2),
            feedrate.RandomErasing(p=0.25, value="random"),
        ],
        "device": "cuda",
    }
    assert call.left_out == ()
    names = paste(recognise(run), pack, monkeypatch)
    assert (tuple(names["images"].shape), str(names["images"].dtype)) == ((6, 3, 64, 64), "torch.float32")
    assert str(names["labels"].dtype) == "torch.int64"


@pytest.mark.parametrize(
    ("transform", "image", "edge"),
    [
        ("T.Resize((48, 64))", feedrate.Resize((48, 64)), 0),
        ("T.CenterCrop(64)", feedrate.CenterCrop(64), 0),
        # Both short sides halved: the crop falls on whole pixels, and only its edges have other neighbours.
        ("T.Resize(48), T.CenterCrop(32)", feedrate.CenterCrop(32, resize=48), 2),
    ],
)
def test_a_fixed_crop_gives_the_pixels_of_the_script(
    transform: str,
    image: Any,
    edge: int,
    tmp_path: Path,
    photos: Path,
    pack: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "theirs.npz"
    run = see(
        tmp_path,
        photos,
        TORCHVISION
        + f"""
data = ImageFolder(ROOT, T.Compose([{transform}, T.PILToTensor()]))
run(DataLoader(data, batch_size=24))
images, labels = zip(*data)
np.savez({str(out)!r}, images=torch.stack(images).numpy(), labels=labels)
""",
    )
    call = recognise(run)
    assert call.options["image"] == image
    assert call.options["shuffle"] is False
    names = paste(call, pack, monkeypatch)
    theirs = np.load(out)
    # The pack's order is its own; its numbers are those of the listing.
    numbers = next(iter(feedrate.Loader(pack, 24, shuffle=False, image=image, fields=["number"])))[0].numpy()
    ours, labels = names["images"].numpy().astype(int), names["labels"].numpy()
    assert labels.tolist() == theirs["labels"][numbers].tolist()
    difference = np.abs(ours - theirs["images"][numbers].astype(int))
    inside = slice(edge, difference.shape[-1] - edge), slice(edge, difference.shape[-2] - edge)
    assert difference[:, :, inside[1], inside[0]].max() <= 1


def test_v2_transforms_and_their_mixing_are_carried_over(
    tmp_path: Path, photos: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = see(
        tmp_path,
        photos,
        """
from torch.utils.data import default_collate
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
tf = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToImage(),
                 v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)])
mix = v2.RandomChoice([v2.CutMix(num_classes=3), v2.MixUp(alpha=0.2, num_classes=3)])
def collate(samples): return mix(*default_collate(samples))
run(DataLoader(ImageFolder(ROOT, tf), batch_size=8, shuffle=True, collate_fn=collate))
""",
    )
    call = recognise(run)
    assert call.options["normalize"] == ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    assert call.options["on_device"] == [
        feedrate.CutMix(num_classes=3),
        feedrate.MixUp(alpha=0.2, num_classes=3),
    ]
    assert call.left_out == ("collate_fn (collate) is not carried over but for its CutMix and MixUp",)
    names = paste(call, pack, monkeypatch)
    assert tuple(names["labels"].shape) == (8, 3)


def test_a_timm_loader_is_carried_over_with_what_its_prefetcher_does(
    tmp_path: Path, photos: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = see(
        tmp_path,
        photos,
        """
import timm.data
from timm.data.auto_augment import RandAugment
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
tf = T.Compose([timm.data.RandomResizedCropAndInterpolation(32, scale=(0.35, 1.0), interpolation="random"),
                T.RandomHorizontalFlip(0.5), RandAugment([]), timm.data.MaybePILToTensor()])
loader = DataLoader(ImageFolder(ROOT, tf), batch_size=8, shuffle=True, collate_fn=timm.data.fast_collate)
run(timm.data.PrefetchLoader(loader, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2), re_prob=0.1, re_mode="pixel"))
""",
    )
    call = recognise(run)
    assert call.options["image"] == feedrate.RandomResizedCrop(
        32, scale=(0.35, 1.0), interpolation=("bilinear", "bicubic")
    )
    assert call.options["normalize"] == ((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    (erasing,) = call.options["on_device"]
    assert (erasing.p, erasing.value) == (0.1, "random")
    assert call.left_out == ("RandAugment is not carried over: feedrate.Loader has no such operation",)
    assert str(paste(call, pack, monkeypatch)["images"].dtype) == "torch.float32"


def test_an_albumentations_pipeline_in_a_global_is_carried_over(
    tmp_path: Path, photos: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = see(
        tmp_path,
        photos,
        """
import albumentations as A
from albumentations.pytorch import ToTensorV2
TF = A.Compose([A.RandomResizedCrop((32, 48), scale=(0.3, 1.0), interpolation=2), A.HorizontalFlip(p=0.5),
                A.GaussNoise(), A.Normalize(), ToTensorV2()])
class Mine(Files):
    def __getitem__(self, index):
        image = TF(image=np.array(self.open(index)))["image"]
        return {"pixels": image, "label": self.label(index), "path": self.files[index]}
run(DataLoader(Mine(), batch_size=8, shuffle=True))
""",
    )
    call = recognise(run)
    assert call.options["image"] == feedrate.RandomResizedCrop(
        (32, 48), scale=(0.3, 1.0), interpolation="bicubic"
    )
    assert (call.options["flip"], call.options["normalize"]) == (0.5, "imagenet")
    assert call.left_out == (
        "RandomResizedCrop: OpenCV resizes without antialiasing, feedrate with it: pixels differ",
        "GaussNoise is not carried over: feedrate.Loader has no such operation",
        "labels are the script's own: the pack numbers the class folders by name, see loader.classes",
        "batches were dicts (pixels, label, path); these are tuples: images, labels",
    )
    assert tuple(paste(call, pack, monkeypatch)["images"].shape) == (8, 3, 32, 48)


PILLOW: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "a resize": (
        "image = image.resize((48, 40), Image.Resampling.LANCZOS)",
        {"image": feedrate.Resize((40, 48), interpolation="lanczos"), "dtype": "float32"},
    ),
    "a resize of the shorter side and the centre": (
        "scale = 48 / min(image.size); image = image.resize([round(side * scale) for side in image.size]);"
        " x, y = [(side - 32) // 2 for side in image.size]; image = image.crop((x, y, x + 32, y + 32))",
        {"image": feedrate.CenterCrop(32, resize=48, interpolation="bicubic"), "dtype": "float32"},
    ),
    "the largest square": (
        "from PIL import ImageOps; image = ImageOps.fit(image, (32, 32), Image.Resampling.BILINEAR)",
        {"image": feedrate.CenterCrop(32, resize=32), "dtype": "float32"},
    ),
    "a part at a random place": (
        "x, y = random.randrange(32), random.randrange(32); image = image.crop((x, y, x + 64, y + 64))",
        {"image": feedrate.RandomCrop(64), "dtype": "float32"},
    ),
    "gray": (
        "image = image.convert('L').resize((32, 32))",
        {"image": feedrate.Resize(32, interpolation="bicubic"), "mode": "L", "dtype": "float32"},
    ),
    "mirrored always": (
        "image = image.resize((32, 32), 2).transpose(Image.Transpose.FLIP_LEFT_RIGHT)",
        {"image": feedrate.Resize(32), "flip": 1.0, "dtype": "float32"},
    ),
}


@pytest.mark.parametrize("name", PILLOW)
def test_plain_pillow_code_is_recognised_by_its_calls(
    name: str, tmp_path: Path, photos: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, expected = PILLOW[name]
    run = see(
        tmp_path,
        photos,
        f"""
random.seed(1)
class Mine(Files):
    def __getitem__(self, index):
        image = self.open(index)
        {code}
        pixels = np.atleast_3d(np.asarray(image, np.float32) / 255)
        return torch.from_numpy(pixels).permute(2, 0, 1), self.label(index)
run(DataLoader(Mine(), batch_size=8, shuffle=True, num_workers=1))
""",
    )
    call = recognise(run)
    others = ("batch_size", "shuffle")
    assert {name: value for name, value in call.options.items() if name not in others} == expected
    images = paste(call, pack, monkeypatch)["images"]
    seen = run.facts("batch")[0]["tensors"][0]
    assert [list(images.shape), str(images.dtype)] == [seen["shape"], f"torch.{seen['dtype']}"]


def test_a_crop_that_pillow_draws_is_written_with_the_bounds_that_were_seen(
    tmp_path: Path, photos: Path
) -> None:
    run = see(
        tmp_path,
        photos,
        """
class Mine(Files):
    given = 0  # so that half of each batch is mirrored, whichever batches are looked at
    def __getitem__(self, index):
        image = self.open(index)
        side = random.randrange(40, 90)
        x, y = random.randrange(image.width - side + 1), random.randrange(image.height - side + 1)
        image = image.resize((32, 32), Image.Resampling.BOX, box=(x, y, x + side, y + side))
        self.given += 1
        if self.given % 2:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return to_floats(image), self.label(index)
run(DataLoader(Mine(), batch_size=8, shuffle=True))
""",
    )
    call = recognise(run)
    crop = call.options["image"]
    assert (crop.size, crop.ratio, crop.interpolation) == (32, (1.0, 1.0), "box")
    assert 40 * 40 / (96 * 160) - 0.005 <= crop.scale[0] < crop.scale[1] <= 89 * 89 / (128 * 96) + 0.005
    assert call.options["flip"] == 0.5
    assert any("samples that were looked at had" in text for text in call.left_out)
    assert any("samples that were looked at were mirrored" in text for text in call.left_out)


def test_what_is_not_carried_over_is_named_one_by_one(tmp_path: Path, photos: Path) -> None:
    run = see(
        tmp_path,
        photos,
        TORCHVISION
        + """
from torch.utils.data import Subset, WeightedRandomSampler
class Mine:
    def __call__(self, image): return image
tf = T.Compose([T.RandAugment(), Mine(), T.Lambda(lambda image: image), T.Resize(48),
                T.RandomCrop(32, padding=4), T.ToTensor()])
data = Subset(ImageFolder(ROOT, tf, target_transform=lambda label: -label), range(20))
sampler = WeightedRandomSampler([1.0] * 20, 20)
def both(samples): return torch.stack([s[0] for s in samples]), torch.tensor([s[1] for s in samples]), None
run(DataLoader(data, batch_size=5, sampler=sampler, collate_fn=both))
""",
    )
    call = recognise(run)
    assert call.options["image"] == feedrate.RandomCrop(32, padding=4)
    assert [text.split(":")[0] for text in call.left_out] == [
        "collate_fn (both) is not carried over",
        "RandAugment is not carried over",
        "Mine is not carried over",
        "Lambda is not carried over",
        "Resize before RandomCrop",
        "target_transform (<lambda>) is not carried over",
        "Subset",
        "WeightedRandomSampler is not carried over",
        "batches were 3 values; these are tuples of two",
    ]


def test_labels_in_another_order_than_the_packs_are_said(tmp_path: Path, photos: Path) -> None:
    run = see(
        tmp_path,
        photos,
        TORCHVISION
        + """
data = ImageFolder(ROOT, T.Compose([T.Resize((32, 32)), T.PILToTensor()]))
data.class_to_idx = {name: 2 - at for at, name in enumerate(data.classes)}
run(DataLoader(data, batch_size=5))
""",
    )
    assert recognise(run).left_out == (
        "labels have another order: the pack numbers the class folders by name, see loader.classes",
    )


def test_user_code_is_read_and_never_called(tmp_path: Path, photos: Path) -> None:
    run = see(
        tmp_path,
        photos,
        TORCHVISION
        + """
class Touchy:
    def __init__(self): self.deep = [[[[[[[[[[1]]]]]]]]]] ; self.self = self
    def __call__(self, image): return image
    def __repr__(self): print("repr"); raise SystemExit
    def __eq__(self, other): print("eq"); raise SystemExit
    def __bool__(self): print("bool"); raise SystemExit
    def __len__(self): print("len"); raise SystemExit
    def __getattr__(self, name): print("getattr", name); raise AttributeError(name)
    @property
    def size(self): print("property"); raise SystemExit
data = ImageFolder(ROOT, T.Compose([T.Lambda(Touchy()), T.Resize((32, 32)), T.PILToTensor()]))
data.many = [T.Resize(8)] * 5000
run(DataLoader(data, batch_size=5))
""",
    )
    assert run.stdout == ""
    assert len(repr(run.facts("pipeline")[0])) < 20_000
    assert recognise(run).options["image"] == feedrate.Resize(32)


def test_samples_that_are_no_images_have_no_call(tmp_path: Path) -> None:
    run = run_script(tmp_path, PREAMBLE + "for batch in DataLoader(Numbers(20), batch_size=4): pass")
    facts = [run.facts(kind)[0] for kind in ("loader", "batch", "pipeline")]
    assert recognise_call(LoaderFacts(*facts)) is None


TRAINING = """
model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    for images, labels in loader:
        nn.functional.cross_entropy(model(images.float()), labels).backward()
        optimizer.step()
"""
SCRIPTS = {
    "torchvision": TORCHVISION
    + """
tf = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor(), normalize])
loader = DataLoader(ImageFolder(ROOT, tf), batch_size=4, shuffle=True)
"""
    + TRAINING,
    "timm": """
import timm.data
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose
tf = Compose([timm.data.RandomResizedCropAndInterpolation(32), timm.data.MaybePILToTensor()])
inner = DataLoader(ImageFolder(ROOT, tf), batch_size=4, collate_fn=timm.data.fast_collate)
loader = timm.data.PrefetchLoader(inner)
"""
    + TRAINING,
    "pillow": """
class Photos(Files):
    def __getitem__(self, index): return to_floats(self.open(index).resize((32, 32))), self.label(index)
loader = DataLoader(Photos(), batch_size=4, shuffle=True)
"""
    + TRAINING,
}


@pytest.mark.parametrize(
    "style",
    [
        "torchvision",
        pytest.param("timm", marks=pytest.mark.slow),
        pytest.param("pillow", marks=pytest.mark.slow),
    ],
)
def test_the_doctor_gives_code_that_runs_as_it_stands(
    style: str, tmp_path: Path, large_photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = make_pack(large_photos, tmp_path / "PACK")
    script, words = tmp_path / "train.py", [str(large_photos)]
    script.write_text(HEAD + SCRIPTS[style])
    told = tmp_path / "told.json"
    command = ["doctor", "--passive", "--json", str(told), "--", sys.executable, str(script), *words]
    done = subprocess.run(
        [sys.executable, "-m", "feedrate", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    remedies = {one["name"]: one for one in json.loads(told.read_text())["remedies"]}
    code = remedies["loader"]["code"]
    names = paste(LoaderCall({}, code, ()), pack, monkeypatch)
    assert (tuple(names["images"].shape[1:]), str(names["images"].dtype)) == (
        (3, 32, 32),
        "torch.float32",
    )


def test_code_is_broken_between_arguments() -> None:
    code = write_code(
        {
            "batch_size": 64,
            "image": feedrate.RandomResizedCrop(
                224, scale=(0.35, 1.0), interpolation=("bilinear", "bicubic")
            ),
            "flip": 0.5,
            "on_device": [feedrate.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8), feedrate.Grayscale(p=0.2)],
        }
    )
    assert code == (
        "import feedrate\n"
        "\n"
        "loader = feedrate.Loader(\n"
        '    "PACK", batch_size=64,\n'
        "    image=feedrate.RandomResizedCrop(\n"
        '        224, scale=(0.35, 1.0), interpolation=("bilinear", "bicubic"),\n'
        "    ),\n"
        "    flip=0.5,\n"
        "    on_device=[\n"
        "        feedrate.ColorJitter(\n"
        "            brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, p=0.8,\n"
        "        ),\n"
        "        feedrate.Grayscale(p=0.2),\n"
        "    ],\n"
        ")\n"
        "for images, labels in loader:\n"
        "    ...  # as before\n"
    )


def test_an_object_that_only_calls_its_transforms_is_looked_into(tmp_path: Path, photos: Path) -> None:
    body = """
class Preset:
    def __init__(self, size):
        steps = [T.RandomResizedCrop(size), T.RandomHorizontalFlip(), T.ToTensor(), normalize]
        self.transforms = T.Compose(steps)

    def __call__(self, img):
        return self.transforms(img)

run(DataLoader(ImageFolder(ROOT, Preset(32)), batch_size=4))
"""
    call = recognise(see(tmp_path, photos, TORCHVISION + body))
    assert call.options["image"] == feedrate.RandomResizedCrop(32)
    assert (call.options["flip"], call.options["normalize"]) == (0.5, "imagenet")
    assert call.left_out == ()


FORMATTED = """
class Formatted(Files):  # as datasets.Dataset.with_transform keeps a function
    def __init__(self, transform):
        super().__init__()
        self._format_kwargs = {"transform": transform}
    def __getitem__(self, index):
        rows = self._format_kwargs["transform"]({"image": [self.open(index)], "label": [self.label(index)]})
        return rows["image"][0], rows["label"][0]

augment = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor()])
"""


def test_a_transform_that_a_formatted_dataset_applies_to_rows_is_found(tmp_path: Path, photos: Path) -> None:
    body = """
def transform(rows):
    rows["image"] = [augment(image) for image in rows["image"]]
    return rows

run(DataLoader(Formatted(transform), batch_size=4))
"""
    call = recognise(see(tmp_path, photos, TORCHVISION + FORMATTED + body))
    assert call.options["image"] == feedrate.RandomResizedCrop(32)
    assert call.options["flip"] == 0.5


def test_a_random_crop_that_was_timed_and_not_found_means_no_code(tmp_path: Path, photos: Path) -> None:
    body = """
hidden = {"transform": augment}
def transform(rows):
    rows["image"] = [hidden["transform"](image) for image in rows["image"]]
    return rows

run(DataLoader(Formatted(transform), batch_size=4))
"""
    run = see(tmp_path, photos, TORCHVISION + FORMATTED + body)
    call = recognise(run, parts=[("transform", "RandomResizedCrop"), ("transform", "RandomHorizontalFlip")])
    assert "RandomResizedCrop was timed" in call.why_not
    assert any(text.startswith("RandomHorizontalFlip is not carried over") for text in call.left_out)
