# SPDX-License-Identifier: Apache-2.0
"""scripts/move on a small project: what it renames, what it leaves, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

SCRIPT = ROOT / "scripts" / "move"
HOOK = "src/feedrate/doctor/hook/feedrate_hook"
FILES = {
    "src/feedrate/__init__.py": '"""The project."""\n',
    "src/feedrate/store/__init__.py": '"""Where bytes are."""\n',
    "src/feedrate/store/shelf.py": '''"""A shelf, as `Shelf` has it."""

from __future__ import annotations

from feedrate.store import files

__all__ = ["Shelf"]


class Shelf:
    """Keeps samples: see feedrate.store.files.appear and store/files.py."""

    def put(self, Shelf: int) -> str:
        return f"{files.appear('shelf')} {Shelf}"

    def same(self) -> Shelf:
        return Shelf()
''',
    "src/feedrate/store/files.py": '"""Files."""\n\nfrom __future__ import annotations\n\nimport os\n\n\n'
    "def appear(name: str) -> str:\n    return os.fspath(name)\n\n\ndef free() -> int:\n    return 1\n",
    "src/feedrate/store/tiers.py": '''"""Tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedrate.store.shelf import Shelf


def tier(of: Shelf) -> str:
    from feedrate.store.files import appear, free

    return appear(str(free()))
''',
    f"{HOOK}/__init__.py": '"""The hook."""\n',
    "src/feedrate/doctor/__init__.py": '"""Doctor."""\n',
    "src/feedrate/doctor/hook/__init__.py": '"""Hook."""\n',
    f"{HOOK}/held.py": '"""Held."""\n\nfrom . import clock\nfrom .clock import now\n\n\ndef hold():\n'
    '    return clock.now() + now(), "feedrate_hook.held"\n',
    f"{HOOK}/clock.py": '"""Clock."""\n\n\ndef now():\n    return {"shelf": 1}\n',
    "tests/test_shelf.py": """from __future__ import annotations

import feedrate.store.shelf
import feedrate.store.files as f
from feedrate.store import shelf
from feedrate.store.shelf import Shelf as S


def test_it(monkeypatch):
    monkeypatch.setattr("feedrate.store.files.appear", str)
    monkeypatch.setattr(shelf, "Shelf", S)
    code = "from feedrate.store.shelf import Shelf; print(Shelf())"
    store = {"shelf": f.appear("Shelf"), "of": feedrate.store.shelf.Shelf, "code": code}
    assert store and shelf.Shelf
""",
    "docs/page.md": "`Shelf` in `store/shelf.py`, feedrate.store.shelf.Shelf; a shelf is a Shelf.\n",
}
MOVE = """
package feedrate.cache: The cache.
package feedrate.files: Files.
feedrate.store.shelf -> feedrate.cache.store
feedrate.store.files -> feedrate.files.atomic
feedrate.store.tiers -> feedrate.cache.limits
feedrate.store.shelf:Shelf -> SampleCache
feedrate.store.files:appear -> atomic_write
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# SPDX-License-Identifier: Apache-2.0\n{text}" if name.startswith("src") else text)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(project: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=project, capture_output=True, text=True, check=True).stdout


def commit(project: Path) -> None:
    git(project, "add", "-A")
    git(project, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x")


def move(project: Path, lines: str, *words: str) -> subprocess.CompletedProcess[str]:
    target = project.parent / f"{project.name}.map"
    target.write_text(lines)
    command = [sys.executable, SCRIPT, *words, target]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


def moved(project: Path, lines: str = MOVE) -> str:
    done = move(project, lines)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(project: Path, name: str) -> str:
    return (project / name).read_text()


def test_files_are_moved_and_an_empty_package_is_removed(project: Path) -> None:
    said = moved(project)
    assert not (project / "src/feedrate/store").exists() or not list(
        (project / "src/feedrate/store").glob("*.py")
    )
    assert "moved    src/feedrate/store/shelf.py -> src/feedrate/cache/store.py" in said
    assert read(project, "src/feedrate/cache/__init__.py").endswith('"""The cache."""\n')


def test_names_are_renamed_where_they_mean_what_the_map_says_and_nowhere_else(project: Path) -> None:
    moved(project)
    text = read(project, "src/feedrate/cache/store.py")
    assert "class SampleCache:" in text
    assert "def put(self, Shelf: int)" in text  # an argument of that name
    assert "{atomic.atomic_write('shelf')} {Shelf}" in text  # inside an f-string
    assert "def same(self) -> SampleCache:\n        return SampleCache()" in text
    assert '__all__ = ["SampleCache"]' in text


def test_every_form_of_import_follows(project: Path) -> None:
    moved(project)
    text = read(project, "tests/test_shelf.py")
    for line in (
        "import feedrate.cache.store\n",
        "import feedrate.files.atomic as f\n",
        "SampleCache as S\n",
    ):
        assert line in text
    assert '"of": feedrate.cache.store.SampleCache' in text
    limits = read(project, "src/feedrate/cache/limits.py")
    assert "    from feedrate.cache.store import SampleCache\n" in limits
    assert (
        "    from feedrate.files.atomic import atomic_write, free\n\n    return atomic_write(str(free()))"
        in limits
    )


def test_a_module_keeps_its_old_name_where_the_new_one_is_taken(project: Path) -> None:
    said = moved(project)
    text = read(project, "tests/test_shelf.py")
    assert "from feedrate.cache import store as shelf\n" in text
    assert 'monkeypatch.setattr(shelf, "SampleCache", S)' in text
    assert "by hand  tests/test_shelf.py: shelf cannot become store" in said


def test_strings_that_name_modules_follow_and_other_words_stay(project: Path) -> None:
    moved(project)
    text = read(project, "tests/test_shelf.py")
    assert 'setattr("feedrate.files.atomic.atomic_write", str)' in text
    assert '"from feedrate.cache.store import SampleCache as Shelf; print(Shelf())"' in text
    assert '"shelf": f.atomic_write("Shelf")' in text
    page = "`SampleCache` in `cache/store.py`, feedrate.cache.store.SampleCache; a shelf is a Shelf.\n"
    assert read(project, "docs/page.md") == page


def test_a_module_name_that_is_put_together_is_left_to_a_person(project: Path) -> None:
    path = project / "tests/test_shelf.py"
    path.write_text(path.read_text() + 'CODE = f"import feedrate.store.{shelf}"\n')
    commit(project)
    assert "feedrate.store.{...}: which module is it now?" in moved(project)


def test_a_moved_module_that_asks_where_it_is_is_named(project: Path) -> None:
    path = project / "src/feedrate/store/files.py"
    path.write_text(path.read_text() + "\n\nHERE = __file__\n")
    commit(project)
    assert "src/feedrate/store/files.py:17: __file__ is in another folder now" in moved(project)


def test_the_hook_is_left_alone_unless_it_is_named(project: Path) -> None:
    before = read(project, f"{HOOK}/clock.py")
    moved(project)
    assert read(project, f"{HOOK}/clock.py") == before


def test_a_module_may_become_a_folder_of_its_name(project: Path) -> None:
    lines = "package feedrate.store.shelf: The shelf.\nfeedrate.store.shelf -> feedrate.store.shelf.shelf\n"
    moved(project, lines)
    text = read(project, "tests/test_shelf.py")
    assert '"from feedrate.store.shelf.shelf import Shelf; print(Shelf())"' in text
    assert "import feedrate.store.shelf.shelf\n" in text


def test_the_hook_stays_named_by_its_own_path(project: Path) -> None:
    own = "feedrate.doctor.hook.feedrate_hook"
    moved(
        project, f"package {own}.guard: Guard.\n{own}.held -> {own}.guard.files\n{own}.clock:now -> now_ns\n"
    )
    text = read(project, f"{HOOK}/guard/files.py")
    assert "from .. import clock\nfrom ..clock import now_ns\n" in text
    assert 'return clock.now_ns() + now_ns(), "feedrate_hook.guard.files"' in text


@pytest.mark.parametrize(("module", "is_refused"), [("store.files", True), ("store.tiers", False)])
def test_an_import_of_everything_is_in_the_way_of_moving_that_module_alone(
    project: Path, module: str, is_refused: bool
) -> None:
    (project / "src/feedrate/all.py").write_text("from feedrate.store.files import *\n")
    commit(project)
    done = move(project, f"feedrate.{module} -> feedrate.{module}_moved\n")
    assert (done.returncode != 0) == is_refused
    assert ("all.py:1: import * hides what it takes" in done.stderr) == is_refused


MERGE = """
package feedrate.cache: The cache.
feedrate.store.shelf -> feedrate.cache.store
feedrate.store.files -> feedrate.cache.store
feedrate.store.tiers -> feedrate.cache.store
"""


def test_merged_modules_lose_the_imports_of_each_other(project: Path) -> None:
    moved(project, MERGE)
    text = read(project, "src/feedrate/cache/store.py")
    assert "import feedrate" not in text
    assert "from feedrate" not in text
    assert "{appear('shelf')}" in text
    assert text.count("from __future__ import annotations") == 1
    assert "Tiers." in text.split('"""')[1]
    assert text.index("def appear") < text.index("class Shelf")
    run = "import feedrate.cache.store as s; print(s.Shelf().put(2), s.tier(s.Shelf()))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", run], cwd=project / "src", capture_output=True, text=True, check=False
    )
    assert done.stdout == "shelf 2 1\n", done.stderr


def test_a_module_may_become_part_of_one_that_stays(project: Path) -> None:
    moved(project, "feedrate.store.files -> feedrate.store.shelf\n")
    text = read(project, "src/feedrate/store/shelf.py")
    assert "from feedrate" not in text
    assert "{appear('shelf')}" in text
    assert "    from feedrate.store.shelf import appear, free\n" in read(
        project, "src/feedrate/store/tiers.py"
    )


def test_a_clash_of_names_is_refused_and_nothing_is_changed(project: Path) -> None:
    path = project / "src/feedrate/store/tiers.py"
    path.write_text(path.read_text() + "\n\ndef free() -> int:\n    return 2\n")
    commit(project)
    done = move(project, MERGE)
    assert done.returncode == 1
    assert "free is in feedrate.store.files and in feedrate.store.tiers" in done.stderr
    assert git(project, "status", "--porcelain") == ""


def test_a_definition_may_leave_its_module(project: Path) -> None:
    line = "module feedrate.room: Room on disks.\nfeedrate.store.files:free -> feedrate.room:count_free\n"
    moved(project, line)
    assert "def count_free() -> int:" in read(project, "src/feedrate/room.py")
    assert "free" not in read(project, "src/feedrate/store/files.py")
    assert "    from feedrate.room import count_free\n" in read(project, "src/feedrate/store/tiers.py")


def test_a_tree_with_changes_is_refused(project: Path) -> None:
    (project / "docs/page.md").write_text("changed\n")
    assert "the tree has changes" in move(project, MOVE).stderr


def test_the_check_passes_after_a_move_and_names_what_else_was_changed(project: Path) -> None:
    moved(project)
    done = move(project, MOVE, "--check", "HEAD")
    assert done.returncode == 0, done.stdout
    path = project / "src/feedrate/files/atomic.py"
    path.write_text(path.read_text().replace("return 1", "return 2"))
    done = move(project, MOVE, "--check", "HEAD")
    assert done.returncode == 1
    assert "feedrate.files.atomic: free: differs" in done.stdout


def test_a_map_with_names_that_are_not_there_is_refused(project: Path) -> None:
    error = move(project, "feedrate.store.shelf:Shelve -> X\nfeedrate.stor -> feedrate.x\n").stderr
    assert "feedrate.store.shelf:Shelve: no such name" in error
    assert "feedrate.stor: no such module" in error
