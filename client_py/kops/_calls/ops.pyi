# Written by client_py/stubs.py from the declarations; run that to change it.
from typing import Any, Literal, TypeVar, overload

from .._base.records import Device
from .._base.results import Timings

T = TypeVar("T")

NUMBERS: dict[str, int]
OPTIONS: str

def check_attrs(op: str, attrs: dict[str, Any], variant: str | None) -> dict[str, Any]: ...
def coerce(op: str, attr: dict[str, Any], value: Any) -> Any: ...
def signature_source(op: str) -> tuple[str, str]: ...

class OpMethods:
    @overload
    def add(
        self, a: float, b: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> T: ...
    @overload
    def add(
        self, a: float, b: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    def add(
        self, a: T, b: Any, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> T:
        """out = a + b

        Element by element. `a` and `b` broadcast as in NumPy. `out` has the broadcast shape and may be
        exactly `a` or `b` (in place). f16 and bf16 are added in f32 and rounded to nearest even; integers
        wrap around.
        """
    @overload
    def add(
        self, a: T, b: Any, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    def add_square(
        self, a: float, b: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> T: ...
    @overload
    def add_square(
        self, a: float, b: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    def add_square(
        self, a: T, b: Any, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> T:
        """out = (a + b)^2

        `add`, then `square`, in one pass over memory. `a` and `b` broadcast as in NumPy. `out` has the
        broadcast shape and may be exactly `a` or `b` (in place). The sum is rounded, then the product: f32
        and f64 have the bits of the two ops. f16 and bf16 are computed in f32 and rounded to nearest even
        once, at the end. Integers wrap around.
        """
    @overload
    def add_square(
        self, a: T, b: Any, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    def copy(
        self, a: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> T:
        """out = a

        Element by element, bits unchanged; `out` has `a`'s shape and dtype. Between host memory and a GPU it
        is one transfer (variant `transfer`, its time is `gpu_us`) where both tensors have the same order in
        memory and no gaps. Other layouts are staged, as host memory of every op is.
        """
    @overload
    def copy(
        self, a: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    def gemm(
        self, a: T, b: Any, *, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0, beta: float = 0.0,
        precision: Literal["highest", "high", "medium"] = "highest", out_dtype: Any = None, out: Any = None, variant: str | None = None,
        device: Device | str | int | None = None, stream: int = 0, timing: Literal[False] = False, deadline_ms: int | None = None,
        priority: Literal["low", "normal", "high"] | None = None, blocking: bool | None = None,
        where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> T:
        """out = alpha * op(a) @ op(b) + beta * out

        Matrix product over the last two dimensions: op(a) is [.., m, k], op(b) is [.., k, n], out is [.., m,
        n]; `trans_a` and `trans_b` swap the last two dimensions of an operand first. Leading dimensions are
        batches, which broadcast as in NumPy's matmul. With k = 0 the product is 0. f64 accumulates in f64,
        the others in f32, with one rounding at the end.
        """
    @overload
    def gemm(
        self, a: T, b: Any, *, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0, beta: float = 0.0,
        precision: Literal["highest", "high", "medium"] = "highest", out_dtype: Any = None, out: Any = None, variant: str | None = None,
        device: Device | str | int | None = None, stream: int = 0, timing: Literal[True, "exact"], deadline_ms: int | None = None,
        priority: Literal["low", "normal", "high"] | None = None, blocking: bool | None = None,
        where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    def linear(
        self, a: T, b: Any, bias: Any, *, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0,
        activation: Literal["none", "relu", "gelu", "gelu_tanh"] = "none", precision: Literal["highest", "high", "medium"] = "highest",
        out_dtype: Any = None, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> T:
        """out = activation(alpha * op(a) @ op(b) + bias)

        `gemm`'s matrix product plus `bias`, through an activation, in one pass. `bias` broadcasts to [.., m,
        n] as in NumPy: a vector [n] is added to every row. All is computed in f32 (f64 for f64), with one
        rounding at the end.
        """
    @overload
    def linear(
        self, a: T, b: Any, bias: Any, *, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0,
        activation: Literal["none", "relu", "gelu", "gelu_tanh"] = "none", precision: Literal["highest", "high", "medium"] = "highest",
        out_dtype: Any = None, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    def scaled_gemm(
        self, a: T, b: Any, scale_a: Any, scale_b: Any, *, trans_a: bool = False, trans_b: bool = False,
        precision: Literal["highest", "high", "medium"] = "high", out_dtype: Any = None, out: Any = None, variant: str | None = None,
        device: Device | str | int | None = None, stream: int = 0, timing: Literal[False] = False, deadline_ms: int | None = None,
        priority: Literal["low", "normal", "high"] | None = None, blocking: bool | None = None,
        where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> T:
        """out = scale_a * scale_b * (op(a) @ op(b))

        A matrix product of 8-bit floats, with the batches of `gemm`. `a` and `b` may have different dtypes.
        `scale_a` broadcasts to [.., m, 1], `scale_b` to [.., 1, n], as in NumPy: each is one number for all,
        or one for each row of op(a) and each column of op(b). Products are exact, and are added in f32. The
        sum is multiplied by both scales in f32, and rounded to `out`'s dtype once; what is too large for f16
        becomes infinite. NaN and infinity propagate. With k = 0 the sum is 0.
        """
    @overload
    def scaled_gemm(
        self, a: T, b: Any, scale_a: Any, scale_b: Any, *, trans_a: bool = False, trans_b: bool = False,
        precision: Literal["highest", "high", "medium"] = "high", out_dtype: Any = None, out: Any = None, variant: str | None = None,
        device: Device | str | int | None = None, stream: int = 0, timing: Literal[True, "exact"], deadline_ms: int | None = None,
        priority: Literal["low", "normal", "high"] | None = None, blocking: bool | None = None,
        where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    def square(
        self, a: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> T:
        """out = a * a

        Element by element; `out` has `a`'s shape and may be exactly `a` (in place). f16 and bf16 are
        multiplied in f32 and rounded to nearest even; integers wrap around.
        """
    @overload
    def square(
        self, a: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    def sub_square(
        self, a: float, b: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> T: ...
    @overload
    def sub_square(
        self, a: float, b: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    def sub_square(
        self, a: T, b: Any, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> T:
        """out = (a - b)^2

        The squared difference; otherwise as `add_square`.
        """
    @overload
    def sub_square(
        self, a: T, b: Any, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, where: Literal["daemon", "here", "auto"] | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...

class AsyncOpMethods:
    @overload
    async def add(
        self, a: float, b: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> T: ...
    @overload
    async def add(
        self, a: float, b: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    async def add(
        self, a: T, b: Any, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> T:
        """out = a + b

        Element by element. `a` and `b` broadcast as in NumPy. `out` has the broadcast shape and may be
        exactly `a` or `b` (in place). f16 and bf16 are added in f32 and rounded to nearest even; integers
        wrap around.
        """
    @overload
    async def add(
        self, a: T, b: Any, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    async def add_square(
        self, a: float, b: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> T: ...
    @overload
    async def add_square(
        self, a: float, b: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    async def add_square(
        self, a: T, b: Any, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> T:
        """out = (a + b)^2

        `add`, then `square`, in one pass over memory. `a` and `b` broadcast as in NumPy. `out` has the
        broadcast shape and may be exactly `a` or `b` (in place). The sum is rounded, then the product: f32
        and f64 have the bits of the two ops. f16 and bf16 are computed in f32 and rounded to nearest even
        once, at the end. Integers wrap around.
        """
    @overload
    async def add_square(
        self, a: T, b: Any, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    async def copy(
        self, a: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> T:
        """out = a

        Element by element, bits unchanged; `out` has `a`'s shape and dtype. Between host memory and a GPU it
        is one transfer (variant `transfer`, its time is `gpu_us`) where both tensors have the same order in
        memory and no gaps. Other layouts are staged, as host memory of every op is.
        """
    @overload
    async def copy(
        self, a: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    async def gemm(
        self, a: T, b: Any, *, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0, beta: float = 0.0,
        precision: Literal["highest", "high", "medium"] = "highest", out_dtype: Any = None, out: Any = None, variant: str | None = None,
        device: Device | str | int | None = None, stream: int = 0, timing: Literal[False] = False, deadline_ms: int | None = None,
        priority: Literal["low", "normal", "high"] | None = None, blocking: bool | None = None, timeout: float | None = ...,
    ) -> T:
        """out = alpha * op(a) @ op(b) + beta * out

        Matrix product over the last two dimensions: op(a) is [.., m, k], op(b) is [.., k, n], out is [.., m,
        n]; `trans_a` and `trans_b` swap the last two dimensions of an operand first. Leading dimensions are
        batches, which broadcast as in NumPy's matmul. With k = 0 the product is 0. f64 accumulates in f64,
        the others in f32, with one rounding at the end.
        """
    @overload
    async def gemm(
        self, a: T, b: Any, *, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0, beta: float = 0.0,
        precision: Literal["highest", "high", "medium"] = "highest", out_dtype: Any = None, out: Any = None, variant: str | None = None,
        device: Device | str | int | None = None, stream: int = 0, timing: Literal[True, "exact"], deadline_ms: int | None = None,
        priority: Literal["low", "normal", "high"] | None = None, blocking: bool | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    async def linear(
        self, a: T, b: Any, bias: Any, *, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0,
        activation: Literal["none", "relu", "gelu", "gelu_tanh"] = "none", precision: Literal["highest", "high", "medium"] = "highest",
        out_dtype: Any = None, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> T:
        """out = activation(alpha * op(a) @ op(b) + bias)

        `gemm`'s matrix product plus `bias`, through an activation, in one pass. `bias` broadcasts to [.., m,
        n] as in NumPy: a vector [n] is added to every row. All is computed in f32 (f64 for f64), with one
        rounding at the end.
        """
    @overload
    async def linear(
        self, a: T, b: Any, bias: Any, *, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0,
        activation: Literal["none", "relu", "gelu", "gelu_tanh"] = "none", precision: Literal["highest", "high", "medium"] = "highest",
        out_dtype: Any = None, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    async def scaled_gemm(
        self, a: T, b: Any, scale_a: Any, scale_b: Any, *, trans_a: bool = False, trans_b: bool = False,
        precision: Literal["highest", "high", "medium"] = "high", out_dtype: Any = None, out: Any = None, variant: str | None = None,
        device: Device | str | int | None = None, stream: int = 0, timing: Literal[False] = False, deadline_ms: int | None = None,
        priority: Literal["low", "normal", "high"] | None = None, blocking: bool | None = None, timeout: float | None = ...,
    ) -> T:
        """out = scale_a * scale_b * (op(a) @ op(b))

        A matrix product of 8-bit floats, with the batches of `gemm`. `a` and `b` may have different dtypes.
        `scale_a` broadcasts to [.., m, 1], `scale_b` to [.., 1, n], as in NumPy: each is one number for all,
        or one for each row of op(a) and each column of op(b). Products are exact, and are added in f32. The
        sum is multiplied by both scales in f32, and rounded to `out`'s dtype once; what is too large for f16
        becomes infinite. NaN and infinity propagate. With k = 0 the sum is 0.
        """
    @overload
    async def scaled_gemm(
        self, a: T, b: Any, scale_a: Any, scale_b: Any, *, trans_a: bool = False, trans_b: bool = False,
        precision: Literal["highest", "high", "medium"] = "high", out_dtype: Any = None, out: Any = None, variant: str | None = None,
        device: Device | str | int | None = None, stream: int = 0, timing: Literal[True, "exact"], deadline_ms: int | None = None,
        priority: Literal["low", "normal", "high"] | None = None, blocking: bool | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    async def square(
        self, a: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> T:
        """out = a * a

        Element by element; `out` has `a`'s shape and may be exactly `a` (in place). f16 and bf16 are
        multiplied in f32 and rounded to nearest even; integers wrap around.
        """
    @overload
    async def square(
        self, a: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    async def sub_square(
        self, a: float, b: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> T: ...
    @overload
    async def sub_square(
        self, a: float, b: T, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
    @overload
    async def sub_square(
        self, a: T, b: Any, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[False] = False, deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> T:
        """out = (a - b)^2

        The squared difference; otherwise as `add_square`.
        """
    @overload
    async def sub_square(
        self, a: T, b: Any, *, out: Any = None, variant: str | None = None, device: Device | str | int | None = None, stream: int = 0,
        timing: Literal[True, "exact"], deadline_ms: int | None = None, priority: Literal["low", "normal", "high"] | None = None,
        blocking: bool | None = None, timeout: float | None = ...,
    ) -> tuple[T, Timings]: ...
