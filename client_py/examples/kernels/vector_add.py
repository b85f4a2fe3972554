"""vector_add: the sum of two vectors, one thread an element."""

from __future__ import annotations

from typing import Any

from common import Example, main, source, vector


def declare(k: Any) -> Any:
    return k.kernel(
        source("vector_add.cu"),
        "vector_add",
        "out float c[n], const float a[n], const float b[n], int n",
        grid="ceil_div(n, 256)",
        block=256,
    )


def call(kernel: Any, place: Any, a: Any, b: Any) -> Any:
    c = place.empty(a.shape)
    kernel(c, a, b, a.shape[0])
    return c


EXAMPLE = Example(
    "vector_add",
    declare,
    call,
    inputs=lambda random, n: (vector(random, n), vector(random, n)),
    expected=lambda a, b: a + b,
    sizes=((1,), (255,), (257,), (5003,), (0,)),
    large=(16_777_259,),
)

if __name__ == "__main__":
    main(EXAMPLE, __doc__)
