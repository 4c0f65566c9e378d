# SPDX-License-Identifier: Apache-2.0
"""What people install: a source archive and wheels; the oldest versions claimed, and a new Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.images import save_image
from support.paths import ROOT

pytestmark = pytest.mark.slow

# What a package has to do with what it depends on: arrays, Arrow files, images, HDF5.
TESTED = """
    packing/test_pack.py packing/test_pack_table.py packing/test_pack_recode.py
    packing/check/test_verify.py packing/check/test_unpack.py packing/change/test_add_column.py
    loader/test_loader.py loader/test_dataset.py cache/test_cached.py cache/test_codec.py
    loader/test_decode.py format/test_containers.py format/test_format_index.py
    format/test_format_frozen.py
""".split()  # noqa: SIM905
TOOLS = ["pytest", "hypothesis"]
USE = """
import sys
import feedrate
crop = feedrate.RandomResizedCrop(16)
batches = list(feedrate.Loader(sys.argv[1], batch_size=2, image=crop, output="numpy"))
print([batch[0].shape for batch in batches], sorted(int(label) for _, labels in batches for label in labels))
"""

Build = Callable[[str], Path]


def find_python(version: str) -> str:
    """Return an interpreter of this version, from PATH or pyenv; the test skips where there is none."""
    homes = sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin")
    )
    for found in (shutil.which(f"python{version}"), *(str(home / "python") for home in homes)):
        if found is not None and _run([found, "-c", "import venv, ensurepip"], check=False).returncode == 0:
            return found
    pytest.skip(f"there is no Python {version} here that can make an environment")


def _run(
    command: Sequence[object], *, check: bool = True, **options: object
) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **options
    )  # type: ignore[call-overload]
    assert ran.returncode == 0 or not check, f"{command}\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
    return ran


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    code = "import sys, scikit_build_core.build as build; build.build_sdist(sys.argv[1])"
    _run([sys.executable, "-c", code, folder], cwd=ROOT)
    (made,) = folder.glob("feedrate-*.tar.gz")
    return made


@pytest.fixture(scope="module")
def build(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a function that makes a wheel of the source archive, as pip does for a user."""

    def make(python: str) -> Path:
        folder = tmp_path_factory.mktemp("wheel")
        _run([python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, sdist])
        (made,) = folder.glob("feedrate-*.whl")
        return made

    return make


def make_environment(python: str, folder: Path, packages: Sequence[object]) -> Path:
    _run([python, "-m", "venv", folder])
    made = folder / "bin" / "python"
    _run([made, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *packages])
    return made


def run_tests(python: Path) -> str:
    """Run the tests of what depends on other packages; return pytest's closing line."""
    # A warning of an old package on a Python that it did not know is not ours to mend.
    options = ["-q", "-W", "default", "-p", "no:cacheprovider", "-m", "not slow"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    ran = _run(
        [python, "-m", "pytest", *options, *(f"tests/{name}" for name in TESTED)], cwd=ROOT, env=environ
    )
    return ran.stdout.splitlines()[-1]


def oldest() -> list[str]:
    """Return what pyproject.toml asks for, each in the oldest version that it takes."""
    text = (ROOT / "pyproject.toml").read_text()
    (claimed,) = re.findall(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    # torch brings several GB of CUDA along.
    extras = ["hdf5", "http", *(["torch"] if os.environ.get("FEEDRATE_OLDEST_TORCH") else [])]
    chosen = re.findall(rf'^(?:{"|".join(extras)}) = \["([^"]+)"\]', text, re.MULTILINE)
    wanted = [*re.findall(r'"([^"]+)"', claimed), *chosen]
    assert len(wanted) == claimed.count('\n  "') + len(extras)
    return [word.replace(">=", "==") for word in wanted]


def test_a_wheel_is_used_where_there_is_no_compiler(build: Build, tmp_path: Path) -> None:
    python = make_environment(sys.executable, tmp_path / "env", [build(sys.executable)])
    photos = tmp_path / "photos"
    for number in range(6):
        save_image(photos / f"class{number % 2}" / f"{number}.jpg", seed=number)
    bare = {"PATH": str(python.parent), "HOME": str(tmp_path)}
    _run([python.parent / "feedrate", "pack", photos, tmp_path / "pack"], env=bare)
    assert "good" in _run([python.parent / "feedrate", "verify", tmp_path / "pack"], env=bare).stdout
    shown = _run([python, "-c", USE, tmp_path / "pack"], env=bare).stdout
    assert shown == "[(2, 16, 16, 3), (2, 16, 16, 3), (2, 16, 16, 3)] [0, 0, 0, 1, 1, 1]\n"


def test_the_oldest_versions_that_are_claimed_pass_the_tests(build: Build, tmp_path: Path) -> None:
    python = find_python("3.10")
    wheel = build(python)
    made = make_environment(python, tmp_path / "env", [wheel, *oldest(), *TOOLS])
    assert " passed" in run_tests(made)


def test_a_python_that_came_later_passes_the_tests(build: Build, tmp_path: Path) -> None:
    python = find_python("3.13")
    made = make_environment(python, tmp_path / "env", [build(python), "h5py", *TOOLS])
    assert " passed" in run_tests(made)


def test_the_source_archive_holds_what_a_build_needs_and_no_results(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    native = {str(path.relative_to(ROOT)) for path in (ROOT / "native").rglob("*.[ch]*")}
    assert native | {"LICENSE", "README.md", "CMakeLists.txt", "src/feedrate/py.typed"} <= names
    assert not any(name.startswith(("benchmarks/results", ".ci", ".venv")) for name in names)
