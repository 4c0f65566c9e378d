# SPDX-License-Identifier: Apache-2.0
"""Runs of the doctor's corpus that are kept, and their analysis, again and again, with the same result.

`record` keeps the run folder as the hook and the sampler leave it, and what the analysis looks at outside of
it: the machine, the data's files, source lines, and what it times anew (the loader's trial, our decoder).
The analysis of a kept run gets these answers again, so that nothing but the code decides what it finds.

Functions are found by their names in all modules of feedrate, wherever they stand. One that is renamed gets
its new name in `RENAMED`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import io
import json
import linecache
import os
import pkgutil
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent
DATA = REPOSITORY / "tests" / "data" / "reference"
ARCHIVE = DATA / "runs.tar.xz"
EXPECTED = "runs.json"

# Old name -> new name, of functions, classes and fields of classes.
RENAMED: dict[str, str] = {}
# What the analysis looks at or times outside of the run folder.
OUTSIDE = (
    "measure_usable_cores", "describe_machine", "describe_storage", "measure_residency", "describe_pack",
    "is_pack", "time_kernel", "time_pack_images", "time_kept", "try_loader", "find_scratch",
    "measure_scratch",
)  # fmt: skip
CASES = (
    "no-workers", "random-crops", "python-noise", "python-heatmaps", "one-worker-stream", "pinned-workers",
    "crops-of-clips", "lists-of-arrays", "float-stacks", "python-metric", "encoding-in-the-loop",
    "spawned-workers", "catalogue-per-worker", "validation-all-the-time", "checkpoints-all-the-time",
    "previews-all-the-time", "uneven-ranks", "docker-shm", "spectrograms-every-epoch",
    "panoramas-every-epoch", "healthy-gpt", "decoded-in-advance", "png-scans", "slow-server-small-files",
    "first-epoch", "sixteen-workers-chunks", "crowded-machine", "random-crops:after",
)  # fmt: skip
STEPS = 40


# The analysis -----------------------------------------------------------------------------------------------


def analyse_runs(folder: Path, archive: Path = ARCHIVE) -> dict[str, Any]:
    """Return the diagnosis of every run of an archive, by its name."""
    unpack_runs(folder, archive)
    return {path.name: shorten(analyse(path)) for path in sorted(folder.iterdir())}


def unpack_runs(folder: Path, archive: Path = ARCHIVE) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


def shorten(document: dict[str, Any]) -> dict[str, Any]:
    """Return a diagnosis with the hashes of what is drawn alone, which is most of it."""
    short = dict(document)
    for name in ("timeline", "curves"):
        if name in short:
            text = json.dumps(short[name], sort_keys=True)
            short[name] = {"entries": len(short[name]), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return short


def analyse(kept: Path) -> Any:
    """Return the diagnosis of a kept run, as the JSON document that the doctor writes."""
    answers = json.loads((kept / "answers.json").read_text())
    with answering(answers):
        return judge(kept / "run", json.loads((kept / "observed.json").read_text()))


def judge(run: Path, seen: Mapping[str, Any]) -> Any:
    """Do what `feedrate doctor` does once the command has ended."""
    feedrate = find_functions()
    values = {RENAMED.get(name, name): value for name, value in seen["observed"].items()}
    values |= {"command": tuple(values["command"]), "run_folder": run}
    observed = feedrate.Observed(**values)
    options = feedrate.DoctorOptions(steps=seen["steps"])
    try:
        recording, trace = feedrate.read_run(run), feedrate.read_machine(run)
        if feedrate.judge_death(observed, recording, trace) is None:
            feedrate.check_seen(observed)
        diagnosis = feedrate.judge_run(observed, recording, trace, options)
    except feedrate.DoctorError as error:
        return {"error": error.message, "hint": error.hint}
    return json.loads(feedrate.dump_document("doctor", diagnosis))


def find_functions() -> SimpleNamespace:
    """Return feedrate's functions that are needed here, wherever they stand."""
    names = (
        "Observed", "DoctorOptions", "DoctorError", "read_run", "read_machine", "judge_death", "check_seen",
        "judge_run", "dump_document", "run_command",
    )  # fmt: skip
    return SimpleNamespace(**{name: find_name(name) for name in names})


def find_name(name: str) -> Any:
    """Return what is defined under a name in a module of feedrate; of several, what the doctor uses.

    Raises:
        LookupError: there is no such name, or several.
    """
    wanted = RENAMED.get(name, name)
    found = {
        id(value): value
        for module in list_modules()
        if getattr(value := vars(module).get(wanted), "__module__", None) == module.__name__
    }
    if len(found) > 1:
        used = {id(vars(m).get(wanted)) for m in list_modules() if m.__name__.startswith("feedrate.doctor")}
        found = {key: value for key, value in found.items() if key in used}
    if len(found) != 1:
        raise LookupError(
            f"feedrate has {len(found)} things of the name {wanted}: say in RENAMED what is meant"
        )
    return next(iter(found.values()))


def list_modules() -> list[Any]:
    """Return the modules of feedrate that the doctor's analysis may use, imported."""
    if not _modules:
        import feedrate

        skipped = re.compile(r"\.(hook|demo|bench|cli|tensorflow|jax|__main__|_native)\b")
        for info in pkgutil.walk_packages(feedrate.__path__, "feedrate.", onerror=lambda _: None):
            if not skipped.search(info.name):
                try:
                    importlib.import_module(info.name)
                except ImportError:
                    continue
        _modules.extend(
            m for n, m in sorted(sys.modules.items()) if n.startswith("feedrate.") and m is not None
        )
    return _modules


_modules: list[Any] = []


# Answers ----------------------------------------------------------------------------------------------------


@contextmanager
def patched(make: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Put other functions in the place of those that look outside, in every module that has them."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for name in OUTSIDE:
            original = find_name(name)
            instead = make(name, original)
            for module in list_modules():
                for key, value in list(vars(module).items()):
                    if value is original:
                        before.append((module, key, value))
                        setattr(module, key, instead)
        for module, key in ((linecache, "getline"), (linecache, "getlines"), (os, "stat")):
            before.append((module, key, getattr(module, key)))
            setattr(module, key, make(key, getattr(module, key)))
        clear_caches()
        yield
    finally:
        for module, key, value in reversed(before):
            setattr(module, key, value)
        clear_caches()


def clear_caches() -> None:
    for module in list_modules():
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear") and getattr(value, "__module__", "").startswith("feedrate"):
                value.cache_clear()


@contextmanager
def noting(answers: dict[str, Any]) -> Iterator[None]:
    """Note what is answered to the analysis, in order."""
    is_inside = False

    def make(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*words: Any, **options: Any) -> Any:
            nonlocal is_inside
            if is_inside:  # what such a function asks in turn is not asked when it is answered
                return original(*words, **options)
            is_inside = True
            try:
                result = original(*words, **options)
            except OSError as error:
                if name == "stat":
                    answers.setdefault(name, {})[os.fspath(words[0])] = None
                    raise
                raise RuntimeError(f"{name} failed: {error}") from error
            finally:
                is_inside = False
            if name == "stat":
                if isinstance(words[0], str | os.PathLike):
                    answers.setdefault(name, {})[os.fspath(words[0])] = result.st_size
            elif name in ("getline", "getlines"):
                answers.setdefault("lines", {})[words[0]] = (
                    linecache.getlines(words[0]) if name == "getline" else result
                )
            else:
                answers.setdefault(name, []).append(encode(result))
            return result

        return instead

    with patched(make):
        yield


@contextmanager
def answering(answers: Mapping[str, Any]) -> Iterator[None]:
    """Answer as it was noted."""
    asked: dict[str, int] = {}

    def make(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        lines, sizes = answers.get("lines", {}), answers.get("stat", {})
        if name == "getline":
            return lambda path, number, *_: (
                (lines.get(path, []) + [""] * number)[number - 1] if number > 0 else ""
            )
        if name == "getlines":
            return lambda path, *_: lines.get(path, [])
        if name == "stat":
            return lambda path, *words, **options: (
                original(path, *words, **options) if path not in sizes else stat_answer(path, sizes[path])
            )

        def instead(*_: Any, **__: Any) -> Any:
            known, number = answers.get(name, []), asked.get(name, 0)
            asked[name] = number + 1
            if not known:
                raise LookupError(f"the analysis asks {name}, which it did not when the run was recorded")
            return decode(known[min(number, len(known) - 1)])

        return instead

    with patched(make):
        yield


def stat_answer(path: Any, size: int | None) -> SimpleNamespace:
    if size is None:
        raise FileNotFoundError(2, "No such file or directory", path)
    return SimpleNamespace(st_size=size)


def encode(value: Any) -> Any:
    """Return a value as JSON; a dataclass by its name and fields, whatever module it stands in."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": type(value).__name__, "fields": fields}
    if isinstance(value, tuple):
        return {"tuple": [encode(each) for each in value]}
    if isinstance(value, list):
        return [encode(each) for each in value]
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(each)] for key, each in value.items()]}
    if isinstance(value, Path):
        return {"path": str(value)}
    return value


def decode(value: Any) -> Any:
    if isinstance(value, list):
        return [decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "class" in value:
        fields = {RENAMED.get(name, name): decode(each) for name, each in value["fields"].items()}
        return find_name(value["class"])(**fields)
    if "tuple" in value:
        return tuple(decode(each) for each in value["tuple"])
    if "path" in value:
        return Path(value["path"])
    return {decode(key): decode(each) for key, each in value["dict"]}


# Recording --------------------------------------------------------------------------------------------------


def record_runs(names: list[str] | None, kept: Path) -> int:
    """Run cases under the doctor and keep what they leave; then write the archive of all that is kept."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from doctor_corpus.run_case import (
        Place,
        die_with_parent,
        find_case,
        make_command,
        make_environ,
        prepare,
        why_not,
    )

    data = Path(tempfile.gettempdir()) / "feedrate-corpus"
    for name in names or CASES:
        case = find_case(name.partition(":")[0])
        run = case.after if name.endswith(":after") else case.before
        if run is None or (reason := why_not(case)):
            print(f"{name}: left out, {reason if run else 'there is no such run'}", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="feedrate-case-") as scratch:
            place = Place(data, Path(scratch))
            prepare(case, run, place)
            target = kept / name.replace(":", "-")
            shutil.rmtree(target, ignore_errors=True)
            tool = [sys.executable, __file__, str(target)]
            command = make_command(case, run, place, tool=tool)
            done = subprocess.run(
                command,
                env=make_environ(run, place),
                capture_output=True,
                text=True,
                check=False,
                timeout=400,
                preexec_fn=die_with_parent,
            )
            if not (target / "live.json").exists():
                shutil.rmtree(target, ignore_errors=True)
                print(f"{name}: left out, {done.stderr.strip()[-300:]}", flush=True)
                continue
            live = clean(target, place.scratch, data)
        again = analyse(target)
        is_same = again == live
        found = [finding["code"] for finding in again.get("findings", ())]
        size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        print(
            f"{name}: {found}, {size} bytes, {'as it was live' if is_same else 'NOT as it was live'}",
            flush=True,
        )
    write_archive(kept)
    return 0


def record_one(target: Path, command: list[str]) -> None:
    """Run a command under the doctor; keep its run folder, the answers and the diagnosis."""
    feedrate = find_functions()
    options = feedrate.DoctorOptions(steps=STEPS)
    answers: dict[str, Any] = {}
    with feedrate.run_command(command, options) as observed:
        (target / "run").mkdir(parents=True)
        for path in observed.run_folder.iterdir():
            if path.suffix in (".facts", ".ring", ".json", ".jsonl"):  # the rest is the command's own
                shutil.copy(path, target / "run")
        fields = {f.name: getattr(observed, f.name) for f in dataclasses.fields(observed)}
        seen = {"steps": STEPS, "observed": {**fields, "run_folder": "run"}}
        (target / "observed.json").write_text(json.dumps(seen))
        with noting(answers):
            live = judge(target / "run", seen)
    (target / "answers.json").write_text(json.dumps(answers))
    (target / "live.json").write_text(json.dumps(live))


def clean(kept: Path, scratch: Path, data: Path) -> Any:
    """Replace this machine's paths and names in a kept run; cut rings off; return the live diagnosis."""
    for path in (kept / "run").glob("*.ring"):
        path.write_bytes(path.read_bytes().rstrip(b"\0") + bytes(64))
    names = [
        (str(scratch), "/scratch"),
        (str(data), "/data"),
        (str(REPOSITORY), "/project"),
        (sys.base_prefix + "/", "/python/"),
        (tempfile.gettempdir() + "/", "/temporary/"),
        (os.path.expanduser("~") + "/", "/home/user/"),
    ]
    for path in kept.rglob("*"):
        if path.is_file() and path.suffix != ".ring":
            text = path.read_text()
            for name, instead in names:
                text = text.replace(name, instead)
            path.write_text(re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node", text))
    return json.loads((kept / "live.json").read_text())


def write_archive(kept: Path, archive: Path = ARCHIVE) -> None:
    """Write kept runs to one archive, without what is only there to compare with."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(kept.rglob("*")):
            if path.is_file() and path.name != "live.json":
                member = tarfile.TarInfo(str(path.relative_to(kept)))
                content = path.read_bytes()
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY / "scripts"))
    record_one(Path(sys.argv[1]), sys.argv[2:])
