"""Every allocation and every system call on the way of a request fails once, in turn.

A sample of the points by default; KOPS_FAULTS=all takes every one, KOPS_FAULTS=17 every seventeenth.
"""

from __future__ import annotations

import errno
import itertools
import select
from collections import Counter
from functools import partial

import pytest
from faults import ALL, ALWAYS, FaultyDaemon, Outcomes, describe, may_last, points
from gpu_machine import only_with_nvrtc
from scenario import fresh_client, play
from support import proc
from support.kernels import ADD, ARCH

FAILURES_MAX = 20
ROUNDS = 3  # before anything is counted: what is made once and kept is there then
SPINS = (0, 50) if ALL else (0,)


def warm(daemon: FaultyDaemon) -> dict[str, int]:
    """What a round asks for, at most."""
    most: Counter[str] = Counter()
    for _ in range(ROUNDS):
        play(daemon)
        fresh_client(daemon)
    for _ in range(ROUNDS):
        daemon.faults.count()
        play(daemon)
        most |= Counter(daemon.faults.disarm())
    return most


def alone(daemon: FaultyDaemon, sockets: int) -> bool:
    """`sockets`: the daemon's own."""
    return proc.fds(daemon.pid)["socket"] == sockets and not proc.maps(daemon.pid)


def one_point(daemon: FaultyDaemon, before: dict[str, int], kind: str, nth: int, how: int, lasts: int) -> str:
    daemon.faults.arm(kind, nth, how, lasts)
    play(daemon)
    fired = daemon.faults.fired
    daemon.faults.disarm()
    fresh_client(daemon)
    daemon.wait_holdings(before)
    assert daemon.running()
    return kind if fired else "not reached"


@pytest.mark.parametrize("spin_us", SPINS)
@pytest.mark.parametrize("lasts", [1, 3, ALWAYS])
def test_every_point(lasts: int, spin_us: int) -> None:
    """Each leaves the daemon serving, every answer right, and nothing behind. With 3 the next two calls fail as well,
    with ALWAYS all of them until the round is over."""
    outcomes = Outcomes()
    left: list[tuple[str, int, int]] | None = None
    while left is None or (left and len(outcomes.failures) < FAILURES_MAX):
        with FaultyDaemon("--spin-us", str(spin_us)) as daemon:
            sockets = proc.fds(daemon.pid)["socket"]
            counts = warm(daemon)
            if left is None:
                left = [p for p in points(counts, lasts % 17) if lasts != ALWAYS or may_last(p[0], p[2])]
            proc.eventually(partial(alone, daemon, sockets), "no client is left")
            before = daemon.holdings()
            good = True
            while left and good:
                point = left.pop()
                good = outcomes.take(daemon, describe(*point), partial(one_point, daemon, before, *point, lasts))
            daemon.faults.disarm()
            if not good:
                daemon.log_path.unlink()
                daemon.start()
    outcomes.tell("faults_host", lasting="always" if lasts == ALWAYS else lasts, spin_us=spin_us)
    assert outcomes.total() > (150 if ALL else 5)
    assert outcomes["not reached"] < outcomes.total() / 2  # a busy machine takes more or fewer calls for the same


@only_with_nvrtc
@pytest.mark.parametrize("nth", range(1, 9))
def test_no_memory_to_watch_a_compiler(nth: int) -> None:
    """The helper, what it says, the processes that compile: a request is refused or goes on with another, the next ones
    are served, and nothing is left."""
    sources = (ADD + f"// {n}\n" for n in itertools.count())
    # What stands in front of the system calls is not what the sandbox expects of a build with a sanitizer.
    with FaultyDaemon("--set", "kernels.keep_s=1", "--set", "server.sandbox=off") as daemon:
        before = daemon.holdings()
        with daemon.connect() as connection:

            def compiled() -> bool:
                params = {"source": next(sources), "entries": ["add2_kernel"], "arch": ARCH}
                error = connection.reply(connection.request("compile", params)).error
                assert error is None or error["code"] == "out_of_memory", error
                return error is None

            assert connection.alive()
            daemon.faults.arm("epoll", nth, errno.ENOMEM)
            proc.eventually(lambda: not compiled() or daemon.faults.fired > 0, "it fails once")
            daemon.faults.disarm()
            proc.eventually(compiled, "it goes on when that is over")
        daemon.wait_holdings(before)


def test_nobody_can_be_accepted() -> None:
    """While accepting fails, and even the descriptor that is kept does not help, newcomers wait: the daemon sleeps in
    between, serves who is there, writes a line now and then, and takes everybody in when it has passed."""
    with FaultyDaemon() as daemon, daemon.connect() as there:
        assert there.alive()
        daemon.faults.arm("accept", 1, errno.EMFILE, ALWAYS)
        newcomers = [daemon.connect() for _ in range(20)]
        proc.eventually(lambda: "event=refuse" in daemon.log(), "it says so")
        switches, lines = proc.context_switches(daemon.pid), daemon.log().count("\n")
        tries = daemon.faults.fired
        select.select([], [], [], 1)
        assert there.alive()
        assert proc.context_switches(daemon.pid) - switches < 200
        assert 0 < daemon.faults.fired - tries < 100
        assert daemon.log().count("\n") - lines <= 3
        daemon.faults.disarm()
        for newcomer in newcomers:
            assert newcomer.alive()
            newcomer.close()


def test_no_memory_to_send_with() -> None:
    """While the kernel has no memory for a socket, the daemon tries again now and then instead of all the time, and
    nothing is lost."""
    with FaultyDaemon() as daemon, daemon.connect() as there:
        assert there.alive()
        daemon.faults.arm("send", 1, errno.ENOBUFS, ALWAYS)
        ids = [there.request("ping", {"n": n}) for n in range(10)]
        proc.eventually(lambda: daemon.faults.fired > 3, "it tries")
        switches = proc.context_switches(daemon.pid)
        assert not there.readable(1)
        assert proc.context_switches(daemon.pid) - switches < 300
        daemon.faults.disarm()
        assert [there.reply(msgid).get() for msgid in ids] == [{"n": n} for n in range(10)]
