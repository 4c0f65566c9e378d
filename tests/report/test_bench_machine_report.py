# SPDX-License-Identifier: Apache-2.0
"""The numbers of a machine as text."""

from __future__ import annotations

from dataclasses import replace

from feedrate.bench.results import MachineResult
from feedrate.figures import Figure
from feedrate.report.bench import draw_machine
from support.bench_results import make_machine_result, make_store_speed


def draw(result: MachineResult) -> list[str]:
    return [" ".join(line.split()) for line in draw_machine(result).splitlines()]


def test_every_number_has_its_range_and_where_it_comes_from() -> None:
    lines = draw(make_machine_result())
    assert lines[0] == "This machine: Fast 9000, 2 cores, 8.00 GB of memory; 2026-11-17"
    assert "open a file, cold 6.00 ms 5.50-6.50 ms" in lines
    assert (
        "read, 16 readers, cold 100 MB/s 90.0 MB/s-1.00 GB/s assumed: the files are too small to tell"
        in lines
    )
    assert "resnet50, training 250 images/s 225-275 images/s" in lines
    assert "models: batches of 256, bfloat16" in lines
    assert "left out: decoding on the GPU: NVRTC is not installed" in lines


def test_a_terminal_of_80_columns_shows_all_of_it() -> None:
    text = draw_machine(make_machine_result(), 80)
    assert max(map(len, text.splitlines())) <= 80


def test_a_store_that_keeps_nothing_in_memory_or_all_is_said() -> None:
    mine = make_machine_result()
    forgets = replace(make_store_speed(), keeps_pages=False)
    memory = replace(make_store_speed(), cold_share=0.0)
    lines = draw(replace(mine, numbers=replace(mine.numbers, stores={"nfs": forgets, "shm": memory})))
    assert "nfs: keeps nothing in memory: a file is read from the store each time" in lines
    assert "shm: its files stay in memory, so nothing there is cold" in lines


def test_a_disk_that_may_be_cached_below_is_said() -> None:
    mine, note = make_machine_result(), "9 files, a virtual disk, which its host may cache"
    store = replace(make_store_speed(), file_s=Figure(1.0, 1.0, 1.0, note=note))
    lines = draw(replace(mine, numbers=replace(mine.numbers, stores={"disk": store})))
    assert any(line.startswith("disk: a virtual disk, which its host may cache") for line in lines)


def test_numbers_of_a_busy_machine_say_so() -> None:
    lines = draw(replace(make_machine_result(), busy="other processes took 1.5 of 2 cores meanwhile"))
    assert (
        "other processes took 1.5 of 2 cores meanwhile: these numbers say too little of this machine" in lines
    )
