"""The code blocks of docs/ray.md, which `tests/docs` runs only where its interpreter has Ray."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "docs")]

import pages  # noqa: E402
from support import backends  # noqa: E402
from support.daemon import Daemon  # noqa: E402

BLOCKS = [block for block in pages.all_blocks() if "ray" in block.kind]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_block(block: pages.Block, tmp_path: Path) -> None:
    from test_docs import Folder, run_python

    with Daemon(config=backends.config(backends.HOST)) as daemon:
        run_python(block, Folder(tmp_path), daemon)


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 4
