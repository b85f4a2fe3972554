"""Counters where the driver lets only administrators read them: by a privilege of the daemon's that is gone before the process
that counts knows code of users. The stand-in grants as the driver does, by the capabilities of the thread that asks."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_machine import N, only_with_the_standin
from standin_cuda.control import Control
from support import backends, proc, raw, users
from support import daemon as daemons
from support.daemon import Daemon
from support.memfd import Shared
from support.users import OPEN, as_root
from test_counters import counting

pytestmark = [only_with_the_standin, as_root]

NONE = "0" * 16
USED, MISSING = "event=counters_privilege state=used", "event=counters_privilege state=missing"


class Machine:
    """A daemon whose executors are confined, beside such a driver. All users can read its folder."""

    def __init__(
        self, folder: Path, allowed: bool = True, admin_only: int = 1, spares: int = 0, maximum: int = 8, more: str = "", **env: str
    ) -> None:
        folder.chmod(0o755)
        for library in (backends.standin_driver(), backends.standin_cupti()):
            shutil.copy(library, folder)
            (folder / library.name).chmod(0o755)
        self.control = Control()
        (folder / "params").write_text(f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {admin_only}\nDmaRemapPeerMmio: 1\n")
        driver = {"KOPS_STANDIN_PARAMETERS": str(folder / "params")} | ({"KOPS_STANDIN_CUPTI_ADMIN": "1"} if admin_only else {})
        library = {"KOPSD_EXECUTORS_CUPTI": str(folder / backends.standin_cupti().name)}
        config = f"[cuda]\ndriver = {folder / backends.standin_driver().name}\nblaslt = none\n{more}"
        config += f"[executors]\nspares = {spares}\nmax = {maximum}\ncounters_privileged = {str(allowed).lower()}\n"
        self.daemon = Daemon(config=config, env=self.control.env | counting() | driver | library | env)
        with self.daemon.connect() as connection:
            devices = connection.call("hello")["devices"]
        self.gpus = [d["uuid"] for d in devices if d["backend"] == "cuda"]

    def executors(self) -> set[int]:
        return set(proc.executors(self.daemon.pid))

    def wait(self, condition: Callable[[], bool]) -> None:
        self.control.wait_for(condition, raw.PATIENCE)

    def counting_process(self, before: set[int]) -> int:
        """Once it has a kernel that waits."""
        found: list[int] = []

        def look() -> bool:
            found[:] = [row.pid for row in self.control.rows() if row.pid not in before and row.waiting("kernel")]
            return bool(found)

        self.wait(look)
        return found[0]


class Client:
    """A connection with shared memory: a sandbox hides other processes' memory from the stand-in driver."""

    def __init__(self, machine: Machine, uid: int = 0) -> None:
        self.connection = users.connect(machine.daemon, uid) if uid else machine.daemon.connect()
        self.tensors = [raw.tensor(self.connection.register(Shared(4 * N)), [N]) for _ in range(2)]
        self.gpu = machine.gpus[0]

    def square(self, **more: Any) -> dict[str, Any]:
        return {"op": "square", "in": self.tensors[:1], "out": self.tensors[1:], "device": self.gpu, **more}

    def ask(self, **more: Any) -> int:
        return self.connection.request("counters", self.square(**more))

    def count(self, **more: Any) -> dict[str, Any]:
        result: dict[str, Any] = self.connection.reply(self.ask(**more)).get()
        return result

    def run(self) -> None:
        self.connection.call("run", self.square())


@pytest.fixture
def start() -> Iterator[Callable[..., Machine]]:
    made: list[tuple[Path, Machine]] = []

    def new(**how: Any) -> Machine:
        folder = Path(tempfile.mkdtemp(prefix="kops-test-"))
        made.append((folder, Machine(folder, **how)))
        return made[-1][1]

    yield new
    for folder, machine in made:
        machine.daemon.stop()
        shutil.rmtree(folder)


@pytest.fixture
def client() -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def new(machine: Machine, uid: int = 0) -> Client:
        made.append(Client(machine, uid))
        return made[-1]

    yield new
    for one in made:
        one.connection.close()


def threads(pid: int) -> list[dict[str, str]]:
    """What /proc says of each thread."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return [dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line) for text in texts]


def check_confined(pid: int) -> None:
    rows = threads(pid)
    assert len(rows) > 4
    for row in rows:
        for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb", "CapBnd"):
            assert row[kind] == NONE, (row["Name"], kind, row[kind])
        assert row["NoNewPrivs"] == "1" and row["Seccomp"] == "2", row
        assert len(set(row["Uid"].split())) == 1 and row["Uid"].split()[0] != "0", row


Start, Connect = Callable[..., Machine], Callable[..., Client]


def begun(machine: Machine, client: Connect) -> tuple[Client, set[int]]:
    """A client that has run something, and the processes from then on."""
    own = client(machine)
    own.run()
    return own, machine.executors()


@pytest.mark.parametrize(("spares", "maximum"), [(0, 8), (1, 8), (1, 2)])
def test_the_privilege_is_gone_when_it_counts(start: Start, client: Connect, spares: int, maximum: int) -> None:
    machine = start(spares=spares, maximum=maximum)
    own = client(machine)
    own.run()
    if spares:
        proc.eventually(lambda: len(machine.executors()) == 2, "the spare is there")
    before = machine.executors()
    with machine.control.gate("kernel"):
        counted = own.ask()
        pid = machine.counting_process(before)
        assert pid not in before, "it is no spare"
        check_confined(pid)
        for other in machine.executors() - {pid}:
            assert all(row["CapEff"] == row["CapPrm"] == NONE for row in threads(other))
    assert own.connection.reply(counted).get()["verdict"] == "memory"
    assert USED in machine.daemon.log()
    proc.eventually(lambda: pid not in machine.executors(), "it counts once, and ends")
    own.run()
    own.count()


def test_others_wait_until_it_has_ended(start: Start, client: Connect) -> None:
    """It could read the counters as long as it lives."""
    machine = start()
    own, other = client(machine), client(machine)
    other.run()
    (common,) = before = machine.executors()
    with machine.control.gate("kernel") as gate:
        counted = own.ask()
        pid = machine.counting_process(before)
        held = other.connection.request("run", other.square())
        other.connection.call("ping", {})
        gate.let(2 * 3)  # two executions in each of three passes
        own.connection.reply(counted).get()
        machine.wait(lambda: machine.control.row(common).waiting("kernel") == 1)
        assert pid not in machine.executors(), "it was reaped before the other one's job was sent"
    other.connection.reply(held).get()


def test_users_in_turn(start: Start, client: Connect) -> None:
    """One process at a time has the counters. Who comes meanwhile waits, and is not refused."""
    machine = start(more=OPEN)
    own, stranger = client(machine), client(machine, users.STRANGER)
    own.run()
    before = machine.executors()
    with machine.control.gate("kernel"):
        counted = own.ask()
        machine.counting_process(before)
        second = stranger.ask()
        for _ in range(2000):  # time in which one that does not wait would start
            stranger.connection.call("ping", {})
        assert machine.daemon.log().count("event=counters_privilege") == 1
    assert own.connection.reply(counted).get()["verdict"] == "memory"
    assert stranger.connection.reply(second).get()["verdict"] == "memory"


def test_the_device_of_the_job(start: Start, client: Connect) -> None:
    machine = start(KOPS_STANDIN_DEVICES="2")
    own = client(machine)
    assert len(machine.gpus) == 2
    for gpu in (*machine.gpus, machine.gpus[0]):
        assert own.count(device=gpu)["verdict"] == "memory"


def test_one_that_is_cancelled(start: Start, client: Connect) -> None:
    """Its process goes without having counted."""
    machine = start()
    own, other = client(machine), client(machine)
    other.run()
    (common,) = machine.executors()
    with machine.control.gate("kernel"):
        first = other.connection.request("run", other.square())
        machine.wait(lambda: machine.control.row(common).waiting("kernel") == 1)
        counted = own.ask()
        proc.eventually(lambda: USED in machine.daemon.log(), "its process has the counters")
        assert own.connection.call("cancel", {"msgid": counted})["cancelled"]
        assert own.connection.reply_error(counted).code == "cancelled"
        proc.eventually(lambda: machine.executors() == {common}, "its process is gone")
    other.connection.reply(first).get()
    own.count()


# ---- where there is no privilege ----


def check_refused(own: Client) -> None:
    error = own.connection.reply_error(own.ask())
    assert error.code == "permission_denied", error
    for part in ("RmProfilingAdminOnly is 1", "NVreg_RestrictProfilingToAdminUsers=0", "executors.counters_privileged"):
        assert part in error.message, error
    assert error.message.endswith("what is missing"), "it is no longer than a message can be"
    own.run()


def test_it_is_not_used_unasked_or_unneeded(start: Start, client: Connect) -> None:
    machine = start(allowed=False)
    check_refused(client(machine))
    assert "counters_privilege " not in machine.daemon.log()
    machine = start(admin_only=0)
    own, before = begun(machine, client)
    own.count()
    assert machine.executors() - before, "its process stays for the next one"
    assert "counters_privilege " not in machine.daemon.log()


@pytest.fixture
def started_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def choose(*arguments: str) -> None:
        """Daemons have the privileges that setpriv leaves them."""
        real, script = daemons.binary, tmp_path / "kopsd"
        tmp_path.chmod(0o755)
        script.write_text(f'#!/bin/sh\nexec setpriv {" ".join(arguments)} {real("kopsd")} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setattr(daemons, "binary", lambda name="kopsd": script if name == "kopsd" else real(name))

    return choose


def test_a_daemon_without_it(start: Start, client: Connect, started_by: Callable[..., None]) -> None:
    started_by("--bounding-set=-perfmon,-sys_admin")
    machine = start()
    check_refused(client(machine))
    assert re.search(f"{MISSING} .*the daemon has no CAP_PERFMON", machine.daemon.log())


def test_a_daemon_that_has_nothing_else(start: Start, client: Connect, started_by: Callable[..., None]) -> None:
    """As the unit's with a drop-in: no root, the one capability."""
    only = "-all,+perfmon,+dac_override"  # the second opens root's files in the test's folders
    sets = [f"--{name}={only}" for name in ("inh-caps", "ambient-caps", "bounding-set")]
    started_by("--reuid=54321", "--regid=54321", "--clear-groups", *sets)
    machine = start()
    own, before = begun(machine, client)
    with machine.control.gate("kernel"):
        counted = own.ask()
        for row in threads(machine.counting_process(before)):
            assert row["CapInh"] == row["CapPrm"] == row["CapEff"] == row["CapAmb"] == NONE, row
            assert row["NoNewPrivs"] == "1" and row["Uid"].split() == ["54321"] * 4
    assert own.connection.reply(counted).get()["verdict"] == "memory"


# ---- threads that the library starts by the privilege ----


@pytest.mark.parametrize("mode", ["thread", "masked"])
def test_a_thread_of_the_library_loses_it(start: Start, client: Connect, mode: str) -> None:
    """Also one that blocks all signals, as threads of libraries do."""
    machine = start(KOPS_STANDIN_CUPTI_ADMIN=mode)
    own, before = begun(machine, client)
    with machine.control.gate("kernel"):
        counted = own.ask()
        pid = machine.counting_process(before)
        check_confined(pid)
        blocked = [int(row["SigBlk"], 16) for row in threads(pid)]
        assert mode != "masked" or (1 << 64) - 1 & ~sum(1 << n - 1 for n in (9, 19, 32, 33)) in blocked
    assert own.connection.reply(counted).get()["verdict"] == "memory"


def test_a_thread_that_keeps_it(start: Start, client: Connect) -> None:
    """Then there is no process at all."""
    machine = start(KOPS_STANDIN_CUPTI_ADMIN="deaf")
    own, before = begun(machine, client)
    error = own.connection.reply_error(own.ask())
    assert re.search(r"thread \d+ \(.+\) has a capability left; it blocks signal 33, on which", error.message), error
    proc.eventually(lambda: machine.executors() == before, "it is gone")
    own.run()


def test_one_that_does_not_come_to_enable(start: Start, client: Connect) -> None:
    """Nobody has used the privilege. It is gone all the same before the process has work."""
    machine = start(KOPS_STANDIN_CUPTI_FAIL="initialize:999")
    own, before = begun(machine, client)
    with machine.control.gate("copy"):
        counted = own.ask()
        machine.wait(lambda: any(row.pid not in before and row.waiting("copy") for row in machine.control.rows()))
        (pid,) = machine.executors() - before
        check_confined(pid)
    assert own.connection.reply_error(counted).code == "device_error"
