# SPDX-License-Identifier: Apache-2.0
"""`--machines lab.toml`: what the file may say, and the order in which kinds of node come out."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from feedrate.errors import NotFound, StorageError, UsageError
from feedrate.figures import ASSUMED, GIVEN, Figure
from feedrate.plan.machines import describe_scale, rank_machines, read_machines, take_time
from feedrate.plan.results import Node, Plan, Ranking, Survey
from feedrate.plan.ways import make_plan
from feedrate.plan.what_if import parse_what_if
from support.paths import ROOT
from support.plans import make_node, make_survey, make_way

LAB = """
[source]
total = "20GB/s"

[nodes.small]
cores = 8
mem = "64G"
gpu = "1xRTX 3090"

[nodes.large]
cores = 64
mem = "500G"
gpu = "4xA100-80GB"
scratch = "2T"
net = "1.2GB/s"
core_speed = 1.3
nodes = [4, 1]
"""


def write(tmp_path: Path, text: str = LAB) -> Path:
    path = tmp_path / "lab.toml"
    path.write_text(text)
    return path


def rank(path: Path, model: str = "resnet50", model_rate: float | None = None) -> Ranking:
    plan = partial(make_plan, epochs=90)
    return rank_machines(make_survey(), path, model=model, model_rate=model_rate, epochs=90, plan=plan)


def test_kinds_of_node_are_read_with_what_the_source_gives_all(tmp_path: Path) -> None:
    small, large = read_machines(write(tmp_path))
    assert (small.name, small.counts, large.counts) == ("small", (1,), (1, 4))
    assert (large.what_if.cores, large.what_if.memory_bytes, large.what_if.core_speed) == (64, 500e9, 1.3)
    assert (large.what_if.gpus, large.what_if.gpu) == (4, "A100-80GB")
    assert small.what_if.total_bytes_per_s == large.what_if.total_bytes_per_s == 20e9


def test_what_is_not_named_is_not_there(tmp_path: Path) -> None:
    small, _ = read_machines(write(tmp_path))
    assert small.what_if.scratch_bytes == 0


def test_numbers_may_stand_as_numbers_or_as_text(tmp_path: Path) -> None:
    text = '[nodes.a]\ncores = "8"\nmem = 64_000_000_000\ngpu = 2\nmodel_rate = 900.5\n'
    (kind,) = read_machines(write(tmp_path, text))
    assert (kind.what_if.cores, kind.what_if.memory_bytes) == (8, 64e9)
    assert (kind.what_if.gpus, kind.what_if.model_rate) == (2, 900.5)


def test_a_kinds_own_link_holds_against_the_sources(tmp_path: Path) -> None:
    text = '[source]\nnet = "1GB/s"\n[nodes.a]\ncores = 8\nmem = "64G"\nnet = "3GB/s"\n'
    (kind,) = read_machines(write(tmp_path, text))
    assert kind.what_if.net_bytes_per_s == 3e9


NODE = '[nodes.a]\ncores = 8\nmem = "64G"\n'


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("", "names no kind of node", "[nodes.NAME]"),
        ("[nodes]\n", "names no kind of node", "[nodes.NAME]"),
        ("nodes = 3\n", "[nodes] must be a table, got 3", "docs/model.md"),
        ("[nodes]\na = 3\n", "[nodes.a] must be a table, got 3", "docs/model.md"),
        ("[node.a]\ncores = 8\n", "there is no 'node'", "did you mean nodes?"),
        (NODE + "coers = 3\n", "there is no 'coers'", "did you mean cores?"),
        (NODE + "price = 3\n", "there is no 'price'", "known: cores, mem, gpu"),
        (NODE + 'storage = "nvme"\n', "there is no 'storage'", "scratch-storage"),
        ('[source]\ncores = 8\n' + NODE, "[source]: there is no 'cores'", "known: storage, latency"),
        ("[nodes.a]\ncores = 8\n", "says nothing of mem", 'mem = "500G"'),
        ("[nodes.a]\n", "says nothing of cores and mem", 'cores = "32"'),
        ('[nodes.a]\ncores = -8\nmem = "64G"\n', "cores: a whole number from 1", 'cores = "32"'),
        ('[nodes.a]\ncores = 8.5\nmem = "64G"\n', "got '8.5'", 'cores = "32"'),
        ('[nodes.a]\ncores = true\nmem = "64G"\n', "must be a number or a text, got True", 'cores = "32"'),
        ('[nodes.a]\ncores = [8]\nmem = "64G"\n', "must be a number or a text, got [8]", 'cores = "32"'),
        ('[nodes.a]\ncores = 8\nmem = "many"\n', "mem: 'many' is not a size", 'mem = "500G"'),
        (NODE + "core_speed = 0\n", "core-speed: a number from 0.05", 'core-speed = "1.3"'),
        (NODE + "nodes = 0\n", "nodes: a whole number from 1", 'nodes = "4"'),
        (NODE + "nodes = []\n", "nodes must be a number", "nodes = [1, 2, 4]"),
        (NODE + "nodes = [[1]]\n", "nodes must be a number", "nodes = [1, 2, 4]"),
        (NODE + "nodes = true\n", "nodes must be a number", "nodes = [1, 2, 4]"),
        (NODE + 'scratch-storage = "tape"\n', "'tape' is none of", 'scratch-storage = "nvme"'),
        (NODE + 'core-speed = 1\ncore_speed = 2\n', "core-speed is given twice", "leave one out"),
        ("[nodes.a\n", "is no TOML", "docs/model.md"),
        ("a = " + "[" * 2000 + "\n", "is no TOML", "docs/model.md"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_its_place_and_what_to_write(
    tmp_path: Path, text: str, sentence: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_machines(write(tmp_path, text))
    assert sentence in caught.value.message
    assert "lab.toml" in caught.value.message
    assert hint in str(caught.value.hint)


def test_a_file_that_is_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(NotFound, match="no file of machines at") as caught:
        read_machines(tmp_path / "lab.tml")
    assert "lab.toml" in str(caught.value.hint)
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        read_machines(tmp_path)


def test_bytes_that_are_no_text_and_files_that_are_no_list_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is no TOML"):
        read_machines(path)
    path.write_bytes(b"#" * 1_000_001)
    with pytest.raises(UsageError, match="larger than 1 MB"):
        read_machines(path)


def test_every_kind_and_number_of_nodes_gets_a_plan_the_fastest_first(tmp_path: Path) -> None:
    ranking = rank(write(tmp_path))
    assert [plan.node.name for plan in ranking.plans] == ["large", "large", "small"]
    assert [plan.node.nodes for plan in ranking.plans] == [4, 1, 1]
    times = [take_time(plan) for plan in ranking.plans]
    assert times == sorted(times)


def test_figures_of_a_kind_are_given_or_assumed(tmp_path: Path) -> None:
    node = rank(write(tmp_path)).plans[0].node
    assert (node.cores.origin, node.memory_bytes.origin) == (GIVEN, GIVEN)
    assert node.memory_origin.endswith("[nodes.large] mem")
    assert node.model_rate is not None
    assert (node.model_rate.value, node.model_rate.origin) == (2470, ASSUMED)
    assert node.scratch is not None
    assert node.scratch.kind == "nvme"


def test_it_says_that_cores_are_taken_to_be_like_those_of_this_machine(tmp_path: Path) -> None:
    assert any("as fast as one of this machine" in note for note in rank(write(tmp_path)).notes)


def test_another_nodes_page_cache_is_cold(tmp_path: Path) -> None:
    assert all(plan.survey.resident == 0.0 for plan in rank(write(tmp_path)).plans)


def test_a_kind_whose_rate_nobody_knows_is_left_out_and_named(tmp_path: Path) -> None:
    text = LAB + '[nodes.odd]\ncores = 8\nmem = "64G"\ngpu = "2xL4"\n[nodes.bare]\ncores = 8\nmem = "64G"\n'
    ranking = rank(write(tmp_path, text))
    assert len(ranking.plans) == 3
    assert any(note.startswith("odd is left out: no rate of resnet50") for note in ranking.notes)
    assert any(note.startswith("bare is left out: it has no GPU") for note in ranking.notes)


def test_a_rate_in_the_file_lets_such_a_kind_in(tmp_path: Path) -> None:
    text = LAB + '[nodes.odd]\ncores = 8\nmem = "64G"\ngpu = "2xL4"\nmodel-rate = 400\n'
    node = next(p.node for p in rank(write(tmp_path, text)).plans if p.node.name == "odd")
    assert node.model_rate is not None
    assert (node.model_rate.value, node.model_rate.origin) == (400, GIVEN)


def test_a_rate_of_the_command_line_holds_for_every_gpu(tmp_path: Path) -> None:
    ranking = rank(write(tmp_path), model="", model_rate=500.0)
    assert {plan.node.model_rate for plan in ranking.plans} == {Figure.exactly(500, GIVEN, "--model-rate")}


def test_where_no_kind_is_left_the_reasons_are_the_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no kind of node is left\. a is left out"):
        rank(write(tmp_path, NODE))


def test_of_equal_times_fewer_gpus_come_first(tmp_path: Path) -> None:
    text = '[nodes.{}]\ncores = 8\nmem = "64G"\ngpu = "{}xA100"\nnodes = {}\n'
    path = write(tmp_path, text.format("b", 8, 1) + text.format("c", 2, 2) + text.format("a", 4, 1))

    def plan(survey: Survey, node: Node) -> Plan:
        seconds = {"b": 1000.0, "a": 1001.0}.get(node.name, 1002.0)
        way = make_way("in-place", "read in place", 0, 0, seconds / 89)
        return Plan(
            survey, node, 90, 4, (replace(way, total_s=Figure.exactly(1000 + seconds / 1e4)),), "", "", ()
        )

    ranking = rank_machines(make_survey(), path, model="resnet50", model_rate=None, epochs=90, plan=plan)
    assert [plan.node.name for plan in ranking.plans] == ["a", "c", "b"]


def test_of_one_node_there_is_nothing_to_say() -> None:
    assert describe_scale(make_survey(), make_node(), 256) == []


def test_several_nodes_are_told_what_each_reads_and_how_long_copies_take() -> None:
    changes = parse_what_if(
        ["nodes=8", "gpu=4", "net=1GB/s", "total=2GB/s", "scratch=2T", "scratch-storage=nvme"]
    )
    reading, copying, shards = describe_scale(*changes.apply(make_survey(), make_node()), 256)
    assert reading == "8 nodes read 250 MB/s each, 2.00 GB/s together"
    assert "takes 9 min 12 s (4 waves of 2 nodes), a part on each 69.0 s" in copying
    assert "a part holds 12% of what its node reads" in copying
    assert (
        shards == "an epoch is 157 steps of 256 samples per rank; 540 shards of 256 MB suit so many readers"
    )


def test_a_source_of_unknown_rate_says_what_is_taken_for_it() -> None:
    reading, *_ = describe_scale(make_survey(), make_node(nodes=2), 256)
    assert "taken to be what one node gets" in reading


def test_a_plan_for_a_petabyte_on_a_thousand_gpus_stays_finite() -> None:
    changes = parse_what_if(["nodes=125,gpu=8xH100,cores=128,mem=2T,size=1PB,net=25GB/s,total=1TB/s"])
    plan = make_plan(*changes.apply(make_survey(), make_node()), epochs=90)
    for way in plan.ways:
        assert 0 < way.total_s.low <= way.total_s.value <= way.total_s.high < float("inf")
    assert any("100,000 shards of 10.0 GB" in note for note in plan.notes)


def test_the_file_in_the_documentation_is_read_and_ranked(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs" / "model.md").read_text(), re.S | re.M)
    ranking = rank(write(tmp_path, text))
    assert len(ranking.plans) >= 4
