"""The compiled part of the package, `kops._native`, which is optional: whether it is there, and why not.

It is used when it can be imported; KOPS_NATIVE=0 switches it off, and KOPS_NATIVE=<path> names the file. `native_link` makes
connections through it; this file loads it and tells it how to read torch's tensors.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack

from .._version import VERSION
from .declarations import DTYPES, OPS
from .dtypes import NAMES
from .errors import BY_CODE, KopsError, Unsupported
from .texts import log

_RULES: dict[Any, int] = {"elementwise": 1, "gemm": 2, "linear": 2}  # with results of the inputs' dtype
FAST_RULES = {op: _RULES.get(declared["rule"], 0) for op, declared in OPS.items()}
NUMBERS = {name: number for number, name in enumerate(DTYPES, 1)}  # enum kops_dtype
SWITCHED_OFF = "KOPS_NATIVE=0 switches it off"

pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def _exception(code: str, message: str, detail: dict[str, Any]) -> KopsError:
    return BY_CODE.get(code, BY_CODE["internal"])(message, detail, code)


def load() -> tuple[Any, str]:
    """The extension, or None with the reason in one line."""
    named = os.environ.get("KOPS_NATIVE", "")
    if named == "0":
        return None, SWITCHED_OFF
    try:
        module = _from_file(named) if "/" in named else importlib.import_module("kops._native")
    except ImportError as error:
        if named:
            raise
        return None, _why_missing(error)
    if module.version != VERSION:
        why = f"it is of version {module.version}, this package of {VERSION}"
        if named:
            raise ImportError(f"kops._native is not used: {why}")
        log.warning("the compiled part is not used: %s", why)
        return None, why
    module.set_errors(_exception)
    return module, ""


def _why_missing(error: ImportError) -> str:
    if not isinstance(error, ModuleNotFoundError):
        return str(error)  # a library that it needs is not there
    try:
        return (Path(__file__).parents[1] / "_not_compiled.txt").read_text(encoding="utf-8").strip()
    except OSError:
        return "this copy of the package was not installed by pip, which builds it; KOPS_NATIVE=<path> names a file that was built"


def _from_file(path: str) -> ModuleType:
    found = sys.modules.get("kops._native")
    if found is not None:
        return found
    loader = importlib.machinery.ExtensionFileLoader("kops._native", path)
    spec = importlib.util.spec_from_loader("kops._native", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules["kops._native"] = module
    return module


native, why_not = load()
if native is not None:
    atexit.register(native.leave)
_configured: Any = None


def compiled_part(what: str) -> Any:
    """The extension; raises Unsupported where there is none. `what` needs it, in the error."""
    if native is None:
        raise Unsupported(f"{what} needs the compiled part of the package: {why_not}")
    return native


fast_types: set[type] = set()  # exactly these types of tensors are read by the extension


def configure(torch: Any, current_stream: Callable[[int], int]) -> None:
    """Gives the extension torch's types and functions; `current_stream` is for a torch without a quicker one."""
    global _configured
    if native is None or _configured is torch:
        return
    types = [torch.Tensor]
    parameter = getattr(getattr(torch, "nn", None), "Parameter", None)
    if parameter is not None:
        types.append(parameter)
    stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or current_stream
    empty = torch.empty
    native.configure(
        tuple(types),
        tuple(getattr(torch, NAMES[name], None) for name in DTYPES),
        getattr(torch.Tensor, "__dlpack_c_exchange_api__", None),
        stream,
        torch.empty_like,
        lambda like, shape: empty(shape, dtype=like.dtype, device=like.device),
    )
    fast_types.clear()
    fast_types.update(types)
    _configured = torch


_names: dict[str, str] = {}


def keep_name(name: str) -> str:
    """The same name as one object for ever, since the extension keeps its address."""
    return _names.setdefault(name, name)
