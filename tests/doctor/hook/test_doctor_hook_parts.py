# SPDX-License-Identifier: Apache-2.0
"""Readers, decoders and transforms are timed by name inside a fetch, and are otherwise what they were."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.hook.feedrate_hook.record import parts, stacks
from feedrate.doctor.hook.feedrate_hook.record.parts import Fetch
from support.hooked import PREAMBLE, Run, names_of, run_script
from support.images import save_image

pytest.importorskip("torch", reason="torch is not installed")

# torchvision in small: the two classes whose loop over transforms is patched.
TORCHVISION = {
    "__init__.py": "",
    "transforms/__init__.py": "from .transforms import Compose",
    "transforms/transforms.py": """
class Compose:
    def __init__(self, transforms): self.transforms = transforms
    def __call__(self, img):
        for t in self.transforms:
            img = t(img)
        return img
""",
    "transforms/v2/__init__.py": "from ._container import Compose",
    "transforms/v2/_container.py": """
class Compose:
    def __init__(self, transforms): self.transforms, self.scale = transforms, 2
    def __call__(self, *inputs): return self.forward(*inputs)
    def forward(self, *inputs):
        for transform in self.transforms:
            inputs = (transform(*inputs),)
        return inputs[0] * self.scale
""",
}

SCRIPT = (
    PREAMBLE
    + """
import bz2, gzip, io, lzma, pickle, json, zipfile, zlib
import cv2, simplejpeg
from cv2 import imread
from PIL import Image, ImageOps
from torchvision.transforms import Compose, v2

class Halve:
    def __call__(self, image): return image.resize((image.width // 2, image.height // 2))

def to_tensor(image): return torch.from_numpy(np.asarray(image).copy())

class Images(Dataset):
    transform = Compose([Halve(), Compose([ImageOps.mirror, to_tensor])])
    twice = v2.Compose([torch.Tensor.float])

    def __len__(self): return 6

    def __getitem__(self, index):
        path = sys.argv[1]
        with Image.open(path) as image:
            image = image.convert("RGB").resize((64, 48), box=(8, 8, 56, 44)).resize((64, 48))
            first = self.twice(self.transform(image))
        array = imread(path)
        array = cv2.cvtColor(cv2.resize(array, (40, 30)), cv2.COLOR_BGR2RGB)
        with open(path, "rb") as file:
            simplejpeg.decode_jpeg(file.read())
        np.load(sys.argv[2])
        np.load("packed.npz")["array"]
        with gzip.open("packed.gz") as file:
            file.read()
        zlib.decompress(zlib.compress(b"text"))
        lzma.decompress(lzma.compress(b"text"))
        bz2.decompress(bz2.compress(b"text"))
        return first.mean(), torch.from_numpy(array).float().mean()

if __name__ == "__main__":
    np.save(sys.argv[2], np.zeros(10))
    np.savez_compressed("packed.npz", array=np.zeros(10))
    with gzip.open("packed.gz", "wb") as file:
        file.write(b"text")
    np.save("held.npy", np.zeros(10))
    held = np.load("held.npy", mmap_mode="r")
    for function in (cv2.imread, imread, np.load, np.fromfile, torch.load, torch.save, pickle.load, json.load,
                     simplejpeg.decode_jpeg, Image.open, ImageOps.mirror, cv2.resize, Image.Image.resize,
                     zipfile.ZipFile.read, os.fsync, torch.autograd.backward, zlib.decompress):
        assert pickle.loads(pickle.dumps(function)) is function, function
    assert isinstance(Image.open(sys.argv[1]), Image.Image)
    print([round(float(v), 3) for batch in DataLoader(Images(), batch_size=3) for t in batch for v in t])
"""
)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Run:
    pytest.importorskip("cv2", reason="OpenCV is not installed: pip install opencv-python-headless")
    pytest.importorskip("simplejpeg", reason="simplejpeg is not installed")
    folder = tmp_path_factory.mktemp("parts")
    for name, text in TORCHVISION.items():
        (folder / "torchvision" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "torchvision" / name).write_text(text)
    save_image(folder / "one.jpg", 1)
    run = run_script(folder, SCRIPT, str(folder / "one.jpg"), str(folder / "array.npy"))
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    return run


def test_parts_of_all_libraries_are_named(images: Run) -> None:
    assert set(names_of(images.main, layout.PART)) == {
        "read:PIL.Image.open",
        "decode:PIL",
        "transform:PIL.convert",
        "transform:PIL.crop+resize",
        "transform:PIL.resize",
        "transform:Halve",
        "transform:mirror",
        "transform:to_tensor",
        "transform:float",
        "decode:cv2.imread",
        "transform:cv2.resize",
        "transform:cv2.cvtColor",
        "decode:simplejpeg.decode_jpeg",
        "read:numpy.load",
        "decode:numpy.npz",
        "decode:gzip",
        "decode:zlib",
        "decode:lzma",
        "decode:bz2",
        "collate:torch.utils.data._utils.collate.default_collate",
    }


def test_calls_are_counted_per_fetch(images: Run) -> None:
    calls = {images.main.name(p["name"]): int(p["a"]) for p in images.main.of(layout.PART)}
    assert calls.pop("read:numpy.load") == 6  # twice a sample
    assert {count for name, count in calls.items() if not name.startswith("collate")} == {3}


def test_files_that_python_does_not_see_opened_are_noted_too(images: Run) -> None:
    opened = {Path(name).name for name in names_of(images.main, layout.OPENED)}
    # The last one was mapped before there was any fetch.
    assert opened == {"one.jpg", "array.npy", "packed.npz", "packed.gz", "held.npy"}
    assert Path(names_of(images.main, layout.OPENED)[0]).is_absolute()


def test_the_pixels_are_those_of_the_bare_script(images: Run) -> None:
    folder = images.folder.parent
    arguments = (str(folder / "one.jpg"), str(folder / "array.npy"))
    bare = run_script(folder, SCRIPT, *arguments, is_hooked=False)
    assert images.stdout == bare.stdout


def test_a_moment_belongs_to_the_innermost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr("feedrate.doctor.hook.feedrate_hook.clock.wall_ns", lambda: next(now))
    monkeypatch.setattr("feedrate.doctor.hook.feedrate_hook.clock.cpu_ns", lambda: 0)
    fetch = Fetch((0, 0, 0))  # every mark moves the clock by 10
    assert fetch.enter("transform", "transform:a")
    assert fetch.enter("decode", "decode:b")
    assert not fetch.enter("decode", "decode:c")
    fetch.leave()
    fetch.leave()
    fetch.mark()
    assert fetch.times == {"transform:a": [20, 0, 0, 1], "decode:b": [10, 0, 0, 1]}


class Picture:
    def turn(self) -> str:
        return "turned"


def test_methods_are_put_back_while_nothing_is_timed() -> None:
    module = ModuleType("pictures")
    module.Picture = type("Picture", (), {"turn": Picture.turn})  # type: ignore[attr-defined]
    original = module.Picture.turn
    parts.patch_parts([("Picture.turn", "transform:turn")], module)
    wrapper = module.Picture.turn
    try:
        assert wrapper is not original
        parts.wrap_methods(False)
        assert module.Picture.turn is original
        parts.wrap_methods(True)
        assert module.Picture.turn is wrapper
        assert module.Picture().turn() == "turned"
    finally:
        parts.wrap_methods(True)


def test_a_method_that_the_program_replaced_stays_its_own() -> None:
    module = ModuleType("pictures")
    module.Picture = type("Picture", (), {"turn": Picture.turn})  # type: ignore[attr-defined]
    parts.patch_parts([("Picture.turn", "transform:turn")], module)
    module.Picture.turn = len
    try:
        parts.wrap_methods(False)
        assert module.Picture.turn is len
    finally:
        parts.wrap_methods(True)
    assert module.Picture.turn is len


def test_every_instruction_of_a_function_has_a_line_to_name_it_by() -> None:
    """The jump at the end of a loop has none of its own in some versions of Python."""

    def count(rows: list[list[int]]) -> int:
        total = 0
        for row in rows:
            for number in row:
                if number > 3:
                    total += number
        return total

    code = count.__code__
    first = code.co_firstlineno
    lines = {stacks._line_before(code, at) for at in range(0, len(code.co_code), 2)}
    assert lines <= set(range(first, first + 7))
    assert first + 5 in lines


def test_a_forked_workers_look_never_reaches_the_loop_that_it_was_forked_from() -> None:
    def make(path: str) -> Any:
        return (compile("pass", path, "exec"), 1, 0)

    library, fetch = (
        make("/lib/python3.11/site-packages/PIL/Image.py"),
        "/site-packages/torch/utils/data/_utils/fetch.py",
    )
    frames = (*[library] * 20, make(fetch), *[library] * 3, make("/home/ada/train.py"))
    assert "train.py" not in stacks._describe(frames)
