"""Takes host code out of CUDA sources, by the daemon's own rules (daemon/source/hostcode.h), which the compiled part of the
package has."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from .._base.compiled import compiled_part
from .tokens import Token, tokens

__all__ = ["blank", "host_parts"]


def blank(texts: Sequence[str]) -> list[str]:
    """The texts of one program without host code, with a blank for each byte of that. Lines keep their numbers."""
    made = compiled_part("blanking host code").blank([text.encode("utf-8", "surrogatepass") for text in texts])
    return [text.decode("utf-8", "surrogatepass") for text in made]


def host_parts(text: str) -> list[list[Token]]:
    """The functions, declarations and variables of the host in a text, each as its tokens."""
    given, found = text.encode("utf-8", "surrogatepass"), tokens(text)
    begins = [token.start for token in found]
    if len(given) != len(text):  # places are of bytes
        done, at = 0, 0
        for i, begin in enumerate(begins):
            at += len(text[done:begin].encode("utf-8", "surrogatepass"))
            done, begins[i] = begin, at
    parts: list[tuple[int, int]] = []
    for start, end in compiled_part("finding host code").host_parts(given):
        if parts and start == parts[-1][0]:  # another body of that function, in another branch of an #if
            parts.pop()
        parts.append((start, end))
    return [found[bisect_left(begins, start) : bisect_left(begins, end)] for start, end in parts]
