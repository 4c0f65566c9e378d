# SPDX-License-Identifier: Apache-2.0
"""The experiments in real scripts: what they measure, what the loop may do meanwhile, how the run ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedrate.doctor.hook.feedrate_hook import layout
from support.doctor_scripts import STEPS, run_script

pytest.importorskip("torch")

ALL = [layout.DRAIN, layout.AGAIN, layout.REPLAY]


def test_a_loop_with_workers_is_drained_replayed_and_tried_with_other_numbers_around_its_own(
    tmp_path: Path,
) -> None:
    run = run_script(
        tmp_path,
        """
        for x, y in make(num_workers=2):
            train(x, y)
            print("step", flush=True)
        print("after the loop")
        """,
        # Workers have half a second, on a busy machine too, for the batches that are discarded.
        settings={"try_workers": [2, 1, 3], "experiment_seconds": 0.5},
    )
    assert run.code == 0
    assert run.output.splitlines() == ["step"] * STEPS
    assert run.errors == ""
    assert run.phases() == [*ALL, *[layout.TRIAL] * 3]
    trials = [fact["detail"] for fact in run.of("phase") if fact["phase"] == layout.TRIAL]
    assert [trial["workers"] for trial in trials] == [1, 2, 3]
    assert run.detail(layout.DRAIN)["discarded"] == 4
    assert run.detail(layout.AGAIN)["same"] is True
    assert run.of("end")[-1]["how"] == "experiments"
    assert run.of("hook-error") == []
    assert run.leftovers == ()


def test_a_batch_may_be_popped_from_and_changed_in_place(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        def collate(samples):
            xs, ys = zip(*samples)
            return {"x": torch.stack(xs), "rest": [torch.tensor(ys), ["name"] * len(ys)]}

        sums = set()
        for step, batch in enumerate(make(collate_fn=collate)):
            x = batch.pop("x")
            y, names = batch.pop("rest")
            assert not batch and len(names) == len(y) == len(x)
            if step >= STEPS:
                assert x.requires_grad is False and x.max() < 400
            x.add_(1000)
            x.requires_grad_()
            train(x, y)
            names.clear()
        """,
    )
    assert run.phases() == ALL
    assert run.of("end")[-1]["error"] is None


def test_a_stream_is_replayed_but_not_tried_with_other_workers(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        class Stream(IterableDataset):
            def __iter__(self):
                return ((torch.full((3,), float(n)), n % 2) for n in range(120))

        for epoch in range(50):
            for x, y in DataLoader(Stream(), batch_size=4):
                train(x, y)
        """,
        settings={"try_workers": [1]},
    )
    assert run.phases() == ALL
    assert run.detail(layout.AGAIN)["same"] is None
    assert {fact["phase"]: fact["why"] for fact in run.of("skipped")} == {
        layout.TRIAL: "an IterableDataset divides its data among its workers by itself",
        layout.REPLAY_HALF_PRECISION: "no CUDA device is used",
        layout.REPLAY_CHANNELS_LAST: "no convolution of the model is given batches of images",
    }


def test_a_derived_iterator_that_asks_torchs_own_gives_one_record_a_batch(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

        class Counting(_MultiProcessingDataLoaderIter):
            def __next__(self):
                return super().__next__()

        class Loader(DataLoader):
            def _get_iterator(self):
                return Counting(self)

        for x, y in Loader(Numbers(), batch_size=BATCH, num_workers=1):
            train(x, y)
        """,
    )
    assert run.phases() == ALL
    drained = next(fact for fact in run.of("phase") if fact["phase"] == layout.DRAIN)
    assert run.waits(layout.DRAIN) == drained["batches"]


def test_experiments_that_a_loop_leaves_no_room_for_have_a_reason(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        loader = make()
        for epoch in range(9):
            batches = iter(loader)
            for step in range(10):
                train(*next(batches))
            with torch.no_grad():
                for x, y in DataLoader(Numbers(), batch_size=100):
                    model(x)
        """,
        settings={"try_workers": [1]},
    )
    assert run.phases()[:2] == ALL[:2]
    reasons = {fact["phase"]: fact["why"] for fact in run.of("skipped")}
    assert "no CUDA device is used" in reasons[layout.REPLAY_HALF_PRECISION]
    assert reasons[layout.TRIAL].endswith("another loader was asked")


def test_a_script_that_ends_earlier_is_drained_at_its_end_and_keeps_its_exit_code(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        import atexit
        atexit.register(lambda: print("goodbye"))
        loader = make(num_workers=1)
        for step, (x, y) in enumerate(loader):
            train(x, y)
            if step == STEPS // 2:
                break
        torch.save(model.state_dict(), "out/last.pt")
        sys.exit(3)
        """,
    )
    assert run.code == 3
    assert run.output == "goodbye\n"
    assert run.errors == ""
    assert run.phases() == [layout.DRAIN, layout.AGAIN]
    assert list(run.tree("out")) == ["last.pt"]
    assert run.leftovers == ()


def test_inference_whose_only_epoch_leaves_no_room_is_examined_at_its_end(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        del optimizer
        with torch.inference_mode():
            for x, y in DataLoader(torch.utils.data.Subset(Numbers(), range(100)), batch_size=BATCH):
                model(x)
                print("step", flush=True)
        print("after the loop")
        """,
    )
    assert run.output.splitlines() == ["step"] * 25
    assert (run.code, run.errors) == (0, "")
    assert run.phases() == ALL
    assert run.of("hook-error") == []
    assert (run.of("no-room")[0]["steps"], run.of("no-room")[0]["left"]) == (STEPS, 5)
    assert run.leftovers == ()


@pytest.mark.slow
def test_training_whose_only_epoch_leaves_no_room_ends_by_itself_and_says_why(tmp_path: Path) -> None:
    run = run_script(
        tmp_path,
        """
        for x, y in DataLoader(torch.utils.data.Subset(Numbers(), range(100)), batch_size=BATCH):
            train(x, y)
        print("after the loop")
        """,
    )
    assert run.output == "after the loop\n"
    facts = [(fact["steps"], fact["left"], fact["needed"]) for fact in run.of("no-room")]
    assert facts == [(STEPS, 5, 23)]


def test_a_loop_that_counts_and_fails_behind_its_epoch_is_said_to(tmp_path: Path) -> None:
    """timm's divides by the steps that are left to accumulate."""
    run = run_script(
        tmp_path,
        """
        loader = DataLoader(Numbers(), batch_size=20, shuffle=True)
        for epoch in range(100):
            for step, (x, y) in enumerate(loader):
                train(x, y)
                step % (step < len(loader))
        """,
        settings={"try_workers": [1], "experiment_seconds": 0.5},
    )
    why = {fact["phase"]: fact["why"] for fact in run.of("skipped")}
    assert "past the last batch of its epoch: ZeroDivisionError" in why[layout.TRIAL]
    assert run.of("end")[-1]["how"] == "experiments"
