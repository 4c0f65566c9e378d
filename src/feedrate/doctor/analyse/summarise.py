# SPDX-License-Identifier: Apache-2.0
"""A recording summed up: what the processes of a run wrote becomes the numbers of `Measured`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from feedrate.doctor.analyse.machine_summary import Surroundings
from feedrate.doctor.analyse.metrics import KernelTime, LoaderTrial, Measured, PackImages, Timing
from feedrate.doctor.analyse.records import Fact, Process, Recording
from feedrate.doctor.analyse.sample import (
    Drained,
    PackStages,
    SampleCost,
    Views,
    count_idle_workers,
    estimate_sample,
    makers,
    measure_sample,
    measure_views,
    read_stages,
    read_start,
)
from feedrate.doctor.analyse.stacks import count_looks
from feedrate.doctor.analyse.timeline import Loop, batch_seconds, build_loop, user_seconds
from feedrate.doctor.hook.feedrate_hook import layout


def measure(
    recording: Recording,
    around: Surroundings,
    *,
    warmup: int,
    kernel: KernelTime | None,
    images: PackImages | None = None,
    trial: LoaderTrial | None = None,
    kept_s: float | None = None,
) -> Measured | None:
    """Sum up a recording; None when no process made enough steps."""
    loops = {
        process.rank: loop for process in recording.mains if (loop := build_loop(process, warmup)) is not None
    }
    if not loops:
        return None
    rank = min(loops)
    main = next(process for process in recording.mains if process.rank == rank)
    loop = loops[rank]
    made_by = makers(recording, main, loop.loaders)
    workers = [p for p in made_by if p is not main]
    loader = _facts_of_loader(main, "loader", loop.loader)
    window = (loop.start_ns, loop.end_ns)
    batch = _facts_of_loader(main, "batch", loop.loader)
    beside = _cpu_beside(workers)
    received = _receive_cpu(main, loop)
    views = measure_views(workers)
    feeder = _pickling_s(batch, views, received, beside)
    feeding = len(loop.loaders)  # a step takes a batch of each
    stages = read_stages(main.facts_of("loader-stats"), loop.loader, loop.start_ns)
    return Measured(
        loop=loop,
        loops=loops,
        loader=loader,
        is_loader_made_anew=any(fact.get("loader") == loop.loader for fact in main.facts_of("loader-anew")),
        batch=batch,
        torch=main.last("torch"),
        module=main.last("module"),
        worker_facts=[fact for p in workers for fact in p.facts_of("worker")],
        sample=_measure_sample(main, made_by, window, stages, loader, around),
        sample_again=measure_sample(recording.processes, layout.AGAIN),
        device=_device_timing(main, layout.REPLAY),
        drain=Timing.of(batch_seconds(main, layout.DRAIN, skip=1)),
        again=Timing.of(batch_seconds(main, layout.AGAIN, skip=2 * int(loader.get("num_workers") or 0))),
        trials=_trials(main, int(loader.get("num_workers") or 0), around),
        half_precision=_phase_timing(main, layout.REPLAY_HALF_PRECISION),
        half_precision_type=_detail_of(main, layout.REPLAY_HALF_PRECISION).get("dtype") or "bfloat16",
        half_batch=_device_timing(main, layout.REPLAY_HALF_BATCH),
        channels_last=_channels_last_timing(main),
        as_loaded=_device_timing(main, layout.REPLAY_LOADER_LAYOUT),
        is_repeatable=_is_repeatable(main),
        looks_fetch=count_looks(made_by, in_fetch=True),
        looks_main=count_looks([main], in_fetch=False),
        looks_loop=count_looks(
            [main], in_fetch=False, in_model=False, timed=loop.timed,
            asked_at=str(batch.get("asked_at") or ""),
        ),
        around=around,
        kernel=kernel,
        phases=main.facts_of("phase"),
        skipped=main.facts_of("skipped"),
        no_room=main.last("no-room"),
        blocked=main.facts_of("blocked"),
        end=main.last("end"),
        copy_rates=main.last("copy-rates"),
        receive_cpu_s=received * feeding,
        feeder_cpu_s=feeder * feeding,
        helpers_cpu_s=(beside - feeder) * feeding,
        computing_queue_share=_computing_queue_share(main),
        autocast=main.last("autocast"),
        experiment_waits={phase: _experiment_waits(main, phase) for phase in range(1, len(layout.PHASES))},
        before_forward_s=_usual_device_s(main, "a"),
        forward_device_s=_usual_device_s(main, "c"),
        computing_device_s=max(_usual_device_s(main, "wall") - _usual_device_s(main, "a"), 0.0),
        stages=stages,
        images=images,
        idle=count_idle_workers(recording, main, loop.loaders, loop.end_ns),
        views=views,
        start=read_start(main),
        trial=trial,
        kept_s=kept_s,
        pipeline_fact=_facts_of_loader(main, "pipeline", loop.loader),
        pillow_calls=[
            fact for process in made_by for fact in process.facts_of("calls")
            if fact.get("loader") in (None, loop.loader)
        ],
    )  # fmt: skip


def _measure_sample(
    main: Process,
    made_by: Sequence[Process],
    window: tuple[int, int],
    stages: PackStages | None,
    loader: Fact,
    around: Surroundings,
) -> SampleCost | None:
    if stages is not None:
        return _pack_sample(main, stages, loader, around)
    # Fetches in this process would be those of another loader.
    return None if loader.get("opaque") else measure_sample(made_by, window=window)


def _pack_sample(main: Process, stages: PackStages, loader: Fact, around: Surroundings) -> SampleCost:
    drain, again = (Timing.of(batch_seconds(main, phase, skip=1)) for phase in (layout.DRAIN, layout.AGAIN))
    fact = next((f for f in main.facts_of("phase") if f.get("phase") == layout.DRAIN), {})
    detail, batches = _detail_of(main, layout.DRAIN), int(fact.get("batches") or 0)
    drained = None
    if drain is not None and batches and detail.get("cpu_s"):
        drained = Drained(
            seconds=drain.seconds,
            again_s=drain.seconds if again is None else again.seconds,
            cpu_s=detail["cpu_s"] / batches,
            device_bytes=(detail.get("device_bytes") or 0) / batches,
        )
    free = max(around.cores - around.cores_others, 0.5)
    return estimate_sample(stages, loader, drained, cores=around.cores, free=free)


def _device_timing(main: Process, phase: int) -> Timing | None:
    """Return the user's loop on batches in memory; on a GPU launches say nothing, the phase's ends do."""
    return _phase_timing(main, phase) if _on_gpu(main) else Timing.of(user_seconds(main, phase))


def _channels_last_timing(main: Process) -> Timing | None:
    """Return the replay's timing, changed as steps in that layout differ from those between them.

    On the CPU by what was computed, without the company that the steps had.
    """
    detail, replay = _detail_of(main, layout.REPLAY_CHANNELS_LAST), _device_timing(main, layout.REPLAY)
    kind = "s" if _on_gpu(main) or not detail.get("plain_cpu_s") else "cpu_s"
    last, plain = detail.get(f"last_{kind}"), detail.get(f"plain_{kind}")
    if not last or not plain or replay is None:
        return None
    ratio = last / plain
    return Timing(replay.seconds * ratio, replay.low * ratio, replay.high * ratio, replay.batches)


def _is_repeatable(main: Process) -> bool | None:
    same = _detail_of(main, layout.AGAIN).get("same")
    return None if same is None else bool(same)


def _detail_of(main: Process, phase: int) -> Fact:
    """Return what the hook noted of an experiment besides its times."""
    details = (fact.get("detail") for fact in main.facts_of("phase") if fact.get("phase") == phase)
    return next((detail for detail in details if isinstance(detail, dict)), {})


def _on_gpu(main: Process) -> bool:
    return str(main.last("module").get("device", "cpu")).startswith("cuda")


def _facts_of_loader(main: Process, kind: str, loader: str) -> Fact:
    """Return the first: experiments make further loaders of it, and batches of other sizes."""
    return next((fact for fact in main.facts_of(kind) if fact.get("loader") == loader), {})


def _phase_timing(main: Process, phase: int) -> Timing | None:
    """Return a phase's seconds per batch by its own ends: the device was synchronised there."""
    for fact in main.facts_of("phase"):
        if fact.get("phase") == phase and (fact.get("batches") or 0) >= 2:
            seconds = (fact["end_ns"] - fact["start_ns"]) * 1e-9 / fact["batches"]
            return Timing(seconds, seconds * 0.97, seconds * 1.03, int(fact["batches"]))
    return None


def _trials(main: Process, own: int, around: Surroundings) -> dict[int, Timing]:
    """Return the trials; on a busy machine none, unless the run as it is was measured among them."""
    trials: dict[int, Timing] = {}
    for fact in main.facts_of("phase"):
        if fact.get("phase") != layout.TRIAL or (fact.get("batches") or 0) < 4:
            continue
        seconds = (fact["end_ns"] - fact["start_ns"]) * 1e-9 / fact["batches"]
        trials[int(fact["detail"]["workers"])] = Timing(
            seconds, seconds * 0.95, seconds * 1.05, int(fact["batches"])
        )
    return trials if own in trials or not around.is_busy else {}


def _receive_cpu(main: Process, loop: Loop) -> float:
    waits = main.of(layout.WAIT, phase=layout.REAL)
    is_probed = waits["c"] & layout.PROBED > 0
    waits = waits[is_probed & (waits["start"] >= loop.start_ns) & (waits["a"] > 0) & (waits["b"] > 0)]
    return float(waits["cpu"].mean()) * 1e-9 if len(waits) else 0.0


def _pickling_s(batch: Fact, views: Views | None, receive_cpu_s: float, beside_s: float) -> float:
    """Return what handing a batch to its pipe takes of the CPU time beside the worker's own thread.

    Tensors are moved to shared memory, at half a gigabyte a second even on a slow machine; other objects take
    about as long to pickle as to read back. Where more was spent, other threads (BLAS, OpenMP) helped with
    the samples, and the handing over took what it usually takes.
    """
    size = sum(float(tensor.get("bytes") or 0) for tensor in batch.get("tensors") or ())
    size = max(size, views.copied_bytes) if views is not None else size
    longest_s = 0.002 + size / 5e8 + 3 * receive_cpu_s
    usual_s = 0.0003 + size / 1e9 + receive_cpu_s
    return beside_s if beside_s <= longest_s else usual_s


def _cpu_beside(workers: Sequence[Process]) -> float:
    spent = [int(record["a"]) for p in workers for record in p.of(layout.HANDOVER, phase=layout.REAL)]
    return sum(spent) * 1e-9 / len(spent) if spent else 0.0


def _computing_queue_share(main: Process) -> float:
    records = main.of(layout.FORWARD, layout.BACKWARD, layout.OPTIMIZER, phase=layout.REAL)
    wall = float(records["wall"].sum())
    return float(records["queue"].sum()) / wall if wall else 0.0


def _experiment_waits(main: Process, phase: int) -> list[tuple[int, int, int]]:
    waits = main.of(layout.WAIT, phase=phase)
    starts = [int(start) for start in waits["start"]]
    walls = [int(wall) for wall in waits["wall"]]
    ends = [*starts[1:], starts[-1] + walls[-1]] if starts else []
    return list(zip(starts, walls, ends, strict=True))


def _usual_device_s(main: Process, column: str) -> float:
    """Return the median: the first steps load the device's libraries."""
    records = main.of(layout.DEVICE, phase=layout.REAL)
    return median(records[column].tolist()) * 1e-9 if len(records) else 0.0
