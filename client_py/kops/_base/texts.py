"""Words in messages."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """ "1 input", "2 inputs". """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
