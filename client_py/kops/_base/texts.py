"""Words in messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher


def counted(count: int, noun: str) -> str:
    """ "1 input", "2 inputs"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def closest_first(name: str, known: Iterable[str]) -> list[str]:
    """What there is, the most similar to what was asked for first."""
    return sorted(known, key=lambda other: -SequenceMatcher(None, name.lower(), other.rpartition("::")[2].lower()).ratio())
