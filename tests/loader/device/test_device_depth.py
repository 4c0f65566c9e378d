# SPDX-License-Identifier: Apache-2.0
"""Gray images of more than 8 bits in batches that go to a GPU, which is the CPU here (fake_gpu)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedrate import Cache, Loader, RandomResizedCrop, decode_batch
from feedrate.errors import UsageError
from feedrate.format.fields import Field, Kind
from feedrate.loader.device.transfer import find_pinned
from support.packs import LABEL, encode_image, encode_mixed, write_pack

torch = pytest.importorskip("torch")
OPTIONS: dict[str, Any] = {"image": RandomResizedCrop(12), "flip": True, "seed": 3}


@pytest.fixture
def files() -> list[bytes]:
    """Every third file is gray of 16 bits, the others are JPEG and PNG."""
    deep = [np.random.default_rng(n).integers(0, 65536, (30, 40), dtype=np.uint16) for n in range(12)]
    return [encode_image(deep[n], "PNG") if n % 3 == 0 else encode_mixed(n) for n in range(12)]


@pytest.fixture
def pack(files: list[bytes], tmp_path: Path) -> Path:
    samples = [{"image": data, "label": 0} for data in files]
    return write_pack(tmp_path / "pack", (Field("image", Kind.IMAGE), LABEL), samples)


def load(pack: Path, epochs: int = 1, **options: Any) -> Any:
    with Loader(pack, 12, **{**OPTIONS, **options}) as loader:
        return torch.cat([images.to(torch.float32) for _ in range(epochs) for images, _ in loader])


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("depth", ["clip", (500, 40000)])
@pytest.mark.parametrize("decode", ["cpu", "gpu"])
def test_batches_on_the_device_are_those_of_the_host(pack: Path, depth: Any, decode: str) -> None:
    assert torch.equal(load(pack, device="cuda", decode=decode, depth=depth), load(pack, depth=depth))


@pytest.mark.usefixtures("gpu")
def test_16_bits_arrive_on_the_device(pack: Path) -> None:
    with Loader(pack, 12, device="cuda", depth="uint16", **OPTIONS) as loader:
        ((images, _),) = loader
    assert images.dtype == torch.uint16
    assert torch.equal(images.to(torch.float32), load(pack, depth="uint16"))
    floats = load(pack, device="cuda", depth="uint16", dtype=torch.float32)
    torch.testing.assert_close(floats, load(pack, depth="uint16") / 65535)


@pytest.mark.usefixtures("gpu")
def test_the_tier_on_the_gpu_keeps_what_a_range_makes(pack: Path) -> None:
    options: dict[str, Any] = {"depth": (500, 40000), "epochs": 2}
    kept = load(pack, device="cuda", cache=Cache(gpu="1GB"), **options)
    assert torch.equal(kept, load(pack, **options))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("options", [{"decode": "gpu"}, {"cache": Cache(gpu="1GB")}], ids=["decode", "cache"])
def test_what_makes_8_bits_on_the_gpu_is_refused_for_16(pack: Path, options: dict[str, Any]) -> None:
    with pytest.raises(
        UsageError, match=r'makes pixels of 8 bits on the GPU, and depth="uint16" asks for 16'
    ):
        Loader(pack, device="cuda", depth="uint16", **OPTIONS, **options)


@pytest.mark.usefixtures("gpu")
def test_without_a_depth_the_sample_is_named_there_too(pack: Path) -> None:
    with pytest.raises(UsageError, match=r"sample 'sample-000\d\d'.*more than 8 bits"):
        load(pack, device="cuda", decode="gpu", on_bad_sample="skip")


@pytest.mark.usefixtures("gpu")
def test_decode_batch_on_the_device_takes_a_range(files: list[bytes]) -> None:
    options: dict[str, Any] = {"size": 12, "depth": (500, 40000)}
    there, here = (decode_batch(files, device=device, **options) for device in ("cuda", "cpu"))
    assert torch.equal(there, here)


def test_lent_memory_is_found_again_as_16_bits() -> None:
    lent = torch.zeros((4, 3, 5, 2), dtype=torch.uint8)
    array = lent.numpy().view(np.uint16)[1:3]
    tensor = find_pinned(array)
    array[1, 2, 4, 0] = 40000
    assert (tensor.dtype, tensor.shape) == (torch.uint16, (2, 3, 5, 1))
    assert tensor[1, 2, 4, 0].item() == 40000
    assert tensor.untyped_storage().data_ptr() == lent.untyped_storage().data_ptr()
