"""What `torch.ops.kops` promise, as checks on tensors of any device: client_py/tests runs them on CPU tensors, tests/gpu on CUDA
tensors. Each check is a function of the device; torch's own ops say what is right."""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import kops
import kops.torch
import pytest
import torch

OPS: Any = torch.ops.kops

TESTS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")

# Inputs by shape, and attributes. Gradients are asked for of all inputs.
CASES: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("add", [(3, 4), (3, 4)], {}), ("add", [(3, 1, 5), (4, 1)], {}), ("add", [(), (2, 0)], {}),
    ("add_square", [(4, 1), (3, 1, 5)], {}), ("sub_square", [(3, 1, 5), (4, 1)], {}),
    ("copy", [(3, 4)], {}), ("square", [(3, 4)], {}), ("square", [()], {}),
    ("gemm", [(3, 4), (4, 5)], {}),
    ("gemm", [(4, 3), (4, 5)], {"trans_a": True, "alpha": 0.5}),
    ("gemm", [(3, 4), (5, 4)], {"trans_b": True}),
    ("gemm", [(4, 3), (5, 4)], {"trans_a": True, "trans_b": True, "alpha": -2.0}),
    ("gemm", [(2, 3, 4), (4, 5)], {}),
    ("gemm", [(4, 5), (2, 1, 6, 4)], {"trans_a": True, "trans_b": True}),
    ("gemm", [(3, 1, 2, 4), (2, 4, 5)], {"precision": "high"}),
    ("gemm", [(3, 4), (4, 5), (3, 5)], {"beta": 2.0}),
    ("gemm", [(2, 3, 4), (4, 5), (5,)], {"alpha": 0.5, "beta": -1.0}),
    ("gemm", [(3, 4), (4, 5), (3, 5)], {}),
    ("gemm", [(3, 0), (0, 5)], {}),
    ("linear", [(3, 4), (4, 5), (5,)], {}),
    ("linear", [(2, 3, 4), (5, 4), (5,)], {"trans_b": True, "activation": "gelu"}),
    ("linear", [(4, 3), (4, 5), (3, 1)], {"trans_a": True, "activation": "gelu_tanh", "alpha": 0.5}),
    ("linear", [(3, 4), (4, 5), ()], {"activation": "relu"}),
    ("linear", [(3, 1, 2, 4), (2, 4, 5), (2, 1, 5)], {"activation": "gelu"}),
]  # fmt: skip


def name_of(case: Any) -> str:
    name, shapes, attrs = case
    return f"{name}-{'-'.join('x'.join(map(str, s)) for s in shapes)}{''.join(f'-{k}={v}' for k, v in attrs.items())}"


def normal(device: str, *shape: int, dtype: Any = torch.float32, grad: bool = False) -> Any:
    return torch.randn(shape, device=device, dtype=dtype, requires_grad=grad)


def inputs_of(device: str, shapes: list[tuple[int, ...]], dtype: Any = torch.float64, grad: bool = True) -> list[Any]:
    return [normal(device, *shape, dtype=dtype, grad=grad) for shape in shapes]


def gemm(a: Any, b: Any, c: Any = None, *, trans_a: bool = False, trans_b: bool = False, alpha: float = 1, beta: float = 0,
         precision: str = "", out_dtype: Any = None) -> Any:  # fmt: skip
    made = alpha * ((a.mT if trans_a else a) @ (b.mT if trans_b else b))
    return made if c is None or not beta else made + beta * c


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: x, "relu": torch.relu, "gelu": torch.nn.functional.gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
}  # fmt: skip


def linear(a: Any, b: Any, bias: Any, *, activation: str = "none", **attrs: Any) -> Any:
    return ACTIVATIONS[activation](gemm(a, b, **attrs) + bias)


EXPECTED: dict[str, Callable[..., Any]] = {
    "add": torch.add, "copy": torch.clone, "square": torch.square, "gemm": gemm, "linear": linear,
    "add_square": lambda a, b: (a + b).square(), "sub_square": lambda a, b: (a - b).square(),
}  # fmt: skip


# ---- one op ----


def check_values(device: str, case: Any) -> None:
    name, shapes, attrs = case
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        given = inputs_of(device, shapes, dtype, grad=False)
        made = getattr(OPS, name)(*given, **attrs)
        assert made.device == given[0].device and made.dtype == dtype and made.is_contiguous() and not made._is_view()
        expected = EXPECTED[name](*(one.double() for one in given), **attrs)
        loose = {"rtol": 2e-2, "atol": 5e-2} if dtype.itemsize == 2 or attrs.get("precision") else {"rtol": 1e-5, "atol": 1e-4}
        torch.testing.assert_close(made.double(), expected, **loose)


def check_opcheck(device: str, case: Any) -> None:
    """torch's own questions to a custom op: schema, autograd, fake tensors, ahead-of-time compilation with fixed and free sizes."""
    name, shapes, attrs = case
    for dtype, grad in ((torch.float64, True), (torch.float32, False)):
        torch.library.opcheck(getattr(OPS, name).default, inputs_of(device, shapes, dtype, grad), attrs, test_utils=TESTS)
    given = inputs_of(device, shapes[: 3 if name == "linear" else 2], grad=False)
    out = torch.zeros_like(getattr(OPS, name)(*given, **{**attrs, "beta": 0.0} if name == "gemm" else attrs))
    torch.library.opcheck(getattr(OPS, name).out, given, {**attrs, "out": out}, test_utils=TESTS)


def check_derivatives(device: str, case: Any) -> None:
    """Of first and second order, against finite differences, and with the graph of torch's ops."""
    name, shapes, attrs = case
    given = inputs_of(device, shapes)
    unused = name == "gemm" and len(shapes) == 3 and not attrs.get("beta")

    def call(*inputs: Any) -> Any:
        made = getattr(OPS, name)(*inputs, **attrs)
        return made + 0 * given[2].sum() if unused else made  # an input that has no effect has a gradient of 0 for gradcheck

    assert torch.autograd.gradcheck(call, given) and torch.autograd.gradgradcheck(call, given)
    made, expected = call(*given), EXPECTED[name](*given, **attrs)
    weights = torch.randn_like(expected)
    ours = torch.autograd.grad(made, given, weights, allow_unused=True)
    theirs = torch.autograd.grad(expected, given, weights, allow_unused=True)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one if one is not None else None, other if other is not None else torch.zeros_like(given[2]))


# ---- samples of torch's own tests ----


def samples(device: str) -> Iterator[tuple[str, Any, Callable[..., Any], Callable[..., Any], list[Any]]]:
    """The name of torch's op, its dtype, torch's op and ours on the same tensors, and those, of each sample that ours can take."""
    from torch.testing._internal.common_methods_invocations import op_db

    by_name = {info.name: info for info in op_db if not info.variant_test_name}
    for name in ("add", "square", "mm", "bmm", "matmul", "addmm", "baddbmm"):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            for sample in by_name[name].sample_inputs(device, dtype, requires_grad=True):
                kwargs, tensors = sample.kwargs, [sample.input, *sample.args]
                if not all(isinstance(one, torch.Tensor) and one.dtype == dtype for one in tensors):
                    continue
                if name == "add" and kwargs.get("alpha", 1) == 1:
                    yield name, dtype, torch.add, OPS.add, tensors
                elif name == "square":
                    yield name, dtype, torch.square, OPS.square, tensors
                elif name in ("mm", "bmm", "matmul") and min(one.dim() for one in tensors) >= 2:
                    yield name, dtype, getattr(torch, name), OPS.gemm, tensors
                elif name in ("addmm", "baddbmm") and not any(isinstance(v, complex) for v in kwargs.values()):
                    scale = {"alpha": float(kwargs.get("alpha", 1)), "beta": float(kwargs.get("beta", 1))}
                    theirs = partial(getattr(torch, name), **scale)
                    yield name, dtype, theirs, partial(lambda c, a, b, **scale: OPS.gemm(a, b, c, **scale), **scale), tensors


def stand_in_for_expecttest() -> None:
    """What makes torch's samples imports a package that torch does not bring along, for a base class which they do not use."""
    if importlib.util.find_spec("expecttest") is None and "expecttest" not in sys.modules:
        sys.modules["expecttest"] = made = types.ModuleType("expecttest")
        made.__dict__.update(TestCase=unittest.TestCase, ACCEPT=False)


def check_samples(device: str) -> None:
    stand_in_for_expecttest()
    seen: dict[str, int] = {}
    for name, dtype, theirs, ours, tensors in samples(device):
        seen[name] = seen.get(name, 0) + 1
        expected, made = theirs(*tensors), ours(*tensors)
        loose = {"rtol": 3e-2, "atol": 2e-1} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-3}
        torch.testing.assert_close(made, expected, **loose)
        weights = torch.ones_like(expected)
        gradients = [torch.autograd.grad(o, tensors, weights, allow_unused=True) for o in (made, expected)]
        for one, other in zip(*gradients):
            torch.testing.assert_close(torch.zeros(()) if one is None else one, torch.zeros(()) if one is None else other, **loose)
    assert set(seen) == {"add", "square", "mm", "bmm", "matmul", "addmm", "baddbmm"} and min(seen.values()) >= 3, seen


# ---- results of another dtype ----


def check_out_dtype(device: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        a, b = inputs_of(device, [(2, 33, 70), (70, 19)], dtype)
        exact = a.double() @ b.double()
        made = OPS.gemm(a, b, out_dtype=torch.float32)
        assert made.dtype is torch.float32
        torch.testing.assert_close(made.double(), exact, rtol=1e-5, atol=1e-4)  # not rounded to 16 bits
        weights = torch.randn_like(made)
        ours = torch.autograd.grad(made, (a, b), weights)
        for one, other in zip(ours, torch.autograd.grad(exact, (a, b), weights.double())):
            assert one.dtype is dtype
            torch.testing.assert_close(one.double(), other.double(), rtol=2e-2, atol=0.3)
        start = normal(device, 33, 19, grad=True)
        made = OPS.gemm(a, b, start, beta=2.0, out_dtype=torch.float32)
        torch.testing.assert_close(made.double(), exact + 2 * start.double(), rtol=1e-5, atol=1e-4)
        made.sum().backward()
        assert start.grad.dtype is torch.float32 and torch.equal(start.grad, torch.full_like(start, 4.0))
        out = torch.full((2, 33, 19), torch.nan, device=device)
        OPS.gemm.out(a.detach(), b.detach(), out=out)
        torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-4)
        torch.library.opcheck(OPS.gemm.default, (a, b), {"out_dtype": torch.float32}, test_utils=TESTS)
        mapped = torch.vmap(partial(OPS.gemm, out_dtype=torch.float32), in_dims=(0, None))(a, b)
        torch.testing.assert_close(mapped.double(), exact, rtol=1e-5, atol=1e-4)
        with pytest.raises(kops.DtypeMismatch):
            OPS.gemm(a, b, out_dtype=torch.float64)


# ---- modes and transforms ----


def check_grad_mode(device: str) -> None:
    x = normal(device, 3, 4, grad=True)
    made = OPS.square(x)
    assert made.requires_grad and "kops_square" in made.grad_fn.name()
    made.add_(1)  # a result is a tensor of its own: in-place ops may follow
    made.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())
    for quiet in (torch.no_grad, torch.inference_mode):
        with quiet():
            made = OPS.square(x)
            assert not made.requires_grad
            torch.testing.assert_close(made, x.detach() ** 2)
    assert not OPS.add(x.detach(), x.detach()).requires_grad
    saved = normal(device, 3, grad=True)
    kept = saved * 1
    made = OPS.square(kept)
    kept.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward()


def check_out(device: str) -> None:
    a, b = normal(device, 3, 4), normal(device, 4, 5)
    out = torch.ones(3, 5, device=device)
    version = out._version
    assert OPS.gemm.out(a, b, beta=2.0, out=out) is None
    torch.testing.assert_close(out, a @ b + 2)
    assert out._version > version
    torch.ops.kops.add(a, a, out=a)
    with pytest.raises(RuntimeError, match="pass x.detach"):
        OPS.add.out(a, a, out=normal(device, 3, 4, grad=True))


def check_autocast(device: str) -> None:
    a, b, wide = normal(device, 3, 4, grad=True), normal(device, 4, 5), normal(device, 3, 5)
    with torch.autocast(device, dtype=torch.bfloat16):
        made = OPS.gemm(a, b)
        assert made.dtype == torch.mm(a, b).dtype == torch.bfloat16
        assert OPS.add(made, wide).dtype == torch.add(made, wide).dtype == torch.float32
        assert OPS.square(wide).dtype == torch.float32
        assert OPS.gemm(a.double(), b.double()).dtype == torch.mm(a.double(), b.double()).dtype == torch.float64
        assert OPS.gemm(a, b, wide, beta=1.0).dtype == torch.bfloat16
    made.float().sum().backward()
    assert a.grad.dtype == torch.float32
    torch.testing.assert_close(a.grad, b.sum(1).expand(3, 4), rtol=2e-2, atol=5e-2)
    with pytest.raises(kops.DtypeMismatch):
        OPS.add(made.detach(), wide)


def check_vmap(device: str) -> None:
    x, y, z = normal(device, 6, 3, 4), normal(device, 4, 6), normal(device, 6, 4, 5)
    calls: list[tuple[str, Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = [
        ("square", OPS.square, (x,), (1,)),
        ("add", OPS.add, (x, y), (0, 1)),
        ("add", OPS.add, (y, x), (1, 0)),
        ("add", OPS.add, (x, y[:3].t()), (2, None)),
        ("gemm", OPS.gemm, (x, z), (0, 0)),
        ("gemm", OPS.gemm, (x, z[0]), (0, None)),
        ("gemm", OPS.gemm, (x[0], z), (None, 0)),
        ("linear", OPS.linear, (x[0], z[0], normal(device, 6, 5)), (None, None, 0)),
    ]
    for name, ours, given, dimensions in calls:
        torch.testing.assert_close(torch.vmap(ours, dimensions)(*given), torch.vmap(EXPECTED[name], dimensions)(*given))
    c = normal(device, 5, 6)
    made = torch.vmap(lambda a, b, c: OPS.gemm(a, b, c, beta=2.0, alpha=0.5), (0, None, 1))(x, z[0], c)
    torch.testing.assert_close(made, 0.5 * (x @ z[0]) + 2 * c.t()[:, None])
    try:
        twice = torch.vmap(torch.vmap(OPS.gemm, (0, None)), (None, 0))(x, z)
        torch.testing.assert_close(twice, torch.einsum("imk,jkn->jimn", x, z))
    except RuntimeError as error:
        assert "INTERNAL ASSERT" in str(error) and torch.__version__.startswith("2.5.")  # no vmap rule can be nested there
    torch.testing.assert_close(torch.vmap(torch.func.grad(lambda a: OPS.square(a).sum()))(x), 2 * x)
    with pytest.raises(RuntimeError, match="Batching rule"):
        torch.vmap(lambda a, out: OPS.square.out(a, out=out))(x, torch.empty_like(x))


def check_transforms(device: str) -> None:
    x = normal(device, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(torch.func.grad(lambda a: OPS.square(a).sum())(x), 2 * x)
    second = torch.func.grad(lambda b: torch.func.grad(lambda a: OPS.square(a).sum())(b).sum())
    torch.testing.assert_close(second(x), torch.full_like(x, 2))
    torch.testing.assert_close(torch.func.jacrev(OPS.square)(x), torch.func.jacrev(torch.square)(x))
    with pytest.raises(NotImplementedError, match="jvp"):
        torch.func.jvp(OPS.square, (x,), (x,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        OPS.square(torch.autograd.forward_ad.make_dual(x, x))


def check_compiled(device: str, backend: str) -> None:
    """In one graph, as the same op, forward and backward; other sizes do not trace again."""
    graphs: list[Any] = []

    def looked_at(graph: Any, example: Any) -> Any:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return torch._dynamo.lookup_backend(backend)(graph, example)

    def model(a: Any, b: Any, c: Any) -> Any:
        return torch.relu(OPS.add(OPS.gemm(a, b, trans_b=True), c)).sum() + OPS.square(a).mean()

    def expected(a: Any, b: Any, c: Any) -> Any:
        return torch.relu(a @ b.mT + c).sum() + a.square().mean()

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=looked_at)
    for m, n, k in ((3, 5, 4), (7, 6, 9), (16, 3, 12)):
        given = [normal(device, m, k, grad=True), normal(device, n, k, grad=True), normal(device, n, grad=True)]
        ours, theirs = compiled(*given), expected(*given)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        for one, other in zip(torch.autograd.grad(ours, given), torch.autograd.grad(theirs, given)):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert len(graphs) == 1 and {OPS.gemm, OPS.add, OPS.square} <= {getattr(t, "overloadpacket", t) for t in graphs[0]}, graphs
    with torch.autocast(device, dtype=torch.bfloat16):
        lowered = torch.compile(lambda a, b: OPS.gemm(a, b, trans_b=True), fullgraph=True, backend=backend)(*given[:2])
    assert lowered.dtype == torch.bfloat16
    y = normal(device, 3, 4)
    torch.compile(lambda a, y: OPS.square.out(a, out=y), fullgraph=True, backend=backend)(y + 1, y)
    assert bool((y >= 0).all())


def check_exported(device: str) -> None:
    """With a size that is free: the rules of shapes ask nothing of it that is not so."""

    class Model(torch.nn.Module):
        def forward(self, a: Any, b: Any, c: Any) -> Any:
            return OPS.add(OPS.gemm(a, b), c)

    b, c = normal(device, 4, 5), normal(device, 5)
    free = torch.export.Dim("m", min=2)
    made = torch.export.export(Model(), (normal(device, 3, 4), b, c), dynamic_shapes=({0: free}, None, None))
    for m in (2, 5, 9):
        a = normal(device, m, 4)
        torch.testing.assert_close(made.module()(a, b, c), a @ b + c, rtol=1e-4, atol=1e-4)


def check_checkpoints(device: str) -> None:
    """Computed again in the backward pass, and seen by dispatch modes."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import checkpoint

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(op)
            return op(*args, **(kwargs or {}))

    seen: list[Any] = []
    x = normal(device, 3, 4, grad=True)
    with Mode():
        checkpoint(OPS.square, x, use_reentrant=False).sum().backward()
        OPS.square(x.detach())
    assert seen.count(OPS.square.default) == 3
    torch.testing.assert_close(x.grad, 2 * x.detach())


class Wrapper(torch.Tensor):
    """A tensor subclass that says what is done with it."""

    seen: list[Any] = []
    inner: Any
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(op)
        return cls(op(*(one.inner if isinstance(one, cls) else one for one in args), **(kwargs or {})))


def check_subclasses(device: str) -> None:
    x = normal(device, 3, 4)
    Wrapper.seen.clear()
    made = OPS.gemm(Wrapper(x), x, trans_b=True)
    assert type(made) is Wrapper and Wrapper.seen == [OPS.gemm.default]
    torch.testing.assert_close(made.inner, x @ x.mT)


def check_errors(device: str) -> None:
    a, b = normal(device, 3, 4), normal(device, 3, 5)
    wrong: list[tuple[type[Exception], Callable[[Any, Any], Any]]] = [
        (kops.ShapeMismatch, lambda a, b: OPS.add(a, b)),
        (kops.ShapeMismatch, lambda a, b: OPS.gemm(a, b)),
        (kops.ShapeMismatch, lambda a, b: OPS.gemm(a, a[0])),  # a vector, which a client's method would take
        (kops.ShapeMismatch, lambda a, b: OPS.gemm(a, b, b.new_empty(2, 2), trans_a=True, beta=1.0)),
        (kops.DtypeMismatch, lambda a, b: OPS.add(a, a.half())),
        (kops.UnknownDtype, lambda a, b: OPS.square(a.bool())),
        (kops.BadArgument, lambda a, b: OPS.gemm(a, b, trans_a=True, beta=1.0)),
        (kops.BadArgument, lambda a, b: OPS.gemm(a, b, trans_a=True, precision="low")),
    ]
    for kind, call in wrong:
        with pytest.raises(kind) as real:
            call(a, b)
        with pytest.raises(kind) as faked:  # the same mistake is found without data
            call(a.to("meta"), b.to("meta"))
        assert type(real.value) is type(faked.value)


CHECKS: list[Callable[[str], None]] = [
    check_samples, check_out_dtype, check_grad_mode, check_out, check_autocast, check_vmap, check_transforms, check_exported,
    check_checkpoints, check_subclasses, check_errors,
]  # fmt: skip
