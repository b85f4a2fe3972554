"""Kernels from files, from decorated functions and by load_inline, also without a client of one's own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon
from kops._clients import inline as _inline
from kops._companions import usual_place
from test_kernels import ADD2, vectors
from which import compiled_only


@pytest.fixture
def default(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[kops.Client]:
    """The default client, of this daemon."""
    monkeypatch.setenv("KOPS_SOCKET", daemon.path)
    monkeypatch.setattr(_inline, "_default", None)
    made = kops.default_client()
    yield made
    made.close()


def test_the_default_client_connects_at_its_first_use(default: kops.Client, daemon: FakeDaemon) -> None:
    assert not daemon.peers and "not connected" in repr(default)
    assert kops.default_client() is default
    assert default.ping({"a": 1}) == {"a": 1} and len(daemon.peers) == 1
    default.close()
    again = kops.default_client()
    assert again is not default and again.ping() == {}
    again.close()


def test_a_file(k: kops.Client, daemon: FakeDaemon, tmp_path: Path, default: kops.Client) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "n.cuh").write_text("#define N 3\n")
    path = tmp_path / "add.cu"
    path.write_text('#include "inc/n.cuh"\n#include <cuda_fp16.h>\n' + ADD2)
    module = k.load(path, grid="ceil_div(n, 256)", block=256, options=["--use_fast_math"])
    (params,) = daemon.sent("compile")
    assert params["name"] == "add.cu" and params["files"] == {"inc/n.cuh": "#define N 3\n"} and params["options"] == ["--use_fast_math"]
    c, a, b = vectors(k)
    module.add2_kernel(c, a, b, 100)
    assert (c == a + b).all()
    mod = kops.load(str(path), "add2_kernel")
    mod.add2_kernel[1, 128](c, a, a, 100)
    assert (c == a + a).all()
    assert k.kernel(path, grid=1, block=1).name == "add2_kernel"


def test_a_decorated_function(k: kops.Client, daemon: FakeDaemon) -> None:
    @k.cuda_kernel(grid="ceil_div(n, 256)", block=256, prelude="#include <cuda_fp16.h>\n")
    def scale(y: "out float*[n]", x: "const float *", a: "float", n: "int"):  # type: ignore # noqa
        """
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n)
            y[i] = a * x[i];
        """

    assert isinstance(scale, kops.Kernel) and not daemon.sent("compile"), "it is compiled at its first call"
    y, x, _ = vectors(k)
    assert scale(y, x, 2, 100) is y and (y == 2 * x).all()
    source = daemon.sent("compile")[0]["source"]
    assert source.startswith("#include <cuda_fp16.h>\n")
    assert 'extern "C" __global__ void scale(float * y, const float * x, float a, int n)\n{\nint i = ' in source
    assert "    y[i] = a * x[i];\n}" in source
    assert daemon.sent("kernel")[0]["params"][0] == {"name": "y", "kind": "out", "dtype": "f32", "elements": "n"}
    assert "blockIdx" in (scale.__doc__ or "") and scale.attributes.registers == 16


def test_a_decorated_function_with_a_whole_source(default: kops.Client, daemon: FakeDaemon) -> None:
    @kops.cuda_kernel
    def add2_kernel(c, a, b, n):  # type: ignore
        """
        __device__ float sum(float a, float b) { return a + b; }
        extern "C" __global__ void add2_kernel(float* c, const float* a, const float* b, int n)
        { c[0] = sum(a[0], b[0]); }
        """

    assert not daemon.peers
    c, a, b = vectors(default)
    add2_kernel[1, 1](c, a, b, 100)
    assert (c == a + b).all() and [p.name for p in add2_kernel.params] == ["c", "a", "b", "n"]


def test_decorated_functions_that_say_too_little(k: kops.Client) -> None:
    def empty(n: "int"):  # type: ignore # noqa
        pass

    def half(a: "float*", n):  # type: ignore # noqa
        """a[0] = n;"""

    def object_type(a):  # type: ignore
        """a[0] = n;"""

    object_type.__annotations__["a"] = int
    for function, why in ((empty, "docstring"), (half, "every parameter"), (object_type, "C type")):
        with pytest.raises(kops.BadArgument, match=why):
            k.cuda_kernel(function)


HOST = ADD2 + """
torch::Tensor add2(torch::Tensor a, torch::Tensor b) {
    auto c = torch::empty_like(a);
    add2_kernel<<<4, 256>>>(c.data_ptr<float>(), a.data_ptr<float>(), b.data_ptr<float>(), a.numel());
    return c;
}
"""


def test_launches_of_extensions_are_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless whoever connects, or the environment, says where."""
    monkeypatch.delenv("KOPS_WHERE", raising=False)
    assert usual_place(kops.Client.unconnected()) == "auto"
    monkeypatch.setenv("KOPS_WHERE", "daemon")
    assert usual_place(kops.Client.unconnected()) is None


def test_load_inline(default: kops.Client, daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mod = kops.load_inline(
        name="tutorial", cpp_sources="torch::Tensor add2(torch::Tensor a, torch::Tensor b);", cuda_sources=[ADD2],
        functions=["add2_kernel"], with_cuda=True, extra_cuda_cflags=["-O2", "--use_fast_math", ""], extra_cflags=[""], extra_ldflags=[""],
        build_directory="./load_inline_cuda", verbose=True, grid=4, block=256,
    )  # fmt: skip
    (params,) = daemon.sent("compile")
    assert params["name"] == "tutorial.cu" and params["options"] == ["--use_fast_math"] and params["entries"] == ["add2_kernel"]
    assert capsys.readouterr().out == "a warning\n"
    c, a, b = vectors(default)
    mod.add2_kernel(c, a, b, 100)
    assert (c == a + b).all()
    (tmp_path / "x.h").write_text("int x;\n")
    kops.load_inline("x", cuda_sources='#include "x.h"\n' + ADD2, extra_include_paths=[tmp_path], client=default)
    assert daemon.sent("compile")[1]["files"] == {"x.h": "int x;\n"}


@pytest.mark.parametrize(
    "arguments, why",
    [
        pytest.param({"cuda_sources": ADD2, "functions": ["add2"]}, "there are add2_kernel", marks=compiled_only),
        ({"cuda_sources": HOST, "functions": ["add2", "add2_kernel"]}, "add2_kernel is a kernel of name, and add2 is none"),
        ({"cuda_sources": ADD2, "extra_ldflags": ["-lcublas", "-lfftw3"]}, "linked"),
        ({"cuda_sources": ADD2, "sycl_sources": ["x"]}, "CUDA"),
        ({"cpp_sources": "int f();"}, "nothing to load"),
        ({"cuda_sources": ADD2, "fallback": "other"}, "fallback"),
    ],
)
def test_what_load_inline_cannot_do(default: kops.Client, daemon: FakeDaemon, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(kops.BadArgument, match=why):
        kops.load_inline("name", **arguments)
    assert not daemon.peers


@compiled_only
def test_load_inline_of_kernels_leaves_host_code_out(default: kops.Client, daemon: FakeDaemon) -> None:
    source = "#include <torch/extension.h>\n" + HOST
    mod = kops.load_inline("name", "torch::Tensor add2(torch::Tensor a);", source, "add2_kernel", grid=1, block=128)
    (params,) = daemon.sent("compile")
    assert "torch" not in params["source"] and params["source"].count("\n") == source.count("\n"), "lines keep their numbers"
    c, a, b = vectors(default)
    mod.add2_kernel(c, a, b, 100)
    assert (c == a + b).all()


@compiled_only
def test_load_inline_compiles_kernels_before_the_host_code_runs(default: kops.Client, daemon: FakeDaemon) -> None:
    source = "#include <torch/extension.h>\n" + HOST
    assert kops.load_inline("name", "", source, ["add2"], ["-O3", "--use_fast_math"]).add2
    (params,) = daemon.sent("compile")
    assert params["entries"] == ["add2_kernel"] and params["options"] == ["--use_fast_math"] and "#include" not in params["source"]


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="there is no C++ compiler")
@compiled_only
def test_the_same_kernel_on_the_cpu(default: kops.Client, daemon: FakeDaemon) -> None:
    kern = kops.kernel(ADD2, "add2_kernel", "out float* c, const float* a, const float* b, int n", "ceil_div(n, 32)", 32)
    a = numpy.arange(100, dtype="float32")
    c = numpy.zeros_like(a)
    assert kern.interpret(c, a, b=a, n=99) is c and (c[:99] == 2 * a[:99]).all() and c[99] == 0
    assert kern[1, 64].interpret(c, a, a, 100) is c and c[99] == 198
    kern.interpret(c, a, a, 10, grid=lambda *arguments: 1)
    with pytest.raises(kops.interpret.InterpretError, match=r"\[100\]"):
        kern.interpret(c, a, a, 101)
    assert not daemon.peers, "no daemon is asked"


def test_load_inline_takes_no_unknown_arguments(default: kops.Client) -> None:
    with pytest.raises(TypeError, match="nonsense"):
        kops.load_inline("name", cuda_sources=ADD2, nonsense=1)
