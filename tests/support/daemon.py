"""Starts a kopsd of its own for a test and sees that it ends well.

KOPSD is the binary's path; without it, KOPS_BUILD/bin/kopsd.
"""

from __future__ import annotations

import atexit
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from . import proc, raw

ROOT = Path(__file__).resolve().parents[2]
REPORTS = (
    "ERROR: AddressSanitizer",
    "ERROR: LeakSanitizer",
    "WARNING: ThreadSanitizer",
    "runtime error:",
    "event=account_leak",
    "cuda_standin: misuse",
)
CLOSING = ("the daemon does not stop", "the daemon's log has a report of a fault")


def build_folder() -> Path:
    return Path(os.environ.get("KOPS_BUILD", ROOT / "build" / "dev")).resolve()


def binary(name: str = "kopsd") -> Path:
    given = os.environ.get(name.upper())
    return Path(given) if given else build_folder() / "bin" / name


def reachable(folder: Path, name: str = "kopsd") -> Path:
    """A copy of the binary in a folder of the test's, opened to everybody: other users cannot run the one in a checkout that
    lies below a folder of its owner's, such as /root."""
    folder.chmod(0o755)
    return Path(shutil.copy(binary(name), folder))


@cache
def binary_has(symbol: bytes) -> bool:
    """It is some 30 MB long, with all kernels in it."""
    return symbol in binary().read_bytes()


def sanitized() -> bool:
    """The binary was built with a sanitizer: it needs more memory and time than it should."""
    return binary_has(b"__asan_init") or binary_has(b"__tsan_init")


def thread_sanitized() -> bool:
    """Built with ThreadSanitizer, whose own thread wakes up ten times a second."""
    return binary_has(b"__tsan_init")


def _remove_at_exit(folder: Path) -> None:
    """Where a test stops a daemon and reads its files later, nobody else removes them. Not at the exit of a fork."""
    process = os.getpid()
    atexit.register(lambda: os.getpid() == process and shutil.rmtree(folder, ignore_errors=True))


# Settings without processes that come at a time of their own: a tuner kept ready, further compilers, spare executors.
STEADY = (("tuning", "ready", "off"), ("kernels", "helpers", "1"), ("executors", "spares", "0"))


class Daemon:
    """A running daemon. `config` is the text of its configuration file. With `manager` what it notifies after it has got
    ready is kept for heard()."""

    def __init__(
        self,
        *args: str,
        config: str | None = None,
        env: dict[str, str] | None = None,
        socket_path: str | None = None,
        give_socket: bool = True,
        listen: socket.socket | None = None,
        user: int | None = None,
        manager: bool = False,
        start: bool = True,
        steady: bool = True,
    ) -> None:
        """`steady`: with the settings of STEADY that `config` has none of; False: as it is by itself."""
        self.folder = Path(tempfile.mkdtemp(prefix="kops-test-"))
        _remove_at_exit(self.folder)
        self.socket_path = socket_path or str(self.folder / "kopsd.sock")
        self.log_path = self.folder / "log"
        self.command = [str(binary())]
        if give_socket and listen is None:
            self.command += ["--socket", self.socket_path]
        if config is not None:
            (self.folder / "kopsd.conf").write_text(config, encoding="utf-8")
        # Without a file of its own a daemon would read the machine's.
        elif not any(a.startswith("--config") for a in args):
            (self.folder / "kopsd.conf").write_text("", encoding="utf-8")
        if not any(a.startswith("--config") for a in args):
            self.command += ["--config", str(self.folder / "kopsd.conf")]
        self.command += args
        self.env = {
            k: v for k, v in os.environ.items() if not k.startswith(("KOPS_SOCKET", "KOPSD_", "LISTEN_", "NOTIFY_"))
        }
        self.env.setdefault("ASAN_OPTIONS", "detect_leaks=1:exitcode=99")
        self.env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1:exitcode=99")
        # Whoever says more than this should not lose the suppressions by it.
        tsan = f"exitcode=99 history_size=7 suppressions={ROOT / 'tests/tsan.supp'}"
        self.env["TSAN_OPTIONS"] = f"{tsan} {self.env.get('TSAN_OPTIONS', '')}"
        if "KOPS_TEST_ISOLATE" in os.environ:  # runs any test with that placement
            self.env["KOPSD_EXECUTORS_ISOLATE"] = os.environ["KOPS_TEST_ISOLATE"]
        for section, key, value in STEADY if steady else ():
            if f"{key} = " not in (config or ""):
                self.env[f"KOPSD_{section}_{key}".upper()] = value
        self.env["CACHE_DIRECTORY"] = str(self.folder / "cache")  # not the machine's
        self.env.update(env or {})
        self.listen = listen
        self.user = user
        if user is not None:
            os.chown(self.folder, user, user)
            self.command[0] = str(reachable(self.folder))
        self.process: subprocess.Popen[bytes] | None = None
        self.ready_text = ""
        self.manager: socket.socket | None = None
        self.managed = manager
        if start:
            self.start()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def gpu_pid(self) -> int:
        """The process that does the GPU work: the daemon itself, or its executor."""
        return next(iter(proc.executors(self.pid)), self.pid)

    def start(self) -> None:
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        if self.manager is not None:
            self.manager.close()
            os.unlink(self.folder / "notify")
        notify.bind(str(self.folder / "notify"))
        if self.user is not None:
            os.chown(self.folder / "notify", self.user, self.user)
        self.ready_text = ""
        self.env["NOTIFY_SOCKET"] = str(self.folder / "notify")
        with open(self.log_path, "ab") as log:
            if self.listen is None:
                self.process = subprocess.Popen(
                    self.command, env=self.env, user=self.user, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            else:
                self.process = self.start_activated(log)
        self.pidfd = os.pidfd_open(self.process.pid)
        try:
            while "READY=1" not in self.ready_text:
                ready, _, _ = select.select([notify, self.pidfd], [], [], raw.PATIENCE)
                assert notify in ready, f"the daemon did not get ready; its log:\n{self.log()}"
                self.ready_text += notify.recv(4096).decode() + "\n"
        finally:
            if self.managed:
                self.manager = notify
            else:
                notify.close()
                os.unlink(self.folder / "notify")

    def heard(self, line: str) -> str:
        """Waits for a notification with such a line, of which a part is enough; the message."""
        assert self.manager is not None
        while True:
            assert select.select([self.manager], [], [], raw.PATIENCE)[0], f"no {line}; the log:\n{self.log()}"
            message = self.manager.recv(4096).decode()
            if line in message:
                return message

    def heard_of_late(self) -> list[str]:
        """The notifications that are there now."""
        assert self.manager is not None
        messages = []
        while select.select([self.manager], [], [], 0)[0]:
            messages.append(self.manager.recv(4096).decode())
        return messages

    def start_activated(self, log: object) -> subprocess.Popen[bytes]:
        """With the socket as descriptor 3, as systemd hands it over. LISTEN_PID needs the pid after the fork."""
        assert self.listen is not None
        shell = 'exec 3<&"$1"; shift; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"'
        fd = self.listen.fileno()
        return subprocess.Popen(
            ["/bin/bash", "-c", shell, "bash", str(fd), *self.command],
            env=self.env,
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )  # type: ignore[call-overload]

    def connect(self, **options: int) -> raw.Connection:
        return raw.Connection(self.socket_path, **options)

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def holdings(self) -> dict[str, int]:
        return proc.holdings(self.pid)

    def wait_holdings(self, before: dict[str, int]) -> None:
        """Descriptors and mappings return to where they were."""
        proc.eventually(lambda: proc.no_more(self.holdings(), before), lambda: f"{before}, but {self.holdings()}")

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        assert self.process is not None
        try:
            return self.process.wait(raw.PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"{CLOSING[0]}; its log:\n{self.log()}") from None

    def check_log(self) -> None:
        log = self.log()
        assert not any(report in log for report in REPORTS), f"{CLOSING[1]}:\n{log}"

    def stop(self, expect: int = 0) -> None:
        """SIGTERM; a clean exit within the test's patience, without a sanitizer's report."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.wait()
        self.process = None
        os.close(self.pidfd)
        self.check_log()
        assert status == expect, f"exit status {status}; its log:\n{self.log()}"

    def cleanup(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.manager is not None:
            self.manager.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.stop()
        finally:
            self.cleanup()


def run_once(*args: object, env: dict[str, str] | None = None, user: int | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    """A kopsd that ends by itself, with nothing of this process's environment that is meant for one. `user`: as another one."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("KOPS", "NOTIFY_", "LISTEN_"))}
    with tempfile.TemporaryDirectory() as folder:
        program = binary() if user is None else reachable(Path(folder))
        other = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        return subprocess.run(
            [str(program), *map(str, args)], env={**clean, "CACHE_DIRECTORY": "/nonexistent", **(env or {})},
            capture_output=True, text=True, timeout=raw.PATIENCE, check=False, **other, **more,
        )  # fmt: skip


def check_config(path: Path, env: dict[str, str] | None = None, user: int | None = None) -> subprocess.CompletedProcess[str]:
    """What kopsd says of a file."""
    return run_once("--check-config", "--config", path, "--socket", "/tmp/unused.sock", env=env, user=user)
