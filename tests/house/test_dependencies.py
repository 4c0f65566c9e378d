# SPDX-License-Identifier: Apache-2.0
"""Loading needs numpy and Pillow alone; what needs more says so in a sentence."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import feedrate
from feedrate import _native
from support.images import save_image
from support.packs import write_images

LOADING = """
import sys
import feedrate
pack = sys.argv[1]
crop, cache = feedrate.RandomResizedCrop(16), feedrate.Cache(ram="8MB")
loader = feedrate.Loader(pack, batch_size=4, image=crop, cache=cache)
print(sum(len(batch[0]) for batch in loader), sum(len(batch[0]) for batch in loader))
staged = feedrate.Loader(pack, batch_size=4, image=feedrate.Resize((16, 16)), scratch=sys.argv[2])
print(sum(len(batch[0]) for batch in staged))
print(len(feedrate.Dataset(pack)[0]), feedrate.cached(["a"])[0], feedrate.decode(sys.argv[3], size=8).shape)
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A Python that finds numpy, Pillow and feedrate, and none of the packages beside them."""
    packages = tmp_path_factory.mktemp("bare")
    for name in ("numpy", "PIL"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        home = Path(spec.origin).parent
        (packages / name).symlink_to(home)
        for libraries in home.parent.glob(f"{'pillow' if name == 'PIL' else name}.libs"):
            (packages / libraries.name).symlink_to(libraries)
    (packages / "feedrate").mkdir()
    # The kernel may lie beside the sources, or where packages are installed.
    for path in {*Path(feedrate.__file__).parent.iterdir(), Path(_native.__file__)}:
        (packages / "feedrate" / path.name).symlink_to(path)
    return [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(packages)!r}); "]


def run(bare: list[str], code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*bare[:-1], f"{bare[-1]}\nexec({code!r})", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_loading_needs_numpy_and_pillow_alone(bare: list[str], tmp_path: Path) -> None:
    pack, scratch, image = write_images(tmp_path / "pack"), tmp_path / "scratch", tmp_path / "image.jpg"
    scratch.mkdir()
    save_image(image, seed=1)
    ran = run(bare, LOADING, pack, scratch, image)
    assert ran.stderr == ""
    assert ran.stdout.split("\n")[:3] == ["20 20", "20", "2 a (8, 8, 3)"]


@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("verify PACK", "pyarrow"),
        ("split PACK a=0.5 b=0.5", "pyarrow"),
    ],
)
def test_a_command_that_needs_more_says_what_to_install(
    bare: list[str], tmp_path: Path, command: str, package: str
) -> None:
    write_images(tmp_path / "PACK")
    words = [str(tmp_path / word) if word == "PACK" else word for word in command.split()]
    ran = run(bare, "import feedrate.cli; sys.exit(feedrate.cli.main(sys.argv[1:]))", *words)
    assert f"error: this needs {package}, which is not installed" in ran.stderr
    assert f"hint: pip install {package}" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 1
