# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor --full`: all that the page tells, in a terminal."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from feedrate.cli import main
from feedrate.cli.output import clean_values
from feedrate.doctor.results import Diagnosis, Fact, Remedy
from feedrate.report.doctor import draw_diagnosis, draw_full
from feedrate.report.doctor_words import part_remedies
from feedrate.report.lines import count_cells
from support.diagnoses import DIAGNOSES, make_decode_bound, make_nasty, make_odd


def squeeze(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("name", DIAGNOSES)
def test_all_that_was_found_is_told(name: str) -> None:
    diagnosis = DIAGNOSES[name]()
    text, narrow = squeeze(draw_full(diagnosis, 120)), draw_full(diagnosis, 80)
    findings, (helping, useless) = diagnosis.findings, part_remedies(diagnosis.remedies)
    told = [
        *(line for one in findings for line in (one.code, one.title, one.cause, *one.evidence)),
        *(line for one in helping for line in (one.title, one.note, one.command, one.change) if line),
        *(one.note for one in useless),
        *(word for one in diagnosis.facts for word in (one.name, one.value)),
        *(one.title for one in diagnosis.rates),
        *(line for one in diagnosis.hot_lines for line in (one.place, one.source)),
        *(one.name for one in (*diagnosis.split, *diagnosis.sample, *diagnosis.curves)),
        *diagnosis.run.experiments,
        *diagnosis.run.unseen,
    ]
    missing = [line for line in told if squeeze(line).rstrip(".") not in text]
    assert missing == []
    # Beside numbers a name may be wrapped, and numbers stand between its words.
    words = {word for line in told for word in line.rstrip(".").split() if len(word) < 40}
    assert [word for word in words if word not in narrow] == []


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", DIAGNOSES)
def test_no_line_is_wider_than_the_terminal_but_what_is_to_be_typed(name: str, width: int) -> None:
    diagnosis = DIAGNOSES[name]()
    typed = {squeeze(f"$ {one.command}") for one in diagnosis.remedies}
    typed |= {squeeze(one.change or "") for one in diagnosis.remedies}
    lines = draw_full(diagnosis, width).splitlines()
    assert [line for line in lines if len(line) > width and squeeze(line) not in typed] == []


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_numbers_of_a_sample_stand_on_one_line_beside_names_of_any_length(width: int) -> None:
    diagnosis = make_decode_bound()
    long = replace(diagnosis.sample[0], name="torch.utils.data._utils.collate.default_collate")
    lines = draw_full(replace(diagnosis, sample=(*diagnosis.sample, long)), width).splitlines()
    rows = [line for line in lines if re.search(r"%;( +[\d.]+ (s|ms|µs)){3}$", line)]
    assert len(rows) == len(diagnosis.sample) + 1


@pytest.mark.parametrize("draw", [draw_full, draw_diagnosis])
def test_wide_characters_are_counted_as_a_terminal_shows_them(draw: Callable[[Diagnosis], str]) -> None:
    folder = f"/data/{'猫' * 50}"
    facts = (Fact("データ", f"nfs4 {folder}"), Fact("e\u0301tat", "local"))
    verdict = f"storage-bound: 81% of the time goes into waiting for {folder} and nothing else is slow here"
    remedies = (Remedy("workers", f"more workers for {folder}", 2.0, 1.5, 2.5),)
    diagnosis = replace(make_decode_bound(), facts=facts, verdict=verdict, remedies=remedies)
    lines = draw(diagnosis).splitlines()
    assert [line for line in lines if count_cells(line) > 80] == []
    assert sum(line.count("猫") for line in lines) > 50


def test_names_of_facts_are_aligned_by_cells() -> None:
    facts = (Fact("データ", "one"), Fact("e\u0301tat", "two"))
    lines = draw_full(replace(make_decode_bound(), facts=facts), 80).splitlines()
    assert "  データ  one" in lines
    assert "  e\u0301tat    two" in lines


def test_text_from_the_run_cannot_steer_the_terminal() -> None:
    assert all(line.isprintable() for line in draw_full(clean_values(make_nasty()), 80).splitlines())


@pytest.mark.parametrize("seed", range(20))
def test_any_diagnosis_is_drawn_in_full(seed: int) -> None:
    text = draw_full(clean_values(make_odd(random.Random(seed))), 80)
    assert all(line.isprintable() for line in text.splitlines())


@pytest.mark.parametrize("arguments", [[], ["--full"], ["--full", "--json", "-"]])
def test_the_command_draws_the_whole_report_where_it_is_asked_for(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    diagnosis = make_decode_bound()
    monkeypatch.setattr("feedrate.doctor.examine.examine", lambda *_, **__: diagnosis)
    monkeypatch.setenv("COLUMNS", "100")
    main(["doctor", *arguments, "--", "true"])
    out, err = capsys.readouterr()
    shown = err if "--json" in arguments else out
    assert (draw_full(diagnosis, 100) in shown) == bool(arguments)
    assert out.startswith("{") == ("--json" in arguments)
