# SPDX-License-Identifier: Apache-2.0
"""Signals that a whole process group got, told from those that its first process got alone."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedrate.hooking.group import GroupWitness

# Says which process witnesses, then of each signal whether the group saw it.
LAUNCHER = """
import signal, sys
from feedrate.hooking import group, launch
if "pending" in sys.argv:
    asked = group.is_pending
    group.is_pending = lambda *process: (print("pending", flush=True), asked(*process))[1]
witness = group.GroupWitness()
with launch.Signals() as signals:
    print(witness._pid, flush=True)
    while True:
        for number in signals.wait():
            print("came", flush=True)
            print(number, witness.saw(number), flush=True)
"""


class Launcher:
    """A process that heads a group of its own and has a witness."""

    def __init__(self, *words: str) -> None:
        self.open, theirs = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, *words],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=[theirs],
        )
        os.close(theirs)
        self.witness = int(self.hear())

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        """Kill it, and wait for the end of all that had its pipe open: its witness."""
        self.process.kill()
        self.process.communicate()
        assert select.select([self.open], [], [], 60)[0]
        assert os.read(self.open, 1) == b""
        os.close(self.open)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    made.end()


def test_a_signal_is_the_groups_or_the_launchers_alone(launcher: Launcher) -> None:
    pid = launcher.process.pid
    for send, number, is_seen in (
        (os.killpg, signal.SIGUSR1, True),
        (os.kill, signal.SIGUSR1, False),
        (os.killpg, signal.SIGINT, True),
        (os.killpg, signal.SIGINT, True),
        (os.kill, signal.SIGINT, False),
        (os.kill, signal.SIGTERM, False),
        (os.killpg, signal.SIGTERM, True),
        (os.killpg, signal.SIGUSR2, True),
    ):
        send(pid, number)
        assert launcher.hear() == "came"
        assert launcher.hear() == f"{int(number)} {is_seen}"


def test_of_signals_that_come_together_each_is_told(launcher: Launcher) -> None:
    pid = launcher.process.pid
    launcher.process.send_signal(signal.SIGSTOP)
    os.killpg(pid, signal.SIGUSR1)
    os.kill(pid, signal.SIGTERM)
    os.killpg(pid, signal.SIGUSR2)
    launcher.process.send_signal(signal.SIGCONT)
    told = {line for line in (launcher.hear() for _ in range(6)) if line != "came"}
    assert told == {
        f"{int(signal.SIGUSR1)} True",
        f"{int(signal.SIGTERM)} False",
        f"{int(signal.SIGUSR2)} True",
    }


def test_a_witness_that_has_no_core_for_long_is_waited_for() -> None:
    launcher = Launcher("pending")
    os.kill(launcher.witness, signal.SIGSTOP)
    os.killpg(launcher.process.pid, signal.SIGUSR1)
    assert (launcher.hear(), launcher.hear()) == ("came", "pending")
    os.kill(launcher.witness, signal.SIGCONT)
    assert launcher.hear() == f"{int(signal.SIGUSR1)} True"
    launcher.end()


def test_the_witness_ends_with_its_launcher_however_that_ends(launcher: Launcher) -> None:
    assert Path(f"/proc/{launcher.witness}").exists()  # `end` waits for its end


def test_a_witness_that_is_closed_leaves_nothing() -> None:
    def look() -> tuple[int, str]:
        return len(os.listdir("/proc/self/fd")), Path("/proc/thread-self/children").read_text()

    before, blocked = look(), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    witness = GroupWitness()
    assert look() != before
    witness.close()
    assert look() == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked
