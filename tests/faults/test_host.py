"""Every allocation and every system call on the way of a request fails once, in turn.

A sample of the points by default; KOPS_FAULTS=all takes every one, KOPS_FAULTS=17 every seventeenth.
"""

from __future__ import annotations

import errno
import itertools
import select
import time
from collections import Counter

import pytest
from faults import ALL, ALWAYS, FaultyDaemon, describe, may_last, points
from gpu_machine import only_with_nvrtc
from scenario import fresh_client, play
from support import proc, raw, records
from support.kernels import ADD, ARCH

FAILURES_MAX = 20
ROUNDS = 3  # before anything is counted: what is made once and kept is there then
SPINS = (0, 50) if ALL else (0,)


class Tally:
    def __init__(self) -> None:
        self.points, self.silent, self.by_kind = 0, 0, Counter[str]()
        self.failures: list[str] = []

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {n}" for kind, n in self.by_kind.items())
        return f"{self.points} points ({kinds}); {self.silent} were not reached; {len(self.failures)} failed"


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


def one_point(daemon: FaultyDaemon, before: dict[str, int], kind: str, nth: int, how: int, lasts: int) -> bool:
    daemon.faults.arm(kind, nth, how, lasts)
    play(daemon)
    fired = daemon.faults.fired
    daemon.faults.disarm()
    fresh_client(daemon)
    daemon.wait_holdings(before)
    assert daemon.running()
    return fired > 0


def every_point(daemon: FaultyDaemon, left: list[tuple[str, int, int]], sockets: int, lasts: int, tally: Tally) -> None:
    """Until one fails, or none is left. `sockets`: the daemon's without clients."""
    proc.eventually(
        lambda: proc.fds(daemon.pid)["socket"] == sockets and not proc.maps(daemon.pid), "no client is left"
    )
    before = daemon.holdings()
    while left:
        kind, nth, how = left.pop()
        tally.points += 1
        tally.by_kind[kind] += 1
        try:
            tally.silent += not one_point(daemon, before, kind, nth, how, lasts)
        except (AssertionError, OSError, raw.RpcError, raw.Closed) as error:
            tally.failures.append(f"{describe(kind, nth, how)}: {error!r}; the log: {daemon.log()[-2000:]}")
            return


@pytest.mark.parametrize("spin_us", SPINS)
@pytest.mark.parametrize("lasts", [1, 3, ALWAYS])
def test_every_point(lasts: int, spin_us: int) -> None:
    """Each leaves the daemon serving, every answer right, and nothing behind. With 3 the next two calls fail as well,
    with ALWAYS all of them until the round is over."""
    tally, began = Tally(), time.monotonic()
    left: list[tuple[str, int, int]] | None = None
    while left is None or (left and len(tally.failures) < FAILURES_MAX):
        with FaultyDaemon("--spin-us", str(spin_us)) as daemon:
            sockets = proc.fds(daemon.pid)["socket"]
            counts = warm(daemon)
            if left is None:
                left = [p for p in points(counts, lasts % 17) if lasts != ALWAYS or may_last(p[0], p[2])]
            known = len(tally.failures)
            every_point(daemon, left, sockets, lasts, tally)
            daemon.faults.disarm()
            if len(tally.failures) > known and daemon.process:
                daemon.process.kill()  # whatever state it is in
                daemon.process.wait()
                daemon.log_path.unlink()
                daemon.start()
    report = f"host, lasting {lasts}, spin {spin_us}: {tally}; {time.monotonic() - began:.0f} s"
    print(report)
    records.keep(
        "faults_host", "points", tally.points, lasting="always" if lasts == ALWAYS else lasts, spin_us=spin_us,
        seconds=round(time.monotonic() - began), kinds=dict(tally.by_kind), not_reached=tally.silent, failed=len(tally.failures),
    )  # fmt: skip
    assert not tally.failures, "\n\n".join(tally.failures)
    assert tally.points > (150 if ALL else 5)
    assert tally.silent < tally.points / 2  # a busy machine takes more or fewer calls for the same


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
