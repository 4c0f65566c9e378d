# SPDX-License-Identifier: Apache-2.0
"""Threads near the GPU: found in made-up trees of sysfs, and kept to by a loader."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from feedrate import Loader, Resize
from feedrate.loader.device.transfer import Placement, Transfer
from feedrate.machine import cpu
from feedrate.machine.cpu import find_near_cores, parse_cores
from support.packs import write_images

GPU = "0000:17:00.0"

# Where the GPUs of machines with one, two and eight nodes are attached: (node, its cores).
TWO = {
    "0000:17:00.0": ("0", "0-31,64-95"),
    "0000:65:00.0": ("0", "0-31,64-95"),
    "0000:ca:00.0": ("1", "32-63,96-127"),
}
ONE = {"0000:17:00.0": ("-1", "0-15")}
# Two sockets in four parts each ("sub-NUMA clustering"): a GPU is in one of eight nodes.
EIGHT = {"0000:17:00.0": ("1", "14-27,126-139"), "0002:81:00.0": ("6", "84-97,196-209")}


def write_sysfs(folder: Path, gpus: dict[str, tuple[str, str]]) -> Path:
    for address, (node, cores) in gpus.items():
        device = folder / "bus" / "pci" / "devices" / address
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        (device / "local_cpulist").write_text(f"{cores}\n")
    return folder


def cores(*runs: tuple[int, int]) -> frozenset[int]:
    """Return the cores of runs, each from its first to its last."""
    return frozenset(core for first, last in runs for core in range(first, last + 1))


@pytest.mark.parametrize(
    ("gpus", "address", "usable", "threads", "near"),
    [
        pytest.param(TWO, "0000:17:00.0", cores((0, 127)), 16, cores((0, 31), (64, 95)), id="socket 0"),
        pytest.param(TWO, "0000:ca:00.0", cores((0, 127)), 64, cores((32, 63), (96, 127)), id="socket 1"),
        pytest.param(TWO, "0000:ca:00.0", cores((24, 39)), 8, cores((32, 39)), id="a job on both"),
        pytest.param(TWO, "0000:17:00.0", cores((0, 127)), 65, None, id="too few are near"),
        pytest.param(TWO, "0000:17:00.0", cores((32, 63)), 8, None, id="none is near"),
        pytest.param(TWO, "0000:17:00.0", cores((0, 15)), 8, None, id="all are near"),
        pytest.param(ONE, "0000:17:00.0", cores((0, 15)), 8, None, id="one node"),
        pytest.param(EIGHT, "0000:17:00.0", cores((0, 223)), 28, cores((14, 27), (126, 139)), id="a part"),
        pytest.param(EIGHT, "0002:81:00.0", cores((80, 90)), 4, cores((84, 90)), id="of the other socket"),
        pytest.param(EIGHT, "0000:17:00.0", cores((0, 223)), 29, None, id="more threads than a part has"),
        pytest.param(TWO, "0000:99:00.0", cores((0, 127)), 1, None, id="no such device"),
        pytest.param({GPU: ("none", "0-3")}, GPU, cores((0, 7)), 1, None, id="no number"),
    ],
)  # fmt: skip
def test_the_cores_near_a_gpu_are_the_usable_ones_of_its_node_if_they_are_enough(
    tmp_path: Path,
    gpus: dict,
    address: str,
    usable: frozenset[int],
    threads: int,
    near: frozenset[int] | None,
) -> None:
    assert find_near_cores(address, threads, usable, write_sysfs(tmp_path, gpus)) == near


def test_a_list_of_cores_is_read_as_the_kernel_writes_it() -> None:
    assert parse_cores("0-2,5,8-9\n") == {0, 1, 2, 5, 8, 9}
    assert parse_cores("\n") == frozenset()


@pytest.mark.parametrize(
    ("about", "address"),
    [
        ({"pci_domain_id": 0, "pci_bus_id": 0x17, "pci_device_id": 0}, "0000:17:00.0"),
        ({"pci_domain_id": 0x10002, "pci_bus_id": 0xCA, "pci_device_id": 31}, "10002:ca:1f.0"),
        ({"pci_bus_id": 0x17}, None),
    ],
)
def test_the_place_of_a_gpu_is_written_as_in_sysfs(
    about: dict[str, int], address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**about))
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
    monkeypatch.setattr("feedrate.loader.device.transfer._streams", {})
    assert Transfer("a GPU", prefetch=1, is_plain=True).find_pci_address() == address


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores"
)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_threads_of_a_loader_and_no_others_keep_to_the_cores_near_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    pack = write_images(tmp_path / "pack", count=64, side=16)
    usable = os.sched_getaffinity(0)
    near = min(usable)
    monkeypatch.setattr(cpu, "SYSFS", write_sysfs(tmp_path / "sys", {GPU: ("0", f"{near}")}))
    monkeypatch.setattr(Placement, "find_pci_address", lambda _: GPU)
    before = set(os.listdir("/proc/self/task"))
    with Loader(pack, 2, image=Resize(8), output="numpy", threads=threads, prefetch=2) as loader:
        iterator = iter(loader)
        next(iterator)
        begun = {int(thread) for thread in os.listdir("/proc/self/task") if thread not in before}
        bound = [os.sched_getaffinity(thread) for thread in begun]
        assert len(bound) == 2 + threads  # makers, and those that decode
        # With two threads, the one core that is near is too few.
        assert bound == [{near} if threads == 1 else usable] * len(bound)
        assert os.sched_getaffinity(0) == usable
