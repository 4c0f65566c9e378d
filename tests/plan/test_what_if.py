# SPDX-License-Identifier: Apache-2.0
"""`--what-if`: what is said, what it changes, and where the new figures say that they come from."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.errors import UsageError
from feedrate.figures import ASSUMED, GIVEN, STORED, Figure
from feedrate.plan.results import Node, Survey
from feedrate.plan.what_if import KEYS, STORAGE, WhatIf, parse_what_if
from support.plans import make_node, make_store, make_survey, near


def apply(*words: str, survey: Survey | None = None, node: Node | None = None) -> tuple[Survey, Node]:
    return parse_what_if(words).apply(survey or make_survey(), node or make_node())


def test_cores_memory_and_nodes_are_those_given() -> None:
    _, node = apply("cores=32", "mem=500G", "nodes=4")
    assert node.cores == Figure.exactly(32, GIVEN, "--what-if")
    assert (node.memory_bytes.value, node.memory_bytes.origin) == (500e9, GIVEN)
    assert node.memory_origin == "--what-if mem"
    assert node.nodes == 4
    assert node.name == "what if: cores=32 mem=500G nodes=4"


def test_nothing_that_is_not_named_changes() -> None:
    survey, node = apply("cores=32")
    assert survey == make_survey()
    assert replace(node, cores=make_node().cores, name=make_node().name) == make_node()


def test_commas_may_stand_for_spaces() -> None:
    assert parse_what_if(["cores=32,mem=500G", "gpu=4xA100"]) == parse_what_if(
        ["cores=32", "mem=500G", "gpu=4xA100"]
    )


@pytest.mark.parametrize(
    ("typed", "count", "name"),
    [
        ("4xA100", 4, "A100"),
        ("4 x A100-80GB", 4, "A100-80GB"),
        ("A100", None, "A100"),
        ("8", 8, ""),
        ("none", 0, ""),
        ("0", 0, ""),
        ("3090", None, "3090"),
        ("2x2080 Ti", 2, "2080 Ti"),
    ],
)
def test_gpus_are_a_number_and_a_name_or_either(typed: str, count: int | None, name: str) -> None:
    what_if = parse_what_if([f"gpu={typed}"])
    assert (what_if.gpus, what_if.gpu) == (count, name)


def test_a_gpu_of_the_table_brings_its_memory_its_link_and_the_models_rate_all_assumed() -> None:
    _, node = apply("gpu=4xA100-80GB", node=make_node(gpu_name="Tesla T4"))
    assert (node.gpus, node.gpu_name) == (4, "A100-80GB")
    for figure in (node.gpu_memory_bytes, node.to_device_bytes_per_s, node.model_rate):
        assert figure is not None
        assert figure.origin == ASSUMED
        assert figure.note
    assert node.model_rate is not None
    assert node.model_rate.value == 2470


def test_what_another_gpu_decodes_is_not_known() -> None:
    _, node = apply("gpu=1xH100", node=make_node(gpu_decode_images_per_s=near(9000)))
    assert node.gpu_decode_images_per_s is None


def test_more_gpus_of_the_kind_that_is_here_keep_what_was_measured() -> None:
    rate = near(4700, STORED, "2026-11-02")
    here = make_node(gpu_name="NVIDIA H200", model_rate=rate, gpu_decode_images_per_s=near(9000))
    _, node = apply("gpu=8xH200", node=here)
    assert (node.gpus, node.model_rate, node.gpu_decode_images_per_s) == (8, rate, near(9000))


def test_a_gpu_that_nobody_published_a_rate_of_asks_for_one() -> None:
    with pytest.raises(UsageError, match="no rate of resnet50 is known for the GPU 'L4'") as caught:
        apply("gpu=2xL4")
    assert "model-rate=IMAGES_PER_S" in str(caught.value.hint)


def test_a_model_rate_that_is_given_holds_for_any_gpu() -> None:
    _, node = apply("gpu=2xVoodoo", "model-rate=120.5")
    assert node.model_rate == Figure.exactly(120.5, GIVEN, "--what-if model-rate")
    assert (node.gpus, node.gpu_name, node.gpu_memory_bytes) == (2, "Voodoo", None)


def test_a_rate_that_the_command_line_gave_stays() -> None:
    _, node = apply("gpu=2xVoodoo", node=make_node(model="", model_rate=near(900, GIVEN)))
    assert node.model_rate == near(900, GIVEN)


def test_without_gpus_the_rate_of_one_says_nothing() -> None:
    _, node = apply("gpu=none")
    assert (node.gpus, node.gpu_name, node.gpu_memory_bytes, node.model_rate) == (0, "", None, None)


def test_a_link_is_what_one_node_reads_of_the_source() -> None:
    survey, _ = apply("net=1.2GB/s")
    assert survey.source.total_bytes_per_s == Figure.exactly(1.2e9, GIVEN, "--what-if net")
    assert survey.source.stream_bytes_per_s == make_store().stream_bytes_per_s


def test_no_stream_is_faster_than_the_link() -> None:
    survey, _ = apply("net=10MB/s")
    assert survey.source.stream_bytes_per_s.value == 10e6


def test_a_stream_that_had_the_whole_link_has_the_whole_new_one() -> None:
    source = replace(make_store(), stream_bytes_per_s=near(110e6), total_bytes_per_s=near(115e6))
    survey, _ = apply("net=1GB/s", survey=make_survey(source=source))
    assert survey.source.stream_bytes_per_s.value == 1e9
    assert survey.source.stream_bytes_per_s.origin == ASSUMED


def test_what_the_source_gives_all_nodes_is_kept_beside_what_one_gets() -> None:
    survey, _ = apply("total=20GB/s")
    assert survey.source.shared_bytes_per_s == Figure.exactly(20e9, GIVEN, "--what-if total")
    assert survey.source.total_bytes_per_s == make_store().total_bytes_per_s


def test_a_latency_is_that_of_a_call_and_opening_a_file_takes_two() -> None:
    survey, _ = apply("latency=2ms")
    source = survey.source
    assert (source.read_s.value, source.file_s.value, source.read_s.origin) == (0.002, 0.004, GIVEN)
    assert source.files_per_s.value == 3100  # below what 16 readers would open: 4,000


def test_a_long_latency_limits_the_files_that_all_readers_open() -> None:
    survey, _ = apply("latency=20ms")
    assert survey.source.files_per_s.value == pytest.approx(16 / 0.04)
    assert survey.source.files_per_s.origin == ASSUMED


@pytest.mark.parametrize("kind", STORAGE)
def test_every_kind_of_storage_has_a_source_and_is_assumed(kind: str) -> None:
    survey, _ = apply(f"storage={kind}")
    store = survey.source
    assert store.kind == kind
    assert survey.resident == 0.0
    assert any(STORAGE[kind].source in note for note in survey.notes)
    figures = [getattr(store, f.name) for f in fields(store)]
    for figure in (figure for figure in figures if isinstance(figure, Figure)):
        assert figure.origin == ASSUMED
        assert STORAGE[kind].source in figure.note
        assert 0 < figure.low < figure.value < figure.high


def test_what_is_given_beside_a_kind_of_storage_comes_on_top_of_it() -> None:
    survey, _ = apply("net=1GB/s", "latency=5ms", "storage=nfs")
    assert survey.source.kind == "nfs"
    assert survey.source.total_bytes_per_s.value == 1e9
    assert survey.source.read_s.value == 0.005


def test_a_scratch_disk_of_a_node_that_has_none_is_assumed_to_be_nvme() -> None:
    bare = make_node(scratch=None, scratch_path="", scratch_free_bytes=None)
    _, node = apply("scratch=2T", node=bare)
    assert node.scratch is not None
    assert (node.scratch.kind, node.scratch_path) == ("nvme", "/scratch")
    assert node.scratch_free_bytes == Figure.exactly(2e12, GIVEN, "--what-if scratch")
    assert any("nvme" in note for note in node.notes)


def test_more_room_on_the_scratch_disk_that_is_here_keeps_its_speed() -> None:
    _, node = apply("scratch=2T")
    assert node.scratch == make_node().scratch
    assert node.scratch_path == "/scr"


def test_a_scratch_disk_of_another_kind() -> None:
    _, node = apply("scratch-storage=hdd")
    assert node.scratch is not None
    assert node.scratch.kind == "hdd"
    assert node.scratch_free_bytes == make_node().scratch_free_bytes


def test_no_scratch() -> None:
    _, node = apply("scratch=none")
    assert (node.scratch, node.scratch_path, node.scratch_free_bytes) == (None, "", None)


def test_a_kind_of_scratch_without_room_asks_for_it() -> None:
    bare = make_node(scratch=None, scratch_path="", scratch_free_bytes=None)
    with pytest.raises(UsageError, match="scratch-storage=nvme of a node without scratch") as caught:
        apply("scratch-storage=nvme", node=bare)
    assert "scratch=2T" in str(caught.value.hint)


def test_faster_cores_make_every_sample_sooner() -> None:
    survey, _ = apply("core-speed=2")
    assert survey.feedrate_s is not None
    assert survey.feedrate_s.value == pytest.approx(0.0019 / 2)
    assert survey.feedrate_s.origin == ASSUMED
    assert survey.pack_s.value == pytest.approx(0.0002)


def test_a_petabyte_is_more_samples_of_the_same_size() -> None:
    survey, _ = apply("size=1PB")
    assert survey.total_bytes.value == 1e15
    assert survey.samples.value == pytest.approx(1_281_167 * 1e15 / 138e9)
    assert survey.sample_bytes == make_survey().sample_bytes
    assert survey.list_s.value == pytest.approx(14.8 * 1e15 / 138e9)


def test_of_a_larger_dataset_less_is_in_memory() -> None:
    survey = make_survey(total_bytes=near(1e9), resident=1.0)
    assert apply("size=10GB", survey=survey)[0].resident == pytest.approx(0.1)
    assert apply("size=100MB", survey=survey)[0].resident == 1.0


def test_a_smaller_dataset_has_whole_samples_in_at_least_one_folder() -> None:
    survey = make_survey(parts={"train": near(1_000_000), "val": near(281_167)}, trained="train")
    found, _ = apply("size=1MB", survey=survey)
    counts = (found.samples, found.files, found.folders, *found.parts.values())
    assert [count.value for count in counts] == [9, 9, 1, 7, 2]
    assert all(bound == int(bound) for count in counts for bound in (count.low, count.high))


@pytest.mark.parametrize("word", ["size=1PB", "storage=lustre"])
def test_what_is_free_here_does_not_limit_a_pack_on_another_store(word: str) -> None:
    here = make_node(pack_free_bytes=Figure.exactly(45e9))
    assert apply(word, node=here)[1].pack_free_bytes is None
    assert apply("cores=4", node=here)[1].pack_free_bytes == Figure.exactly(45e9)


def test_on_several_nodes_this_nodes_page_cache_counts_for_nothing() -> None:
    assert apply("nodes=2")[0].resident == 0.0
    assert apply("nodes=1")[0].resident == make_survey().resident


@pytest.mark.parametrize(
    ("word", "sentence", "hint"),
    [
        ("coers=32", "there is no 'coers'", "did you mean cores?"),
        ("speed=3", "there is no 'speed'", "known: cores=32"),
        ("cores", "'cores' is no change", "write KEY=VALUE"),
        ("cores=", "'cores=' is no change", "known:"),
        ("cores=0", "a whole number from 1 to 1,024 is needed, got '0'", "cores=32"),
        ("cores=-4", "got '-4'", "cores=32"),
        ("cores=many", "got 'many'", "cores=32"),
        ("nodes=1.5", "got '1.5'", "nodes=4"),
        ("mem=lots", "'lots' is not a size", "mem=500G"),
        ("mem=0", "at least 1 byte", "mem=500G"),
        ("net=fast", "'fast' is not a size", "net=1.2GB/s"),
        ("gpu=4x", "got '4x'", "gpu=4xA100"),
        ("gpu=900xA100", "a number of GPUs up to 64", "gpu=4xA100"),
        ("gpu=0xA100", "got '0xA100'", "gpu=4xA100"),
        ("storage=floppy", "'floppy' is none of nvme, ssd, hdd, nfs, lustre, memory", "storage=nvme"),
        ("latency=2", "got '2'", "latency=2ms"),
        ("latency=0ms", "a time from 0.1us to 60s", "latency=2ms"),
        ("model-rate=nan", "got 'nan'", "model-rate=1200"),
        ("model-rate=0", "a number from 0.001", "model-rate=1200"),
        ("core-speed=1e9", "got '1e9'", "core-speed=1.3"),
        ("scratch=-1", "'-1' is not a size", "scratch=2T"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_value_and_what_to_write(
    word: str, sentence: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_what_if([word])
    assert "--what-if" in caught.value.message
    assert sentence in caught.value.message
    assert hint in str(caught.value.hint)


def test_a_key_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="cores is given twice"):
        parse_what_if(["cores=2", "CORES=4"])


def test_no_words_change_nothing() -> None:
    assert parse_what_if([]).apply(make_survey(), make_node()) == (make_survey(), make_node())


@pytest.mark.parametrize("words", [[""], [" , "]])
def test_nothing_to_change_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="says nothing to change"):
        parse_what_if(words)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_takes_its_own_example(key: str) -> None:
    example = KEYS[key][1]
    what_if = parse_what_if([f"{key}={example}"])
    assert what_if != WhatIf(text=what_if.text)
    what_if.apply(make_survey(), make_node())


@given(st.sampled_from(sorted(KEYS)), st.text(max_size=12) | st.from_regex("[0-9]{1,400}", fullmatch=True))
def test_any_value_is_taken_or_refused_in_a_sentence(key: str, value: str) -> None:
    refused: UsageError | None = None
    try:
        parse_what_if([f"{key}={value}"])
    except UsageError as error:
        refused = error
    assert refused is None or (refused.message.startswith("--what-if") and refused.hint)


def test_a_small_b_in_a_rate_is_bits() -> None:
    changed, _ = parse_what_if(["net=10Gb/s", "total=80Gbit/s"]).apply(make_survey(), make_node())
    assert changed.source.total_bytes_per_s.value == 1.25e9
    assert changed.source.shared_bytes_per_s is not None
    assert changed.source.shared_bytes_per_s.value == 10e9
