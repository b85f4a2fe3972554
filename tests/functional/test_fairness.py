"""What one user does costs that user: by the order of replies and by what is told, never by the clock."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from arrays import LongRun, Vectors
from support import backends, memfd, proc, raw, users
from support.daemon import Daemon
from support.kernels import ADD, ARCH
from support.users import as_root

ALICE, BOB = 54001, 54002

pytestmark = as_root


@pytest.fixture(scope="module")
def everybodys() -> Iterator[Daemon]:
    with Daemon(config=users.OPEN + "[server]\nbackend = host\n") as daemon:
        yield daemon


def replies(connection: raw.Connection) -> int:
    """How many replies there were before this one's answer was begun."""
    return int(connection.call("stats")["counters"]["replies"])


@contextmanager
def all_at_once(daemon: Daemon) -> Iterator[None]:
    """Nothing is looked at before everything is there."""
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def test_a_message_of_too_many_values_is_refused_and_the_connection_lives(everybodys: Daemon) -> None:
    with users.connect(everybodys, BOB) as bob:
        limits = bob.call("hello")["limits"]
        n = limits["message_values"]
        for method in ("ping", "run", "sequence"):
            error = bob.error(method, {"x": [1] * (n + 1)})
            assert (error.code, error.detail["limit"]) == ("limit_exceeded", n)
        assert bob.error("none", {"x": [1] * (n + 1)}).code == "unknown_method"
        whole = {"x": [1] * (n - 8)}  # with the array, the map, the key and what stands before them
        assert bob.call("ping", whole) == whole
        assert bob.error("ping", {"x": [1] * (n - 7)}).detail == {"limit": n, "value": n + 1}
        bob.send(raw.pack([2, "ping", [{"x": [1] * (n + 1)}]]))
        assert bob.alive()


def test_who_does_not_read_gets_no_more_long_answers(everybodys: Daemon) -> None:
    """Each answer is built when its turn comes and the client has read those before it."""
    with users.connect(everybodys, BOB) as bob, everybodys.connect() as root, users.connect(everybodys, ALICE) as alice:
        for _ in range(200):
            bob.register(memfd.Shared(4096))
        run = LongRun(bob)
        asked = range(1000, 1200)
        bob.send(b"".join(raw.pack_request(msgid, "stats", {}) for msgid in asked))

        def row() -> dict[str, int]:
            return next(row for row in root.call("clients")["clients"] if row["uid"] == BOB)

        proc.eventually(lambda: row()["inflight"] == 201, everybodys.log)
        bob.request("cancel", {"msgid": run.msgid})
        proc.eventually(lambda: row()["output_bytes"], everybodys.log)
        for _ in range(10):
            assert alice.alive()
        waiting = row()["output_bytes"]
        size = len(raw.pack(bob.reply(asked[0]).get()))
        assert waiting <= 256 * 1024 + size
        assert all(len(bob.reply(msgid).get()["mappings"]) == 201 for msgid in asked[1:])


def test_stats_tell_an_ordinary_user_nothing_of_others(everybodys: Daemon) -> None:
    """Neither sizes, processes nor shapes; an administrator sees all."""
    secret = 7919
    with users.connect(everybodys, ALICE) as alice, users.connect(everybodys, BOB) as bob, everybodys.connect() as root:
        vectors = Vectors(alice, 2, secret)
        alice.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
        bob.register(memfd.Shared(4096))
        assert str(secret) not in str(bob.call("stats")["ops"])
        mine = bob.call("stats")
        assert [m["size"] for m in mine["mappings"]] == [4096]
        assert mine["mappings_all"] >= 2
        assert all(row["uid"] == BOB for row in mine["ops"])
        hers = alice.call("stats")
        assert len(hers["mappings"]) == 1 and any(row["shapes"][0] == [secret] for row in hers["ops"])
        everything = root.call("stats")
        assert {4096, hers["mappings"][0]["size"]} <= {m["size"] for m in everything["mappings"]}
        assert any(row["uid"] == ALICE and row["shapes"][0] == [secret] for row in everything["ops"])
        # Of memory that both have, each is told of the references of their own.
        shared = memfd.Shared(12288)
        for connection in (alice, bob, bob):
            connection.register(shared)
        counts = [[m["users"] for m in c.call("stats")["mappings"] if m["size"] == 12288] for c in (alice, bob)]
        assert counts[0] == [1] and sum(counts[1]) == 2


def test_long_answers_are_built_one_at_a_time(everybodys: Daemon) -> None:
    """Many connections of a user that ask for long answers hold up nobody, and each gets its own."""
    mappings, askers = 3000, 12
    with users.connect(everybodys, BOB) as holder, users.connect(everybodys, ALICE) as alice:
        for _ in range(mappings):
            holder.register(memfd.Shared(4096))
        bobs = [users.connect(everybodys, BOB) for _ in range(askers)]
        for bob in bobs:
            assert bob.alive()
        before = replies(alice)
        with all_at_once(everybodys):
            asked = [bob.request("stats") for bob in bobs]
            hers = alice.request("stats")
        assert alice.reply(hers).get()["counters"]["replies"] - before <= 3
        for bob, msgid in zip(bobs, asked):
            assert len(bob.reply(msgid).get()["mappings"]) == mappings
            bob.close()


def test_the_loop_comes_before_what_computes(everybodys: Daemon) -> None:
    """Threads that large work keeps busy, and those of the pool, are nicer; the loop and small work are not."""
    with everybodys.connect() as connection:
        n = 1 << 20
        vectors = Vectors(connection, 3, n)
        connection.run("add", [vectors.tensor(0), vectors.tensor(1)], [vectors.tensor(2)])
        os.close(connection.reply(connection.request("alloc", {"size": 1 << 20})).fds[0])
        small = raw.tensor(vectors.buffer, [16])
        connection.run("square", [small], [{**small, "offset": 64}])
        names: dict[str, set[int]] = {}
        for task in Path(f"/proc/{everybodys.pid}/task").iterdir():
            name = (task / "comm").read_text(encoding="utf-8").strip()
            names.setdefault(name, set()).add(os.getpriority(os.PRIO_PROCESS, int(task.name)))
        own = os.getpriority(os.PRIO_PROCESS, 0)  # which the daemon has from here
        nicer = {min(own + 5, 19)}
        assert os.getpriority(os.PRIO_PROCESS, everybodys.pid) == own
        assert names["kops-heavy"] == nicer and names["kops-light"] == {own}
        assert all(nice == nicer for name, nice in names.items() if name.startswith("kops-work"))
        assert names["kopsd"] <= {own, *nicer} and nicer <= names["kopsd"]  # the pool's threads have the process's name


def compile_params(source: str, entry: str) -> dict[str, Any]:
    return {"source": source, "entries": [entry], "arch": ARCH}


def doublings(depth: int, what: str) -> dict[str, Any]:
    """A source of 2^depth macros, which takes time and little memory: 2^16 take 0.2 s, 2^20 take 46."""
    macros = "".join(f"#define M{i + 1} M{i} M{i}\n" for i in range(depth))
    source = f"""#define M0
    {macros}
    extern "C" __global__ void k(long* p) {{ M{depth} *p = 1; }} // {what}"""
    return compile_params(source, "k")


@pytest.mark.skipif(backends.nvrtc() is None, reason="there is no NVRTC here")
@pytest.mark.parametrize(("helpers", "attackers"), [(2, 1), (1, 1), (2, 2)])
def test_a_compile_does_not_wait_for_the_end_of_other_users_compiles(helpers: int, attackers: int) -> None:
    """Theirs never end by themselves. One that was interrupted goes on where it was."""
    config = users.OPEN + f"[server]\nbackend = host\n[kernels]\nhelpers = {helpers}\n"
    with Daemon(config=config) as daemon, users.connect(daemon, ALICE) as alice, ExitStack() as stack:
        alice.call("compile", compile_params(ADD, "add2_kernel"))  # from here on the compiler runs
        bombs = [stack.enter_context(users.connect(daemon, BOB + i)) for i in range(attackers) for _ in range(4)]
        finite = bombs[0].request("compile", doublings(17, "one that ends"))
        for number, bomb in enumerate(bombs[1:]):
            for i in range(3):
                bomb.request("compile", doublings(40, f"{i} of {number}"))
        proc.eventually(lambda: alice.call("stats")["kernels"]["compiles"] > helpers, "the compilers have the others' sources")
        for i in range(3):
            alice.call("compile", compile_params(ADD + f"// {i}\n", "add2_kernel"))
        for bomb in bombs[1:]:
            if select.select([bomb.socket], [], [], 0)[0]:
                bomb.read_some()
            assert not bomb.replies, "a compile that has no end has ended"
        for bomb in bombs[1:]:
            bomb.close()
        assert bombs[0].reply(finite).get()["cached"] == "no"
