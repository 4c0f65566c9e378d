# SPDX-License-Identifier: Apache-2.0
"""`--what-if nodes=8`: one job on many nodes, on paper."""

from __future__ import annotations

from feedrate.plan.ways import describe_nodes, make_plan
from feedrate.plan.what_if import parse_what_if
from support.plans import make_node, make_survey


def test_of_one_node_there_is_nothing_to_say() -> None:
    assert describe_nodes(make_survey(), make_node(), 256) == []


def test_several_nodes_are_told_what_each_reads_and_how_long_copies_take() -> None:
    changes = parse_what_if(
        ["nodes=8", "gpu=4", "net=1GB/s", "total=2GB/s", "scratch=2T", "scratch-storage=nvme"]
    )
    reading, copying, shards = describe_nodes(*changes.apply(make_survey(), make_node()), 256)
    assert reading == "8 nodes read 250 MB/s each, 2.00 GB/s together"
    assert "takes 9 min 12 s, a part on each 69.0 s" in copying
    assert "a part holds 12% of what its node reads" in copying
    assert (
        shards == "an epoch is 157 steps of 256 samples per rank; 540 shards of 256 MB suit so many readers"
    )


def test_a_source_of_unknown_rate_says_what_is_taken_for_it() -> None:
    reading, *_ = describe_nodes(make_survey(), make_node(nodes=2), 256)
    assert "taken to be what one node gets" in reading


def test_a_plan_for_a_petabyte_on_a_thousand_gpus_stays_finite() -> None:
    changes = parse_what_if(["nodes=125,gpu=8xH100,cores=128,mem=2T,size=1PB,net=25GB/s,total=1TB/s"])
    plan = make_plan(*changes.apply(make_survey(), make_node()), epochs=90)
    for way in plan.ways:
        assert 0 < way.total_s.low <= way.total_s.value <= way.total_s.high < float("inf")
    assert any("100,000 shards of 10.0 GB" in note for note in plan.notes)
