"""custom_kernel: twice its input."""

from __future__ import annotations

from typing import Any

from common import Example, main, source, vector


def declare(k: Any) -> Any:
    return k.kernel(
        source("custom.cu"),
        "custom_kernel",
        "out float out[n], const float in[n], int n",
        grid="ceil_div(n, 256)",
        block=256,
    )


def call(kernel: Any, place: Any, a: Any) -> Any:
    out = place.empty(a.shape)
    kernel(out, a, a.shape[0])
    return out


EXAMPLE = Example(
    "custom",
    declare,
    call,
    inputs=lambda random, n: (vector(random, n),),
    expected=lambda a: 2 * a,
    sizes=((1,), (255,), (257,), (5003,), (0,)),
    large=(16_777_259,),
)

if __name__ == "__main__":
    main(EXAMPLE, __doc__)
