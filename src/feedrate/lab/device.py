# SPDX-License-Identifier: Apache-2.0
"""Standard models, and how many images per second a device takes of them.

ResNet, DenseNet and the vision transformer as their papers have them, with the parameters of the published
models, so that a rate measured here is that of a script which takes them from elsewhere. Batches are made
once and are on the device: what is measured is the device, without any loader.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from feedrate.errors import GpuError, UsageError
from feedrate.loader.device.transfer import check_device
from feedrate.machine.describe import read_cpu_model
from feedrate.machine.gpu import describe_gpus
from feedrate.model.gpus import KNOWN_MODELS, check_model
from feedrate.stats import median, spread

if TYPE_CHECKING:
    import torch

MODELS = KNOWN_MODELS
SIDE = 224
BATCH_SIZE = 256
_WARM_UP_STEPS = 3
_WINDOWS = 8  # of which the interval is made
_SMALLEST_SIDE = 32  # halved five times, one pixel is left
_PATCH = 16  # of the vision transformer, pixels
INSTALL = "pip install --force-reinstall torch"  # on Linux, PyPI has the build for CUDA
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class ModelRate:
    """How many images per second a device takes of a model, on batches that are on it; measured.

    Attributes:
        device: the name of the GPU, or of the CPU.
        low, high: quartiles over the windows of the measurement.
        images: that the rate was measured with.
    """

    model: str
    device: str
    training: bool
    batch_size: int
    image_side: int
    dtype: str
    images_per_s: float
    low: float
    high: float
    images: int


def make_model(name: str, classes: int = 1000, *, side: int = SIDE) -> Any:
    """Return a model with random weights; `side`: of the images, which only vit_b_16 has to know.

    Raises:
        UsageError: there is no such model, or it cannot take such images.
    """
    makers = {
        "resnet18": lambda: _make_resnet((2, 2, 2, 2), classes, is_deep=False),
        "resnet50": lambda: _make_resnet((3, 4, 6, 3), classes, is_deep=True),
        "densenet121": lambda: _make_densenet((6, 12, 24, 16), classes),
        "vit_b_16": lambda: _define().Transformer(classes, side),
    }
    check_side(check_model(name), side)
    return makers[name]()


def check_side(name: str, side: int) -> None:
    """Refuse images that a model cannot take.

    Raises:
        UsageError: they are too small, or no whole number of patches.
    """
    if side < _SMALLEST_SIDE:
        raise UsageError(f"images must be at least {_SMALLEST_SIDE} pixels wide and high, got {side}")
    if name == "vit_b_16" and side % _PATCH:
        raise UsageError(
            f"vit_b_16 takes images whose side is a multiple of {_PATCH}, got {side}",
            hint=f"the nearest: {round(side / _PATCH) * _PATCH}",
        )


def _make_resnet(depths: Sequence[int], classes: int, *, is_deep: bool) -> Any:
    from torch import nn

    modules = _define()
    width_in, blocks = 64, []
    for stage, depth in enumerate(depths):
        width = 64 << stage
        width_out = 4 * width if is_deep else width
        for number in range(depth):
            stride = 2 if stage and not number else 1
            if is_deep:
                body = [*_conv(width_in, width, 1), nn.ReLU(inplace=True), *_conv(width, width, 3, stride)]
                body += [nn.ReLU(inplace=True), *_conv(width, width_out, 1)]
            else:
                body = [*_conv(width_in, width, 3, stride), nn.ReLU(inplace=True), *_conv(width, width, 3)]
            is_same = stride == 1 and width_in == width_out
            shortcut = nn.Identity() if is_same else nn.Sequential(*_conv(width_in, width_out, 1, stride))
            blocks.append(modules.Residual(nn.Sequential(*body), shortcut))
            width_in = width_out
    return nn.Sequential(
        *_conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width_in, classes),
    )  # fmt: skip


def _conv(width_in: int, width_out: int, side: int, stride: int = 1) -> tuple[Any, Any]:
    from torch import nn

    convolution = nn.Conv2d(width_in, width_out, side, stride, side // 2, bias=False)
    return convolution, nn.BatchNorm2d(width_out)


def _make_densenet(depths: Sequence[int], classes: int, growth: int = 32) -> Any:
    from torch import nn

    def activate(width: int) -> tuple[Any, Any]:
        return nn.BatchNorm2d(width), nn.ReLU(inplace=True)

    width, layers = 64, [*_conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    for stage, depth in enumerate(depths):
        if stage:  # a transition halves the channels and the sides
            layers += [*activate(width), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
        for _ in range(depth):
            body = [*activate(width), nn.Conv2d(width, 4 * growth, 1, bias=False)]
            body += [*activate(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)]
            layers.append(_define().Dense(nn.Sequential(*body)))
            width += growth
    layers += [*activate(width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    return nn.Sequential(*layers)


class _Modules(NamedTuple):
    Residual: Any
    Dense: Any
    Transformer: Any


@functools.cache
def _define() -> _Modules:
    """Return the classes of modules that torch has not; in a function, since they need torch to be there."""
    import torch
    from torch import nn

    class Residual(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self, body: Any, shortcut: Any) -> None:
            super().__init__()
            self.body, self.shortcut = body, shortcut

        def forward(self, x: Any) -> Any:
            return torch.relu(self.body(x) + self.shortcut(x))

    class Dense(nn.Module):  # type: ignore[misc, unused-ignore]
        """Adds channels to those that are there."""

        def __init__(self, body: Any) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Any) -> Any:
            return torch.cat([x, self.body(x)], 1)

    class Transformer(nn.Module):  # type: ignore[misc, unused-ignore]
        """ViT-B/16: 12 layers over patches and one more token, from which the class is read."""

        def __init__(self, classes: int, side: int, width: int = 768) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, _PATCH, _PATCH)
            self.token = nn.Parameter(torch.zeros(1, 1, width))
            self.positions = nn.Parameter(torch.zeros(1, 1 + (side // _PATCH) ** 2, width))
            layers = [
                nn.TransformerEncoderLayer(
                    width, 12, 4 * width, dropout=0.0, activation="gelu", layer_norm_eps=1e-6,
                    batch_first=True, norm_first=True,
                )
                for _ in range(12)
            ]  # fmt: skip
            self.layers = nn.Sequential(*layers, nn.LayerNorm(width, 1e-6))
            self.head = nn.Linear(width, classes)

        def forward(self, x: Any) -> Any:
            patches = self.patches(x).flatten(2).transpose(1, 2)
            tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.positions
            return self.head(self.layers(tokens)[:, 0])

    return _Modules(Residual, Dense, Transformer)


class Step:
    """One step of a model on a batch of bytes: forward, and in training backward and SGD.

    On CUDA in half precision (bfloat16 where the GPU has it), channels last; on a CPU in float32.
    """

    def __init__(self, model: torch.nn.Module, device: torch.device, *, training: bool) -> None:
        import torch

        self._torch, self.device, self.training = torch, device, training
        self._is_cuda = device.type == "cuda"
        self.dtype = choose_dtype(device)
        self.model = model.to(device, memory_format=torch.channels_last).train(training)
        self._mean = torch.tensor(_MEAN, device=device).mul_(255).view(1, 3, 1, 1)
        self._std = torch.tensor(_STD, device=device).mul_(255).view(1, 3, 1, 1)
        if training:
            self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        torch = self._torch
        dtype = getattr(torch, self.dtype)
        with (
            torch.set_grad_enabled(self.training),
            torch.autocast(self.device.type, dtype=dtype, enabled=self._is_cuda),
        ):
            pixels = images.to(memory_format=torch.channels_last).sub(self._mean).div_(self._std)
            answers = self.model(pixels)
            if not self.training:
                return
            loss = torch.nn.functional.cross_entropy(answers, labels)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def synchronize(self) -> None:
        if self._is_cuda:
            self._torch.cuda.synchronize(self.device)


class Choice(NamedTuple):
    """The device to train on. `unused`: words on a GPU that is here all the same; `install`: for it."""

    device: torch.device
    unused: str = ""
    install: str = ""


def choose_device(asked: str | None) -> Choice:
    """Return the device that was asked for; else a GPU where torch finds one.

    Raises:
        UsageError: it is not there; the hint says what to install, where that is the reason.
    """
    import torch

    gpus = [gpu.name for gpu in describe_gpus()]
    is_cpu_build = torch.version.cuda is None and getattr(torch.version, "hip", None) is None
    build = f"torch {torch.__version__} is a build for the CPU"
    if asked is not None and asked.startswith("cuda") and is_cpu_build:
        where = f"{gpus[0]} is here, but {build}" if gpus else f"{build}, and NVML sees no GPU here"
        raise UsageError(f"--device {asked}: {where}", hint=INSTALL if gpus else "leave out --device")
    device = check_device(asked or ("cuda" if torch.cuda.is_available() else "cpu"), "torch")
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return Choice(torch.device("cuda", index))
    if not gpus or (asked == "cpu" and not is_cpu_build):
        return Choice(device)
    if is_cpu_build:
        return Choice(device, f"{gpus[0]} is here, but not used: {build}; to use it: {INSTALL}", INSTALL)
    return Choice(device, f"{gpus[0]} is here, but torch {torch.__version__} cannot use it: see nvidia-smi")


def choose_dtype(device: torch.device) -> str:
    """Return what a step computes in; GPUs before Ampere have no bfloat16 that is fast."""
    import torch

    if device.type != "cuda":
        return "float32"
    return "bfloat16" if torch.cuda.get_device_capability(device)[0] >= 8 else "float16"


def describe_device(device: torch.device) -> str:
    """Return the name of a GPU, or of the CPU where that is the device."""
    import torch

    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else read_cpu_model()


def measure_model(
    name: str,
    device: str | torch.device,
    *,
    training: bool,
    batch_size: int = BATCH_SIZE,
    seconds: float = 5.0,
    side: int = SIDE,
    make: Callable[..., Any] = make_model,
    clock: Callable[[], float] = time.perf_counter,
) -> ModelRate:
    """Measure how many images per second a device takes of a model, on a batch that is on it already.

    The first steps are not counted. A batch that does not fit into the memory is halved; the result says
    which it was.

    Args:
        training: forward, backward and optimizer; else forward alone.
        make: makes the model, as `make_model` does.

    Raises:
        UsageError: there is no such model.
        GpuError: not even one image fits.
    """
    import torch

    device = torch.device(device)
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = (
        True  # let cuDNN try which of its algorithms is the fastest, as trainings do
    )
    try:
        step = Step(make(name, side=side), device, training=training)
        batch = _fit(step, batch_size, side, seconds, clock)
        rates, images = _time_windows(step, batch, seconds, clock)
    finally:
        torch.backends.cudnn.benchmark = before
    low, high = spread(rates)
    return ModelRate(
        model=name,
        device=describe_device(device),
        training=training,
        batch_size=len(batch[0]),
        image_side=side,
        dtype=step.dtype,
        images_per_s=median(rates),
        low=low,
        high=high,
        images=images,
    )


def make_batch(device: torch.device, batch_size: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    images = torch.randint(0, 256, (batch_size, side, side, 3), dtype=torch.uint8, device=device)
    return images.permute(0, 3, 1, 2), torch.randint(0, 1000, (batch_size,), device=device)


def _fit(
    step: Step, batch_size: int, side: int, seconds: float, clock: Callable[[], float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest batch that fits, halving; its first steps are done."""
    while True:
        try:
            batch, began = make_batch(step.device, batch_size, side), clock()
            for _ in range(_WARM_UP_STEPS):
                step(*batch)
                if step.device.type == "cpu" and clock() - began > seconds:
                    break  # of a CPU the first step alone is slow
            step.synchronize()
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if "memory" not in str(error):
                raise
            if batch_size == 1:
                raise GpuError(
                    f"a step with one image of {side} x {side} pixels does not fit into the memory of "
                    f"{describe_device(step.device)}",
                    hint="is another process using it? see nvidia-smi; or take smaller images: --size N",
                ) from error
        else:
            return batch
        # Outside of `except`, whose error holds on to the tensors of the step.
        batch_size //= 2
        gc.collect()
        if step.device.type == "cuda":
            step._torch.cuda.empty_cache()


def _time_windows(
    step: Step, batch: tuple[torch.Tensor, torch.Tensor], seconds: float, clock: Callable[[], float]
) -> tuple[list[float], int]:
    """Return images/s of some windows of whole steps, and the images of all together."""
    began = clock()
    rates: list[float] = []
    images = 0
    while len(rates) < 2 or clock() - began < seconds:
        opened, count = clock(), 0
        while not count or clock() - opened < seconds / _WINDOWS:
            step(*batch)
            count += len(batch[0])
        step.synchronize()
        rates.append(count / (clock() - opened))
        images += count
    return rates, images
