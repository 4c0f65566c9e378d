# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of a run that feedrate.Loader feeds: which stage limits it, and what would help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_doctor_findings import LOCAL

from feedrate.doctor.analyse.data_files import describe_pack, time_pack_images
from feedrate.doctor.analyse.machine import read_machine
from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.analyse.metrics import Measured, PackImages, Tried
from feedrate.doctor.findings.diagnose import diagnose
from feedrate.doctor.findings.fact_table import list_facts
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.results import Diagnosis
from feedrate.report.doctor_words import list_setting
from support.doctor_runs import MS, FakeLoop
from support.judged_runs import MACHINE, judge, measure_folder
from support.packs import write_images

BATCH, STEPS = 8, 40
# Of a DataLoader: each would be wrong advice to somebody who has a Loader.
OF_DATALOADER = {
    "more-workers", "fewer-workers", "persistent-workers", "unpin-workers", "lighter-handover", "pack",
    "run", "faster-decode", "pinned-memory", "move-to-workers", "move-to-cores", "preprocess-once",
}  # fmt: skip
IMAGES = PackImages(
    tried=24, left=0, decode_s=0.004, pillow_s=0.0, stored_s=0.0, others="", is_lossless=True,
    decoded_bytes=1e9, cached_share=0.4,
)  # fmt: skip


def run_loader(
    folder: Path, *, wait: float, busy: dict[str, float], loader: dict[str, Any] | None = None,
    drain: float | None = None, again: float | None = None, cpu: float = 0.0,
    stats: dict[str, float] | None = None, reasons: dict[str, int] | None = None,
    device_bytes: int = 0, around: MachineSummary | None = None, images: PackImages | None = IMAGES,
    forward: float = 4,
) -> tuple[Measured, Diagnosis]:  # fmt: skip
    """Judge a made-up run; milliseconds per batch. `busy`: of each stage, over all threads of the loader."""
    facts = {
        "class": "feedrate.Loader", "dataset": "feedrate pack", "dataset_len": 1000, "threads": 4,
        "threads_given": False, "pack": "/data/pack", "remote": False, "image": "RandomResizedCrop",
    }  # fmt: skip
    loop = FakeLoop(workers=0, batch=BATCH, loader={**facts, **(loader or {})})
    _note(loop, 0, busy, stats or {}, reasons or {})
    for _ in range(STEPS):
        loop.step(wait=wait, forward=forward)
    _note(loop, STEPS, busy, stats or {}, reasons or {})
    for phase, seconds in ((layout.DRAIN, drain), (layout.AGAIN, again)):
        if seconds is not None:
            _drain(loop, phase, seconds, {"cpu_s": 20 * cpu / 1e3, "device_bytes": 20 * device_bytes})
    loop.main.write(folder)
    around = around or MachineSummary(cores=4.0, memory_limit_bytes=1e11)
    measured = measure_folder(folder, around, Tried(images=images))
    return measured, diagnose(
        measured, command=["x"], mode="experiments", exit_code=None, seconds=1.0, machine=MACHINE
    )


def _note(
    loop: FakeLoop, batches: int, busy: dict[str, float], stats: dict[str, float], reasons: dict[str, int]
) -> None:
    """The loader's statistics as the hook notes them; `stats` and `reasons` are counts per batch."""
    loop.main.fact(
        "loader-stats", t_ns=loop.now, loader="loader-0", batches=batches, samples=batches * BATCH,
        stages={name: ms * batches / 1e3 for name, ms in busy.items()}, consumer_waited_s=batches * 1e-2,
        makers_waited_s=0.0, bytes_read=batches * BATCH * 100_000,
        pillow_reasons={name: count * batches for name, count in reasons.items()},
        **{name: count * batches for name, count in stats.items()},
    )  # fmt: skip


def _drain(loop: FakeLoop, phase: int, ms: float, detail: dict[str, Any]) -> None:
    start = loop.now
    for number in range(20):
        loop.main.record(layout.WAIT, "loader-0", loop.now, round(ms * MS), phase=phase, a=BATCH, b=number)
        loop.now += round(ms * MS)
    loop.main.fact("phase", phase=phase, start_ns=start, end_ns=loop.now, batches=20, detail=detail)


def names_of(diagnosis: Diagnosis) -> set[str]:
    return {remedy.name for remedy in diagnosis.remedies}


def test_a_loader_that_is_never_waited_for_is_device_bound(tmp_path: Path) -> None:
    _, diagnosis = run_loader(
        tmp_path, wait=0.1, busy={"read and decode": 8}, drain=4, again=4, cpu=15, forward=40
    )
    assert diagnosis.findings[0].code == "device-bound"
    assert "the loader could give 2,000 samples/s" in " ".join(diagnosis.findings[0].evidence)


def test_waiting_for_decoding_is_named_with_the_loaders_own_remedies(tmp_path: Path) -> None:
    _, diagnosis = run_loader(
        tmp_path, wait=30, busy={"index": 2, "read and decode": 70}, drain=38, again=38, cpu=150
    )
    first = diagnosis.findings[0]
    assert first.code == "decode-bound"
    assert "reading and decoding are 97% of the loader's work (4 threads)" in first.evidence[0]
    assert [remedy.name for remedy in first.remedies] == ["cache-in-memory"]
    assert not names_of(diagnosis) & OF_DATALOADER


def test_threads_are_advised_only_where_fewer_than_cores_were_asked_for(tmp_path: Path) -> None:
    runs = {}
    for given in (True, False):
        folder = tmp_path / str(given)
        folder.mkdir()
        threads = {"threads": 1, "threads_given": given}
        _, runs[given] = run_loader(
            folder, wait=30, busy={"read and decode": 40}, drain=38, again=38, cpu=37, loader=threads
        )
    assert runs[True].findings[0].code == "workers-starved"
    assert runs[True].findings[0].title == "Too few threads"
    assert "decode-bound" in runs[True].findings[0].explains
    (remedy,) = [one for one in runs[True].remedies if one.name == "more-threads"]
    assert remedy.title == "use 4 threads instead of 1"
    assert 2 < remedy.predicted_speedup < 4
    assert "more-threads" not in names_of(runs[False])


def test_a_transform_of_the_users_is_named(tmp_path: Path) -> None:
    """Four threads take turns in Python: a batch takes as long as its Python, on one core."""
    _, diagnosis = run_loader(
        tmp_path, wait=30, busy={"read and decode": 10, "transform": 140}, drain=38, again=38, cpu=45,
        loader={"transform": "__main__.augment"},
    )  # fmt: skip
    first = diagnosis.findings[0]
    assert first.code == "transform-bound"
    assert first.evidence[0].startswith("transform=__main__.augment, and making batches of what it returns")
    assert first.share > 0.5


def test_a_remote_pack_that_comes_too_slowly_is_a_case_for_scratch(tmp_path: Path) -> None:
    _, diagnosis = run_loader(
        tmp_path, wait=30, busy={"fetch": 70, "read and decode": 6}, images=None,
        loader={"remote": True, "pack": "s3://bucket/pack"}, stats={"requests": 3, "bytes_fetched": 800_000},
    )  # fmt: skip
    first = diagnosis.findings[0]
    assert first.code == "storage-bound"
    assert "800 KB a batch come in 3 requests from s3://bucket/pack" in first.evidence
    (remedy,) = first.remedies
    assert (remedy.name, remedy.change) == ("stage", 'Loader(..., scratch="auto")')
    assert remedy.predicted_speedup > 2


def test_a_local_pack_on_a_slow_mount_is_a_case_for_staging(tmp_path: Path) -> None:
    mount = replace(LOCAL, folder="/net/pack", kind="nfs4", is_network=True)
    around = MachineSummary(cores=4.0, data=mount, scratch="/scr", scratch_bytes_per_s=1e9)
    _, diagnosis = run_loader(
        tmp_path, wait=30, busy={"read and decode": 70}, drain=38, again=6, cpu=20, around=around,
        device_bytes=BATCH * 100_000,
    )  # fmt: skip
    first = diagnosis.findings[0]
    assert first.code == "storage-bound"
    assert first.evidence[0] == "a batch takes 38.0 ms, 6.00 ms when its bytes are in memory"
    assert "feedrate stage /net/pack --scratch /scr" in [remedy.command for remedy in first.remedies]


def test_batches_that_merely_came_faster_again_are_no_case_for_storage(tmp_path: Path) -> None:
    """No byte came from a disk, so it was the machine's mood."""
    measured, diagnosis = run_loader(
        tmp_path, wait=30, busy={"read and decode": 70}, drain=38, again=25, cpu=140
    )
    assert measured.samples.cost is not None
    assert measured.samples.cost.total.blocked_s == 0
    assert "storage-bound" not in [finding.code for finding in diagnosis.findings]


def test_images_that_pillow_decodes_are_a_case_for_normalise(tmp_path: Path) -> None:
    images = replace(IMAGES, left=12, pillow_s=0.02, stored_s=0.004, others="progressive", is_lossless=True)
    _, diagnosis = run_loader(
        tmp_path, wait=30, busy={"read and decode": 70}, drain=38, again=38, cpu=150, images=images,
        stats={"by_pillow": BATCH / 2}, reasons={"progressive JPEG": 4},
    )  # fmt: skip
    first = diagnosis.findings[0]
    assert "50% of the images go through Pillow, which is slower (progressive JPEG)" in first.evidence
    (remedy,) = [one for one in diagnosis.remedies if one.name == "normalise"]
    # 12 ms an image become 4: less than three times as fast, since the step's other parts stay.
    assert 1.8 < remedy.predicted_speedup < 3
    assert "no pixel changes" in remedy.note


def test_a_cache_is_no_remedy_where_it_does_not_fit_or_is_there(tmp_path: Path) -> None:
    slow: dict[str, Any] = {"wait": 30, "busy": {"read and decode": 70}, "drain": 38, "again": 38, "cpu": 150}
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    _, fits = run_loader(folders[0], **slow)
    _, large = run_loader(folders[1], **slow, images=replace(IMAGES, decoded_bytes=1e12))
    _, there = run_loader(folders[2], **slow, loader={"cache": "Cache(ram='auto', disk=None)"})
    (good,) = [one for one in fits.remedies if one.name == "cache-in-memory"]
    (useless,) = [one for one in large.remedies if one.name == "cache-in-memory"]
    assert good.predicted_speedup > 1.5
    assert useless.predicted_speedup == 1.0
    assert "1.00 TB decoded do not fit" in useless.note
    assert "cache-in-memory" not in names_of(there)


def test_copies_of_host_batches_to_a_gpu_are_a_case_for_the_device_option(tmp_path: Path) -> None:
    loop = FakeLoop(workers=0, batch=BATCH, loader={"class": "feedrate.Loader", "threads": 4})
    loop.main.fact("module", **{"class": "Net", "device": "cuda:0"})
    for _ in range(STEPS):
        loop.main.record(layout.COPY, "train.py:3", loop.now + MS, 20 * MS, a=10**8, c=1)
        loop.step(wait=1, before=20)
    loop.main.write(tmp_path)
    around = MachineSummary(cores=4.0, gpus=1, gpu_name="GPU", copied_bytes=1e8, copied_element_bytes=1)
    measured = measure_folder(tmp_path, around)
    diagnosis = diagnose(measured, command=["x"], mode="passive", exit_code=0, seconds=1.0, machine=MACHINE)
    (remedy,) = [one for one in diagnosis.remedies if one.name == "batches-on-device"]
    assert remedy.change == 'Loader(..., device="cuda")'
    assert "pinned-memory" not in names_of(diagnosis)


def test_of_another_framework_is_said_what_was_not_seen(tmp_path: Path) -> None:
    _, diagnosis = run_loader(
        tmp_path, wait=0.1, busy={"read and decode": 8}, loader={"framework": "JAX"}, forward=40
    )
    assert diagnosis.verdict.startswith("JAX is the limit, not the loader; data is waited for")
    assert list_setting(diagnosis.run)[0] == "JAX"
    (said,) = [one for one in diagnosis.run.unseen if one.startswith("what JAX does in a step")]
    assert said.endswith("it takes them ahead of their use")


def test_the_settings_of_the_loader_are_facts_of_the_report(tmp_path: Path) -> None:
    measured, diagnosis = run_loader(tmp_path, wait=30, busy={"index": 30, "read and decode": 70})
    facts = {fact.name: fact.value for fact in list_facts(measured, read_machine(tmp_path))}
    assert facts["loader"].startswith("feedrate.Loader, made at")
    assert facts["threads"] == "4, as many as cores"
    assert (facts["cache"], facts["scratch"], facts["batches arrive on"]) == ("none", "none", "the host")
    assert facts["stages of the loader"] == "read and decode 70%, index 30%"
    assert not {"workers", "persistent workers", "pinned memory"} & facts.keys()
    assert diagnosis.run.threads == 4
    assert "4 threads" in list_setting(diagnosis.run)


def test_a_loader_that_is_made_anew_for_each_epoch_counts_from_zero_again(tmp_path: Path) -> None:
    loop = FakeLoop(workers=0, batch=BATCH, loader={"class": "feedrate.Loader", "threads": 4})
    for batches in (2, 10, 3, 10):
        _note(loop, batches, {"read and decode": 5, "index": 5}, {}, {})
        loop.now += MS
    for _ in range(STEPS):
        loop.step(wait=1)
    loop.main.write(tmp_path)
    measured = measure_folder(tmp_path, MachineSummary(cores=4.0))
    assert measured.samples.stages is None  # all notes are from before the steps that count
    loop.main.fact(
        "loader-stats", t_ns=loop.now, loader="loader-0", batches=7, samples=56, stages={"index": 1.4}
    )
    loop.main.write(tmp_path)
    measured = measure_folder(tmp_path, MachineSummary(cores=4.0))
    assert measured.samples.stages is not None
    assert (measured.samples.stages.batches, measured.samples.stages.busy_s) == (
        7,
        {"index": pytest.approx(0.2)},
    )


def judge_dataset(folder: Path, dataset: str) -> Diagnosis:
    """Return what is said of a DataLoader whose workers decode a pack's images, 90 of 100 ms a batch."""
    folder.mkdir()
    loop = FakeLoop(workers=2, loader={"dataset": dataset, "pack": "/data/pack"})
    for _ in range(STEPS):
        loop.step(wait=40)
    loop.fetches(200, 20, cpu=100, parts={"decode:feedrate": (90, 0)}).write(folder)
    loop.main.write(folder)
    return judge(folder, MachineSummary(cores=2.0, data=LOCAL, decoded_bytes=1e6, memory_limit_bytes=1e10))[1]


def test_nobody_is_told_to_pack_what_is_a_pack(tmp_path: Path) -> None:
    diagnosis = judge_dataset(tmp_path / "plain", "feedrate.loader.dataset.Dataset")
    assert diagnosis.findings[0].code == "decode-bound"
    assert diagnosis.findings[0].cause.startswith("feedrate decodes the pack's images")
    assert "cache-in-memory" in names_of(diagnosis)
    assert not {"pack", "run", "faster-decode", "normalise"} & names_of(diagnosis)


def test_nobody_is_told_to_cache_what_is_cached(tmp_path: Path) -> None:
    diagnosis = judge_dataset(tmp_path / "cached", "feedrate.loader.cached.Mapped")
    assert "cache-in-memory" not in names_of(diagnosis)


def test_images_of_a_pack_are_timed_with_a_cache_and_without(tmp_path: Path) -> None:
    pack = write_images(tmp_path / "pack", count=30, side=None)
    images = time_pack_images(str(pack), (8, 8), "RandomResizedCrop")
    assert images is not None
    assert (images.tried, images.left) == (24, 0)
    assert images.decode_s > 0
    assert images.cached_share is not None
    assert images.cached_share > 0
    assert time_pack_images(str(tmp_path), (8, 8), "Resize") is None


def test_a_pack_is_described_by_the_place_of_its_shards(tmp_path: Path) -> None:
    pack = write_images(tmp_path / "pack", shards=3)
    data = describe_pack(str(pack))
    assert data is not None
    assert (data.folder, data.files_seen) == (str(pack), 3)
    assert describe_pack(str(tmp_path / "none")) is None
