# SPDX-License-Identifier: Apache-2.0
"""Runs scripts in forks of one process that has imported torch: that import takes longer than they do."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.hooking import launch

HOOK = Path(layout.__file__).parent.parent
STARTUP = Path(launch.__file__).parent / "startup"
PYTHONPATH = f"{STARTUP}{os.pathsep}{HOOK}"

# A request comes with the script's two streams; answered are its process number, then its exit code. A fork
# becomes the script: it has its folder, environment, session and __main__, and ends as any Python does. Torch
# was imported with the hook's patches in place, as it always is; the hook itself begins in the script.
FORKER = """
import json, os, socket, sys, tempfile
sys.path[1:1] = sys.argv[2].split(os.pathsep)
from feedrate_hook import patches
patches.install()
patches.install = dict  # has been done; a function of ours would keep all that the script makes alive
import torch, torch._dynamo, torch.utils.data  # the first optimizer imports torch._dynamo

channel = socket.socket(fileno=int(sys.argv[1]))
while True:
    request, streams, *_ = socket.recv_fds(channel, 1 << 18, 2)
    if not request:
        os._exit(0)
    child = os.fork()
    if not child:
        break
    for stream in streams:
        os.close(stream)
    channel.send(b"%d" % child)
    channel.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
channel.close()
os.setsid()
for number, stream in enumerate((os.open(os.devnull, os.O_RDONLY), *streams)):
    os.dup2(stream, number)
    os.close(stream)
request = json.loads(request)
os.chdir(request["folder"])
os.environ.clear()
os.environ.update(request["environ"])
tempfile.tempdir = None
sys.argv[:] = request["words"]
sys.path[0] = os.path.dirname(sys.argv[0])
sys.modules["feedrate_hook.session"].session.settings = {}  # there were none to read so far
sys.modules.pop("sitecustomize", None)
import sitecustomize  # ours
__file__ = sys.argv[0]
with open(__file__) as request:
    request = compile(request.read(), __file__, "exec")
for number in set(globals()) - {"request"}:
    if not number.startswith("__"):
        del globals()[number]
exec(request)
"""


@dataclass(frozen=True)
class Ended:
    """A script that has ended: its process number, which is its session's too, its code, and what it said."""

    pid: int
    code: int
    output: str
    errors: str


class _Forker:
    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        environ.pop("PYTHONPATH", None)
        with theirs:
            number = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-c", FORKER, str(number), PYTHONPATH], env=environ, pass_fds=[number]
            )
        atexit.register(self.close)

    def ask(self, request: Mapping[str, object], streams: Sequence[int]) -> int:
        socket.send_fds(self.channel, [json.dumps(request).encode()], streams)
        return self.answer()

    def answer(self) -> int:
        return int(self.channel.recv(100))

    def close(self) -> None:
        self.channel.close()
        self.process.wait()


_forker = functools.cache(_Forker)


def run_in_fork(
    folder: Path, words: Sequence[str], environ: Mapping[str, str], *, timeout_s: float = 400.0
) -> Ended:
    """Run a hooked script with its words in `folder`, to its end and that of all who write to its streams."""
    pipes = [os.pipe(), os.pipe()]
    request = {"folder": str(folder), "words": list(words), "environ": dict(environ)}
    pid = _forker().ask(request, [theirs for _, theirs in pipes])
    for _, theirs in pipes:
        os.close(theirs)
    guard = threading.Timer(timeout_s, os.killpg, (pid, signal.SIGKILL))
    guard.start()
    said = ["", ""]

    def listen(number: int) -> None:
        with open(pipes[number][0]) as stream:
            said[number] = stream.read()

    listeners = [threading.Thread(target=listen, args=(number,)) for number in range(2)]
    for listener in listeners:
        listener.start()
    for listener in listeners:
        listener.join()
    code = _forker().answer()
    guard.cancel()
    guard.join()  # other tests count threads
    return Ended(pid, code, *said)
