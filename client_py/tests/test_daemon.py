"""The client with the real daemon, where one is built: what the small one in fake_daemon.py cannot show."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import kops
import numpy
import pytest
from built import k, real
from which import compiled_only

__all__ = ["k", "real"]


def normal(*shape: int, dtype: str = "float32") -> numpy.ndarray:
    return numpy.random.default_rng().standard_normal(shape).astype(dtype)


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
        ("square", [()], {}, 1),
        ("gemm", [(31, 64), (31, 65)], {"trans_a": True}, 2 * 64 * 31 * 65),
        ("gemm", [(3, 2, 20, 30), (2, 30, 10)], {}, 2 * 6 * 20 * 30 * 10),
        ("gemm", [(5, 0), (0, 7)], {}, 0),
    ],
)
def test_stats_and_profile_count_alike(k: kops.Client, op: str, shapes: Any, attrs: dict[str, Any], operations: int) -> None:
    profile = k.profile(op, *(k.zeros(shape, dtype="f16") for shape in shapes), repeat=3, **attrs)
    (row,) = [row for row in k.stats(op, dtype="f16")["ops"] if row["shapes"] == [list(shape) for shape in profile.shapes]]
    assert (profile.bytes, profile.operations) == (2 * sum(math.prod(shape) for shape in profile.shapes), operations)
    assert (row["bytes"], row["operations"]) == (profile.bytes, operations)


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


@compiled_only
def test_cancel_says_what_happens(k: kops.Client) -> None:
    a = k.array(normal(3000 * 3000).reshape(3000, 3000))
    pending = k.submit("gemm", a, a)
    k.ping()
    assert pending.cancel()
    with pytest.raises(kops.Cancelled) as caught:
        pending.result()
    assert caught.value.ended is True
    ended = k.submit("square", a)
    ended.result()
    assert not ended.cancel()
