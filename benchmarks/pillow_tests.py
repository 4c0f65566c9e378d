# SPDX-License-Identifier: Apache-2.0
"""Do Pillow's own tests pass with images that stay recipes as they pass without?

    python benchmarks/pillow_tests.py pillow-13.0.0 [tests ...]

The folder is the unpacked source package (PyPI's .tar.gz) of the Pillow that is installed here. The tests run
twice, in processes of their own; the second time every JPEG that they open stays a recipe. Prints how many
ended in which way, each test that ended otherwise, and what was taken and left.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

SELF = Path(__file__).resolve()
Endings = dict[str, str]


def pytest_configure() -> None:
    """Install the lazy images: pytest calls this where it was given this file as a plugin."""
    import PIL.JpegImagePlugin  # noqa: F401

    from feedrate.run.inside import images, selftest, switch

    problem = images.install(selftest.run())
    if problem:
        raise SystemExit(problem)
    switch.here.is_on = True


def pytest_unconfigure() -> None:
    from feedrate.run.inside.counters import here

    print("\ncounted:", {name: value for name, value in here.current.as_dict().items() if value})


def run_tests(folder: Path, tests: list[str], *options: str) -> Endings:
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
        where = {**os.environ, "PYTHONPATH": str(SELF.parent)}
        ran = subprocess.run(
            [*command, *options, *tests], cwd=folder, env=where, capture_output=True, text=True
        )
        if not results.exists():
            raise SystemExit(ran.stdout[-2000:] + ran.stderr[-2000:])
        print(*[line for line in ran.stdout.splitlines() if line.startswith("counted:")], sep="\n")
        cases = ElementTree.parse(results).iter("testcase")
        return {f"{case.get('classname')}::{case.get('name')}": ending_of(case) for case in cases}


def ending_of(case: ElementTree.Element) -> str:
    return next((part.tag for part in case if part.tag in ("failure", "error", "skipped")), "passed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("tests", nargs="*", default=["Tests"])
    args = parser.parse_args()
    bare = run_tests(args.folder, args.tests)
    lazy = run_tests(args.folder, args.tests, "-p", SELF.stem)
    for words, endings in (("bare", bare), ("with recipes", lazy)):
        print(f"{words}: {dict(Counter(endings.values()))}")
    for name in sorted(bare.keys() | lazy.keys()):
        if bare.get(name) != lazy.get(name):
            print(f"{name}: {bare.get(name)} bare, {lazy.get(name)} with recipes")


if __name__ == "__main__":
    main()
