"""The code blocks of the pages.

A fence says its language. A comment on the line before it says how the block is tested where that is not simply "run it":

    <!-- doctest: file NAME -->          run; it is kept as NAME for the blocks that follow on the page
    <!-- doctest: with SETUP -->         run after setups/SETUP.py or between the halves of setups/SETUP.c
    <!-- doctest: gpu with SETUP -->     the same on a daemon with a GPU, here the stand-in's; checked where there is none
    <!-- doctest: torch with SETUP -->   the same with PyTorch; checked where it is not installed
    <!-- doctest: ray with SETUP -->     the same with Ray
    <!-- doctest: check, REASON -->      not run: parsed, and every name, command and option in it must exist
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("python", "c", "sh", "json", "ini", "text", "cuda")
FENCE = re.compile(r"^\s*```(\S*)\s*$")
MARKER = re.compile(r"^\s*<!-- doctest: (.*?) -->$")
KIND = re.compile(r"file (?P<file>[\w.]+)|(?:(?P<gpu>gpu )|(?P<torch>torch )|(?P<ray>ray ))?with (?P<setup>\w+)|check, (?P<reason>.+)")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    marker: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def kind(self) -> dict[str, str]:
        """What the marker says; nothing when there is none."""
        match = KIND.fullmatch(self.marker) if self.marker else None
        return {name: value for name, value in match.groupdict().items() if value} if match else {}

    @property
    def problem(self) -> str | None:
        """Why the block cannot be tested; None when it can."""
        if self.language not in LANGUAGES:
            return f"the fence names no language of {', '.join(LANGUAGES)}"
        if self.marker and not self.kind:
            return f"the marker `{self.marker}` is none of those that there are"
        return None


def pages() -> list[Path]:
    """All that git knows, or where there is no git, all that lie in the tree."""
    try:
        listed = subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        listed = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*.md") if "build" not in path.parts]
    return [ROOT / name for name in sorted(listed) if (ROOT / name).exists()]


def blocks_of(text: str, page: str) -> Iterator[Block]:
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        opening = FENCE.match(lines[at])
        if not opening:
            at += 1
            continue
        end = at + 1
        while end < len(lines) and not re.match(r"^\s*```\s*$", lines[end]):
            end += 1
        marker = MARKER.match(lines[at - 1]) if at else None
        yield Block(page, at + 1, opening[1], "\n".join(lines[at + 1 : end]) + "\n", marker[1] if marker else "")
        at = end + 1


def all_blocks() -> list[Block]:
    return [block for path in pages() for block in blocks_of(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))]
