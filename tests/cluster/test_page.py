"""The code blocks of docs/ray.md, which `tests/docs` runs only where its interpreter has Ray."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from machines import Machines

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "docs")]

import pages  # noqa: E402

BLOCKS = [block for block in pages.all_blocks() if "ray" in block.kind]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_block(block: pages.Block, machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a program, in this process, which is connected to the tests' cluster: to start one for each takes far longer than the block."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"line_{block.line}.py"
    path.write_text(block.text, encoding="utf-8")
    runpy.run_path(str(path), run_name="__main__")


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 4
