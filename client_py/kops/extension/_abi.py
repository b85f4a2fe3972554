"""The C interface of a compiled extension (include/kops/abi.h), by ctypes: its structures, and values from Python and back."""

from __future__ import annotations

import ast
import ctypes as c
import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

DIMS, RESULTS = 16, 64
(NONE, TENSOR, INT, FLOAT, BOOL, DTYPE, DEVICE, STRING, INTS, TENSORS, FLOATS, OPTIONS, SLICE, TUPLE, FORMAT, COMPLEX) = range(16)
READABLE, TAKEN = 1, 2  # flags of a tensor
ABSENT = -1  # tag of a default that an argument does not have
NOT_GIVEN = 255  # a device in OPTIONS
NO_DTYPE = 44
OPEN_END = -(2**63)  # None in SLICE


_COMMA = re.compile(r",(?![^\[]*\])")  # none within a default in brackets
_FUNCTION_TYPE = re.compile(r"\bF = .*?\(\*\)\((.*?)\)[;,]")


class Tensor(c.Structure):
    _fields_ = [
        ("id", c.c_int64), ("dtype", c.c_int32), ("device_type", c.c_int32), ("device_index", c.c_int32),
        ("ndim", c.c_int32), ("requires_grad", c.c_int32), ("flags", c.c_int32),
        ("data", c.c_uint64), ("sizes", c.c_int64 * DIMS), ("strides", c.c_int64 * DIMS),
    ]  # fmt: skip


# Tensors of so many dimensions, as bytes.
DESCRIPTIONS = [struct.Struct(f"=q6iQ{n}q{8 * (DIMS - n)}x{n}q{8 * (DIMS - n)}x") for n in range(DIMS + 1)]


class Value(c.Structure):
    _fields_ = [("tag", c.c_int32), ("n", c.c_int32), ("i", c.c_int64), ("d", c.c_double), ("p", c.c_void_p)]


class Result(c.Structure):
    _fields_ = [("out", c.POINTER(Tensor)), ("count", c.c_int), ("value", Value)]


class Argument(c.Structure):
    _fields_ = [("data", c.c_void_p), ("size", c.c_uint64), ("kind", c.c_int32), ("pad", c.c_int32), ("type", c.c_char_p)]


ARGUMENT = "QQi4xQ"  # as bytes
_Values, _Tensors = c.POINTER(Value), c.POINTER(Tensor)
OP = c.CFUNCTYPE(c.c_int, c.c_char_p, _Values, c.c_int, _Tensors, c.POINTER(c.c_int), _Values)
RELEASE = c.CFUNCTYPE(None, c.c_int64)
LAUNCH = c.CFUNCTYPE(c.c_int, c.c_char_p, c.POINTER(c.c_uint32), c.c_uint64, c.c_void_p, c.c_void_p, c.c_int)
CUDA = c.CFUNCTYPE(c.c_int, c.c_char_p, _Values, c.c_int, c.POINTER(c.c_int64))
ERROR = c.CFUNCTYPE(c.c_void_p)


class Table(c.Structure):
    _fields_ = [("op", OP), ("release", RELEASE), ("launch", LAUNCH), ("cuda", CUDA), ("error", ERROR), ("retain", RELEASE)]


class Parameter(NamedTuple):
    """`has_default`: whether the call may leave it out."""

    name: str | None
    has_default: bool
    default: Any


class Definition(NamedTuple):
    """A function that a module has for Python."""

    number: int
    name: str
    signature: str  # the schema of a TORCH_LIBRARY, or the text of a compiler that has the types in it
    doc: str
    parameters: tuple[Parameter, ...]
    is_declaration: bool = False  # a schema without an implementation

    @property
    def shown(self) -> str:
        """The signature for people: `f(at::Tensor, double)`."""
        found = _FUNCTION_TYPE.search(self.signature)
        return f"{self.name}({found[1]})" if found else self.signature

    @property
    def key(self) -> str:
        """The dispatch key of an implementation of a TORCH_LIBRARY; empty without."""
        return self.name.partition("@")[2]

    @property
    def schema(self) -> str:
        return "" if _FUNCTION_TYPE.search(self.signature) else self.signature

    def shaped(self, result: Any) -> Any:
        """A result as pybind11 gives it: a std::vector is a list, a view of sizes a tuple."""
        if isinstance(result, tuple) and "R = std::vector<" in self.signature:
            return list(result)
        return tuple(result) if isinstance(result, list) and "R = c10::ArrayRef<" in self.signature else result


class Slice(NamedTuple):
    """A slice of an index, apart from lists of three numbers."""

    start: int | None
    stop: int | None
    step: int | None


class Options(NamedTuple):
    """What C++ calls TensorOptions: numbers of the dtype and the device; None where they are not given."""

    dtype: int | None
    device: Device | None
    requires_grad: bool
    format: int | None


class Dtype(int):
    """A number of c10::ScalarType."""


class Device(NamedTuple):
    """Numbers of c10::DeviceType and of the device, -1 for the current one."""

    type: int
    number: int


class Format(int):
    """A number of c10::MemoryFormat."""


def _list(value: Any, kind: Any) -> list[Any]:
    return list((kind * value.n).from_address(value.p)) if value.n else []


@lru_cache(maxsize=256)
def _options(bits: int, requires_grad: float, more: int) -> Options:
    dtype, device, index = bits & 0xFF, bits >> 8 & 0xFF, bits >> 16 & 0xFF
    return Options(
        None if dtype == NO_DTYPE else dtype, None if device == NOT_GIVEN else Device(device, -1 if index == NOT_GIVEN else index),
        bool(requires_grad), (more >> 8) - 1 if more >> 8 else None,
    )  # fmt: skip


def _bound(number: int) -> int | None:
    return None if number == OPEN_END else number


READERS: dict[int, Callable[[Any, Callable[[int], Any]], Any]] = {
    NONE: lambda v, tensor: None,
    TENSOR: lambda v, tensor: tensor(v.i),
    INT: lambda v, tensor: v.i % 2**64 if v.n == 1 else v.i,
    FLOAT: lambda v, tensor: v.d,
    BOOL: lambda v, tensor: bool(v.i),
    DTYPE: lambda v, tensor: Dtype(v.i),
    DEVICE: lambda v, tensor: Device(v.i, int(v.d)),
    STRING: lambda v, tensor: c.string_at(v.p, v.n).decode("utf-8", "replace") if v.n else "",
    INTS: lambda v, tensor: _list(v, c.c_int64),
    TENSORS: lambda v, tensor: [tensor(i) for i in _list(v, c.c_int64)],
    FLOATS: lambda v, tensor: _list(v, c.c_double),
    OPTIONS: lambda v, tensor: _options(v.i, v.d, v.n),
    SLICE: lambda v, tensor: Slice(*(_bound(i) for i in (c.c_int64 * 3).from_address(v.p))),
    TUPLE: lambda v, tensor: tuple(read((Value * v.n).from_address(v.p)[i], tensor) for i in range(v.n)) if v.n else (),
    FORMAT: lambda v, tensor: Format(v.i),
    COMPLEX: lambda v, tensor: complex(*(c.c_double * 2).from_address(v.p)),
}


def read(value: Any, tensor: Callable[[int], Any]) -> Any:
    """A value of C++ in Python. `tensor` answers the tensor with an id or index."""
    return READERS[value.tag](value, tensor)


def write(value: Any, given: Any, keep: list[Any]) -> None:
    """Fills a Value with a number, text or None; `keep` holds memory that it points to."""
    if given is None:
        value.tag = NONE
    elif isinstance(given, bool):
        value.tag, value.i = BOOL, given
    elif isinstance(given, Dtype):
        value.tag, value.i = DTYPE, int(given)
    elif isinstance(given, int):
        value.tag, value.d = INT, float(given)
        if -(2**63) <= given < 2**63:
            value.i = given
        elif 0 < given < 2**64:
            value.i, value.n = given - 2**64, 1
        else:
            value.n = 2
    elif isinstance(given, float):
        value.tag, value.d = FLOAT, given
    elif isinstance(given, Device):
        value.tag, value.i, value.d = DEVICE, given.type, given.number
    elif isinstance(given, str):
        data = given.encode()
        value.tag, value.n, value.p = STRING, len(data), _kept(c.create_string_buffer(data), keep)
    elif isinstance(given, complex):
        value.tag, value.p = COMPLEX, _kept((c.c_double * 2)(given.real, given.imag), keep)
    elif not given or (set(map(type, given)) == {int} and min(given) >= -(2**63) and max(given) < 2**63):
        put_list(value, INTS, given, keep)
    elif set(map(type, given)) == {float}:
        value.tag, value.n, value.p = FLOATS, len(given), _kept((c.c_double * len(given))(*given), keep)
    else:
        for one, item in zip(put_tuple(value, len(given), keep), given):
            write(one, item, keep)


def _kept(memory: Any, keep: list[Any]) -> int:
    keep.append(memory)
    return c.addressof(memory)


def put_tuple(value: Any, size: int, keep: list[Any]) -> Any:
    """Makes a list of any values of it. Answers these, to be written."""
    items = (Value * size)()
    value.tag, value.n, value.p = TUPLE, size, _kept(items, keep)
    return items


def _schema_parameter(text: str) -> Parameter:
    declared, _, default = text.partition("=")
    try:
        return Parameter(declared.split()[-1], bool(default), ast.literal_eval(default) if default else None)
    except (ValueError, SyntaxError):  # torch's names of dtypes and the like
        return Parameter(declared.split()[-1], False, None)


def declared(definitions: Sequence[Definition]) -> list[Definition]:
    """The functions of a library, with the names and defaults of their schemas. A schema with implementations is none of them."""
    schemas = {d.name: re.split(_COMMA, d.schema[d.schema.index("(") + 1 : d.schema.rindex(")", 0, (d.schema + "->").index("->"))])
               for d in definitions if "(" in d.schema}  # fmt: skip
    implemented = {d.name.partition("@")[0] for d in definitions if not d.is_declaration}
    made = []
    for d in definitions:
        parts = [part for part in schemas.get(d.name.partition("@")[0], ()) if part.strip() not in ("", "*")]
        if len(parts) == len(d.parameters):
            d = d._replace(parameters=tuple(map(_schema_parameter, parts)))
        if not d.is_declaration or d.name not in implemented:
            made.append(d)
    return made


def put_list(value: Any, tag: int, numbers: Sequence[int], keep: list[Any]) -> None:
    value.tag, value.n, value.p = tag, len(numbers), _kept((c.c_int64 * len(numbers))(*numbers), keep)


class Library:
    """A compiled extension in this process. It stays loaded."""

    def __init__(self, path: str, table: Table) -> None:
        self._library = c.CDLL(path)
        for name, result, *arguments in (
            ("open", None, c.POINTER(Table)), ("count", c.c_int), ("def_name", c.c_char_p, c.c_int), ("def_signature", c.c_char_p, c.c_int),
            ("def_doc", c.c_char_p, c.c_int), ("def_arguments", c.c_int, c.c_int),
            ("def_argument", c.c_char_p, c.c_int, c.c_int, _Values),
            ("strict", None, c.c_int),
            ("call", c.c_char_p, c.c_int, *(c.c_void_p,) * 5),
            ("error_type", c.c_char_p),
        ):  # fmt: skip
            function = getattr(self._library, f"kops_{name}")
            function.restype, function.argtypes = result, arguments
        self._library.kops_open(c.byref(table))
        self.definitions = [self._definition(i) for i in range(self._library.kops_count())]

    def _definition(self, number: int) -> Definition:
        library = self._library
        parameters = []
        for i in range(library.kops_def_arguments(number)):
            value = Value()
            its = library.kops_def_argument(number, i, c.byref(value))
            has_default = value.tag != ABSENT
            default = read(value, lambda index: None) if has_default else None
            parameters.append(Parameter(None if its is None else its.decode(), has_default, default))
        name, signature, doc = (
            getattr(library, f"kops_def_{what}")(number).decode("utf-8", "replace") for what in ("name", "signature", "doc")
        )
        return Definition(number, name, signature, doc, tuple(parameters), library.kops_def_arguments(number) < 0)

    def call(self, number: int, values: Any, tensors: Sequence[Tensor], result: Result, strict: bool = False) -> tuple[str, str] | None:
        """Runs a function. The type and the text of the exception that it has thrown. `strict`: see kops_strict()."""
        if strict:
            self._library.kops_strict(1)
        pointers = (c.c_void_p * len(tensors))(*map(c.addressof, tensors))
        at = c.addressof(result)
        message = self._library.kops_call(number, values, pointers, at, at + Result.count.offset, at + Result.value.offset)
        return None if message is None else (self._library.kops_error_type().decode(), message.decode("utf-8", "replace"))
