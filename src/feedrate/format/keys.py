# SPDX-License-Identifier: Apache-2.0
"""What samples and tar members are called: keys that WebDataset readers take, made from any file name."""

from __future__ import annotations

import functools
import hashlib
from urllib.parse import quote

from feedrate.format.fields import Coding, Field, Kind
from feedrate.prelist import IMAGE_SUFFIXES
from feedrate.units import printable

# Most file systems take names of 255 bytes; a member's name is a key's last part, a field and a suffix.
_LONGEST_PART = 180
_SUFFIX_OF_KIND = {
    Kind.BOXES: "npy", Kind.ARRAY: "npy", Kind.TEXT: "txt",
    Kind.NUMBER: "json", Kind.BYTES: "bin", Kind.JSON: "json",
}  # fmt: skip

# What re-encoding makes: how such a file begins, and the suffixes that say so.
_BEGINNINGS = {b"\xff\xd8\xff": (".jpg", ".jpeg"), b"\x89PNG\r\n\x1a\n": (".png",)}


def make_key(path: bytes) -> str:
    """Return the key that a path would like to have; another path may have the same wish."""
    return key_of_stem(make_stem(path))


def make_stem(path: bytes) -> bytes:
    """Return a path without its suffix, and without dots in its last part: equal stems want equal keys."""
    folder, slash, base = path.rpartition(b"/")
    stem, dot, _ = base.rpartition(b".")
    # '.hidden' has no suffix, it only begins with a dot.
    return folder + slash + (stem if dot and stem else base).replace(b".", b"_")


def key_of_stem(stem: bytes) -> str:
    folder, slash, base = stem.rpartition(b"/")
    key = f"{_safe_folder(folder)}/{_safe_part(base)}" if slash else _safe_part(base)
    # WebDataset skips members that begin like '__this__'.
    return "%5F" + key[1:] if key.startswith("__") else key


@functools.lru_cache(1024)
def _safe_folder(folder: bytes) -> str:
    return "/".join(map(_safe_part, folder.split(b"/")))


def member_name(key: str, field: Field, path: bytes, content: bytes = b"") -> str:
    """Return the name of a field's tar member.

    `path` is the original file's, empty for a table's value; `content` the stored bytes, or the first few.
    """
    if field.name == "label" and field.dtype == "int64":
        return f"{key}.cls"
    suffix = new_suffix(field, path, content) or _SUFFIX_OF_KIND.get(field.kind) or _image_suffix(path)
    return f"{key}.{suffix}" if field.name == "image" else f"{key}.{field.name}.{suffix}"


def new_suffix(field: Field, path: bytes, content: bytes) -> str | None:
    """Return the suffix of what is stored now; None: the original file's still says what it is."""
    if field.coding is Coding.RAW and field.has_pixels:
        return "npy"
    if field.coding is Coding.RECODED:
        for beginning, suffixes in _BEGINNINGS.items():
            if content.startswith(beginning) and file_suffix(path) not in suffixes:
                return suffixes[0][1:]
    return None


def restored_path(field: Field, path: bytes, content: bytes) -> bytes:
    """Return where `unpack` writes a file: the original path, and behind it what it is now, if another."""
    suffix = new_suffix(field, path, content)
    return path if suffix is None else path + b"." + suffix.encode()


def has_image_suffix(name: bytes) -> bool:
    return file_suffix(name) in IMAGE_SUFFIXES


def file_suffix(name: bytes) -> str:
    """Return `.jpg` for `IMG.JPG`, '' for a name without suffix; for people where it is not ASCII."""
    base = name.rpartition(b"/")[2]
    stem, dot, suffix = base.rpartition(b".")
    return "." + printable(suffix).lower() if dot and stem else ""


def _safe_part(part: bytes) -> str:
    if part in (b".", b".."):
        return part.decode().replace(".", "%2E")
    text = quote(part, safe="+=,@()")
    if len(text) <= _LONGEST_PART:
        return text
    head = text[: _LONGEST_PART - 17]
    # An escape such as '%C3' must not be cut in two.
    cut = head.rfind("%", len(head) - 2)
    return f"{head if cut < 0 else head[:cut]}~{hashlib.sha256(part).hexdigest()[:16]}"


def _image_suffix(path: bytes) -> str:
    suffix = file_suffix(path)
    return suffix[1:] if suffix in IMAGE_SUFFIXES else "bin"
