"""What executors are for, with the real daemon on the stand-in CUDA driver. `k.guarded`: arrays that end, or begin, where the memory
does."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import kops
import numpy
import pytest
from built import Daemon, backends, daemon_of
from kops._memory import device_pool
from test_daemon_cuda import driver, k

__all__ = ["driver", "k"]

READ = """extern "C" __global__ void read_range(unsigned* out, unsigned long long address, int n) {
    for (int i = 0; i < n; i++) out[i] = ((const unsigned*)address)[i]; }"""
TELL = """extern "C" __global__ void tell_address(unsigned long long* out, const float* p) { *out = (unsigned long long)p; }"""
GRANULE = 2 << 20


@pytest.fixture
def real(driver: Any) -> Iterator[Daemon]:
    with daemon_of(backends.STANDIN, "[executors]\nisolate = user\nfaults = 0\n") as running:
        yield running


@pytest.fixture
def read(k: kops.Client) -> Any:
    return k.kernel(READ, "read_range", "out unsigned* out[4], unsigned long long address, int n", grid=1, block=1)


@pytest.fixture
def where(k: kops.Client) -> Any:
    tell = k.kernel(TELL, "tell_address", "out unsigned long long* out[1], const float* p", grid=1, block=1)

    def address(array: kops.Array) -> int:
        out = k.zeros(1, "u64", device=0)
        tell(out, array)
        return int(out.get()[0])

    return address


@pytest.mark.parametrize("n", [4, 1, 1001, GRANULE // 4])
def test_an_array_ends_where_the_memory_does(k: kops.Client, where: Any, read: Any, n: int) -> None:
    a = k.guarded(n)
    assert a.shape == (n,) and a.contiguous and not a.get().any(), "zeroed"
    a.set(numpy.arange(n))
    assert a.get().tolist() == list(range(n))
    end = where(a) + a.nbytes
    assert end % GRANULE == 0
    if n >= 4:
        out = k.zeros(4, "u32", device=0)
        read(out, end - 16, 4)
        assert out.get().view("float32").tolist() == list(range(n - 4, n))
    for past in (0, GRANULE, (16 << 20) - 4):
        out = k.zeros(4, "u32", device=0)
        with pytest.raises(kops.DeviceFault):
            read(out, where(a) + a.nbytes + past, 1)
        assert not out.get().any()
    assert a.get().tolist() == list(range(n)), "it is still the same memory, in a new process"


def test_an_array_begins_where_the_memory_does(k: kops.Client, where: Any, read: Any) -> None:
    a = k.guarded((3, 5), "f32", side="start")
    a.set(numpy.ones((3, 5)))
    start = where(a.reshape(15))
    assert start % GRANULE == 0
    out = k.zeros(4, "u32", device=0)
    read(out, start, 4)
    assert (out.get().view("float32") == 1).all()
    for before in (4, GRANULE, 16 << 20):
        with pytest.raises(kops.DeviceFault):
            read(out, where(a.reshape(15)) - before, 1)


def test_alignment_is_what_the_bytes_allow(k: kops.Client, where: Any) -> None:
    for n, wanted in ((1, 4), (2, 8), (3, 4), (4, 16), (1001, 4), (1024, 4096)):
        address = where(k.guarded(n))
        assert address % wanted == 0 and address % (2 * wanted) != 0


def test_ops_use_them(k: kops.Client) -> None:
    a, b = k.guarded(1003), k.guarded(1003, side="start")
    a.set(numpy.arange(1003))
    b.set(numpy.ones(1003))
    assert (k.add(a, b).get() == numpy.arange(1003) + 1).all()
    out = k.guarded((1003,), "f32")
    assert k.add(a, b, out=out) is out and (out.get() == numpy.arange(1003) + 1).all()


def test_memory_goes_back(k: kops.Client) -> None:
    pool = device_pool.pool_of(next(d.uuid for d in k.devices if d.backend == "cuda"))
    k.trim()
    before = pool.bytes
    a = k.guarded(GRANULE)  # 8 MiB
    assert pool.bytes == before + 4 * GRANULE
    del a
    gc.collect()
    assert k.trim()["freed"] >= 4 * GRANULE and pool.bytes == before
    assert k.guarded((0, 3)).get().shape == (0, 3)


def test_what_cannot_be(k: kops.Client) -> None:
    with pytest.raises(kops.BadArgument, match="side"):
        k.guarded(4, side="middle")
    with pytest.raises(kops.Unsupported, match="interpreter"):
        k.guarded(4, device="host")
    with pytest.raises(kops.UnknownDevice):
        k.guarded(4, device=77)
    with pytest.raises(kops.BadArgument):
        k.guarded(-1)


async def test_with_asyncio(k: kops.Client, real: Daemon) -> None:
    async with kops.connect_async(real.socket_path, timeout=120) as client:
        a = await client.guarded(1001)
        await a.set(numpy.arange(1001))
        assert (await a.get()).tolist() == list(range(1001))
        assert a._start == GRANULE - 4004
        with pytest.raises(kops.BadArgument):
            await client.guarded(1, side="x")


# exclusive=True: launches, programs and sequences that are alone on the daemon's GPUs

ADD = """extern "C" __global__ void vector_add(float* c, const float* a, const float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) c[i] = a[i] + b[i]; }"""
SIGNATURE = "out float* c[n], const float* a[n], const float* b[n], int n"
HOW = {"grid": "ceil_div(n, 256)", "block": 256}


def arrays(client: Any) -> tuple[Any, Any, Any]:
    return client.zeros(8, device=0), client.array(numpy.arange(8, dtype="f4"), device=0), client.array(numpy.ones(8, "f4"), device=0)


def test_kernels(k: kops.Client) -> None:
    add = k.kernel(ADD, "vector_add", SIGNATURE, **HOW)
    c, a, b = arrays(k)
    assert add(c, a, b, 8, exclusive=True) is c and c.get().tolist() == list(range(1, 9))
    timings = add(c, a, b, 8, exclusive=True, timing=True)
    assert timings.exclusive is True and timings.wall_us >= timings.gpu_us
    assert add(c, a, b, 8, timing=True).exclusive is None
    assert add[1, 256](c, a, b, 8, exclusive=True, timing=True).exclusive is True
    profile = add.profile(c, a, b, 8, exclusive=True, warmup=0, repeat=20)
    assert profile.timings.exclusive is True and len(profile.samples) == 20
    assert sum(profile.samples) <= profile.timings.wall_us
    profile = add.profile(c, a, b, 8, exclusive=True, repeat=5, until=1e-9, at_most=0.05)
    assert profile.timings.exclusive is True and len(profile.samples) > 5

    pending = add.submit(c, a, b, 8, exclusive=True, timing=True)
    pending.result()
    with pytest.raises(kops.BadArgument, match="blocking=False"):
        add(c, a, b, 8, exclusive=True, blocking=False)
    with k.sequence(), pytest.raises(kops.BadArgument, match="recorded"):
        add(c, a, b, 8, exclusive=True)
    with pytest.raises(kops.BadArgument, match="exclusive"):
        add(c, a, b, 8, exclusive=True, where="here")


def test_programs_and_sequences(k: kops.Client) -> None:
    add = k.kernel(ADD, "vector_add", SIGNATURE, **HOW)
    c, a, b = arrays(k)
    with k.sequence(exclusive=True, timing=True) as s:
        add(c, a, b, 8)
        k.square(c, out=b)
    assert s.timings.exclusive is True and b.get().tolist() == [(i + 1.0) ** 2 for i in range(8)]
    with k.program() as p:
        add(c, a, b, 8)
    assert p.run(exclusive=True, timing=True).exclusive is True and p.run(timing=True).exclusive is None
    assert p.run(exclusive=True) is None
    with pytest.raises(kops.BadArgument):
        p.run(exclusive=True, blocking=False)
