"""torch's functions that host code calls, on NumPy arrays: where the arguments of a call are NumPy's, or there is no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .. import Unsupported
from .._companions import numpy
from ._abi import Device, Dtype, Format, Options, Slice

FLOAT = "float32"  # torch's default dtype
# Numbers of c10::ScalarType.
_NAMES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64", 9: "complex64", 10: "complex128",
    11: "bool", 27: "uint16", 28: "uint32", 29: "uint64",
}  # fmt: skip
_NUMBERS = {name: number for number, name in _NAMES.items()} | {"bfloat16": 15, "float8_e5m2": 23, "float8_e4m3fn": 24}


def is_tensor(value: Any) -> bool:
    return isinstance(value, numpy.ndarray)


def on_cpu(value: Any) -> bool:
    """Whether the memory is the CPU's."""
    return True


def on_gpu(values: Sequence[Any]) -> bool:
    """Whether a call with these arguments is one for a GPU."""
    return False


def of_buffer(memory: Any) -> Any:
    """Memory of C++ as an array of bytes."""
    return numpy.frombuffer(memory, numpy.uint8)


def dtype_number(value: Any) -> int:
    number = _NUMBERS.get(value.dtype.name)
    if number is None:
        raise Unsupported(f"an array of {value.dtype}: torch has no such dtype")
    return number


def dtype_of(value: Any) -> Dtype | None:
    """A dtype as an argument of a call; None for anything else."""
    if isinstance(value, numpy.dtype) or (isinstance(value, type) and issubclass(value, numpy.generic)):
        return Dtype(_NUMBERS[numpy.dtype(value).name])
    return None


def described(value: Any) -> tuple[int, int, int, Sequence[int], Sequence[int], bool]:
    """Dtype, index of the device, address, sizes, strides in elements, whether it requires a gradient."""
    if any(step % value.itemsize for step in value.strides):
        raise Unsupported("an array whose strides are no whole elements: pass a copy")
    strides = [step // value.itemsize for step in value.strides]
    return dtype_number(value), 0, value.__array_interface__["data"][0], value.shape, strides, False


def storage(value: Any) -> tuple[int, int]:
    """Address and bytes of the memory that an array is a part of."""
    root = _root(value)
    return root.__array_interface__["data"][0], root.nbytes


def whole_dtype(value: Any, size: int) -> str:
    """The name of the dtype of an array that fills its storage, in the order of its elements; empty for others."""
    return str(value.dtype.name) if value.flags.c_contiguous and value.nbytes == size else ""


def _root(value: Any) -> Any:
    while isinstance(value.base, numpy.ndarray) and value.base.nbytes >= value.nbytes:
        value = value.base
    return value


def bytes_of(value: Any, start: int, size: int) -> Any:
    """Bytes of an array's storage, as an array in the same memory."""
    root = _root(value)
    flat = root.reshape(-1) if root.flags.c_contiguous else root.ravel(order="K")
    if flat.size and not numpy.shares_memory(flat, root):
        raise Unsupported("a pointer into an array with gaps: pass a copy")
    return flat.view(numpy.uint8)[start : start + size]


def viewed(data: Any, dtype: str) -> Any:
    """Bytes as elements of a dtype; as they are where that is not possible."""
    try:
        size = numpy.dtype(dtype).itemsize
    except TypeError:  # without ml_dtypes NumPy has no bfloat16: its bits do
        dtype, size = ("uint16", 2) if dtype == "bfloat16" else ("uint8", 1)
    return data[: len(data) // size * size].view(dtype)


def new_bytes(size: int) -> Any:
    return numpy.zeros(size, numpy.uint8)


def synchronize() -> None:
    """Calls on arrays have ended when they return."""


def stream() -> int:
    return 0


def properties() -> None:
    """What is known of the device."""


def current_device() -> int:
    return 0


def device_count() -> int:
    return 1


def set_device(index: int) -> None:
    """There is one."""


def library_function(library: str, name: str) -> int:
    return 0


def blas_handle() -> int:
    return 0


# ---- functions ----


def _dtype(options: Any, usual: Any) -> Any:
    number = options.dtype if isinstance(options, Options) else options
    if number is None:
        return usual
    if int(number) not in _NAMES:
        raise Unsupported(f"NumPy has no dtype for torch's number {int(number)}")
    return numpy.dtype(_NAMES[int(number)])


def returned(value: Any) -> Any:
    """A result of C++: the number of a dtype is NumPy's object."""
    return _dtype(value, None) if isinstance(value, Dtype) else value


def _shape(sizes: Any) -> Any:
    return tuple(sizes) if isinstance(sizes, (list, tuple)) else (sizes,)


def _axes(dim: Any) -> Any:
    return tuple(dim) if isinstance(dim, list) and dim else None if isinstance(dim, list) else dim


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(self: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        made = function(self, axis=_axes(dim), keepdims=keepdim)
        return made if dtype is None else numpy.asarray(made).astype(_dtype(dtype, None))

    return reduce


def _extreme(value: Callable[..., Any], index: Callable[..., Any], pair: Callable[..., Any]) -> Callable[..., Any]:
    def find(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return value(self)
        if is_tensor(dim):
            return pair(self, dim)
        return value(self, axis=dim, keepdims=keepdim), numpy.expand_dims(index(self, axis=dim), dim) if keepdim else index(self, axis=dim)

    return find


def _div(self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    made = numpy.true_divide(self, other)
    if rounding_mode is not None:
        made = (numpy.floor if rounding_mode == "floor" else numpy.trunc)(made)
        return made.astype(self.dtype)
    return made.astype(numpy.float32) if self.dtype.kind in "iub" and made.dtype != numpy.float32 else made


def _softmax(self: Any, dim: int, dtype: Any = None) -> Any:
    self = self.astype(_dtype(dtype, self.dtype), copy=False)
    made = numpy.exp(self - self.max(axis=dim, keepdims=True))
    return made / made.sum(axis=dim, keepdims=True)


def _clamp(self: Any, min: Any = None, max: Any = None) -> Any:
    return numpy.clip(self, min, max)


def _view(self: Any, shape: Any) -> Any:
    if isinstance(shape, Dtype):
        return self.view(_dtype(shape, None))
    made = self.view()
    made.shape = _shape(shape)  # NumPy refuses what would be a copy, as torch does
    return made


def _flatten(self: Any, start: int = 0, end: int = -1) -> Any:
    end %= max(self.ndim, 1)
    return self.reshape((*self.shape[:start], -1, *self.shape[end + 1 :]))


def _expand(self: Any, sizes: Sequence[int], implicit: bool = False) -> Any:
    old = (1,) * (len(sizes) - self.ndim) + self.shape
    return numpy.broadcast_to(self, tuple(have if want == -1 else want for want, have in zip(sizes, old)))


def _squeeze(self: Any, dim: Any = None) -> Any:
    axes = range(self.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return numpy.squeeze(self, tuple(axis for axis in axes if self.shape[axis] == 1))


def _narrow(self: Any, dim: int, start: int, length: int) -> Any:
    size = self.shape[dim]
    start += size if start < 0 else 0
    if not 0 <= start <= start + length <= size:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    return self[(slice(None),) * (dim % self.ndim) + (slice(start, start + length),)]


def _slice(self: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return self[(slice(None),) * (dim % self.ndim) + (slice(start, end, step),)]


def _select(self: Any, dim: int, index: int) -> Any:
    return self[(slice(None),) * (dim % self.ndim) + (slice(index, index + 1 or None),)].squeeze(dim)


def _position(item: Any) -> Any:
    if isinstance(item, Slice):
        if item.step is not None and item.step <= 0:
            raise ValueError("step must be greater than zero")
        return slice(*item)
    if is_tensor(item) and item.dtype == numpy.uint8:  # torch's masks of old
        return item.astype(bool)
    return Ellipsis if isinstance(item, str) else item


def _index(self: Any, *items: Any) -> Any:
    made = self[tuple(_position(item) for item in items)]
    return made.copy(order="C") if any(map(is_tensor, items)) else made  # torch's is contiguous


def _index_put(self: Any, *given: Any) -> Any:
    value, accumulate, *items = given
    where = tuple(_position(item) for item in items)
    if accumulate:
        numpy.add.at(self, where, value)
    else:
        self[where] = value
    return self


def _to(self: Any, *wanted: Any, **more: Any) -> Any:
    """`wanted`: a dtype, options or another array; then whether it blocks, whether it copies."""
    flags = [one for one in wanted if isinstance(one, bool)]
    copy = bool(more.get("copy", flags[1:] == [True]))
    dtype = self.dtype
    for one in (*wanted, *more.values()):
        if isinstance(one, (Dtype, Options)):
            dtype = _dtype(one, dtype)
        elif is_tensor(one):
            dtype = one.dtype
    return self.astype(dtype, copy=copy)


def _norm(self: Any, p: Any = None, dim: Any = None, keepdim: bool = False) -> Any:
    p, how = 2 if p is None else p, {"axis": _axes(dim), "keepdims": keepdim}
    if math.isinf(p):
        return (numpy.max if p > 0 else numpy.min)(abs(self), **how)
    return (self != 0).sum(**how).astype(self.dtype) if p == 0 else (abs(self) ** p).sum(**how) ** (1 / p)


def _arange(*bounds: Any, options: Any = None) -> Any:
    usual = "int64" if all(isinstance(bound, int) for bound in bounds) else FLOAT
    return numpy.arange(*bounds, dtype=_dtype(options, usual))


def _tensor(data: Any, sizes: Any = None, options: Any = None) -> Any:
    first = data[0] if isinstance(data, list) and data else data
    usual = "bool" if isinstance(first, bool) else "int64" if isinstance(first, int) else FLOAT
    return numpy.array(data, dtype=_dtype(options, usual)).reshape(() if sizes is None else tuple(sizes))


def _copied(self: Any, other: Any, *_: Any) -> Any:
    self[...] = _fitting(other, self.dtype)
    return self


def _fitting(number: Any, dtype: Any) -> Any:
    """A number for elements of a type. Raises torch's error for an integer that is none of it."""
    if isinstance(number, int) and dtype.kind in "iu":
        limits = numpy.iinfo(dtype)
        if not (limits.min or -limits.max) <= number <= limits.max:  # negative numbers wrap in an unsigned type
            raise RuntimeError(f"value cannot be converted to type {dtype}_t without overflow")
        return numpy.array(number, "int64").astype(dtype) if number < 0 else number
    return number


def _by(function: Callable[..., Any]) -> Callable[..., Any]:
    """`self + alpha * other`, and the like."""
    return lambda self, other, alpha=1: function(self, other if alpha == 1 else alpha * other)


def _full(size: Any, value: Any, options: Any = None, **_: Any) -> Any:
    dtype = _dtype(options, _tensor(value).dtype)
    return numpy.full(_shape(size), _fitting(value, dtype), dtype)


_random = numpy.random.default_rng()
_NEW: dict[str, Callable[..., Any]] = {
    "empty": lambda size, options=None, **_: numpy.empty(_shape(size), _dtype(options, FLOAT)),
    "zeros": lambda size, options=None, **_: numpy.zeros(_shape(size), _dtype(options, FLOAT)),
    "ones": lambda size, options=None, **_: numpy.ones(_shape(size), _dtype(options, FLOAT)),
    "full": _full,
    "rand": lambda size, options=None, **_: _random.random(_shape(size)).astype(_dtype(options, FLOAT)),
    "randn": lambda size, options=None, **_: _random.standard_normal(_shape(size)).astype(_dtype(options, FLOAT)),
    "eye": lambda n, m=None, options=None, **_: numpy.eye(n, m, dtype=_dtype(options, FLOAT)),
    "linspace": lambda start, end, steps, options=None, **_: numpy.linspace(start, end, steps, dtype=_dtype(options, FLOAT)),
    "arange": _arange, "tensor": _tensor, "scalar_tensor": _tensor,
}  # fmt: skip


def _like(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *value, options=None, **_: make(self.shape, *value, Dtype(_number(self, options)))


def _new(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, size, *value, options=None, **_: make(size, *value, Dtype(_number(self, options)))


def _number(like: Any, options: Any) -> int:
    return dtype_number(like) if options is None or options.dtype is None else options.dtype


_LIKE = {f"{name}_like": _like(_NEW[name]) for name in ("empty", "zeros", "ones", "full", "rand", "randn")}
_LIKE |= {f"new_{name}": _new(_NEW[name]) for name in ("empty", "zeros", "ones", "full")}
_UNARY = {
    name: getattr(numpy, name)
    for name in (
        "abs", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "floor",
        "ceil", "trunc", "sign", "square", "reciprocal", "isnan", "isinf", "isfinite", "logical_not",
    )
} | {
    "neg": numpy.negative, "round": numpy.rint, "bitwise_not": numpy.invert, "rsqrt": lambda x: 1 / numpy.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + numpy.exp(-x)), "relu": lambda x: numpy.maximum(x, 0), "silu": lambda x: x / (1 + numpy.exp(-x)),
    "erf": lambda x: numpy.vectorize(math.erf, otypes=[x.dtype])(x),
}  # fmt: skip
_BINARY: dict[str, Callable[..., Any]] = {
    "add": _by(numpy.add), "sub": _by(numpy.subtract), "rsub": lambda a, b: b - a, "mul": numpy.multiply, "div": _div,
    "rdiv": lambda a, b: b / a, "rmul": numpy.multiply, "radd": numpy.add, "pow": numpy.power, "remainder": numpy.remainder,
    "fmod": numpy.fmod, "maximum": numpy.maximum, "minimum": numpy.minimum, "eq": numpy.equal, "ne": numpy.not_equal, "lt": numpy.less,
    "le": numpy.less_equal, "gt": numpy.greater, "ge": numpy.greater_equal, "logical_and": numpy.logical_and,
    "logical_or": numpy.logical_or, "bitwise_and": numpy.bitwise_and, "bitwise_or": numpy.bitwise_or, "bitwise_xor": numpy.bitwise_xor,
    "matmul": numpy.matmul, "mm": numpy.matmul, "bmm": numpy.matmul, "mv": numpy.matmul, "dot": numpy.dot, "outer": numpy.outer,
}  # fmt: skip
_ALIASES = {
    "multiply": "mul", "true_divide": "div", "divide": "div", "subtract": "sub", "concat": "cat", "clip": "clamp", "negative": "neg",
}  # fmt: skip
OPS: dict[str, Callable[..., Any]] = _NEW | _LIKE | _UNARY | _BINARY | {
    "sum": _reduction(numpy.sum), "mean": _reduction(numpy.mean), "prod": _reduction(numpy.prod), "amax": _reduction(numpy.amax),
    "amin": _reduction(numpy.amin), "any": _reduction(numpy.any), "all": _reduction(numpy.all), "argmax": _reduction(numpy.argmax),
    "argmin": _reduction(numpy.argmin), "max": _extreme(numpy.max, numpy.argmax, numpy.maximum),
    "min": _extreme(numpy.min, numpy.argmin, numpy.minimum), "norm": _norm,
    "cumsum": lambda self, dim, dtype=None: self.cumsum(dim, _dtype(dtype, None)),
    "softmax": _softmax, "clamp": _clamp, "clamp_min": lambda self, low: numpy.maximum(self, low),
    "clamp_max": lambda self, high: numpy.minimum(self, high),
    "contiguous": lambda self, *_, **__: numpy.ascontiguousarray(self).reshape(self.shape), "view": _view,
    "reshape": lambda self, shape: self.reshape(_shape(shape)), "view_as": lambda self, other: _view(self, other.shape),
    "flatten": _flatten, "transpose": lambda self, a, b: self.swapaxes(a, b), "permute": lambda self, dims: self.transpose(_shape(dims)),
    "t": lambda self: self.T, "squeeze": _squeeze, "unsqueeze": lambda self, dim: numpy.expand_dims(self, dim), "expand": _expand,
    "expand_as": lambda self, other: _expand(self, other.shape), "select": _select, "narrow": _narrow, "slice": _slice, "index": _index,
    "index_put_": _index_put, "clone": lambda self, *_, **__: self.copy(), "copy_": _copied, "fill_": _copied,
    "zero_": lambda self: _copied(self, 0), "cat": lambda tensors, dim=0: numpy.concatenate(tensors, dim),
    "stack": lambda tensors, dim=0: numpy.stack(tensors, dim), "where": numpy.where, "to": _to, "type_as": _to, "toType": _to,
    "storage_offset": lambda self: (self.__array_interface__["data"][0] - storage(self)[0]) // self.itemsize,
    "storage_bytes": lambda self: storage(self)[1], "text": str, "grad_mode": lambda enabled=False: False, "deterministic": lambda: False,
    "item": lambda self: self.item(), "equal": lambda self, other: bool(numpy.array_equal(self, other)),
    "allclose": lambda self, other, rtol=1e-5, atol=1e-8, equal_nan=False: bool(numpy.allclose(self, other, rtol, atol, equal_nan)),
    "cpu": lambda self, *_: self, "cuda": lambda self, *_: self, "detach": lambda self: self.view(), "alias": lambda self: self.view(),
}  # fmt: skip
OPS |= {name: OPS[plain] for name, plain in _ALIASES.items()}


def prepared(name: str) -> tuple[Callable[..., Any], None, bool, bool]:
    """A function of torch's by its name, as `_torch.prepared` answers it."""
    return lambda *arguments, **named: call(name, list(arguments), named), None, False, False


def call(name: str, arguments: list[Any], named: dict[str, Any]) -> Any:
    """Calls a function of torch's by its name. Raises Unsupported for one that is not among them."""
    function, changes = OPS.get(name), False
    if function is None and name.endswith("_"):
        function, changes = OPS.get(name[:-1]), True
    if function is None:
        raise Unsupported(f"{name}() of torch is not known for NumPy arrays: pass torch tensors")
    out = named.pop("out", None)
    arguments = [argument for argument in arguments if not isinstance(argument, Format)]
    made = function(*arguments, **{key: value for key, value in named.items() if value is not None and not isinstance(value, Device)})
    made = _typed(name.rstrip("_"), made, [*arguments, *named.values()])
    target = arguments[0] if changes else out
    if target is not None:
        if _category(numpy.asarray(made)) > _category(target):
            raise RuntimeError(f"result type {made.dtype} can't be cast to the desired output type {target.dtype}")
        target[...] = made
        return target
    return tuple(map(_array, made)) if isinstance(made, tuple) else _array(made)


def _category(array: Any) -> int:
    """Of bools, integers, floating-point and complex numbers: of different ones the higher one is the type of a result."""
    return {"b": 0, "i": 1, "u": 1, "c": 3}.get(array.dtype.kind, 2)


def _typed(name: str, made: Any, arguments: Sequence[Any]) -> Any:
    """A result with torch's type for it: that of the arrays, whatever their shapes and the numbers are, or float32 for what is made of
    integers. NumPy would rather have 64 bits."""
    flat = [one for argument in arguments for one in (argument if isinstance(argument, list) else [argument])]
    arrays = [one for one in flat if is_tensor(one)]
    asked = any(isinstance(one, Dtype) or (isinstance(one, Options) and one.dtype is not None) for one in flat)
    if asked or not arrays or not hasattr(made, "dtype"):
        return made
    category = _category(made)
    alike = [one for one in arrays if _category(one) == category]
    types = [one.dtype for one in [one for one in alike if one.ndim] or alike]
    if category == 2:
        wanted = numpy.result_type(*types) if types else numpy.dtype(FLOAT)
        return made.astype(wanted) if made.dtype.itemsize > wanted.itemsize or not types else made
    if category == 1 and types and name in _BINARY:
        return made.astype(numpy.result_type(*types))
    return made.astype("int64") if made.dtype == "uint64" and made.dtype not in types else made


def _array(value: Any) -> Any:
    return numpy.asarray(value) if isinstance(value, numpy.generic) else value
