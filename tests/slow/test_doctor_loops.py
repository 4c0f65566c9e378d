# SPDX-License-Identifier: Apache-2.0
"""More kinds of loops under the experiments, each in a script of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedrate.doctor.hook.feedrate_hook import layout
from support.doctor_scripts import STEPS, run_script

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ALL = [layout.DRAIN, layout.AGAIN, layout.REPLAY]


def test_gradient_accumulation_counts_batches_as_steps(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        for step, (x, y) in enumerate(make()):
            torch.nn.functional.cross_entropy(model(x), y).backward()
            if step % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            print(step, flush=True)
        """,
    )
    assert run.phases() == ALL
    assert len(run.output.splitlines()) == STEPS


def test_evaluation_alone_is_measured_by_its_batches(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        del optimizer
        with torch.inference_mode():
            for x, y in make():
                model(x)
        """,
    )
    assert run.phases() == ALL
    assert run.of("hook-error") == []


def test_random_augmentation_shows_as_another_batch_of_the_same_samples(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        def collate(samples):
            xs, ys = zip(*samples)
            return torch.stack(xs) + torch.rand(len(xs), 3), torch.tensor(ys)

        for x, y in make(collate_fn=collate):
            train(x, y)
        """,
    )
    assert run.detail(layout.AGAIN)["same"] is False


def test_a_validation_pass_before_the_training_is_not_taken_for_it(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        with torch.no_grad():
            for x, y in make():
                model(x)
        print("validated", flush=True)
        for x, y in make():
            train(x, y)
            print("step", flush=True)
        """,
    )
    assert run.output.splitlines() == ["validated"] + ["step"] * STEPS
    assert run.phases() == ALL


def test_two_loaders_asked_in_turn_are_fed_together(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        for (x, y), (more, _) in zip(make(), make()):
            train(x + more, y)
        """,
    )
    assert run.phases() == ALL
    assert run.of("end")[-1]["error"] is None


def test_what_a_loop_writes_to_a_mapped_file_does_not_reach_it(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        import numpy
        numpy.zeros(100).tofile("out/map.bin")
        predictions = numpy.memmap("out/map.bin", dtype="float64", mode="r+", shape=(100,))
        for step, (x, y) in enumerate(make()):
            train(x, y)
            predictions[step % 100] = step + 1  # not the loss, which may be 0
            predictions.flush()
            assert predictions[step % 100] == step + 1
        """,
    )
    assert run.phases() == ALL
    assert run.of("end")[-1]["error"] is None
    assert run.tree("out") == run.tree("before")


def test_a_loader_made_anew_in_every_short_epoch_is_one_loader(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        def some(count):
            return torch.utils.data.Subset(numbers, range(count))

        numbers = Numbers()
        part = some(32)
        for epoch in range(30):
            for x, y in DataLoader(part, batch_size=4, shuffle=True):
                train(x, y)
                print("step", flush=True)
            with torch.no_grad():
                for x, y in DataLoader(part, batch_size=8):
                    model(x)
        """,
    )
    assert layout.REPLAY in run.phases()
    assert STEPS <= run.output.count("step") <= STEPS + 8


def test_workers_of_a_validation_that_counts_its_batches_are_sent_home(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        batches, check = iter(make(num_workers=1)), make(num_workers=1)
        checked = iter(check)  # never at its end: its workers are there until the run is ended
        with torch.no_grad():
            for _ in range(len(check)):
                model(next(checked)[0])
        for x, y in batches:
            train(x, y)
        """,
    )
    assert run.phases() == ALL
    assert run.leftovers == ()


def test_a_loop_in_a_thread_beside_the_main_one_is_measured(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        import queue, threading
        ready = queue.Queue(maxsize=2)
        def produce():
            for batch in make():
                ready.put(batch)
        threading.Thread(target=produce, daemon=True).start()
        while True:
            train(*ready.get())
        """,
    )
    assert run.phases() == ALL
    assert run.of("end")[-1]["error"] is None


def test_a_dataset_that_fails_in_the_experiments_does_not_bring_the_loop_down(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        class Bad(Numbers):
            fetched = 0
            def __getitem__(self, index):
                if self.fetched > STEPS * BATCH + 60:
                    raise OSError("a damaged file")
                self.fetched += 1
                return super().__getitem__(index)

        for x, y in DataLoader(Bad(), batch_size=BATCH):
            train(x, y)
        """,
    )
    assert run.code == 0
    assert run.errors == ""
    assert run.phases()[-1] == layout.REPLAY
    assert "a damaged file" in run.of("hook-error")[0]["error"]


def test_a_model_that_takes_views_of_its_images_is_told_so(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        class Images(Numbers):
            def __getitem__(self, index):
                return torch.full((3, 12, 12), index / 400), index % 2

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.filters, self.head = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(800, 2)
            def forward(self, x):
                return self.head(self.filters(x).view(len(x), 800))

        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for x, y in DataLoader(Images(), batch_size=BATCH):
            train(x, y)
        """,
    )
    assert run.phases()[-1] == layout.REPLAY
    reasons = {fact["phase"]: fact["why"] for fact in run.of("skipped")}
    assert reasons[layout.REPLAY_CHANNELS_LAST].startswith(
        "the loop was left when it was tried: RuntimeError: view size is not compatible"
    )
