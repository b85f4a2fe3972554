"""The methods of clients that make kernels of formulas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .elementwise import AsyncElementwise, Elementwise


class FormulaMethods:
    """Of `Client`."""

    def elementwise(
        self, inputs: str, outputs: str | None = None, operation: str | None = None, *, name: str = "elementwise", prelude: str = "",
        options: Iterable[str] = (), device: Any = None, arch: str | None = None,
    ) -> Elementwise:  # fmt: skip
        """Makes a kernel of a formula in CUDA C++, which is applied to each element:

            f = k.elementwise("x * y + z")
            f = k.elementwise("T x, T y, float alpha", "T out", "out = alpha * x + y", name="axpy")
            c = f(a, b, 0.5)

        The short form takes its operands from the expression, in the order in which they appear; all and the result have one dtype.
        The full form declares inputs and outputs, and `operation` assigns every output; several statements are separated by `;`,
        and `i` is the number of the element. A type is one of C or of a dtype (`float`, `half`, `int64`, `bool`), or a capital
        letter, `T`, for the dtype that a call has. Halves and 8-bit floats are computed as float and rounded once.

        A call takes arrays, which are broadcast as NumPy does, with any strides, and numbers, in the order of the inputs. It returns
        a new array where the first array is, or a tuple; `out=` gives the arrays, which may be operands. The kernel is compiled at
        the first call with other dtypes or layouts, by the daemon, which keeps it. `prelude` comes before it: includes, functions.
        `options` are those of `compile`. `name` is in statistics and errors.

        Raises `CompileFailed` at a call, with the line of the formula in `line`.
        """
        return Elementwise(self, inputs, outputs, operation, name, prelude, options, device, arch)


class AsyncFormulaMethods:
    """Of `AsyncClient`."""

    def elementwise(
        self, inputs: str, outputs: str | None = None, operation: str | None = None, *, name: str = "elementwise", prelude: str = "",
        options: Iterable[str] = (), device: Any = None, arch: str | None = None,
    ) -> AsyncElementwise:  # fmt: skip
        """As `Client.elementwise`, without `await`; its calls are awaited."""
        return AsyncElementwise(self, inputs, outputs, operation, name, prelude, options, device, arch)
