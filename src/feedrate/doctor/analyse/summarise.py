# SPDX-License-Identifier: Apache-2.0
"""A recording summed up: what the processes of a run wrote becomes the numbers of `Measured`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from feedrate.doctor.analyse import sample
from feedrate.doctor.analyse.data_folders import LoaderFacts
from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.analyse.metrics import (
    Experiments,
    Measured,
    Samples,
    Timing,
    TrainingProcess,
    Tried,
    UsedLoader,
)
from feedrate.doctor.analyse.records import Fact, Process, Recording
from feedrate.doctor.analyse.stacks import count_looks
from feedrate.doctor.analyse.timeline import Loop, batch_seconds, user_seconds
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.units import format_seconds

_ANOTHER_MACHINE = 2.0  # times as slow, the run as it is: what is tried then says nothing of the real steps


def measure(
    recording: Recording, loops: Mapping[int, Loop], machine: MachineSummary, tried: Tried | None = None
) -> Measured:
    """Sum up a recording with the loops of its ranks."""
    main, loop = recording.main_of(min(loops)), loops[min(loops)]
    made_by = sample.makers(recording, main, loop.loaders)
    loader = _read_loader(recording, main, loop, made_by)
    samples = _measure_samples(recording, main, loop, made_by, loader, machine)
    experiments = _read_experiments(main, loader, machine)
    return Measured(
        loop=loop,
        loops=loops,
        loader=loader,
        samples=samples,
        training=_measure_training(main, loop, loader),
        experiments=_drop_disturbed(experiments, loop, loader, samples),
        machine=machine,
        tried=tried or Tried(),
    )


def _read_loader(recording: Recording, main: Process, loop: Loop, made_by: Sequence[Process]) -> UsedLoader:
    workers = [process for process in made_by if process is not main]
    return UsedLoader(
        **vars(LoaderFacts.of(main, loop.loader, made_by)),
        is_made_anew=any(fact.get("loader") == loop.loader for fact in main.facts_of("loader-anew")),
        worker_facts=[fact for process in workers for fact in process.facts_of("worker")],
        idle=sample.count_idle_workers(recording, main, loop.loaders, loop.end_ns),
        views=sample.measure_views(workers),
    )


def _measure_samples(
    recording: Recording, main: Process, loop: Loop, made_by: Sequence[Process], loader: UsedLoader,
    machine: MachineSummary,
) -> Samples:  # fmt: skip
    stages = sample.read_stages(main.facts_of("loader-stats"), loop.loader, loop.start_ns)
    if stages is not None:
        cost = _pack_sample(main, stages, loader.fact, machine)
    else:
        cost = sample.measure_sample(made_by, window=(loop.start_ns, loop.end_ns))
    waits = main.of(layout.WAIT, phase=layout.REAL)
    waits = waits[(waits["c"] & layout.PROBED > 0) & (waits["start"] >= loop.start_ns)]
    received = waits["cpu"][(waits["a"] > 0) & (waits["b"] > 0)]
    receive_s = float(received.mean()) * 1e-9 if len(received) else 0.0
    workers = [process for process in made_by if process is not main]
    spent = [int(r["a"]) for worker in workers for r in worker.of(layout.HANDOVER, phase=layout.REAL)]
    beside_s = sum(spent) * 1e-9 / len(spent) if spent else 0.0
    feeder_s = _pickling_s(loader, receive_s, beside_s)
    feeding = len(loop.loaders)  # a step takes a batch of each
    return Samples(
        per_batch=loop.samples_per_step,
        cost=cost,
        again=sample.measure_sample(recording.processes, layout.AGAIN),
        stages=stages,
        looks=count_looks(made_by, in_fetch=True),
        receive_cpu_s=receive_s * feeding,
        feeder_cpu_s=feeder_s * feeding,
        helpers_cpu_s=(beside_s - feeder_s) * feeding,
        start=sample.read_start(main),
        chunked=sample.find_chunked(made_by),
    )


def _measure_training(main: Process, loop: Loop, loader: UsedLoader) -> TrainingProcess:
    asked_at = str(loader.batch.get("asked_at") or "")
    computing = main.of(layout.FORWARD, layout.BACKWARD, layout.OPTIMIZER, phase=layout.REAL)
    wall = float(computing["wall"].sum())
    before_forward_s = _usual_device_s(main, "a")
    return TrainingProcess(
        module=main.last("module"),
        torch=main.last("torch"),
        autocast=main.last("autocast"),
        copy_rates=main.last("copy-rates"),
        end=main.last("end"),
        looks=count_looks([main], in_fetch=False),
        looks_loop=count_looks([main], in_fetch=False, in_model=False, timed=loop.timed, asked_at=asked_at),
        queue_share=float(computing["queue"].sum()) / wall if wall else 0.0,
        before_forward_s=before_forward_s,
        forward_s=_usual_device_s(main, "c"),
        computing_s=max(_usual_device_s(main, "wall") - before_forward_s, 0.0),
    )


def _read_experiments(main: Process, loader: UsedLoader, machine: MachineSummary) -> Experiments:
    same, timed = _detail_of(main, layout.AGAIN).get("same"), _timings(main, layout.TRIAL, 4, 0.05)
    trials = {int(fact["detail"]["workers"]): timing for fact, timing in timed}
    return Experiments(
        device=_device_timing(main, layout.REPLAY),
        as_loaded=_device_timing(main, layout.REPLAY_LOADER_LAYOUT),
        drain=Timing.of(batch_seconds(main, layout.DRAIN, skip=1)),
        again=Timing.of(batch_seconds(main, layout.AGAIN, skip=2 * loader.workers)),
        # On a busy machine none counts, unless the run as it is was measured among them.
        trials=trials if loader.workers in trials or not machine.is_busy else {},
        half_precision=_phase_timing(main, layout.REPLAY_HALF_PRECISION),
        half_precision_type=_detail_of(main, layout.REPLAY_HALF_PRECISION).get("dtype") or "bfloat16",
        channels_last=_channels_last_timing(main),
        is_repeatable=None if same is None else bool(same),
        phases=main.facts_of("phase"),
        skipped=main.facts_of("skipped"),
        blocked=main.facts_of("blocked"),
        no_room=main.last("no-room"),
        waits={phase: _experiment_waits(main, phase) for phase in range(1, len(layout.PHASES))},
    )


def _drop_disturbed(
    experiments: Experiments, loop: Loop, loader: UsedLoader, samples: Samples
) -> Experiments:
    """Drop the trials of a machine that was another one during them than in the real steps.

    Where samples wait for storage, files that have come into memory since make the same difference.
    """
    again, cost = experiments.trials.get(loader.workers), samples.cost.total
    if again is None or cost.blocked_s > 0.1 * cost.wall_s:
        return experiments
    if max(loop.own_s / again.seconds, again.seconds / max(loop.own_s, 1e-9)) < _ANOTHER_MACHINE:
        return experiments
    why = (
        f"none counts: a step took {format_seconds(loop.own_s)}, and {format_seconds(again.seconds)} once "
        "more with as many workers: something else used the machine"
    )
    skipped = [{"phase": layout.TRIAL, "why": why, "is_dropped": True}, *experiments.skipped]
    # The run once more still says how fast the machine was while the other experiments were made.
    return replace(experiments, trials={loader.workers: again}, skipped=skipped)


def _pack_sample(
    main: Process, stages: sample.PackStages, loader: Fact, machine: MachineSummary
) -> sample.SampleCost:
    drain, again = (Timing.of(batch_seconds(main, phase, skip=1)) for phase in (layout.DRAIN, layout.AGAIN))
    fact = next(iter(_phases(main, layout.DRAIN)), {})
    detail, batches = _detail_of(main, layout.DRAIN), int(fact.get("batches") or 0)
    drained = None
    if drain is not None and batches and detail.get("cpu_s"):
        drained = sample.Drained(
            seconds=drain.seconds,
            again_s=drain.seconds if again is None else again.seconds,
            cpu_s=detail["cpu_s"] / batches,
            device_bytes=(detail.get("device_bytes") or 0) / batches,
        )
    free = max(machine.cores - machine.cores_others, 0.5)
    return sample.estimate_sample(stages, loader, drained, cores=machine.cores, free=free)


def _device_timing(main: Process, phase: int) -> Timing | None:
    """Return the user's loop on batches in memory; on a GPU launches say nothing, the phase's ends do."""
    return _phase_timing(main, phase) if main.is_on_gpu else Timing.of(user_seconds(main, phase))


def _channels_last_timing(main: Process) -> Timing | None:
    """Return the replay's timing, changed as steps in that layout differ from those between them.

    On the CPU by what was computed, without the company that the steps had.
    """
    detail, replay = _detail_of(main, layout.REPLAY_CHANNELS_LAST), _device_timing(main, layout.REPLAY)
    kind = "s" if main.is_on_gpu or not detail.get("plain_cpu_s") else "cpu_s"
    last, plain = detail.get(f"last_{kind}"), detail.get(f"plain_{kind}")
    if not last or not plain or replay is None:
        return None
    ratio = last / plain
    return Timing(replay.seconds * ratio, replay.low * ratio, replay.high * ratio, replay.batches)


def _phases(main: Process, phase: int) -> list[Fact]:
    return [fact for fact in main.facts_of("phase") if fact.get("phase") == phase]


def _detail_of(main: Process, phase: int) -> Fact:
    """Return what the hook noted of an experiment besides its times."""
    details = (fact.get("detail") for fact in _phases(main, phase))
    return next((detail for detail in details if isinstance(detail, dict)), {})


def _timings(main: Process, phase: int, least: int, spread: float) -> Iterator[tuple[Fact, Timing]]:
    """Yield a phase's seconds per batch by its own ends: the device was synchronised there."""
    for fact in _phases(main, phase):
        if (batches := int(fact.get("batches") or 0)) >= least:
            seconds = (fact["end_ns"] - fact["start_ns"]) * 1e-9 / batches
            yield fact, Timing(seconds, seconds * (1 - spread), seconds * (1 + spread), batches)


def _phase_timing(main: Process, phase: int) -> Timing | None:
    return next((timing for _, timing in _timings(main, phase, 2, 0.03)), None)


def _pickling_s(loader: UsedLoader, receive_cpu_s: float, beside_s: float) -> float:
    """Return what handing a batch to its pipe takes of the CPU time beside the worker's own thread.

    Tensors are moved to shared memory, at half a gigabyte a second even on a slow machine; other objects take
    about as long to pickle as to read back. Where more was spent, other threads (BLAS, OpenMP) helped with
    the samples, and the handing over took what it usually takes.
    """
    size = loader.handed_bytes
    is_all = beside_s <= 0.002 + size / 5e8 + 3 * receive_cpu_s
    return beside_s if is_all else 0.0003 + size / 1e9 + receive_cpu_s


def _experiment_waits(main: Process, phase: int) -> list[tuple[int, int, int]]:
    waits = [(int(wait["start"]), int(wait["wall"])) for wait in main.of(layout.WAIT, phase=phase)]
    ends = [*(start for start, _ in waits[1:]), *(start + wall for start, wall in waits[-1:])]
    return [(start, wall, end) for (start, wall), end in zip(waits, ends, strict=True)]


def _usual_device_s(main: Process, column: str) -> float:
    """Return the median: the first steps load the device's libraries."""
    records = main.of(layout.DEVICE, phase=layout.REAL)
    return median(records[column].tolist()) * 1e-9 if len(records) else 0.0
