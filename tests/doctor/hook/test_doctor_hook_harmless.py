# SPDX-License-Identifier: Apache-2.0
"""With the hook, a passive run gives what it gives without: weights, random numbers, output, warnings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from feedrate.doctor.analyse.records import Process
from feedrate.doctor.hook.feedrate_hook import layout
from support.hooked import PREAMBLE, run_script

pytest.importorskip("torch", reason="torch is not installed")

SEEDED = (
    PREAMBLE
    + """
import hashlib, threading, warnings

class Noisy(Numbers):
    def __getitem__(self, index):
        flip = random.random() < 0.5
        noise = torch.rand(4) + float(np.random.rand())
        return (-noise if flip else noise) + index, index % 2

class Counted(IterableDataset):
    # Claims fewer samples than it gives: torch warns inside next().
    def __len__(self): return 1
    def __iter__(self): return iter(range(3))
    def __repr__(self): return "Counted"

def digest(tensors):
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()

def main():
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for workers in (0, 2, 2):
        loader = DataLoader(Noisy(40), batch_size=4, shuffle=True, num_workers=workers)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    print(digest(model.parameters()), digest(s["exp_avg"] for s in optimizer.state.values()))
    print(random.random(), np.random.rand(), torch.rand(1).item())
    print([type(f).__name__ for f in (torch.save, DataLoader.__init__, nn.Module.__call__)])
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":  # of the closed queues to the workers: on its way out
            thread.join()
    print(threading.active_count(), len(vars(loader)), sorted(vars(iter(loader)))[:3])
    counted = DataLoader(Counted(), batch_size=None)
    len(counted)
    list(counted)  # torch warns of this line
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    compiled.eval()
    reference = model(torch.ones(2, 4))
    for x, y in DataLoader(Numbers(24), batch_size=2):
        assert torch.equal(compiled(torch.ones(2, 4)), reference)
    # As on a machine with a GPU: calls that wait for the device break the graph where they always did.
    if "feedrate_hook" in sys.modules:
        from feedrate_hook.record import training as transfers
        transfers.patch_tensors(torch)
    waiting = torch.compile(lambda x: x.double() * x.sum().item() + float(x.max()), backend="eager")
    print(waiting(torch.ones(3)), {k: dict(v) for k, v in torch._dynamo.utils.counters.items()})

if __name__ == "__main__":
    main()
"""
)


def without_log(text: str) -> list[str]:
    """Leave out torch's log lines: they hold the time and the process."""
    return [line for line in text.splitlines() if not re.match(r"[WI]\d{4} ", line)]


def test_a_seeded_run_is_the_same_bit_for_bit_with_the_hook_and_without(tmp_path: Path) -> None:
    hooked_run = run_script(tmp_path, SEEDED, is_forked=False)
    bare = run_script(tmp_path, SEEDED, is_hooked=False)
    assert hooked_run.facts("hook-error") == []
    assert (hooked_run.code, hooked_run.stdout) == (bare.code, bare.stdout) == (0, hooked_run.stdout)
    # The warning of torch names the user's line in both.
    assert "script.py:" in bare.stderr
    assert without_log(hooked_run.stderr) == without_log(bare.stderr)
    assert len(hooked_run.main.of(layout.WAIT)) > 30


LOOKED_AT = (
    PREAMBLE
    + """
class Slow(Dataset):
    def __len__(self): return 24
    def __getitem__(self, index):
        total = 0
        for number in range(400_000):
            total += number % 7
        random.random()
        for number in range(400_000):
            total += number % 5
        return total

for batch in DataLoader(Slow(), batch_size=4, num_workers=1):
    pass
"""
)


def frames_at(process: Process, line: int) -> list[int]:
    """Return the bits of the looks whose innermost frame is at a line of the script."""
    return [
        int(look["a"])
        for look in process.of(layout.STACK)
        if process.name(look["name"]).split("@")[0].endswith(f"script.py:{line}")
    ]


def test_looks_name_the_hot_lines_and_know_what_comes_after_a_random_number(tmp_path: Path) -> None:
    run = run_script(tmp_path, LOOKED_AT, settings={"stack_hz": 200})
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    (worker,) = run.workers
    lines = (tmp_path / "script.py").read_text().splitlines()
    before = frames_at(worker, lines.index("            total += number % 7") + 1)
    after = frames_at(worker, lines.index("            total += number % 5") + 1)
    assert before
    assert after
    known = [bits & layout.RANDOM_DRAWN for bits in before if bits & layout.DRAWS_KNOWN]
    assert known
    assert set(known) == {0}
    known = [bits & layout.RANDOM_DRAWN for bits in after if bits & layout.DRAWS_KNOWN]
    assert set(known) == {layout.RANDOM_DRAWN}
    assert all(bits & layout.IN_FETCH for bits in before + after)
