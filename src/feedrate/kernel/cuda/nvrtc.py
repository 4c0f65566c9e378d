# SPDX-License-Identifier: Apache-2.0
"""CUDA source to machine code with NVRTC, NVIDIA's compiler as a library, called by ctypes.

torch's CUDA builds bring NVRTC along, so a user needs neither a CUDA toolkit nor a compiler. The source must
have no `#include`: NVRTC comes without headers. Its code is kept in the user's cache folder, so that only the
first run of a version compiles.

    $XDG_CACHE_HOME/feedrate/cuda/KEY     else ~/.cache/feedrate/cuda/KEY

A file is a magic, a SHA-256 of key and code, the code. That is machine code which the GPU will run, so a file
is read only if nobody but this user can have written it; folder and files are checked by their descriptors.
Files are written aside and renamed: any number of processes may read and write at once, without a lock, which
home folders on NFS often do not have. A failure here costs a compilation, and nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import hashlib
import importlib.util
import logging
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from feedrate.errors import GpuError, MissingExtra

_OLDEST = (11, 2)  # the first that says which architectures it knows
_MAJORS = (13, 12, 11)  # names to ask the dynamic linker for, beside that of torch's own version
_SUCCESS, _COMPILATION_FAILED = 0, 6
_LOG_LINES = 8
_SOURCE_NAME = b"feedrate.cu"  # in the compiler's log
# Not "libnvrtc.alt.so.12" nor "libnvrtc-builtins.so.12.9", which are no compilers of their own.
_FILE = re.compile(r"libnvrtc(?:-[0-9a-f]{8,})?\.so\.(\d+)(?:\.\d+)*")
_OUT = ctypes.POINTER(ctypes.c_size_t)
_SIGNATURES: dict[str, list[Any]] = {
    "nvrtcVersion": [ctypes.POINTER(ctypes.c_int)] * 2,
    "nvrtcGetNumSupportedArchs": [ctypes.POINTER(ctypes.c_int)],
    "nvrtcGetSupportedArchs": [ctypes.POINTER(ctypes.c_int)],
    "nvrtcCreateProgram": [
        ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int,
        ctypes.c_void_p, ctypes.c_void_p,
    ],
    "nvrtcCompileProgram": [ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)],
    "nvrtcDestroyProgram": [ctypes.POINTER(ctypes.c_void_p)],
    "nvrtcGetProgramLogSize": [ctypes.c_void_p, _OUT],
    "nvrtcGetProgramLog": [ctypes.c_void_p, ctypes.c_char_p],
    "nvrtcGetCUBINSize": [ctypes.c_void_p, _OUT],
    "nvrtcGetCUBIN": [ctypes.c_void_p, ctypes.c_char_p],
    "nvrtcGetPTXSize": [ctypes.c_void_p, _OUT],
    "nvrtcGetPTX": [ctypes.c_void_p, ctypes.c_char_p],
    "nvrtcGetErrorString": [ctypes.c_int],
}  # fmt: skip


class Nvrtc:
    """One loaded NVRTC. Any number of threads may compile with it.

    Attributes:
        version: its major and minor number.
        capabilities: of the GPUs that it knows, as 10 * major + minor, the smallest first.
    """

    def __init__(self, library: Any) -> None:
        """Raise AttributeError for a library that is no NVRTC, or one that is too old."""
        self._library = library
        for name, types in _SIGNATURES.items():
            getattr(library, name).argtypes = types
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", known)
        self.capabilities = tuple(sorted(known))

    def __str__(self) -> str:
        return "NVRTC {}.{}".format(*self.version)

    def choose_architecture(self, capability: tuple[int, int]) -> str:
        """Return the target of a compilation: a GPU's own machine code ("sm_90"), or PTX ("compute_90").

        PTX is for GPUs that are newer than this NVRTC: their driver makes machine code of it.

        Raises:
            GpuError: the GPU is too old for this NVRTC.
        """
        wanted = 10 * capability[0] + capability[1]
        if wanted in self.capabilities:
            return f"sm_{wanted}"
        older = [known for known in self.capabilities if known < wanted]
        if not older:
            raise GpuError(
                f"{self} does not compile for GPUs of compute capability {capability[0]}.{capability[1]}, "
                f"the oldest it knows is {'{}.{}'.format(*divmod(self.capabilities[0], 10))}",
                hint="a torch of an older CUDA version brings an older NVRTC",
            )
        return f"compute_{older[-1]}"

    def compile(self, source: str, architecture: str, options: Sequence[str] = ()) -> bytes:
        """Return code for `cuModuleLoadData`: a cubin for "sm_90", PTX for "compute_90".

        Raises:
            GpuError: the source does not compile; the message ends in the first lines of the compiler's log.
        """
        flags = [f"--gpu-architecture={architecture}", *options]
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), _SOURCE_NAME, 0, None, None)
        try:
            texts = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
            result = self._library.nvrtcCompileProgram(program, len(flags), texts)
            if result != _SUCCESS:
                raise self._explain(result, program, architecture)
            return self._read(program, "CUBIN" if architecture.startswith("sm_") else "PTX")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _explain(self, result: int, program: ctypes.c_void_p, architecture: str) -> GpuError:
        log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        lines = [line for line in log.splitlines() if line.strip()]
        # Warnings may stand before the error.
        first = next((n for n, line in enumerate(lines) if "error:" in line or "fatal" in line), 0)
        shown = "\n".join(lines[first : first + _LOG_LINES])
        if result != _COMPILATION_FAILED or not shown:
            shown = "\n".join(filter(None, [self._name_error(result), shown]))
        return GpuError(f"{self} cannot compile the CUDA source for {architecture}: {shown}")

    def _read(self, program: ctypes.c_void_p, part: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{part}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{part}", program, content)
        return content.raw

    def _call(self, function: str, *arguments: Any) -> None:
        result = getattr(self._library, function)(*arguments)
        if result != _SUCCESS:
            raise GpuError(f"{function} of NVRTC failed: {self._name_error(result)}")

    def _name_error(self, result: int) -> str:
        text: bytes | None = self._library.nvrtcGetErrorString(result)
        return text.decode(errors="replace") if text else f"error {result}"


@functools.cache
def load_nvrtc(cuda_major: int) -> Nvrtc:
    """Return the NVRTC of this environment, best that of torch's own CUDA version.

    Raises:
        MissingExtra: there is none.
    """
    return load_first(list_candidates(cuda_major), cuda_major)


def load_first(candidates: Iterator[str], cuda_major: int) -> Nvrtc:
    """Return the first of the libraries that is an NVRTC and can be loaded."""
    failed = ""
    for candidate in candidates:
        try:
            nvrtc = Nvrtc(ctypes.CDLL(candidate))
        except (OSError, AttributeError, GpuError) as error:
            # A bare name that the linker does not know is no news; a file that is there and fails is.
            if os.path.isabs(candidate):
                failed = failed or f" ({candidate}: {error})"
        else:
            return nvrtc
    raise MissingExtra(
        f"no NVRTC was found, CUDA's compiler as a library, {_OLDEST[0]}.{_OLDEST[1]} or newer{failed}",
        hint=f"pip install {_name_package(cuda_major)}",
    )


def list_candidates(
    cuda_major: int, *, search_path: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """Yield names of NVRTC libraries: of torch's CUDA version first, then of older, then of newer ones.

    Older ones first: the code of a compiler that is newer than the driver may not load.
    """
    found = [
        (int(match[1]), path)
        for folder in _list_folders(sys.path if search_path is None else search_path, environ)
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "libnvrtc*.so.*")))
        if (match := _FILE.fullmatch(os.path.basename(path))) is not None
    ]
    # The dynamic linker searches LD_LIBRARY_PATH, and asks ldconfig.
    found += [(major, f"libnvrtc.so.{major}") for major in dict.fromkeys((cuda_major, *_MAJORS))]
    ranked = sorted(found, key=lambda one: (one[0] != cuda_major, one[0] > cuda_major, -one[0]))
    yield from dict.fromkeys(path for _, path in ranked)


def _list_folders(search_path: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    """Yield folders that may hold NVRTC: torch's, NVIDIA's wheels, a conda environment, a CUDA toolkit."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.origin is not None:
            yield os.path.join(os.path.dirname(spec.origin), "lib")
    for entry in filter(None, search_path):
        yield os.path.join(entry, "nvidia", "cuda_nvrtc", "lib")
        yield from sorted(glob.glob(os.path.join(glob.escape(entry), "nvidia", "cu[0-9]*", "lib")))
    yield os.path.join(sys.prefix, "lib")
    for toolkit in (environ.get("CUDA_HOME"), environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if toolkit:
            yield from (os.path.join(toolkit, "lib64"), os.path.join(toolkit, "lib"))


def _name_package(cuda_major: int) -> str:
    """Return the wheel's name for pip; since CUDA 13 the version is no part of it."""
    return f"nvidia-cuda-nvrtc-cu{cuda_major}" if cuda_major < 13 else f"'nvidia-cuda-nvrtc=={cuda_major}.*'"


_MAGIC = b"feedrate cuda 1\n"
_DIGEST_BYTES = 32
_LARGEST_BYTES = 256 * 2**20  # code of ours is far below a hundredth of it
# Of a killed process's file. One that is still written may go as well: its writer has the code in memory.
_LEFTOVER_S = 3600
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # nobody waits for a FIFO's other end
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

log = logging.getLogger("feedrate")


def find_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the cache's folder, which need not be there; None: this user has no home."""
    cache = environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(cache):  # the standard has relative ones ignored
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache, "feedrate", "cuda") if os.path.isabs(cache) else None


def make_key(source: str, architecture: str, options: Sequence[str], version: tuple[int, int]) -> str:
    """Return the name of a source's compiled code: another one for each thing that could change the code."""
    parts = [source, architecture, "{}.{}".format(*version), *options]
    digest = hashlib.sha256(_MAGIC)
    for part in parts:
        content = part.encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


class CodeCache:
    """The compiled code in one folder; without one, or with one that cannot be used, nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def compile(self, nvrtc: Nvrtc, source: str, architecture: str, options: Sequence[str] = ()) -> bytes:
        """Return NVRTC's code for a source, from the folder where it is there.

        Raises:
            GpuError: the source does not compile.
        """
        key = make_key(source, architecture, options, nvrtc.version)
        code = self.read(key)
        if code is None:
            code = nvrtc.compile(source, architecture, options)
            self.write(key, code)
        return code

    def read(self, key: str) -> bytes | None:
        """Return the code; None: it is not there, is damaged, or another user may have written it."""
        with contextlib.suppress(OSError), self._open_folder() as folder:
            if folder is None:
                return None
            fd = os.open(key, _READ, dir_fd=folder)
            with open(fd, "rb") as file:
                info = os.fstat(fd)
                if not stat.S_ISREG(info.st_mode) or not _is_private(info) or info.st_size > _LARGEST_BYTES:
                    return None
                content = file.read(_LARGEST_BYTES)
            start = len(_MAGIC) + _DIGEST_BYTES
            if content[:start] == _head(key, content[start:]):
                return content[start:]
        return None

    def write(self, key: str, code: bytes) -> None:
        """Keep the code; nothing happens where that is not possible."""
        with contextlib.suppress(OSError), self._open_folder() as folder:
            if folder is None:
                return
            _remove_leftovers(folder)
            temporary = f".{key}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
            fd = os.open(temporary, _WRITE, 0o600, dir_fd=folder)
            try:
                # Not fsynced: a file that a power cut left half written does not pass its checksum.
                with open(fd, "wb") as file:
                    file.write(_head(key, code))
                    file.write(code)
                os.replace(temporary, key, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    @contextlib.contextmanager
    def _open_folder(self) -> Iterator[int | None]:
        """Yield a descriptor of the folder, made if need be; None: others may have filled it."""
        if self.folder is None:
            yield None
            return
        with contextlib.suppress(OSError):  # read-only, or full: it may be there all the same
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
        fd = os.open(self.folder, _FOLDER)
        try:
            is_private = _is_private(os.fstat(fd))
            if not is_private:
                log.info("%s is not used: others may write to it, or own it", self.folder)
            yield fd if is_private else None
        finally:
            os.close(fd)


def _head(key: str, code: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(key.encode() + code).digest()


def _is_private(info: os.stat_result) -> bool:
    """Return whether nobody but this user can have written it; access lists show in the group's bits."""
    return info.st_uid == os.getuid() and not info.st_mode & _OTHERS_MAY_WRITE


def _remove_leftovers(folder: int) -> None:
    oldest = time.time() - _LEFTOVER_S
    for name in os.listdir(folder):
        if name.endswith(".tmp"):
            with contextlib.suppress(OSError):
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < oldest:
                    os.unlink(name, dir_fd=folder)
