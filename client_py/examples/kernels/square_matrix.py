"""square_matrix_kernel: a matrix squared element by element, with a grid in two dimensions."""

from __future__ import annotations

from typing import Any

from common import Example, main, source, vector


def declare(k: Any) -> Any:
    return k.kernel(
        source("square_matrix.cu"),
        "square_matrix_kernel",
        "const float in[height][width], out float out[height][width], int width, int height",
        grid=("ceil_div(width, 32)", "min(ceil_div(height, 8), 65535)"),
        block=(32, 8),
    )


def call(kernel: Any, place: Any, a: Any) -> Any:
    out = place.empty(a.shape)
    height, width = a.shape
    kernel(a, out, width, height)
    return out


EXAMPLE = Example(
    "square_matrix",
    declare,
    call,
    inputs=lambda random, height, width: (vector(random, height, width),),
    expected=lambda a: a * a,
    sizes=((1, 1), (7, 33), (64, 65), (0, 5), (5, 0)),
    large=(4097, 4099),
)

if __name__ == "__main__":
    main(EXAMPLE, __doc__)
