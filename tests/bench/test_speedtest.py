# SPDX-License-Identifier: Apache-2.0
"""`speedtest`: a tiny model trained for real with both loaders, and the verdict from made-up figures."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from feedrate import PackOptions, pack
from feedrate.bench.results import SpeedtestResult
from feedrate.errors import UsageError
from feedrate.progress import Tick
from support.bench_results import MODEL_RATE, SPEED_AFTER, SPEED_BEFORE, SUBSET
from support.images import save_image

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedrate.bench import speedtest, turns  # noqa: E402
from feedrate.bench.loader import FILES, PACK  # noqa: E402
from feedrate.bench.speedtest import (  # noqa: E402
    Choice,
    Facts,
    SpeedOptions,
    choose_device,
    describe_load,
    judge,
    run_speedtest,
)
from feedrate.bench.turns import Budget, Timed  # noqa: E402

# Forks of a process that has threads, as DataLoader makes them: not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")
CPU, GPU = Choice(torch.device("cpu")), Choice(torch.device("cuda"))


def make_small(name: str, side: int = 64) -> Any:  # noqa: ARG001 - as make_model takes them
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 1000))


@pytest.fixture(scope="module")
def files_and_pack(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("speed")
    for number in range(3):  # fewer than a batch
        save_image(folder / "files" / ("cat", "dog")[number % 2] / f"{number}.jpg", number)
    pack(folder / "files", folder / "pack", PackOptions())
    return str(folder / "files"), str(folder / "pack")


@pytest.fixture(scope="module")
def ticks() -> list[Tick]:
    return []


@pytest.fixture(scope="module")
def result(files_and_pack: tuple[str, str], ticks: list[Tick]) -> SpeedtestResult:
    options = SpeedOptions("resnet18", batch_size=4, side=32, seconds=15.0, device="cpu", workers=1)
    started = time.perf_counter() - 15.0  # all the time is used up, so that each turn is as short as can be
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "LEAST_TURN", 0.01)
        return run_speedtest(
            *files_and_pack,
            SUBSET,
            options,
            source="photos",
            started=started,
            watch=ticks.append,
            make=make_small,
        )


def test_the_loaders_train_in_turn(result: SpeedtestResult) -> None:
    assert [run.contestant for run in result.runs] == ["DataLoader + Pillow", "feedrate"] * 2
    assert [run.round for run in result.runs] == [0, 0, 1, 1]


def test_a_dataset_smaller_than_a_batch_still_gives_whole_batches(result: SpeedtestResult) -> None:
    assert all(run.images == 4 * run.steps and run.steps >= 2 for run in result.runs)


def test_what_a_step_is_made_of_adds_up(result: SpeedtestResult) -> None:
    for run in result.runs:
        assert run.wait_s + run.copy_s + run.compute_s == pytest.approx(run.seconds)
    for one in (result.before, result.after):
        assert one.wait_share + one.copy_share + one.compute_share == pytest.approx(1)


def test_each_part_is_measured_alone_too(result: SpeedtestResult) -> None:
    assert result.device_alone.images_per_s > 0
    assert min(result.before.alone_images_per_s, result.after.alone_images_per_s) > 0
    assert {"device", "loader"} <= set(result.before.limits_images_per_s)


def test_stages_of_loading_are_shares_of_its_time(result: SpeedtestResult) -> None:
    assert list(result.before.loading) == ["read", "decode", "crop, resize, flip"]
    assert sum(result.before.loading.values()) == pytest.approx(1)
    assert "read and decode" in result.after.loading


def test_a_cpu_has_no_power_to_tell_and_no_copy(result: SpeedtestResult) -> None:
    assert (result.before.utilisation, result.before.power_w, result.copy_s) == (None, None, 0.0)


@pytest.mark.usefixtures("result")
def test_progress_names_what_is_done_and_counts_seconds(ticks: list[Tick]) -> None:
    stages = list(dict.fromkeys(tick.stage for tick in ticks))
    assert stages[0] == "measuring the device alone"
    assert stages[-1] == "training with feedrate, round 2 of 2"
    assert {tick.total for tick in ticks} == {15}
    assert all(tick.done <= tick.total for tick in ticks)


def choose_sizes(monkeypatch: pytest.MonkeyPatch, images_per_s: float, **options: Any) -> tuple[int, int]:
    """Choose for a CPU that takes so many images of 64 x 64 pixels, with 100 s left."""
    rate = replace(MODEL_RATE, images_per_s=images_per_s, batch_size=8)
    monkeypatch.setattr(speedtest, "measure_model", lambda *_, **__: rate)
    budget = Budget(0.0, 100.0, lambda _: None, lambda: 0.0)
    return speedtest._choose_sizes(SpeedOptions(seconds=100, **options), CPU.device, budget, make_small)


@pytest.mark.parametrize(
    ("images_per_s", "sizes"), [(1000, (8, 224)), (20, (8, 128)), (4, (8, 64)), (0.2, (1, 64))]
)
def test_the_slower_the_cpu_the_smaller_the_images(
    images_per_s: float, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_sizes(monkeypatch, images_per_s) == sizes


def test_what_was_asked_for_is_taken_where_the_time_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_sizes(monkeypatch, 1000, batch_size=32, side=128) == (32, 128)


def test_a_batch_size_that_the_time_does_not_allow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="a step with 5,000 images of 64 x 64") as caught:
        choose_sizes(monkeypatch, 60, batch_size=5000)
    assert caught.value.hint == "--batch-size 500"


def test_a_gpu_gets_large_batches_of_whole_images() -> None:
    budget = Budget(0.0, 100.0, lambda _: None, lambda: 0.0)
    assert speedtest._choose_sizes(SpeedOptions(), GPU.device, budget, make_small) == (128, 224)


def test_a_batch_that_does_not_fit_into_memory_is_refused_with_one_that_does(
    files_and_pack: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speedtest, "measure_model", lambda *_, **__: replace(MODEL_RATE, batch_size=64))
    options = SpeedOptions("resnet18", batch_size=100, side=32, device="cpu")
    with pytest.raises(UsageError, match="a batch of 100 images of 32 x 32 pixels does not fit") as caught:
        run_speedtest(
            *files_and_pack, SUBSET, options,
            source=None, started=time.perf_counter(), watch=lambda _: None, make=make_small,
        )  # fmt: skip
    assert caught.value.hint == "64 do: --batch-size 64"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seconds": 3.0}, "--seconds must be at least 15, got 3"),
        ({"device": "gpu"}, "--device must be cpu, cuda or cuda:N, got 'gpu'"),
        ({"model": "resnet51"}, "there is no model 'resnet51'"),
        ({"model": "vit_b_16", "side": 100}, "multiple of 16"),
    ],
)
def test_options_that_make_no_sense_are_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        SpeedOptions(**options)


def test_a_machine_that_others_keep_busy_is_named() -> None:
    assert describe_load(6.9, 2).startswith("the load was 6.9 on 2 cores when this began: other processes")
    assert describe_load(1.0, 2) == ""


class FakeGpu:
    name = "Fast GPU"


@pytest.fixture
def cpu_build(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(speedtest, "describe_gpus", lambda: (FakeGpu(),))
    return monkeypatch


@pytest.mark.usefixtures("cpu_build")
def test_a_gpu_beside_a_torch_for_the_cpu_is_said_with_the_line_to_install() -> None:
    choice = choose_device(None)
    assert choice.device.type == "cpu"
    assert choice.unused.startswith("Fast GPU is here, but not used: torch ")
    assert choice.unused.endswith("is a build for the CPU; to mend it: pip install --force-reinstall torch")


@pytest.mark.usefixtures("cpu_build")
def test_cuda_asked_of_a_torch_for_the_cpu_is_refused_with_the_line_to_install() -> None:
    with pytest.raises(UsageError, match="--device cuda: Fast GPU is here, but torch") as caught:
        choose_device("cuda")
    assert caught.value.hint == "pip install --force-reinstall torch"


def test_cuda_asked_for_where_there_is_none_is_refused(cpu_build: pytest.MonkeyPatch) -> None:
    cpu_build.setattr(speedtest, "describe_gpus", lambda: ())
    with pytest.raises(UsageError, match="NVML sees no GPU here"):
        choose_device("cuda:1")
    assert choose_device(None) == Choice(torch.device("cpu"))


def make_facts(**changes: Any) -> Facts:
    """A device that takes 1,000 images/s in batches of 100, a step in 0.1 s; two workers on two cores."""
    rate = replace(MODEL_RATE, images_per_s=1000.0, batch_size=100, cpu_s_per_image=0.0001)
    return Facts(SUBSET, rate, 0.01, 2, 2.0)._replace(**changes)


def time_alone(images_per_s: float, cpu_s_per_image: float) -> Timed:
    return Timed(10, 1000, 1000 * cpu_s_per_image, 0.0, 1000 / images_per_s)


def find_limit(facts: Facts, alone: Timed, kind: str = FILES, device: str = "cuda") -> str:
    return facts.name_limit(facts.make_pipeline(alone, kind), device)


def test_a_loader_slower_than_the_device_makes_the_cpu_the_limit() -> None:
    assert find_limit(make_facts(), time_alone(300, 2 / 300)) == "cpu"


def test_a_loader_faster_than_the_device_makes_the_device_the_limit() -> None:
    assert find_limit(make_facts(), time_alone(3000, 0.0005)) == "device"


def test_files_that_come_slowly_make_the_disk_the_limit_of_the_loader_that_reads_them() -> None:
    slow = make_facts(subset=replace(SUBSET, read_images_per_s=100.0))
    assert find_limit(slow, time_alone(3000, 0.0005)) == "disk"
    assert find_limit(slow, time_alone(3000, 0.0005), PACK) == "device"


def test_a_copy_longer_than_the_step_is_the_limit() -> None:
    assert find_limit(make_facts(copy_s=0.3), time_alone(3000, 0.0005)) == "copy"


def test_cores_that_are_busy_with_training_are_the_device() -> None:
    rate = replace(MODEL_RATE, images_per_s=10.0, batch_size=8, cpu_s_per_image=0.2)
    assert find_limit(make_facts(device=rate, copy_s=0.0), time_alone(300, 2 / 300), device="cpu") == "device"


def say(
    limit: str = "cpu", then: str = "device", ratio: float = 4.0, choice: Choice = GPU, **options: Any
) -> str:
    before, source = replace(SPEED_BEFORE, limit=limit), options.pop("source", "photos")
    after = replace(before if ratio == 1.0 else SPEED_AFTER, contestant="feedrate", limit=then)
    return " | ".join(judge(before, after, ratio, make_facts(**options), choice, source))


def test_a_gain_says_what_was_the_limit_and_what_is_then() -> None:
    assert say() == (
        "With DataLoader + Pillow the CPU is the limit, and the GPU waits 80% of the time; feedrate trains "
        "4.00x the images per second, and then the GPU is the limit. | Pack the dataset once, and load it "
        "with feedrate.Loader: | feedrate pack photos PACK"
    )


def test_a_busy_gpu_needs_no_faster_loader() -> None:
    assert say("device", ratio=1.0) == (
        "The GPU is the limit: with DataLoader + Pillow it computes 19% of the time; feedrate trains as many "
        "images per second, within noise. | To see what your own script does with its time: | "
        "feedrate doctor -- python train.py"
    )


def test_on_a_cpu_the_advice_is_a_gpu() -> None:
    words = say("device", ratio=1.0, choice=CPU)
    assert words.startswith("The CPU, on which the model trains, is the limit: ")
    assert words.endswith(
        "Train on a machine with a GPU, and run this again there: | feedrate speedtest photos"
    )


def test_a_gpu_that_torch_cannot_use_is_the_advice() -> None:
    words = say("device", ratio=1.0, choice=CPU._replace(install="pip install torch"))
    assert words.endswith("Let torch use the GPU that is here: | pip install torch")


def test_a_slow_disk_is_named_with_its_rate() -> None:
    words = say("disk", subset=replace(SUBSET, read_images_per_s=120.0), source="my photos")
    assert words.startswith("The disk is the limit: it gives 120 images/s of files as they were found")
    assert words.endswith("feedrate plan 'my photos'")


def test_too_few_workers_are_the_advice_before_more_cores() -> None:
    assert say(ratio=1.0, workers=1).endswith("feedrate speedtest photos --workers 2")
    assert "Ask for more cores (5 would do)" in say(ratio=1.0)


def test_a_pack_is_not_packed_again(files_and_pack: tuple[str, str]) -> None:
    assert say(source=files_and_pack[1]).endswith("feedrate doctor -- python train.py")


def test_runs_that_overlap_are_no_gain() -> None:
    wide = replace(SPEED_BEFORE, high_images_per_s=5000.0, limit="cpu")
    verdict, *_ = judge(wide, SPEED_AFTER, 4.0, make_facts(), GPU, None)
    assert verdict == "The CPU is the limit with both loaders: the GPU waits 80% of the time."
