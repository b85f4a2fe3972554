"""Sequences and programs: what is recorded, what is sent, what comes back."""

from __future__ import annotations

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon
from which import compiled_only


def normal(*shape: int, dtype: str = "float32") -> numpy.ndarray:
    return numpy.random.default_rng(3).standard_normal(shape).astype(dtype)


def test_a_block_is_one_request(k: kops.Client, daemon: FakeDaemon) -> None:
    a, b = normal(4, 4), normal(4, 4)
    with k.sequence() as s:
        c = k.add(a, b)
        d = k.square(c)
        e = s.gemm(d, b, alpha=0.5)
        assert daemon.count("sequence") == 0
    assert daemon.count("run") == 0 and daemon.count("sequence") == 1
    assert numpy.allclose(c, a + b) and numpy.allclose(d, (a + b) ** 2) and numpy.allclose(e, 0.5 * (d @ b))
    assert s.results[0] is c and s.results[2] is e and s.timings is None
    (request,) = daemon.sent("sequence")
    assert [op["in"] for op in request["ops"]] == [[0, 1], [2], [3, 1]], "one tensor is named once"
    assert request["ops"][2]["attrs"] == {"alpha": 0.5} and request["timing"] is False


def test_steps_given_as_a_list(k: kops.Client) -> None:
    a, c = k.array(normal(3, 3)), k.empty((3, 3))
    results, timings = k.sequence([("add", a, 1.0, {"out": c}), ("gemm", c, a, {"trans_b": True})], timing=True)
    assert results[0] is c and numpy.allclose(results[1], (a + 1) @ a.T)
    assert isinstance(timings, kops.Timings) and timings.host_us == 10
    with pytest.raises(kops.WrongType, match="a step is"):
        k.sequence(["add"])


def test_ordinary_arrays_are_copied_back(k: kops.Client) -> None:
    a, out, last = normal(5), numpy.empty(5, "float32"), numpy.empty(5, "float32")
    with k.sequence():
        k.square(a, out=out)
        k.add(out, a, out=last)
        k.add(out, out, out=out)
    assert numpy.allclose(last, a * a + a) and numpy.allclose(out, 2 * a * a)


def test_nothing_is_sent_when_the_block_fails(k: kops.Client, daemon: FakeDaemon) -> None:
    with pytest.raises(ZeroDivisionError), k.sequence():
        c = k.square(normal(3))
        raise ZeroDivisionError
    with pytest.raises(kops.BadArgument, match="has not run"):
        c.sum()
    assert (k.square(numpy.full(3, 2, "float32")) == 4).all(), "calls are no longer recorded"
    with k.sequence():
        pass
    assert daemon.count("sequence") == 0


def test_only_the_recording_thread_records(k: kops.Client, daemon: FakeDaemon) -> None:
    a = k.array(normal(3))
    with k.sequence(), ThreadPoolExecutor(1) as thread:
        k.square(a)
        thread.submit(k.add, a, a).result()
        assert daemon.count("run") == 1
    assert daemon.count("run") == 1


def test_options_belong_to_the_whole(k: kops.Client, daemon: FakeDaemon) -> None:
    a = k.array(normal(3))
    with k.sequence(timing=True, warmup=1, repeat=4, priority="high", deadline_ms=1000) as s:
        k.square(a)
        for options in ({"timing": True}, {"device": 0}, {"deadline_ms": 1}, {"priority": "low"}):
            with pytest.raises(kops.BadArgument, match="whole"):
                k.square(a, **options)
    (request,) = daemon.sent("sequence")
    assert len(request["ops"]) == 1
    assert (request["warmup"], request["repeat"], request["priority"], request["deadline_ms"]) == (1, 4, "high", 1000)
    assert s.timings is not None and s.timings.median == 4


def test_a_daemon_without_sequences(daemon: FakeDaemon) -> None:
    daemon.hello["features"] = []
    with kops.connect(daemon.path) as k:
        for call in (
            lambda: k.sequence([("square", normal(3))]), lambda: k.square(normal(3), priority="high"), lambda: k.program().run(),
        ):  # fmt: skip
            with pytest.raises(kops.Unsupported):
                call()
        assert (k.square(numpy.ones(2, "float32"), priority="normal") == 1).all()
        with pytest.raises(kops.BadArgument, match="low, normal, high"):
            k.square(normal(3), priority="urgent")


def test_a_program_runs_again_and_again(k: kops.Client, daemon: FakeDaemon) -> None:
    a, b = k.array(normal(4)), k.array(normal(4))
    with k.program() as p:
        c = k.add(a, b)
        d = p.square(c)
    assert daemon.count("program") == 1 and daemon.count("run_program") == 0 and len(p) == 2
    assert p.run() is None and numpy.allclose(d, (a + b) ** 2)
    a[...] = 7
    timings = p.run(timing=True, repeat=3)
    assert isinstance(timings, kops.Timings) and len(timings.samples) == 3
    assert numpy.allclose(d, (7 + b) ** 2)
    assert daemon.count("program") == 1
    with pytest.raises(kops.BadArgument, match="complete"):
        p.square(a)


def test_a_program_on_other_arrays(k: kops.Client, daemon: FakeDaemon) -> None:
    a, b, x, y = (k.array(numpy.full((2, 3), i, "float32")) for i in (1, 2, 3, 4))
    with k.program() as p:
        c = k.add(a, b)
    p.run([(a, x), (c, y)])
    assert (y == 5).all() and daemon.sent("run_program")[0]["bind"][0]["index"] == 0
    p.run()
    assert (c == 3).all()
    for bound, error, why in (
        ((a, k.zeros((3, 2))), kops.ShapeMismatch, "bind"), ((a, k.zeros((3, 2)).T), kops.ShapeMismatch, "strides"),
        ((a, k.zeros((2, 3), "f64")), kops.DtypeMismatch, ""), ((x, a), kops.BadArgument, "no operand"),
    ):  # fmt: skip
        with pytest.raises(error, match=why):
            p.run([bound])
    assert daemon.count("run_program") == 2


def test_a_program_takes_constants_and_no_ordinary_arrays(k: kops.Client) -> None:
    a = k.array(normal(4))
    with k.program() as p:
        b = k.add(a, 1.5)
        with pytest.raises(kops.BadArgument, match=r"k\.array"):
            k.add(a, normal(4))
    gc.collect()
    k.square(normal(4))  # would take the memory of a constant that nobody kept
    p.run()
    assert numpy.allclose(b, a + 1.5)


@compiled_only
def test_a_program_outlives_its_connection(k: kops.Client, daemon: FakeDaemon) -> None:
    a = k.array(normal(4))
    with k.program() as p:
        b = k.square(a)
    daemon.hang_up()
    p.run()
    assert numpy.allclose(b, a * a) and daemon.count("program") == 2


def test_a_program_is_released(k: kops.Client, daemon: FakeDaemon) -> None:
    a = k.array(normal(4))
    for explicit in (True, False):
        with k.program() as p:
            k.square(a)
        assert len(daemon.peers[0].programs) == 1
        if explicit:
            p.release()
            p.release()
        del p
        gc.collect()
        k.ping()
        assert not daemon.peers[0].programs
    with k.program() as p:
        k.square(a)
    daemon.peers[0].programs.clear()
    with pytest.raises(kops.UnknownProgram) as caught:
        p.run()
    assert isinstance(caught.value, LookupError)
    with pytest.raises(kops.BadArgument, match="no op"), k.program():
        pass


async def test_asyncio(daemon: FakeDaemon) -> None:
    async with kops.connect_async(daemon.path, timeout=20) as k:
        a = k.array(normal(4))
        async with k.sequence(timing=True) as s:
            b = s.square(a)
            c = s.add(b, a)
        assert numpy.allclose(c, a * a + a) and s.timings is not None
        async with k.program() as p:
            d = p.add(a, c)
        assert await p.run() is None
        assert numpy.allclose(d, a + c)
        assert await p.run([(a, c)], timing=True) is not None
        assert numpy.allclose(d, c + c)
        p.release()
        await k.ping()
        assert not daemon.peers[0].programs


# What a recorded call returns has no content yet, and is an array like any other once it has

READS = {
    "add": lambda c: c + 1,
    "in place": lambda c: c.__iadd__(1),
    "sum": lambda c: c.sum(),
    "concatenate": lambda c: numpy.concatenate([c, c]),
    "tolist": lambda c: c.tolist(),
    "a number": lambda c: c[0, 0],
    "of a view": lambda c: c[1:].T.mean(),
    "iterate": lambda c: list(c),
    "compare": lambda c: c == 0,
    "bool": lambda c: bool(c[0, :1]),
    "copy": lambda c: c.copy(),
    "deepcopy": lambda c: copy.deepcopy(c),
    "pickle": lambda c: pickle.dumps(c),
    "astype": lambda c: c.astype("f8"),
    "out": lambda c: numpy.add(1, 1, out=c[0, :1]),
    "mask": lambda c: c[c > 0],
}


@pytest.fixture
def a(k: kops.Client) -> Any:
    return k.array([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reading_too_early_is_refused(k: kops.Client, a: Any, read: Any) -> None:
    with k.sequence():
        c = k.add(a, a)
        with pytest.raises(kops.BadArgument, match="written when its `with` block ends"):
            read(c)
    read(c)


def test_the_text_says_so(k: kops.Client, a: Any) -> None:
    with k.sequence() as s:
        c = k.add(a, a)
        text = "<kops: 2×2 float32, written when its `with` block ends>"
        assert repr(c) == str(c) == f"{c}" == text and text in repr([c])
        assert c[0, 0:1].shape == (1,) and "written" in str(c.T)
    assert str(c) == "[[2. 4.]\n [6. 8.]]" and repr(c) == "array([[2., 4.],\n       [6., 8.]], dtype=float32)"
    assert s.results[0] is c


def test_what_is_seen_from_outside_works_at_once(k: kops.Client, a: Any) -> None:
    with k.sequence():
        c = k.add(a, a)
        assert c.shape == (2, 2) and c.dtype == "float32" and len(c) == 2 and c.nbytes == 16 and c.flags.c_contiguous
        assert numpy.shape(c) == (2, 2) and isinstance(c, numpy.ndarray) and numpy.shares_memory(c, c[1:])
        d = k.gemm(c.T, c[:, ::-1][:, ::-1])
    assert numpy.array_equal(d, (2 * a).T @ (2 * a))


def test_afterwards_it_is_an_array(k: kops.Client, a: Any) -> None:
    with k.sequence():
        c = k.square(a)
    assert type(c + 1) is numpy.ndarray and type(c.copy()) is numpy.ndarray and type(numpy.sort(c)) is numpy.ndarray
    assert c.sum() == 30 and c.max() == 16 and c[1, 1] == 16 and list(c[0]) == [1, 4] and (c @ c).shape == (2, 2)
    assert type(pickle.loads(pickle.dumps(c))) is numpy.ndarray
    c += 1
    assert c.tolist() == [[2, 5], [10, 17]]
    assert k.square(c[0]).tolist() == [4, 25]


def test_given_outputs_are_left_as_they_are(k: kops.Client, a: Any) -> None:
    out = k.zeros((2, 2))
    with k.sequence():
        assert k.square(a, out=out) is out and type(out) is numpy.ndarray and out.sum() == 0
    assert out.sum() == 30
    (c,) = k.sequence([("square", a)])
    assert type(c) is numpy.ndarray and c.sum() == 30


def test_a_program(k: kops.Client, a: Any) -> None:
    with k.program() as p:
        c = k.square(a)
    assert str(c) == "<kops: 2×2 float32, written with its first run()>"
    with pytest.raises(kops.BadArgument, match=r"first run\(\)"):
        c.sum()
    p.run()
    assert c.sum() == 30
    p.run([(a, k.array([[2.0, 2.0], [2.0, 2.0]]))])
    assert c.tolist() == [[4, 4], [4, 4]]
