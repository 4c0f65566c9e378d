# SPDX-License-Identifier: Apache-2.0
"""How fast does a pack come from a server whose every answer is late, and when is it all on scratch?

A web server of its own process on loopback waits before each answer, and gives all connections together at
most a stated rate. The same pack is read from this machine, from the server with few and many requests in
flight, in two orders, and with scratch. One run per row; loopback and a waiting server stand for a network.

    python benchmarks/remote.py --images 2000 --delay-ms 20 --rate 100MB --json benchmarks/results/remote.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from feedrate import Loader, PackOptions, RandomResizedCrop, pack
from feedrate.lab.photographs import make_photographs
from feedrate.machine.describe import describe_machine
from feedrate.remote.pack import RemotePack
from feedrate.units import parse_bytes

BATCH = 64


def main() -> int:
    arguments = parse()
    if arguments.serve:
        asyncio.run(serve(Path(arguments.serve), arguments.delay_ms / 1e3, parse_bytes(arguments.rate)))
        return 0
    rows = []
    with tempfile.TemporaryDirectory(prefix="feedrate-remote-", dir=arguments.scratch) as folder:
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"  # nothing of this stays in the registry
        source = make_pack(Path(folder), arguments.images, arguments.shard_size)
        size_bytes = sum(p.stat().st_size for p in source.iterdir())
        say(f"{arguments.images} images, {size_bytes / 1e6:.0f} MB")
        rows.append(measure("local", str(source), arguments.images))
        words = [sys.executable, __file__, "--serve", folder, "--delay-ms", str(arguments.delay_ms),
                 "--rate", arguments.rate]  # fmt: skip
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/pack"
            rows += [measure("shuffled", url, arguments.images, in_flight=n) for n in (1, 16, 256)]
            rows.append(measure("windowed", url, arguments.images, order="windowed"))
            rows.append(measure_staging(url, arguments.images, Path(folder) / "scratch", size_bytes))
            server.terminate()
    if arguments.json:
        document = {
            "question": (__doc__ or "").splitlines()[0], "images": arguments.images, "pack_bytes": size_bytes,
            "delay_ms": arguments.delay_ms, "rate": arguments.rate, "batch_size": BATCH, "rows": rows,
            "load_average": os.getloadavg(),
            "machine": asdict(describe_machine(sys.argv)),
        }  # fmt: skip
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def make_pack(folder: Path, images: int, shard_size: str) -> Path:
    files = [photograph.jpeg for photograph in make_photographs(min(images, 60))]
    for number in range(images):
        path = folder / "photos" / str(number % 10) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[number % len(files)])
    pack(folder / "photos", folder / "pack", PackOptions(shard_bytes=parse_bytes(shard_size)))
    return folder / "pack"


def measure(
    name: str, source: str, images: int, *, in_flight: int = 0, order: str | None = None
) -> dict[str, Any]:
    opened: Any = source
    if in_flight:
        opened = RemotePack(source, in_flight=in_flight)
    begin, cpu = time.perf_counter(), time.process_time()
    with Loader(opened, BATCH, image=RandomResizedCrop(224), order=order, output="numpy") as loader:
        first_s = 0.0
        for _ in loader:
            first_s = first_s or time.perf_counter() - begin
        seconds = time.perf_counter() - begin
        fetch = loader.stats().fetch
    if in_flight:
        opened.close()
    row = {
        "name": name, "in_flight_allowed": in_flight or None, "order": order or "shuffled",
        "first_batch_s": first_s, "epoch_s": seconds, "images_per_s": images / seconds,
        "cpu_ms_per_image": 1e3 * (time.process_time() - cpu) / images,
        "fetch": None if fetch is None else asdict(fetch),
    }  # fmt: skip
    say(json.dumps(row))
    return row


def measure_staging(url: str, images: int, scratch: Path, size_bytes: int) -> dict[str, Any]:
    scratch.mkdir()
    begin = time.perf_counter()
    with Loader(url, BATCH, image=RandomResizedCrop(224), output="numpy", scratch=scratch) as loader:
        times: dict[str, float] = {}
        for _ in loader:
            times.setdefault("first_batch_s", time.perf_counter() - begin)
        times["first_epoch_s"] = time.perf_counter() - begin
        loader._resources.pack.copy._thread.join()  # type: ignore[attr-defined]
        times["all_local_s"] = time.perf_counter() - begin
        loader.stats()
        again = time.perf_counter()
        for _ in loader:
            pass
        times["second_epoch_s"] = time.perf_counter() - again
        fetch = loader.stats().fetch
    assert fetch is not None
    row = {
        "name": "scratch", "order": "staged", **times,
        "images_per_s_second_epoch": images / times["second_epoch_s"],
        "fetched_per_pack_byte": fetch.bytes_fetched / size_bytes, "fetch": asdict(fetch),
    }  # fmt: skip
    say(json.dumps(row))
    return row


async def serve(folder: Path, delay_s: float, rate: int) -> None:
    """Answer ranges of the folder's files; each answer late, all together at a rate."""
    free_at = 0.0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal free_at
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                lines = request.decode().split("\r\n")
                method, path = lines[0].split()[:2]
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}
                await asyncio.sleep(delay_s)
                file = folder / path.lstrip("/")
                if not file.is_file():
                    writer.write(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")
                    continue
                begin, stop = 0, (size_bytes := file.stat().st_size)
                if "range" in headers:
                    first, _, last = headers["range"].removeprefix("bytes=").partition("-")
                    begin, stop = int(first), min(int(last or size_bytes), size_bytes - 1) + 1
                head = (
                    f"HTTP/1.1 {206 if 'range' in headers else 200} OK\r\nContent-Length: {stop - begin}\r\n"
                )
                head += (
                    f"Accept-Ranges: bytes\r\nContent-Range: bytes {begin}-{stop - 1}/{size_bytes}\r\n\r\n"
                )
                writer.write(head.encode())
                with open(file, "rb") as stream:
                    stream.seek(begin)
                    while method == "GET" and begin < stop:
                        data = stream.read(min(1 << 18, stop - begin))
                        begin += len(data)
                        now = time.monotonic()
                        free_at = max(free_at, now) + len(data) / rate
                        await asyncio.sleep(free_at - now)
                        writer.write(data)
                        await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--rate", default="100MB", help="bytes per second of all connections together")
    parser.add_argument("--shard-size", default="16MB")
    parser.add_argument("--scratch", help="where to make the data")
    parser.add_argument("--json")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    return parser.parse_args()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
