"""The control page and the other processes of a test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from standin_cuda import Control
from standin_cuda.peer import Peer


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Control:
    if not os.environ.get("KOPS_CUDA_DRIVER"):
        pytest.skip("KOPS_CUDA_DRIVER names no stand-in driver")
    page = Control()
    monkeypatch.setenv("KOPS_STANDIN_CONTROL", page.path)
    return page


@pytest.fixture
def peers(control: Control) -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def new(**env: str) -> Peer:
        made.append(Peer(env))
        return made[-1]

    yield new
    for peer in made:
        peer.kill()
