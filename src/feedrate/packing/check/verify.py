# SPDX-License-Identifier: Apache-2.0
"""`feedrate verify`: is every byte of a pack what it was when it was packed, and do its parts agree?

Values in remote files are fetched, part by part, and checked as those in files that were indexed in place.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedrate import kernel
from feedrate.errors import FeedrateError, PackError
from feedrate.format.containers import FILES, Container, Content, Member, find_container
from feedrate.format.fields import Coding, Field, Kind, find_entries
from feedrate.format.index import Part, check_columns, find_bad_texts, locate_columns, parse_part
from feedrate.format.manifest import FILE_NAME, Manifest, Shard, file_path, read_manifest
from feedrate.format.raw import parse_stored, table_fits
from feedrate.kernel import I64
from feedrate.packing.check.quality_report import FILE_NAME as QUALITY_NAME
from feedrate.packing.check.quality_report import REJECTED_NAME
from feedrate.packing.recode import describe_pixels
from feedrate.packing.results import Problem, VerifyResult
from feedrate.packing.tables import find_tables
from feedrate.packing.values import inspect_image
from feedrate.packing.workers import advance, run_tasks
from feedrate.progress import Tick
from feedrate.remote.addresses import Place, split_source
from feedrate.remote.copier import fetch
from feedrate.remote.fetch import find_with_retries, origin
from feedrate.remote.trust import check_addresses
from feedrate.source.record import UnusableValue


def check_in_place(shard: Shard, path: Path, fields: Sequence[Field], part: Part | None) -> Iterator[Problem]:
    """Yield what is wrong with values that are in files which were there before."""
    is_loose = shard.container == FILES
    try:
        found = os.stat(path)
    except OSError as error:
        yield Problem(shard.name, f"cannot be read: {error.strerror}")
        return
    if not is_loose and found.st_size != shard.size_bytes:
        yield Problem(
            shard.name,
            f"has changed since it was indexed: {shard.size_bytes} bytes then, {found.st_size} now; "
            "index it again",
        )
    if part is None:
        return
    fields = [field for field in fields if field.kind is not Kind.NUMBER]
    for number in range(len(part.rows)):
        sample_bytes = 0
        for field in fields:
            value = part.variable[f"{field.name}.path"][number]
            file = path / os.fsdecode(value) if is_loose else path
            sample_bytes += int(part.rows[number][f"{field.name}.length"])
            for text in _check_value(field, part, number, file, is_loose):
                key = part.variable["key"][number].decode("ascii")
                offset = int(part.rows[number][f"{field.name}.offset"])
                yield Problem(shard.name, f"field '{field.name}' {text}", key=key, offset=offset)
        advance(1, sample_bytes)


def _check_value(field: Field, part: Part, number: int, file: Path, is_loose: bool) -> Iterator[str]:
    row = part.rows[number]
    offset, length = int(row[f"{field.name}.offset"]), int(row[f"{field.name}.length"])
    try:
        with open(file, "rb", buffering=0) as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
            is_inside = offset >= 0 and length >= 0 and offset + length <= size_bytes
            if not is_inside or (is_loose and size_bytes != length):
                yield f"lies in {file}, which has {size_bytes} bytes and had others when it was indexed"
                return
            data = kernel.read_at(stream.fileno(), length, offset)
    except OSError as error:
        yield f"cannot be read: {error.strerror}"
        return
    if kernel.crc32c(data) != row[f"{field.name}.crc32c"]:
        yield "its bytes are not those that were indexed (checksum): index it again"
    elif field.has_pixels:
        yield from check_image(field, part, number, data)


def check_image(field: Field, part: Part, number: int, data: bytes) -> Iterator[str]:
    """Yield what is wrong with an image or mask: its bytes are as they were, but do they fit the index?"""
    row = part.rows[number]
    size = (int(row[f"{field.name}.width"]), int(row[f"{field.name}.height"]))
    if field.coding is Coding.RAW:
        yield from _check_raw(data, size, part.variable[f"{field.name}.entries"][number])
        return
    try:
        facts = inspect_image(data, bytes_per_entry=find_entries(part.metadata))
    except UnusableValue as error:
        yield f"cannot be decoded: {error}"
        return
    if size != (facts.width, facts.height):
        yield f"is {facts.width} x {facts.height} pixels, the index says {size[0]} x {size[1]}"
    if field.kind is Kind.IMAGE:
        entries = part.variable[f"{field.name}.entries"][number]
        if entries != facts.entries and not _lead_to_the_same_pixels(data, entries):
            yield "has entry points in the index that do not fit it"


def _check_raw(data: bytes, size: tuple[int, int], table: bytes) -> Iterator[str]:
    try:
        pixels = parse_stored(data, table)
    except ValueError as error:
        yield str(error)
        return
    if size != pixels.shape[1::-1]:
        yield f"is {pixels.shape[1]} x {pixels.shape[0]} pixels, the index says {size[0]} x {size[1]}"
    if not table_fits(data, table):
        yield "has checksums of rows in the index that do not fit it"


def _lead_to_the_same_pixels(data: bytes, entries: bytes) -> bool:
    """Another version of the kernel may place entry points elsewhere: what counts is where they lead."""
    try:
        return np.array_equal(kernel.decode_one(data, entries=entries), kernel.decode_one(data))
    except ValueError:
        return False


def check_remote(shard: Shard, fields: Sequence[Field], part: Part | None) -> Iterator[Problem]:
    """Yield what is wrong with values in a file behind an address.

    Needs room for the bytes that the part is about, where temporary files go.
    """
    root, name = split_source(origin(shard).decode("utf-8", "surrogateescape"))
    place = Place(root)
    try:
        found = find_with_retries(place, name)
        if found is None or found.size_bytes != shard.size_bytes:
            size = "a folder" if found is None else f"{found.size_bytes}"
            yield Problem(
                shard.name,
                f"has changed since it was indexed: {shard.size_bytes} bytes then, {size} now; "
                "index it again",
            )
            return
        with tempfile.TemporaryDirectory(prefix="feedrate-verify-") as folder:
            near = Path(folder) / "shard"
            span = _find_span(fields, part, shard.size_bytes)
            fetch(place, name, span, near, lambda _: advance(0, 0))
            with open(near, "ab") as file:
                file.truncate(shard.size_bytes)  # what is not looked at is a hole
            yield from check_in_place(shard, near, fields, part)
    except FeedrateError as error:
        yield Problem(shard.name, f"cannot be read: {error}")


def _find_span(fields: Sequence[Field], part: Part | None, size_bytes: int) -> range:
    """Return where in the file the values of a part are."""
    if part is None or not len(part.rows):
        return range(0)
    names = [field.name for field in fields if field.kind is not Kind.NUMBER]
    starts = [int(part.rows[f"{name}.offset"].min()) for name in names]
    stops = [int((part.rows[f"{name}.offset"] + part.rows[f"{name}.length"]).max()) for name in names]
    return range(max(0, min(starts, default=0)), min(size_bytes, max(stops, default=0)))


_CHUNK_BYTES = 2**20
# A shard that is rotten through and through need not be listed sample by sample.
_MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class ShardCheck:
    pack: str
    shard: Shard
    fields: tuple[Field, ...]
    place: int  # among the shards
    samples: range = range(0)  # which of those in the file, where several parts of the index describe it


@dataclass(frozen=True, slots=True)
class ShardFindings:
    """What is wrong with a shard, and what tells its samples from others: 8 bytes of each key and number."""

    place: int
    problems: tuple[Problem, ...]
    keys: bytes = b""
    numbers: bytes = b""


def verify(
    pack: str | os.PathLike[str],
    *,
    workers: int | None = None,
    pixels: int = 0,
    allow_addresses: str | Sequence[str] = (),
    watch: Callable[[Tick], None] = lambda _: None,
) -> VerifyResult:
    """Check all checksums of a pack, and that its manifest, index and tars say the same.

    Args:
        pixels: compare what the loader makes of so many samples with Pillow's pixels, if all else is good.
        allow_addresses: where files may be that a pack names and that this user did not index.

    Raises:
        NotFound: there is no pack.
        PackError: its manifest is so damaged that nothing can be checked, or names files of a host that is
            not allowed.
    """
    begin = time.monotonic()
    folder = Path(pack)
    manifest = read_manifest(folder)
    check_addresses(os.fspath(pack), manifest, allow_addresses)
    total_bytes = manifest.shard_bytes
    checks = _list_checks(folder, manifest)

    def report(samples: int, size_bytes: int) -> None:
        watch(Tick("verifying", samples, manifest.samples, size_bytes, total_bytes))

    report(0, 0)
    by_place: dict[int, tuple[Problem, ...]] = {}
    keys, numbers = array("Q"), array("q")
    for found in run_tasks(verify_shard, checks, workers=workers, size_bytes=total_bytes, watch=report):
        by_place[found.place] = found.problems
        keys.frombytes(found.keys)
        numbers.frombytes(found.numbers)
    problems = [problem for place in sorted(by_place) for problem in by_place[place]]
    repeated = _find_repeated(keys), _find_repeated(numbers)
    problems += itertools.islice(_find_duplicates(checks, *repeated), _MOST_PROBLEMS)
    problems += _check_columns(folder, manifest)
    problems += [problem for table in find_tables(manifest) for problem in _check_table(folder, table)]
    comparison = None
    if pixels and not problems:
        from feedrate.packing.check.pixels import compare_with_pillow

        comparison, more = compare_with_pillow(pack, pixels, allow_addresses=allow_addresses, watch=watch)
        problems += more
    return VerifyResult(
        pack=str(pack),
        samples=manifest.samples,
        shards=len(manifest.shards),
        size_bytes=manifest.shard_bytes + manifest.index_bytes,
        seconds=time.monotonic() - begin,
        problems=tuple(problems),
        extra_files=_find_extra(folder, manifest),
        pixels=describe_pixels(manifest.settings),
        is_mapped="map" in manifest.settings,
        manifest_checked=manifest.had_digest,
        is_index=any(shard.is_in_place for shard in manifest.shards),
        comparison=comparison,
    )


def _list_checks(folder: Path, manifest: Manifest) -> list[ShardCheck]:
    checks, next_sample = [], Counter[Path]()
    for place, shard in enumerate(manifest.shards):
        path = folder / shard.folder / shard.name
        first = next_sample[path]
        next_sample[path] += shard.samples
        samples = range(first, first + shard.samples)
        checks.append(ShardCheck(os.path.abspath(folder), shard, manifest.fields, place, samples))
    return checks


def verify_shard(check: ShardCheck) -> ShardFindings:
    """Check one shard and its index part; picklable, for any executor."""
    problems = list(itertools.islice(_check_index(check), _MOST_PROBLEMS))
    part = _read_part(check)
    problems += itertools.islice(_check_shard(check, part), _MOST_PROBLEMS)
    if part is None:
        return ShardFindings(check.place, tuple(problems))
    keys = b"".join(map(_hash_key, _list_keys(check, part)))
    return ShardFindings(check.place, tuple(problems), keys, _list_numbers(check, part).tobytes())


def _list_keys(check: ShardCheck, part: Part) -> Iterator[bytes]:
    prefix = f"{check.shard.prefix}/".encode() if check.shard.prefix else b""
    return (prefix + key for key in part.variable["key"])


def _hash_key(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=8).digest()


def _list_numbers(check: ShardCheck, part: Part) -> I64:
    numbers: I64 = part.rows["number"] + check.shard.first_number
    return numbers


def _read_part(check: ShardCheck) -> Part | None:
    try:
        data = file_path(check.pack, check.shard.index).read_bytes()
        return parse_part(data, check.fields, name=check.shard.index.name)
    except (OSError, PackError):
        return None


def _check_index(check: ShardCheck) -> Iterator[Problem]:
    index, shard = check.shard.index, check.shard
    try:
        data = file_path(check.pack, index).read_bytes()
    except OSError as error:
        yield Problem(index.name, f"cannot be read: {error.strerror}")
        return
    if len(data) != index.size_bytes:
        yield Problem(index.name, f"has {len(data)} bytes, pack.json says {index.size_bytes}")
    elif kernel.crc32c(data) != index.crc32c:
        yield Problem(index.name, "its bytes are not those that were packed (checksum of the file)")
    try:
        part = parse_part(data, check.fields, name=index.name)
    except PackError as error:
        yield Problem(index.name, f"is not an index part of this pack: {error.__cause__ or error}")
        return
    if dict(index.columns) != locate_columns(data):
        yield Problem(index.name, "its columns do not begin where pack.json says")
    if len(part.rows) != shard.samples:
        yield Problem(index.name, f"has {len(part.rows)} samples, pack.json says {shard.samples}")
    # Not by the shard's name: merging links it under another. Where many parts describe one file, its
    # checksum was not known when they were written.
    crc32c = part.metadata.get("crc32c", f"{shard.crc32c:08x}")
    if (part.metadata.get("bytes"), crc32c) != (shard.size_bytes, f"{shard.crc32c:08x}"):
        yield Problem(index.name, "was written for another shard, or other bytes of it, than pack.json says")
    for number in np.flatnonzero(part.rows["check"] != kernel.crc32c_rows(part.rows)).tolist():
        key = part.variable["key"][number].decode("ascii")
        yield Problem(index.name, f"row {number} fails its checksum", key=key)
    for number, column in find_bad_texts(data, part):
        yield Problem(index.name, f"row {number} fails the checksum of its '{column}'")


def _check_shard(check: ShardCheck, part: Part | None) -> Iterator[Problem]:
    shard = check.shard
    if shard.is_remote:
        yield from check_remote(shard, check.fields, part)
        return
    path = file_path(check.pack, shard)
    if shard.is_in_place:
        yield from check_in_place(shard, path, check.fields, part)
        return
    try:
        # Read through once, by the one who checks its first samples.
        is_mine = check.samples.start == 0
        size_bytes, crc32c = measure_file(path) if is_mine else (os.stat(path).st_size, shard.crc32c)
    except OSError as error:
        yield Problem(shard.name, f"cannot be read: {error.strerror}")
        return
    if size_bytes != shard.size_bytes:
        yield Problem(shard.name, f"has {size_bytes} bytes, pack.json says {shard.size_bytes}")
    elif crc32c != shard.crc32c:
        yield Problem(shard.name, "its bytes are not those that were packed (checksum of the file)")
    if part is not None:
        yield from _check_samples(check, part, path)


def measure_file(path: Path) -> tuple[int, int]:
    size_bytes = crc32c = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size_bytes += len(chunk)
            crc32c = kernel.crc32c(chunk, crc32c)
    return size_bytes, crc32c


def _check_samples(check: ShardCheck, part: Part, path: Path) -> Iterator[Problem]:
    name = check.shard.name
    container = find_container(check.shard.container)
    members = container.read_members(path, check.fields, check.samples)
    with open(path, "rb") as file:
        try:
            for number in range(len(part.rows)):
                sample_bytes = 0
                for field in check.fields:
                    member = next(members, None)
                    content = b"" if member is None else os.pread(file.fileno(), 16, member.offset)
                    expected = _expected_member(container, field, part, number, content)
                    problems = _check_field(
                        check.shard, container, field, (part, number), expected, member, file.fileno()
                    )
                    yield from problems
                    sample_bytes += expected.size_bytes
                advance(1, sample_bytes)
            extra = next(members, None)
            if extra is not None:
                yield Problem(
                    name, f"holds '{extra.name}', which the index does not know", offset=extra.offset
                )
        except PackError as error:
            yield Problem(name, str(error).removeprefix(f"{name}: ").removeprefix(f"{name} "))


def _expected_member(container: Container, field: Field, part: Part, number: int, content: bytes) -> Member:
    row = part.rows[number]
    key = part.variable["key"][number].decode("ascii")
    if field.kind is Kind.NUMBER:
        # Its value is in the index; where the shard holds it again is known to the shard alone.
        data = container.dump_number(field, row[field.name].item())
        return Member(container.member_name(key, Content(field, data)), -1, len(data))
    path = part.variable[f"{field.name}.path"][number]
    return Member(
        container.member_name(key, Content(field, content, path)),
        int(row[f"{field.name}.offset"]),
        int(row[f"{field.name}.length"]),
    )


def _check_field(
    shard: Shard,
    container: Container,
    field: Field,
    at: tuple[Part, int],
    expected: Member,
    member: Member | None,
    fd: int,
) -> Iterator[Problem]:
    part, number = at
    row, key = part.rows[number], part.variable["key"][number].decode("ascii")
    file = container.name if container.name == "tar" else "shard"

    def problem(text: str) -> Problem:
        offset = expected.offset if expected.offset >= 0 else (member.offset if member else None)
        return Problem(shard.name, f"field '{field.name}' {text}", key=key, offset=offset)

    if member is None:
        yield problem(f"is in the index but not in the {file}")
        return
    if member.name != expected.name or (expected.offset >= 0 and member.offset != expected.offset):
        yield problem(f"should be '{expected.name}'; the {file} has '{member.name}' at byte {member.offset}")
        return
    if member.size_bytes != expected.size_bytes:
        yield problem(f"has {member.size_bytes} bytes in the {file}, {expected.size_bytes} in the index")
        return
    if member.offset + member.size_bytes > os.fstat(fd).st_size:
        yield problem("goes on after the end of the file")
        return
    data = kernel.read_at(fd, member.size_bytes, member.offset)
    if field.kind is Kind.NUMBER:
        if data != container.dump_number(field, row[field.name].item()):
            yield problem(f"has one value in the {file} and another in the index")
    elif kernel.crc32c(data) != row[f"{field.name}.crc32c"]:
        yield problem("its bytes are not those that were packed (checksum)")
    elif field.has_pixels:
        yield from (problem(text) for text in check_image(field, part, number, data))


def _find_repeated(values: array[int]) -> set[int]:
    """Return some of the values that occur more than once. Sorts them in place, so memory is theirs."""
    whole = np.frombuffer(values, values.typecode)
    whole.sort()
    repeated = whole[1:][whole[1:] == whole[:-1]]
    return set(np.unique(repeated[: 1000 * _MOST_PROBLEMS])[:_MOST_PROBLEMS].tolist())


def _find_duplicates(
    checks: Sequence[ShardCheck], key_hashes: set[int], numbers: set[int]
) -> Iterator[Problem]:
    """Yield which samples have a key or a number that another one has: index parts are read a second time."""
    if not key_hashes and not numbers:
        return
    first_key: dict[bytes, str] = {}
    first_number: dict[int, str] = {}
    for check in checks:
        part = _read_part(check)
        if part is None:
            continue
        shard = check.shard.name
        for key, number in zip(_list_keys(check, part), _list_numbers(check, part).tolist(), strict=True):
            text = key.decode("ascii")
            if int.from_bytes(_hash_key(key), sys.byteorder) in key_hashes:
                if key in first_key:
                    yield Problem(shard, f"its key also stands in {first_key[key]}", key=text)
                first_key.setdefault(key, shard)
            if number in numbers:
                if number in first_number:
                    yield Problem(
                        shard, f"its number {number} also stands in {first_number[number]}", key=text
                    )
                first_number.setdefault(number, shard)


def _check_columns(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    for part in manifest.parts:
        try:
            data = file_path(folder, part).read_bytes()
        except OSError as error:
            yield Problem(part.name, f"cannot be read: {error.strerror}")
            continue
        fields = [field for field in manifest.all_fields if field.name in part.fields]
        yield from (Problem(part.name, text) for text in check_columns(data, part, fields))


def _check_table(folder: Path, table: Mapping[str, Any]) -> Iterator[Problem]:
    name = str(table.get("name"))
    try:
        size_bytes, crc32c = measure_file(folder / os.path.basename(name))
    except OSError as error:
        yield Problem(name, f"cannot be read: {error.strerror}")
        return
    if (size_bytes, f"{crc32c:08x}") != (table.get("bytes"), table.get("crc32c")):
        yield Problem(name, "its bytes are not those of the table that was packed")


def _find_extra(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    if any(shard.is_in_place for shard in manifest.shards):
        return ()  # it is among files of its user
    known = {FILE_NAME, REJECTED_NAME, QUALITY_NAME}
    files = [file for s in manifest.shards for file in (s, s.index)]
    known |= {file.name for file in (*files, *manifest.parts) if not file.folder}
    known |= {str(table.get("name")) for table in find_tables(manifest)}
    return tuple(sorted(name for name in os.listdir(folder) if name not in known))
