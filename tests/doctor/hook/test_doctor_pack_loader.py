# SPDX-License-Identifier: Apache-2.0
"""A script that is fed by feedrate.Loader, under the doctor's hook: what is recorded, and what is tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedrate.doctor.hook.feedrate_hook import layout
from support import doctor_scripts, hooked
from support.packs import write_images
from support.range_server import RangeServer

pytest.importorskip("torch", reason="torch is not installed")

COUNT = 22

TRAINING = (
    hooked.PREAMBLE
    + """
import feedrate
train = feedrate.Loader(sys.argv[1], 4, image=feedrate.RandomResizedCrop(8), threads=1)
test = feedrate.Loader(sys.argv[1], 11, image=feedrate.CenterCrop(8), shuffle=False)
model, loss = nn.Linear(3, 3), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in train:
        optimizer.zero_grad()
        loss(model(x.float().mean(dim=(2, 3))), y).backward()
        optimizer.step()
    with torch.no_grad():
        for x, y in test:
            model(x.float().mean(dim=(2, 3)))
"""
)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("pack") / "small", count=COUNT)


@pytest.fixture(scope="module")
def trained(pack: Path, tmp_path_factory: pytest.TempPathFactory) -> hooked.Run:
    run = hooked.run_script(tmp_path_factory.mktemp("trained"), TRAINING, str(pack), settings={"warmup": 2})
    assert (run.code, run.stdout, run.stderr) == (0, "", "")
    assert run.facts("hook-error") == []
    return run


def test_each_next_is_a_wait_with_its_samples_and_its_number(trained: hooked.Run) -> None:
    waits = [w for w in trained.main.of(layout.WAIT) if trained.main.name(w["name"]) == "loader-0"]
    epoch = [(4, 0), (4, 1), (4, 2), (4, 3), (4, 4), (2, 5), (-1, 6)]
    assert [(int(w["a"]), int(w["b"])) for w in waits] == epoch * 2


def test_forward_backward_and_optimizer_are_timed_as_with_a_dataloader(trained: hooked.Run) -> None:
    probed = sum(
        bool(int(w["c"]) & layout.PROBED) for w in trained.main.of(layout.WAIT) if 0 < int(w["a"]) <= 4
    )
    assert len(trained.main.of(layout.BACKWARD)) == len(trained.main.of(layout.OPTIMIZER)) == probed
    assert len(trained.main.of(layout.FORWARD)) >= probed


def test_what_the_loader_is_stands_in_its_facts(trained: hooked.Run, pack: Path) -> None:
    fact = trained.facts("loader")[0]
    wanted = {
        "class": "feedrate.Loader", "dataset_len": COUNT, "batch_size": 4, "threads": 1,
        "threads_given": True, "pack": str(pack), "remote": False, "cache": None, "scratch": None,
        "device": None,
        "image": "RandomResizedCrop", "num_workers": 0, "framework": None,
    }  # fmt: skip
    assert {name: fact[name] for name in wanted} == wanted
    assert fact["made_at"].endswith("script.py:16")
    tensors = trained.facts("batch")[0]["tensors"]
    assert [(t["shape"], t["dtype"]) for t in tensors] == [([4, 3, 8, 8], "uint8"), ([4], "int64")]


def test_the_stages_are_noted_before_and_after_the_steps_that_count(trained: hooked.Run) -> None:
    notes = [fact for fact in trained.facts("loader-stats") if fact["loader"] == "loader-0"]
    # After the first batch, the warm-up, twice as many, twice as many, and at the end of each epoch.
    assert [note["taken"] for note in notes] == [1, 2, 4, 6, 8, 12]
    last = notes[-1]
    assert (last["batches"], last["samples"]) == (12, 2 * COUNT)
    assert last["stages"]["read and decode"] > notes[0]["stages"]["read and decode"] > 0


def test_a_script_that_uses_both_kinds_has_both_seen(pack: Path, tmp_path: Path) -> None:
    run = hooked.run_script(
        tmp_path,
        hooked.PREAMBLE
        + """
import feedrate
for x, y in feedrate.Loader(sys.argv[1], 11, image=feedrate.Resize(8)):
    pass
for x, y in DataLoader(Numbers(4), batch_size=2):
    pass
""",
        str(pack),
    )
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    assert [fact["class"] for fact in run.facts("loader")] == ["feedrate.Loader", "DataLoader"]
    assert sorted(hooked.names_of(run.main, layout.WAIT)) == ["loader-0"] * 3 + ["loader-1"] * 3


def test_batches_of_numpy_are_counted_where_torch_is_never_imported(pack: Path, tmp_path: Path) -> None:
    run = hooked.run_script(
        tmp_path,
        """
        import sys
        import feedrate
        for images, labels, keys in feedrate.Loader(
            sys.argv[1], 5, image=feedrate.Resize(8), output="numpy", fields=("image", "label", "key")
        ):
            assert "torch" not in sys.modules
        """,
        str(pack),
        settings={"passive": False},
    )
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    assert [int(w["a"]) for w in run.main.of(layout.WAIT)] == [5, 5, 5, 5, 2, -1]
    assert run.facts("batch")[0]["tensors"][0]["bytes"] == 5 * 8 * 8 * 3
    skipped = {fact["phase"]: fact["why"] for fact in run.facts("skipped")}
    assert set(skipped) == set(layout.EXPERIMENTS)
    assert set(skipped.values()) == {"torch is not used, and experiments need a loop of torch's"}


def test_an_adapter_of_another_framework_is_named(pack: Path, tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text(
        "def process_count(): return 1\ndef device_put(value, device): return value\n"
    )
    run = hooked.run_script(
        tmp_path,
        """
        import sys
        import torch  # some library of theirs may import it
        import feedrate, feedrate.jax
        for images, labels in feedrate.jax.batches(sys.argv[1], batch_size=11, image=feedrate.Resize(8)):
            pass
        """,
        str(pack),
        settings={"passive": False},
    )
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    assert [int(w["a"]) for w in run.main.of(layout.WAIT)] == [11, 11, -1]
    assert run.facts("loader")[0]["framework"] == "JAX"
    whys = {fact["why"] for fact in run.facts("skipped")}
    assert whys == {"JAX trains, and experiments need a loop of torch's"}


def test_a_dataset_of_a_pack_is_decoded_not_transformed(pack: Path, tmp_path: Path) -> None:
    run = hooked.run_script(
        tmp_path,
        hooked.PREAMBLE
        + """
import feedrate
dataset = feedrate.Dataset(sys.argv[1], image=feedrate.CenterCrop(8), output="torch")
for x, y in DataLoader(torch.utils.data.Subset(feedrate.cached(dataset), range(20)), batch_size=4):
    pass
for x, y in DataLoader(dataset, batch_size=4):
    pass
""",
        str(pack),
    )
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    assert [fact["pack"] for fact in run.facts("loader")] == [str(pack)] * 2
    parts = {part.partition(" ")[0] for part in hooked.names_of(run.main, layout.PART)}
    assert {"decode:feedrate", "read:feedrate.index", "read:feedrate.cached"} <= parts


def test_optimizer_steps_without_a_loader_are_noted_at_the_fifth_and_at_the_end(tmp_path: Path) -> None:
    run = hooked.run_script(
        tmp_path,
        hooked.PREAMBLE
        + """
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
""",
    )
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    assert [fact["optimizer_steps"] for fact in run.facts("no-loader")] == [5, 12]
    assert run.facts("loader") == []
    # What comes before the end of the first step is not timed.
    kinds = (layout.FORWARD, layout.BACKWARD, layout.OPTIMIZER)
    assert [len(run.main.of(kind)) for kind in kinds] == [11, 11, 11]


LOOP = """
import feedrate
loader = feedrate.Loader({pack!r}, BATCH, image=feedrate.RandomResizedCrop(8){more})
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(1000):
    for x, y in loader:
        train(x.float().mean(dim=(2, 3)), y)
        print("step", flush=True)
"""
TRIED = [layout.DRAIN, layout.AGAIN, layout.REPLAY]


def test_the_loader_is_drained_and_its_batches_are_replayed(pack: Path, tmp_path: Path) -> None:
    run = doctor_scripts.run_script(
        tmp_path, LOOP.format(pack=str(pack), more=""), settings={"try_workers": [1, 2]}
    )
    assert (run.code, run.errors, run.of("hook-error")) == (0, "", [])
    assert run.phases() == TRIED
    assert run.detail(layout.AGAIN)["same"] is True
    assert run.detail(layout.DRAIN)["cpu_s"] > 0
    assert run.of("end")[-1]["how"] == "experiments"
    # The epoch of six batches leaves no room at first: they begin with the next one.
    assert len(run.output.splitlines()) >= doctor_scripts.STEPS
    assert run.leftovers == ()
    # No note of the experiments comes among those of the real steps.
    watched = run.of("watched")[0]["t_ns"]
    assert [n["taken"] for n in run.of("loader-stats") if n["t_ns"] > watched] == [
        len(run.output.splitlines())
    ]


def test_what_a_transform_writes_is_held_back_in_the_experiments(pack: Path, tmp_path: Path) -> None:
    body = """
def note(sample):
    open("out/log", "a").write("x")
    return sample["image"], sample["label"]
"""
    run = doctor_scripts.run_script(
        tmp_path, body + LOOP.format(pack=str(pack), more=", transform=note").replace("(2, 3)", "(1, 2)")
    )
    assert (run.code, run.errors) == (0, "")
    assert layout.REPLAY in run.phases()
    # What the threads had made in advance when the guard went up is the real run's.
    assert run.tree("out") == run.tree("before")


def test_a_loader_with_a_cache_is_drained_too(pack: Path, tmp_path: Path) -> None:
    run = doctor_scripts.run_script(
        tmp_path, LOOP.format(pack=str(pack), more=", cache=feedrate.Cache(ram='64MB')")
    )
    assert (run.code, run.errors, run.of("hook-error")) == (0, "", [])
    assert run.phases() == TRIED
    assert run.of("loader-stats")[-1]["cached_share"] == 1.0


def test_a_loader_that_fetches_is_replayed_but_not_drained(tmp_path: Path, pack_server: RangeServer) -> None:
    run = doctor_scripts.run_script(tmp_path, LOOP.format(pack=f"{pack_server.url}/pack", more=""))
    assert (run.code, run.errors, run.of("hook-error")) == (0, "", [])
    assert run.of("loader")[0]["remote"] is True
    assert run.of("loader-stats")[-1]["requests"] > 0
    assert run.phases() == [layout.REPLAY]
    skipped = {fact["phase"]: fact["why"] for fact in run.of("skipped")}
    assert "fetches a remote pack" in skipped[layout.DRAIN]
    assert skipped[layout.AGAIN] == skipped[layout.DRAIN]
    assert run.leftovers == ()
