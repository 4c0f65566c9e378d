# SPDX-License-Identifier: Apache-2.0
"""`feedrate pack`: source folder -> pack.

    (nothing) --packing.json--> unfinished --all shards--> unfinished --pack.json--> finished
                                  ^    |
                                  +----+  killed, full disk, Ctrl-C: the same command goes on

packing.json says what is being packed. It is written first and removed last, so a folder that has it is
unfinished, whatever else lies there. All else is decided by the source's listing and the settings: shards
that are complete stay as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from feedrate.errors import AlreadyExists, SourceError, StorageError, UsageError
from feedrate.format.containers import find_container
from feedrate.format.fields import Field
from feedrate.format.manifest import FILE_NAME, Manifest, dump_manifest, read_manifest
from feedrate.pack.files import (
    LOCK_NAME,
    appear,
    explain_write_error,
    free_bytes,
    is_temporary,
    only_one,
    remove_temporaries,
    sync_folder,
)
from feedrate.pack.joining import join_parts, read_joined, remove_parts
from feedrate.pack.options import PackOptions
from feedrate.pack.plan import ShardTask, describe_settings, digest_plan, split_into_shards
from feedrate.pack.recode import sum_up
from feedrate.pack.shard import INDEX_SUFFIX, ShardDone, dump_rejections, find_done, write_shard
from feedrate.pack.source import Source, read_source
from feedrate.pack.workers import run_tasks
from feedrate.results import PackResult, Rejection, Tick
from feedrate.units import format_bytes

PROGRESS_NAME = "packing.json"
REJECTED_NAME = "rejected.jsonl"
# What the index adds: entry points (0.8 % of photographs of 106 KB, measured), and a row per sample.
_INDEX_SHARE, _INDEX_ROW_BYTES = 0.01, 200


def pack(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    watch: Callable[[Tick], None] = lambda _: None,
) -> PackResult:
    """Pack a folder of images into `target`, or go on with a pack that was interrupted.

    Args:
        source: class folders with images, a folder of images, or any folder with `options.labels`.
        target: a new folder, or that of an unfinished pack of the same source and settings.
        watch: called now and then with how far it is.

    Raises:
        NotFound: the source, or the table, is not there.
        SourceError: nothing in the source can be packed, or not as it is.
        AlreadyExists: the target holds something else, or is being packed right now.
        StorageError: the disk is full or failed; run the same again to go on.
    """
    options = options or PackOptions()
    begin = time.monotonic()
    source, folder = os.fspath(source), Path(target)
    _refuse_nesting(source, folder)
    _refuse_foreign(folder)
    with _own_folder(folder):
        _refuse_finished(folder, options)
        listed = read_source(source, options, lambda files: watch(Tick("listing", files, 0)))
        listed = dataclasses.replace(listed, fields=options.recode.mark(listed.fields))
        if not listed.samples:
            raise _all_rejected(listed.rejected)
        settings = describe_settings(listed, options)
        _begin(folder, settings, listed)
        result = _pack_shards(listed, folder, options, settings, watch)
        _finish(folder)
    return dataclasses.replace(result, seconds=time.monotonic() - begin)


def _pack_shards(
    source: Source,
    folder: Path,
    options: PackOptions,
    settings: dict[str, object],
    watch: Callable[[Tick], None],
) -> PackResult:
    plan = digest_plan(source, settings)
    tasks = [
        ShardTask(
            os.path.abspath(source.root),
            os.path.abspath(folder),
            number,
            plan,
            source.fields,
            options.recode,
            samples,
            options.container,
        )
        for number, samples in enumerate(split_into_shards(source, options))
    ]
    joined = read_joined(folder, plan) if options.container == "hdf5" else None
    missing = [task for task in tasks if joined is None and find_done(task) is None]
    _check_room(folder, missing)
    if source.table is not None:
        _write(folder / _table_name(settings), source.table.data)

    total, total_bytes = len(source.samples), sum(s.source_bytes for s in source.samples)
    before = total - sum(len(task.samples) for task in missing)
    before_bytes = total_bytes - sum(s.source_bytes for task in missing for s in task.samples)

    def report(samples: int, size_bytes: int) -> None:
        watch(Tick("packing", before + samples, total, before_bytes + size_bytes, total_bytes))

    report(0, 0)
    left_bytes = total_bytes - before_bytes
    for _ in run_tasks(write_shard, missing, workers=options.workers, size_bytes=left_bytes, watch=report):
        pass
    complete = joined or [shard for task in tasks if (shard := find_done(task)) is not None]
    if len(complete) < len(tasks):
        raise StorageError(
            f"a shard vanished from {folder} while it was packed", hint="run the same command again"
        )
    rejected = source.rejected + tuple(r for shard in complete for r in shard.rejected)
    if not any(shard.shard.samples for shard in complete):
        _remove_all(folder, tasks, settings)
        raise _all_rejected(rejected)
    if options.container == "hdf5" and joined is None:
        fields, complete = join_parts(folder, source.fields, complete)
        source = dataclasses.replace(source, fields=fields)
    manifest = (
        read_manifest(folder) if joined else _make_manifest(source, settings, plan, complete, len(rejected))
    )
    if rejected:
        _write(folder / REJECTED_NAME, dump_rejections(rejected))
    _write(folder / FILE_NAME, dump_manifest(manifest))
    if options.container == "hdf5":
        remove_parts(folder, len(tasks))
    return _summarise(source, folder, manifest, complete, rejected, resumed=len(tasks) - len(missing))


def _make_manifest(
    source: Source, settings: Mapping[str, object], plan: str, done: list[ShardDone], rejected: int
) -> Manifest:
    uniform: dict[str, Any] = {}
    for shard in done:
        for name, value in shard.uniform.items():
            if uniform.setdefault(name, value) != value:
                uniform[name] = None
    fields = tuple(_with_uniform(field, uniform) for field in source.fields)
    return Manifest(fields, tuple(d.shard for d in done), {**settings, "rejected": rejected, "plan": plan})


def _with_uniform(field: Field, uniform: Mapping[str, Any]) -> Field:
    shape, dtype = uniform.get(f"{field.name}.shape"), uniform.get(f"{field.name}.dtype")
    return dataclasses.replace(
        field, shape=None if shape is None else tuple(shape), dtype=field.dtype if dtype is None else dtype
    )


def _summarise(
    source: Source,
    folder: Path,
    manifest: Manifest,
    done: list[ShardDone],
    rejected: tuple[Rejection, ...],
    *,
    resumed: int,
) -> PackResult:
    by_pillow: Counter[str] = Counter()
    for shard in done:
        by_pillow.update(shard.by_pillow)
    label = manifest.field("label")
    return PackResult(
        source=source.root,
        target=str(folder),
        samples=manifest.samples,
        classes=None if label is None or label.classes is None else len(label.classes),
        fields={field.name: field.kind.value for field in manifest.fields},
        shards=len(done),
        resumed_shards=resumed,
        size_bytes=sum(s.size_bytes + s.index.size_bytes for s in manifest.shards),
        source_bytes=sum(shard.source_bytes for shard in done),
        seconds=0.0,
        rejected=rejected,
        damaged=tuple(d for shard in done for d in shard.damaged),
        by_kernel=sum(shard.by_kernel for shard in done),
        by_pillow=dict(by_pillow.most_common()),
        ignored=source.ignored,
        unlisted=source.unlisted,
        recoded=sum_up(manifest.settings, [shard.recoded for shard in done]),
    )


def _refuse_nesting(source: str, folder: Path) -> None:
    inner, outer = os.path.realpath(folder), os.path.realpath(source)
    if inner == outer:
        raise UsageError(f"{folder} is the source itself", hint="name another folder for the pack")
    if _is_inside(inner, outer):
        raise UsageError(
            f"{folder} lies inside the source {source}", hint="name a folder outside of it for the pack"
        )
    if _is_inside(outer, inner):
        raise UsageError(f"the source {source} lies inside {folder}", hint="name another folder for the pack")


def _is_inside(inner: str, outer: str) -> bool:
    return os.path.commonpath([inner, outer]) == outer


def _refuse_foreign(folder: Path) -> None:
    try:
        names = {entry.name for entry in os.scandir(folder)}
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise AlreadyExists(f"{folder} is a file; a pack is a folder") from None
    except OSError as error:
        raise StorageError(f"cannot look into {folder}: {error.strerror}") from error
    if PROGRESS_NAME in names or FILE_NAME in names:
        return
    foreign = sorted(name for name in names if name != LOCK_NAME and not is_temporary(name))
    if foreign:
        raise AlreadyExists(
            f"{folder} is not empty and not a pack: it holds '{foreign[0]}'",
            hint="name a new folder for the pack",
        )


def _refuse_finished(folder: Path, options: PackOptions) -> None:
    if (folder / PROGRESS_NAME).exists() or not (folder / FILE_NAME).exists():
        return
    there = read_manifest(folder)
    asked: dict[str, object] = {"seed": options.seed, "shard_bytes": options.shard_bytes}
    asked |= options.recode.settings()
    if options.container != "tar":
        asked["format"] = options.container
    if options.labels is not None:
        # Whether it is the same table is not worth reading it: the folder is refused anyway.
        asked["labels"] = there.settings.get("labels")
    difference = _first_difference(asked, there.settings)
    raise AlreadyExists(
        f"{folder} already holds a finished pack of {there.samples:,} samples"
        + (f" ({difference})" if difference else ""),
        hint=f"use it, or name another folder, or delete it first: rm -r {folder}",
    )


@contextlib.contextmanager
def _own_folder(folder: Path) -> Iterator[None]:
    try:
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_write_error(error, folder) from error
    try:
        with only_one(folder):
            yield
    finally:
        if is_new:
            # Nothing was begun: leave nothing behind.
            with contextlib.suppress(OSError):
                folder.rmdir()


def _begin(folder: Path, settings: Mapping[str, object], source: Source) -> None:
    path = folder / PROGRESS_NAME
    now = {"settings": settings, "source": source.fingerprint()}
    if path.exists():
        try:
            before = json.loads(path.read_bytes())
            difference = _first_difference(now["settings"], before["settings"]) or _source_difference(
                now["source"], before["source"]
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AlreadyExists(
                f"{path} cannot be read ({error})", hint=f"delete {folder} and pack again"
            ) from error
        if difference:
            raise AlreadyExists(
                f"{folder} holds an unfinished pack of something else: {difference}",
                hint=f"repeat that command, name another folder, or delete this one first: rm -r {folder}",
            )
        remove_temporaries(folder)
        return
    remove_temporaries(folder)
    _write(path, (json.dumps(now, indent=1, sort_keys=True) + "\n").encode())


_WORDS = {"shard_bytes": "shard size", "labels": "table of labels", "fields": "list of fields",
          "path_column": "path column", "label_column": "label column", "resize": "shorter side",
          "max_side": "longer side", "encoded": "what is encoded anew"}  # fmt: skip
# Compared also where only the pack that is there has them.
_COMPARED = frozenset(("labels", "resize", "max_side", "raw", "quality", "encoded", "format"))


def _first_difference(here: Mapping[str, Any], there: Mapping[str, Any]) -> str | None:
    for name in dict.fromkeys([*here, *there]):
        ours, theirs = here.get(name), there.get(name)
        if name in ("rejected", "plan") or ours == theirs or (name not in here and name not in _COMPARED):
            continue
        word = _WORDS.get(name, name)
        if isinstance(ours, dict) or isinstance(theirs, dict):
            return f"the {word} is another one"
        if name == "shard_bytes":
            ours, theirs = format_bytes(ours or 0), format_bytes(theirs or 0)
        ours, theirs = ("not set" if value is None else value for value in (ours, theirs))
        return f"{word} is {ours} here, {theirs} there"
    return None


def _source_difference(here: Mapping[str, Any], there: Mapping[str, Any]) -> str | None:
    more = here["files"] - there["files"]
    if more:
        files = "file" if abs(more) == 1 else "files"
        return (
            f"the source has {abs(more):,} {files} {'more' if more > 0 else 'fewer'} than when packing began"
        )
    if here["digest"] != there["digest"]:
        return "files of the source have other names, sizes or times than when packing began"
    return None


def _check_room(folder: Path, missing: list[ShardTask]) -> None:
    tar_bytes, samples = sum(task.tar_bytes for task in missing), sum(len(task.samples) for task in missing)
    needed = int(tar_bytes * (1 + _INDEX_SHARE)) + samples * _INDEX_ROW_BYTES
    if any(task.container == "hdf5" for task in missing):
        needed *= 2  # parts, and the file that is made of them
    free = free_bytes(folder)
    if needed > free:
        raise StorageError(
            f"packing needs about {format_bytes(needed)}, {folder} has {format_bytes(free)} free",
            hint="make room, or name a folder on another disk",
        )


def _table_name(settings: Mapping[str, Any]) -> str:
    return str(settings["labels"]["name"])


def _write(path: Path, data: bytes) -> None:
    with appear(path, expected_bytes=len(data)) as file:
        file.write(data)


def _finish(folder: Path) -> None:
    (folder / PROGRESS_NAME).unlink()
    sync_folder(folder)


def _remove_all(folder: Path, tasks: list[ShardTask], settings: Mapping[str, Any]) -> None:
    shards = [find_container(task.container).shard_name(task.number) for task in tasks]
    names = [*shards, *(str(Path(shard).with_suffix(INDEX_SUFFIX)) for shard in shards)]
    names += [_table_name(settings)] if "labels" in settings else []
    for name in [*names, PROGRESS_NAME]:
        (folder / name).unlink(missing_ok=True)


def _all_rejected(rejected: tuple[Rejection, ...]) -> SourceError:
    if not rejected:
        return SourceError("there is nothing to pack")
    first = rejected[0]
    return SourceError(
        f"not one sample can be packed, all {len(rejected):,} were rejected: '{first.path}': {first.reason}"
    )
