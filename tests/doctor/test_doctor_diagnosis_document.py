# SPDX-License-Identifier: Apache-2.0
"""A diagnosis comes back from its own JSON document as it was, and from older ones as far as they tell."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedrate.cli.output import dump_document
from feedrate.doctor.results import Diagnosis, RunFacts, load_diagnosis
from feedrate.report.doctor import draw_diagnosis, draw_full
from feedrate.report.doctor_page import draw_doctor_page
from support.diagnoses import DIAGNOSES, make_decode_bound, make_nasty, make_run, reread, write
from support.examples import examples

NUMBERS = st.floats(-1e299, 1e299)


def strategy_of(hint: Any) -> st.SearchStrategy[Any]:
    """Return any values of a type that results use, few of them in a row."""
    inner = get_args(hint)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return st.builds(hint, **{name: strategy_of(kind) for name, kind in hints.items()})
    if get_origin(hint) is tuple:
        return st.lists(strategy_of(inner[0]), max_size=2).map(tuple)
    if get_origin(hint) is Mapping:
        return st.dictionaries(st.text(max_size=5), strategy_of(inner[1]), max_size=2)
    if inner:
        return st.one_of(*(strategy_of(kind) for kind in inner))
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: st.text(max_size=9), float: NUMBERS, int: st.integers(-(2**63), 2**63), type(None): st.none(),
    }  # fmt: skip
    return plain[hint]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(strategy_of(Diagnosis))
def test_any_diagnosis_comes_back_from_its_document(diagnosis: Diagnosis) -> None:
    assert reread(diagnosis) == diagnosis


@pytest.mark.parametrize("name", DIAGNOSES)
def test_what_was_drawn_of_a_diagnosis_can_be_drawn_of_its_document(name: str) -> None:
    diagnosis = DIAGNOSES[name]()
    again = reread(diagnosis)
    for draw in (draw_diagnosis, draw_full, draw_doctor_page):
        assert draw(again) == draw(diagnosis)


def test_numbers_that_no_json_holds_come_back_as_unknown() -> None:
    nasty = make_nasty()
    assert dump_document("doctor", reread(nasty)) == dump_document("doctor", nasty)
    run = reread(replace(make_decode_bound(), run=make_run(samples_per_s=math.inf))).run
    assert math.isnan(run.samples_per_s)


def test_fields_that_are_newer_than_a_document_have_their_defaults() -> None:
    document = write(make_decode_bound())
    for remedy in document["remedies"]:
        del remedy["code"], remedy["left_out"], remedy["note"]
    for finding in document["findings"]:
        del finding["explains"], finding["remedies"]
    del document["run"]["threads"]
    loaded = load_diagnosis(document)
    assert {(one.code, one.left_out, one.note) for one in loaded.remedies} == {(None, (), "")}
    assert {(one.explains, one.remedies) for one in loaded.findings} == {((), ())}
    assert loaded.run.threads is None


def test_a_document_that_tells_nothing_but_a_run_is_a_diagnosis_without_anything() -> None:
    document = {"command": "doctor", "schema_version": 1, "run": {"steps": 3, "device": 7}, "split": "x"}
    loaded = load_diagnosis({**document, "findings": [3, None, {"code": "decode-bound"}]})
    assert (loaded.command, loaded.split, loaded.overhead) == ((), (), None)
    assert (loaded.run.steps, loaded.run.device) == (3, "7")
    assert math.isnan(loaded.run.workers)
    assert [one.code for one in loaded.findings] == ["decode-bound"]
    assert math.isnan(loaded.findings[0].share)


@pytest.mark.parametrize("value", ["many", [1], {"a": 1}, True, 10**400])
def test_what_is_no_number_is_unknown(value: object) -> None:
    document = json.loads(json.dumps(write(make_decode_bound())))
    document["run"]["seconds_per_step"] = value
    run: RunFacts = load_diagnosis(document).run
    assert math.isnan(run.seconds_per_step)
