"""The methods of clients that make kernels of formulas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .elementwise import AsyncElementwise, Elementwise
from .reduction import AsyncReduction, Reduction


class FormulaMethods:
    """Of `Client`."""

    def elementwise(
        self, inputs: str, outputs: str | None = None, operation: str | None = None, *, name: str = "elementwise", prelude: str = "",
        options: Iterable[str] = (), device: Any = None, arch: str | None = None, fallback: str | None = None,
    ) -> Elementwise:  # fmt: skip
        """Makes a kernel of a formula in CUDA C++, which is applied to each element:

            f = k.elementwise("x * y + z")
            f = k.elementwise("T x, T y, float alpha", "T out", "out = alpha * x + y", name="axpy")
            c = f(a, b, 0.5)

        The short form takes its operands from the expression, in the order in which they appear; all and the result have one dtype.
        The full form declares inputs and outputs, and `operation` assigns every output; several statements are separated by `;`,
        and `i` is the number of the element. A type is one of C or of a dtype (`float`, `half`, `int64`, `bool`), or a capital
        letter, `T`, for the dtype that a call has. An input that is `raw T x` is a whole contiguous array, which is not broadcast and whose
        elements the formula takes itself, `x[i + 1]`. Halves and 8-bit floats are computed as float and rounded once,
        but in raw inputs.

        A call takes arrays, which are broadcast as NumPy does, with any strides, and numbers, in the order of the inputs. It returns
        a new array where the first array is, or a tuple; `out=` gives the arrays, which may be operands. The kernel is compiled at
        the first call with other dtypes or layouts, by the daemon, which keeps it. `prelude` comes before it: includes, functions.
        `options` are those of `compile`. `name` is in statistics and errors. With `fallback="interpret"` calls run in this process, on
        the CPU and with the checks of `interpret`, where the daemon has no GPU.

        Raises `CompileFailed` at a call, with the line of the formula in `line`.
        """
        return Elementwise(self, inputs, outputs, operation, name, prelude, options, device, arch, fallback)

    def reduce(
        self, map: str, reduce: str, post: str = "a", identity: Any = None, *, inputs: str | None = None, output: str | None = None,
        accumulate: str | None = None, axis: Any = None, name: str = "reduction", prelude: str = "", options: Iterable[str] = (),
        device: Any = None, arch: str | None = None, fallback: str | None = None,
    ) -> Reduction:  # fmt: skip
        """Makes kernels that reduce arrays to one number, or to one along each of some axes:

            norm = k.reduce("x * x", "a + b", "sqrt(a)", 0)
            mean = k.reduce("x", "a + b", "a / n", 0, axis=-1)
            dot = k.reduce("x * y", "a + b", identity=0, inputs="T x, T y", output="float out", accumulate="double", name="dot")
            c = norm(a)
            d = mean(a, keepdims=True)

        `map` is an expression over the operands. `reduce` combines two numbers, `a` and `b`, in any order; `post` makes the result of
        the last, `a`, and of how many there were, `n`. `identity` is the number that changes nothing, or an expression, "-INFINITY"; it
        is also what is left of no numbers. `inputs` and `output` are declared as in `elementwise`; without them the operands are those
        of `map`, and all and the result have one dtype. Numbers are computed in the result's dtype, halves in float; `accumulate`
        is another type for that.

        A call takes arrays, which are broadcast, and numbers, and `axis` (None for all, a number or a tuple; `axis` here is the
        default), `keepdims` and `out`. Results are the same each time: the order depends on shapes and strides alone, and there are no
        atomics. Reductions to few numbers are two kernels, in one sequence.
        """
        return Reduction(
            self, map, reduce, post, identity, inputs, output, accumulate, axis, name, prelude, options, device, arch, fallback
        )  # fmt: skip


class AsyncFormulaMethods:
    """Of `AsyncClient`."""

    def elementwise(
        self, inputs: str, outputs: str | None = None, operation: str | None = None, *, name: str = "elementwise", prelude: str = "",
        options: Iterable[str] = (), device: Any = None, arch: str | None = None, fallback: str | None = None,
    ) -> AsyncElementwise:  # fmt: skip
        """As `Client.elementwise`, without `await`; its calls are awaited."""
        return AsyncElementwise(self, inputs, outputs, operation, name, prelude, options, device, arch, fallback)

    def reduce(
        self, map: str, reduce: str, post: str = "a", identity: Any = None, *, inputs: str | None = None, output: str | None = None,
        accumulate: str | None = None, axis: Any = None, name: str = "reduction", prelude: str = "", options: Iterable[str] = (),
        device: Any = None, arch: str | None = None, fallback: str | None = None,
    ) -> AsyncReduction:  # fmt: skip
        """As `Client.reduce`, without `await`; its calls are awaited."""
        return AsyncReduction(
            self, map, reduce, post, identity, inputs, output, accumulate, axis, name, prelude, options, device, arch, fallback
        )  # fmt: skip
