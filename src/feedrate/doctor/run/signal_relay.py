# SPDX-License-Identifier: Apache-2.0
"""Starts the sampler, and tells the doctor which signals its whole process group got.

Ctrl-C goes from the terminal to the doctor, to the command and to this process alike; `kill PID` reaches the
doctor alone, which then has to pass it on. Only a third process of the group can tell the two apart. The
sampler itself runs in a session of its own: it must survive when the group is killed, to clean up.

Bytes on standard output: READY and STOPPED of the sampler; any other is the number of a signal.
"""

from __future__ import annotations

import os
import signal
import sys

from feedrate.doctor.run import sampler

SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


def main(words: list[str]) -> int:
    os.set_blocking(1, False)
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(1, warn_on_full_buffer=False)
    witness = os.getpid()
    child = os.fork()
    if child:
        os.close(0)
        os.waitpid(child, 0)
        return 0
    signal.set_wakeup_fd(-1)
    os.setsid()

    def tell(byte: int) -> None:
        try:
            os.write(1, bytes([byte]))
        except OSError:
            return

    os._exit(sampler.main(words, ignored=frozenset({witness}), tell=tell))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
