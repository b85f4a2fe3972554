"""Workers, nodes and daemons that are lost: every item is in the results once, and an item that is to blame is given up alone."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kops
import kops.ray
import pytest
import ray
from kops.ray import _work
from machines import Machines, end, end_both, stop_daemon, supervisor_of, wait_for

N = 120


def pause(k: kops.Client, i: int) -> tuple[int, int]:
    time.sleep(0.02)
    return int(k.add([float(i)], [1.0])[0]), k.info.pid


def gather(run: kops.ray.Run, harm: Any, after: int = 30) -> dict[int, Any]:
    """The results, with the harm done once there are some; each once."""
    results: dict[int, Any] = {}
    for n, (index, value) in enumerate(run):
        assert index not in results
        results[index] = value
        if n == after:
            harm()
    return results


def test_a_node_that_goes_half_way(machines: Machines) -> None:
    with kops.ray.Pool() as pool:
        wait_for(pool, 3)
        victim = next(w for w in pool.workers if w.node_id == machines.nodes[1].node_id)
        run = kops.ray.map(pause, range(N), pool=pool)
        results = gather(run, lambda: machines.kill(machines.nodes[1], victim.daemon))
        assert {i: value[0] for i, value in results.items()} == {i: i + 1 for i in range(N)}
        assert run.retried >= 1 and victim.node not in {worker.node for worker in pool.workers}
        assert [node["lost"] for node in run.stats()["nodes"] if node["node"] == victim.node] == [True]
        assert sum(node["items"] for node in run.stats()["nodes"]) == N


def test_a_new_node_takes_part(machines: Machines) -> None:
    """A pool that asks for more workers than there is room for begins with those that it gets."""
    with kops.ray.Pool(4) as pool:
        run = kops.ray.map(pause, range(N), pool=pool)
        results = gather(run, lambda: machines.node(), after=5)
        assert len(results) == N
        wait_for(pool, 4)


@pytest.mark.parametrize("supervised", [True, False], ids=["supervised", "alone"])
def test_a_daemon_that_goes_half_way(machines: Machines, supervised: bool) -> None:
    """Its worker has another one: the supervisor's, or one that it starts."""
    with kops.ray.Pool() as pool:
        wait_for(pool, 3)
        victim = pool.workers[0]

        def harm() -> None:
            if supervised:
                end(victim.daemon)
            else:
                end_both(supervisor_of(victim.daemon), victim.daemon)

        results: dict[int, Any] = {}
        worked: set[int] = set()  # daemons

        def until_four_have_worked() -> Iterator[int]:
            return itertools.takewhile(lambda _: len(worked) < 4, itertools.count())

        for index, value in kops.ray.map(pause, until_four_have_worked(), pool=pool, in_flight=2):
            assert index not in results
            results[index] = value
            if value[1] not in worked:
                worked.add(value[1])
                if len(worked) == 3:  # a worker's first item may take longer than all of the others' that are done meanwhile
                    harm()
        assert {i: value[0] for i, value in results.items()} == {i: i + 1 for i in range(len(results))} and len(pool.workers) == 3


@pytest.mark.parametrize("in_flight", [1, 4])
def test_an_item_that_ends_its_worker_is_given_up_alone(machines: Machines, in_flight: int, tmp_path: Path) -> None:
    tries = tmp_path / f"tries-{in_flight}"

    def poison(k: kops.Client, i: int) -> int:
        if i == 13:
            with open(tries, "a") as file:
                file.write("x")
            os._exit(1)
        return i

    results = gather(kops.ray.map(poison, range(40), errors="return", in_flight=in_flight), lambda: None)
    given_up = results.pop(13)
    assert results == {i: i for i in range(40) if i != 13}
    assert isinstance(given_up, kops.ray.GivenUp) and given_up.detail["index"] == 13 and given_up.detail["tries"] == 3
    assert isinstance(given_up, kops.KopsError) and "item 13 was given up after 3 tries" in str(given_up)
    assert len(tries.read_text()) in ((3,) if in_flight == 1 else (3, 4))
    with pytest.raises(kops.ray.GivenUp, match="after 1 try"):
        list(kops.ray.map(poison, range(40), tries=1))
    machines.wait_free()


def test_an_item_that_ends_its_daemon_is_given_up(machines: Machines) -> None:
    def poison(k: kops.Client, i: int) -> Any:
        if i == 3:
            os.kill(k.info.pid, signal.SIGKILL)
            k.add([1.0], [2.0])
        return int(k.add([float(i)], [1.0])[0])

    results = gather(kops.ray.map(poison, range(20), errors="return", tries=2, in_flight=8), lambda: None)
    assert isinstance(results.pop(3), kops.ray.GivenUp)
    assert results == {i: i + 1 for i in range(20) if i != 3}


def test_an_argument_that_is_lost_is_no_reason_to_try_for_ever(machines: Machines) -> None:
    from ray._private.internal_api import free

    lost = ray.put(bytes(1 << 20))
    free([lost])
    results = gather(kops.ray.map(lambda k, x: len(x), [b"12", (lost,), b"123"], errors="return", tries=1), lambda: None)
    error = results.pop(1)
    assert results == {0: 2, 2: 3} and isinstance(error, kops.ray.GivenUp) and "data were lost" in str(error)


@pytest.mark.parametrize("how", [{"tries": 2}, {"tries": 1, "workers": 1, "in_flight": 6}], ids=["apart", "behind it"])
def test_an_item_that_takes_too_long_is_given_up(machines: Machines, how: dict[str, int], tmp_path: Path) -> None:
    """And those that wait behind it are not to blame: with one try none of them could be and still have its result."""
    runs = tmp_path / "runs"

    def slow(k: kops.Client, i: int) -> int:
        with open(runs, "a") as file:
            file.write(f"{i} ")
        if i == 2:
            time.sleep(3600)
        return i

    results = gather(kops.ray.map(slow, range(6), errors="return", timeout=2.0, **how), lambda: None)
    error = results.pop(2)
    assert isinstance(error, kops.ray.GivenUp) and "longer than 2 s" in str(error) and error.detail["tries"] == how["tries"]
    assert results == {i: i for i in range(6) if i != 2}
    assert how["tries"] > 1 or sorted(runs.read_text().split()) == ["0", "1", "2", "3", "4", "5"], "none was begun twice"
    machines.wait_free()


def test_an_item_that_lets_its_worker_tell_nothing_is_given_up(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_work, "SILENT_S", 2.0)

    def holds_the_interpreter(k: kops.Client, i: int) -> int:
        if i == 1:
            import ctypes

            ctypes.PyDLL(None).sleep(3600)
        return i

    results = gather(kops.ray.map(holds_the_interpreter, range(4), errors="return", timeout=2.0, tries=1, in_flight=2), lambda: None)
    error = results.pop(1)
    assert isinstance(error, kops.ray.GivenUp) and "its worker answered nothing" in str(error)
    assert results == {0: 0, 2: 2, 3: 3}
    machines.wait_free()


def test_a_result_that_is_handed_out_late_is_no_reason_to_end_its_worker(machines: Machines) -> None:
    with kops.ray.Pool() as pool:
        wait_for(pool, 3)
        workers = {worker.pid for worker in pool.workers}
        for n, _ in enumerate(kops.ray.map(lambda k, i: i, range(9), pool=pool, timeout=1, in_flight=1)):
            if n < 2:
                time.sleep(1.5)
        assert {worker.pid for worker in pool.workers} == workers


def test_a_worker_that_is_lost_in_a_map_in_order(machines: Machines, tmp_path: Path) -> None:
    done = tmp_path / "done"

    def once(k: kops.Client, i: int) -> int:
        if i == 5 and not done.exists():
            done.touch()
            os._exit(1)
        return i

    assert list(kops.ray.map(once, range(60), ordered=True)) == [(i, i) for i in range(60)]


def test_a_daemon_that_cannot_be_started_is_told(machines: Machines) -> None:
    """And workers are not made again and again."""
    broken = {"env_vars": {"KOPSD": "/bin/false"}}
    with pytest.raises(kops.ray.WorkersFailed, match="no daemon could be started") as raised:
        for place in machines.places.values():
            stop_daemon(place / "kopsd.sock")
        list(kops.ray.map(lambda k, i: i, [0], runtime_env=broken))
    assert 1 <= len(raised.value.detail["reasons"]) <= 5
    machines.wait_free()
    assert ray.is_initialized()
