"""The op methods, `k.add(a, b)` and so on, made from the op declarations: a new declaration needs no code here.

Each is compiled from a few lines of source, so that it has a true signature, which calls are checked against, and
`help(k.gemm)` shows. `ops.pyi` is the same for type checkers and editors; `stubs.py` writes it and a test keeps it
current.
"""

from __future__ import annotations

import inspect
import numbers
import operator
from collections.abc import Callable
from types import MethodType
from typing import Any

from .._base.compiled import FAST_RULES, native, pack
from .._base.declarations import OPS
from .._base.errors import BadArgument, WrongType
from .._base.twins import DEFAULT_TIMEOUT
from . import rules
from .contexts import DAEMON_BY_AUTO
from .rules import VECTORS

NUMBERS = {op: number for number, op in enumerate(OPS)}  # by which the extension knows them
OPTIONS = (
    "out=None, variant=None, device=None, stream=0, timing=False, deadline_ms=None, priority=None, blocking=None, "
    "where=None, timeout=DEFAULT_TIMEOUT"
)

OPTIONS_DOC = """
Options of every op:
    out: where the result goes, of the result's shape; otherwise a new tensor of the first input's framework and device.
        A tuple where there are several outputs.
    variant: forces one kernel; `k.ops[name].variants` lists them by device.
    device: where to run when all tensors are in host memory: one of `k.devices`, its index or UUID.
    stream: calls of one client take effect in order within a stream, and in none between streams (0 to 255).
    timing: also measure, and return `(result, Timings)`. "exact": by the driver's records of the kernels, where CUPTI is there
        to make them; the reply comes some 20 us later.
    deadline_ms: so many milliseconds after the request arrived the daemon answers with `DeadlineExceeded`, whose `ended`
        says whether the work has stopped, too. What cannot be stopped goes on; the result is lost in any case.
    priority: "low", "normal" or "high", among everything that the daemon is asked to run on a device.
    blocking: True returns when the result is ready; False, the default, where the call can be ordered. See below.
    where: "here" runs the daemon's own kernel in this process's CUDA context, on its current stream, after the same checks; arrays are
        in device memory. "auto" takes what was measured to be faster. See below.
    timeout: seconds to wait for the reply before `Timeout` is raised and the request cancelled; None waits for ever.

On torch CUDA tensors a call is *ordered*: it is put on torch's current stream and returns at once, like an op of
torch's own. Work on that stream before and after it sees its effects in order. An error appears at a later call or at
`synchronize()`, and names the op. With `blocking=True`, `timing=True` or a `stream`, with a daemon that has no
feature `ordered`, without the compiled part (see `kops.compiled`), and on other arrays, inputs must be ready: the torch
stream that is current, or the stream that `__cuda_array_interface__` names, is waited for before the request is sent,
and the result is ready when the call returns. The asyncio client always works so.

A stream that is captured into a graph takes no call to the daemon: there an ordered call runs here by itself, and becomes a node
of the graph, which then needs neither the client nor the daemon; `where="daemon"` refuses captures. cuBLASLt's kernels are the
daemon's alone, so gemm here runs one of the daemon's own: `skinny`, `small` or `hopper` where that is likely to be faster, else `tiled`.
They are slower for large matrices. Raises `KopsError`."""


def coerce(op: str, attr: dict[str, Any], value: Any) -> Any:
    """An attribute as its declaration wants it. Raises WrongType or BadArgument."""
    kind, name = attr["type"], attr["name"]
    if kind == "float" and isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    if kind == "bool" and (isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")):
        return bool(value)
    if kind == "int" and not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    if kind == "choice" and isinstance(value, str):
        if value not in attr["choices"]:
            raise BadArgument(f"{op}: {name} must be one of {', '.join(attr['choices'])}, not {value!r}", {"key": f"attrs.{name}"})
        return value
    raise WrongType(f"{op}: {name} must be a {kind}, not {value!r}", {"key": f"attrs.{name}"})


def check_attrs(op: str, attrs: dict[str, Any], variant: str | None) -> dict[str, Any]:
    """Attributes by name, coerced, and the variant. Those that the client does not know are left to the daemon."""
    declared = {attr["name"]: attr for attr in OPS.get(op, {}).get("attrs", ())}
    checked = {name: coerce(op, declared[name], value) if name in declared else value for name, value in attrs.items()}
    if variant is not None:
        checked["variant"] = variant
    return checked


def signature_source(op: str) -> tuple[str, str]:
    """The inputs and the keyword attributes of an op, as parameter lists."""
    declared = OPS[op]
    return ", ".join(declared["inputs"]), "".join(f"{attr['name']}={attr['default']!r}, " for attr in declared["attrs"])


def documentation(op: str) -> str:
    declared = OPS[op]
    lines = [declared["summary"], "", declared["doc"], "", "dtypes: " + ", ".join(declared["dtypes"])]
    lines += [f"{name}: " + ", ".join(dtypes) for name, dtypes in declared.get("in_dtypes", {}).items()]
    if declared["attrs"]:
        lines += ["", "Attributes:"]
        lines += [f"    {attr['name']} ({attr['type']}, {attr['default']!r}): {attr['doc']}" for attr in declared["attrs"]]
    if "out_dtypes" in declared:
        lines += ["", "The dtype of the result is the first one here of the inputs' dtype, or `out_dtype`, which may be any of them:"]
        lines += [f"    {dtype}: {', '.join(outs)}" for dtype, outs in declared["out_dtypes"].items()]
    return "\n".join(lines) + "\n" + OPTIONS_DOC


def _make_method(op: str) -> Callable[..., Any]:
    inputs, attributes = signature_source(op)
    typed = "out_dtypes" in OPS[op]
    lines = [f"def {op}(self, {inputs}, *, {attributes}{'out_dtype=None, ' if typed else ''}{OPTIONS}):", "    attrs = {}"]
    for i, attr in enumerate(OPS[op]["attrs"]):
        name = attr["name"]
        lines.append(f"    if {name} != {attr['default']!r}: attrs[{name!r}] = coerce({op!r}, ATTRS[{i}], {name})")
    lines.append("    if variant is not None: attrs['variant'] = variant")
    if typed:
        lines.append("    if out_dtype is not None: attrs['out_dtype'] = out_dtype")
    lines.append(
        f"    return self._op({op!r}, ({inputs},), out, attrs, device, stream, timing, deadline_ms, priority, blocking, timeout, "
        "where)"
    )
    scope: dict[str, Any] = {"DEFAULT_TIMEOUT": DEFAULT_TIMEOUT, "coerce": coerce, "ATTRS": OPS[op]["attrs"]}
    exec(compile("\n".join(lines), f"<op {op}>", "exec"), scope)
    method: Callable[..., Any] = scope[op]
    method.__doc__ = inspect.cleandoc(documentation(op))
    method.__module__ = "kops"
    method.__qualname__ = f"Client.{op}"
    return method


def _packer(op: str) -> Callable[[dict[str, Any]], bytes | None]:
    """What the extension asks for a call's attributes by: as they are sent, None where all are as declared."""
    declared = {attr["name"]: attr for attr in OPS[op]["attrs"]}

    def packer(given: dict[str, Any]) -> bytes | None:
        variant = given.pop("variant", None)
        attrs = {name: coerce(op, declared[name], value) for name, value in given.items() if value != declared[name]["default"]}
        if variant is not None:
            attrs["variant"] = variant
        return pack(attrs) if attrs else None

    return packer


def _with_short_way(op: str, method: Callable[..., Any]) -> Any:
    """The method, which the extension tries to launch in this process before it calls it."""
    declared = OPS[op]
    if native is None or len(declared["outputs"]) != 1:
        return method
    rule = 0 if op in rules.OTHER_DTYPES else FAST_RULES.get(op, 0)
    attrs = (*(attr["name"] for attr in declared["attrs"]), "variant")
    return native.OpMethod(
        method, op, NUMBERS[op], len(declared["inputs"]), rule, op in VECTORS, attrs, _packer(op), DAEMON_BY_AUTO, MethodType
    )  # fmt: skip


class OpMethods:
    """A method for each op. The client says what calling one means, in `_op`."""

    _ops_here: Any = None  # set in a client that launches in this process


for _name in OPS:
    setattr(OpMethods, _name, _with_short_way(_name, _make_method(_name)))
AsyncOpMethods = OpMethods
