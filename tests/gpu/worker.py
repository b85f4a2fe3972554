"""The other processes of the GPU tests: `worker.py ROLE SOCKET [ARGUMENT…]`.

A worker prints one line of JSON a step and waits for a line on its standard input where it says so.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client_py"), str(ROOT / "tests"), str(Path(__file__).parent)]


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def wait() -> str:
    return sys.stdin.readline().strip()


def connect(path: str) -> Any:
    """A client. With KOPS_TEST_DOMAIN it has launched a kernel of its own, so that all its work runs in its user's executor."""
    import kops

    client = kops.connect(path)
    if "KOPS_TEST_DOMAIN" in os.environ:
        import numpy
        from support.kernels import OTHERS

        double = client.kernel(OTHERS, "custom_kernel", "out float* out[n], const float* in[n], int n", 1, 32)
        one, out = client.array(numpy.ones(32, numpy.float32)), client.zeros(32)
        double(out, one, 32, blocking=True)
        assert (numpy.asarray(out) == 2).all()
    return client


def checker(path: str, seed: str, rounds: str) -> None:
    """Random ops on random shapes, every result checked on the GPU."""
    import torch
    from check import assert_add, assert_gemm, assert_square

    torch.manual_seed(int(seed))
    generator = torch.Generator().manual_seed(int(seed))

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    with connect(path) as k:
        say(ready=True)
        wait()
        for round_ in range(int(rounds)):
            dtype = dtypes[round_ % 4]
            n = number(1, 300_000)
            a, b = (torch.randn(n, device="cuda").to(dtype) for _ in range(2))
            assert_add(k.add(a, b), a, b)
            assert_square(k.square(a), a)
            m, j, p = number(1, 400), number(1, 400), number(1, 400)
            x, y = torch.randn(m, j, device="cuda").to(dtype), torch.randn(j, p, device="cuda").to(dtype)
            assert_gemm(k.gemm(x, y), x, y)
    say(done=True)


def exporter(_path: str, n_bytes: str) -> None:
    """Shares device memory filled with ones; frees it, or ends, when told to."""
    from cuda_driver import Driver

    driver = Driver()

    def made_of(word: int) -> int:
        pointer = driver.alloc(int(n_bytes))
        driver.call("cuMemsetD32_v2", ctypes.c_uint64(pointer), ctypes.c_uint32(word), ctypes.c_size_t(int(n_bytes) // 4))
        driver.synchronize()
        return pointer

    pointer = made_of(0x3F800000)
    exported = driver.export(pointer)
    say(**{**exported, "handle": exported["handle"].hex()}, offset=0)
    if wait() == "free":
        driver.free(pointer)
        driver.synchronize()
        made_of(0x7FC00000)  # perhaps at the same place
        say(freed=True)
        wait()


def victim(path: str, side: str) -> None:
    """Starts work that would take minutes, and waits to be killed."""
    from cuda_driver import Driver
    from support.raw import Connection, tensor

    n = int(side)
    driver = Driver()
    pointer = driver.alloc(3 * n * n * 4)
    with Connection(path) as connection:
        buffer = connection.call("register", driver.export(pointer))["buffer"]
        a, b, out = (tensor(buffer, [n, n], offset=i * n * n * 4) for i in range(3))
        connection.run("square", [a], [out])
        connection.request("run", {"op": "gemm", "in": [a, b], "out": [out], "repeat": 10_000})
        connection.call("ping")  # answered after the run was taken
        say(ready=True, pid=os.getpid())
        wait()


def staging(path: str) -> None:
    """NumPy arrays in shared memory, in a process that has no CUDA context and could not make one."""
    import numpy

    with connect(path) as k:
        generator = numpy.random.default_rng(1)
        a, b = (k.array(generator.random((640, 320), numpy.float32)) for _ in range(2))
        gpu = next(device for device in k.devices if device.backend == "cuda")
        total, timings = k.add(a, b, device=gpu, timing=True)
        numpy.testing.assert_array_equal(numpy.asarray(total), numpy.asarray(a) + numpy.asarray(b))
        product = numpy.asarray(k.gemm(a, b, trans_b=True, device=gpu)).astype(float)
        reference = numpy.asarray(a).astype(float) @ numpy.asarray(b).astype(float).T
        numpy.testing.assert_allclose(product, reference, rtol=1e-4)
        assert min(timings.gpu_us, timings.h2d_us, timings.d2h_us) > 0, "copies are timed"
        assert "libcuda" not in Path("/proc/self/maps").read_text(encoding="utf-8"), "the client loads no driver without need"
    say(done=True)


def cpu_tensors(path: str) -> None:
    """Ordinary CPU tensors, which calls copy: says how many threads torch has started for it, and whether autograd finds out that a
    tensor that it needs has changed."""
    import numpy
    import torch

    torch.set_num_threads(4)
    a, out = (torch.from_numpy(numpy.random.default_rng(1).standard_normal(1 << 19).astype("f4")) for _ in range(2))
    with connect(path) as k:
        k.add(a[:8], a[:8], out=out[:8])
        threads = len(os.listdir("/proc/self/task"))
        k.add(a, a, out=out)
        started = len(os.listdir("/proc/self/task")) - threads
        assert bool((out.numpy() == a.numpy() * 2).all())
        k.add(a[::2], a[1::2], out=out[::2])
        assert bool((out.numpy()[::2] == a.numpy()[::2] + a.numpy()[1::2]).all())
        weights = torch.ones(8, requires_grad=True)
        factor = torch.ones(8)
        product = (weights * factor).sum()
        k.square(a[:8], out=factor)
        try:
            product.backward()
            noticed = False
        except RuntimeError as error:
            noticed = "modified by an inplace operation" in str(error)
        say(started=started, noticed=noticed)


def allocator(path: str) -> None:
    """Tries memory of the allocator that the environment sets; says what the client answers, and that it goes on."""
    import kops
    import torch

    a = torch.ones(1 << 20, device="cuda")
    with connect(path) as k:
        try:
            k.add(a, a)
        except kops.KopsError as error:
            say(code=error.code, message=str(error))
        else:
            say(code="ok", message="")
        k.ping()
        say(alive=True)


def expandable(path: str) -> None:
    """Tensors of expandable segments: across many chunks, in part, in place, and where memory was mapped anew."""
    import torch

    with connect(path) as k:
        k.square(torch.ones(10, device="cuda"))
        for size in (1, 1000, 3 << 20, 120 << 20):  # f32; the last are 480 MiB: more chunks than a message carries
            a = torch.arange(size, device="cuda", dtype=torch.float32) % 1000
            expected = a * a
            assert torch.equal(k.square(a), expected), size
            part = a[size // 3 : size // 2 + 1]
            assert torch.equal(k.square(part), expected[size // 3 : size // 2 + 1]), size
            k.square(a, out=a)
            torch.cuda.synchronize()
            assert torch.equal(a, expected), size
            del a, expected, part
        # Other physical memory at addresses that were registered before.
        for turn in range(6):
            a = torch.full(((40 << 20) + turn,), float(turn), device="cuda")
            got = k.square(a)
            assert bool((got == turn * turn).all()), turn
            del a, got
            torch.cuda.empty_cache()
    say(done=True)


def remapped(path: str) -> None:
    """Virtual memory by hand: the id of a chunk tells that other memory is mapped at its address."""
    from cuda_driver import Array, Driver
    from kops._memory.exports import allocations, chunk_id

    driver = Driver()
    size = 2 << 20
    address = driver.vmm_reserve(2 * size)
    ids = []
    with connect(path) as k:
        for turn in range(4):
            for at in (address, address + size):
                driver.map_new(at, size)
            driver.write(address + size - 400, ctypes.string_at((ctypes.c_float * 200)(*[turn + 2.0] * 200), 800))
            ids.append([chunk_id(allocations.driver, at) for at in (address, address + size)])
            a = Array(address + size - 400, 200)
            k.square(a, out=a)
            driver.synchronize()
            got = (ctypes.c_float * 200).from_buffer_copy(driver.read(address + size - 400, 800))
            assert all(x == (turn + 2.0) ** 2 for x in got), (turn, got[0])
            for at in (address, address + size):
                driver.call("cuMemUnmap", ctypes.c_uint64(at), ctypes.c_size_t(size))
    seen = [one for turn in ids for one in turn]
    assert all(seen) and len(set(seen)) == len(seen), ids
    say(done=True)


def pooled(path: str) -> None:
    """Memory of an exportable pool, twice, and of one that is not."""
    import kops
    from cuda_driver import Array, Driver

    driver = Driver()
    pool = driver.pool_create()
    with connect(path) as k:
        for turn in range(3):
            address = driver.alloc_from(pool, 4 << 20)
            driver.write(address, ctypes.string_at((ctypes.c_float * 100)(*[turn + 3.0] * 100), 400))
            a = Array(address, 100)
            k.square(a, out=a)
            driver.synchronize()
            got = (ctypes.c_float * 100).from_buffer_copy(driver.read(address, 400))
            assert all(x == (turn + 3.0) ** 2 for x in got), (turn, got[0])
        other = driver.alloc_from(driver.pool_create(exportable=False), 4096)
        a = Array(other, 100)
        try:
            k.square(a, out=a)
        except kops.KopsError as error:
            assert error.code == "not_exportable" and "pool" in str(error), error
        else:
            raise AssertionError("memory of a pool that is not exportable")
        k.ping()
    say(done=True)


if __name__ == "__main__":
    roles = {f.__name__: f for f in (checker, exporter, victim, staging, cpu_tensors, allocator, expandable, remapped, pooled)}
    roles[sys.argv[1]](*sys.argv[2:])
