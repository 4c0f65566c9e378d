# SPDX-License-Identifier: Apache-2.0
"""Every native file includes the standard headers that it uses: other compilers bring fewer along."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.paths import ROOT

NATIVE = ROOT / "native"
HOT = NATIVE / "hot"
IWYU = shutil.which("include-what-you-use") or shutil.which("iwyu")

# C's headers among those with a dot; the others with one are the system's, and vary by the system.
C_HEADERS = {
    f"{name}.h" for name in ("limits", "math", "signal", "stddef", "stdint", "stdio", "stdlib", "string")
}
# A detail of one library's containers, which no code here names.
ARTEFACTS = {"allocator_traits<>::value_type"}


@pytest.mark.slow
@pytest.mark.skipif(IWYU is None, reason="needs include-what-you-use (apt install iwyu)")
def test_every_native_file_includes_the_standard_headers_it_uses() -> None:
    # What is in hot/ is pieces of one file, and is looked at with those that put it together.
    files = [
        path for path in sorted(NATIVE.rglob("*")) if path.suffix in (".cpp", ".h") and path.parent != HOT
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        missing = {line for lines in pool.map(find_missing, files) for line in lines}
    assert not missing, "\n".join(sorted(missing))


def find_missing(path: Path) -> list[str]:
    nanobind = pytest.importorskip("nanobind")
    folders = [nanobind.include_dir(), sysconfig.get_paths()["include"]]
    command = [IWYU, "-x", "c++", "-std=c++17", *(f"-isystem{folder}" for folder in folders)]
    command += ["-Xiwyu", f"--check_also={HOT}/*", path]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert " error: " not in said, said[-4000:]
    assert "#includes/fwd-decls" in said or "should add these lines" in said, said[-4000:]
    return [f"{file.relative_to(NATIVE)} lacks {line}" for file, line in list_missing(said)]


def list_missing(said: str) -> Iterator[tuple[Path, str]]:
    """Yield the files and `#include` lines of standard headers that are to be added."""
    file = None
    for line in said.splitlines():
        if begins := re.fullmatch("(.+) should add these lines:", line):
            file = Path(begins[1])
            together = (HOT / "level.h").read_text() if file.parent == HOT else ""
        elif not line:
            file = None
        elif file and (wanted := re.fullmatch(r"#include <([\w.]+)>\s*// for (.+)", line)):
            header, uses = wanted[1], set(wanted[2].split(", "))
            names = {f"<{header}>", f"<c{header.removesuffix('.h')}>"}
            is_standard = "." not in header or header in C_HEADERS
            if is_standard and uses - ARTEFACTS and not any(name in together for name in names):
                yield file, line
