# SPDX-License-Identifier: Apache-2.0
"""GPUs that were not measured here: memory, rate of copies, images per second, from what others published.

A figure of this table is `assumed`, with its source as its note. Of a GPU that is not in it nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from feedrate.errors import UsageError
from feedrate.figures import ASSUMED, Figure

KNOWN_MODELS = ("resnet18", "resnet50", "densenet121", "vit_b_16")
TRAINING, INFERENCE = "training", "inference"

# Images per second of 224 x 224 pixels on one H200: torch 2.11, bfloat16 autocast, channels-last, batches of
# 256 that are on the device: benchmarks/results/model-rates.json. Their ratios give what is not published of
# other GPUs.
REFERENCE: Mapping[str, Mapping[str, float]] = {
    TRAINING: dict(zip(KNOWN_MODELS, (13_025, 4_691, 2_942, 2_438), strict=True)),
    INFERENCE: dict(zip(KNOWN_MODELS, (37_777, 15_243, 9_531, 6_943), strict=True)),
}
_OURS = "measured for feedrate on an H200, torch 2.11, bfloat16, channels-last, batches of 256"

# https://github.com/NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5/README.md
# (pytorch-21.03 container): one GPU, mixed precision; of inference the row of batches of 256.
_NVIDIA = "NVIDIA DeepLearningExamples, ResNet-50 v1.5 for PyTorch, mixed precision"
# https://github.com/huggingface/pytorch-image-models, results/: benchmark-train-amp-nhwc-pt112-cu113-rtx3090,
# benchmark-infer-amp-nhwc-pt240-cu124-rtx3090, the same for rtx4090, and
# benchmark-infer-amp-nchw-pt291-cu130-5090; resnet18, resnet50, densenet121, vit_base_patch16_224 at 224.
# Left out: vit_b_16's training of 2022 (393 images/s), with a torch that had no fused attention.
_TIMM = "timm (pytorch-image-models), results/benchmark-*-amp-*.csv"
# https://github.com/lambdal/deeplearning-benchmark: pytorch/csv_v1_v2/pytorch-train-throughput-fp16.csv; the
# RTX 2080 Ti of pytorch-train-throughput-fp16.csv (2020).
_LAMBDA = "Lambda deeplearning-benchmark, ResNet-50, fp16"
# Lambda's runs are slower than those above on all GPUs that both have: A100 80 GB 1,582 to 2,470 (1.56), V100
# 833 to 1,200 (1.44), RTX 3090 905 to 1,218 (1.35). The geometric mean:
_LAMBDA_GAIN = 1.45

# Half of an interval, as a factor. Models are to each other on an RTX 3090, 4090 and 5090 as they are on the
# H200 within 1.47.
_MEASURED_WITHIN, _PUBLISHED_WITHIN, _SCALED_WITHIN = 1.1, 1.2, 1.5
# PCI-SIG: 16 lanes, one direction, GB/s; an H200 (generation 5) was seen to reach 55.0 from pinned memory.
_PCIE = {3: 15.75e9, 4: 31.5e9, 5: 63.0e9}
_PCIE_REACHED = 55.0 / 63.0


@dataclass(frozen=True, slots=True)
class Published:
    """Images per second of one source, by model. `gain`: what they are multiplied with, `why` in words."""

    source: str
    training: Mapping[str, float] = field(default_factory=dict)
    inference: Mapping[str, float] = field(default_factory=dict)
    gain: float = 1.0
    why: str = ""


def _lambda(resnet50: float, gain: float = 1.0, why: str = "") -> Published:
    because = f"times {_LAMBDA_GAIN}, what others measured above Lambda" + (f"; {why}" if why else "")
    return Published(_LAMBDA, {"resnet50": resnet50}, gain=_LAMBDA_GAIN * gain, why=because)


def _timm(training: tuple[float, ...] = (), inference: tuple[float, ...] = ()) -> Published:
    # As far as given, in the order of KNOWN_MODELS.
    models = [dict(zip(KNOWN_MODELS, rates, strict=False)) for rates in (training, inference)]
    return Published(_TIMM, models[0], models[1])


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One kind of GPU.

    Attributes:
        name: as this table has it; `key`: what is left of a name without maker, brand and form.
        pcie_generation: of its 16 lanes; of the card, where the board may offer less.
        published: rates; none: somebody has to give one.
    """

    name: str
    key: str
    memory_gb: int
    pcie_generation: int
    published: tuple[Published, ...] = ()
    is_pcie: bool = False  # a slower card beside one with NVLink, under the same name

    @property
    def sheet(self) -> str:
        return f"data sheet of the {self.name}"

    @property
    def memory_bytes(self) -> Figure:
        return Figure.exactly(self.memory_gb * 1e9, ASSUMED, self.sheet)

    @property
    def to_device_bytes_per_s(self) -> Figure:
        note = f"PCIe {self.pcie_generation} x16 ({self.sheet}), as far as an H200 was seen to use its own"
        return Figure.within(_PCIE[self.pcie_generation] * _PCIE_REACHED, 1.2, ASSUMED, note)


# Of several with one key, the first is meant when a name says no more.
GPUS = (
    GpuFacts("H200", "h200", 141, 5, (Published(_OURS, REFERENCE[TRAINING], REFERENCE[INFERENCE]),)),
    GpuFacts("H100-SXM", "h100", 80, 5, (_lambda(2791),)),
    GpuFacts("H100-PCIe", "h100", 80, 5, (_lambda(1976),), is_pcie=True),
    GpuFacts("A100-40GB", "a100", 40, 4, (_lambda(1396),)),
    GpuFacts("A100-80GB", "a100", 80, 4, (Published(_NVIDIA, {"resnet50": 2470}),)),
    GpuFacts("V100-16GB", "v100", 16, 3, (Published(_NVIDIA, {"resnet50": 1200}, {"resnet50": 3382}),)),
    GpuFacts("V100-32GB", "v100", 32, 3, (Published(_NVIDIA, {"resnet50": 1156}),)),
    GpuFacts("T4", "t4", 16, 3, (Published(_NVIDIA, {}, {"resnet50": 1198}),)),
    GpuFacts("L4", "l4", 24, 4),
    GpuFacts(
        "L40S", "l40s", 48, 4, (_lambda(1146, 864 / 960, "the RTX 6000 Ada's chip with 864 of 960 GB/s"),)
    ),
    GpuFacts("A10", "a10", 24, 4, (_lambda(638),)),
    GpuFacts("A40", "a40", 48, 4, (_lambda(916, 696 / 768, "the RTX A6000's chip with 696 of 768 GB/s"),)),
    GpuFacts("RTX A6000", "a6000", 48, 4, (_lambda(916),)),
    GpuFacts("RTX 6000 Ada", "6000ada", 48, 4, (_lambda(1146),)),
    GpuFacts("Quadro RTX 8000", "8000", 48, 3, (_lambda(651),)),
    GpuFacts("RTX 2080 Ti", "2080ti", 11, 3, (_lambda(526),)),
    GpuFacts("RTX 3090", "3090", 24, 4, (_timm((3482, 1218, 914), (11_189, 3730, 3032, 1572)),)),
    GpuFacts("RTX 4090", "4090", 24, 4, (_lambda(1301), _timm((), (18_247, 5088, 3896, 2843)))),
    GpuFacts("RTX 5090", "5090", 32, 5, (_timm((), (19_879, 6356, 5369, 3916)),)),
    GpuFacts("MI250X", "mi250x", 128, 4),
    GpuFacts("MI300X", "mi300x", 192, 5),
)

# What a name may say beside: maker, brand, form, memory. Any other word makes it another GPU: a laptop's, a
# part of one (MIG), an NVL pair, a Ti or Super.
_BESIDE = re.compile(r"nvidia|amd|tesla|geforce|instinct|quadro|rtx|gpu|sxm\d?|pcie|hbm\d?e?|generation")


def find_gpu(name: str) -> GpuFacts | None:
    """Return what is known of a GPU by the name that NVML, `nvidia-smi` or people give it; None: nothing."""
    text = re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()
    text = re.sub(r"\b(rtx|gtx)(?=\w)", r"\1 ", text)
    sizes = re.findall(r"\b(\d+) ?gi?b?\b", text)
    words = re.sub(r"\b\d+ ?gi?b?\b", " ", text).split()
    key = "".join(word for word in words if not _BESIDE.fullmatch(word))
    found = [gpu for gpu in GPUS if gpu.key == key and (not sizes or gpu.memory_gb == int(sizes[0])) and key]
    with_form = [gpu for gpu in found if gpu.is_pcie == ("pcie" in words)]
    return next(iter(with_form or found), None)


def find_model_rate(gpu: str, model: str, *, training: bool = True) -> Figure | None:
    """Return the images per second of a known model on a GPU, 224 pixels wide; None: nobody published any.

    What was published of another model, or of inference instead of training, is scaled as the H200's rates
    are to each other.

    Raises:
        UsageError: there is no such model.
    """
    facts, model = find_gpu(gpu), check_model(model)
    if facts is None:
        return None
    kind, other = (TRAINING, INFERENCE) if training else (INFERENCE, TRAINING)
    for of_kind, of_model in ((kind, model), (kind, "resnet50"), (other, model), (other, "resnet50")):
        for published in facts.published:
            rates = published.training if of_kind == TRAINING else published.inference
            if of_model in rates:
                ratio = REFERENCE[kind][model] / REFERENCE[of_kind][of_model]
                return _describe(facts, published, rates[of_model], ratio, f"{of_model} {of_kind}")
    return None


def _describe(facts: GpuFacts, published: Published, rate: float, ratio: float, what: str) -> Figure:
    notes = [f"{facts.name}: {published.source}", published.why]
    if ratio != 1:
        notes.append(f"scaled from {what} as on an H200")
    is_as_published = ratio == 1 and published.gain == 1
    within = _PUBLISHED_WITHIN if is_as_published else _SCALED_WITHIN
    if is_as_published and published.source == _OURS:
        within = _MEASURED_WITHIN
    note = "; ".join(note for note in notes if note)
    return Figure.within(rate * published.gain * ratio, within, ASSUMED, note)


def check_model(name: str) -> str:
    """Return the name of a known model.

    Raises:
        UsageError: there is none of that name.
    """
    if name in KNOWN_MODELS:
        return name
    import difflib

    # People write ResNet-50 and vit-b-16.
    plain = {known.replace("_", ""): known for known in KNOWN_MODELS}
    typed = "".join(c for c in name.lower() if c.isalnum())
    near = difflib.get_close_matches(typed, plain, n=1)
    hint = f"did you mean '{plain[near[0]]}'? " if near else ""
    raise UsageError(f"there is no model '{name}'", hint=f"{hint}known: {', '.join(KNOWN_MODELS)}")
