"""The client with the real daemon, where one is built: what the small one in fake_daemon.py cannot show."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from test_client import press_ctrl_c, wait_for
from test_forks import in_child

ROOT = Path(__file__).resolve().parents[2]
BUILD = os.environ.get("KOPS_BUILD")
if not (ROOT / "tests" / "support").is_dir() or not ("KOPSD" in os.environ or (BUILD and Path(BUILD, "bin/kopsd").exists())):
    pytest.skip("no daemon: name it in KOPSD, or its build folder in KOPS_BUILD", allow_module_level=True)
sys.path.insert(0, str(ROOT / "tests"))
from support import backends, chrome_trace  # noqa: E402, F401
from support.daemon import Daemon  # noqa: E402


@pytest.fixture(scope="module")
def real() -> Iterator[Daemon]:
    with Daemon(config=backends.config(backends.HOST)) as running:
        yield running


@pytest.fixture
def k(real: Daemon) -> Iterator[kops.Client]:
    with kops.connect(real.socket_path, timeout=120) as client:
        yield client


def normal(*shape: int, dtype: str = "float32") -> numpy.ndarray:
    return numpy.random.default_rng().standard_normal(shape).astype(dtype)


def test_ops(k: kops.Client) -> None:
    for dtype in ("float32", "float64", "float16"):
        a, b = normal(1000, 33, dtype=dtype), normal(33, dtype=dtype)
        assert numpy.array_equal(k.add(a, b), a + b)
        assert numpy.array_equal(k.square(a[::-3, 5:].T), (a * a)[::-3, 5:].T)
    a, b = normal(100, 17, dtype="float64"), normal(17, 33, dtype="float64")
    assert numpy.allclose(k.gemm(a, b), a @ b)
    assert numpy.allclose(k.gemm(a.T, k.array(b.T), trans_a=True, trans_b=True, alpha=2), 2 * (a @ b))
    assert k.square([[1, 2, 3], [4, 5, 6]]).tolist() == [[1, 4, 9], [16, 25, 36]]
    assert k.add(numpy.empty((0, 3), "float32"), 1.0).shape == (0, 3)


def test_gemm_of_16_bits_gives_f32(k: kops.Client) -> None:
    a, b = normal(70, 300).astype("f2"), normal(300, 50).astype("f2")
    exact = a.astype("f8") @ b.astype("f8")
    for given in ("f32", "float32", numpy.float32, numpy.dtype("f4")):
        c = k.gemm(a, b, out_dtype=given)
        assert c.dtype == numpy.float32 and numpy.allclose(c, exact, rtol=1e-5, atol=1e-4)
    out = numpy.full((70, 50), numpy.nan, "f4")
    assert k.gemm(a, b, out=out) is out and numpy.allclose(out, exact, rtol=1e-5, atol=1e-4)
    assert k.gemm(a, b).dtype == k.gemm(a, b, out_dtype="f16").dtype == k.gemm(a, b, out_dtype=None).dtype == numpy.float16
    assert k.gemm(a[0], b, out_dtype="f32").shape == (50,)
    assert k.run("gemm", a, b, out_dtype="f32").dtype == k.submit("gemm", a, b, out_dtype="f32").result().dtype == numpy.float32
    assert k.profile("gemm", a, b, out_dtype="f32", repeat=3).bytes == 2 * (70 * 300 + 300 * 50) + 4 * 70 * 50
    with k.sequence() as s:
        recorded = s.gemm(a, b, out_dtype="f32")
    assert numpy.allclose(recorded, exact, rtol=1e-5, atol=1e-4)
    assert k.ops["gemm"].out_dtypes["bf16"] == ("f32", "bf16")
    with pytest.raises(kops.DtypeMismatch, match="gemm of float16 gives float16 or float32, not float64"):
        k.gemm(a, b, out_dtype="f64")
    with pytest.raises(kops.DtypeMismatch, match="beside inputs of f16 it may be f32 or f16"):
        k.gemm(a, b, out=numpy.empty((70, 50)))
    with pytest.raises(kops.BadArgument, match="out= has a dtype of its own"):
        k.gemm(a, b, out=out, out_dtype="f32")
    with pytest.raises(kops.UnknownKey):
        k.run("add", a, a, out_dtype="f32")


def test_a_calls_time_has_names(k: kops.Client) -> None:
    """The parts, and the ways there and back, are all of the call by the caller's own clock."""
    a = k.array(normal(100_000))
    for timed in (lambda: k.add(a, a, timing=True)[1], lambda: k.submit("add", a, a, timing=True).result()[1]):
        before = time.monotonic_ns()
        t = timed()
        after = time.monotonic_ns()
        way = ["sent", "received", "submitted", "started", "ended", "replied", "seen"]
        assert list(t.times) == way and before <= t.times["sent"] and t.times["seen"] <= after
        times = list(t.times.values())
        assert times == sorted(times)
        parts = [t.send_us, t.recv_to_start_us, t.wait_us, t.host_us, t.end_us, t.reply_us]
        assert sum(parts) == pytest.approx((t.times["seen"] - t.times["sent"]) / 1e3, abs=1)
        assert t.times["ended"] - t.times["started"] == pytest.approx(1e3 * t.host_us, abs=1000)
        assert str(t).startswith("send ") and " reply " in str(t)
    strange = replace(t, sent_ns=t.received_ns + 1)  # a daemon with another CLOCK_MONOTONIC
    assert strange.send_us is strange.reply_us is None and "sent" not in strange.times and "received" in strange.times
    assert kops.Timings().times == {}


def test_timings_and_profile(k: kops.Client) -> None:
    a = k.array(normal(1 << 16))
    _, timings = k.add(a, a, timing=True)
    assert timings.host_us is not None and timings.total_us is not None and timings.total_us >= timings.host_us > 0
    assert timings.wall_us is not None and timings.host_us <= timings.wall_us <= timings.total_us

    assert timings.timer == "host" and k.add(a, a, timing=False) is not None
    profile = k.profile("add", a, a, warmup=1, repeat=9)
    assert len(profile.samples) == 9 and profile.min == min(profile.samples) and profile.device == "host"
    assert profile.variant in k.ops["add"].variants["host"]
    stats = k.stats("add")
    assert stats.keys() == {
        "uptime_s", "counters", "ops", "mappings", "mappings_all", "kernels", "executors", "executor_counts",
    }  # fmt: skip
    assert any(row["op"] == "add" for row in stats["ops"])
    for row in stats["ops"]:
        assert set(row) - {"bytes", "operations", "queue_us", "exec_us", "total_us"} == kops.OpStats.__required_keys__
        assert row["total_us"].keys() == kops.Spread.__annotations__.keys() if "total_us" in row else row["errors"]
    for mapping in stats["mappings"]:
        assert set(mapping) - {"device"} == kops.MappingStats.__required_keys__
    assert stats["executors"] == [] and stats["executor_counts"]["started"] == 0


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "operations"),
    [
        ("add", [(33, 1, 65), (7, 1)], {}, 33 * 7 * 65),
        ("add", [(4, 0, 3), (3,)], {}, 0),
        ("square", [()], {}, 1),
        ("gemm", [(31, 64), (31, 65)], {"trans_a": True}, 2 * 64 * 31 * 65),
        ("gemm", [(64, 31), (65, 31)], {"trans_b": True, "beta": 0.0}, 2 * 64 * 31 * 65),
        ("gemm", [(3, 2, 20, 30), (2, 30, 10)], {}, 2 * 6 * 20 * 30 * 10),
        ("gemm", [(5, 0), (0, 7)], {}, 0),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_stats_and_profile_count_alike(
    k: kops.Client, op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], operations: int, dtype: str
) -> None:
    profile = k.profile(op, *(k.zeros(shape, dtype=dtype) for shape in shapes), repeat=3, **attrs)
    (row,) = [row for row in k.stats(op, dtype=dtype)["ops"] if row["shapes"] == [list(shape) for shape in profile.shapes]]
    elements = sum(math.prod(shape) for shape in profile.shapes)
    assert (profile.bytes, profile.operations) == (elements * {"f32": 4, "f16": 2}[dtype], operations)
    assert (row["bytes"], row["operations"]) == (profile.bytes, operations)


def test_stats_are_printed_as_a_table(k: kops.Client) -> None:
    for n in (11, 12, 13):
        k.square(k.zeros(n))
    stats = k.stats("square")
    lines = str(stats).splitlines()
    assert lines[0].startswith("up ") and lines[1] == stats.table().splitlines()[0]
    assert len(stats.table(limit=1).splitlines()) == 3 and stats.table(ops="add") == ""
    (_, line) = stats.table(group_by="op").splitlines()
    assert line.split()[:2] == ["square", str(sum(row["count"] for row in stats["ops"]))]


def test_refusals_leave_the_connection_usable(k: kops.Client) -> None:
    a = k.array(normal(100))
    with pytest.raises(kops.Overlap):
        k.add(a[:-1], a[:-1], out=a[1:])
    with pytest.raises(kops.ShapeMismatch):
        k.square(a, out=k.empty(5))
    with pytest.raises(kops.UnknownDevice):
        k.square(a, device="GPU-none")
    with pytest.raises(kops.InvalidArgument):
        k.square(a, variant="none")
    with pytest.raises(kops.UnknownOp):
        k.run("none", a, out=k.empty(100))
    with pytest.raises(kops.UnknownKey):
        k.run("square", a, out=k.empty(100), color=1)
    assert numpy.array_equal(k.square(a), a * a)


def test_a_pipeline_longer_than_every_limit(k: kops.Client) -> None:
    a = k.array(numpy.zeros(16, "float32"))
    one = k.array(numpy.ones(16, "float32"))
    pending = [k.submit("add", a, one, out=a) for _ in range(3000)]
    for each in pending:
        each.result()
    assert (a == 3000).all()


def test_ctrl_c_stops_a_long_run(k: kops.Client, real: Daemon) -> None:
    """Stops it between repeats: all of them would take much longer than the test."""
    a = k.array(normal(1 << 22))
    out = k.empty(a.shape)
    with kops.connect(real.socket_path) as watch:
        cancelled = watch.stats()["counters"]["jobs_cancelled"]

        def press() -> None:
            jobs = watch.stats()["counters"]["jobs"]
            pressing.set()
            wait_for(lambda: watch.stats()["counters"]["jobs"] > jobs)
            press_ctrl_c(noticed)

        pressing, noticed = threading.Event(), threading.Event()
        presser = threading.Thread(target=press)
        presser.start()
        pressing.wait()
        with pytest.raises(KeyboardInterrupt):
            k.profile("square", a, out=out, repeat=10000, timeout=None)
        noticed.set()
        presser.join()
        wait_for(lambda: watch.stats()["counters"]["jobs_cancelled"] > cancelled)
    assert numpy.array_equal(k.square(a), a * a)


def test_a_timeout_cancels(k: kops.Client) -> None:
    a = k.array(normal(1 << 22))
    with pytest.raises(kops.Timeout):
        k.profile("square", a, repeat=10000, timeout=0.1)
    with pytest.raises(kops.DeadlineExceeded):
        k.profile("square", a, repeat=10000, deadline_ms=50)
    assert k.ping({"a": 1}) == {"a": 1}


def test_a_deadline_is_kept_whatever_runs(k: kops.Client) -> None:
    """And no array gets the memory that the daemon may still write the lost result to."""
    a = k.array(normal(3000 * 3000).reshape(3000, 3000))
    for _ in range(3):
        with pytest.raises(kops.DeadlineExceeded, match="goes on") as caught:
            k.gemm(a, a, deadline_ms=20)
        assert caught.value.ended is False
        others = [k.zeros(a.shape) for _ in range(2)]
        k.trim()
        assert not any(other.any() for other in others), "it was written to another array"


def test_cancel_says_what_happens(k: kops.Client) -> None:
    a = k.array(normal(3000 * 3000).reshape(3000, 3000))
    for _ in range(3):
        pending = k.submit("gemm", a, a)
        k.ping()
        assert pending.cancel()
        with pytest.raises(kops.Cancelled) as caught:
            pending.result()
        assert caught.value.ended is True
    ended = k.submit("square", a)
    ended.result()
    assert not ended.cancel()


def test_deadlines_and_cancelling_in_asyncio(real: Daemon) -> None:
    async def main() -> None:
        async with kops.connect_async(real.socket_path) as k:
            a = k.array(normal(3000 * 3000).reshape(3000, 3000))
            with pytest.raises(kops.DeadlineExceeded) as caught:
                await k.gemm(a, a, deadline_ms=20)
            assert caught.value.ended is False
            task = asyncio.create_task(k.gemm(a, a))
            await k.ping()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await k.ping() == {}

    asyncio.run(main())


def test_memory_goes_back(real: Daemon) -> None:
    size = 40_000_000  # larger than any other test's

    with kops.connect(real.socket_path) as watch, kops.connect(real.socket_path) as k:

        def mapped() -> int:
            return sum(row["size"] >= size for row in watch.stats()["mappings"])

        big = k.zeros(size // 4)
        k.square(big, out=big)
        assert mapped() == 1
        del big
        k.trim()
        k.ping()
        wait_for(lambda: mapped() == 0)


def test_a_daemon_that_is_killed_and_started_again() -> None:
    config = backends.config(backends.HOST)
    with Daemon(config=config) as first, kops.connect(first.socket_path, timeout=120, reconnect_timeout=0) as k:
        a = k.array(normal(1000))
        k.square(a)
        os.kill(first.pid, signal.SIGKILL)
        first.process.wait()  # type: ignore[union-attr]
        with pytest.raises(kops.ConnectionLost):
            k.square(a)
        with pytest.raises(kops.ConnectFailed):
            k.square(a)
        first.start()
        assert numpy.array_equal(k.square(a), a * a)


def test_forked_workers(k: kops.Client) -> None:
    """As a DataLoader's: they inherit the client and memory of the parent."""
    a = k.array(normal(5000))
    k.square(a)
    for _ in range(3):
        in_child(lambda: numpy.array_equal(k.square(a), a * a) and numpy.array_equal(k.add(a, 1.0), a + 1))
    assert numpy.array_equal(k.square(a), a * a)


def test_streams_and_threads(k: kops.Client) -> None:
    errors: list[BaseException] = []

    def work(stream: int) -> None:
        try:
            for i in range(50):
                a = normal(100 + i)
                assert numpy.array_equal(k.square(a, stream=stream), a * a)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_asyncio(real: Daemon) -> None:
    import asyncio

    async def main() -> None:
        async with kops.connect_async(real.socket_path) as k:
            arrays = [k.array(normal(1000)) for _ in range(500)]
            results: list[Any] = await asyncio.gather(*(k.square(a) for a in arrays))
            assert all(numpy.array_equal(r, a * a) for r, a in zip(results, arrays, strict=True))

    asyncio.run(main())


@pytest.fixture
def device_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[kops.Client, Any]]:
    """A client of a daemon on the stand-in driver, and that driver in this process."""
    why_not = backends.missing(backends.STANDIN)
    if why_not:
        pytest.skip(why_not)
    import standin_cuda

    control = standin_cuda.Control()
    for name, value in {"KOPS_CUDA_DRIVER": str(backends.standin_driver()), **control.env}.items():
        monkeypatch.setenv(name, value)
    driver = standin_cuda.Driver()
    with Daemon(config=backends.config(backends.STANDIN), env=control.env) as running:
        with kops.connect(running.socket_path, timeout=120) as k:
            yield k, driver
    assert not control.misuses()


def test_device_memory(device_memory: tuple[kops.Client, Any]) -> None:
    k, driver = device_memory
    a, b = normal(300, 200), normal(300, 200)
    x, y = driver.array(a), driver.array(b)
    for _ in range(2):
        c = k.add(x, y)
        assert type(c) is type(x) and numpy.array_equal(c.numpy(), a + b)
    assert numpy.array_equal(k.square(x.T[10:20, ::3]).numpy(), (a * a).T[10:20, ::3])
    assert numpy.allclose(k.gemm(x, y, trans_b=True).numpy(), a @ b.T, atol=1e-3)
    _, timings = k.square(x, out=x, timing=True)
    assert timings.gpu_us is not None and timings.device == driver.uuid()
    assert numpy.array_equal(x.numpy(), a * a)


def test_memory_that_is_freed_and_allocated_again(device_memory: tuple[kops.Client, Any]) -> None:
    """Address and handle repeat; results must be those of the new memory."""
    k, driver = device_memory
    for i in range(20):
        x = driver.array(numpy.full(1000, i, "float32"))
        assert (k.square(x).numpy() == i * i).all()
        x.free()


def test_host_memory_on_the_gpu(device_memory: tuple[kops.Client, Any]) -> None:
    k, driver = device_memory
    a = normal(1000)
    result, timings = k.square(a, device=driver.uuid(), timing=True)
    assert numpy.array_equal(result, a * a) and timings.h2d_us is not None and timings.d2h_us is not None
    gpu = next(device for device in k.devices if device.backend == "cuda")
    assert numpy.array_equal(k.add(k.array(a), a, device=gpu), a + a)
