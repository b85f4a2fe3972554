"""Kernels of the user's own: the same results, and the same errors, by every client.

The sources are those that the stand-in driver knows by name, so that they are computed there, too. They are compiled in
any case: no NVRTC, no test.
"""

from __future__ import annotations

from typing import Any

import conftest
import numpy as np
import pytest
import runners
from cases import GUARD, POISON, Operand
from runners import Kernel, Param, Tensor
from support import backends

F32 = 4
PER_BLOCK = 256


def vector_kernel(entry: str, body: str, inputs: str = "ab", n: str = "n") -> Kernel:
    pointers = "".join(f", const float *{name}" for name in inputs)
    source = f'extern "C" __global__ void {entry}(float *c{pointers}, int n) {{\n    {body}\n}}\n'
    params = [Param("c", "out", "f32", n), *(Param(name, "in", "f32", n) for name in inputs), Param("n", "scalar", "i32")]
    return Kernel(source, entry, tuple(params), ("ceil_div(n,256)",), (str(PER_BLOCK),))


INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
ADD2 = vector_kernel(
    "add2_kernel", "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) c[i] = a[i] + b[i];"
)
VECTOR_ADD = vector_kernel("vector_add", f"{INDEX} if (i < n) c[i] = a[i] + b[i];")
CUSTOM = vector_kernel("custom_kernel", f"{INDEX} if (i < n) c[i] = 2 * a[i];", "a")
SQUARE = Kernel(
    """extern "C" __global__ void square_matrix_kernel(const float *in, float *out, int width, int height)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height)
        out[y * width + x] = in[y * width + x] * in[y * width + x];
}
""",
    "square_matrix_kernel",
    (
        Param("in", "in", "f32", rank=2),
        Param("out", "out", "f32", "in.numel"),
        Param("width", "scalar", "i32"),
        Param("height", "scalar", "i32"),
    ),
    ("ceil_div(width,16)", "ceil_div(height,16)"),
    ("16", "16"),
)
@pytest.fixture(autouse=True)
def compiles(daemon: Any) -> None:
    """Skips where the daemon has a GPU's driver and no compiler."""
    with daemon.connect() as connection:
        features = connection.call("hello")["features"]
    if daemon.backend != backends.HOST and "kernels" not in features:
        pytest.skip("the daemon has no NVRTC")


@pytest.fixture
def on_gpu(daemon: Any) -> None:
    if daemon.backend == backends.HOST:
        pytest.skip("kernels of the user's own need a GPU")


class Memory:
    """Tensors side by side in a runner's memory, with guards between them."""

    def __init__(self, runner: runners.Runner, seed: int) -> None:
        self.memory, self.at = runner.memory, GUARD
        self.rng = np.random.default_rng([conftest.seed(), seed])
        self.memory[: 1 << 22] = POISON

    def tensor(self, *shape: int, fill: bool = False, at: int | None = None) -> tuple[Tensor, np.ndarray]:
        """The argument, and its elements."""
        offset = self.at if at is None else at
        strides, n = [0] * len(shape), 1
        for d in reversed(range(len(shape))):
            strides[d] = n
            n *= shape[d]
        operand = Operand(shape, tuple(strides), offset)
        self.at = max(self.at, -(-(offset + F32 * n + GUARD) // 64) * 64)
        view = operand.view(self.memory, "f32")
        if fill:
            view[...] = self.rng.normal(size=shape)
        return Tensor(operand, "f32"), view


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("n", [1, 255, 1000, 65537])
@pytest.mark.parametrize("kernel", [ADD2, VECTOR_ADD, CUSTOM], ids=lambda k: k.entry)
def test_vectors(kernel: Kernel, n: int, runner: runners.Runner, device: dict[str, Any]) -> None:
    memory = Memory(runner, n)
    c, out = memory.tensor(n)
    inputs = [memory.tensor(n, fill=True) for _ in kernel.params[1:-1]]
    before = runner.memory[: memory.at].copy()
    runner.define(kernel)
    result = runner.launch([c, *(argument for argument, _ in inputs), n])
    assert (result["device"], result["variant"]) == (device["uuid"], "user")
    values = [view for _, view in inputs]
    np.testing.assert_array_equal(out, values[0] + values[1] if len(values) == 2 else 2 * values[0])
    after = runner.memory[: memory.at].copy()
    first = c.operand.offset
    assert (np.flatnonzero(before != after) // F32 * F32 >= first).all()
    assert (np.flatnonzero(before != after) < first + F32 * n).all()


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (37, 61), (3, 1000)])
def test_square_matrix(shape: tuple[int, int], runner: runners.Runner) -> None:
    memory = Memory(runner, shape[0] * shape[1])
    source, values = memory.tensor(*shape, fill=True)
    target, out = memory.tensor(*shape)
    runner.define(SQUARE)
    runner.launch([source, target, shape[1], shape[0]])
    np.testing.assert_array_equal(out, values * values)


@pytest.mark.usefixtures("on_gpu")
def test_a_launch_has_its_own_geometry(runner: runners.Runner) -> None:
    memory = Memory(runner, 1)
    (c, out), (a, left) = memory.tensor(100), memory.tensor(100, fill=True)
    runner.define(CUSTOM)
    runner.launch([c, a, 100], grid=(1,), block=(10,))
    np.testing.assert_array_equal(out[:10], 2 * left[:10])
    assert np.isnan(out[10:]).all()
    undeclared = Kernel(CUSTOM.source, CUSTOM.entry, CUSTOM.params)
    runner.define(undeclared)
    runner.launch([c, a, 100], grid=(10,), block=(10,))
    np.testing.assert_array_equal(out, 2 * left)


@pytest.mark.usefixtures("on_gpu")
def test_nothing_to_write_is_no_error(runner: runners.Runner) -> None:
    memory = Memory(runner, 2)
    (c, _), (a, _), (b, _) = memory.tensor(0), memory.tensor(0), memory.tensor(0)
    runner.define(ADD2)
    runner.launch([c, a, b, 0])


@pytest.mark.usefixtures("on_gpu")
def test_the_same_source_has_the_same_key(runner: runners.Runner) -> None:
    first = runner.define(ADD2)
    assert runner.define(CUSTOM) != first
    assert runner.define(ADD2) == first


# ---- errors: the same code, and the same place, from every client ----


def replaced(kernel: Kernel, index: int, param: Param) -> Kernel:
    params = list(kernel.params)
    params[index] = param
    return Kernel(kernel.source, kernel.entry, tuple(params), kernel.grid, kernel.block)


REFUSED_KERNELS = {
    "syntax": (Kernel("int f(", "f", ()), "compile_failed"),
    "unresolved include": (Kernel('#include "nowhere.h"\n' + ADD2.source, "add2_kernel", ADD2.params), "compile_failed"),
    "entry that is none": (Kernel(ADD2.source, "nothing", ADD2.params), "compile_failed"),
    "too few parameters": (Kernel(ADD2.source, "add2_kernel", ADD2.params[:2]), "signature_mismatch"),
    "other sizes": (replaced(ADD2, 3, Param("n", "scalar", "i64")), "signature_mismatch"),
    "wrong expression": (Kernel(ADD2.source, "add2_kernel", ADD2.params, ("ceil_div(n",), ("256",)), "invalid_argument"),
    "unknown name": (Kernel(ADD2.source, "add2_kernel", ADD2.params, ("q",), ("256",)), "invalid_argument"),
}


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("name", REFUSED_KERNELS)
def test_refused_kernels(name: str, runner: runners.Runner) -> None:
    kernel, code = REFUSED_KERNELS[name]
    with pytest.raises(runners.Refused) as refused:
        runner.define(kernel)
    assert refused.value.code == code, refused.value
    runner.define(ADD2)  # the connection is as before


def launches(memory: Memory) -> dict[str, tuple[list[Any], dict[str, Any], str, str | None]]:
    """Arguments for add2_kernel that are refused: with the code, and what the error names (None: anything)."""
    n = 512
    c, a, b = (memory.tensor(n, fill=True)[0] for _ in range(3))
    small = memory.tensor(n - 1, fill=True)[0]
    odd = Tensor(Operand((n,), (1,), a.operand.offset + 2), "f32")
    outside = Tensor(Operand((n,), (1,), memory.memory.size - 4), "f32")
    shifted = Tensor(Operand((n,), (1,), c.operand.offset + 4), "f32")
    return {
        "other dtype": ([c, Tensor(a.operand, "i32"), b, n], {}, "dtype_mismatch", "args[1]"),
        "too small": ([c, a, small, n], {}, "shape_mismatch", "args[2]"),
        "misaligned": ([c, odd, b, n], {}, "misaligned", "args[1]"),
        "outside": ([c, outside, b, n], {}, "out_of_bounds", None),
        "overlap": ([c, shifted, b, n], {}, "overlap", None),
        "scalar out of range": ([c, a, b, 1 << 31], {}, "out_of_range", "args[3]"),
        "a grid of 0": ([c, a, b, n], {"grid": (0,)}, "out_of_range", "grid[0]"),
        "a huge grid": ([c, a, b, n], {"grid": (1 << 40,)}, "out_of_range", "grid[0]"),
        "too many threads": ([c, a, b, n], {"block": (4096,)}, "out_of_range", "block[0]"),
    }


@pytest.mark.usefixtures("on_gpu")
def test_refused_launches(runner: runners.Runner) -> None:
    memory = Memory(runner, 3)
    runner.define(ADD2)
    for name, (args, geometry, code, key) in launches(memory).items():
        if name == "misaligned" and isinstance(runner, runners.PythonRunner):
            continue  # which copies arrays that are not aligned
        before = runner.memory[: memory.at].copy()
        with pytest.raises(runners.Refused) as refused:
            runner.launch(args, **geometry)
        assert refused.value.code == code, (name, refused.value)
        assert key is None or refused.value.key == key, (name, refused.value)
        assert (runner.memory[: memory.at] == before).all(), name


def test_the_host_compiles_and_runs_none(daemon: Any, runner: runners.Runner) -> None:
    if daemon.backend != backends.HOST:
        pytest.skip("this daemon has a GPU")
    for_a_gpu = Kernel(ADD2.source, ADD2.entry, ADD2.params, ADD2.grid, ADD2.block, "sm_90a")
    with pytest.raises(runners.Refused) as refused:
        runner.define(for_a_gpu)
    assert refused.value.code == "unsupported"
    with daemon.connect() as connection:
        features = connection.call("hello")["features"]
    with pytest.raises(runners.Refused) as refused:
        runner.define(ADD2)
    # The Python client asks first whether the kernel can be launched at all, and says what runs it without a GPU.
    asks_first = isinstance(runner, runners.PythonRunner)
    assert refused.value.code == ("missing_key" if "compile" in features and not asks_first else "unsupported")
