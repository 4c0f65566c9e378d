# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from support import fake_gpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, library: Path) -> fake_gpu.FakeGpu:
    return fake_gpu.install(monkeypatch, library)
