# SPDX-License-Identifier: Apache-2.0
"""Functions of libraries that save, log or send: what they would do once a run is spoilt does not happen.

Savers and loggers open files or connections by themselves, out of Python's sight: their code is exchanged.
What another process or machine is told, it may write: to send something ends the run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Callable
from typing import Any

# module, names, position and keyword of the target (-1: always blocked), what the caller gets.
# A target that is no path (a buffer in memory) is no harm: the call goes through.
SAVERS = (
    ("torch", "save", 1, "f", None),
    ("torch.serialization", "save", 1, "f", None),
    ("torch.jit", "save", 1, "f", None),
    ("torch.jit._script", "RecursiveScriptModule.save", 1, "f", None),
    ("torch.export", "save", 1, "f", None),
    ("torch.onnx", "export", 2, "f", None),
    ("torch.distributed.checkpoint", "save async_save save_state_dict", -1, "", None),
    ("torch.profiler", "profile.export_chrome_trace", -1, "", None),
    ("safetensors", "serialize_file", -1, "", None),
    ("safetensors.torch", "serialize_file save_file save_model", -1, "", None),
    ("safetensors.numpy", "serialize_file save_file", -1, "", None),
    ("cv2", "imwrite imwritemulti", -1, "", True),
    ("cv2", "FileStorage.open", -1, "", False),
    ("cv2", "VideoWriter.write", -1, "", None),
    ("torchvision.io", "write_jpeg write_png write_file write_video", -1, "", None),
    ("torchaudio", "save", -1, "", None),
    ("soundfile", "write", -1, "", None),
    ("pyarrow.parquet", "write_table", 1, "where", None),
    ("pyarrow.parquet", "write_to_dataset", -1, "", None),
    ("pyarrow.feather", "write_feather", 1, "dest", None),
    ("pyarrow.csv", "write_csv", 1, "output_file", None),
    ("pyarrow.dataset", "write_dataset", -1, "", None),
    ("pandas", "DataFrame.to_parquet DataFrame.to_feather DataFrame.to_orc", 1, "path", None),
    ("pandas", "DataFrame.to_hdf DataFrame.to_sql", -1, "", None),
    ("faiss", "write_index", -1, "", None),
    ("onnx", "save", -1, "", None),
)

# module, class ("" for the module itself), beginnings of the names that report something to somebody.
LOGGERS = (
    ("torch.utils.tensorboard.writer", "SummaryWriter", ("add_", "flush", "close")),
    ("tensorboardX.writer", "SummaryWriter", ("add_", "flush", "close")),
    ("tensorboard.summary.writer.event_file_writer", "EventFileWriter", ("add_event",)),
    ("wandb", "", ("log", "save", "alert", "finish", "watch")),
    ("wandb.sdk.wandb_run", "Run", ("log", "save", "alert", "finish", "watch", "mark_", "upsert_")),
    ("mlflow", "", ("log_", "set_tag", "end_run")),
    ("mlflow.tracking", "MlflowClient", ("log_", "set_")),
    ("mlflow.pytorch", "", ("log_", "save_")),
    ("comet_ml", "Experiment", ("log_", "end")),
    ("neptune", "Run", ("sync", "stop", "wait")),
    ("aim", "Run", ("track", "close")),
    ("clearml", "Logger", ("report_",)),
    ("clearml", "Task", ("upload_", "connect", "close")),
    ("swanlab", "", ("log", "finish")),
)

# module, class, methods that hand something to another process or machine. Of sockets, Python's own only:
# those of the collectives are not Python's.
SENDERS = (
    ("multiprocessing.queues", "Queue", "put"),
    ("multiprocessing.queues", "JoinableQueue", "put"),
    ("multiprocessing.queues", "SimpleQueue", "put"),
    ("multiprocessing.connection", "Connection", "send"),
    ("multiprocessing.pool", "Pool", "apply_async _map_async imap imap_unordered"),
    ("concurrent.futures.process", "ProcessPoolExecutor", "submit"),
    ("socket", "socket", "send sendall sendto sendmsg sendfile"),
)

_blocked: dict[str, Callable[..., Any]] = {}  # what is called in place of a saver or logger, by its title


def replace_savers(scope: Any) -> None:
    """Of the modules that are loaded; one that is loaded later is the audit hook's business."""
    for module, names, position, keyword, result in SAVERS:
        for name in names.split():
            owner: Any = sys.modules.get(module)
            *classes, last = name.split(".")
            for part in classes:
                owner = getattr(owner, part, None)
            if getattr(owner, last, None) is not None:
                block(scope, owner, last, f"{module}.{name}", (position, keyword, result))
    for module, cls, beginnings in LOGGERS:
        owner = sys.modules.get(module)
        owner = getattr(owner, cls, None) if cls else owner
        for name in dir(owner) if owner is not None else ():
            kind = type(getattr(owner, name, None)) if name.startswith(beginnings) else None
            if kind in (types.FunctionType, types.MethodType):
                block(scope, owner, name, f"{module}.{cls}.{name}".replace("..", "."), (-1, "", None))
    replace_h5py(scope)


def block(scope: Any, owner: Any, name: str, title: str, rule: tuple[int, str, Any]) -> None:
    """Exchange a function's code, so that `from torch import save` is blocked too; failing that, the name."""
    position, keyword, result = rule
    function: Any = getattr(owner, name)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if title in _blocked or getattr(function, "__code__", stub.__code__).co_filename == STUB_FILE:
        return
    try:
        real: Any = types.FunctionType(
            function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
        )
        real.__kwdefaults__ = function.__kwdefaults__
    except AttributeError:
        real = function

    def call(*args: Any, **kwargs: Any) -> Any:
        target = args[position] if len(args) > position >= 0 else kwargs.get(keyword)
        is_path = position < 0 or isinstance(target, (str, bytes, os.PathLike))
        if not scope.applies() or not is_path or (position >= 0 and scope.is_harmless(target)):
            return real(*args, **kwargs)
        scope.blocked(title, target if isinstance(target, (str, os.PathLike)) else "")
        return result

    _blocked[title] = call
    try:
        function.__code__ = stub.__code__.replace(co_name=title)
        function.__defaults__ = function.__kwdefaults__ = None
    except (AttributeError, TypeError, ValueError):
        # Not so a class of a compiled library; what it opens, the kernel sees.
        with contextlib.suppress(AttributeError, TypeError):
            setattr(owner, name, call)


def stub(*args, **kwargs):  # type: ignore[no-untyped-def]
    """The code that blocked functions get. It runs with their globals, so it fetches what it needs."""
    import sys

    title = sys._getframe().f_code.co_name
    return sys.modules["feedrate_hook.guard.libraries"]._blocked[title](*args, **kwargs)


STUB_FILE = stub.__code__.co_filename


def replace_h5py(scope: Any) -> None:
    """A file opened for writing lives in memory and is never stored."""
    file_class = getattr(sys.modules.get("h5py"), "File", None)
    if file_class is None:
        return
    real = file_class.__init__

    def guarded(self: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
        if mode != "r" and scope.applies() and isinstance(name, (str, bytes, os.PathLike)):
            scope.blocked("h5py.File for writing", os.fsdecode(name))
            args, kwargs = (), {"driver": "core", "backing_store": False}
        real(self, name, mode, *args, **kwargs)

    file_class.__init__ = guarded


def replace_senders(scope: Any, end: Callable[[str], None]) -> None:
    """The run ends where another process is told something: nobody may wait for its answer for ever."""
    for module, cls, names in SENDERS:
        owner = getattr(sys.modules.get(module), cls, None)
        for name in names.split() if owner is not None else ():
            # An inherited method is replaced where it is defined; where that is in C, here.
            real = getattr(owner, name) if module == "socket" else vars(owner).get(name)
            if real is not None:
                setattr(owner, name, ending_call(scope, end, f"{cls}.{name}", real))


def ending_call(
    scope: Any, end: Callable[[str], None], what: str, real: Callable[..., Any]
) -> Callable[..., Any]:
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A ThreadPool is a Pool by inheritance, but in this process.
        if scope.is_loading() or not scope.applies() or type(self).__name__ == "ThreadPool":
            return real(self, *args, **kwargs)
        scope.blocked(what)
        if what.startswith("socket.") and self.type == sys.modules["socket"].SOCK_DGRAM:
            # Metrics to a collector: nobody waits for them.
            return len(args[0]) if args and isinstance(args[0], (bytes, bytearray)) else 0
        if scope.in_user_loop():
            end(what)
        raise BrokenPipeError(f"feedrate doctor: nothing may be sent any more: {what}")

    return guarded
