"""gemm_kernel: the product of two matrices, in blocks that go through shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from common import Example, main, source, vector


def declare(k: Any) -> Any:
    return k.kernel(
        source("gemm.cu"),
        "gemm_kernel",
        "out float c[n][m], const float a[n][k], const float b[k][m], int n, int m, int k",
        grid="ceil_div(n, 64) * ceil_div(m, 64)",
        block=256,
    )


def call(kernel: Any, place: Any, a: Any, b: Any) -> Any:
    (n, k), m = a.shape, b.shape[1]
    c = place.empty((n, m))
    kernel(c, a, b, n, m, k)
    return c


EXAMPLE = Example(
    "gemm",
    declare,
    call,
    # Small values: what is compared is the kernel, not the order in which it adds.
    inputs=lambda random, n, m, k: (vector(random, n, k) / max(k, 1) ** 0.5, vector(random, k, m)),
    expected=lambda a, b: (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32),
    sizes=((1, 1, 1), (65, 63, 17), (33, 70, 40), (0, 5, 4), (5, 0, 4), (3, 4, 0)),  # n, m, k; with k = 0 c is zero
    large=(1025, 1023, 1031),
)

if __name__ == "__main__":
    main(EXAMPLE, __doc__)
