"""Kernels of the user's own: what is sent, what is refused before anything is sent, and how long they live."""

from __future__ import annotations

import asyncio
import gc
import pickle
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon, refuser
from which import compiled_only, wait_for

ADD2 = """
extern "C" __global__ void add2_kernel(float* c, const float* a, const float* b, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) c[i] = a[i] + b[i];
}
"""
SCALE = 'extern "C" __global__ void scale(float* y, const float* x, float a, int n) { }'


def add2(k: kops.Client, **more: Any) -> kops.Kernel:
    return k.kernel(ADD2, "add2_kernel", grid="ceil_div(n, 256)", block=256, **more)


def vectors(k: kops.Client, n: int = 100) -> tuple[Any, Any, Any]:
    a, b = k.array(numpy.arange(n, dtype="float32")), k.array(numpy.ones(n, "float32"))
    return k.zeros(n), a, b


def test_a_kernel_is_compiled_declared_and_launched(k: kops.Client, daemon: FakeDaemon) -> None:
    kern = add2(k)
    (compile,) = daemon.sent("compile")
    assert compile == {"source": ADD2, "name": "kernel.cu", "entries": ["add2_kernel"]}
    (declared,) = daemon.sent("kernel")
    assert [(p["name"], p["kind"], p["dtype"]) for p in declared["params"]] == [
        ("c", "inout", "f32"), ("a", "in", "f32"), ("b", "in", "f32"), ("n", "scalar", "i32"),
    ]  # fmt: skip
    assert (declared["grid"], declared["block"]) == (["ceil_div(n, 256)"], [256])
    assert not declared.keys() & {"shared", "cluster", "alias", "cooperative", "pdl"}
    c, a, b = vectors(k)
    assert kern(c, a, b, 100) is None
    assert (c == a + b).all()
    kern(n=3, b=b, a=a, c=c)
    (first, second) = daemon.sent("launch")
    assert first["kernel"] == second["kernel"] and first["args"][3] == 100 and second["args"][3] == 3
    assert first["timing"] is False and "grid" not in first
    assert daemon.count("compile") == daemon.count("kernel") == 1
    assert kern.attributes.registers == 16 and kern.attributes.params == (8, 8, 8, 4)
    assert "add2_kernel(inout f32 c" in repr(kern)
    c = numpy.full(10, 7, "float32")
    kern(c, numpy.arange(10, dtype="float32"), [1.0] * 10, 8)
    assert c.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 7, 7], "what the kernel leaves alone stays"


def test_what_is_declared(k: kops.Client, daemon: FakeDaemon) -> None:
    how = {"grid": lambda c, a, b, n: (n, 1), "block": ("min(n, 64)", 2), "shared": "4 * n", "cluster": (2, 1), "alias": True}
    kern, module = k.kernel(ADD2, "add2_kernel", **how), k.compile(ADD2, grid=1, block=1)
    (sizes,) = daemon.sent("kernel")
    assert sizes["block"] == ["min(n, 64)", 2] and sizes["shared"] == "4 * n" and sizes["cluster"] == [2, 1]
    assert sizes["alias"] is True and "grid" not in sizes
    for way in ("cooperative", "pdl"):
        add2(k, **{way: True})
        module.kernel("add2_kernel", **{way: True})
        assert [{"cooperative", "pdl"} & declared.keys() for declared in daemon.sent("kernel")[-2:]] == [{way}] * 2
    kern(*vectors(k), 100)
    assert daemon.sent("launch")[0]["grid"] == [100, 1]


def test_out_arguments_are_returned(k: kops.Client) -> None:
    c, a, b = vectors(k)
    kern = k.kernel(ADD2, "add2_kernel", "out float* c, const float* a, const float* b, int n", grid=1, block=128)
    assert kern(c, a, b, 100) is c
    timings = kern(c, a, b, 100, timing=True)
    assert isinstance(timings, kops.Timings) and timings.variant == "user"
    profile = kern.profile(c, a, b, 100, warmup=1, repeat=5)
    assert profile.op == "add2_kernel" and len(profile.samples) == 5 and profile.bytes == 1200
    with pytest.raises(kops.BadArgument, match="out float") as error:
        add2(k).profile(c, a, b, 100)
    assert error.value.detail["key"] == "c"
    assert add2(k).profile(c, a, b, 100, warmup=0, repeat=1).variant == "user"


def test_geometry_of_one_launch(k: kops.Client, daemon: FakeDaemon) -> None:
    c, a, b = vectors(k)
    kern = k.kernel(ADD2, "add2_kernel")
    for sizes, error, key in (
        ({}, kops.BadArgument, "no grid"), ({"grid": 1}, kops.BadArgument, "no block"), ({"grid": "n", "block": 1}, kops.WrongType, "grid"),
        ({"grid": -1, "block": 1}, kops.OutOfRange, "grid"), ({"grid": 2**63, "block": 1}, kops.OutOfRange, "grid"),
        ({"grid": (1, 1, 1, 1), "block": 1}, kops.BadArgument, "grid"), ({"grid": 1.5, "block": 1}, kops.WrongType, "grid"),
        ({"grid": True, "block": 1}, kops.WrongType, "grid"), ({"grid": 1, "block": 1, "shared": "n"}, kops.WrongType, "shared"),
    ):  # fmt: skip
        with pytest.raises(error, match=key) as caught:
            kern(c, a, b, 100, **sizes)
        assert caught.value.detail["key"] == key.split()[-1]
    assert not daemon.sent("launch")
    kern(c, a, b, 100, grid=numpy.int64(4), block=(16, 2), shared=1024, cluster=2)
    kern[(1, 2), 32](c, a, b, 100)
    kern[1, 32, 64](c, a, b, 100, grid=lambda c, a, b, n: -(-n // 32))
    first, second, third = daemon.sent("launch")
    assert (first["grid"], first["block"], first["shared"], first["cluster"]) == ([4], [16, 2], 1024, [2])
    assert (second["grid"], second["block"]) == ([1, 2], [32]) and "shared" not in second
    assert (third["grid"], third["block"], third["shared"]) == ([4], [32], 64)


@pytest.mark.parametrize(
    "change, kind, key",
    [
        ({"n": 2**31}, kops.OutOfRange, "args[3]"), ({"n": -(2**31) - 1}, kops.OutOfRange, "args[3]"),
        ({"n": 1.5}, kops.WrongType, "args[3]"), ({"n": "1"}, kops.WrongType, "args[3]"), ({"n": None}, kops.WrongType, "args[3]"),
        ({"a": 1.0}, kops.WrongType, "args[1]"), ({"a": "text"}, kops.WrongType, "args[1]"), ({"c": [1.0]}, kops.WrongType, "args[0]"),
        ({"a": numpy.zeros(4)}, kops.DtypeMismatch, "args[1]"), ({"b": numpy.zeros(4, "int32")}, kops.DtypeMismatch, "args[2]"),
    ],
)  # fmt: skip
def test_wrong_arguments(k: kops.Client, daemon: FakeDaemon, change: dict[str, Any], kind: type[Exception], key: str) -> None:
    c, a, b = vectors(k)
    kern = add2(k)
    with pytest.raises(kind) as error:
        kern(**{"c": c, "a": a, "b": b, "n": 100, **change})
    assert error.value.detail["key"] == key and "add2_kernel" in str(error.value)  # type: ignore[attr-defined]
    for arguments, named, why in (
        ((c, a, b), {}, "needs n"), ((c, a, b, 1, 2), {}, "takes 4"), ((c, a, b, 1), {"n": 2}, "two values for n"),
        ((c, a, b), {"m": 2}, "no parameter 'm'"),
    ):  # fmt: skip
        with pytest.raises(kops.BadArgument, match=why):
            kern(*arguments, **named)
    assert not daemon.sent("launch")


def test_layouts_and_ranks(k: kops.Client, daemon: FakeDaemon) -> None:
    _, a, b = vectors(k)
    matrix = k.zeros((10, 10))
    kern = add2(k)
    with pytest.raises(kops.BadArgument, match="contiguous"):
        kern(matrix.T, a, b, 3)
    kern(matrix[2:4], a, b, 3)
    params = [kops.Param("c", "out", "f32", strided=True), *kern.params[1:]]
    k.kernel(ADD2, "add2_kernel", params, grid=1, block=1)(k.zeros((4, 4)).T, a, b, 0)
    assert "strides" in daemon.sent("launch")[-1]["args"][0]
    exact = k.kernel(ADD2, "add2_kernel", "out float* c[2][n], const float* a[n], const float* b, int n", grid=1, block=1)
    assert daemon.sent("kernel")[-1]["params"][0]["shape"] == [2, "n"]
    with pytest.raises(kops.ShapeMismatch, match="2 dimensions"):
        exact(a, a, b, 50)


def test_null_pointers_numbers_and_other_dtypes(k: kops.Client, daemon: FakeDaemon) -> None:
    x = k.array(numpy.arange(4, dtype="float32"))
    kern = k.kernel(SCALE, grid=1, block=32)
    kern(None, x, numpy.float64(2), numpy.int16(4))
    args = daemon.sent("launch")[0]["args"]
    assert args[0] is None and args[2:] == [2.0, 4] and isinstance(args[2], float)
    kern(None, x, 3, True)
    assert daemon.sent("launch")[1]["args"][2:] == [3.0, 1]
    with pytest.raises(kops.OutOfRange):
        kern(None, x, 1e39, 4)
    kern(None, x, float("inf"), 4)
    source = "__global__ void scale(const unsigned char* y, const bool* x, bool a, unsigned long long n) {}"
    flags = k.kernel(source, grid=1, block=1)
    daemon.script["launch"] = lambda peer, params, fds: peer.measured(params)
    flags(k.array(numpy.ones(3, "uint8")), k.array(numpy.ones(3, "bool")), True, 2**64 - 1)
    args = daemon.sent("launch")[-1]["args"]
    assert [args[0]["dtype"], args[1]["dtype"], args[2], args[3]] == ["u8", "bool", True, 2**64 - 1]
    with pytest.raises(kops.OutOfRange):
        flags(None, None, 2, 0)
    with pytest.raises(kops.OutOfRange):
        flags(None, None, True, -1)


def test_compile_errors(k: kops.Client, daemon: FakeDaemon) -> None:
    log = "add.cu(2): warning: x\nadd.cu(3): error: identifier \"q\" is undefined\nadd.cu(7): error: y\n"
    daemon.script["compile"] = refuser("compile_failed", "add.cu(3): error: identifier", reason="source", log=log)
    with pytest.raises(kops.CompileFailed) as error:
        add2(k)
    assert (error.value.reason, error.value.log, error.value.file, error.value.line) == ("source", log, "add.cu", 3)
    assert "identifier" in str(error.value) and "add.cu(7)" in str(error.value) and isinstance(error.value, ValueError)
    assert kops.CompileFailed("x", {"reason": "time"}).line is None
    with pytest.raises(kops.BadArgument, match="give entries="):
        k.compile("int x;")
    with pytest.raises(kops.BadArgument, match="which kernel"):
        k.kernel(ADD2 + SCALE)
    with pytest.raises(kops.WrongType):
        k.kernel(b"bytes", "x")  # type: ignore[arg-type]


def test_a_module(k: kops.Client, daemon: FakeDaemon) -> None:
    module = k.compile(
        ADD2 + SCALE + "namespace ns { __global__ void scale2(int n) {} }", options=["-DN=3"], files={"a.h": "int a;"}, name="x.cu",
        arch="sm_80", device=k.devices[0], grid=1, block=64, signatures={"scale": "out float* y, const float* x, float a, int n"},
    )  # fmt: skip
    (params,) = daemon.sent("compile")
    assert params["entries"] == ["add2_kernel", "scale", "ns::scale2"] and params["options"] == ["-DN=3"]
    assert params["files"] == {"a.h": "int a;"} and params["name"] == "x.cu" and params["arch"] == "sm_80" and params["device"] == "host"
    assert module.key == "ab" * 32 and module.arch == "sm_80" and module.cached == "memory" and module.compile_us == 25000.0
    assert module.log == "a warning" and module.compiler == "NVRTC 0.0" and module.image_bytes == 5000
    assert list(module.entries) == params["entries"] and module.entries["scale"].max_threads == 1024
    c, a, b = vectors(k)
    module.add2_kernel(c, a, b, 100)
    assert (c == a + b).all() and module.add2_kernel is module["add2_kernel"]
    assert module.scale(c, a, 2, 100) is c and module.scale2.name == "ns::scale2"
    assert module.kernel("scale", grid=3, block=32)._geometry.declared["grid"] == [3]
    assert "scale2" in dir(module) and "add2_kernel" in repr(module)
    assert daemon.count("compile") == 1
    for call, error, why in (
        (lambda: module.absent, AttributeError, "scale2"), (lambda: module["absent"], KeyError, ""),
        (module.kernel, kops.BadArgument, "which kernel"),
        (lambda: module.kernel("scael"), kops.BadArgument, "no kernel 'scael' was compiled; there are scale, ns::scale2, add2_kernel"),
    ):  # fmt: skip
        with pytest.raises(error, match=why):
            call()


def test_templates_by_name(k: kops.Client, daemon: FakeDaemon) -> None:
    source = "template <typename T> __global__ void scale(T* y, const T* x, T a, int n) {}"
    with pytest.raises(kops.BadArgument, match="give the signature"):
        k.kernel(source, "scale<Unknown>", grid=1, block=1)
    with pytest.raises(kops.SignatureMismatch, match=r"in the source it is `float \* y`"):
        k.kernel(source, "scale<float>", "double* y, const double* x, float a, int n", grid=1, block=1)
    assert not daemon.sent("compile")
    kern = k.kernel(source, "scale<float>", "float* y, const f32* x, float a, int n", grid=1, block=1)
    assert kern.params == k.kernel(source, "scale<float>", grid=1, block=1).params
    x = k.array(numpy.arange(4, dtype="float32"))
    kern(x, x, 2.0, 4)
    assert x.tolist() == [0, 2, 4, 6]
    module = k.compile(source, ["scale<float>"], signatures={"scale<float>": kern.params}, grid=1, block=1)
    assert module["scale<float>"].params == kern.params


def test_sequences_and_programs(k: kops.Client, daemon: FakeDaemon) -> None:
    c, a, b = vectors(k)
    kern = add2(k)
    with k.sequence() as s:
        kern(c, a, b, 100)
        d = k.square(c)
        s.launch(kern, d, d, a, n=100, grid=7)
    assert not daemon.sent("launch")
    (params,) = daemon.sent("sequence")
    first, second, third = params["ops"]
    assert first["args"] == [0, 1, 2, 100] and second["op"] == "square" and third["args"] == [3, 3, 1, 100]
    assert third["grid"] == [7] and first["kernel"] == third["kernel"]
    assert (c == a + b).all() and (d == c * c + a).all() and s.results == [None, d, None]
    none, e = k.sequence([(kern, c, a, b, 100), ("square", c), (kern, d, a, a, 3, {"grid": 2})])[:2]
    assert none is None and (e == c * c).all() and (d[:3] == 2 * a[:3]).all()
    with pytest.raises(kops.BadArgument, match="being recorded"):
        with k.sequence():
            kern(c, a, b, 100, timing=True)
    with k.program() as p:
        kern(c, a, a, 100)
    assert (c == a + b).all()
    p.run()
    assert (c == a + a).all()
    gc.collect()
    p.run([(c, d)])
    assert (d == a + a).all()


def test_what_is_dropped_is_released(k: kops.Client, daemon: FakeDaemon) -> None:
    c, a, b = vectors(k)
    kern = add2(k)
    kern(c, a, b, 100)
    (peer,) = daemon.peers
    assert len(peer.kernels) == len(peer.modules) == 1
    other = k.compile(ADD2, grid=1, block=1)
    other.add2_kernel(c, a, b, 1)
    del kern, other
    gc.collect()
    k.ping()
    wait_for(lambda: not peer.kernels and not peer.modules)


def test_in_another_process(k: kops.Client, daemon: FakeDaemon) -> None:
    c, a, b = vectors(k)
    kern = add2(k)
    copy, other = pickle.loads(pickle.dumps((kern, kern[1, 32])))
    assert copy.params == kern.params and copy._client is not k and copy._client is other._kernel._client
    copy(c, a, b, 100)
    other(c, c, b, 100)
    assert (c == a + 2).all() and len(daemon.peers) == 2 and daemon.count("compile") == 2
    copy._client.close()


@compiled_only
def test_submitted_launches(k: kops.Client, daemon: FakeDaemon) -> None:
    c, a, b = vectors(k)
    kern = k.kernel(ADD2, "add2_kernel", "out float* c, const float* a, const float* b, int n")
    daemon.gate.clear()
    first = kern.submit(c, a, b, 100, grid=1, block=64)
    second = kern.submit(c, c, b, n=50, grid=1, block=64, timing=True)
    assert not first.done()
    daemon.gate.set()
    assert first.result() is c and second.result().variant == "user"
    assert (c[:50] == a[:50] + 2).all() and (c[50:] == a[50:] + 1).all()


def test_a_daemon_without_kernels(daemon: FakeDaemon) -> None:
    daemon.hello["features"] = [f for f in daemon.hello["features"] if f not in ("compile", "kernels")]
    kernels = daemon.hello.pop("kernels")
    with kops.connect(daemon.path) as k:
        assert k.info.kernels == {}
        with pytest.raises(kops.Unsupported, match="newer"):
            add2(k)
        assert not daemon.sent("compile")
    # One that could, but may not: it says so itself.
    daemon.hello["kernels"] = {**kernels, "policy": "off", "allowed": False}
    daemon.script["compile"] = refuser("permission_denied", "user_kernels is off")
    with kops.connect(daemon.path) as k:
        assert k.info.kernels["policy"] == "off"
        with pytest.raises(kops.PermissionDenied, match="user_kernels"):
            add2(k)


async def test_asyncio(daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "add.cu").write_text(ADD2)
    async with kops.connect_async(daemon.path, timeout=20) as k:
        c, a, b = vectors(k)  # type: ignore[arg-type]
        kern = await k.kernel(ADD2, "add2_kernel", "out float* c, const float* a, const float* b, int n", grid=1, block=256)
        assert await kern(c, a, b, 100) is c and (c == a + b).all()
        assert (await kern(c, a, b, n=100, timing=True)).variant == "user"
        assert len((await kern.profile(c, a, b, 100, repeat=4)).samples) == 4
        await kern[2, 128](c, a, a, 100)
        assert daemon.sent("launch")[-1]["grid"] == [2] and kern.attributes.registers == 16
        async with k.sequence() as s:
            s.launch(kern, c, a, b, 100)
        async with k.program() as p:
            p.launch(kern, c, a, a, 100)
        await p.run()
        assert (c == a + a).all()
        module = await k.load(tmp_path / "add.cu", grid=1, block=32)
        await asyncio.gather(*(module.add2_kernel(c, a, b, 100) for _ in range(5)))
        assert (c == a + b).all()
        daemon.hang_up()
        assert await kern(c, a, b, 100) is c

        @k.cuda_kernel(grid=1, block=32)
        def scale(y: "out float*", x: "const float*", a: "float", n: "int"):  # type: ignore # noqa
            """if (threadIdx.x < n) y[threadIdx.x] = a * x[threadIdx.x];"""

        assert (await scale(c, a, 3, 100)) is c and (c == 3 * a).all()
