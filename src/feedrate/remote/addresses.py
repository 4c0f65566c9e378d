# SPDX-License-Identifier: Apache-2.0
"""Where the files of a source are: a folder of this machine, or whatever fsspec reaches by a URL.

`FileVersion`: whether all requests for a file met the same version of it. Every answer tells its version
(ETag or time of change), and the store is asked once more at the end. Where it tells none, one answer is one
version; what came in several is read twice.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, cast

from feedrate import kernel
from feedrate.errors import FeedrateError, MissingExtra, NotFound, SourceError, StorageError, suggest_path
from feedrate.files.tree import walk_paths
from feedrate.units import printable

_URL = re.compile(r"[a-z][a-z0-9+.-]*(://|::)", re.IGNORECASE)
# What fsspec needs to be installed for the kinds of storage that people use most.
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs",
             "http": "aiohttp", "https": "aiohttp", "sftp": "paramiko", "ssh": "paramiko"}  # fmt: skip


class PlacedFile(NamedTuple):
    path: bytes  # relative to the place
    size_bytes: int
    mtime_ns: int = 0
    version: str = ""  # what a web server tells instead of a time: an ETag


def is_url(source: str) -> bool:
    return _URL.match(source) is not None


def is_address(file: str) -> bool:
    """Return whether a file of a pack is called by an address of its own: no relative path looks like one."""
    return "://" in file


class WholeFile(SourceError):
    """A server without byte ranges."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"the server of {address} sends whole files instead of the bytes asked for",
            hint="its files cannot be read in part: download them, or use a server with byte ranges, as nginx"
            " and Apache have them",
        )


class Place:
    """Files below a folder or a URL. Cheap to make; connects when something is asked of it.

    `asks_once`: its user asks again, and says so. The libraries of S3 would do it silently, for minutes.
    """

    def __init__(self, root: str, options: dict[str, Any] | None = None, *, asks_once: bool = False) -> None:
        self.root, self._options, self._asks_once = root, options or {}, asks_once
        self.is_remote = is_url(root)
        if asks_once and root.startswith(("s3://", "s3a://")):
            config = {"retries": {"max_attempts": 0}, **self._options.get("config_kwargs", {})}
            self._options = {**self._options, "config_kwargs": config}
        self._fs: Any = None
        self._top = ""

    def find(self, file: bytes = b"", *, suggest: bool = True) -> PlacedFile | None:
        """Return a file's facts; None: it is a folder. `suggest`: look for one of a similar name.

        Raises:
            NotFound: there is nothing of that name.
        """
        if not self.is_remote:
            path = self._path(file)
            try:
                info = os.stat(path)
            except OSError as error:
                shown = printable(path)
                raise NotFound(
                    f"no dataset at {shown} ({error.strerror})", hint=suggest_path(shown) if suggest else None
                ) from None
            return None if os.path.isdir(path) else PlacedFile(file, info.st_size, info.st_mtime_ns)
        fs, path_text = self.connect(file)
        with explained(self.address(file)):
            found = fs.info(path_text)
            if found["type"] == "directory":
                return None
            return self._placed(file, found, path_text)

    def walk(self) -> Iterator[PlacedFile]:
        """Yield all files, also in folders, in sorted order; hidden ones are left out."""
        if self.is_remote:
            yield from self._walk_remote()
            return
        for path, entry in walk_paths(os.fsencode(self.root), enters_links=False):
            if not entry.name.startswith(b".") and os.path.isfile(entry.path):
                info = os.stat(entry.path)
                yield PlacedFile(path, info.st_size, info.st_mtime_ns)

    def open(self, file: bytes) -> BinaryIO:
        """Open a file for reading; it can be positioned."""
        if not self.is_remote:
            path = self._path(file)
            try:
                return open(path, "rb")
            except OSError as error:
                raise StorageError(f"cannot read {printable(path)}: {error.strerror}") from error
        fs, path_text = self.connect(file)
        with explained(self.address(file)):
            return cast(BinaryIO, fs.open(path_text, "rb"))

    def read(self, file: bytes, offset: int, size_bytes: int) -> bytes:
        """Read a range: shorter only where the file ends."""
        if not self.is_remote:
            with self.open(file) as stream:
                return kernel.read_at(stream.fileno(), size_bytes, offset)
        if not size_bytes:
            return b""
        fs, path_text = self.connect(file)
        with explained(self.address(file)):
            data = bytes(fs.cat_file(path_text, start=offset, end=offset + size_bytes))
        if len(data) > size_bytes:
            raise WholeFile(self.address(file))
        return data

    def read_whole(self, file: bytes) -> bytes:
        """Read a small file."""
        if not self.is_remote:
            with self.open(file) as stream:
                return stream.read()
        fs, path_text = self.connect(file)
        with explained(self.address(file)):
            return bytes(fs.cat_file(path_text))

    def address(self, file: bytes) -> str:
        """Return what the user would call a file."""
        name = printable(file)
        if not self.is_remote:
            return os.path.join(self.root, name) if file else self.root
        head, chain, rest = self.root.partition("::")
        return (
            (f"{head.rstrip('/')}/{name}" if file and not head.endswith("://") else head + name)
            + chain
            + rest
        )

    def forget_listings(self) -> None:
        """Look again from now on: storages of fsspec remember what they have listed."""
        if self.is_remote:
            self.connect()[0].invalidate_cache()

    def _path(self, file: bytes) -> bytes:
        root = os.fsencode(self.root)
        return os.path.join(root, file) if file else root

    def connect(self, file: bytes = b"") -> tuple[Any, str]:
        """Return fsspec's object for this place, and what it calls a file."""
        if self._fs is None:
            self._fs, self._top = _connect(self.root, self._options)
            if self._asks_once and hasattr(self._fs, "retries"):
                self._fs.retries = 1  # of s3fs, beside those of botocore
        name = os.fsdecode(file)
        if not file:
            return self._fs, self._top
        top = self._top.rstrip("/")
        while name.startswith("../"):  # storages know no '..'
            top, name = top.rpartition("/")[0], name.removeprefix("../")
        return self._fs, f"{top}/{name}" if self._top else name

    def list(self, folder: bytes) -> Iterator[tuple[bytes, PlacedFile | None]]:
        """Yield what is in a remote folder: name, and facts of a file; None for a folder."""
        fs, top = self.connect(folder)
        start = folder + b"/" if folder else b""
        with explained(self.address(folder)):
            entries = fs.ls(top, detail=True)
        for entry in entries:
            path = entry["name"].rstrip("/")
            if path.strip("/") == top.strip("/"):  # an empty object that stands for the folder
                continue
            name = os.fsencode(path.rpartition("/")[2])
            if entry["type"] == "directory":
                yield name, None
            else:
                yield name, self._placed(start + name, entry, path)

    def _walk_remote(self, folder: bytes = b"") -> Iterator[PlacedFile]:
        found = sorted(
            (one for one in self.list(folder) if not one[0].startswith(b".")), key=lambda one: one[0]
        )
        yield from (file for _, file in found if file is not None)
        for name, file in found:
            if file is None:
                yield from self._walk_remote(folder + b"/" + name if folder else name)

    def _placed(self, file: bytes, found: dict[str, Any], path: str) -> PlacedFile:
        if found.get("size") is None:
            raise SourceError(
                f"the server does not say how large {path} is", hint="download it, then pack it from there"
            )
        size_bytes, mtime_ns = int(found["size"]), find_mtime_ns(found)
        # Other storages do not always tell the same in a listing as for one file.
        version = found.get("ETag") or found.get("Last-Modified") or ""
        return PlacedFile(file, size_bytes, mtime_ns, "" if mtime_ns else str(version))


def split_source(source: str) -> tuple[str, bytes]:
    """Return the folder or URL that a file is in, and its name in there."""
    if not is_url(source):
        folder, name = os.path.split(os.path.abspath(source))
        return folder, os.fsencode(name)
    head, chain, rest = source.partition("::")
    folder, _, name = head.rstrip("/").rpartition("/")
    # 'memory://a.zip': the place itself has no name.
    folder = folder + "/" if folder.endswith(("/", ":")) else folder
    return folder + chain + rest, os.fsencode(name)


@contextlib.contextmanager
def explained(address: str) -> Iterator[None]:
    """Turn what disks and storages raise into sentences: each storage has exceptions of its own."""
    try:
        yield
    except Exception as error:
        better = explain(error, address)
        if better is error:
            raise
        raise better from _find_outage(error)


def explain(error: Exception, address: str) -> Exception:
    """Return the sentence for what a disk or a storage raised; what is none of that as it is."""
    if isinstance(error, FeedrateError):
        return error
    error = _find_outage(error)
    if isinstance(error, FileNotFoundError):
        return NotFound(f"no dataset at {address}")
    if isinstance(error, ImportError):
        return MissingExtra(f"cannot open {address}: {error}")
    if not is_url(address) and not isinstance(error, OSError):
        return error
    if "support range requests" in str(error):  # of fsspec, which has no exception of its own for it
        return WholeFile(address)
    words = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    return StorageError(
        f"cannot read {address}: {words[:300]}",
        hint="is it there, and are you allowed to read it? When it answers, run the same again",
    )


def _find_outage(error: Exception) -> Exception:
    """Return what is wrong: of a web server that is not there, fsspec says that it has no such file."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or not isinstance(cause, Exception):
        return error
    is_down = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
    is_cut = any(kind.__name__ == "ClientConnectionError" for kind in type(cause).__mro__)  # of aiohttp
    has_failed = getattr(cause, "status", 404) not in (404, 410)
    return cause if is_down or is_cut or has_failed else error


def _connect(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtra(f"{url} needs fsspec", hint="pip install fsspec") from error
    try:
        fs, top = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        scheme = url.split(":", 1)[0].lower()
        package = _PACKAGES.get(scheme, "the package that fsspec names")
        raise MissingExtra(
            f"{scheme}:// addresses need {package}: {error}", hint=f"pip install {package}"
        ) from error
    except ValueError as error:
        words = " ".join(str(error).split())
        raise SourceError(
            f"'{url}' is not an address that fsspec knows: {words[:300]}",
            hint="known are, for example, s3://, gs://, https://, sftp://, zip://",
        ) from error
    except Exception as error:  # some connect at once
        words = " ".join(str(error).split()) or type(error).__name__
        raise StorageError(
            f"cannot reach {url}: {words[:300]}", hint="is the server there, and does it know you?"
        ) from error
    return fs, str(top)


def find_mtime_ns(found: Mapping[str, Any]) -> int:
    """Return when a file changed last, of what fsspec says about it; 0: unknown."""
    when: Any = found.get("mtime", found.get("LastModified"))
    stamp = when.timestamp() if hasattr(when, "timestamp") else when
    if "mtime" not in found and isinstance(stamp, float):
        # Object stores that list parts of a second tell whole ones when they are asked for one object.
        stamp = int(stamp)
    return int(stamp * 1e9) if isinstance(stamp, (int, float)) else 0


# What storages call it, the most telling first; the first three come with HTTP and S3.
_VERSIONS = ("ETag", "etag", "Last-Modified", "generation", "version_id", "md5Hash", "content_md5", "mtime",
             "LastModified", "last_modified", "updated", "modified", "created")  # fmt: skip


def find_version(found: Mapping[str, Any]) -> str | None:
    """Return what tells versions of a file apart, of what a storage says about it; None: nothing does."""
    return next((f"{found[key]}" for key in _VERSIONS if found.get(key)), None)


_CHUNK_BYTES = 4 << 20


class Changed(StorageError):
    """A file was written to, or replaced, while it was read."""


class FileVersion:
    """The version of a file that its requests meet; they share one. Safe for any thread.

    Args:
        address: what the user calls the file.
        listed, mtime_ns: what was told of it when it was listed; None and 0: nothing.
    """

    def __init__(self, address: str, listed: str | None = None, mtime_ns: int = 0) -> None:
        self._address, self._version, self._mtime_ns = address, listed, mtime_ns
        self._answers = 0
        self._lock = threading.Lock()

    def meet(self, facts: Mapping[str, Any]) -> None:
        """An answer begins.

        Args:
            facts: what the store says about the file: headers, or fsspec's `info`.

        Raises:
            Changed: it is of another version than those before.
        """
        version, mtime_ns = find_version(facts), facts.get("mtime_ns") or find_mtime_ns(facts)
        with self._lock:
            if not self._answers and self._version is None:
                self._version = version
            self._answers += 1
            is_other_time = mtime_ns and self._mtime_ns and mtime_ns != self._mtime_ns
            if is_other_time or version != self._version:
                raise self._changed()

    def confirm(self, span: range, crc32c: int, read: Callable[[int, int], bytes]) -> None:
        """All of it has come: ask once more.

        Args:
            span: what was read of the file, and its checksum.
            read: asks for a range, by offset and length; its answer meets this version.

        Raises:
            Changed: it is another version by now, or was read twice and is not the same.
        """
        if not span:
            return
        if self._version is not None or not self._answers:
            # A server without ranges refuses it, but has told its version by then.
            with contextlib.suppress(WholeFile):
                read(span.start, 1)
        elif self._answers > 1:
            again = 0
            for offset in range(span.start, span.stop, _CHUNK_BYTES):
                again = kernel.crc32c(read(offset, min(_CHUNK_BYTES, span.stop - offset)), again)
            if again != crc32c:
                raise self._changed()

    def _changed(self) -> Changed:
        return Changed(
            f"{self._address} was changed while it was read",
            hint="wait until it is finished, then run the same command again",
        )
