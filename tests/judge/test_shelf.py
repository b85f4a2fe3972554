"""Draws in the GPU's memory, checks of launches there, and times of launches that are asked for, and looked at, together."""

from __future__ import annotations

import gc
import os
import random
import signal
import time as clock
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kops import Client, Timings, judge
from kops._base.errors import BY_CODE
from kops.judge import _draws, _gpu, _runner, _shelf, _timed
from material import FAULTY, SHORT, SIGNATURE, VECTOR, add, confined, spy, task
from shelves import SMALL, WIDE, Make, Numpy, after_launches, believe, flip, judge_of, shelved

from support.daemon import Daemon  # isort: skip

__all__ = ["shelved", "judge_of"]

pytestmark = pytest.mark.usefixtures("unlocated")
TWICE = judge.Solution(
    add().source + VECTOR, [*add().launches, judge.Launch("vector_add", SIGNATURE, grid="ceil_div(n, 256)", block=256)], name="twice"
)


@pytest.mark.parametrize("solution", [add(), TWICE], ids=["one launch", "two"])
def test_right(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch, solution: judge.Solution) -> None:
    monkeypatch.setattr(_gpu, "wrong_in", None)  # nothing is compared on the host
    monkeypatch.setattr(_timed, "TOGETHER", 8)
    believe(monkeypatch)
    calls: list[str] = []
    for name in ("fill", "look"):
        spy(monkeypatch, _shelf.Shelf, name, lambda *_, name=name: calls.append(name))
    made, one = judge_of(seed=None), task(**SMALL)
    assert made.judge(one, replace(solution, source=solution.source + "// first")).right  # draws are kept from it
    calls.clear()
    verdict = made.judge(one, solution)
    assert verdict.right, verdict
    assert calls[0] == "fill" and set(calls[1:]) == {"look"}, "all else is filled where something is looked at"
    assert len(calls) in (1 + 2 + 2, 1 + 3 + 2), "rounds of the check, the times, and the runs behind each other"
    assert verdict.time is not None and verdict.time.cold is not None and verdict.time.warm is not None
    assert verdict.time.cold.launches >= 6 and verdict.launches >= 10 + 7 + 7 + 8
    assert shelved.runs.total() > 6 * verdict.launches


@confined
def test_the_same_verdicts_as_on_the_host(daemon: Daemon, judge_of: Make, request: pytest.FixtureRequest) -> None:
    one = task(**SMALL)
    host = judge_of(time=False)
    expected = [host.judge(one, bad) for bad in (SHORT, FAULTY)]
    request.getfixturevalue("shelved")
    shelf = judge_of(time=False)
    for bad, other in zip((SHORT, FAULTY), expected):
        verdict = shelf.judge(one, bad)
        assert (verdict.kind, verdict.why, verdict.how) == (other.kind, other.why, other.how)
        if other.worst is not None:  # of elements that were not written, and had other rubbish
            assert verdict.worst is not None and (verdict.worst.case, verdict.worst.draw) == (other.worst.case, other.worst.draw)
            assert (verdict.worst.wrong, verdict.worst.of) == (other.worst.wrong, other.worst.of) == (44, 300)


def spoiled(monkeypatch: pytest.MonkeyPatch, name: str, at: int, launch: int) -> None:
    """A launch of the check changes a byte."""
    count = [0]

    def wrong(held: _shelf.Held) -> None:
        count[0] += 1
        if count[0] == launch:
            flip(held.memory, name, at)

    after_launches(monkeypatch, wrong)


@pytest.mark.parametrize("launch", [3, 10], ids=["of the first round", "the last one"])
@pytest.mark.parametrize(
    ("name", "at", "kind", "said"),
    [
        ("c", 7, "wrong", "c[1]"),
        ("a", 11, "wrong", "the input a[2]"),
        ("c", 1200, "faulted", "a write outside of c, which has 1200 bytes, at its byte 1200"),
        ("b", 1279, "faulted", "a write outside of b, which has 1200 bytes, at its byte 1279"),
    ],
)
def test_what_is_wrong_is_told(
    shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch, name: str, at: int, kind: str, said: str, launch: int
) -> None:
    spoiled(monkeypatch, name, at, launch)
    verdict = judge_of(time=launch == 10).judge(task(**SMALL), add())
    assert verdict.kind == kind and said in verdict.text, verdict


def test_a_draw_is_carried_once_and_overwritten_when_it_goes(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = judge_of(time=False)
    assert made.judge(task(**SMALL), add()).right
    assert made._machine is not None
    shelf = made._machine.shelf
    assert shelf is not None
    there = list(shelf._draws.values())
    wholes = [slab for rack in shelf._racks.values() for slab in rack.slabs]
    assert there and len({kept.whole._start for kept in there}) == len(there)
    assert all(kept.whole.get().any() for kept in there)
    made._pool._entries.clear()
    gc.collect()
    shelf.clear()
    assert not shelf._draws and not shelf._bytes
    assert not any(whole.get().any() for whole in wholes)


@pytest.mark.parametrize("size", [None, 150_000])
def test_there_is_no_memory_for_a_draw(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch, size: int | None) -> None:
    """Others go for it, also all of its own size, but not those that are in use."""
    made = judge_of(time=False)
    one = task(**SMALL)
    assert made.judge(one, add()).right and made._machine is not None and made._machine.shelf is not None
    shelf = made._machine.shelf
    shelf.begin()
    draws = [_draws.draw(one, one.timed_case, seed) for seed in range(2)]
    before = shelf._kept(draws[0], None).whole
    if size is not None:
        shelf._used.add(weakref.ref(draws[0]))
    empty, failed = shelf.carrier.client.empty, []

    def spent(shape: Any, *rest: Any, **more: Any) -> Any:
        if not failed:
            failed.append(shape)
            raise BY_CODE["out_of_memory"]("none")
        return empty(shape, *rest, **more)

    monkeypatch.setattr(shelf.carrier.client, "empty", spent)
    other = draws[1] if size is None else _draws.draw(large := task(cases=[{"n": size}]), large.timed_case, 1)
    if size is None:
        for rack in shelf._racks.values():
            rack.free.clear()
    shelf._kept(other, None)
    assert failed and shelf.has(other) and shelf.has(draws[0]) == (size is not None)
    assert before.get().any() == (size is not None)
    shelf._drop(weakref.ref(other))  # its memory is known
    shelf.clear()
    assert not shelf._bytes and not shelf._racks and not before.get().any()


def test_a_daemon_that_ends(shelved: Numpy, start: Callable[..., Daemon]) -> None:
    """Nothing of it is the caller's to see, where draws would be overwritten."""
    daemon = start()
    with judge.Judge(daemon.socket_path, deadline=5.0, time=False, peak_gb_s=1.0) as made:
        assert made.judge(task(**SMALL), add()).right
        kill(daemon)
        assert made.judge(task(**SMALL), add(prelude="// 2")).right


def kill(daemon: Daemon) -> None:
    os.kill(daemon.pid, signal.SIGKILL)
    assert daemon.process is not None
    daemon.process.wait()
    daemon.start()


def test_the_faults_of_a_user_are_counted(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A solution that faulted has faulted, though the daemon runs none of the judge's own kernels then."""
    made = judge_of(time=False)
    assert made.judge(task(**SMALL), add()).right

    def refused(steps: Any, **_: Any) -> None:
        if any(step[0].startswith("look") for step in steps):
            raise BY_CODE["quota_exceeded"]("faults", {"quota": "faults", "retry_after_ms": 100})

    sequence = shelved.sequence
    monkeypatch.setattr(shelved, "sequence", lambda steps, **how: (refused(steps), sequence(steps, **how))[1])
    assert made.judge(task(**SMALL), FAULTY).kind == "faulted"


def test_what_a_launch_has_left_is_told_first(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before what keeps the next ones from being prepared."""
    spoiled(monkeypatch, "c", 3, 10)
    asked: list[Any] = []

    def spent(self: Any) -> Any:
        asked.append(self)
        raise _timed.Stop("no_verdict", "there is no memory for it", True)

    monkeypatch.setattr(_timed.Unseen, "ask", spent)
    verdict = judge_of().judge(task(**SMALL), add())
    assert asked and verdict.kind == "wrong" and "c[0]" in verdict.text


def test_a_round_ends_where_nobody_knows(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a launch cannot leave its work to the next one."""
    sizes: list[tuple[int, ...]] = []
    some: list[int] = []
    fills: list[int] = []
    spy(monkeypatch, _shelf.Shelf, "fill", lambda made, shelf, several: fills.append(len(several)))
    spy(monkeypatch, _shelf.Shelf, "look", lambda made, shelf, one, several, *_: some.append(len(several)))
    made = judge_of(time=False)
    for i in range(8):
        some.clear()
        fills.clear()
        assert made.judge(task(**SMALL), add(prelude=f"// {i}")).right
        assert len(fills) == 1, "later rounds are filled where the one before is looked at"
        sizes.append(tuple(some))
    assert all(sum(one) == 10 and len(one) in (2, 3) for one in sizes) and len(set(sizes)) > 1


def test_large_draws_stay_on_the_host(shelved: Numpy, judge_of: Make) -> None:
    made = judge_of(time=False)
    assert made.judge(task(**SMALL), add()).right and made._machine is not None and made._machine.shelf is not None
    made._machine.shelf._most = 0
    shelved.runs.clear()
    assert made.judge(task(**SMALL), add(prelude="// again")).right
    assert set(shelved.runs) <= {"put_rubbish"}, "what the solution before had is overwritten, but nothing is looked at"


def test_where_the_kernels_do_not_run(daemon: Daemon, judge_of: Make) -> None:
    """The stand-in runs none that it does not know: all is compared on the host."""
    made = judge_of()
    assert made.judge(task(**SMALL), add()).right
    assert made._machine is not None and made._machine.shelf is None and made._machine._no_shelf


def test_kernels_that_find_nothing_are_not_believed(judge_of: Make, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Numpy()
    monkeypatch.setattr(made, "sequence", lambda steps, **_: None)
    judging = judge_of(time=False)
    assert judging._machine is not None
    with pytest.raises(Exception, match="do not compute"):
        _shelf.Shelf(judging._machine._carrier(), made, judging._machine.device)  # type: ignore[arg-type]


def test_a_fault_costs_one_process(start: Callable[..., Daemon], shelved: Numpy) -> None:
    """Nothing is asked for behind a launch that may fault: it would run again in the next process, and fault there."""
    daemon, cases = start(faults=3), [{"n": 100 + i} for i in range(6)]
    with judge.Judge(daemon.socket_path, interpreted_deadline=2.0, time=False) as made, Client(daemon.socket_path) as other:
        assert made.judge(task(cases=cases), add()).right
        assert made.judge(task(cases=cases), FAULTY).kind == "faulted"
        assert other.stats()["executor_counts"]["faults"] == 1
        assert made.judge(task(cases=cases), add(prelude="// again")).right


def test_less_precision(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each element is within the tolerance memory is filled for the next round already."""

    def rounded(held: _shelf.Held) -> None:
        block = held.memory["c"]
        sums = block.bytes_as("f32", (block.size // 4,))
        sums.set(sums.get().astype("f2").astype("f4"))

    after_launches(monkeypatch, rounded)
    one = task(**SMALL, tolerance=judge.Tolerance(rtol=1e-2, atol=1e-2))
    verdict = judge_of(time=False).judge(one, add())
    assert (verdict.kind, verdict.why) == ("wrong", "precision") and verdict.worst is not None
    assert verdict.worst.got > verdict.worst.expected and verdict.launches == 0


def test_launches_in_a_row_at_the_same_addresses() -> None:
    """With other inputs: what remembers the last launch alone is wrong, too, though cases are run together. Each memory is used once a
    round, of which there are two."""
    one = task(**SMALL)
    draws = [[_draws.draw(one, case, 10 * i + seed) for seed in range(4)] for i, case in enumerate(one.all_cases)]
    steps = _runner.steps_of([(some[:3], some[3:]) for some in draws])
    assert any(a.buffers == b.buffers and a.draw is not b.draw for a, b in zip(steps, steps[1:]))
    for some in draws:
        of = [step for step in steps if step.draw.case == some[0].case]
        assert [some.index(step.draw) for step in of] == [0, 0, 1, 2, 3]
        assert of[0].buffers != of[1].buffers == of[2].buffers and of[4].buffers == of[0].buffers
    assert max([step.buffers for step in steps].count(step.buffers) for step in steps) == 2


def test_launches_that_do_each_other_s_work(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose times do not add up are measured again, one by one."""
    pipelined = _gpu.GpuRunner.pipelined

    def deferred(self: Any, *rest: Any) -> Any:
        made = pipelined(self, *rest)
        return [replace(one, gpu_us=1.0, wall_us=1e6) for one in made[:-1]] + [replace(made[-1], gpu_us=1e5, wall_us=1e6)]

    monkeypatch.setattr(_gpu.GpuRunner, "pipelined", deferred)
    monkeypatch.setattr(_timed, "TOGETHER", 3)
    made = judge_of()
    seen: list[dict[str, Any]] = []
    spy(monkeypatch, _gpu.GpuRunner, "launched", lambda *_, **how: seen.append(how))
    verdict = made.judge(task(**SMALL), add())
    assert verdict.right and verdict.time is not None and verdict.time.cold is not None
    assert sum(bool(how.get("timed")) for how in seen) >= 14 and verdict.time.cold.us != 1.0


@pytest.mark.parametrize(("us", "apart", "more"), [(5.0, 0.2, False), (5.0, 0.3, True), (100.0, 1.9, False), (100.0, 2.1, True)])
def test_when_a_median_is_known(us: float, apart: float, more: bool) -> None:
    """Within 2 %, or within what clocks tell of short kernels."""
    timing = object.__new__(_timed._Timing)
    timing.limits = judge.Limits()
    found = [_timed._Launched(Timings(gpu_us=us + apart * side, timer="cupti"), None) for side in (-1, 0, 1) for _ in range(5)]
    assert timing.wants(found, 6, clock.monotonic() + 100) is more
    assert not timing.wants(found, 6, 0.0), "there is no time left"


def test_nobody_knows_the_last_launch(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that counts its launches could leave all work to the last one before a look: how many they are is drawn."""
    unseen = object.__new__(_timed.Unseen)
    unseen.random = random.Random(1)
    assert {unseen.more(19) for _ in range(1000)} == {15, 16, 17, 18, 19} and {unseen.more(4) for _ in range(1000)} == {3, 4}
    assert unseen.more(1) == unseen.more(2) - 1 == 1
    monkeypatch.setattr(_timed, "TOGETHER", 3)
    believe(monkeypatch)
    drawn = [11, 13]
    monkeypatch.setattr(_timed.Unseen, "more", lambda self, most: drawn.pop(0) if drawn else most)
    counts: list[int] = []
    spy(monkeypatch, _gpu.GpuRunner, "pipelined", lambda made, runner, runs, *_: counts.append(len(runs)))
    assert judge_of().judge(task(**SMALL), add()).right
    assert counts[:2] == [11, 13], "warm, then cold ones"


@pytest.mark.parametrize("part", [0, 1, 2], ids=["warm", "cold", "behind each other"])
def test_timed_launches_that_have_done_nothing(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """Nothing that comes later can do the work of cold ones, which come last before a look, nor of the runs behind each other."""
    monkeypatch.setattr(_timed, "TOGETHER", 3)
    seen: list[str] = []

    def spoil(name: str, at: int) -> None:
        def wrong(made: Any, runner: Any, runs: Any, *rest: Any) -> None:
            seen.append(rest[0].__name__ if rest else name)
            if len(seen) == at + 1:
                flip(runs[-1][1], "c", 3)

        spy(monkeypatch, _gpu.GpuRunner, name, wrong)

    spoil("pipelined", part)
    spoil("together", part)
    believe(monkeypatch)
    verdict = judge_of().judge(task(**SMALL), add())
    assert verdict.kind == "wrong" and "c[0]" in verdict.text, verdict
    assert seen == ["warming", "flushing", *(["together"] if part == 2 else [])]


CUSTOM = add().source + 'extern "C" __global__ void custom_kernel(float* c, const float* a, int m) {}'


def test_numbers_that_are_drawn(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each timed launch has those of its own draw."""
    monkeypatch.setattr(_timed, "TOGETHER", 3)
    believe(monkeypatch)

    def drawn(rng: Any, n: int) -> dict[str, Any]:
        return {**{name: rng.standard_normal(n, dtype="f4") for name in "ab"}, "m": int(rng.integers(10, n - 10))}

    def reference(a: Any, b: Any, m: int) -> Any:
        return np.where(np.arange(a.size) < m, 2 * a, a + b)

    one = task(**SMALL, inputs=drawn, reference=reference, exchange=False)
    twice = judge.Launch("custom_kernel", "inout float* c, const float* a, int m", grid=8, block=256)
    solution = judge.Solution(CUSTOM, [*add().launches, twice])
    assert judge_of().judge(one, solution).right


def test_an_integer_that_is_off_within_its_tolerance(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge's kernels take it for wrong, and the host does not: memory is filled then where it was not."""
    monkeypatch.setattr(_timed, "TOGETHER", 3)
    believe(monkeypatch)
    count = [0]

    def off(held: _shelf.Held) -> None:
        count[0] += 1
        if count[0] in (3, 10):
            flip(held.memory, "c", 0, 1)

    after_launches(monkeypatch, off)
    loose = {"precision": "native", "tolerance": judge.Tolerance(atol=2.0), "exchange": False}
    whole = task(**SMALL, reference=lambda a, b: (a + b).view("i4"), **loose)
    launch = judge.Launch("add2_kernel", SIGNATURE.replace("float* c", "int* c"), grid="ceil_div(n, 256)", block=256)
    source = add().source.replace("float* c", "int* c")
    made = judge_of(seed=None)
    assert made.judge(whole, judge.Solution(source + "// first", [launch])).right  # draws are kept from it
    count[0] = 0
    verdict = made.judge(whole, judge.Solution(source, [launch]))
    assert verdict.right and count[0] >= 10, verdict


def test_what_a_timed_launch_has_left_is_told_first(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    believe(monkeypatch)
    held, asked = _timed.Unseen.held, []

    def spent(self: Any, count: int) -> Any:
        asked.append(count)
        if len(asked) > 1:
            raise _timed.Stop("no_verdict", "there is no memory for it", True)
        return held(self, count)

    spy(monkeypatch, _gpu.GpuRunner, "pipelined", lambda made, runner, runs, *_: flip(runs[0][1], "c", 3))
    monkeypatch.setattr(_timed.Unseen, "held", spent)
    verdict = judge_of().judge(task(**SMALL), add())
    assert len(asked) == 2 and verdict.kind == "wrong" and "c[0]" in verdict.text


def test_requests_have_no_more_tensors_than_the_daemon_takes(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _shelf.STEPS * (2 * WIDE + 1) <= 2048
    believe(monkeypatch)
    monkeypatch.setattr(_shelf, "STEPS", 8)
    assert judge_of().judge(task(**SMALL), add()).right
    assert shelved.longest == 8


def test_draws_end_with_their_solution(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made for the times of one that is wrong, and that nobody keeps."""
    made = judge_of(seed=None)
    made._pool._most = 0
    seen: list[Any] = []
    spy(monkeypatch, _timed, "draw", lambda draw, *_: seen.append(weakref.ref(draw)))
    after_launches(monkeypatch, lambda held: flip(held.memory, "c", 3))
    gc.collect()
    gc.disable()
    try:
        assert made.judge(task(cases=[{"n": 1000}]), add()).kind == "wrong"
        made._crew.submit(int).result()
        count = len(seen)
        made.judge(task(cases=[{"n": 1000}]), add(prelude="// the lane forgets the last one with the next"))
        assert count and not any(one() for one in seen[:count])
    finally:
        gc.enable()
