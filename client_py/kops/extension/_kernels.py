"""Launches that C++ makes: the name of an instantiation, and arguments whose types the C++ compiler has told."""

from __future__ import annotations

import contextlib
import re
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .. import BadArgument, Client, CompileFailed, KopsError, Param, Unsupported
from .. import interpret
from .._companions import NAME, NAMES, Code, Form, Geometry, drive, kernel_names, on_stream, parameter_names, scan, tokens, type_of
from ..interpret import _compiler
from ..interpret import _runtime as _interpreted
from . import _memory

INVALID_CONFIGURATION = 9  # cudaErrorInvalidConfiguration
MOST_THREADS = 1024
MOST_BLOCKS = (2**31 - 1, 65535, 65535)
FORMS_MOST = 256
DECLARATION = 16  # tokens before __device__ that belong to the same declaration
# Types of torch's that device code has under CUDA's own names.
_DEVICE_NAMES = {"Half": "__half", "BFloat16": "__nv_bfloat16", "Float8_e4m3fn": "__nv_fp8_e4m3", "Float8_e5m2": "__nv_fp8_e5m2"}
_HEADERS = {"__half": "cuda_fp16.h", "__nv_bfloat16": "cuda_bf16.h", "__nv_fp8_e4m3": "cuda_fp8.h", "__nv_fp8_e5m2": "cuda_fp8.h"}
_OF_TORCH = re.compile(rf"\b(?:c10|at|torch)::(?:detail::)?({'|'.join(_DEVICE_NAMES)})\b")
_ANONYMOUS = re.compile(r"(?:\{anonymous\}|\(anonymous namespace\))::")
_WORDS = re.compile(r"\b(?:const|volatile)\b")
_RESTRICT = re.compile(r"\b(?:__restrict__|__restrict)\b|\bconst$")  # of the pointer itself
_FOREIGN = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:torch|ATen|c10|pybind11)/.*$", re.M)  # headers that device code does without
_INTEGERS = {"i": ("i8", "i16", "i32", "i64"), "u": ("u8", "u16", "u32", "u64")}


def device_name(text: str) -> str:
    """A name that the host's compiler told, as the device's code has it."""
    return _ANONYMOUS.sub("", _OF_TORCH.sub(lambda found: _DEVICE_NAMES[found[1]], text))


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


class Given(NamedTuple):
    """An argument: its type in device code, its sort as KopsArg has it, its bytes."""

    type: str
    kind: str
    data: bytes


def given(argument: Any, data: bytes) -> Given:
    text = argument.type.decode()
    name = _RESTRICT.sub("", text[text.find("T = ") + 4 : text.rindex("]")]).strip()
    return Given(device_name(name), "p" if name.endswith("*") else chr(argument.kind), data)


class Kernels:
    """The kernels of a source, compiled by the daemon, or by the interpreter, when they are first launched."""

    def __init__(
        self, client: Client, source: str, name: str, options: Sequence[str], files: Mapping[str, str], fallback: str | None
    ) -> None:
        self.client, self.fallback = client, fallback
        self._source, self._name, self._options, self._files = _FOREIGN.sub("", source), name, tuple(options), dict(files)
        self.names = tuple(kernel_names(scan(self._source, files, options)))
        self._plain = Code(self._source, self.names, options, self._files, name, None, None) if self.names else None
        self._variables = device_variables(self._source)
        self._codes: dict[str, Any] = dict.fromkeys(self.names, self._plain)
        self._forms: dict[Any, Any] = {}
        self._lock = threading.Lock()

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
        source = "".join(f"#include <{header}>\n" for header in headers) + (f'#line 1 "{self._name}"\n' if headers else "") + self._source
        made = self._codes[entry] = Code(source, (entry,), self._options, self._files, self._name, None, None)
        return made

    def _interpret(self, form: Any, values: Sequence[Any], how: Mapping[str, Any]) -> None:
        """On the CPU. Kernels share variables of the device, which stay as a launch has left them."""
        if not self._variables:
            form.interpret(*values, **how)
            return
        code = form.code

        def load(watched: bool) -> Any:
            path = _compiler.compile_kernel(code.source, code.name, code.entries, code.files, code.options, watched)
            return _interpreted.load(path, code.entries.index(form.name))

        interpret.launch(load, form.name, form.params, values, alias=True, keeps=True, **how)

    def _form(self, entry: str, params: tuple[Param, ...], cooperative: bool) -> Any:
        key = entry, params, cooperative
        with self._lock:
            found = self._forms.get(key)
            if found is None:
                if len(self._forms) >= FORMS_MOST:
                    self._forms.clear()
                code = self._code(entry)
                names = parameter_names(code.scan, entry)
                if len(names) == len(params) == len(set(names)):
                    params = tuple(Param(name, *_rest(param)) for name, param in zip(names, params))
                geometry = Geometry(None, None, 0, None, cooperative)
                found = self._forms[key] = Form(self.client, code, entry, params, geometry, True, self.fallback)
        return found

    def launch(
        self, entry: str, dims: Sequence[int], shared: int, stream: int, arguments: Sequence[Given], usual_stream: int,
        cooperative: bool = False, cluster: tuple[int, ...] | None = None,
    ) -> int:  # fmt: skip
        """Launches a kernel. Returns a number of cudaError_t."""
        entry = device_name(entry)
        if "?" in entry:
            raise Unsupported(f"the kernel {entry.replace('?', '')}: a template's argument of this type has no name in device code")
        threads = dims[3] * dims[4] * dims[5]
        if not (0 < threads <= MOST_THREADS and all(0 < size <= most for size, most in zip(dims, MOST_BLOCKS)) and dims[5] <= 64):
            return INVALID_CONFIGURATION
        made = [_argument(entry, i, one) for i, one in enumerate(arguments)]
        form = self._form(entry, tuple(one.param for one in made), cooperative)
        values = [one.value for one in made]
        memory = {one.memory for one in made}
        how: dict[str, Any] = {"grid": tuple(dims[:3]), "block": tuple(dims[3:6]), "shared": shared, "cluster": cluster}
        if self.fallback == "interpret" and not memory & {GPU, HERE}:
            self._interpret(form, values, how)
            return 0
        if HERE in memory:
            how["where"] = "here"
        with on_stream(stream) if stream and stream != usual_stream else contextlib.nullcontext():
            form(*values, **how)
        return 0


def _rest(param: Param) -> tuple[Any, ...]:
    return param.kind, param.dtype, param.shape, param.elements, param.rank, param.align, param.strided, param.map, param.lanes


CPU, GPU, HERE = "cpu", "gpu", "here"  # memory that an argument is in; HERE: an address that is right in this process alone


class Made(NamedTuple):
    """An argument as a launch takes it."""

    param: Param
    value: Any
    memory: str | None


def _argument(entry: str, i: int, one: Given) -> Made:
    name = f"argument_{i}"
    if one.kind == "p":
        return _pointer(entry, i, one, name)
    size = len(one.data)
    if one.kind in "iu":
        dtype = "bool" if one.type == "bool" else _INTEGERS[one.kind][size.bit_length() - 1]
        return Made(Param(name, "scalar", dtype), int.from_bytes(one.data, "little", signed=one.kind == "i"), None)
    if one.kind == "f" and size in (4, 8):
        dtype, form = ("f32", "<f") if size == 4 else ("f64", "<d")
        return Made(Param(name, "scalar", dtype), struct.unpack(form, one.data)[0], None)
    return Made(Param(name, "scalar", "u8", lanes=size), one.data if size > 1 else one.data[0], _memory_of_addresses(entry, i, one))


def _memory_of_addresses(entry: str, i: int, one: Given) -> str | None:
    """HERE where a structure holds the address of a tensor. Raises for one in the memory of the CPU: the interpreter has its own there."""
    words = (int.from_bytes(one.data[at : at + 8], "little") for at in range(0, len(one.data) - 7, 8))
    places = [place for word in words if word and (place := _memory.find(word, inside=True)) is not None]
    if any(place.held.framework.is_on_cpu(place.held.value) for place in places):
        raise Unsupported(
            f"{entry}: argument {i + 1} ({one.type}) holds the address of a tensor, which means nothing where the kernel runs: pass the "
            "pointer as an argument of its own"
        )
    return HERE if places else None


def _pointer(entry: str, i: int, one: Given, name: str) -> Made:
    base, _, rest = one.type.rpartition("*")
    if "*" in base or "&" in rest:
        raise Unsupported(f"{entry}: argument {i + 1} ({one.type}) is a pointer to pointers, which mean nothing where the kernel runs")
    kind = "in" if re.search(r"\bconst\b", base) else "inout"
    found = type_of(_WORDS.sub(" ", base).split(), False)
    dtype = found.dtype if found is not None else "u8"
    address = int.from_bytes(one.data, "little")
    if not address:
        return Made(Param(name, kind, dtype, strided=True), None, None)
    place = _memory.find(address)
    if place is None:
        raise BadArgument(
            f"{entry}: argument {i + 1} ({one.type}) is {address:#x}, which is in no tensor and no memory of cudaMalloc: a kernel cannot "
            "use it",
            {"key": f"args[{i}]"},
        )
    held = place.held
    if held.host:
        why = f"{entry}: argument {i + 1} ({one.type}) points into a tensor in the memory of the CPU: move it to the GPU first"
        raise BadArgument(why, {"key": f"args[{i}]"})
    framework = held.framework
    value = framework.viewed(framework.bytes_of(held.value, place.offset, held.size - place.offset), NAMES[dtype])
    if value.dtype != framework.viewed(framework.bytes_of(held.value, 0, 0), NAMES[dtype]).dtype:
        dtype = "u8"
    return Made(Param(name, kind, dtype, strided=True), value, CPU if framework.is_on_cpu(held.value) else GPU)
