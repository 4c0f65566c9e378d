# SPDX-License-Identifier: Apache-2.0
"""The last steps of a pipeline as a table: the tensor that a script's own steps make, or those themselves."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedrate.run.inside import last_steps, switch
from support.images import save_image
from support.lazy_images import lazy_pillow
from support.paths import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed")
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of torchvision's first transforms, whose Compose is patched."""
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(ROOT / "tests" / "lookalikes")
    module = importlib.import_module(last_steps.MODULES[0])
    monkeypatch.setattr(last_steps, "_tables", {})
    assert last_steps.install(module) == "torchvision.transforms.transforms.Compose.__call__"
    with lazy_pillow():
        yield module
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    return save_image(tmp_path / "photo.jpg", 1, width=90, height=70, quality=90)


def facts(tensor: Any) -> Any:
    values = tensor.as_subclass(torch.Tensor).contiguous().numpy()
    return type(tensor), tensor.dtype, tuple(tensor.shape), tensor.stride(), values.tobytes()


def both_ways(make: Callable[[], Any]) -> tuple[Any, Any]:
    """Return what is made with recipes, and bare; an error in its words."""
    made = []
    for switch.here.is_on in (True, False):
        try:
            made.append(make())
        except RuntimeError as error:
            made.append(str(error))
    switch.here.is_on = True
    return made[0], made[1]


PIPELINES: dict[str, Callable[[Any], list[Any]]] = {
    "tensor": lambda t: [t.Resize((24, 20)), t.ToTensor()],
    "normalized": lambda t: [t.Resize((24, 20)), t.ToTensor(), t.Normalize(MEAN, STD)],
    "in place": lambda t: [t.ToTensor(), t.Normalize(MEAN, STD, inplace=True)],
    "bytes": lambda t: [t.CenterCrop(20), t.PILToTensor()],
    "once for all": lambda t: [t.ToTensor(), t.Normalize((0.5,), (0.5,))],
    "and more": lambda t: [t.ToTensor(), t.Normalize(MEAN, STD), lambda tensor: tensor * 2],
    "by hand": lambda t: [t.ToTensor(), lambda tensor: tensor + 1, t.Normalize(MEAN, STD)],
    "twice": lambda t: [t.ToTensor(), t.Normalize(MEAN, STD), t.Normalize(STD, MEAN)],
}


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", PIPELINES)
def test_a_tensor_is_what_the_scripts_own_steps_make(steps: Any, photo: Path, name: str, mode: str) -> None:
    compose = steps.Compose(PIPELINES[name](steps))
    lazily, bare = both_ways(lambda: facts(compose(Image.open(photo).convert(mode))))
    assert lazily == bare


def test_steps_run_on_two_small_images_and_then_no_more(
    steps: Any, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    own = steps.F.to_tensor
    monkeypatch.setattr(steps.F, "to_tensor", lambda image: seen.append(image.size) or own(image))
    compose = steps.Compose([steps.ToTensor(), steps.Normalize(MEAN, STD)])
    for _ in range(3):
        compose(Image.open(photo))
    assert seen == [(16, 17), (259, 3)]


def test_an_image_that_pillow_holds_takes_the_same_way(steps: Any, tmp_path: Path) -> None:
    picture = save_image(tmp_path / "picture.png", 2)
    compose = steps.Compose([steps.ToTensor(), steps.Normalize(MEAN, STD)])
    lazily, bare = both_ways(lambda: facts(compose(Image.open(picture))))
    assert lazily == bare
    assert len(last_steps._tables) == 1


@pytest.mark.parametrize("mode", ["RGBA", "1", "P", "I;16"])
def test_images_of_other_modes_are_left_to_the_script(steps: Any, mode: str) -> None:
    compose = steps.Compose([steps.ToTensor()])
    lazily, bare = both_ways(lambda: facts(compose(Image.new(mode, (9, 7)))))
    assert lazily == bare
    assert last_steps._tables == {}


def test_settings_that_change_are_seen(steps: Any, photo: Path) -> None:
    normalize = steps.Normalize(list(MEAN), list(STD))
    compose = steps.Compose([steps.ToTensor(), normalize])
    first, _ = both_ways(lambda: facts(compose(Image.open(photo))))
    normalize.mean[0] = 0.1
    second, bare = both_ways(lambda: facts(compose(Image.open(photo))))
    assert second == bare
    assert first != second


def test_settings_that_are_drawn_anew_are_not_learnt_for_ever(
    steps: Any, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_steps, "_MOST_TABLES", 3)
    for number in range(1, 6):
        compose = steps.Compose([steps.ToTensor(), steps.Normalize((number / 10,), (0.5,))])
        lazily, bare = both_ways(lambda made=compose: facts(made(Image.open(photo))))
        assert lazily == bare
    assert len(last_steps._tables) == 3


def test_settings_may_stand_in_tensors(steps: Any, photo: Path) -> None:
    normalize = steps.Normalize(torch.tensor(MEAN), torch.tensor(STD))
    compose = steps.Compose([steps.ToTensor(), normalize])
    for _ in range(2):
        lazily, bare = both_ways(lambda: facts(compose(Image.open(photo))))
        assert lazily == bare
        normalize.mean += 0.1
    assert [length for _, length in last_steps._tables.values()] == [2, 2]


@pytest.mark.parametrize("mean", [np.array(MEAN), torch.tensor(MEAN).view(3, 1, 1), 0.5])
def test_a_step_with_settings_of_another_kind_is_left_to_the_script(
    steps: Any, photo: Path, mean: Any
) -> None:
    compose = steps.Compose([steps.ToTensor(), steps.Normalize(mean, STD)])
    lazily, bare = both_ways(lambda: facts(compose(Image.open(photo))))
    assert lazily == bare
    assert [length for _, length in last_steps._tables.values()] == [1]


def test_a_step_that_looks_at_the_whole_image_is_no_table(
    steps: Any, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps.F, "normalize", lambda image, *_: image - image.mean())
    compose = steps.Compose([steps.ToTensor(), steps.Normalize(MEAN, STD)])
    lazily, bare = both_ways(lambda: facts(compose(Image.open(photo))))
    assert lazily == bare
    assert [length for _, length in last_steps._tables.values()] == [1]


def test_other_numbers_than_32_bit_are_left_to_the_script(
    steps: Any, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = steps.F.to_tensor
    monkeypatch.setattr(steps.F, "to_tensor", lambda image: own(image).to(torch.get_default_dtype()))
    compose = steps.Compose([steps.ToTensor(), steps.Normalize(MEAN, STD)])
    torch.set_default_dtype(torch.float64)
    try:
        lazily, bare = both_ways(lambda: facts(compose(Image.open(photo))))
    finally:
        torch.set_default_dtype(torch.float32)
    assert lazily == bare
    assert lazily[1] == torch.float64


def test_a_step_that_raises_does_so_for_the_scripts_image(steps: Any, photo: Path) -> None:
    seen = []

    class Fails(steps.Normalize):
        def forward(self, image: Any) -> Any:
            seen.append(tuple(image.shape))
            raise ValueError("std evaluated to zero")

    compose = steps.Compose([steps.ToTensor(), Fails(MEAN, STD)])
    with pytest.raises(ValueError, match="std evaluated to zero"):
        compose(Image.open(photo))
    assert seen == [(3, 70, 90)]


def test_classes_of_the_scripts_are_left_to_it(steps: Any, photo: Path) -> None:
    seen = []

    class OwnTensor(steps.ToTensor):
        def __call__(self, image: Any) -> Any:
            seen.append(image.size)
            return super().__call__(image)

    class OwnCompose(steps.Compose):
        pass

    steps.Compose([OwnTensor(), steps.Normalize(MEAN, STD)])(Image.open(photo))
    OwnCompose([steps.ToTensor()])(Image.open(photo))
    assert seen == [(90, 70)]
    assert last_steps._tables == {}


@pytest.mark.parametrize("of_all", [False, True])
def test_a_hook_sees_what_it_sees_bare(steps: Any, photo: Path, of_all: bool) -> None:
    seen = []

    def hook(_module: Any, inputs: Any, _output: Any) -> None:
        seen.append(tuple(inputs[0].shape))

    normalize = steps.Normalize(MEAN, STD)
    register = torch.nn.modules.module.register_module_forward_hook
    handle = register(hook) if of_all else normalize.register_forward_hook(hook)
    try:
        steps.Compose([steps.ToTensor(), normalize])(Image.open(photo))
    finally:
        handle.remove()
    assert seen == [(3, 70, 90)]


def test_a_tensor_may_be_written_to(steps: Any, photo: Path) -> None:
    image = Image.open(photo).convert("RGB")
    for compose in (steps.Compose([steps.PILToTensor()]), steps.Compose([steps.ToTensor()])):
        first = compose(image)
        before = first.clone()
        first.zero_()
        assert torch.equal(compose(image), before)
    assert np.asarray(image).any()


def test_a_damaged_file_is_refused_where_the_scripts_step_refuses_it(steps: Any, photo: Path) -> None:
    photo.write_bytes(photo.read_bytes()[:1500])
    compose = steps.Compose([steps.ToTensor()])
    for is_on in (True, False):
        switch.here.is_on = is_on
        with Image.open(photo) as image, pytest.raises(OSError, match="image file is truncated"):
            compose(image)


@pytest.mark.parametrize("is_read", [True, False])
def test_an_image_that_was_closed_says_so(steps: Any, photo: Path, is_read: bool) -> None:
    def use() -> Any:
        image = Image.open(photo)
        if is_read:
            image.load()
        image.close()
        try:
            return steps.Compose([steps.ToTensor()])(image)
        except Exception as error:
            return type(error), str(error)

    lazily, bare = both_ways(use)
    assert lazily == bare


def test_nothing_is_done_while_the_switch_is_off(steps: Any, photo: Path) -> None:
    switch.here.is_on = False
    steps.Compose([steps.ToTensor()])(Image.open(photo))
    assert last_steps._tables == {}


def test_a_module_without_its_own_compose_is_left_alone(steps: Any) -> None:
    assert last_steps.install(torch) == ""
    assert last_steps.install(steps) == "torchvision.transforms.transforms.Compose.__call__"
    steps.Compose.__call__ = lambda _self, image: image
    assert last_steps.install(steps) == ""


def test_the_second_transforms_make_their_own_class_of_tensor(
    photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support import second_transforms as second

    module = second.register(monkeypatch)
    monkeypatch.setattr(last_steps, "_tables", {})
    monkeypatch.setattr(second.Compose, "forward", second.Compose.forward)
    assert last_steps.install(module) == "torchvision.transforms.v2._container.Compose.forward"
    image, scaled = second.ToImage(), second.ToDtype(torch.float32, scale=True)
    pipelines = [
        [image], [image, scaled], [image, scaled, second.Normalize(MEAN, STD)],
        [image, second.ToPureTensor(), scaled], [image, second.ToDtype(torch.float16)],
    ]  # fmt: skip
    with lazy_pillow():
        for pipeline in pipelines:
            compose = second.Compose(pipeline)
            lazily, bare = both_ways(lambda made=compose: facts(made(Image.open(photo).convert("RGB"))))
            assert lazily == bare
    found = [(table.kind, length) for table, length in last_steps._tables.values() if table]
    own = second.TensorImage
    assert found == [(own, 1), (own, 2), (own, 3), (torch.Tensor, 3), (own, 1)]
