# SPDX-License-Identifier: Apache-2.0
"""Several processes that train while one copy flows to scratch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from feedrate import Loader
from feedrate.remote.pack import RemotePack
from support.range_server import COUNT, RangeServer

pytestmark = pytest.mark.slow
PROGRAM = """
import sys, numpy as np
from feedrate import Loader
loader = Loader(sys.argv[1], 4, fields=("number", "image"), output="numpy", scratch=sys.argv[2],
                rank=int(sys.argv[3]), world_size=int(sys.argv[4]))
for epoch in range(2):
    print(*(n for numbers, _ in loader for n in numbers.tolist()), flush=True)
loader.close()
"""


def test_ranks_of_a_node_share_one_copy_and_every_sample_comes_once(
    scratch: Path, pack_server: RangeServer
) -> None:
    command = [sys.executable, "-c", PROGRAM, f"{pack_server.url}/pack", str(scratch)]
    ranks = [
        subprocess.Popen([*command, str(rank), "3"], stdout=subprocess.PIPE, text=True) for rank in range(3)
    ]
    given = [rank.communicate(timeout=300)[0].splitlines() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    for epoch in range(2):
        assert sorted(int(n) for lines in given for n in lines[epoch].split()) == list(range(COUNT))
    copies = list((scratch / f"feedrate-{os.getuid()}").iterdir())
    assert len(copies) == 1


def test_a_killed_writer_is_followed_by_another(
    scratch: Path, pack_server: RangeServer, served_pack: Path
) -> None:
    command = [sys.executable, "-c", PROGRAM, f"{pack_server.url}/pack", str(scratch), "0", "1"]
    hangs = threading.Event()

    def hang_soon(_path: str, number: int) -> str | None:
        if number > 8:
            hangs.set()
        return "stall" if number > 8 else None

    pack_server.fault = hang_soon
    writer = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    assert hangs.wait(120)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    pack_server.fault = lambda _path, _number: None
    with Loader(f"{pack_server.url}/pack", 4, output="numpy", scratch=scratch) as loader:
        pack = loader._resources.pack
        assert isinstance(pack, RemotePack)
        assert pack.copy is not None
        assert len(list(loader)) == COUNT // 4
        pack.copy._thread.join(120)
        copy = pack.copy.copy
        assert copy.is_complete()
    assert (copy.data / "shard-00000.tar").read_bytes() == (served_pack / "shard-00000.tar").read_bytes()
