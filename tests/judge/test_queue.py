"""The queue: many threads, ends in the middle, tasks that hold it up, executors and their faults."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import kops
import pytest
from kops import judge
from kops._base.intervals import Stopwatch
from kops.judge import _gpu, _judge
from material import ADD, FAULTY, SHORT, SIGNATURE, add, inputs, spy, task

from support.daemon import Daemon  # isort: skip

pytestmark = pytest.mark.usefixtures("unlocated")


def judge_of(daemon: Daemon, **more: Any) -> judge.Judge:
    return judge.Judge(daemon.socket_path, **{"deadline": 5.0, "interpreted_deadline": 2.0, "time": False, **more})


def test_many_threads(daemon: Daemon) -> None:
    one = task()
    kinds = ["right", "wrong", "not_compiled", "refused"]
    solutions = [add(), SHORT, add("x"), add(launch=judge.Launch("add2_kernel", "float* c"))]
    with judge_of(daemon) as made, ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda i: made.judge(one, solutions[i % 4]), range(40)))
    assert [verdict.kind for verdict in verdicts] == kinds * 10


def test_compiled_ahead(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the GPU, in no process that loads it; the solution's own connection finds it there."""
    found: list[Any] = []
    modules: list[dict[str, Any]] = []
    spy(monkeypatch, _gpu, "compiled", lambda module, *_: found.append(module))
    spy(monkeypatch, kops.Client, "compile", lambda *_, **how: modules.append(how))
    with judge_of(daemon) as made:
        assert made.judge(task(), add(prelude="// a source of its own")).right
    (module,) = found
    assert module._code.compiled.cached == "memory"
    ahead = [how for how in modules if how.get("name") == "solution.cu"]
    assert [how["device"].backend for how in ahead] == ["host", "cuda"]


def test_as_they_end(daemon: Daemon) -> None:
    one, read = task(), 0

    def endless() -> Any:
        nonlocal read
        while True:
            read += 1
            yield one, add() if read % 2 else SHORT

    with judge_of(daemon) as made:
        seen = {}
        for index, verdict in made.judge_many(endless()):
            seen[index] = verdict.kind
            if len(seen) == 20:
                break
        assert read <= 20 + _judge.WAITING_MAX
        assert all(kind == ("wrong" if index % 2 else "right") for index, kind in seen.items())
        made.close(cancel=True)


def test_a_close_in_the_middle(daemon: Daemon) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(rng: Any, n: int) -> Any:
        begun.set()
        go.wait(60)
        return inputs(rng, n)

    held = task(inputs=slow)
    made = judge_of(daemon)
    futures = [made.submit(held, add()) for _ in range(20)]
    assert begun.wait(60)
    threading.Timer(0, go.set).start()
    made.close(cancel=True)
    made.close()
    for future in futures:
        assert future.done()
        if not future.cancelled():
            assert future.result().right
    with pytest.raises(CancelledError):
        futures[-1].result()
    with pytest.raises(kops.BadArgument, match="closed"):
        made.submit(held, add())


def test_the_time_of_a_solution_is_without_that_of_those_before_it(daemon: Daemon) -> None:
    """Of one task one solution's draws are made, and the others wait for these."""
    begun, go = threading.Event(), threading.Event()

    def slow(rng: Any, n: int) -> Any:
        begun.set()
        go.wait(60)
        return inputs(rng, n)

    with judge_of(daemon) as made:
        held, watches = task(inputs=slow), [Stopwatch() for _ in range(5)]
        try:
            futures = [made.submit(held, add(), watch) for watch in watches]
            assert begun.wait(60)
            assert sum(watch.seconds > 0 for watch in watches) == 1
        finally:
            go.set()
        assert all(future.result().right for future in futures) and all(watch.seconds > 0 for watch in watches)


def test_leaving_waits_and_an_exception_does_not(daemon: Daemon) -> None:
    with judge_of(daemon) as made:
        futures = [made.submit(task(), add()) for _ in range(3)]
    assert all(future.result().right for future in futures)
    with pytest.raises(KeyboardInterrupt), judge_of(daemon) as made:
        futures = [made.submit(task(), add()) for _ in range(50)]
        raise KeyboardInterrupt
    assert all(future.done() for future in futures)


def test_a_slow_task_holds_up_no_other(daemon: Daemon) -> None:
    go = threading.Event()

    def slow(rng: Any, n: int) -> Any:
        go.wait(60)
        return inputs(rng, n)

    with judge_of(daemon) as made:
        try:
            held = task(inputs=slow)
            waiting = [made.submit(held, add()) for _ in range(30)]
            assert made.judge(task(), add()).right
            assert not any(future.done() for future in waiting)
        finally:
            go.set()
        assert all(future.result().right for future in waiting)


def test_a_task_that_never_comes_back(daemon: Daemon) -> None:
    never = threading.Event()

    def stuck(rng: Any, n: int) -> Any:
        never.wait()

    with judge_of(daemon, task_timeout=0.2) as made:
        for _ in range(12):  # more than there are threads
            verdict = made.judge(task(inputs=stuck), add())
            assert verdict.kind == "no_verdict" and "longer than 0.2 s" in verdict.text
        same = task(inputs=stuck)
        assert [made.judge(same, add()).kind for _ in range(3)] == ["no_verdict"] * 3, "it is not waited for again and again"
        made.task_timeout = 60
        assert made.judge(task(), add()).right
        never.set()


def test_the_judges_own_fault_is_told(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    with judge_of(daemon) as made:
        monkeypatch.setattr(_judge, "verdict_of", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            made.judge(task(), add())
        monkeypatch.undo()
        assert made.judge(task(), add()).right


def different(i: int) -> judge.Solution:
    return add(prelude=f"// {i}")


def test_executors_are_used_again_but_not_for_ever(daemon: Daemon, executors: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gpu, "PER_EXECUTOR", 5)
    with judge_of(daemon) as made:
        one = task()
        assert all(made.judge(one, different(i)).right for i in range(_gpu.PER_EXECUTOR))
        assert len(executors) == 1
        assert made.judge(one, different(-1)).right and len(executors) == 2
        assert made.judge(one, different(-1)).right and len(executors) == 3  # its module may be loaded still, with its variables
        assert made.judge(one, SHORT).kind == "wrong"
        assert made.judge(one, different(-2)).right and len(executors) == 4
    assert all(one.client._closed for one in executors)


def test_a_daemon_that_ends_in_the_middle(start: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = start()
    with judge_of(daemon) as made:
        assert made.judge(task(), add()).right
        fill, ended = _gpu.GpuRunner.fill, []

        def end(self: Any, *args: Any) -> Any:
            if not ended:
                ended.append(1)
                os.kill(daemon.pid, signal.SIGKILL)
                assert daemon.process is not None
                daemon.process.wait()
                daemon.start()
            return fill(self, *args)

        monkeypatch.setattr(_gpu.GpuRunner, "fill", end)
        assert made.judge(task(), different(1)).right and ended  # judged again, on the new one
        ended.clear()

        def gone(self: Any, *args: Any) -> Any:
            if not ended:
                ended.append(1)
                made._trusted.reconnect_timeout = 0  # type: ignore[union-attr]
                os.kill(daemon.pid, signal.SIGKILL)
            return fill(self, *args)

        monkeypatch.setattr(_gpu.GpuRunner, "fill", gone)
        verdict = made.judge(task(), different(2))
        assert verdict.kind == "no_verdict" and "went away twice" in verdict.text


def test_faults_that_the_daemon_counts(start: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the default of `executors.faults` it refuses kernels for a minute: the judge waits, and a right solution is right."""
    daemon = start(faults=1)
    with judge_of(daemon) as made:
        assert made.judge(task(), FAULTY).kind == "faulted"
        waited: list[float] = []

        def wait(seconds: float) -> bool:
            waited.append(seconds)
            return len(waited) > 1

        monkeypatch.setattr(made._ending, "wait", wait)
        verdict = made.judge(task(), add())
        assert waited and 0 < waited[0] <= 60
        assert verdict.kind == "no_verdict" and "takes no kernels of this user" in verdict.text and "executors.faults" in verdict.text


def test_which_device(daemon: Daemon) -> None:
    with kops.connect(daemon.socket_path) as client:
        index = next(device.index for device in client.devices if device.backend != "host")
        host = next(device.index for device in client.devices if device.backend == "host")
        assert judge.judge(task(), add(), client, device=index, time=False).right
        assert judge.judge(task(), add(), client, device=host).how == "interpreter"
        with pytest.raises(kops.BadArgument, match="no such GPU"):
            judge.Judge(client=client, device=host, how="gpu")
        with pytest.raises(kops.UnknownDevice):
            judge.Judge(client=client, device=77)
    with pytest.raises(kops.BadArgument, match="how="):
        judge.Judge(how="quantum")


BOUNDS: dict[str, tuple[Any, str]] = {
    "source": (lambda: judge.Solution(" " * (judge.Solution.SOURCE_MAX + 1), [ADD]), "more than 4194304 bytes"),
    "source of wide characters": (lambda: judge.Solution("ä" * (judge.Solution.SOURCE_MAX // 2 + 1), [ADD]), "more than 4194304 bytes"),
    "surrogates": (lambda: add(prelude="// \ud800"), "surrogates"),
    "NUL": (lambda: add(prelude="// \0"), "NUL"),
    "launches": (lambda: judge.Solution("", [ADD] * 65), "65 launches"),
    "none": (lambda: judge.Solution("", []), "0 launches"),
    "scratch": (lambda: add(scratch={"s": judge.Scratch("n * 1000000000")}), "more than 4294967296 bytes"),
    "scratch in parts": (lambda: add(scratch={f"s{i}": judge.Scratch(1 << 27, "f64") for i in range(5)}), "more than 4294967296 bytes"),
    "scratches": (lambda: add(scratch={f"s{i}": judge.Scratch(1) for i in range(33)}), "at most 32"),
    "a negative scratch": (lambda: add(scratch={"s": judge.Scratch("n - 5000")}), "-4000 elements"),
    "the name of an input": (lambda: add(scratch={"a": judge.Scratch(1)}), "something of this name"),
    "options": (lambda: add(options=["-DX"] * 65), "at most 64"),
    "an option": (lambda: add(options=["-D" + "X" * 5000]), "more than 4096"),
    "a long expression": (lambda: add(launch=judge.Launch("add2_kernel", SIGNATURE, "+".join("1" * 200))), "at most 256 characters"),
    "a huge grid": (lambda: add(launch=judge.Launch("add2_kernel", SIGNATURE, 10**400)), "grid"),
    "a division": (lambda: add(launch=judge.Launch("add2_kernel", SIGNATURE, "1 / (n - n)")), "zero"),
    "a signature": (lambda: add(launch=judge.Launch("add2_kernel", "int x," * 5000)), "more than 16384"),
    "a float": (lambda: add(launch=judge.Launch("add2_kernel", SIGNATURE, 1.5)), "numbers or expressions"),
    "nonsense": (lambda: judge.Solution(3, {"a": 1}, 7, 9), "is a text"),  # type: ignore[arg-type]
    "nonsense launches": (lambda: judge.Solution("", [3]), "list of Launch"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("what", BOUNDS)
def test_bounds(interpreter: judge.Judge, what: str) -> None:
    make, text = BOUNDS[what]
    verdict = interpreter.judge(task(), make())
    assert verdict.kind == "refused" and text in verdict.text and len(verdict.text) < 1000, verdict


HEAPS = {
    "malloc": "float* kept = (float*)malloc(8); if (kept) { *kept = a[i] + b[i]; c[i] = *kept; } free(kept);",
    "new": "float* kept = new float[2]; if (kept) { *kept = a[i] + b[i]; c[i] = *kept; } delete[] kept;",
    "not by its name": "float* kept = (float*)TAKE(8); if (kept) { *kept = a[i] + b[i]; c[i] = *kept; }",
}


@pytest.mark.parametrize("name", HEAPS)
def test_the_heap_of_kernels_is_no_other_solution_s(gpu: judge.Judge, executors: list[Any], name: str) -> None:
    """It is their process's: neither what lies in it nor that it is full is left to the next one, or was by the last one."""
    prelude = "#define JOINED(a, b) a##b\n#define TAKE JOINED(mal, loc)"
    made = []
    for i, body in enumerate(("c[i] = a[i] + b[i];", HEAPS[name], "c[i] = a[i] + b[i];")):
        verdict = gpu.judge(task(), add(body, f"{prelude} // {i}"))
        assert verdict.right, verdict
        made.append(len(executors))
    assert [one - made[0] for one in made] == [0, 1, 2]
