"""kopsctl metrics: printed, written to a file as one step, served on a port."""

from __future__ import annotations

import http.client
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ENV, Ctl
from fake import FakeDaemon, Refused
from support import daemon as support
from support import proc

TEXT = '# TYPE kopsd_requests_total counter\nkopsd_requests_total{method="run"} 7\n'
Start = Callable[..., subprocess.Popen[str]]
WITHOUT = "built without libmicrohttpd"
COMMAND = [str(support.binary("kopsctl")), "metrics", "--listen", "nowhere"]
needs_http = pytest.mark.skipif(WITHOUT in subprocess.run(COMMAND, capture_output=True, text=True).stderr, reason=WITHOUT)


@pytest.fixture(autouse=True)
def answer(fake: FakeDaemon) -> None:
    fake.answers["metrics"] = {"text": TEXT}


def value(text: str, name: str) -> str:
    """Of a metric without labels."""
    (line,) = [line for line in text.splitlines() if line.startswith(name + " ")]
    return line.split()[1]


def test_printed(fake: FakeDaemon, ctl: Ctl) -> None:
    assert ctl("metrics").stdout == TEXT
    assert json.loads(ctl("metrics", "--json").stdout) == {"text": TEXT}


# A file


def test_textfile(ctl: Ctl, tmp_path: Path) -> None:
    path = tmp_path / "kopsd.prom"
    os.umask(old := os.umask(0o077))
    try:
        os.umask(0o077)
        ctl("metrics", "--textfile", str(path))
    finally:
        os.umask(old)
    text = path.read_text()
    assert text.endswith(TEXT) and value(text, "kopsd_up") == "1"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["kopsd.prom"], "nothing is left beside it"


def test_textfile_when_the_daemon_is_away(fake: FakeDaemon, ctl: Ctl, tmp_path: Path) -> None:
    path = tmp_path / "kopsd.prom"
    path.write_text("of before")
    fake.close()
    assert "does not answer" in ctl("metrics", "--textfile", str(path), status=3).stderr
    text = path.read_text()
    assert value(text, "kopsd_up") == "0" and "# TYPE kopsd_up gauge" in text and "requests" not in text


def test_the_daemon_may_say_itself_that_it_is_up(fake: FakeDaemon, ctl: Ctl, tmp_path: Path) -> None:
    fake.answers["metrics"] = {"text": "# TYPE kopsd_up gauge\nkopsd_up 1\n" + TEXT}
    path = tmp_path / "kopsd.prom"
    ctl("metrics", "--textfile", str(path))
    assert path.read_text().count("kopsd_up 1") == 1


def test_a_reader_never_sees_half_a_file(fake: FakeDaemon, start: Start, tmp_path: Path) -> None:
    """Large texts, written as fast as may be, read all the time."""
    path = tmp_path / "kopsd.prom"
    body = "".join(f"kopsd_x{{i=\"{i}\"}} %d\n" for i in range(20000))
    count = iter(range(10**9))

    def numbered(_: Any) -> Any:
        n = next(count)
        return {"text": body % ((n,) * 20000) + f"kopsd_end {n}\n"}

    fake.answers["metrics"] = numbered
    writer = start("metrics", "--textfile", str(path), "--interval", "0.1")
    seen: set[str] = set()
    beside: set[str] = set()
    proc.eventually(path.exists, "the file is written")
    while len(seen) < 8:
        text = path.read_text()
        n = value(text, "kopsd_end")
        assert text.endswith(f'kopsd_x{{i="19999"}} {n}\nkopsd_end {n}\n')
        assert text.count(f" {n}\n") >= 20001
        seen.add(n)
        beside |= set(os.listdir(tmp_path)) - {"kopsd.prom"}
        assert writer.poll() is None
    assert all(name.startswith(".kopsd.prom.") for name in beside), "a collector takes *.prom only"
    writer.send_signal(signal.SIGTERM)
    assert writer.wait() == 0
    assert os.listdir(tmp_path) == ["kopsd.prom"]


def test_interval_goes_on_through_a_restart(fake: FakeDaemon, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "kopsd.prom"
    writer = start("metrics", "--textfile", str(path), "--interval", "0.1")

    def up() -> str:
        return value(path.read_text(), "kopsd_up") if path.exists() else ""

    proc.eventually(lambda: up() == "1", "the daemon is up")
    fake.close()
    proc.eventually(lambda: up() == "0", "the daemon is away")
    again = fake.revive()
    proc.eventually(lambda: up() == "1", "the daemon is up again")
    writer.send_signal(signal.SIGINT)
    assert writer.wait() == 0
    assert writer.stderr is not None and len(writer.stderr.readlines()) == 2, "said once for each change"
    again.close()


def test_no_link_is_followed(ctl: Ctl, tmp_path: Path) -> None:
    """A link at the path itself is replaced; what it led to stays as it was."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "folder" / "kopsd.prom"
    path.parent.mkdir()
    path.symlink_to(victim)
    ctl("metrics", "--textfile", str(path))
    assert victim.read_text() == "precious" and not path.is_symlink() and path.read_text().endswith(TEXT)


def test_its_temporary_file_cannot_be_laid_in_wait_for(ctl: Ctl, start: Start, fake: FakeDaemon, tmp_path: Path) -> None:
    """The name differs each time, is not one that a collector reads, and is made anew."""
    trace = tmp_path / "trace"
    path = tmp_path / "kopsd.prom"
    if not shutil.which("strace") or subprocess.run(["strace", "-o", str(trace), "true"], capture_output=True).returncode:
        pytest.skip("no strace here, or it may not trace")
    names = set()
    for _ in range(2):
        subprocess.run(
            ["strace", "-o", str(trace), "-e", "trace=openat,rename,fsync,fchmod", *ctl.command, "metrics", "--textfile", str(path)],
            check=True, capture_output=True, env={**ENV, "ASAN_OPTIONS": "detect_leaks=0"},  # which is no use under strace
        )  # fmt: skip
        calls = [line for line in trace.read_text().splitlines() if "kopsd.prom" in line or line.startswith(("fsync", "fchmod"))]
        opened, _, synced, renamed = calls[:4]
        assert "O_EXCL" in opened and "O_CREAT" in opened and synced.startswith("fsync"), calls
        assert renamed.startswith("rename("), calls
        names.add(opened.split('"')[1])
    assert len(names) == 2 and not any(name.endswith(".prom") for name in names)


@pytest.mark.parametrize("place", ["missing/kopsd.prom", "folder"])
def test_a_path_that_cannot_be_written(ctl: Ctl, tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    for more in ([], ["--interval", "1"]):
        assert "writing" in ctl("metrics", "--textfile", str(tmp_path / place), *more, status=1).stderr
    assert os.listdir(tmp_path) == ["folder"]


# A port


class Server:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving http://") and line.endswith("/metrics\n"), (line, process.communicate())
        self.host, _, port = line.split("/")[2].rpartition(":")
        self.host = self.host.strip("[]")
        self.port = int(port)
        self.process = process

    def ask(self, method: str = "GET", path: str = "/metrics", **options: Any) -> tuple[http.client.HTTPResponse, str]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        connection.request(method, path, **options)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response, text

    def raw(self, data: bytes) -> bytes:
        """All that comes back for some bytes, until the server closes."""
        with socket.create_connection((self.host, self.port), timeout=60) as s:
            back = b""
            try:
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)
                while more := s.recv(65536):
                    back += more
            except OSError:
                pass  # it has closed already
            return back


@pytest.fixture
def server(start: Start) -> Iterator[Server]:
    if needs_http.args[0]:
        pytest.skip(WITHOUT)
    made = Server(start("metrics", "--listen", "127.0.0.1:0"))
    yield made
    made.process.send_signal(signal.SIGTERM)
    assert made.process.wait() == 0


def test_http(server: Server) -> None:
    for _ in range(3):
        response, text = server.ask()
        assert response.status == 200 and response.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
        assert text.endswith(TEXT) and value(text, "kopsd_up") == "1"
    response, text = server.ask("HEAD")
    assert response.status == 200 and text == ""


def test_http_of_what_there_is_not(server: Server) -> None:
    for path in ("/", "/metrics/", "/metrics.html", "/../etc/passwd", "/metricsx"):
        assert server.ask(path=path)[0].status == 404, path
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "BREW"):
        response, _ = server.ask(method, body=b"x" * 100000 if method in ("POST", "PUT") else None)
        assert response.status == 405 and response.getheader("Allow") == "GET, HEAD", method


def test_http_of_bad_requests(server: Server) -> None:
    garbage = [b"\0" * 100, b"GET\r\n\r\n", b"GET /metrics HTTP/9.9\r\n\r\n", b"GET /metrics HTTP/1.1\r\n\r\n", b"\r\n" * 50]
    garbage += [b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"]
    garbage += [b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20000 + b"\r\n"]
    garbage += [b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b"GET /metr", b""]
    for bytes_ in garbage:
        assert b" 200 " not in server.raw(bytes_)[:20], bytes_[:40]
        assert server.ask()[0].status == 200


def test_http_when_the_daemon_goes_and_comes(server: Server, fake: FakeDaemon) -> None:
    assert value(server.ask()[1], "kopsd_up") == "1"
    fake.close()
    for _ in range(2):
        response, text = server.ask()
        assert response.status == 200 and value(text, "kopsd_up") == "0" and "requests" not in text
    again = fake.revive()
    assert value(server.ask()[1], "kopsd_up") == "1"
    again.close()


def test_http_of_a_daemon_that_refuses(server: Server, fake: FakeDaemon) -> None:
    def refuse(_: Any) -> Any:
        raise Refused("internal", "it is broken")

    fake.answers["metrics"] = refuse
    response, text = server.ask()
    assert response.status == 500 and "it is broken [internal]" in text
    del fake.answers["metrics"]
    response, text = server.ask()
    assert response.status == 500 and "older than the method" in text


@needs_http
def test_http_of_a_daemon_that_hangs(start: Start, fake: FakeDaemon) -> None:
    release = threading.Event()

    def hang(_: Any) -> Any:
        release.wait()
        return {"text": TEXT}

    fake.answers["metrics"] = hang
    server = Server(start("metrics", "--listen", "127.0.0.1:0", "--timeout", "0.2"))
    assert value(server.ask()[1], "kopsd_up") == "0"
    release.set()
    assert value(server.ask()[1], "kopsd_up") == "1"


def test_many_silent_connections_do_not_take_the_port_for_ever(server: Server) -> None:
    """So many that the rest waits or is refused; soon after some went, the next is served."""
    silent = [socket.create_connection((server.host, server.port)) for _ in range(20)]
    for s in silent[:10]:
        s.close()

    def is_served() -> bool:
        try:
            return bool(server.ask()[0].status == 200)
        except ConnectionError:  # the server has not seen yet that the others went
            return False

    proc.eventually(is_served, "the port answers")
    assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < 40
    for s in silent[10:]:
        s.close()


def test_nobody_takes_a_place_for_ever(server: Server) -> None:
    """Neither one that is silent, nor one that sends a byte now and then."""
    silent, slow = (socket.create_connection((server.host, server.port)) for _ in range(2))
    slow.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
    slow.setblocking(False)
    ended = False
    while not ended:
        ready, _, _ = select.select([slow], [], [], 1)
        try:
            ended = bool(ready) and not slow.recv(1000)
            slow.send(b"x")
        except OSError:
            ended = True
    assert server.process.poll() is None
    silent.settimeout(0)
    assert silent.recv(1000) == b"", "it was ended long before"
    assert server.ask()[0].status == 200
    silent.close()
    slow.close()


@needs_http
def test_http_on_ipv6(start: Start) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    server = Server(start("metrics", "--listen", "[::1]:0"))
    assert server.host == "::1" and server.ask()[0].status == 200


@needs_http
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:9464", "[::ffff:192.0.2.1]:9464"])
def test_other_machines_are_not_served_unless_asked_for(ctl: Ctl, start: Start, address: str) -> None:
    assert "--allow-remote" in ctl("metrics", "--listen", address, status=2).stderr
    if address == "0.0.0.0:0":
        assert Server(start("metrics", "--listen", address, "--allow-remote")).ask()[0].status == 200


@pytest.mark.parametrize(
    "args",
    [
        ["--listen", "9464"], ["--listen", ":9464"], ["--listen", "localhost:9464"], ["--listen", "127.0.0.1"],
        ["--listen", "::1:9464"], ["--listen", "[::1:9464"], ["--listen", "127.0.0.1:http"], ["--listen", "127.0.0.1:99999"],
        ["--allow-remote"], ["--interval", "1"], ["--textfile", "x", "--interval", "0"], ["--textfile", ""],
        ["--textfile", "x", "--listen", "127.0.0.1:0"], ["--json", "--textfile", "x"], ["all"],
    ],
)  # fmt: skip
def test_wrong_usage(ctl: Ctl, fake: FakeDaemon, args: list[str]) -> None:
    if "--listen" in args and needs_http.args[0]:
        pytest.skip(WITHOUT)
    assert ctl("metrics", *args, status=2).stderr.count("\n") == 1
    assert not fake.requests


@needs_http
def test_a_port_that_is_taken(ctl: Ctl) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "in use" in ctl("metrics", "--listen", f"127.0.0.1:{port}", status=1).stderr
