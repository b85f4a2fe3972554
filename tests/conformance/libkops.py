"""libkops by ctypes: what a run, a kernel and a launch take of it. The structures are those of client_c/include/kops, member by member."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_bool, c_char, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

DTYPES = "f32 f64 f16 bf16 i8 u8 i16 u16 i32 u32 i64 u64 bool f8_e4m3 f8_e5m2".split()
HERE = 2  # KOPS_WHERE_HERE
KINDS = ("", "in", "out", "inout", "scalar")  # enum kops_param_kind


def struct(base: Any = ctypes.Structure, **members: Any) -> Any:
    return type("struct", (base,), {"_fields_": list(members.items())})


Detail = struct(key=c_char * 32, is_text=c_bool, number=c_int64, text=c_char * 128)
Error = struct(code=c_int, n_details=c_uint, message=c_char * 512, details=Detail * 6)
Tensor = struct(buffer=c_void_p, offset=c_uint64, dtype=c_int, rank=c_uint, shape=c_int64 * 8, has_strides=c_bool, strides=c_int64 * 8)
Value = struct(ctypes.Union, tensor=POINTER(Tensor), boolean=c_bool, integer=c_int64, real=c_double, text=c_char_p)
Attr = struct(name=c_char_p, type=c_int, value=Value)
Options = struct(
    device=c_char_p, variant=c_char_p, stream=c_uint, no_timing=c_bool, warmup=c_uint32, repeat=c_uint32, deadline_ms=c_uint32,
    timeout_ms=c_int64, samples=c_void_p, samples_room=c_size_t, priority=c_int, exact=c_bool, exclusive=c_bool, where=c_int,
    reserved=c_uint64 * 4,
)  # fmt: skip
Request = struct(
    op=c_char_p, inputs=POINTER(Tensor), n_inputs=c_size_t, outputs=POINTER(Tensor), n_outputs=c_size_t, attrs=POINTER(Attr),
    n_attrs=c_size_t, options=Options,
)  # fmt: skip
TIMES = "recv_to_start map queue h2d d2h gpu host total wait end min median p90 max".split()
Result = struct(
    **dict.fromkeys((f"{time}_us" for time in TIMES), c_double), n_samples=c_size_t, device=c_char * 48, variant=c_char * 48,
    timer=c_char * 15, exclusive=c_bool, send_us=c_double, reply_us=c_double, received_ns=c_uint64, wall_us=c_double,
)  # fmt: skip
Source = struct(
    text=c_char_p, name=c_char_p, files=c_void_p, n_files=c_size_t, options=c_void_p, n_options=c_size_t, entries=c_void_p,
    n_entries=c_size_t, arch=c_char_p, device=c_char_p, timeout_ms=c_int64, reserved=c_uint64 * 4,
)  # fmt: skip
Param = struct(
    name=c_char_p, kind=c_int, dtype=c_int, rank=c_uint, shape=c_char_p * 8, elements=c_char_p, align=c_uint, strided=c_bool, map=c_void_p,
    lanes=c_uint32, reserved=c_uint32 * 1,
)  # fmt: skip
Geometry = struct(grid=c_char_p * 3, block=c_char_p * 3, cluster=c_char_p * 3, shared=c_char_p)
Signature = struct(
    entry=c_char_p, params=POINTER(Param), n_params=c_size_t, geometry=Geometry, alias=c_bool, cooperative=c_bool, pdl=c_bool,
    reserved=c_uint64 * 4,
)  # fmt: skip
ModuleInfo = struct(key=c_char_p)
Argument = struct(kind=c_int, size=c_uint32, value=Value)
Dims = struct(n=c_uint, size=c_int64 * 3)
LaunchOptions = struct(geometry=struct(grid=Dims, block=Dims, cluster=Dims, has_shared=c_bool, shared=c_uint64), options=Options)


def value_of(value: Any) -> tuple[int, dict[str, Any]]:
    """An attribute's type, and its value. An argument's types are others: one more each, without texts."""
    for kind, (of, member) in enumerate(((bool, "boolean"), (int, "integer"), (float, "real"), (str, "text")), 1):
        if isinstance(value, of):
            return kind, {member: value.encode() if of is str else value}
    raise TypeError(value)


class Failed(Exception):
    """`code`, `key`: what the error names, and the message."""

    def __init__(self, code: str, key: str | None, message: str) -> None:
        super().__init__(message)
        self.code, self.key = code, key


class Library:
    """Each function by its name; those that return a code raise Failed, and take no `ret_error`."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.kops_code_name.restype = self._library.kops_error_text.restype = c_char_p
        for name in ("kernel_module", "module_info"):
            getattr(self._library, f"kops_{name}").restype = c_void_p

    def get(self, name: str, *arguments: Any) -> Any:
        return getattr(self._library, f"kops_{name}")(*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        error = Error()
        if code := self.get(name, *arguments, ctypes.byref(error)):
            key = self._library.kops_error_text(ctypes.byref(error), b"key")
            raise Failed(self._library.kops_code_name(code).decode(), key and key.decode(), error.message.decode())


def array(of: Any, items: Sequence[Any]) -> Any:
    return (of * max(len(items), 1))(*items)
