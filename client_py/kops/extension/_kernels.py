"""Launches that C++ makes: the name of an instantiation, and arguments whose types the C++ compiler has told."""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, NamedTuple

from .. import BadArgument, Client, CompileFailed, KopsError, Param, Unsupported
from .._companions import (
    DTYPES,
    NAME,
    NAMES,
    Code,
    Form,
    Geometry,
    drive,
    kernel_names,
    launched_here,
    on_stream,
    parameter_names,
    scan,
    tokens,
    type_of,
    usual_place,
)
from . import _memory
from ._cuda import INVALID_CONFIGURATION

MOST_THREADS = 1024
MOST_BLOCKS = (2**31 - 1, 65535, 65535)
PLANS_MOST = 256
DECLARATION = 16  # tokens before __device__ that belong to the same declaration
# Types of torch's that device code has under CUDA's own names.
_DEVICE_NAMES = {"Float8_e4m3fn": "__nv_fp8_e4m3", "Float8_e5m2": "__nv_fp8_e5m2"}
_HEADERS = {"__half": "cuda_fp16.h", "__nv_bfloat16": "cuda_bf16.h", "__nv_fp8_e4m3": "cuda_fp8.h", "__nv_fp8_e5m2": "cuda_fp8.h"}
_HALF = re.compile(r"\b(?:c10|at|torch)::(?:Half|BFloat16)\b")
_HALF_HEADER = "kops/device_half.h"  # has them
_MATH = re.compile(r"\bpow\s*\(")
_MATH_HEADER = "kops/device_math.h"
# Texts of expressions that few sources need, or launches alone: `re` compiles them then.
_LIBRARIES = r"(?m)^[ \t]*#[ \t]*include[ \t]*[<\"](?:cub|cuda|thrust)/"  # they have functions of such names
_OF_TORCH = rf"\b(?:c10|at|torch)::(?:detail::)?({'|'.join(_DEVICE_NAMES)})\b"
_ANONYMOUS = r"(?:\{anonymous\}|\(anonymous namespace\))::"
_WORDS = r"\b(?:const|volatile)\b"
_RESTRICT = r"\b(?:__restrict__|__restrict)\b|\bconst$"  # of the pointer itself
# torch's headers bring these.
_OF_TORCHS_HEADERS = ((re.compile(r"\b__\w*half|\bhalf2?\b"), "cuda_fp16.h"), (re.compile(r"bfloat16"), "cuda_bf16.h"))
_FOREIGN = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:torch|ATen|c10|pybind11)/.*$", re.M)  # headers that device code does without
_INTEGERS = {"i": ("i8", "i16", "i32", "i64"), "u": ("u8", "u16", "u32", "u64")}


@cache
def _file(header: str) -> dict[str, str]:
    from .headers import INCLUDE  # which few sources need

    return {header: (INCLUDE / header).read_text()}


def device_name(text: str) -> str:
    """A name that the host's compiler told, as the device's code has it."""
    if "Float8" in text:
        text = re.sub(_OF_TORCH, lambda found: _DEVICE_NAMES[found[1]], text)
    return re.sub(_ANONYMOUS, "", text) if "anonymous" in text else text


def device_variables(source: str) -> list[str]:
    """The variables of the device that kernels may write, outside of functions and classes."""
    found, items = [], tokens(source)
    for i, token in enumerate(items):
        if token.kind != NAME or token.text not in ("__device__", "__managed__"):
            continue
        end = next((k for k in range(i, len(items)) if items[k].text in (";", "=", "(", ")", "[", "{", "}")), len(items))
        start = max((k + 1 for k in range(max(0, i - DECLARATION), i) if items[k].text in (";", "{", "}")), default=0)
        words = {item.text for item in items[start:end]}
        if end < len(items) and items[end].text in (";", "=", "[", "{") and not words & {"const", "constexpr", "operator", "]"}:
            found.append(items[end - 1].text)
    return found


class Type(NamedTuple):
    """What the compiler told of an argument's type: the text that has it, its sort as KopsArg has it, its bytes."""

    text: bytes
    kind: int
    size: int


CPU, GPU, HERE = "cpu", "gpu", "here"  # memory that an argument is in; HERE: an address that is right in this process alone


class _Argument:
    """How an argument becomes what a launch takes. `form`: its bytes for `struct`. `read`, where it may hold an address, answers the value
    and its memory."""

    def __init__(self, entry: str, i: int, type: Type) -> None:
        text = type.text.decode()
        self.type = device_name(re.sub(_RESTRICT, "", text[text.find("T = ") + 4 : text.rindex("]")]).strip())
        self.what, self.key = f"{entry}: argument {i + 1} ({self.type})", {"key": f"args[{i}]"}
        kind, size, name = chr(type.kind), type.size, f"argument_{i}"
        self.as_bytes: Param | None = None  # of a pointer that is not aligned for its type
        if kind == "p" or self.type.endswith("*"):
            self._init_pointer(name)
        elif kind in "iu":
            dtype = "bool" if self.type == "bool" else _INTEGERS[kind][size.bit_length() - 1]
            self.param, self.form = Param(name, "scalar", dtype), ("BHIQ" if kind == "u" else "bhiq")[size.bit_length() - 1]
        elif kind == "f" and size in (4, 8):
            dtype, self.form = ("f32", "f") if size == 4 else ("f64", "d")
            self.param = Param(name, "scalar", dtype)
        else:
            self.param, self.form, self.read = Param(name, "scalar", "u8", lanes=size), f"{size}s", self._structure

    read: Callable[[Any], tuple[Any, str | None]] | None = None

    def _init_pointer(self, name: str) -> None:
        base, _, rest = self.type.rpartition("*")
        if "*" in base or "&" in rest:
            raise Unsupported(f"{self.what} is a pointer to pointers, which mean nothing where the kernel runs")
        found = type_of(re.sub(_WORDS, " ", base).split(), False)
        dtype = found.dtype if found is not None else "u8"
        kind = "in" if re.search(r"\bconst\b", base) else "inout"
        self.param, self._dtype, self.align = Param(name, kind, dtype, strided=True), NAMES[dtype], DTYPES[dtype]
        self.as_bytes = Param(name, kind, "u8", strided=True)
        self.form, self.read = "Q", self._pointer

    def _structure(self, data: bytes) -> tuple[Any, str | None]:
        """A structure may hold the address of a tensor, but not of one in the memory of the CPU: the interpreter has its own there."""
        words = (int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) - 7, 8))
        places = [place for word in words if word and (place := _memory.find(word, inside=True)) is not None]
        if any(place.framework.on_cpu(place.value) for place in places):
            raise Unsupported(
                f"{self.what} holds the address of a tensor, which means nothing where the kernel runs: pass the pointer as an argument of "
                "its own"
            )
        return data if len(data) > 1 else data[0], HERE if places else None

    def _pointer(self, address: int) -> tuple[Any, str | None]:
        if not address:
            return None, None
        place = _memory.find(address)
        if place is None:
            why = f"{self.what} is {address:#x}, which is in no tensor and no memory of cudaMalloc: a kernel cannot use it"
            raise BadArgument(why, self.key)
        if place.host:
            raise BadArgument(f"{self.what} points into a tensor in the memory of the CPU: move it to the GPU first", self.key)
        tensor, framework, offset, size = place.value, place.framework, place.offset, place.size
        memory = CPU if framework.on_cpu(tensor) else GPU
        if not offset and framework.whole_dtype(tensor, size) == self._dtype:
            return tensor, memory
        value = framework.bytes_of(tensor, offset, size - offset)
        return value if offset % self.align else framework.viewed(value, self._dtype), memory

    def reaching_back(self, given: Any, value: Any) -> Any:
        """A pointer for the interpreter: with what lies before it in its storage, since C++ may step back."""
        place = _memory.find(given) if self.as_bytes is not None and value is not None else None
        if place is None or not place.offset:
            return value
        from .._companions import numpy
        from . import _numpy

        offset = place.offset
        whole = numpy.frombuffer((ctypes.c_uint8 * place.size).from_address(place.start), numpy.uint8)
        array = whole[offset:] if offset % self.align else _numpy.viewed(whole[offset:], self._dtype)
        if not array.size:
            return value
        array.flags.writeable = value.flags.writeable if _numpy.is_tensor(value) else True
        return numpy.lib.stride_tricks.as_strided(array, (2, len(array)), (-offset, array.itemsize))


class _Plan:
    """A kernel with arguments of certain types: how they are read, and its declarations."""

    def __init__(self, name: str, types: Sequence[Type]) -> None:
        self.entry = device_name(name)
        if "?" in self.entry:
            raise Unsupported(f"the kernel {self.entry.replace('?', '')}: a template's argument of this type has no name in device code")
        self.arguments = [_Argument(self.entry, i, type) for i, type in enumerate(types)]
        self.bytes = struct.Struct("=" + "".join([one.form for one in self.arguments]))
        self.readers = [(i, one.read) for i, one in enumerate(self.arguments) if one.read is not None]
        self.pointers = [(i, one.align) for i, one in enumerate(self.arguments) if one.as_bytes is not None]
        self.forms: dict[Any, Any] = {}


class Kernels:
    """The kernels of a source, compiled by the daemon, or by the interpreter, when they are first launched."""

    def __init__(
        self, client: Client, source: str, name: str, options: Sequence[str], files: Mapping[str, str], fallback: str | None
    ) -> None:
        self.client, self.fallback = client, fallback
        more = [header for word, header in _OF_TORCHS_HEADERS if word.search(source) and header not in source]
        if _HALF.search(source):
            more, files = [_HALF_HEADER], {**files, **_file(_HALF_HEADER)}
        if _MATH.search(source) and not re.search(_LIBRARIES, source):
            more, files = [*more, _MATH_HEADER], {**files, **_file(_MATH_HEADER)}
        before = "".join(f"#include <{header}>\n" for header in more) + (f'#line 1 "{name}"\n' if more else "")
        self._source, self._name, self._options, self._files = before + _FOREIGN.sub("", source), name, tuple(options), dict(files)
        found = scan(self._source, files, options)
        self.names, self.all_names = tuple(kernel_names(found)), {kernel.name for kernel in found.kernels}
        self._plain = Code(self._source, self.names, options, self._files, name, None, None) if self.names else None
        self._codes: dict[str, Any] = dict.fromkeys(self.names, self._plain)
        self._plans: dict[Any, _Plan] = {}
        self._lock = threading.Lock()

    @cached_property
    def _variables(self) -> list[str]:
        return device_variables(self._source)

    def compile(self) -> None:
        """Compiles the kernels that are no templates, so that their errors come before a launch. The interpreter does so at the launch,
        and a daemon that is not there, or compiles nothing, says so then."""
        if self._plain is not None and self.fallback is None:
            try:
                drive(self.client, self._plain.define)
            except CompileFailed:
                raise
            except KopsError:
                pass

    def check(self) -> list[str]:
        """Compiles the kernels for the interpreter, and on a GPU's daemon. The names of those that are no templates."""
        self.compile()
        code = self._plain
        if code is not None:
            from ..interpret import _compiler

            _compiler.compile_kernel(code.source, code.name, code.entries, code.files, code.options, True)
        return [name.partition("(")[0] for name in self.names]

    def _code(self, entry: str) -> Any:
        """The source as it is compiled for a kernel: all that are no templates share one module, an instantiation has its own."""
        if entry in self._codes:
            return self._codes[entry]
        if self._variables and self._codes:
            raise Unsupported(
                f"{entry}: the source has the variable {self._variables[0]} of the device, and an instantiation of a template is a module "
                "of its own, which has its own variables: make it a plain kernel, or pass the variable as a tensor"
            )
        headers = sorted({header for name, header in _HEADERS.items() if name in entry})
        files = self._files
        if _HALF.search(entry):
            headers, files = [*headers, _HALF_HEADER], {**files, **_file(_HALF_HEADER)}
        source = "".join(f"#include <{header}>\n" for header in headers) + (f'#line 1 "{self._name}"\n' if headers else "") + self._source
        made = self._codes[entry] = Code(source, (entry,), self._options, files, self._name, None, None)
        return made

    def _interpret(self, form: Any, values: Sequence[Any], how: Mapping[str, Any]) -> None:
        """On the CPU. Kernels share variables of the device, which stay as a launch has left them."""
        if not self._variables:
            form.interpret(*values, **how)
            return
        from .. import interpret  # of no use where kernels run on a GPU
        from ..interpret import _compiler
        from ..interpret import _runtime as _interpreted

        code = form.code

        def load(watched: bool) -> Any:
            path = _compiler.compile_kernel(code.source, code.name, code.entries, code.files, code.options, watched)
            return _interpreted.load(path, code.entries.index(form.name))

        interpret.launch(load, form.name, form.params, values, alias=True, keeps=True, **how)

    def _form(self, plan: _Plan, params: tuple[Param, ...], cooperative: bool) -> Any:
        entry, code = plan.entry, self._code(plan.entry)
        names = parameter_names(code.scan, entry)
        if len(names) == len(params) == len(set(names)):
            params = tuple(replace(param, name=name) for name, param in zip(names, params))
        return Form(self.client, code, entry, params, Geometry(None, None, 0, None, cooperative), True, self.fallback)

    def launch(
        self, name: bytes, types: tuple[Any, ...], data: bytes, grid: tuple[int, ...], block: tuple[int, ...], shared: int,
        stream: int, usual_stream: Callable[[], int], cooperative: bool = False, cluster: tuple[int, ...] | None = None,
    ) -> tuple[int, tuple[Any, ...] | None]:  # fmt: skip
        """Launches a kernel. `data`: the bytes of its arguments, one behind another. Returns a number of cudaError_t, and what the compiled
        part needs to make such launches from now on."""
        (x, y, z), (most_x, most_y, most_z) = grid, MOST_BLOCKS
        if not (0 < x <= most_x and 0 < y <= most_y and 0 < z <= most_z):
            return INVALID_CONFIGURATION, None
        if not (0 < block[0] * block[1] * block[2] <= MOST_THREADS and block[2] <= 64):
            return INVALID_CONFIGURATION, None
        with self._lock:
            plan = self._plans.get((name, types))
            if plan is None:
                if len(self._plans) >= PLANS_MOST:
                    self._plans.clear()
                plan = self._plans[name, types] = _Plan(name.decode(), [Type(*one) for one in types])
            given = plan.bytes.unpack(data)
            unaligned = tuple([i for i, align in plan.pointers if given[i] % align])
            form = plan.forms.get((cooperative, unaligned))
            if form is None:
                params = tuple((i in unaligned and one.as_bytes) or one.param for i, one in enumerate(plan.arguments))
                form = plan.forms[cooperative, unaligned] = self._form(plan, params, cooperative)
        values, memory = list(given), []
        for i, read in plan.readers:
            values[i], where = read(given[i])
            memory.append(where)
        how: dict[str, Any] = {"grid": grid, "block": block, "shared": shared, "cluster": cluster}
        if self.fallback == "interpret" and GPU not in memory and HERE not in memory:
            reaching = [one.reaching_back(*both) for one, *both in zip(plan.arguments, given, values)]
            self._interpret(form, reaching, how)
            return 0, None
        how["where"] = "here" if HERE in memory else usual_place(self.client) if GPU in memory else None
        if not stream or stream == usual_stream():
            form(*values, **how)
        else:
            with on_stream(stream):
                form(*values, **how)
        is_plain = self.fallback is None and not unaligned and not cooperative and cluster is None and set(memory) <= {GPU, None}
        made = launched_here(form) if is_plain else None
        return 0, None if made is None else (*made, [one.param.dtype if one.as_bytes else None for one in plan.arguments])


class SeveralKernels:
    """The kernels of several sources, each of which is compiled alone, as nvcc does it."""

    def __init__(
        self, client: Client, sources: Sequence[tuple[str, str]], options: Sequence[str], files: Mapping[str, str], fallback: str | None
    ) -> None:
        self.fallback = fallback
        self._all = [Kernels(client, text, name, options, files, fallback) for name, text in sources]
        self._own = [{kernel.name for kernel in scan(text, {}, options).kernels} for _, text in sources]  # without those of headers
        self._sources = [name for name, _ in sources]

    def compile(self) -> None:
        for kernels in self._all:
            kernels.compile()

    def check(self) -> list[str]:
        return [name for kernels in self._all for name in kernels.check()]

    def launch(self, name: bytes, *arguments: Any, **how: Any) -> tuple[int, tuple[Any, ...] | None]:
        """As `Kernels.launch`, of the source that has the kernel."""
        entry = device_name(name.decode()).partition("<")[0]
        own = [i for i, names in enumerate(self._own) if entry in names]
        if len(own) > 1:
            both = " and ".join(self._sources[i] for i in own)
            raise Unsupported(f"{entry} is a kernel of {both}, and a launch does not tell which: give them different names")
        own = own or [i for i, kernels in enumerate(self._all) if entry in kernels.all_names] or [0]
        return self._all[own[0]].launch(name, *arguments, **how)
