# SPDX-License-Identifier: Apache-2.0
"""Times what the training process writes: checkpoints, figures, tables. In every step: they are rare."""

from __future__ import annotations

import os
from typing import Any

from . import clock, layout, opens
from .parts import here
from .session import session
from .wrapping import caller, install

SAVERS: dict[str, tuple[str, ...]] = {
    "torch.serialization": ("save",),
    "torch.jit._serialization": ("save",),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    "safetensors.torch": ("save_file", "save_model"),
    "numpy": ("save", "savez", "savez_compressed", "savetxt"),
    "matplotlib.figure": ("Figure.savefig",),
    "PIL.Image": ("Image.save",),
    "cv2": ("imwrite",),
    "imageio.v2": ("imwrite",),
    "imageio.v3": ("imwrite",),
    "pandas.core.generic": ("NDFrame.to_csv", "NDFrame.to_pickle", "NDFrame.to_hdf"),
    "pandas.core.frame": ("DataFrame.to_parquet", "DataFrame.to_feather"),
    "joblib.numpy_pickle": ("dump",),
    "pickle": ("dump",),
    "json": ("dump",),
    "h5py._hl.group": ("Group.create_dataset",),
    "h5py._hl.files": ("File.flush", "File.close"),
    "soundfile": ("write",),
    "torchvision.utils": ("save_image",),
    "torchaudio": ("save",),
}
WRITERS: dict[str, tuple[str, ...]] = {"os": ("fsync", "fdatasync", "sync")}


def _timed(kind: int, name: str) -> Any:
    def make(original: Any) -> Any:
        def save(*args: Any, **kwargs: Any) -> Any:
            if session.role != "main" or here.is_saving or here.is_fetching:
                return original(*args, **kwargs)
            here.is_saving = True
            _note_path(args)
            start = clock.read()
            try:
                return original(*args, **kwargs)
            finally:
                here.is_saving = False
                _record(kind, name, start)

        return save

    return make


def _note_path(args: Any) -> None:
    """Some savers open their file where Python does not see it."""
    try:
        for argument in args[:2]:
            if isinstance(argument, str) or hasattr(argument, "__fspath__"):
                opens.note_created(os.fspath(argument))
    except Exception as error:
        session.trouble("save", error)


def _record(kind: int, name: str, start: clock.Reading) -> None:
    try:
        wall, cpu, queue = clock.since(start)
        number = session.ring.name(f"{name} {caller(3)}")
        session.ring.write(kind, number, start[0], wall, cpu, queue)
    except Exception as error:
        session.trouble("save", error)


def patch_savers(module: Any) -> None:
    """A module with known savers has been imported."""
    for kind, table in ((layout.SAVE, SAVERS), (layout.WRITE, WRITERS)):
        for path in table.get(module.__name__, ()):
            try:
                top = module.__name__.split(".")[0]
                install(module, path, _timed(kind, f"{top}.{path.split('.')[-1]}"))
            except Exception as error:
                session.trouble(f"patch {module.__name__}.{path}", error)
