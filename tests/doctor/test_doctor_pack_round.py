# SPDX-License-Identifier: Apache-2.0
"""The round that the doctor advertises, in real runs: doctor, pack, Loader, doctor --verify."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from feedrate.cli import main
from support.images import save_image

pytest.importorskip("torch", reason="torch is not installed")

LOOP = """
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range({epochs}):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x.float().mean(dim=(2, 3))), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
BEFORE = """
import sys
from pathlib import Path
import numpy, torch
from PIL import Image
torch.set_num_threads(1)

class Photos(torch.utils.data.Dataset):
    files = sorted(Path(sys.argv[1]).rglob("*.jpg"))
    def __len__(self):
        return len(self.files)
    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB").resize((32, 32))
        return torch.from_numpy(numpy.array(image)).permute(2, 0, 1), int("dog" in str(self.files[index]))

loader = torch.utils.data.DataLoader(Photos(), batch_size=4, shuffle=True)
"""
AFTER = """
import sys
import torch
import feedrate
torch.set_num_threads(1)
loader = feedrate.Loader(sys.argv[1], 4, image=feedrate.Resize((32, 32)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("round")
    for number in range(48):
        save_image(
            root / "photos" / ("dog", "cat")[number % 2] / f"{number}.jpg", number, width=400, height=300
        )
    (root / "train.py").write_text(BEFORE + LOOP.format(epochs=4))
    (root / "train_packed.py").write_text(AFTER + LOOP.format(epochs=40))
    (root / "train_long.py").write_text(AFTER + LOOP.format(epochs=100_000))
    assert main(["pack", str(root / "photos"), str(root / "pack")]) == 0
    return root


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_loader_in_place_of_a_dataloader_is_compared_with_it(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before, after = folder / "before.json", folder / "after.json"
    doctor = ["doctor", "--passive", "--force"]
    assert main([*doctor, "--json", str(before), "--", sys.executable, str(folder / "train.py"),
                 str(folder / "photos")]) == 0  # fmt: skip
    assert {"loader", "faster-decode"} <= {remedy["name"] for remedy in read(before)["remedies"]}
    capfd.readouterr()
    verify = ["--verify", str(before), "--applied", "loader", "--json", str(after)]
    script = [sys.executable, str(folder / "train_packed.py"), str(folder / "pack")]
    code = main([*doctor, *verify, "--", *script])
    text = capfd.readouterr().out
    assert code == 0
    assert "changed   workers" not in text
    assert "loader: DataLoader -> feedrate.Loader" in text
    assert "by 'pack the images and feed them with feedrate.Loader'" in " ".join(text.split())
    run = read(after)["run"]
    assert (run["steps"] > 100, run["workers"]) == (True, 0)
    assert run["threads"] > 0
    assert not {"pack", "loader", "faster-decode", "more-workers"} & {
        one["name"] for one in read(after)["remedies"]
    }


@pytest.mark.slow
def test_a_run_of_a_loader_gets_its_experiments_and_a_verdict(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    document = folder / "long.json"
    code = main(["doctor", "--steps", "20", "--json", str(document), "--", sys.executable,
                 str(folder / "train_long.py"), str(folder / "pack")])  # fmt: skip
    assert code == 3, capfd.readouterr().err
    report = read(document)
    assert report["verdict"]
    assert {"real", "device", "loader", "loader-again"} <= {rate["name"] for rate in report["rates"]}
    assert any(part["kind"] == "decode" and part["name"] == "feedrate" for part in report["sample"])
    facts = {fact["name"]: fact["value"] for fact in report["facts"]}
    assert facts["loader"].startswith("feedrate.Loader")
    assert facts["stages of the loader"].startswith("read and decode")
