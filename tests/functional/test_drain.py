"""drain: what was begun ends, nothing new is begun; resume; stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import prometheus
import pytest
from arrays import LongRun, Vectors
from gpu_machine import only_with_nvrtc, wait_for_compilers
from support import backends, memfd, raw, users
from support.daemon import Daemon
from support.kernels import ADD, ARCH
from support.users import STRANGER, as_root

CONFIG = backends.config(backends.HOST)


@pytest.fixture
def server() -> Iterator[Daemon]:
    with Daemon(config=CONFIG + users.OPEN) as daemon:
        yield daemon


def serves(connection: raw.Connection) -> bool:
    reply = connection.reply(connection.request("alloc", {"size": 1}))
    for fd in reply.fds:
        os.close(fd)
    return reply.error is None


def state(connection: raw.Connection) -> str:
    """As every way of asking says it."""
    told = connection.call("clients")["state"]
    family = prometheus.parse(connection.call("metrics")["text"])["kopsd_state"]
    assert {dict(labels)["state"] for (_, labels), value in family.samples.items() if value} == {told}
    return told


def stop(connection: raw.Connection, run: LongRun) -> None:
    connection.call("cancel", {"msgid": run.msgid})
    assert connection.reply_error(run.msgid).code == "cancelled"


def test_idle(server: Daemon) -> None:
    with server.connect() as connection:
        assert connection.call("drain") == {"drained": True, "jobs": 0, "connections": 1}
        assert state(connection) == "draining"
        asked = [connection.request("alloc", {"size": 1}) for _ in range(100)]
        assert connection.alive()
        assert {connection.reply_error(m).code for m in asked} == {"shutting_down"}
        assert connection.call("drain", {"resume": True}) == {"drained": True, "jobs": 0, "connections": 1}
        assert state(connection) == "serving"
        assert connection.error("drain", {"timeout_ms": -1}).code == "out_of_range"
        assert connection.error("drain", {"now": True}).code == "unknown_key"
        assert state(connection) == "serving"


def test_work_in_flight_ends_and_new_work_is_refused(server: Daemon) -> None:
    with server.connect() as worker, server.connect() as admin:
        vectors = Vectors(worker, 2, 1000)
        vectors[0][:] = 3
        long = LongRun(worker)
        behind = worker.request("run", {"op": "square", "in": [vectors.tensor(0)], "out": [vectors.tensor(1)]})
        assert worker.alive()
        asked = admin.request("drain")
        assert admin.alive()
        assert state(worker) == "draining"
        assert asked not in admin.replies
        shared = memfd.Shared(4096)
        params: dict[str, Any] = {"op": "square", "in": [vectors.tensor(0)], "out": [vectors.tensor(1)]}
        # All methods that begin work: the model test.
        for method, given in (("run", params), ("alloc", {"size": 1}), ("launch", {"kernel": 1, "args": []})):
            error = worker.error(method, given)
            assert (error.code, error.detail.get("draining")) == ("shutting_down", True), method
        error = worker.error("register", {"kind": "memfd", "size": 4096, "fd": 0}, [shared.fd])
        assert (error.code, error.detail.get("draining")) == ("shutting_down", True)
        for method in ("hello", "stats", "trim", "clients", "metrics"):
            worker.request(method)
        worker.call("release", {"buffer": worker.call("clients") and vectors.buffer})
        assert worker.reply(worker.request("cancel", {"msgid": 999_999})).get() == {"cancelled": False}
        assert asked not in admin.replies
        stop(worker, long)
        worker.reply(behind).get()
        assert (vectors[1] == 9).all(), "what was queued before has run"
        assert admin.reply(asked).get() == {"drained": True, "jobs": 0, "connections": 2}
        with server.connect() as newcomer:
            assert newcomer.alive()
            assert newcomer.error("alloc", {"size": 1}).code == "shutting_down"
            admin.call("drain", {"resume": True})
            assert serves(newcomer)
    assert [e for e in ("drain", "drained", "resume") if f"event={e} " not in server.log()] == []


def test_a_timeout_ends_the_wait_and_not_the_draining(server: Daemon) -> None:
    with server.connect() as worker, server.connect() as admin:
        long = LongRun(worker)
        assert admin.call("drain", {"timeout_ms": 50}) == {"drained": False, "jobs": 1, "connections": 2}
        assert state(admin) == "draining"
        patient, hasty = admin.request("drain"), admin.request("drain", {"timeout_ms": 20})
        assert admin.reply(hasty).get()["drained"] is False
        assert patient not in admin.replies
        stop(worker, long)
        assert admin.reply(patient).get()["drained"] is True


def test_resume_answers_those_who_wait(server: Daemon) -> None:
    with server.connect() as worker, server.connect() as first, server.connect() as second:
        long = LongRun(worker)
        waiting = [(c, c.request("drain", {"stop": c is second})) for c in (first, second)]
        assert first.alive() and second.alive()
        assert worker.call("drain", {"resume": True}) == {"drained": False, "jobs": 1, "connections": 3}
        for connection, msgid in waiting:
            assert connection.reply(msgid).get()["drained"] is False
        stop(worker, long)
        assert worker.alive() and state(worker) == "serving", "the stop was taken back, too"
        assert worker.call("drain")["drained"] is True
        assert worker.alive() and state(worker) == "draining"


@pytest.mark.parametrize("supervised", [False, True])
@pytest.mark.parametrize("leaves", [False, True], ids=["who asked waits", "who asked is gone"])
def test_stop_waits_for_what_is_in_flight(leaves: bool, supervised: bool) -> None:
    """A supervisor ends with it: the end was asked for."""
    server = Daemon(*["--supervise"] * supervised, config=CONFIG)
    with server, server.connect() as worker:
        vectors = Vectors(worker, 2, 1000)
        vectors[0][:] = 3
        long = LongRun(worker)
        last = worker.request("run", {"op": "square", "in": [vectors.tensor(0)], "out": [vectors.tensor(1)]})
        assert worker.alive()
        admin = server.connect()
        asked = admin.request("drain", {"stop": True})
        assert admin.alive() and server.running()
        if leaves:
            admin.close()
        assert state(worker) == "draining"
        stop(worker, long)
        worker.reply(last).get()
        assert (vectors[1] == 9).all()
        if not leaves:
            assert admin.reply(asked).get()["drained"] is True
            assert admin.wait_closed() is None
            admin.close()
        assert worker.wait_closed() is None
        assert server.wait() == 0
        assert "event=supervise_restart" not in server.log()


@pytest.mark.parametrize("how", ["stop", "sigterm"])
def test_stop_when_the_time_is_over(how: str) -> None:
    """The grace, then what still runs is cancelled, and the status is 0: as after SIGTERM, which may come while it drains."""
    with Daemon(config=CONFIG + "[server]\nshutdown_grace_ms = 50\n") as daemon:
        with daemon.connect() as worker, daemon.connect() as admin:
            long = LongRun(worker)
            if how == "stop":
                reply = admin.call("drain", {"stop": True, "timeout_ms": 50})
                assert reply["drained"] is False and reply["jobs"] == 1
            else:
                asked = admin.request("drain")
                assert admin.alive()
                os.kill(daemon.pid, signal.SIGTERM)
            assert worker.reply_error(long.msgid).code == "cancelled"
            if how == "sigterm":
                assert admin.reply(asked).get()["drained"] is True
            assert worker.wait_closed() is None and admin.wait_closed() is None
        assert daemon.wait() == 0


def test_the_manager_hears_of_it() -> None:
    with Daemon(config=CONFIG, manager=True) as daemon:
        with daemon.connect() as connection:
            connection.call("drain")
            assert daemon.heard("STATUS=draining; 1 client, 0 jobs running")
            connection.call("drain", {"resume": True})
            assert daemon.heard("STATUS=serving; 1 client")
            connection.call("drain", {"stop": True})
            assert daemon.heard("STOPPING=1")
        assert daemon.wait() == 0


@only_with_nvrtc
def test_a_compile_is_work(server: Daemon) -> None:
    """What a compiler process does for somebody is waited for, too, and the answer comes."""
    config = "[cuda]\ndriver = none\n[kernels]\nuser_kernels = owner\n"
    with Daemon(config=config) as daemon, daemon.connect() as worker, daemon.connect() as admin:
        asked = worker.request("compile", {"source": ADD, "entries": ["add2_kernel"], "arch": ARCH})
        assert worker.alive()
        drained = admin.request("drain")
        assert admin.reply(drained).get() == {"drained": True, "jobs": 0, "connections": 2}
        assert worker.reply(asked).get()["cached"] == "no"
        assert worker.error("compile", {"source": ADD, "entries": ["add2_kernel"]}).code == "shutting_down"
        wait_for_compilers(daemon.pid, 2)


@as_root
def test_for_administrators() -> None:
    """Others are told so and nothing changes; who is in the list may."""
    for administer, allowed in (("owner", False), (str(STRANGER), True)):
        config = CONFIG + users.OPEN + f"[access]\nadminister = {administer}\n"
        with Daemon(config=config) as daemon:
            with users.connect(daemon, STRANGER) as stranger:
                if allowed:
                    assert stranger.call("drain")["drained"]
                    assert len(prometheus.parse(stranger.call("metrics")["text"])["kopsd_user_fds"].samples) == 1
                    continue
                for params in ({}, {"stop": True}, {"resume": True}):
                    error = stranger.error("drain", params)
                    assert (error.code, error.detail["method"]) == ("permission_denied", "drain")
                assert state(stranger) == "serving" and serves(stranger)
