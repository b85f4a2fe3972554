"""`torch.ops.kops` and `kops.torch`, with PyTorch itself, on CPU tensors. tests/gpu runs the same checks on a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kops
import pytest
from built import Daemon, real

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed; continuous integration does without its gigabytes", allow_module_level=True)
import kops.torch  # noqa: E402
import torch  # noqa: E402
from support import torch_kernels, torch_ops  # noqa: E402

__all__ = ["real"]

OPS: Any = torch.ops.kops


@pytest.fixture(autouse=True)
def client(real: Daemon) -> Iterator[kops.Client]:
    with kops.connect(real.socket_path, timeout=120) as made:
        kops.torch.use(made)
        yield made
        kops.torch.use(None)


@pytest.mark.parametrize("case", torch_ops.CASES, ids=torch_ops.name_of)
@pytest.mark.parametrize("check", [torch_ops.check_values, torch_ops.check_opcheck, torch_ops.check_derivatives])
def test_op(check: Any, case: Any) -> None:
    check("cpu", case)


def test_formulas_give_gradients_of_the_inputs_shapes() -> None:
    """The engine would sum them, too, but not everything that asks for a formula is the engine."""
    from kops.torch._ops import GRADIENTS

    def shapes(name: str, *inputs: Any, **attrs: Any) -> list[Any]:
        given = [one for one in inputs if one is not None]
        ctx = SimpleNamespace(needs_input_grad=(False, *(True for _ in inputs)), saved_tensors=given[:2])
        ctx.save_for_backward = lambda *tensors: None
        GRADIENTS[name].save(ctx, {**dict(zip("abc", inputs)), **attrs}, None)
        return [g.shape for g in GRADIENTS[name].backward(ctx, torch.ones_like(torch_ops.EXPECTED[name](*given, **attrs)))]

    a, b, c = torch.ones(2, 1, 3, 4), torch.ones(5, 4, 6), torch.ones(6)
    attrs = {"trans_a": False, "trans_b": False, "alpha": 1.0, "beta": 1.0, "precision": "highest"}
    assert shapes("gemm", a, b, c, **attrs) == [a.shape, b.shape, c.shape]
    assert shapes("add", a, torch.ones(3, 1)) == [a.shape, (3, 1)]


@pytest.mark.parametrize("check", torch_ops.CHECKS)
def test_ops(check: Any) -> None:
    check("cpu")


def test_integers(client: kops.Client) -> None:
    """Elementwise ops take them, but for bool, as torch's: they wrap around. A copy has their bits."""
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool):
        x = torch.arange(24).reshape(4, 6).to(dtype)
        assert torch.equal(OPS.copy(x), x) and torch.equal(OPS.copy(x.T[1::2]), x.T[1::2])
        if dtype is torch.bool:
            with pytest.raises(kops.UnknownDtype):
                OPS.square(x)
            continue
        x = torch.randint(torch.iinfo(dtype).min, torch.iinfo(dtype).max, (4, 6), dtype=dtype)
        assert torch.equal(OPS.square(x), x * x) and torch.equal(OPS.add(x, x[:1]), x + x[:1])
        torch.library.opcheck(OPS.add.default, (x, x))


def test_compiled() -> None:
    torch_ops.check_compiled("cpu", "aot_eager")


def test_compiled_by_inductor() -> None:
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("inductor needs a C++ compiler for the CPU")
    torch_ops.check_compiled("cpu", "inductor")


def test_the_client(real: Daemon, client: kops.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(4)
    assert kops.torch.client() is client
    monkeypatch.setenv("KOPS_SOCKET", real.socket_path)
    kops.torch.use(None)
    assert kops.torch.client() is kops.default_client() and OPS.add(x, x).tolist() == [2] * 4
    kops.default_client().close()
    assert OPS.add(x, x).tolist() == [2] * 4  # a new one takes its place
    kops.default_client().close()
    with pytest.raises(kops.WrongType, match="not str"):
        kops.torch.use("k")  # type: ignore[arg-type]
    with kops.connect(real.socket_path) as other:
        kops.torch.use(other)
    with pytest.raises(kops.KopsError, match="closed"):
        OPS.add(x, x)


class Capturing:
    """A client whose daemon takes nothing, as on a stream under capture; calls here are noted."""

    _closed = False

    def __init__(self, *features: str, blaslt: bool = False) -> None:
        op = SimpleNamespace(variants={"GPU-0": ("cublaslt", "tiled") if blaslt else ("tiled",)})
        self.info = SimpleNamespace(features=features, ops={"gemm": op})
        self.here: list[tuple[Any, ...]] = []

    def _live(self) -> Any:
        return self

    def empty(self, shape: Any, dtype: Any) -> Any:
        return torch.empty(shape, dtype=dtype)

    def _at_once(self, *_: Any) -> Any:
        raise kops.Capturing("a capture")

    def __getattr__(self, name: str) -> Any:
        def call(*inputs: Any, out: Any = None, where: str | None = None, **attrs: Any) -> Any:
            if where == "daemon":
                raise kops.Capturing("a capture")
            self.here.append((name, where, attrs))
            return torch_ops.EXPECTED[name](*inputs, **attrs)

        return call


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> Any:
    from kops._calls import ops_here
    from kops.torch import _where

    def use(*features: str, blaslt: bool = False, cublas: bool = True) -> Capturing:
        made = Capturing(*features, blaslt=blaslt)
        monkeypatch.setattr(_where, "_torch_multiplies", lambda like: cublas)
        monkeypatch.setattr(_where, "_used", made)
        monkeypatch.setattr(ops_here, "torch_device_of", lambda arrays: 0)
        monkeypatch.setattr(ops_here, "allocations", SimpleNamespace(driver=SimpleNamespace(uuid=lambda index: "GPU-0")))
        return made

    return use


def test_a_capture_s_products_are_torch_s_where_the_daemon_has_cublaslt(capturing: Any) -> None:
    client = capturing("images", blaslt=True)
    a, b, c, d = torch.randn(3, 4), torch.randn(4, 5), torch.randn(3, 5), torch.randn(2, 1, 4, 5)
    for given, attrs in (
        ((a, b), {}), ((a.T.contiguous(), b), {"trans_a": True}), ((a, b.T.contiguous()), {"trans_b": True, "alpha": 0.5}),
        ((a, b, c), {"beta": 2.0}), ((a, b, c), {"alpha": -1.0, "beta": 0.5}), ((a, d), {}), ((a, b), {"precision": "high"}),
    ):  # fmt: skip
        torch.testing.assert_close(OPS.gemm(*given, **attrs), torch_ops.gemm(*given, **attrs))
    out = torch.empty(3, 5)
    OPS.gemm.out(a, b, out=out)
    torch.testing.assert_close(out, a @ b)
    assert not client.here
    OPS.gemm(a, d, alpha=2.0)  # torch has no such op
    square = torch.randn(3, 3)
    OPS.gemm.out(square, square, out=square)  # refused by the rules, which see the overlap
    OPS.gemm.out(a, b, out=torch.empty(5, 3))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        OPS.gemm(a, b)  # torch would round
        OPS.gemm(a, b, precision="high")  # to less than that
        OPS.gemm(a, b, precision="medium")  # as it may then
    finally:
        torch.set_float32_matmul_precision(before)
    assert [name for name, _, _ in client.here] == ["gemm"] * 5
    client = capturing("images", blaslt=True, cublas=False)
    OPS.gemm(a, b)
    assert [name for name, _, _ in client.here] == ["gemm"], "torch cannot make its cuBLAS now"


def test_a_negated_view_is_what_it_shows() -> None:
    """Its memory has the negatives: what is launched in this process is given a tensor that has its values, and is kept."""
    from kops._calls.contexts import settled

    x = torch.randn(4)
    negated = torch.complex(torch.zeros(4), x).conj().imag
    assert negated.is_neg() and torch.equal(settled("a", negated), -x) and not settled("a", negated).is_neg()
    assert settled("a", x) is x and settled("a", x, written=True) is x
    with pytest.raises(kops.BadArgument, match="negated view"):
        settled("out", negated, written=True)


def test_batches_and_sequences_of_the_client(client: kops.Client) -> None:
    x = torch.full((4,), 3.0)
    with client.sequence():
        made = OPS.add(OPS.square(x), x)
    assert made.tolist() == [12] * 4


def test_kernel() -> None:
    torch_kernels.check_kernel("cpu", kops.kernel, interpret=True)


def test_kernel_compiled() -> None:
    torch_kernels.check_kernel_compiled("cpu", kops.kernel, "aot_eager", interpret=True)


def test_kernel_that_mutates() -> None:
    torch_kernels.check_kernel_that_mutates("cpu", kops.kernel, "aot_eager", interpret=True)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_training(backend: str | None) -> None:
    torch_kernels.check_training("cpu", kops.kernel, backend, steps=12, interpret=True)


def kernel(signature: str) -> Any:
    declared = re.sub(r"out |\[.*?\]", "", signature)
    return kops.kernel(f'extern "C" __global__ void nothing({declared}) {{}}', "nothing", signature, grid=1, block=1)


def test_kernels_that_are_no_ops() -> None:
    for signature, how, message in (
        ("out float* y, const float* x", {}, "give fake="), ("out float* y[n], int n", {}, "no tensor that it reads"),
        ("float* x", {"backward": lambda ctx, g: g}, "writes to x"), ("const float* x", {"name": "no op"}, "cannot name an op"),
        ("const float* x", {"name": "::x"}, "cannot name an op"),
    ):  # fmt: skip
        with pytest.raises(kops.BadArgument, match=message):
            kops.torch.custom_op(kernel(signature), **how)
    with pytest.raises(kops.WrongType, match="not function"):
        kops.torch.custom_op(lambda x: x)  # type: ignore[arg-type]


def test_gradients_by_position() -> None:
    kern = kops.kernel(torch_kernels.SOURCE, "scale", "out double* y[n], const double* x, double factor, int n", **torch_kernels.SIZES)
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    for backward, right in ((lambda ctx, g: (3 * g, None, None), True), (lambda ctx, g: (g, None), False)):
        op = kops.torch.custom_op(kern, "kops_kernels::positions", backward=backward, interpret=True)  # takes the place of the last one
        if right:
            op(x, 3.0, 4).sum().backward()
            assert x.grad.tolist() == [3] * 4
        else:
            with pytest.raises(kops.BadArgument, match="returned 2 gradients"):
                op(x, 3.0, 4).sum().backward()


def test_what_is_saved_may_be_chosen() -> None:
    kern = kops.kernel(torch_kernels.SOURCE, "scale", "out double* y[n], const double* x, double factor, int n", **torch_kernels.SIZES)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.factor = inputs[1]
        ctx.save_for_backward(output)

    def backward(ctx: Any, g: Any) -> Any:
        assert torch.equal(ctx.saved_tensors[0], 2 * x)
        return ctx.factor * g

    op = kops.torch.custom_op(kern, backward=backward, setup_context=save, interpret=True)
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    op(x, 2.0, 4).sum().backward()
    assert x.grad.tolist() == [2] * 4


def test_parameters_may_have_names_that_torch_has_for_itself() -> None:
    source = """extern "C" __global__ void doubled(float *out, const float *in, float *in_, float lambda, int n)
    { int i = threadIdx.x; if (i < n) { out[i] = lambda * in[i]; in_[i] = 1; } }"""
    kern = kops.kernel(
        source, "doubled", "out float* out[n], const float* in[n], inout float* in_[n], float lambda, int n", grid=1, block=32
    )
    op = kops.torch.custom_op(kern, interpret=True)
    x, y = torch.randn(8), torch.zeros(8)
    assert torch.equal(op(x, y, 2.0, 8), 2 * x) and torch.equal(y, torch.ones(8)) and y._version == 1
    pure = kops.kernel(source.replace(", float *in_", "").replace("in_[i] = 1;", ""), "doubled",
                       "out float* out[n], const float* in[n], float lambda, int n", grid=1, block=32)  # fmt: skip
    op = kops.torch.custom_op(pure, backward=lambda ctx, g: g * ctx.scalars["lambda"], interpret=True)
    x.requires_grad_()
    op(x, 3.0, 8).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full((8,), 3.0))


@pytest.mark.parametrize("name", ["len", "original", "type", "modes", "run", "grad", "self", "plain", "arguments", "Tensor", "argument_0"])
def test_parameters_may_have_names_that_the_op_s_own_code_has(name: str) -> None:
    source = f"""extern "C" __global__ void summed(float *out, const float *x, const float *{name})
    {{ int i = threadIdx.x; out[i] = x[i] + {name}[i]; }}"""
    kern = kops.kernel(source, "summed", f"out float* out[4], const float* x, const float* {name}", grid=1, block=4)
    overload = kops.torch.custom_op(kern, backward=lambda ctx, g: (g, 2 * g), interpret=True)
    x, y = torch.randn(4), torch.randn(4, requires_grad=True)
    for op in (overload, torch.ops.kops_kernels.summed):
        assert torch.equal(op(x, x), 2 * x)
        op(x, y).sum().backward()
    assert y.grad is not None and y.grad.tolist() == [4.0] * 4


def test_kernels_on_cpu_tensors_go_to_the_daemon_otherwise(real: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """This one has no GPU, and runs none."""
    monkeypatch.setenv("KOPS_SOCKET", real.socket_path)
    op = kops.torch.custom_op(kernel("const float* x"))
    with pytest.raises(kops.Unsupported):
        op(torch.ones(4))
    kops.default_client().close()


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("kops.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install torch"):
        importlib.import_module("kops.torch")


def test_who_watches_calls_sees_them_though_they_take_a_short_way() -> None:
    """A call that nothing watches does not pass torch's dispatcher; with a profiler, mode or tracer it does."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(f"function {function}")
            return function(*args, **(kwargs or {}))

    class Dispatches(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(f"dispatch {function}")
            return function(*args, **(kwargs or {}))

    a, b = torch.ones(4), torch.ones(4)
    assert OPS.add(a, b).tolist() == [2] * 4 and not seen
    with Functions():
        OPS.add(a, b)
    with Dispatches():
        OPS.add(a, b)
    assert {line.split()[0] for line in seen if "kops.add" in line} == {"function", "dispatch"}, seen
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        OPS.add(a, b)
    assert "kops::add" in {event.key for event in profile.key_averages()}
    assert "kops::add" in str(torch.jit.trace(lambda x, y: OPS.add(x, y), (a, b)).graph)
    assert OPS.add(a.to("meta"), b.to("meta")).device.type == "meta"
    assert OPS.gemm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert OPS.gemm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.bfloat16
