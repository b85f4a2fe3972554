"""How what is mapped is called in a worker with the arguments of one block: kernels, formulas, ops by name, functions."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._base.declarations import OPS
from .._base.dtypes import NAMES
from .._base.errors import BadArgument, Unsupported, WrongType
from .._kernels.formulas import Formula
from .._kernels.kernels import Bound, Kernel
from .._source.signature import Param
from ..interpret._expressions import evaluate
from ._client import WorkerClient

Call = Callable[[Sequence[Any], Mapping[str, Any]], Any]  # with positional and named arguments


def check(what: Any) -> None:
    """In the driver. Raises WrongType or BadArgument for what cannot be mapped."""
    if isinstance(what, str):
        if not what.isidentifier():
            raise BadArgument(f"{what!r} is no name of an op; there are {', '.join(OPS)}", {"key": "kern"})
        return
    if isinstance(what, (Kernel, Bound, Formula)) or callable(what):
        return
    raise WrongType(
        f"map takes a kernel, the name of an op, or a function of a client and a block, not {type(what).__name__}", {"key": "kern"}
    )


def caller(what: Any, client: WorkerClient, on_gpu: bool) -> Call:
    """`on_gpu`: the worker has a GPU of its own."""
    if isinstance(what, str):
        return lambda arguments, named: client.run(what, *arguments, **named)
    if isinstance(what, (Kernel, Bound)):
        return _kernel(what, client, on_gpu)
    if isinstance(what, Formula):
        _check_gpu(what, client, on_gpu)
        what._device = None  # of the driver's daemon; here it is the worker's own
        if _interprets(what, client, on_gpu):
            return lambda arguments, named: what.interpret(*arguments, **named)
        return lambda arguments, named: what(*arguments, **named)
    return lambda arguments, named: what(client, *arguments, **named)


def _has_gpu(client: WorkerClient) -> bool:
    return any(device.backend != "host" for device in client.devices)


def _interprets(kern: Any, client: WorkerClient, on_gpu: bool) -> bool:
    return kern.fallback is not None and not on_gpu and _has_gpu(client)


def _check_gpu(kern: Any, client: WorkerClient, on_gpu: bool) -> None:
    """Raises Unsupported for a kernel that would run on a GPU that is not the worker's."""
    if not on_gpu and kern.fallback is None and _has_gpu(client):
        raise Unsupported(
            f"{kern.name} needs a GPU, and Ray gave none to this worker: map with gpus=1, or declare the kernel with "
            'fallback="interpret", which runs it on the CPU'
        )


def _kernel(what: Kernel | Bound, client: WorkerClient, on_gpu: bool) -> Call:
    kernel = what._kernel if isinstance(what, Bound) else what
    _check_gpu(kernel, client, on_gpu)
    kernel.code.device = None
    launch = what.interpret if _interprets(kernel, client, on_gpu) else what

    def run(arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        values = bound(kernel, arguments, named)
        made = [_argument(kernel, param, values, client) for param in kernel.params]
        launch(*made)
        written = tuple(value for param, value in zip(kernel.params, made, strict=True) if param.kind in ("out", "inout"))
        return written[0] if len(written) == 1 else written or None

    return run


def bound(kernel: Kernel, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The given arguments by the parameters' names. Those by position are for all parameters, or for those that are not `out`."""
    names = [param.name for param in kernel.params if param.name not in named]
    inputs = [param.name for param in kernel.params if param.name not in named and param.kind != "out"]
    taken = names if len(arguments) == len(names) else inputs
    if len(arguments) != len(taken):
        counts = f"{len(inputs)}" if len(inputs) == len(names) else f"{len(inputs)} or, with those that it only writes, {len(names)}"
        raise BadArgument(f"{kernel.name} takes {counts} arguments ({', '.join(names)}), and a block has {len(arguments)}")
    unknown = named.keys() - {param.name for param in kernel.params}
    if unknown:
        raise BadArgument(f"{kernel.name} has no parameter {sorted(unknown)[0]}; it has {', '.join(p.name for p in kernel.params)}")
    return {**dict(zip(taken, arguments, strict=True)), **named}


def _argument(kernel: Kernel, param: Param, values: Mapping[str, Any], client: WorkerClient) -> Any:
    """What the launch gets: an input as it came, memory of the worker's for what is written."""
    value = values.get(param.name)
    if param.kind == "out":
        if value is None:
            return client.empty(*_declared(kernel, param, values, client))
        return client.empty(tuple(value.shape), value.dtype)
    if param.kind == "inout" and value is not None:
        return client.array(value)  # what travelled is read-only
    return value


def _declared(kernel: Kernel, param: Param, values: Mapping[str, Any], client: WorkerClient) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of a result, by the kernel's signature and the other arguments."""
    declared = param.shape if param.shape is not None else (param.elements,)
    sizes = [size for size in declared if size is not None]
    if len(sizes) < len(declared):
        raise BadArgument(
            f"the shape of {kernel.name}'s result {param.name} is not known: declare its size in the signature "
            f"(`out {param.dtype}* {param.name}[n]`), or give an array like it in each block",
            {"key": param.name},
        )
    names: dict[str, Any] = {}
    if client.own_device is not None and client.own_device.backend != "host":
        names["multiprocessors"] = client.own_device.compute_units
    torch: Any = None
    for other in kernel.params:
        value = values.get(other.name)
        if value is None:
            continue
        if other.is_tensor:
            names[other.name] = tuple(value.shape)
            torch = torch or _torch_of(value)
        elif other.dtype[0] in "iu":
            names[other.name] = operator.index(value)
        else:
            names[other.name] = value
    shape = tuple(int(evaluate(size, names, f"{kernel.name}: {param.name}")) for size in sizes)
    return shape, param.dtype if torch is None else getattr(torch, NAMES[param.dtype])


def _torch_of(value: Any) -> Any:
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(value, torch.Tensor) else None
