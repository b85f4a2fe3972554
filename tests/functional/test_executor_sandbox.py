"""What executors may do: nothing of the daemon's or of the machine's, which tests/unit/executor/test_confine.c tries call by call. Where
the driver lets only administrators read counters, the process that counts has a privilege of the daemon's, which is gone before it knows
code of users: the stand-in grants as the driver does, by the capabilities of the thread that asks."""

from __future__ import annotations

import pwd
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_machine import ILLEGAL_ADDRESS, N, only_with_the_standin
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


def check_confined(pid: int, *more: str) -> None:
    """`more`: sets of capabilities that are empty, too."""
    rows = threads(pid)
    assert len(rows) > 2
    for row in rows:
        for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb", *more):
            assert row[kind] == NONE, (row["Name"], kind, row[kind])
        assert row["NoNewPrivs"] == "1" and row["Seccomp"] == "2", row
        assert len(set(row["Uid"].split())) == 1 and row["Uid"].split()[0] != "0", row


Start, Connect = Callable[..., Machine], Callable[..., Client]
StartedBy = Callable[..., None]


@pytest.fixture
def started_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartedBy:
    def choose(*arguments: str) -> None:
        """Daemons have the privileges that setpriv leaves them."""
        real, script = daemons.binary, tmp_path / "kopsd"
        tmp_path.chmod(0o755)
        script.write_text(f'#!/bin/sh\nexec setpriv {" ".join(arguments)} {real("kopsd")} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setattr(daemons, "binary", lambda name="kopsd": script if name == "kopsd" else real(name))

    return choose


ORDINARY = ("--reuid=54321", "--regid=54321", "--clear-groups", "--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override")


@pytest.mark.parametrize("arguments", [(), ORDINARY], ids=["root", "ordinary"])
def test_an_executor_is_confined(start: Start, client: Connect, started_by: StartedBy, arguments: tuple[str, ...]) -> None:
    """All its threads are. It has nothing of the daemon's environment, and what it says is in the log as its words."""
    if arguments:
        started_by(*arguments)
    machine = start(admin_only=0, HOSTILE_SECRET="told")
    own, _ = begun(machine, client)
    (pid,) = machine.executors()
    check_confined(pid)
    assert "event=executor_sandbox state=complete" in machine.daemon.log()
    assert "HOSTILE_SECRET" not in Path(f"/proc/{pid}/environ").read_text(encoding="utf-8")
    machine.control.fail("kernel", ILLEGAL_ADDRESS, sticky=True, pid=pid)
    own.connection.error("run", own.square(out=own.tensors[:1]))
    proc.eventually(lambda: 'text="cuda_standin: the context of device' in machine.daemon.log(), "what it said is in the log")
    assert not any(line.startswith("cuda_standin") for line in machine.daemon.log().splitlines()), "it writes to the log itself"


def test_without_a_sandbox_it_is_not(start: Start, client: Connect) -> None:
    machine = start(admin_only=0, KOPSD_SERVER_SANDBOX="off")
    begun(machine, client)
    assert {row["Seccomp"] for pid in machine.executors() for row in threads(pid)} == {"0"}


@pytest.mark.parametrize(
    ("settings", "status", "why"),
    [
        ("[server]\nsandbox = perhaps\n", 2, '"perhaps" is none of auto, required, best_effort, off'),
        ("user = no-such-user\n[server]\nsandbox = auto\n", 1, "the user no-such-user is not known"),
        ("user = no-such-user\n[server]\nsandbox = required\n", 1, "the user no-such-user is not known"),
    ],
)
def test_settings_are_checked(tmp_path: Path, settings: str, status: int, why: str) -> None:
    (tmp_path / "conf").write_text(f"{backends.config(backends.STANDIN)}[executors]\nisolate = none\n{settings}", encoding="utf-8")
    done = daemons.run_once("--config", tmp_path / "conf", "--socket", tmp_path / "socket")
    assert done.returncode == status and why in done.stderr


def test_the_user_is_taken(start: Start, client: Connect) -> None:
    machine = start(admin_only=0, KOPSD_EXECUTORS_USER="daemon")
    begun(machine, client)
    uids = {row["Uid"] for pid in machine.executors() for row in threads(pid)}
    assert uids == {"\t".join([str(pwd.getpwnam("daemon").pw_uid)] * 4)}


# ---- counters ----


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
        check_confined(pid, "CapBnd")
        for other in machine.executors() - {pid}:
            assert all(row["CapEff"] == row["CapPrm"] == NONE for row in threads(other))
    assert own.connection.reply(counted).get()["verdict"] == "memory"
    assert USED in machine.daemon.log()
    proc.eventually(lambda: pid not in machine.executors(), "it counts once, and ends")
    own.run()
    own.count()


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


def test_a_daemon_without_it(start: Start, client: Connect, started_by: StartedBy) -> None:
    started_by("--bounding-set=-perfmon,-sys_admin")
    machine = start()
    check_refused(client(machine))
    assert re.search(f"{MISSING} .*the daemon has no CAP_PERFMON", machine.daemon.log())


def test_a_daemon_that_has_nothing_else(start: Start, client: Connect, started_by: StartedBy) -> None:
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
        check_confined(pid, "CapBnd")
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
