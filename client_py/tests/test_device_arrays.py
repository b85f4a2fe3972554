"""`k.array(x, device=…)` with the real daemon, on the host and on the stand-in GPU, in a process that has no CUDA."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator

import kops
import numpy
import pytest
from built import Daemon, backends, daemon_of
from kops._memory import device_pool
from which import compiled_only, in_child

DTYPES = ("f32", "f64", "f16", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool")


@pytest.fixture(scope="module", params=[backends.HOST, backends.STANDIN])
def real(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    with daemon_of(request.param) as running:
        running.backend = request.param
        yield running


@pytest.fixture(scope="module")
def standin() -> Iterator[Daemon]:
    with daemon_of(backends.STANDIN) as running:
        yield running


@pytest.fixture
def gpu(standin: Daemon) -> Iterator[kops.Client]:
    with kops.connect(standin.socket_path, timeout=120) as client:
        yield client
    gc.collect()


@pytest.fixture
def k(real: Daemon) -> Iterator[kops.Client]:
    with kops.connect(real.socket_path, timeout=120) as client:
        yield client
    gc.collect()


def numbers(*shape: int, dtype: str = "float32") -> numpy.ndarray:
    return (numpy.random.default_rng().standard_normal(shape) * 50).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_set_is_what_is_got(k: kops.Client, dtype: str) -> None:
    value = numbers(17, 5, dtype=kops._base.dtypes.NAMES[dtype])
    a = k.array(value, device=0)
    assert type(a) is kops.Array and a.device == k.devices[0] and a.shape == (17, 5) and a.dtype == value.dtype
    assert a.nbytes == value.nbytes and a.strides == value.strides and a.ndim == 2 and a.size == 85 and len(a) == 17
    assert numpy.array_equal(numpy.asarray(a), value) and numpy.array_equal(a.get(), value)
    out = numpy.empty_like(value)
    assert a.get(out) is out and numpy.array_equal(out, value)
    assert a.set(value[::-1]) is a and numpy.array_equal(a.get(), value[::-1])
    a.set(1)
    assert (a.get() == 1).all()
    assert numpy.array_equal(k.copy(a).get(), a.get()) and type(k.copy(a)) is kops.Array
    sent, got = a.set(value, blocking=False, stream=3), a.get(blocking=False, stream=3)
    assert isinstance(sent, kops.Pending) and sent.result() is a and numpy.array_equal(got.result(), value)
    nothing = k.empty((0, 5), dtype, device=0)
    nothing.set(numpy.empty((0, 5), value.dtype))
    assert nothing.get().shape == (0, 5) and nothing[:, 2:4].shape == (0, 2)


def test_the_device_is_named_as_elsewhere(k: kops.Client, real: Daemon) -> None:
    for name in (0, k.devices[0], k.devices[0].uuid):
        assert k.empty(3, device=name).device == k.devices[0]
    for wrong in (99, -1, "GPU-none", True):
        with pytest.raises(kops.UnknownDevice, match="it has 0"):
            k.empty(3, device=wrong)
    assert not k.zeros((3, 4), "i32", device=0).get().any()
    assert k.array([1, 2], device=0).dtype == numpy.float32, "lists are f32, as without a device"
    assert k.array(numpy.arange(3), "f64", device=0).get().tolist() == [0, 1, 2]
    if real.backend == backends.STANDIN:
        assert k.array([1.0], device="host").device.backend == "host"


def test_wrong_copies_say_what_to_do(k: kops.Client) -> None:
    a, frozen = k.zeros((2, 3), device=0), numpy.zeros((2, 3), "float32")
    frozen.flags.writeable = False
    for call, error, why in (
        (lambda: a.set(numpy.zeros(4)), kops.ShapeMismatch, "does not broadcast"), (lambda: a.__array__(copy=False), ValueError, "copy"),
        (lambda: a.get(numpy.zeros(6, "float32")), kops.ShapeMismatch, ""), (lambda: a.get(numpy.zeros((2, 3))), kops.DtypeMismatch, ""),
        (lambda: a.get(frozen), kops.ReadOnly, ""), (lambda: numpy.ones((2, 3)) + a, TypeError, ""),  # it would copy each time
        (lambda: k.empty(-1, device=0), kops.BadArgument, "negative"), (lambda: k.empty((3, -2), device=0), kops.BadArgument, "negative"),
        (lambda: k.empty("three", device=0), kops.WrongType, "a shape is"), (lambda: len(k.zeros((), device=0)), TypeError, ""),
        *((lambda take=take: take(a), TypeError, r"a.get\(\)") for take in (pickle.dumps, copy.copy, copy.deepcopy)),
    ):  # fmt: skip
        with pytest.raises(error, match=why):
            call()


def test_views_are_numpys(k: kops.Client) -> None:
    value = numbers(6, 7, 8)
    a = k.array(value, device=0)
    for key in (
        1, -1, slice(1, 5), slice(0, 7, 3), (2, slice(None), 3), (..., 1), (1, ...), (None, 2), (slice(4, 2),), (0, 1, 2),
        (slice(1, None), slice(2, -1, 2), slice(0, 8, 5)), ..., (..., None), (slice(-3, None), 1),
    ):  # fmt: skip
        view, expected = a[key], value[key]
        assert view.shape == expected.shape and numpy.array_equal(view.get(), expected), key
        view.set(expected * 2)
        assert numpy.array_equal(a.get()[key], expected * 2), "it is the same memory"
        a.set(value)
    assert numpy.array_equal(a.T.get(), value.T) and numpy.array_equal(a.transpose(1, 0, -1).get(), value.transpose(1, 0, 2))
    assert numpy.array_equal(a.reshape(42, -1).get(), value.reshape(42, 8)) and a.reshape((-1,)).shape == (336,)
    assert a.reshape(-1)[5:].get()[0] == value.reshape(-1)[5]
    assert numpy.array_equal(k.add(a[1:, ::2], a[:-1, 1::2][:, :1]).get(), value[1:, ::2] + value[:-1, 1::2][:, :1])
    a[2:4, 1] = 5
    assert (a.get()[2:4, 1] == 5).all()


def test_what_is_no_view(k: kops.Client) -> None:
    a = k.zeros((4, 6), device=0)
    for key, error in (
        (slice(None, None, -1), kops.BadArgument), (4, IndexError), ((0, -7), IndexError), ((0, 0, 0), IndexError),
        ([0, 1], IndexError), (1.5, IndexError), ((..., ...), IndexError),
    ):  # fmt: skip
        with pytest.raises(error):
            a[key]
    for wrong in ((5, 5), (-1, -1), (7, -1), (-2, 12)):
        with pytest.raises(kops.ShapeMismatch):
            a.reshape(*wrong)
    with pytest.raises(kops.BadArgument, match="k.copy"):
        a.T.reshape(24)
    assert k.copy(a.T).reshape(24).shape == (24,)
    with pytest.raises(kops.BadArgument, match="once"):
        a.transpose(0, 0)


def test_ops_take_them_in_place(k: kops.Client) -> None:
    x, y = numbers(64, 64), numbers(64, 64)
    a, b = k.array(x, device=0), k.array(y, device=0)
    c, timings = k.add(a, b, timing=True)
    assert type(c) is kops.Array and timings.h2d_us is None and timings.device == k.devices[0].uuid
    assert numpy.array_equal(c.get(), x + y) and k.square(k.empty((0, 5), device=0)).shape == (0, 5)
    assert numpy.array_equal(k.add(a, 2.5).get(), x + numpy.float32(2.5))
    assert numpy.array_equal(k.add(2.5, a).get(), k.add(a, 2.5).get())
    assert k.square(a, out=a) is a and numpy.array_equal(a.get(), x * x)
    assert numpy.allclose(k.gemm(b, c, alpha=0.5).get(), 0.5 * y @ (x + y), rtol=1e-4, atol=1e-2)
    assert k.gemm(b, c[0]).shape == (64,)
    assert k.submit("square", b).result().get()[0, 0] == y[0, 0] * y[0, 0]
    for cache in ("warm", "cold"):
        assert len(k.profile("square", k.array(numbers(1 << 20), device=0), repeat=3, cache=cache).samples) == 3


def test_several_at_once(k: kops.Client) -> None:
    x = numbers(100)
    a = k.array(x, device=0)
    with k.sequence():
        b = k.add(a, a)
        c = k.square(b)
        with pytest.raises(kops.BadArgument, match="have not run"):
            numpy.asarray(c)
        host = c.get()  # recorded, too
    assert numpy.array_equal(c.get(), (x + x) ** 2) and numpy.array_equal(host, c.get())
    with k.program() as p:
        d = k.add(a, 1.0)
        e = k.square(d)
    p.run()
    assert numpy.array_equal(e.get(), (x + 1) ** 2)
    other = k.array(2 * x, device=0)
    p.run([(a, other)])
    assert numpy.array_equal(e.get(), (2 * x + 1) ** 2)


KERNEL = """extern "C" __global__ void scale(float* y, const float* x, float f, int n)
{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = f * x[i]; }"""


@compiled_only
def test_the_interpreter_takes_those_of_the_host(k: kops.Client, real: Daemon) -> None:
    pytest.importorskip("kops.interpret")
    x, y = k.array(numpy.arange(10), "f32", device=0), k.zeros(10, device=0)
    if real.backend != backends.HOST:
        with pytest.raises(kops.WrongType, match=r"a.get\(\)"):
            kops.kernel(KERNEL, "scale").interpret(y, x, 2.0, 10, grid=1, block=32)
        return
    signature = "out float* y[n], const float* x[n], float f, int n"
    kern = k.kernel(KERNEL, "scale", signature, grid="ceil_div(n, 256)", block=256, fallback="interpret")
    assert kern(y, x, 2.0, 10) is y and y.get().tolist() == [2 * i for i in range(10)]
    made = k.elementwise("x * y + 1", fallback="interpret")(x, x[:1])
    assert type(made) is kops.Array and made.get().tolist() == [1] * 10
    assert k.reduce("x", "a + b", identity=0, fallback="interpret")(x).get() == 45


def test_numbers_share_memory_and_host_arrays_are_not_mixed(gpu: kops.Client) -> None:
    a = gpu.zeros(4, device=0)
    gpu.add(a, -1.0)
    before = device_pool.pool_of(gpu.devices[0].uuid).bytes
    for i in range(300):
        assert gpu.add(a, float(i)).get()[3] == i
    assert device_pool.pool_of(gpu.devices[0].uuid).bytes == before
    with pytest.raises(kops.DeviceMismatch, match="k.array"):
        gpu.add(a, numpy.zeros(4, "float32"))
    with pytest.raises(kops.UnknownDtype):
        gpu.square(gpu.zeros(4, "bool", device=0))


def test_results_reuse_memory(gpu: kops.Client) -> None:
    gpu.trim()  # what clients of earlier tests have left: it would be registered, and not allocated, again
    pool = device_pool.pool_of(gpu.devices[0].uuid)
    a = gpu.array(numbers(1 << 20), device=0)
    b = gpu.square(a)
    at, before = b._block.segment.base, pool.bytes
    for _ in range(20):
        del b
        b = gpu.square(a)
        assert b._block.segment.base == at
    assert pool.bytes == before
    allocated = sum(user.allocated_bytes for user in gpu.clients().users)
    assert 8 << 20 <= allocated <= before
    del a, b
    assert gpu.trim()["freed"] >= 2 * (4 << 20)
    assert sum(user.allocated_bytes for user in gpu.clients().users) <= allocated - 2 * (4 << 20)


def test_memory_runs_out_with_a_clear_error() -> None:
    with daemon_of(backends.STANDIN, "[quota]\nallocated_mib = 24\n") as small, kops.connect(small.socket_path, timeout=120) as k:
        k.trim()
        first = k.array(numbers(2 << 20), device=0)  # 8 MiB
        second = k.square(first)
        with pytest.raises(kops.QuotaExceeded, match="allocated"):
            k.empty(3 << 20, device=0)
        with pytest.raises(kops.QuotaExceeded, match="allocated"):
            k.gemm(first.reshape(2048, 1024), second.reshape(1024, 2048))  # 16 MiB
        del second
        third = k.empty(3 << 20, device=0)  # what was kept for reuse is given back first
        assert third.nbytes == 12 << 20


def test_arrays_outlive_their_client(standin: Daemon, gpu: kops.Client) -> None:
    with kops.connect(standin.socket_path, timeout=120) as other:
        a = other.array([1.0, 2.0], device=0)
    host = gpu.empty(2)
    assert gpu.copy(gpu.square(a), out=host) is host and host.tolist() == [1, 4]
    with pytest.raises(kops.ConnectionLost, match="closed"):
        a.get()


def test_a_forked_child_has_them_too(gpu: kops.Client) -> None:
    a, kept = gpu.array([1.0, 2.0], device=0), [gpu.array([7.0], device=0)]

    def child() -> bool:
        made = gpu.add(a, a)
        return made.get().tolist() == [2, 4] and kept.pop().get().tolist() == [7]

    in_child(child)
    kept.clear()
    assert gpu.array([5.0], device=0).get().tolist() == [5] and a.get().tolist() == [1, 2]


def test_there_is_no_pointer_without_cuda(k: kops.Client) -> None:
    a = k.array(numbers(3, 4), device=0)
    with pytest.raises(AttributeError, match="without a copy" if a.device.backend == "host" else "no CUDA context"):
        a.__cuda_array_interface__  # noqa: B018
    if a.device.backend == "host":
        same = numpy.from_dlpack(a.T)
        assert same.shape == (4, 3)
        a.set(42)
        assert same[1, 2] == 42, "it is the same memory"
        if same.flags.writeable:  # where NumPy asks for a version that says so
            same[1, 2] = 43
            assert a.get()[2, 1] == 43
        value = same.copy()
        del a
        gc.collect()
        k.zeros((3, 4), device=0)
        assert numpy.array_equal(same, value), "the consumer keeps the memory"
    else:
        for ask in (a.__dlpack__, a.__dlpack_device__):
            with pytest.raises(BufferError, match="no CUDA context"):
                ask()


async def test_asyncio(real: Daemon) -> None:
    value = numbers(50, 3)
    async with kops.connect_async(real.socket_path, timeout=120) as k:
        a = await k.array(value, device=0)
        b = await k.add(a, 1.0)
        assert type(b) is kops.Array and numpy.array_equal(await b.get(), value + numpy.float32(1))
        assert await a[1].set(7) is not None and ((await a.get())[1] == 7).all()
        assert not (await (await k.zeros(4, device=0)).get()).any() and (await k.empty(4, device=0)).shape == (4,)
        with pytest.raises(kops.BadArgument, match="await"):
            numpy.asarray(a)
        with pytest.raises(kops.BadArgument, match="await"):
            a[1] = 3
