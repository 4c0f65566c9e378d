# SPDX-License-Identifier: Apache-2.0
"""A plan with round numbers, for tests of what is drawn; and one whose every number is out of proportion."""

from __future__ import annotations

from dataclasses import replace

from feedrate.figures import ASSUMED, MEASURED, STORED, Figure
from feedrate.machine.results import StoreSpeed
from feedrate.plan.results import Node, Plan, Survey, Way


def near(value: float, origin: str = MEASURED, note: str = "", *, factor: float = 1.1) -> Figure:
    return Figure.within(value, factor, origin, note)


def make_store(path: str = "/data", kind: str = "nfs4") -> StoreSpeed:
    return StoreSpeed(
        path, kind,
        file_s=near(0.0021), read_s=near(0.001),
        stream_bytes_per_s=near(41e6), total_bytes_per_s=near(330e6), files_per_s=near(3100), streams=16,
        warm_file_s=near(2e-5), warm_bytes_per_s=near(4e9), keeps_pages=True, cold_share=1.0,
        write_bytes_per_s=near(250e6), create_s=near(0.001), stat_s=near(0.0007),
    )  # fmt: skip


def make_survey(**changes: object) -> Survey:
    survey = Survey(
        dataset="/data/imagenet", kind="folders",
        samples=near(1_281_167, factor=1.02), files=near(1_281_167, factor=1.02),
        folders=Figure.exactly(1000), sample_bytes=near(108_000), total_bytes=near(138e9),
        formats={"jpeg": 0.98, "png": 0.02}, width=500, height=375, decoded_bytes=near(562_500),
        factor=near(5.2), pillow_s=near(0.0072), feedrate_s=near(0.0019), cores=16, pillow_cores=14.1,
        feedrate_cores=15.2, pack_s=near(0.0004), resident=0.12, list_s=near(14.8), source=make_store(),
        is_partial=True, how="31 of 1,000 folders were listed, 512 files read", took_s=9.8,
    )  # fmt: skip
    return replace(survey, **changes)


def make_node(**changes: object) -> Node:
    node = Node(
        name="gpu17", cores=Figure.exactly(16), memory_bytes=Figure.exactly(64e9),
        memory_origin="this Slurm job's --mem", gpus=1, gpu_name="NVIDIA A100",
        gpu_memory_bytes=Figure.exactly(80e9), model="resnet50",
        model_rate=near(1400, ASSUMED, "a table of published rates"),
        to_device_bytes_per_s=near(2.4e10, STORED, "2026-11-02"),
        gpu_decode_images_per_s=None, scratch=make_store("/scr", "ext4"), scratch_path="/scr",
        scratch_free_bytes=Figure.exactly(800e9),
    )  # fmt: skip
    return replace(node, **changes)


def make_way(code: str, name: str, before: float, first: float, later: float, **changes: object) -> Way:
    total = before + first + 89 * later
    way = Way(
        code, name, near(before, ASSUMED), near(first, ASSUMED), near(later, ASSUMED), near(total, ASSUMED),
        disk_bytes=Figure.exactly(0), memory_bytes=near(6e9), limit="device-bound", pays_after=2.3,
        gpu_hours_saved=near(12.5), why_not="", needs="", commands=(),
        timeline=(("pack", before), ("first", first), ("later", 89 * later)),
    )  # fmt: skip
    return replace(way, **changes)


IN_PLACE = make_way("in-place", "read in place", 0, 1030, 1030, limit="storage-bound", pays_after=None,
                    gpu_hours_saved=Figure.exactly(0))  # fmt: skip
PACKED = make_way(
    "pack-stage", "pack, then stage on scratch", 620, 910, 905, disk_bytes=near(139e9),
    needs="feedrate.Loader in place of the script's DataLoader",
    commands=("feedrate pack /data/imagenet imagenet.pack", 'export DATA="$(feedrate stage imagenet.pack)"'),
)  # fmt: skip
DECODED = make_way(
    "memory", "cache decoded samples in memory", 0, 1030, 900, memory_bytes=near(720e9),
    why_not="720 GB decoded, and this job has 64 GB: --mem=760G",
)  # fmt: skip


def make_plan(**changes: object) -> Plan:
    plan = Plan(
        make_survey(), make_node(), epochs=90, workers=4, ways=(IN_PLACE, PACKED, DECODED),
        recommended="pack-stage", reason="90 epochs are 1.1 times as fast as in place",
        notes=("The rate of resnet50 is assumed: 'feedrate bench machine' measures it.",),
    )  # fmt: skip
    return replace(plan, **changes)


EXTREMES = (0.0, 0.2, 59.96, 3599.7, 86_400 * 99.99, 3.2e11, 1e30, float("inf"), float("nan"))


def make_extreme_plan() -> Plan:
    """Twenty-five ways between 0.2 s and more than anybody lives, with a petabyte to read."""
    ways = []
    for number in range(25):
        value = EXTREMES[number % len(EXTREMES)]
        figure = Figure(value, 0.0, value * 50, (MEASURED, STORED, ASSUMED)[number % 3], "2026-11-02")
        way = make_way(
            f"way-{number}", f"way {number}: " + "pack and stage, " * (number % 4) + "cached", 1, 1, 1
        )
        way = replace(
            way, before_s=figure, first_epoch_s=figure, later_epoch_s=figure, total_s=figure,
            disk_bytes=replace(figure, value=1e15), memory_bytes=replace(figure, value=-1.0),
            gpu_hours_saved=figure, pays_after=(None, 0.0, 1e12, float("inf"))[number % 4],
            limit=("source", "", "workers")[number % 3],
            why_not="does not fit" if number % 7 == 6 else "", timeline=(("pack", value), ("epochs", value)),
        )  # fmt: skip
        ways.append(way)
    survey = make_survey(
        total_bytes=near(1e15), samples=near(1e10), pillow_s=None, feedrate_s=None, resident=None, formats={}
    )
    node = make_node(gpus=1000, nodes=125, model_rate=None, scratch=None, scratch_free_bytes=None)
    return make_plan(survey=survey, node=node, ways=tuple(ways), recommended="way-1")
