"""The common executor, on the stand-in driver: what it has and costs, how it is counted, and its end with the whole service.
test_executor_kills.py kills it. As a client of MPS it is ended by MPS or in order, and killed last, because that would end the work of
MPS's other clients."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import prometheus
import pytest
from gpu_machine import DEVICE_LOST_STATUS, ILLEGAL_ADDRESS, UNKNOWN, Machine, N, only_with_nvrtc, only_with_the_standin, square, values
from support import proc, raw
from support.cuda_exporter import Memory
from support.kernels import custom_kernel

pytestmark = only_with_the_standin


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine("[executors]\nisolate = none\n")
    with machine.daemon:
        yield machine


def executor_of(machine: Machine) -> int:
    (pid,) = proc.executors(machine.daemon.pid)
    return pid


def test_the_daemon_has_no_driver(machine: Machine) -> None:
    def loaded(pid: int) -> bool:
        return "libcuda_standin" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")

    assert loaded(executor_of(machine))
    assert not loaded(machine.daemon.pid)


def test_a_signal_to_the_whole_service(machine: Machine) -> None:
    """A service manager ends all processes of a service. Jobs that run are finished first."""
    with machine.daemon.connect() as connection, machine.operands() as (a, out):
        connection.call("run", square(a, out))
        pid = executor_of(machine)
        pidfd = os.pidfd_open(pid)
        with machine.control.gate("kernel"):
            msgid = connection.request("run", square(a, out))
            machine.reaches("kernel")
            os.kill(pid, signal.SIGTERM)
            os.kill(machine.daemon.pid, signal.SIGTERM)
            proc.eventually(lambda: "event=stop" in machine.daemon.log(), "the daemon has the signal")
        connection.reply(msgid).get()
        assert (values(out) == 9).all()
    assert machine.daemon.wait() == 0
    assert select.select([pidfd], [], [], raw.PATIENCE)[0], "the executor ends, too"
    os.close(pidfd)
    machine.daemon.stop(expect=0)


@only_with_nvrtc
@pytest.mark.parametrize("_time", range(3))  # the executor may tell the daemon first, which proves less
@pytest.mark.parametrize("how", ["cuIpcOpenMemHandle", "cuMemCreate", "cuModuleLoadData"])
def test_a_broken_context_is_the_loss_of_its_executor(machine: Machine, how: str, _time: int) -> None:
    """Another one's kernel has broken it: the call that is told so first is no error, but done by the next executor."""
    with machine.daemon.connect() as connection, machine.operands() as (a, out):
        before = executor_of(machine)
        fault = machine.control.fail(how, ILLEGAL_ADDRESS, sticky=True, pid=before)
        if how == "cuMemCreate":
            os.close(connection.reply(connection.request("alloc", {"size": 4096, "device": machine.gpu})).fds[0])
        elif how == "cuModuleLoadData":
            custom_kernel(connection)
        connection.call("run", square(a, out))
        assert fault.fired and (values(out) == 9).all()
        assert executor_of(machine) != before


def test_a_gpu_that_no_executor_can_open_any_more_ends_the_daemon(machine: Machine) -> None:
    with machine.daemon.connect() as connection, machine.operands() as (a, out):
        connection.call("run", square(a, out))
        machine.control.fail("cuDeviceGetCount", UNKNOWN, times=100)
        os.kill(executor_of(machine), signal.SIGKILL)
        error = connection.error("run", square(a, out))
        assert error.code == "device_lost" and "daemon" not in error.detail
        connection.wait_closed()
    machine.daemon.stop(expect=DEVICE_LOST_STATUS)
    assert f"event=device_lost uuid={machine.gpu} action=exit status={DEVICE_LOST_STATUS}" in machine.daemon.log()


@pytest.mark.parametrize("isolation", ["none", "user"])
def test_statistics(isolation: str) -> None:
    """It runs the ops of all users; kernels of a user that has launched none are nowhere yet."""
    machine = Machine(f"[executors]\nisolate = {isolation}\nspares = 0\n")
    with machine.daemon, machine.daemon.connect() as connection, machine.operands() as (a, out):
        connection.call("run", square(a, out))
        pid = executor_of(machine)

        stats = connection.call("stats")
        (row,) = stats["executors"]
        assert (row["pid"], row["state"], row["domain"], row["jobs"]) == (pid, "serving", "common", 0)
        assert 0 < row["device_us"] < 1e6 * row["uptime_s"]
        assert stats["executor_counts"] == {"started": 1, "replaced": 0, "faults": 0, "jobs_ended": 0}

        (client,) = connection.call("clients")["clients"]
        assert client["isolation"] == isolation
        assert client.get("executor") == (pid if isolation == "none" else None)

        metrics = prometheus.parse(connection.call("metrics")["text"])
        states = {s: metrics["kopsd_executors"].value(state=s) for s in ("starting", "spare", "serving", "ending")}
        assert states == {"starting": 0, "spare": 0, "serving": 1, "ending": 0}
        assert metrics["kopsd_executors_started_total"].value() == 1
        device = metrics["kopsd_device_busy_seconds_total"].value(device="0")
        of = metrics["kopsd_executor_device_seconds_total"]
        seconds = {domain: of.value(domain=domain) for domain in ("common", "user", "connection")}
        assert seconds == {"common": device, "user": 0, "connection": 0} and device > 0

        with machine.control.gate("kernel"):
            msgid = connection.request("run", square(a, out))
            machine.reaches("kernel")
            with machine.daemon.connect() as watcher:
                assert [x["jobs"] for x in watcher.call("stats")["executors"]] == [1]
        connection.reply(msgid).get()


CONTROL = """#!/bin/sh
while read -r command server client; do
    echo "$CUDA_MPS_PIPE_DIRECTORY: $command $server $client" >>"{log}"
    case $command in
    get_server_list) printf '%s\\n' noise 1 -5 {server} "12 34" ;;
    terminate_client) {terminate} ;;
    esac
done
"""
TERMINATES, DOES_NOTHING, HANGS = "kill -KILL $client", ":", "sleep 1000"


@pytest.fixture
def polling() -> Iterator[Machine]:
    """Its daemon polls, also on a machine with few processors."""
    machine = Machine(env={"KOPSD_SERVER_SPIN_US": "100"})
    with machine.daemon:
        yield machine


def held(machine: Machine, connection: raw.Connection, a: Memory, out: Memory) -> float:
    """A square whose kernel does not end for a while: how many seconds its answer took."""
    began = time.monotonic()
    out.write(bytes(4 * N))
    with machine.control.gate("kernel"):
        msgid = connection.request("run", square(a, out))
        assert not connection.readable(0.4)
    connection.reply(msgid).get()
    assert (values(out) == values(a) ** 2).all()
    return time.monotonic() - began


def test_work_that_takes_longer_than_it_did(polling: Machine) -> None:
    """Nobody polls for it all that time."""
    with polling.daemon.connect() as connection, polling.operands() as (a, out):
        for _ in range(20):
            connection.call("run", square(a, out))
        pids = {polling.daemon.pid, *proc.executors(polling.daemon.pid)}
        ticks = sum(map(proc.cpu_ticks, pids))
        wall = sum(held(polling, connection, a, out) for _ in range(2))
        assert (sum(map(proc.cpu_ticks, pids)) - ticks) / os.sysconf("SC_CLK_TCK") < wall / 2


def test_work_that_takes_less_time_than_it_did(polling: Machine) -> None:
    """Nobody sleeps for as long as it took before."""
    with polling.daemon.connect() as connection, polling.operands() as (a, out):
        shortest = min(held(polling, connection, a, out) for _ in range(3))
        began = time.monotonic()
        connection.call("run", square(a, out))
        assert time.monotonic() - began < shortest / 2


def environment(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text(encoding="utf-8").split("\0")


class Mps:
    """A server that does nothing, and a control program."""

    def __init__(self, folder: Path, terminate: str | None) -> None:
        self.log = folder / "mps.log"
        self.pipes = folder / "pipes"
        programs = folder / "bin"
        programs.mkdir()
        server = programs / "nvidia-cuda-mps-server"
        server.write_text("#!/bin/sh\nread -r line\n", encoding="utf-8")
        server.chmod(0o755)
        self.server = subprocess.Popen([server], stdin=subprocess.PIPE)
        if terminate is not None:
            control = programs / "nvidia-cuda-mps-control"
            script = CONTROL.format(log=self.log, server=self.server.pid, terminate=terminate)
            control.write_text(script, encoding="utf-8")
            control.chmod(0o755)
        self.env = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
            "KOPS_STANDIN_ATTRIBUTES": "133=1",
        }

    def heard(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []

    def end(self) -> None:
        self.server.communicate()


class Shared(Machine):
    """A machine whose device is reached through MPS."""

    def __init__(self, folder: Path, terminate: str | None, more: str) -> None:
        self.mps = Mps(folder, terminate)
        super().__init__(f"[executors]\n{more}\n[server]\njob_timeout_s = 1\n", self.mps.env)

    def executor(self) -> int:
        (pid,) = proc.executors(self.daemon.pid)
        return pid

    def asked(self, pid: int) -> list[str]:
        """The commands that end the executor."""
        return [f"{self.mps.pipes}: get_server_list  ", f"{self.mps.pipes}: terminate_client {self.mps.server.pid} {pid}"]

    def lose(self, how: str) -> int:
        """Returns the executor that is gone: it was stopped, its context was broken, or a kernel of the daemon's does not
        end."""
        with self.daemon.connect() as connection, self.operands() as (a, out):
            connection.call("run", square(a, out))
            before = self.executor()
            pidfd = os.pidfd_open(before)
            if how == "stopped":
                os.kill(before, signal.SIGSTOP)
                assert connection.error("run", square(a, out)).code == "job_timeout"
            elif how == "broken":
                self.control.fail("kernel", ILLEGAL_ADDRESS)
            else:
                with self.control.gate("kernel"):
                    msgid = connection.request("run", square(out, out))  # not one that is begun anew
                    assert connection.reply_error(msgid).code == "job_timeout"
                    proc.wait_exit(pidfd)
            os.close(pidfd)
            out.write(bytes(4 * N))
            connection.call("run", square(a, out))
            assert (values(out) == 9).all()
            assert self.executor() != before
        return before


Start = Callable[..., Shared]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Shared] = []

    def new(terminate: str | None = TERMINATES, more: str = "isolate = none") -> Shared:
        made.append(Shared(tmp_path, terminate, more))
        return made[-1]

    yield new
    for machine in made:
        machine.daemon.stop()
        machine.daemon.cleanup()
        machine.mps.end()


@pytest.mark.parametrize(
    ("terminate", "how", "end", "why"),
    [
        pytest.param(TERMINATES, "hangs", f"signal={signal.SIGKILL:d}\n", "servers=1 ", id="by MPS"),
        pytest.param(HANGS, "hangs", "status=0\n", 'why="MPS did not answer', id="MPS hangs"),
        pytest.param(None, "hangs", "status=0\n", 'why="nvidia-cuda-mps-control: No such file', id="MPS is missing"),
        pytest.param(DOES_NOTHING, "stopped", "", "", id="killed last"),
    ],
)
def test_an_executor_at_mps_ends(start: Start, terminate: str | None, how: str, end: str, why: str) -> None:
    """Where MPS does not end it the executor ends itself, even if a kernel of its never ends; one that is stopped is killed."""
    machine = start(terminate)
    lost = machine.lose(how)
    log = machine.daemon.log()
    assert machine.mps.heard() == (machine.asked(lost) if terminate else [])
    assert f"event=mps_terminate_client pid={lost} " in log and why in log
    assert not end or f"event=executor_ended pid={lost} {end}" in log
    assert (f"event=executor_killed pid={lost} " in log) == (how == "stopped")
    assert set(proc.children(machine.daemon.pid)) == {machine.executor()}, "nothing of the control program is left"


@pytest.mark.parametrize("how", ["broken", "daemon"])
def test_without_a_kernel_that_runs_it_ends_in_order(start: Start, how: str) -> None:
    """There is nothing that MPS would have to end: as after a fault of another client, which breaks the context, and at the
    daemon's end."""
    machine = start()
    if how == "broken":
        machine.lose("broken")
    else:
        machine.daemon.stop()
    assert not machine.mps.heard()
    assert "event=executor_killed" not in machine.daemon.log()


@only_with_nvrtc
def test_kernels_of_users_are_outside(start: Start) -> None:
    """Executors of domains and spares do not find MPS, and are ended at once."""
    machine = start(more="isolate = user\nspares = 1\n[kernels]\nuser_kernels = all")
    common = machine.executor()
    with machine.daemon.connect() as connection:
        kernel = custom_kernel(connection)
        assert kernel
        proc.eventually(lambda: len(proc.executors(machine.daemon.pid)) == 3, "a domain's and a spare")
        for pid in proc.executors(machine.daemon.pid):
            pipes = str(machine.mps.pipes) if pid == common else "/nonexistent"
            assert f"CUDA_MPS_PIPE_DIRECTORY={pipes}" in environment(pid)
            assert sum(v.startswith("CUDA_MPS_PIPE_DIRECTORY=") for v in environment(pid)) == 1
    machine.daemon.stop()
    assert not machine.mps.heard()
