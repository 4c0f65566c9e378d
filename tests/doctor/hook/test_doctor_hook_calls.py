# SPDX-License-Identifier: Apache-2.0
"""What the hook notes of a script's samples: Pillow's calls of each, and values of batches of any kind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feedrate.doctor.hook.feedrate_hook.record.describe import describe_pipeline
from support.hooked import PREAMBLE, Run, run_script

pytest.importorskip("torch", reason="torch is not installed")

HEAD = (
    PREAMBLE
    + """
from PIL import Image
os.chdir(sys.argv[1])
Image.new("RGB", (400, 400)).save("one.png")

class Photos(Dataset):
    angle = 0
    def __len__(self): return 40
    def make(self, index):
        image = Image.open("one.png").convert("RGB").rotate(self.angle)
        return torch.from_numpy(np.array(image)), index
    def __getitem__(self, index): return self.make(index)
"""
)


def see(tmp_path: Path, body: str) -> Run:
    run = run_script(tmp_path, HEAD + body, str(tmp_path))
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    return run


def noted(run: Run) -> list[list[str]]:
    """Return the names of the calls of each sample."""
    return [[call["call"] for call in sample] for fact in run.facts("calls") for sample in fact["samples"]]


def test_images_opened_before_the_loop_are_no_sample(tmp_path: Path) -> None:
    run = see(
        tmp_path, "photos = Photos()\nfor at in range(5): photos.make(at)\nfor _ in DataLoader(photos): pass"
    )
    assert {tuple(sample) for sample in noted(run)} == {
        ("PIL.Image.open", "PIL.convert", "PIL.rotate", "PIL.tobytes")
    }


def test_of_a_dataset_that_makes_many_samples_in_one_call_nothing_is_noted(tmp_path: Path) -> None:
    body = """
class Many(Photos):
    def __getitems__(self, indices): return [self.make(index) for index in indices]
for _ in DataLoader(Many(), batch_size=4): pass
"""
    assert noted(see(tmp_path, body)) == []


def test_calls_are_told_apart_by_their_loader(tmp_path: Path) -> None:
    body = """
class Turned(Photos): angle = 7
for _ in DataLoader(Photos(), batch_size=4): pass
for _ in DataLoader(Turned(), batch_size=4): pass
"""
    run = see(tmp_path, body)
    angles: dict[str, set[int]] = {}
    for fact in run.facts("calls"):
        angles.setdefault(fact["loader"], set()).update(sample[2]["args"][0] for sample in fact["samples"])
    names = [fact["loader"] for fact in run.facts("loader")]
    assert angles == {names[0]: {0}, names[1]: {7}}


@pytest.mark.parametrize("draw", ["random.random()", "np.random.rand()", "torch.rand(1)", "7"])
def test_a_crop_tells_whether_its_sample_drew_a_number_before(draw: str, tmp_path: Path) -> None:
    body = f"""
class Cut(Photos):
    def __getitem__(self, index):
        image = Image.open("one.png")
        {draw}
        return np.array(image.crop((0, 0, 8, 8))), index
for _ in DataLoader(Cut(), batch_size=4): pass
"""
    samples = [sample for fact in see(tmp_path, body).facts("calls") for sample in fact["samples"]]
    assert {
        call.get("drawn", False) for sample in samples for call in sample if call["call"] == "PIL.crop"
    } == {draw != "7"}


@pytest.mark.parametrize(
    "values",
    ["torch.zeros(4, 3, 8, 8, dtype=torch.complex64)", "torch.zeros(4, 3, 8, 8).to_sparse()"],
)
def test_values_that_have_no_order_or_no_rows_cost_no_fact_about_the_batch(
    values: str, tmp_path: Path
) -> None:
    body = f"for _ in DataLoader(Photos(), batch_size=4, collate_fn=lambda samples: {values}): pass"
    (batch,) = see(tmp_path, body).facts("batch")
    assert (batch["tensors"][0]["shape"], batch["ranges"]) == ([4, 3, 8, 8], [None])


def test_a_collate_function_is_asked_for_nothing() -> None:
    asked: list[str] = []

    class Touchy:
        def __call__(self, samples: Any) -> Any:
            return samples

        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            raise AttributeError(name)

        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            asked.append("__class__")
            return type(self)

    loader = SimpleNamespace(dataset=None, collate_fn=Touchy(), sampler=None, batch_sampler=None)
    described = describe_pipeline(loader, None)
    assert described["collate"]["class"].endswith("Touchy")
    assert asked == []
