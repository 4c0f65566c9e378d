# SPDX-License-Identifier: Apache-2.0
"""The table of readings: what is in it can be read, drawn and told, and nothing else lists them."""

from __future__ import annotations

import pytest

from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.analyse.readings import (
    GPU_READINGS,
    READINGS,
    UNKNOWN,
    Readings,
    format_reading,
    list_readings,
)

SHOWN = {**READINGS, **list_readings(MachineSummary)}
FACTS = {name: one for name, one in SHOWN.items() if one.fact}


@pytest.mark.parametrize("name", FACTS)
def test_a_reading_that_is_a_fact_can_be_shown(name: str) -> None:
    assert format_reading(0.5, FACTS[name]) != format_reading(None, FACTS[name]) == UNKNOWN


def test_titles_tell_readings_apart() -> None:
    for titles in (
        [one.curve for one in READINGS.values() if one.curve],
        [one.curve for one in GPU_READINGS.values() if one.curve],
        [one.fact for one in FACTS.values()],
    ):
        assert len(set(titles)) == len(titles)


def test_a_scale_ends_at_a_reading_of_the_same_unit() -> None:
    ended = [one for one in GPU_READINGS.values() if one.end]
    assert [GPU_READINGS[one.end].unit for one in ended] == [one.unit for one in ended] == ["B", "W"]


def test_what_causes_are_judged_by_has_every_reading() -> None:
    around = MachineSummary(cores=2.0)
    assert all(hasattr(around, name) for name in READINGS)
    assert isinstance(around, Readings)
