"""Takes host code out of CUDA sources, by the daemon's own rules (daemon/source/hostcode.h), which the compiled part of the
package has."""

from __future__ import annotations

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
    result = []
    for part in compiled_part("finding host code").host_parts(given):
        start, end = (len(given[:at].decode("utf-8", "surrogatepass")) for at in part)
        result.append([token for token in found if start <= token.start < end])
    return result
