"""Tuning: what is measured to be the fastest runs from then on, for everybody, also in the next daemon."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from domains import Plain
from gpu_machine import Machine, only_with_the_standin
from support import memfd, proc, raw
from support.daemon import ROOT, build_folder
from support.raw import tensor
from support.users import STRANGER, as_root, connect

FAKE = build_folder() / "lib/libcuda_fake_blaslt.so"
pytestmark = [only_with_the_standin, pytest.mark.skipif(not FAKE.exists(), reason="there is no stand-in for cuBLASLt")]

M, N, K = 16, 24, 40
OWN = ("tiled", "skinny", "small")  # which of them is the fastest on a CPU is chance


def layouts(dtype: str = "f32", m: int = M, n: int = N, k: int = K, **more: Any) -> dict[str, Any]:
    def one(*shape: int) -> dict[str, Any]:
        return {"shape": list(shape), "dtype": dtype}

    return {"op": "gemm", "in": [one(m, k), one(k, n)], "out": [one(m, n)], **more}


class Tuned:
    """A daemon whose cuBLASLt is a slow one, and what a client does with it."""

    def __init__(self, folder: Path, mode: str = "slow", **env: str) -> None:
        self.folder = folder
        self.machine = Machine(
            env={
                "KOPSD_CUDA_BLASLT": str(FAKE),
                "KOPS_STANDIN_BLASLT": mode,
                "KOPSD_CACHE_DIRECTORY": str(folder / "cache"),
                "KOPSD_TUNING_IDLE_RUNS": "0",
                "KOPSD_TUNING_BUDGET_MS": "60000",  # a machine with other work is slow
                **env,
            },
        )

    def __enter__(self) -> Tuned:
        self.machine.daemon.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.machine.daemon.__exit__(*error)

    def connect(self) -> raw.Connection:
        return self.machine.daemon.connect()

    def tune(self, connection: raw.Connection, **more: Any) -> dict[str, Any]:
        return connection.call("tune", layouts(device=self.machine.gpu, **more))

    def tune_some(self, connection: raw.Connection) -> dict[str, Any]:
        """Asks until some candidates were tried: a busy machine may have no time for one, or for their list."""
        while not (reply := self.tune(connection))["tried"]:
            pass
        return reply

    def run(self, connection: raw.Connection, **attrs: Any) -> str:
        """Multiplies, sees that the product is right, and returns the variant that ran."""
        rng = np.random.default_rng()
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((M, K), (K, N)))
        shared = memfd.Shared(4 * (M * K + K * N + M * N))
        numbers = shared.view(np.float32, M * K + K * N + M * N)
        numbers[:] = np.concatenate([a.ravel(), b.ravel(), np.full(M * N, np.nan)])
        buffer = connection.register(shared)
        places = [([M, K], 0), ([K, N], M * K), ([M, N], M * K + K * N)]
        views = [tensor(buffer, shape, offset=4 * at) for shape, at in places]
        reply = connection.run("gemm", views[:2], views[2:], device=self.machine.gpu, attrs=attrs)
        np.testing.assert_allclose(numbers[-M * N :].reshape(M, N), a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)
        connection.call("release", {"buffer": buffer})
        return str(reply["variant"])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Tuned]]:
    def make(mode: str = "slow", **env: str) -> Tuned:
        return Tuned(tmp_path, mode, **env)

    yield make


def named(reply: dict[str, Any], which: str) -> dict[str, Any]:
    return reply["candidates"][reply[which]]  # type: ignore[no-any-return]


def test_what_is_fastest_runs_for_everybody(start: Callable[..., Tuned]) -> None:
    with start() as d, d.connect() as one, d.connect() as other:
        assert "tune" in one.call("hello")["features"]
        assert d.run(one) == "cublaslt"
        reply = d.tune(one)
        assert named(reply, "usual")["variant"] == named(reply, "before")["variant"] == "cublaslt"
        assert named(reply, "best")["variant"] in OWN
        assert named(reply, "best")["us"] < named(reply, "usual")["us"]
        assert reply["device"] == d.machine.gpu and "16x24x40" in reply["problem"] and reply["noise"] >= 0
        assert d.run(one) == d.run(other) == named(reply, "best")["variant"]
        (row,) = other.call("tuning")["choices"]
        assert row["variant"] in OWN and row["machine"] == reply["machine"] and row["us"] < row["usual_us"]


def test_a_program_that_has_run_before(start: Callable[..., Tuned]) -> None:
    """It was captured with what was the fastest then."""
    rng = np.random.default_rng()
    with start() as d, d.connect() as one:
        memory = Plain(one, d.machine.gpu, M * K + K * N + M * N)
        a, b, out = memory.data[: M * K], memory.data[M * K : -M * N], memory.data[-M * N :]
        places = [([M, K], 0), ([K, N], M * K), ([M, N], M * K + K * N)]
        tensors = [tensor(memory.buffer, shape, offset=4 * at) for shape, at in places]
        gemm = {"op": "gemm", "in": [0, 1], "out": [2]}
        program = one.call("program", {"device": d.machine.gpu, "tensors": tensors, "ops": [gemm, gemm]})["program"]

        def counts() -> Counter[str]:
            return Counter({row["variant"]: row["count"] for row in one.call("stats", {"op": "gemm"})["ops"]})

        def run() -> set[str]:
            before = counts()
            a[:], b[:], out[:] = rng.standard_normal(M * K), rng.standard_normal(K * N), np.nan
            one.call("run_program", {"program": program})
            expected = a.reshape(M, K).astype(np.float64) @ b.reshape(K, N)
            np.testing.assert_allclose(out.reshape(M, N), expected, rtol=1e-5, atol=1e-5)
            assert (ran := counts() - before).total() == 2
            return set(ran)

        assert run() == run() == {"cublaslt"}
        best = named(d.tune(one), "best")["variant"]
        assert best in OWN and run() == run() == {best}
        one.call("tuning", {"clear": True})
        proc.eventually(lambda: run() == {"cublaslt"}, "the choice is forgotten")


def test_the_next_daemon_knows(start: Callable[..., Tuned]) -> None:
    """What was measured with one version of the library says nothing of another; both stay in the file."""
    with start() as d, d.connect() as one:
        d.tune(one)
        assert d.run(one) in OWN
    with start(KOPS_STANDIN_BLASLT_VERSION="130100") as d, d.connect() as one:
        assert d.run(one) == "cublaslt"
        assert "130100" in d.tune(one)["machine"] and d.run(one) in OWN
    with start() as d, d.connect() as one:
        assert d.run(one) in OWN and one.call("tuning")["total"] == 2
        assert one.call("tuning", {"clear": True}) == {"total": 0, "choices": []}
        proc.eventually(lambda: d.run(one) == "cublaslt", "the choice is forgotten")
    with start() as d, d.connect() as one:
        assert one.call("tuning")["total"] == 0 and d.run(one) == "cublaslt"
        one.request("tune", layouts(device=d.machine.gpu))
        d.machine.daemon.stop()  # while it tunes


def test_a_file_that_is_none(start: Callable[..., Tuned], tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/tuning.sqlite3").write_bytes(b"no database at all, but long enough to be one" * 100)
    with start() as d, d.connect() as one:
        assert d.tune(one)["best"] is not None
        assert d.run(one) in OWN


@as_root
def test_problems_that_come_often_are_tuned_when_nothing_else_runs(start: Callable[..., Tuned]) -> None:
    """Also after the choice was forgotten. The users see it whose runs they are."""
    with start(KOPSD_SERVER_SOCKET_MODE="0666", KOPSD_TUNING_IDLE_RUNS="5") as d, d.connect() as one:
        with connect(d.machine.daemon, STRANGER) as mine, connect(d.machine.daemon, STRANGER + 1) as other:
            for _ in range(5):
                d.run(mine)
            proc.eventually(lambda: mine.call("tuning")["total"] == 1, "the daemon has tuned it by itself")
            assert d.run(mine) in OWN and other.call("tuning") == {"total": 0, "choices": []}
        one.call("tuning", {"clear": True})
        proc.eventually(lambda: d.run(one) == "cublaslt", "the choice is forgotten")
        for _ in range(5):
            d.run(one)
        proc.eventually(lambda: one.call("tuning")["total"] == 1, "it has tuned it again")


def test_precisions_are_different_problems(start: Callable[..., Tuned]) -> None:
    with start() as d, d.connect() as one:
        for precision in ("highest", "high", "medium"):
            assert d.run(one, precision=precision) == "cublaslt"
            d.tune(one, attrs={"precision": precision})
            assert d.run(one, precision=precision) in OWN
        assert len({row["problem"] for row in one.call("tuning")["choices"]}) == 3


def test_a_reply_does_not_wait_for_a_measurement(start: Callable[..., Tuned]) -> None:
    """One execution takes more than there is: the reply says that nothing was tried, and the tuning goes on without it. What is
    queued behind it is answered in time, too, and left to when the device is idle."""
    with start("stuck", KOPSD_TUNING_BUDGET_MS="100", KOPSD_TUNING_IDLE_RUNS="1000") as d, d.connect() as one:
        reply = d.tune(one)
        assert reply["goes_on"] and reply["tried"] == 0 and reply["best"] == reply["before"] == reply["usual"]
        assert {c["state"] for c in reply["candidates"]} == {"left_out"} and not any("us" in c for c in reply["candidates"])
        assert one.call("tuning")["total"] == 0
        reply = d.tune(one, m=2 * M)
        assert not reply["goes_on"] and reply["tried"] == 0 and reply["problem"] == "gemm"
        (candidate,) = reply["candidates"]
        assert candidate["state"] == "left_out" and candidate["variant"] == "cublaslt"
        proc.eventually(lambda: one.call("tuning")["total"] >= 1, "what was begun is done")
        (row,) = (c for c in one.call("tuning")["choices"] if f"{M}x24x40" in c["problem"])
        assert row["tried"] >= 1 and row["what"] == row["usual"]
        proc.eventually(lambda: any(f"{2 * M}x24x40" in c["problem"] for c in one.call("tuning")["choices"]), "it is tuned later")


SOME = {"mode": "slower", "KOPSD_TUNING_BUDGET_MS": "1000"}  # each of the library's candidates takes some 0.2 s


def test_what_was_not_tried_is_tried_when_nothing_else_runs(start: Callable[..., Tuned]) -> None:
    with start(KOPSD_TUNING_IDLE_RUNS="1000", **SOME) as d, d.connect() as one:
        first = d.tune_some(one)
        assert first["tried"] < len(first["candidates"])

        def is_done() -> bool:
            (row,) = one.call("tuning")["choices"]
            return bool(row["tried"] == row["candidates"])

        proc.eventually(is_done, lambda: f"the daemon goes on by itself\n{d.machine.daemon.log()}")


def test_a_process_is_kept_ready(start: Callable[..., Tuned]) -> None:
    """It is there before anything is tuned, and one that has died in the meantime is replaced."""
    with start(KOPSD_EXECUTORS_ISOLATE="user", KOPSD_TUNING_READY="on") as d, d.connect() as one:
        tuners: list[int] = []

        def is_there() -> bool:
            tuners[:] = proc.executors(d.machine.daemon.pid, "tuner")
            return "event=tuner " in d.machine.daemon.log() and len(tuners) == 1

        proc.eventually(is_there, "a process is ready")
        (before,) = tuners
        proc.send_stray(before, more=[signal.SIGHUP])
        assert d.tune(one)["candidates"] and proc.executors(d.machine.daemon.pid, "tuner") == [before]
        os.kill(before, signal.SIGKILL)
        proc.eventually(lambda: "Z" in (Path(f"/proc/{before}/stat").read_text(encoding="utf-8").rpartition(")")[2]), "it has ended")
        assert d.tune(one)["candidates"] and before not in proc.executors(d.machine.daemon.pid, "tuner")


def test_bad_requests(start: Callable[..., Tuned]) -> None:
    with start() as d, d.connect() as one:

        def error(**changed: Any) -> raw.RpcError:
            return one.error("tune", {**layouts(device=d.machine.gpu), **changed})

        vector = {"shape": [8], "dtype": "f32"}
        add = error(op="add", **{"in": [vector, vector], "out": [vector]})
        assert add.code == "unsupported" and "one kernel serves add" in add.message
        apart = {"shape": [M, K], "strides": [2 * K, 2], "dtype": "f32"}
        strided = error(**{"in": [apart, {"shape": [K, N], "dtype": "f32"}]})
        assert strided.code == "unsupported" and "no stride of 1" in strided.message
        assert error(out=[{"shape": [M, N + 1], "dtype": "f32"}]).code == "shape_mismatch"
        huge = layouts(m=1 << 20, n=1 << 20, k=1 << 10, device=d.machine.gpu)
        assert one.error("tune", huge).code == "limit_exceeded"
        host = next(x["uuid"] for x in d.machine.hello()["devices"] if x["backend"] == "host")
        assert one.error("tune", layouts(device=host)).code == "unsupported"


@as_root
def test_a_user_sees_the_own_problems_alone(start: Callable[..., Tuned]) -> None:
    def problems(connection: raw.Connection) -> list[int]:
        """Their k's."""
        answer = connection.call("tuning")
        assert answer["total"] == len(answer["choices"])
        return [int(re.search(r"x(\d+)\b(?!x)", choice["problem"])[1]) for choice in answer["choices"]]  # type: ignore[index]

    other = STRANGER + 1
    with start(KOPSD_SERVER_SOCKET_MODE="0666") as d, d.connect() as root:
        with connect(d.machine.daemon, STRANGER) as mine, connect(d.machine.daemon, other) as theirs:
            for connection, k in ((root, 8), (mine, 16), (theirs, 24), (mine, 32), (theirs, 32)):
                connection.call("tune", layouts(device=d.machine.gpu, k=k))
            assert problems(root) == [32, 24, 16, 8]
            assert problems(mine) == [32, 16] and problems(theirs) == [32, 24]
            assert mine.call("tuning", {"from": 1})["choices"] == mine.call("tuning")["choices"][1:]
    with start(KOPSD_SERVER_SOCKET_MODE="0666") as d, d.connect() as root:
        with connect(d.machine.daemon, STRANGER) as mine, connect(d.machine.daemon, other + 1) as stranger:
            assert problems(root) == [32, 24, 16, 8] and problems(mine) == [32, 16] and problems(stranger) == []


def test_a_user_tunes_one_problem_at_a_time(start: Callable[..., Tuned]) -> None:
    with start() as d, d.connect() as one, d.connect() as other:
        first = one.request("tune", layouts(device=d.machine.gpu))
        error = other.error("tune", layouts(device=d.machine.gpu))
        assert error.code == "limit_exceeded" and "one is done at a time" in error.message
        assert one.reply(first).get()["candidates"]
        assert d.tune(other)["candidates"]


def tunes(d: Tuned, connection: raw.Connection) -> bool:
    """Whether the user may tune."""
    try:
        return bool(d.tune(connection, m=2 * M)["candidates"])
    except raw.RpcError as error:
        assert error.code == "limit_exceeded"
        return False


def test_a_client_that_goes_takes_its_tuning_along(start: Callable[..., Tuned]) -> None:
    """It ends early: nothing is chosen."""
    with start() as d, d.connect() as other:
        with d.connect() as one:
            one.request("tune", layouts(device=d.machine.gpu))
        proc.eventually(lambda: tunes(d, other), "the user may tune again")
        (row,) = other.call("tuning")["choices"]
        assert row["problem"].startswith(f"gemm f32 {2 * M}x{N}x{K} ")


def test_a_tuning_is_cancelled_by_its_msgid(start: Callable[..., Tuned]) -> None:
    with start() as d, d.connect() as one, d.connect() as other:
        other.call("ping")
        waiting = one.request("tune", layouts(device=d.machine.gpu))
        assert other.call("cancel", {"msgid": waiting}) == {"cancelled": False}, "it is another connection's"
        assert one.call("cancel", {"msgid": waiting}) == {"cancelled": True}
        error = one.reply_error(waiting)
        assert error.code == "cancelled" and "tuning" in error.message
        assert one.call("cancel", {"msgid": waiting}) == {"cancelled": False}, "it is over"
        assert tunes(d, one) and other.call("tuning")["total"] == 1


def test_the_python_client(start: Callable[..., Tuned]) -> None:
    sys.path.insert(0, str(ROOT / "client_py"))
    kops = pytest.importorskip("kops")
    with start() as d, kops.connect(d.machine.daemon.socket_path) as k:
        a, b = k.array(np.ones((M, K), np.float32)), k.array(np.ones((K, N), np.float32))
        tuned = k.tune("gemm", a, b, device=d.machine.gpu)
        assert tuned.best.variant in OWN and tuned.usual.variant == "cublaslt" and tuned.gain > 1
        assert f"{M}x{N}x{K}" in str(tuned) and "cublaslt" in str(tuned)
        (choice,) = k.tuning()
        assert choice.variant in OWN and choice.us < choice.usual_us and choice.machine == tuned.machine
        with pytest.raises(kops.Unsupported, match="one kernel serves add"):
            k.tune("add", a, a, device=d.machine.gpu)
        assert k.tuning(clear=True) == []
