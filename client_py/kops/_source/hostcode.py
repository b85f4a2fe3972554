"""Takes host code out of CUDA sources, by the daemon's own rules (daemon/source/hostcode.h), which the compiled part of the
package has."""

from __future__ import annotations

from collections.abc import Sequence

from .._base.compiled import compiled_part

__all__ = ["blank"]


def blank(texts: Sequence[str]) -> list[str]:
    """The texts of one program without host code, with a blank for each byte of that. Lines keep their numbers."""
    made = compiled_part("blanking host code").blank([text.encode("utf-8", "surrogatepass") for text in texts])
    return [text.decode("utf-8", "surrogatepass") for text in made]
