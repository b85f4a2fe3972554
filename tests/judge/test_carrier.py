"""The memory that solutions work in: used again, with nothing in it of the solution before, and nothing of the host's beside it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kops
import pytest
from conftest import LIMITS
from kops import judge
from kops._memory.pool import pool
from kops.judge import _carrier, _draws, _gpu, _judge, _machine, _runner, _solution, _verdict
from material import FAULTY, SHORT, add, inputs, spy, task

from support.daemon import Daemon  # isort: skip

pytestmark = pytest.mark.usefixtures("unlocated")


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that were made."""
    made: list[Any] = []
    spy(monkeypatch, _carrier.Carrier, "_new", lambda room, *_: made.append(room))
    return made


def judge_of(daemon: Daemon, **more: Any) -> judge.Judge:
    return judge.Judge(daemon.socket_path, **{"deadline": 5.0, "interpreted_deadline": 2.0, "limits": LIMITS, "peak_gb_s": 1.0, **more})


def carrier_of(made: judge.Judge) -> _carrier.Carrier:
    """With all that was given back overwritten."""
    assert made._machine is not None and made._machine.carrier is not None
    made._machine.carrier.settle()
    return made._machine.carrier


def free(made: judge.Judge) -> list[Any]:
    return [room for some in carrier_of(made)._free.values() for room in some]


def test_it_is_used_again_and_overwritten(daemon: Daemon, rooms: list[Any]) -> None:
    one = task()
    with judge_of(daemon) as made:
        assert made.judge(one, add()).right
        first = len(rooms)
        for i in range(2):
            assert made.judge(one, add(prelude=f"// {i}")).right
            assert made.judge(one, SHORT).kind == "wrong"
            assert len(free(made)) == len(rooms) > 0
            for room in rooms:
                assert room.nbytes >= room.whole.size and not room.reach.get().any(), "it has something of the solution's"
        assert len(rooms) < 1.5 * first, "of five judgements"


def test_what_a_wild_kernel_may_write_to_is_given_up(daemon: Daemon, rooms: list[Any]) -> None:
    with judge_of(daemon) as made:
        assert made.judge(task(), add()).right and free(made)
        assert made.judge(task(), FAULTY).kind == "faulted"
        assert not free(made) and carrier_of(made)._made == 0
        assert made.judge(task(), add()).right


def test_the_solution_s_process_has_no_memory_of_the_host(daemon: Daemon) -> None:
    with judge_of(daemon) as made:
        assert made.judge(task(), add()).right
        assert made._machine is not None and made._machine.executor is not None
        its, ours = (client._live().key for client in (made._machine.executor.client, carrier_of(made).client))
        segments = pool._table[1]
        assert any(ours in segment.ids for segment in segments) and not any(its in segment.ids for segment in segments)


def test_what_cannot_be_overwritten_nobody_gets(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, several: Any) -> None:
        raise _carrier._SPENT[0]("no")

    with judge_of(daemon, time=False) as made:
        assert made.judge(task(), add()).right
        monkeypatch.setattr(_carrier.Carrier, "overwrite", fails)
        assert made.judge(task(), add(prelude="// 2")).right
        assert not free(made) and carrier_of(made)._made == 0


def test_there_is_no_memory_left(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept makes room for what is needed."""
    new, failed = _carrier.Carrier._new, []

    def spent(self: Any, key: Any) -> Any:
        if any(self._free.values()):
            failed.append(key)
            raise _carrier._SPENT[0]("none left")
        return new(self, key)

    with judge_of(daemon, time=False) as made:
        assert made.judge(task(), add()).right
        monkeypatch.setattr(_carrier.Carrier, "_new", spent)
        assert made.judge(task(cases=[{"n": 600_000}]), add()).right and failed


def test_strict_with_the_next_process_ready(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    made_for: list[Any] = []
    used: list[Any] = []
    spy(monkeypatch, _machine.Machine, "_ready_spare", lambda spare, *_: made_for.append(spare))
    spy(monkeypatch, _gpu.GpuRunner, "__init__", lambda _, runner, executor, *rest: used.append(executor))
    with judge_of(daemon, strict=True, time=False) as made:
        one = task()
        futures = [made.submit(one, add(prelude=f"// {i}")) for i in range(6)]
        assert all(future.result().right for future in futures)
    assert len(set(used)) == 6 and made_for
    assert {spare.result() for spare in made_for} & set(used), "those that were made ready are used"
    assert all(executor.client._closed for executor in [*used, *(spare.result() for spare in made_for)])


@pytest.mark.parametrize("bad", [SHORT, FAULTY])
def test_a_spare_outlives_what_is_wrong(daemon: Daemon, bad: judge.Solution) -> None:
    with judge_of(daemon, strict=True, time=False) as made:
        one = task()
        futures = [made.submit(one, add(prelude=f"// {i}") if i % 2 else bad) for i in range(4)]
        assert [future.result().kind == "right" for future in futures] == [False, True] * 2


def bytes_of(kept: _draws.Pool) -> list[int]:
    return [entry.nbytes - sum(one.nbytes for one in (*entry.draws, *entry.variants, entry.variant)) for entry in kept._entries.values()]


def test_draws_that_are_made_ahead() -> None:
    """As many as there is room and time for; a reference that fails then is no fault yet."""
    calls = itertools.count()
    fails: list[int] = []

    def reference(a: Any, b: Any) -> Any:
        if next(calls) in fails:
            raise ValueError("not this time")
        return a + b

    one, other = task(cases=[{"n": 1000}], reference=reference), task(cases=[{"n": 1000}])
    kept = _draws.Pool(100 * _draws.draw(one, one.timed_case, 1).nbytes)
    with ThreadPoolExecutor(1) as crew:
        kept.make_variants(one, 5, 10.0, crew)
        assert kept.variants(one) == (), "nobody has asked for its draws"
        for each in (one, other):
            kept.take(each, each.timed_case, 5)
        kept.make_variants(one, 5, 0.0, crew)
        assert kept.variants(one) == (), "it would take too long"
        kept.make_variants(one, 5, 10.0, crew)
        first = kept.variants(one)
        assert len(first) == 5 and len({draw.tensors["a"].data.tobytes() for draw in first}) == 5
        here = next(calls)
        fails += range(here + 6, here + 100)
        kept.make_variants(one, 20, 10.0, crew)
        assert 5 < len(kept.variants(one)) < 20 and kept.variants(one)[:5] == first and not any(bytes_of(kept))
        assert kept.take(one, one.timed_case, 5).draws
        kept.make_variants(other, 1000, 1000.0, crew)
        assert len(kept.variants(other)) == 20 and not any(bytes_of(kept)), "a fifth of all"


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("uploaded", [False, True])
def test_what_is_written_beside_a_tensor(guarded: bool, uploaded: bool) -> None:
    one = task(cases=[{"n": 1001}])
    drawn = _draws.draw(one, one.timed_case, 1)
    carrier = object.__new__(_carrier.Carrier)
    carrier._guarded = guarded
    staged = carrier.stage(_solution.plan_of(one, add(), drawn), drawn, 4)
    right = {name: image.copy() for name, image in staged.images.items()}
    staged.part("c", right["c"])[:] = (drawn.tensors["a"].data + drawn.tensors["b"].data).view("u1")
    staged = staged.uploaded() if uploaded else staged
    assert _gpu.wrong_in(one, staged, right) is None
    for name, image in right.items():
        for at in (-1, 4004) if not guarded else (4004, 4095):
            image[staged.before + at] ^= 1
            with pytest.raises(_verdict.Stop, match=f"outside of {name}, which has 4004 bytes, at its byte {at},"):
                _gpu.wrong_in(one, staged, right)
            image[staged.before + at] ^= 1
    staged.part("a", right["a"])[7] ^= 1
    found = _gpu.wrong_in(one, staged, right)
    assert found is not None and (found.why, found.output, found.index) == ("input_changed", "a", (1,))


def counted(made: list[int]) -> Callable[..., Any]:
    def drawn(rng: Any, n: int) -> dict[str, Any]:
        made.append(n)
        return inputs(rng, n)

    return drawn


OF_ONE = 2 * 4 * 1000 + 8 * 1000  # bytes of a draw: two inputs in f32, the expected result in f64


@pytest.mark.parametrize(("times", "needed"), [(True, _runner.DRAWS + 1 + _judge.TIMED_FEWEST), (False, _runner.DRAWS + 1)])
def test_draws_that_take_too_much_memory(daemon: Daemon, times: bool, needed: int) -> None:
    """One is made, by which it is known; no solution of the task is at fault."""
    made: list[int] = []
    with judge_of(daemon, time=times, draw_bytes=needed * OF_ONE - 1) as judging:
        one = task(cases=[{"n": 1000}], inputs=counted(made))
        for _ in range(2):
            verdict = judging.judge(one, add())
            assert verdict.kind == "no_verdict" and f"{needed} are needed" in verdict.text and "case smaller" in verdict.text, verdict
        assert made == [1000] and not any(entry.draws for entry in judging._pool._entries.values())
    with judge_of(daemon, time=times, draw_bytes=needed * OF_ONE) as judging:
        assert judging.judge(task(cases=[{"n": 1000}]), add()).right


def test_draws_of_several_cases_take_memory_together() -> None:
    made: list[int] = []
    few = _runner.DRAWS + _judge.MORE_INTERPRETED + 1
    one = task(small=[{"n": 1000}, {"n": 2000}], inputs=counted(made))
    with judge.Judge(how="interpreter", draw_bytes=3 * few * OF_ONE - 1) as judging:
        verdict = judging.judge(one, add())
    assert verdict.kind == "no_verdict" and "the case n=2000" in verdict.text and "besides 0.1 MiB of its other cases" in verdict.text
    assert made.count(2000) == 1
    with pytest.raises(kops.BadArgument, match="draw_bytes"):
        judge.Judge(how="interpreter", draw_bytes=0)


def test_what_draws_may_take_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Half of what is there; in a container half of what it may have."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < _draws.half_of_memory() <= whole // 2
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(_draws, "LIMITS", (str(limit), str(tmp_path / "none")))
    for text, bound in (("1000\n", 500), ("max\n", whole // 2)):
        limit.write_text(text)
        assert 0 < _draws.half_of_memory() <= bound
