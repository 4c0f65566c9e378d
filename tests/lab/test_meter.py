# SPDX-License-Identifier: Apache-2.0
"""The timing of one run, with clocks that tests turn by hand."""

from __future__ import annotations

from collections.abc import Iterator

from feedrate.lab.child import measure, measure_tree_cpu


class HandClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowFeed:
    """Gives two batches of 10 per epoch, each after 1 s; its making takes 5 s, an epoch's end 0.25 s."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        clock.now += 5

    def epoch(self, number: int) -> Iterator[int]:
        for _ in range(2):
            # The first epoch is slow, as when files come from the disk.
            self.clock.now += 7 if number == 0 else 1
            yield 10
        self.clock.now += 0.25


def run(epochs: int = 3) -> dict[str, object]:
    clock, cpu = HandClock(), HandClock()

    def consume(batch: int) -> int:
        clock.now += 0.5
        cpu.now += 2.0
        return batch

    return dict(measure(lambda: SlowFeed(clock), consume, epochs=epochs, clock=clock, cpu_clock=cpu))


def test_the_first_epoch_is_discarded() -> None:
    readings = run(epochs=3)
    assert readings["images"] == [20, 20, 20]
    assert readings["seconds"] == [3.25, 3.25, 3.25]


def test_the_first_batch_counts_from_the_making_of_the_loader() -> None:
    assert run()["first_batch_s"] == 12.0


def test_waiting_is_the_time_inside_the_loader_until_a_batch_comes() -> None:
    assert run(epochs=3)["wait_s"] == 6.0


def test_cpu_time_is_that_of_the_timed_epochs() -> None:
    assert run(epochs=3)["cpu_s"] == 12.0


def test_the_cpu_time_of_this_process_grows() -> None:
    before = measure_tree_cpu()
    sum(number * number for number in range(3_000_000))
    assert measure_tree_cpu() > before
