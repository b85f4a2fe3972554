"""Where torch's ops run: by the client in use; in CUDA graphs, of torch itself and of torch.compile (`mode="reduce-overhead"`), not in the
daemon.

- *A stream under capture* takes no call to the daemon. An op becomes a node of the graph by the daemon's kernel in this process's
  context. cuBLASLt's kernels cannot be handed out: where the daemon would have used them, the node is torch's own matmul, which has
  them, too.
- *The warm-up of torch.compile's graphs* runs ops on memory of the graphs' pool, and torch counts afterwards who still has such
  memory. A call to the daemon keeps its tensors until it has ended. So a warm-up launches here, too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .._base.errors import Capturing, WrongType
from .._calls import contexts, ops_here, rules
from .._clients.client import Client
from .._clients.inline import default_client
from .._memory.exports import allocations

__all__ = ["TREES", "client", "launches_here", "ordered", "use", "warms_up"]

_used: Client | None = None
_chosen = False


def use(client: Client | None) -> None:
    """Lets `torch.ops.kops` go through `client`, in all threads, from the next call on; None: through the process's own client
    again, `kops.default_client()`, which connects at its first use.

    Kernels that became ops by `kops.torch.custom_op` stay with the clients that they belong to. Raises `kops.WrongType`."""
    global _used, _chosen
    if client is not None and not isinstance(client, Client):
        raise WrongType(f"torch.ops.kops needs a kops.Client, of kops.connect(), not {type(client).__name__}")
    _used, _chosen = client, client is not None


def client() -> Any:
    """The client that `torch.ops.kops` go through now."""
    global _used
    found = _used
    if found is None or (found._closed and not _chosen):
        found = _used = default_client()
    return found


PRODUCTS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
ALMOST_ONE = 1 + 2**-23  # replaces a beta of 1, with which cuBLAS rounds a 16-bit product before it adds
TREES = "torch._inductor.cudagraph_trees"  # imported with the first graph of torch.compile


def warms_up(like: Any) -> bool:
    """Whether torch.compile runs the ops of a graph, on the device of `like`, before it captures them."""
    trees: Any = sys.modules.get(TREES)
    if trees is None or like.device.type != "cuda":
        return False
    try:
        manager = trees.get_manager(like.get_device(), create_if_none_exists=False)
        return manager is not None and bool(manager.in_warmup)
    except (AssertionError, AttributeError, KeyError, RuntimeError):  # no graphs in this thread, or another version of torch
        return False


def launches_here(client: Any, like: Any, feature: str) -> bool:
    """Whether a call is part of a warm-up and can be launched here."""
    return warms_up(like) and contexts.offered(client._live(), feature)


def _products_are_exact() -> bool:
    """Whether torch multiplies float32 as such, and not as tf32."""
    matmul: Any = torch.backends.cuda.matmul
    own = getattr(matmul, "fp32_precision", None)
    if own is None:
        return not matmul.allow_tf32
    return own == "ieee" or (own == "none" and torch.backends.fp32_precision in ("none", "ieee"))


def _fits(a: Any, b: Any, out: Any, attrs: Mapping[str, Any]) -> bool:
    """Whether torch can write the product to `out`; what is wrong is left to the client, which says so."""
    if a.dtype != b.dtype or a.dtype not in PRODUCTS:
        return False
    shape = rules.RULES["gemm"].out_shape([a.shape, b.shape], attrs)
    if out is None:
        return bool(attrs.get("beta", 0.0) == 0)
    others = (a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr())
    return bool(tuple(out.shape) == tuple(shape) and out.dtype == a.dtype and out.untyped_storage().data_ptr() not in others)


_multiplied: set[tuple[int, int]] = set()  # threads and devices where torch has its cuBLAS


def _torch_multiplies(like: Any) -> bool:
    """Whether torch has its cuBLAS in this thread, which it makes at a thread's first product. A capture in the mode of
    `torch.cuda.graph` refuses that, and fails; so it is made before, in relaxed mode."""
    key = threading.get_ident(), like.get_device()
    if key not in _multiplied:
        try:
            with allocations.driver.relaxed(), torch.cuda.device(like.get_device()):
                torch.cuda.current_blas_handle()
        except RuntimeError:
            return False
        _multiplied.add(key)
    return True


def _by_torch(client: Any, a: Any, b: Any, out: Any, attrs: Mapping[str, Any]) -> Any:
    """A product of matrices by torch; NotImplemented where the daemon would use its own kernel, or torch has no such op."""
    if attrs.get(rules.OUT_DTYPE) is not None:
        return NotImplemented
    alpha, beta = attrs.get("alpha", 1.0), attrs.get("beta", 0.0)
    scaled = alpha != 1 or beta != 0
    if (scaled and (a.dim() != 2 or b.dim() != 2)) or not ops_here.uses_blaslt(client._live(), "gemm", (a,)):
        return NotImplemented
    if not _fits(a, b, out, attrs):
        return NotImplemented
    if a.dtype is torch.float32 and attrs.get("precision", "highest") != "medium" and not _products_are_exact():
        return NotImplemented
    if not _torch_multiplies(a):
        return NotImplemented
    a = a.mT if attrs.get("trans_a") else a
    b = b.mT if attrs.get("trans_b") else b
    if not scaled:
        return torch.matmul(a, b, out=out)
    if beta == 0:
        return torch.addmm(a.new_empty(()), a, b, beta=0, alpha=alpha, out=out)
    if beta == 1 and a.element_size() == 2:
        beta = ALMOST_ONE
    return torch.addmm(out, a, b, beta=beta, alpha=alpha, out=out)


def captured(name: str) -> Callable[..., Any]:
    """The op in this process's context."""

    def call(*inputs: Any, out: Any = None, **attrs: Any) -> Any:
        chosen = client()
        if name == "gemm":
            with torch.no_grad():
                made = _by_torch(chosen, inputs[0], inputs[1], out, attrs)
            if made is not NotImplemented:
                return made
        return getattr(chosen, name)(*inputs, out=out, where="here", **attrs)

    return call


def captures(like: Any) -> bool:
    """Whether the current stream of its device is under capture."""
    try:
        contexts.refuse_capture((like,))
    except Capturing:
        return True
    return False


def place(client: Any, name: str, like: Any) -> str | None:
    """The `where` of a call: the client's own, but that a product under capture may be torch's."""
    return "daemon" if client.where == "daemon" or (name == "gemm" and client.where == "auto" and captures(like)) else None


def ordered(name: str) -> Callable[..., Any]:
    """The op by the client in use, wherever its stream can have it."""
    here = captured(name)

    def call(*inputs: Any, out: Any = None, **attrs: Any) -> Any:
        chosen = client()
        if TREES in sys.modules and launches_here(chosen, inputs[0], ops_here.FEATURE):
            return here(*inputs, out=out, **attrs)
        try:
            return getattr(chosen, name)(*inputs, out=out, where=place(chosen, name, inputs[0]), **attrs)
        except Capturing:
            if not ops_here.offered(chosen._live()):
                raise
        return here(*inputs, out=out, **attrs)

    return call
