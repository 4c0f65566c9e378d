# SPDX-License-Identifier: Apache-2.0
"""Charts and tables of what was measured on a GPU, from results of the layout that the benchmarks write."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from test_docs import load_script

SVG = "{http://www.w3.org/2000/svg}"


def make_result(model: str, cores: int, decode: str, share: float, mode: str = "train") -> dict[str, Any]:
    return {
        "model": model, "mode": mode, "cores": cores, "cpus": list(range(cores)), "decode": decode,
        "ceiling": 1000.0, "images_per_s": [1000 * share] * 2, "share_of_ceiling": share, "threads": cores,
        "gpu_share": 0.5, "by_gpu": 0.5, "call": 0,
    }  # fmt: skip


def make_feeding(*results: dict[str, Any], siblings: dict[str, str | None] | None = None) -> dict[str, Any]:
    call = {
        "settle_s": 6.0, "seconds": 1.0, "rounds": 2, "cache_gpu": None,
        "siblings": siblings or {"0": "0-1", "1": "0-1", "2": "2-3", "3": "2-3"},
        "machine": {"cpu_model": "Fast <9000>"},
    }  # fmt: skip
    return {
        "gpu": "GPU 1", "torch": "2.11", "batch": 256, "pack_bytes": 10**9, "calls": [call],
        "results": list(results),
    }  # fmt: skip


FEEDING = make_feeding(
    make_result("resnet18", 1, "gpu", 0.5),
    make_result("resnet18", 2, "cpu", 0.25),
    make_result("resnet18", 2, "auto", 1.0),
    make_result("resnet18", 2, "cache", 0.99, "infer"),
    make_result("somenet", 16, "cpu", 0.0),
)


def read_chart(result: dict[str, Any]) -> tuple[list[Any], str]:
    """Return the bars of the panels, without the legend, and the words."""
    root = ElementTree.fromstring(load_script("chart").render_feeding(result))
    bars = [one for one in root.iter(f"{SVG}rect") if float(one.attrib["y"]) > 50]
    return bars, "\n".join(one.text or "" for one in root.iter(f"{SVG}text"))


def test_the_chart_has_a_bar_for_every_result_as_long_as_its_share_of_the_ceiling() -> None:
    chart = load_script("chart")
    bars, words = read_chart(FEEDING)
    lengths = [(one.attrib["class"], float(one.attrib["width"])) for one in bars]
    shares = {"gpu": [0.5], "cpu": [0.25, 0.0], "auto": [1.0], "cache": [0.99]}
    for kind, wanted in shares.items():
        drawn = [length for name, length in lengths if name == kind]
        assert drawn == [max(round(chart.CEILING * share, 1), 1.0) for share in wanted]
    for name in ("ResNet-18, training: 1,000 images/s", "ResNet-18, inference", "somenet", "1 core\n", "25%"):
        assert name in words


def test_the_chart_says_that_cpus_are_hyperthreads_where_the_machine_says_so() -> None:
    assert "Fast <9000>, 4 CPUs, hyperthreads of 2 cores" in read_chart(FEEDING)[1]
    result = FEEDING["results"][0]
    assert "hyperthreads" not in read_chart(make_feeding(result, siblings={"0": None, "1": None}))[1]
    assert "hyperthreads" not in read_chart(make_feeding(result, siblings={"0": "0", "1": "1"}))[1]


def test_the_table_of_feeding_leaves_out_what_was_not_measured() -> None:
    rows = load_script("figures").BLOCKS["feeding_cores"](FEEDING).splitlines()
    assert rows[0] == "| | ceiling | decoded by | 1 core | 2 cores | 16 cores |"
    assert rows[2] == "| resnet18, train | 1,000 | CPU |  | 25% |  |"
    assert rows[3] == "| resnet18, train | 1,000 | GPU | 50% |  |  |"
    assert rows[5] == "| resnet18, infer | 1,000 | nobody: a cache on the GPU |  | 99% |  |"


def test_the_table_of_gpu_decoding_has_a_row_per_run_and_per_kernel() -> None:
    run = {
        "bytes_per_entry": 1000, "batch": 512, "images_per_s": {"feedrate": 300_000.0, "nvJPEG": 9000.4},
        "kernel_us_per_image": {"prepare": 0.5, "resize_last": 2.25}, "staged_bytes_per_image": 61_000.0,
        "file_bytes_per_image": 108_000.0,
    }  # fmt: skip
    other = {**run, "bytes_per_entry": 150, "images_per_s": {"feedrate": 400_000.0}}
    kernel = {"threads_per_block": 128, "registers": 40, "shared_bytes": 2048, "theoretical_occupancy": 0.75}
    document = {
        "gpu": "GPU 1", "host_threads": 16, "images": 37_000, "kernels": {"prepare": kernel},
        "runs": [run, other],
    }  # fmt: skip
    text = load_script("figures").BLOCKS["gpu_decode"](document)
    assert "| 1,000 | 512 | 300,000 | 9,000 | 2.75 µs | 61 of 108 KB |" in text
    assert "| 150 | 512 | 400,000 |  | 2.75 µs | 61 of 108 KB |" in text
    assert "| prepare | 128 | 40 | 2,048 bytes | 75% |" in text
    tables = re.findall(r"^\|.*\|$", text, re.M)
    assert {row.count("|") for row in tables} == {7, 6}
