# SPDX-License-Identifier: Apache-2.0
"""Which addresses a pack may name: opening it contacts them, and whoever wrote pack.json chose them.

The owner of a pack.json proves nothing: what `tar`, `git` or a hub's client brings belongs to the user who
ran it. So `feedrate index` notes in its user's state folder the addresses that this user typed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from feedrate.errors import PackError, StorageError, UsageError
from feedrate.files.atomic import atomic_write
from feedrate.files.permissions import ROOT, find_distrust
from feedrate.format.manifest import Manifest, PackFile
from feedrate.machine.describe import find_state_folder
from feedrate.remote.addresses import is_address, is_url
from feedrate.units import printable, shell_quote


def read_addresses(allowed: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses that the user allows.

    Raises:
        UsageError: one is no address.
    """
    found = (allowed,) if isinstance(allowed, str) else tuple(allowed)
    for address in found:
        if not isinstance(address, str) or not is_address(address) or not _split_address(address)[1]:
            raise UsageError(
                f"allow_addresses takes addresses like SCHEME://PLACE, got {address!r}",
                hint='for example allow_addresses=["s3://bucket"]',
            )
    return found


def check_addresses(pack: str, manifest: Manifest, allowed: str | Sequence[str] = ()) -> None:
    """Refuse a pack that names files of other hosts, unless it can be trusted: reading it contacts them.

    A pack behind an address may name files of its own scheme and host; one of this machine, the files that
    this user indexed; any, those that the user allows.

    Raises:
        PackError: it names others.
        UsageError: what is allowed is no address.
    """
    allowed = read_addresses(allowed)
    pack = pack.removeprefix("file://").removeprefix("local://")
    is_remote = is_url(pack)
    folders = {file.folder for file in _list_files(manifest)}
    if is_remote and "::" not in pack:
        path = _split_address(pack)[2]
        depth = len(path.split("/")) if path else 0
        for folder in folders:
            # Storages know no '..': it would end in the name of another host, or bucket.
            if folder.split("/").count("..") > depth and not is_address(folder):
                raise PackError(f"{pack} names files outside of its address: {folder!r}")
    named = {folder for folder in folders if is_address(folder)}
    named = {folder for folder in named if not any(_is_below(folder, one) for one in allowed)}
    if not named:
        return
    if is_remote:
        scheme, host, _ = own = _split_address(pack.rpartition("::")[2])
        named = {folder for folder in named if not host or _split_address(folder)[:2] != own[:2]}
        why = f"a pack at {scheme}://{host} may name files there alone"
    else:
        why = "it is not known as an index that you made: whoever wrote its pack.json chose them"
        named = set() if _find_note(manifest) else named
    if named:
        hosts = _list_hosts(named)
        raise PackError(
            f"{pack} names files at {', '.join(hosts)}, and {why}",
            hint=f"if you trust it: {_describe_allowing(hosts)}",
        )


def _describe_allowing(hosts: Sequence[str]) -> str:
    listed = ", ".join(f'"{host}"' for host in hosts)
    options = " ".join(f"--allow-address {shell_quote(host)}" for host in hosts)
    return (
        f"allow_addresses=[{listed}] in Python, {options} for stage and verify; else index it here yourself"
    )


def note_addresses(manifest: Manifest) -> str:
    """Note that this user chose the addresses of an index.

    Returns:
        "", or why the state folder did not take the note, and what readers of the index then have to type.
    """
    named = [file.folder for file in _list_files(manifest) if is_address(file.folder)]
    if not named or not (why := _write_note(manifest)):
        return ""
    return f"{why}; so reading this index takes {_describe_allowing(_list_hosts(named))}"


def _write_note(manifest: Manifest) -> str:
    """Return why it failed; "": it did not."""
    folder = _find_notes()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_write(folder / _digest_addresses(manifest)) as file:
            os.fchmod(file.fileno(), 0o600)
        return "" if _find_note(manifest) else f"{folder} {find_distrust(folder.stat(), ROOT)}"
    except (OSError, StorageError) as error:
        return f"cannot keep a note in {folder} of the addresses that you named: {error}"


def _list_files(manifest: Manifest) -> list[PackFile]:
    return [*manifest.shards, *(shard.index for shard in manifest.shards), *manifest.parts]


def _list_hosts(folders: Iterable[str]) -> tuple[str, ...]:
    found = {"{}://{}".format(*_split_address(folder)) for folder in folders}
    return tuple(sorted(printable(os.fsencode(host)) for host in found))


def _split_address(address: str) -> tuple[str, str, str]:
    """Return scheme, host (with its port, without a user) and path."""
    scheme, _, rest = address.partition("://")
    host, _, path = rest.partition("/")
    return scheme.lower(), host.rpartition("@")[2].lower(), path.strip("/")


def _is_below(address: str, allowed: str) -> bool:
    (*place, path), (*may_place, may_path) = _split_address(address), _split_address(allowed)
    return place == may_place and (not may_path or f"{path}/".startswith(f"{may_path}/"))


def _find_notes() -> Path:
    return find_state_folder() / "indexes"


def _digest_addresses(manifest: Manifest) -> str:
    """Return a digest of all files that a pack names by an address.

    Of nothing else: with a column or a split more, the pack contacts nobody new.
    """
    named = {(file.folder, file.name) for file in _list_files(manifest) if is_address(file.folder)}
    return hashlib.sha256(repr(sorted(named)).encode()).hexdigest()


def _find_note(manifest: Manifest) -> bool:
    """Return whether this user, or root for this user, noted the addresses of a pack."""
    note = _find_notes() / _digest_addresses(manifest)
    try:
        return not any(find_distrust(one.stat(), ROOT) for one in (note, note.parent))
    except OSError:
        return False
