"""A compile cache for several machines: what one node compiles another one gets, signed, from a plain HTTP server.
What a server can do to the nodes, and what the helper could that speaks to it, costs them their own compiler's time and nothing else:
after each attack the daemon serves on, holds nothing more, and takes a right answer."""

from __future__ import annotations

import fcntl
import gzip
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import prometheus
import pytest
from support import backends, http_store, proc, raw, shared_cache
from support.daemon import Daemon, binary, run_once
from support.http_store import Exchange, Nginx, Store
from support.shared_cache import PATIENT, Key, compile_on, counters, helper, node, state, wait_for

pytestmark = pytest.mark.skipif(bool(shared_cache.why_not()), reason=shared_cache.why_not())


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Key, Key]:
    folder = tmp_path_factory.mktemp("keys")
    return Key(folder / "one"), Key(folder / "two")


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as s:
        yield s


# ---- what it is for ----


@pytest.mark.skipif(http_store.nginx() is None, reason="there is no nginx here")
def test_nodes_share_code_by_nginx(tmp_path: Path, keys: tuple[Key, Key]) -> None:
    """With the configuration of deploy/README.md: a publisher with its password, and nodes that only read."""
    password = tmp_path / "password"
    password.write_text("basic node1:open sesame\n")
    password.chmod(0o600)
    (tmp_path / "nginx").mkdir()
    with Nginx(tmp_path / "nginx") as server:
        with node(server.url, remote_key=keys[0].path, remote_credentials=password, **PATIENT) as first, first.connect() as c:
            assert compile_on(c)["cached"] == "no"
            wait_for(c, "remote_uploads")
            assert counters(c)["remote_misses"] == 1
        (file,) = [f for f in (server.store / "kops").rglob("*") if f.is_file()]
        assert file.parent.name == file.name[:2] and len(file.name) == 64
        with node(server.url, remote_trust=keys[0].public, **PATIENT) as second:
            with second.connect() as c:
                reply = compile_on(c)
                assert reply["cached"] == "remote" and reply["key"] == file.name
                assert compile_on(c)["cached"] == "memory"
                (entry,) = c.call("cache", {"action": "list"})["entries"]
                assert entry["from"] == "remote"
                # It has no key: what it compiles stays here.
                helpers = shared_cache.helpers(second)
                proc.send_stray(*helpers, more=[signal.SIGHUP])
                assert compile_on(c, "of the second")["cached"] == "no" and shared_cache.helpers(second) == helpers
                n = counters(c)
                assert (n["cache_remote_hits"], n["compiles"], n["remote_uploads"], n["remote_upload_drops"]) == (1, 1, 0, 0)
                proc.eventually(lambda: all(e["on_disk"] for e in c.call("cache", {"action": "list"})["entries"]), "all is on disk")
            second.stop()
            second.start()
            with second.connect() as c:
                assert compile_on(c)["cached"] == "disk"
                assert {e["from"] for e in c.call("cache", {"action": "list"})["entries"]} == {"remote", "compiler"}
        # A publisher without the password cannot publish, and reads on.
        with node(server.url, remote_key=keys[0].path, **PATIENT) as third, third.connect() as c:
            assert compile_on(c, "of the third")["cached"] == "no"
            wait_for(c, "remote_upload_failures")
            assert compile_on(c)["cached"] == "remote"
        assert server.log().count('"PUT ') == 2


def test_a_bearer_token_is_said_at_each_request(store: Store, tmp_path: Path, keys: tuple[Key, Key]) -> None:
    """And figures say what became of it."""
    token = tmp_path / "token"
    token.write_text("bearer abc.DEF-123\n")
    token.chmod(0o600)
    with node(store.url + "/", remote_key=keys[0].path, remote_credentials=token, **PATIENT) as d, d.connect() as c:
        compile_on(c)
        wait_for(c, "remote_uploads")
        assert [r.method for r in store.requests] == ["GET", "PUT"]
        assert all(r.headers["authorization"] == "Bearer abc.DEF-123" for r in store.requests)
        assert all("//" not in r.path for r in store.requests)
        assert "abc.DEF" not in d.log()
        assert state(c) == "serving"
        told = prometheus.parse(c.call("metrics")["text"])
    assert told["kopsd_remote_cache_requests_total"].value(result="miss") == 1
    assert told["kopsd_remote_cache_uploads_total"].value(result="stored") == 1
    assert told["kopsd_remote_cache_up"].value() == 1
    assert told["kopsd_compile_cache_hits_total"].value(cache="remote") == 0
    with Daemon(config=backends.config(backends.HOST)) as d, d.connect() as c:  # without one nothing is said
        assert "remote" not in c.call("hello")["kernels"] and "remote_misses" not in counters(c)
        assert not prometheus.parse(c.call("metrics")["text"])["kopsd_remote_cache_up"].samples


def certificate(folder: Path, name: str) -> Path:
    """Signed by itself, for an address and a name; its key is in the same file."""
    path = folder / name
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=kops", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", path, "-out", f"{path}.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    with path.open("ab") as both:
        both.write(Path(f"{path}.crt").read_bytes())
    Path(f"{path}.crt").chmod(0o644)
    return path


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_a_servers_certificate_is_checked(public: Path, keys: tuple[Key, Key]) -> None:
    cert, other = certificate(public, "one"), certificate(public, "other")  # root's helper is another user
    with Store(certificate=cert) as store:
        by_name = store.url.replace("127.0.0.1", "localhost")
        for url, ca, trusted in ((store.url, cert, True), (by_name, cert, True), (store.url, other, False), (store.url, None, False)):
            settings = {"remote_key": keys[0].path, **PATIENT, **({"remote_ca": f"{ca}.crt"} if ca else {})}
            with node(url, **settings) as d, d.connect() as c:
                compile_on(c, f"{url} {ca}")
                if trusted:
                    wait_for(c, "remote_uploads")
                    assert counters(c)["remote_misses"] == 1
                else:
                    assert counters(c)["remote_failures"] == 1
                    assert "certificate" in c.call("hello")["kernels"]["remote_why"]
        assert [r.method for r in store.requests] == ["GET", "PUT"] * 2  # to nobody else was anything said
    with node(store.url, remote_key=keys[0].path, remote_ca="/nowhere/ca.crt") as d, d.connect() as c:
        proc.eventually(lambda: "cache.remote_ca" in c.call("hello")["kernels"].get("remote_why", ""), "the log says why")
        assert compile_on(c)["cached"] == "no"


def test_a_name_that_nobody_knows(keys: tuple[Key, Key]) -> None:
    """The helper ends then, since it may only lack the resolver's new configuration, and another one comes."""
    with node("http://nobody.invalid/kops", remote_key=keys[0].path, **PATIENT) as d, d.connect() as c:
        pid = helper(d)
        assert compile_on(c)["cached"] == "no"
        assert counters(c)["remote_failures"] == 1
        proc.eventually(lambda: shared_cache.helpers(d) not in ([], [pid]), "there is another one")
        assert compile_on(c, "another")["cached"] == "no"


# ---- keys ----


def reload(d: Daemon, text: str) -> None:
    (d.folder / "kopsd.conf").write_text(text)
    os.kill(d.pid, signal.SIGHUP)
    d.heard("RELOADING=1")
    d.heard("READY=1")


def test_a_key_is_replaced_by_trusting_two_for_a_while(store: Store, keys: tuple[Key, Key]) -> None:
    old, new = keys
    with node(store.url, remote_key=old.path, **PATIENT) as d, d.connect() as c:
        compile_on(c, "old")
        wait_for(c, "remote_uploads")
    with node(store.url, remote_key=new.path, **PATIENT) as d, d.connect() as c:
        compile_on(c, "new")
        wait_for(c, "remote_uploads")
    with node(store.url, remote_trust=old.public, **PATIENT) as d, d.connect() as c:
        assert [compile_on(c, name)["cached"] for name in ("old", "new")] == ["remote", "no"]
        assert counters(c)["remote_rejected"] == 1
        c.call("cache", {"action": "clear"})
        reload(d, shared_cache.config(store.url, remote_trust=f"{old.public}, {new.public}", **PATIENT))
        assert [compile_on(c, name)["cached"] for name in ("old", "new")] == ["remote", "remote"]
        assert "refused=" in d.log() and "which is not trusted" in d.log()


def test_a_reload_brings_a_cache_and_takes_it(store: Store, keys: tuple[Key, Key]) -> None:
    with_it = shared_cache.config(store.url, remote_key=keys[0].path, **PATIENT)
    with node("none") as d, d.connect() as c:
        before = d.holdings()
        compile_on(c, "before")
        reload(d, with_it)
        assert compile_on(c, "with it")["cached"] == "no"
        wait_for(c, "remote_uploads")
        pid = helper(d)
        reload(d, with_it + "remote_max_days = 30\n")
        assert helper(d) == pid  # another age needs no other helper
        reload(d, with_it + "remote_timeout_ms = 5000\n")
        proc.eventually(lambda: shared_cache.helpers(d) not in ([], [pid]), "a helper with the new settings")
        reload(d, shared_cache.config("none"))
        proc.eventually(lambda: not shared_cache.helpers(d), "the helper is gone")
        assert compile_on(c, "after")["cached"] == "no"
        assert len(store.requests) == 2
        reload(d, with_it.replace("remote = http", "remote = gopher"))
        assert "event=reload why=" in d.log() and "cache.remote: " in d.log()
        assert proc.zombies(d.pid) == 0 and before


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"remote": "ftp://example.org/x"}, 'cache.remote: "ftp://example.org/x" is no URL'),
        ({"remote": "http://user:pw@example.org/"}, "must not hold a password"),
        ({"remote": "http://example.org/" + "x" * 1100}, "more than"),
        ({"remote": "http://example.org/x?y"}, "a character that it must not (0x3f)"),
        ({"remote_trust": ""}, "needs cache.remote_trust"),
        ({"remote_trust": "ed25519:12"}, "is no public key"),
        ({"remote_trust": "ed25519-private:" + "0" * 64}, "private key"),
        ({"remote_key": "/nowhere/key"}, "cache.remote_key: /nowhere/key cannot be read"),
        ({"remote_credentials": "/nowhere/token"}, "cache.remote_credentials: "),
    ],
)
def test_settings_that_are_wrong_are_named(settings: dict[str, str], complaint: str) -> None:
    all_of_it = {"remote": "http://example.org/kops", "remote_trust": "ed25519:" + "0" * 64, **settings}
    flags = [f"--set=cache.{k}={v}" for k, v in all_of_it.items()]
    done = run_once("--config", "/dev/null", "--check-config", *flags)
    assert done.returncode == 2 and complaint in done.stderr


# ---- when the server is away ----


def test_a_server_that_is_not_there_delays_nothing_for_long(keys: tuple[Key, Key]) -> None:
    """After three failures it is not asked, and the log says so once."""
    with socket.create_server(("127.0.0.1", 0)) as taken:  # it listens to nobody once it is closed
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with node(url, remote_key=keys[0].path, **PATIENT) as d, d.connect() as c:
        for i in range(3):
            assert compile_on(c, f"{i}")["cached"] == "no"
        assert counters(c)["remote_failures"] == 3
        assert state(c) == "resting" and "onnect" in c.call("hello")["kernels"]["remote_why"]
        assert "kopsd_remote_cache_up 0\n" in c.call("metrics")["text"]
        for i in range(3, 6):
            compile_on(c, f"{i}")
        n = counters(c)
        assert n["remote_skipped"] + n["remote_failures"] == 6 and n["remote_skipped"] >= 1
        assert d.log().count("state=resting what=get") == 1


# ---- the helper ----


def test_the_helper_is_confined(store: Store, keys: tuple[Key, Key]) -> None:
    with node(store.url, remote_key=keys[0].path) as d, d.connect() as c:
        compile_on(c)
        pid = helper(d)
        status = Path(f"/proc/{pid}/status").read_text()
        assert "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status and "CapEff:\t0000000000000000" in status
        if os.geteuid() == 0:
            assert "Uid:\t0" not in status
        maps = Path(f"/proc/{pid}/maps").read_text() if os.geteuid() == 0 else "libcurl"
        assert "libcurl" in maps
        assert "libcurl" not in Path(f"/proc/{d.pid}/maps").read_text()  # nothing of it is in the daemon
        inet = [line for line in subprocess.run(["ss", "-tnp"], capture_output=True, text=True).stdout.splitlines() if
                f"pid={d.pid}," in line] if shutil.which("ss") else []  # fmt: skip
        assert not inet


def test_a_helper_that_is_killed_is_replaced(store: Store, keys: tuple[Key, Key]) -> None:
    with node(store.url, remote_key=keys[0].path, **PATIENT) as d, d.connect() as c:
        compile_on(c, "before")
        wait_for(c, "remote_uploads")
        c.call("cache", {"action": "clear"})
        pid = helper(d)
        os.kill(pid, signal.SIGKILL)
        proc.eventually(lambda: shared_cache.helpers(d) not in ([], [pid]), "there is another one")
        proc.eventually(lambda: state(c) == "serving", "it is ready")
        assert compile_on(c, "before")["cached"] == "remote"
        assert d.log().count("helper=down") == 1 and d.log().count("helper=ready") == 1
        proc.eventually(lambda: proc.zombies(d.pid) == 0, "it was reaped")


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_the_daemons_end_is_the_helpers(killed: bool, stopped: bool, store: Store, keys: tuple[Key, Key]) -> None:
    with node(store.url, remote_key=keys[0].path) as d, d.connect() as c:
        proc.eventually(lambda: state(c) == "serving", lambda: state(c))
        pidfd = os.pidfd_open(helper(d))
        if stopped:
            signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        if killed:
            os.kill(d.pid, signal.SIGKILL)
        d.stop(expect=-signal.SIGKILL if killed else 0)
        proc.wait_exit(pidfd)
        os.close(pidfd)


def test_a_helper_of_the_service_manager(store: Store, tmp_path: Path, keys: tuple[Key, Key]) -> None:
    """As kopsd-cache.socket does it: a process for each connection, which is its descriptor 3."""
    path = str(tmp_path / "cache.sock")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()

    def accept() -> subprocess.Popen[bytes]:
        connection, _ = listener.accept()
        with connection:
            shell = 'exec 3<&"$1"; exec "$2" --cache-helper'
            return subprocess.Popen(
                ["/bin/bash", "-c", shell, "bash", str(connection.fileno()), str(binary())], pass_fds=[connection.fileno()],
                env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},  # that needs calls which its sandbox has not
            )  # fmt: skip

    with node(store.url, remote_key=keys[0].path, remote_helper=path, **PATIENT) as d, d.connect() as c:
        process = accept()
        compile_on(c, "it")
        wait_for(c, "remote_uploads")
        assert not shared_cache.helpers(d)
        process.kill()
        process.wait()
        process = accept()  # the daemon connects anew
        c.call("cache", {"action": "clear"})
        proc.eventually(lambda: state(c) == "serving", "the next one is ready")
        assert compile_on(c, "it")["cached"] == "remote"
        d.stop()
        assert process.wait(raw.PATIENCE) == 0
    listener.close()


def test_a_user_of_its_own_serves_it(store: Store, public: Path, keys: tuple[Key, Key]) -> None:
    """A daemon without any privilege."""
    if os.geteuid() != 0:
        pytest.skip("the other tests are of such a daemon")
    given = backends.nvrtc()
    assert given
    file = public / "key"
    shutil.copy(keys[0].path, file)
    os.chown(file, 65534, 65534)
    file.chmod(0o600)
    text = shared_cache.config(store.url, remote_key=file, **PATIENT)
    with Daemon(config=text, user=65534, env={"KOPSD_KERNELS_NVRTC": str(given)}) as d, d.connect() as c:
        assert compile_on(c)["cached"] == "no"
        wait_for(c, "remote_uploads")
        c.call("cache", {"action": "clear"})
        assert compile_on(c)["cached"] == "remote"


# Far more than a body may have, and than is ever sent.
HUGE = 10 << 30


@dataclass
class Bodies:
    """What honest nodes have put on a server: of the source that is asked for, of another one, and by a stranger."""

    key: Key
    right: bytes
    other: bytes
    strangers: bytes
    path: str


def published(store: Store, key: Key, name: str) -> tuple[str, bytes]:
    with node(store.url, remote_key=key.path, **PATIENT) as d, d.connect() as c:
        compile_on(c, name)
        wait_for(c, "remote_uploads")
    ((path, body),) = store.bodies.items()
    store.bodies.clear()
    return path, body


@pytest.fixture(scope="module")
def bodies(tmp_path_factory: pytest.TempPathFactory) -> Bodies:
    folder = tmp_path_factory.mktemp("keys")
    key, stranger = Key(folder / "one"), Key(folder / "two")
    with Store() as store:
        path, right = published(store, key, "asked")
        _, other = published(store, key, "another")
        _, strangers = published(store, stranger, "asked")
    return Bodies(key, right, other, strangers, path)


def pours_body(x: Exchange) -> None:
    x.raw(f"HTTP/1.1 200 OK\r\nContent-Length: {HUGE}\r\n\r\n".encode())
    x.pour(b"KOPS signed 1\0\0\0" * 65536)


def pours_chunks(x: Exchange) -> None:
    x.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    x.pour(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")


def pours_headers(x: Exchange) -> None:
    x.raw(b"HTTP/1.1 200 OK\r\n")
    x.pour(b"X-More: " + b"y" * 1000 + b"\r\n")


def drips(x: Exchange) -> None:
    x.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not x.over.wait(0.05):
        x.raw(b"x")


# What else a signature does not let pass: tests/unit/compile/test_signed.c
REJECTED: dict[str, Callable[[Bodies], bytes]] = {
    "garbage": lambda b: os.urandom(5000),
    "an error page with status 200": lambda b: b"<html>please log in</html>",
    "a stranger's archive": lambda b: b.strangers,
    "a stranger's signature under the right name": lambda b: b.right[:-64] + b.strangers[-64:],
    "an archive of kopsctl's": lambda b: b"KOPS archive 1\0\0" + struct.pack("<QQ", 1, len(b.right)) + b.right[96:],
}
FAILED: dict[str, Callable[[Exchange], None]] = {
    "status 500": lambda x: x.answer(500, b"no"),
    "status 206": lambda x: x.answer(206, b"part"),
    "a redirect to a file": lambda x: x.answer(302, b"", "Location: file:///etc/passwd"),
    "no HTTP": lambda x: x.raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "an end before the answer": lambda x: None,
    "a reset": lambda x: x.reset(),
    "less than was promised": lambda x: x.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nKOPS signed 1"),
    "a length that is none": lambda x: x.raw(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nx"),
    "chunks that are none": lambda x: x.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n"),
    "a body of 10 GB": pours_body,
    "a body without an end": pours_chunks,
    "headers without an end": pours_headers,
    "no answer": lambda x: x.over.wait() and None,
    "a body that drips": drips,
}


# Those that only the time limit ends. It is one of the right answers before and after as well.
ENDLESS = ("a body of 10 GB", "a body without an end", "headers without an end", "no answer", "a body that drips")


def after(d: shared_cache.Daemon, c: raw.Connection, store: Store, bodies: Bodies, before: dict[str, int]) -> None:
    """The daemon is as it was, and takes what is right."""
    d.wait_holdings(before)
    store.behave = None
    store.bodies[bodies.path] = bodies.right
    c.call("cache", {"action": "clear"})
    assert compile_on(c, "asked")["cached"] == "remote"
    assert d.running() and helper(d)


@pytest.mark.parametrize("what", REJECTED)
def test_what_is_not_right_is_refused(what: str, store: Store, bodies: Bodies) -> None:
    with node(store.url, remote_trust=bodies.key.public, **PATIENT) as d, d.connect() as c:
        compile_on(c, "warm")
        before = d.holdings()
        store.bodies[bodies.path] = REJECTED[what](bodies)
        reply = compile_on(c, "asked")
        n = counters(c)
        assert reply["cached"] == "no" and (n["remote_rejected"], n["cache_remote_hits"]) == (1, 0), n
        assert "event=remote_cache refused=" in d.log()
        after(d, c, store, bodies, before)


@pytest.mark.parametrize("what", FAILED)
def test_what_is_no_answer_is_a_failure(what: str, store: Store, bodies: Bodies) -> None:
    settings = {**PATIENT, "remote_timeout_ms": 1500} if what in ENDLESS else PATIENT
    with node(store.url, remote_trust=bodies.key.public, **settings) as d, d.connect() as c:
        compile_on(c, "warm")
        before = d.holdings()
        store.behave = FAILED[what]
        assert compile_on(c, "asked")["cached"] == "no"
        n = counters(c)
        assert n["remote_failures"] == 1 and n["cache_remote_hits"] == 0, n
        if (why := c.call("hello")["kernels"]["remote_why"]) and "redirect" in what:
            assert "it answers with status 30" in why
        assert store.count("GET") == 2  # no redirect was followed
        after(d, c, store, bodies, before)


def test_a_body_that_unpacks_is_not_unpacked(store: Store, bodies: Bodies) -> None:
    """A small one that would be a large one, were it asked for."""
    bomb = gzip.compress(bytes(200 << 20))
    with node(store.url, remote_trust=bodies.key.public, **PATIENT) as d, d.connect() as c:
        store.behave = lambda x: x.answer(200, bomb, "Content-Encoding: gzip")
        assert compile_on(c, "asked")["cached"] == "no"
        assert counters(c)["remote_rejected"] == 1 and len(bomb) < 1 << 20
        assert all("accept-encoding" not in r.headers for r in store.requests)


def test_memory_and_time_are_bounded_for_many_at_once(store: Store, bodies: Bodies) -> None:
    """As many as may be on their way pour at once: neither the daemon nor the helper grows by what they pour."""
    settings = {**PATIENT, "remote_timeout_ms": 2000}
    with node(store.url, remote_trust=bodies.key.public, **settings) as d, d.connect() as c, d.connect() as watcher:
        compile_on(c, "warm")
        pid, before, poured = helper(d), proc.status(d.pid, "VmRSS"), threading.Event()

        def pour(x: Exchange) -> None:
            poured.set()
            pours_chunks(x)

        store.behave = pour
        ids = [c.request("compile", shared_cache.request_of(str(i))) for i in range(24)]
        assert poured.wait(raw.PATIENCE)
        for i in ids:
            assert c.reply(i).get()["cached"] == "no"
        assert counters(watcher)["remote_failures"] == 24 - counters(watcher)["remote_skipped"]
        assert helper(d) == pid and state(watcher) == "resting"
        assert proc.status(d.pid, "VmRSS") - before < 64 << 10  # KiB


# ---- a helper that was taken over: it says what it likes ----

READY, FAILED_EVENT, ANSWER = 1, 2, 3
OK, MISSING, NO = 0, 1, 2
EVENT = struct.Struct("<IIQ160s")
ORDER = struct.Struct("<IIQ32s")


@dataclass
class Helper:
    """The test's own in the place of kopsd's, by the socket of the service manager."""

    listener: socket.socket
    socket: socket.socket | None = None

    def accept(self) -> None:
        self.socket, _ = self.listener.accept()
        assert len(self.socket.recv(1 << 16)) > 4096  # the setup
        self.say(READY)

    def say(self, kind: int, answer: int = 0, number: int = 0, why: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        assert self.socket is not None
        socket.send_fds(self.socket, [EVENT.pack(kind, answer, number, why)], list(fds))

    def order(self) -> int:
        assert self.socket is not None
        return int(ORDER.unpack(self.socket.recv(1 << 16))[2])


def file_of(data: bytes, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL) -> int:
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


# What it does for an order of that number, and whether the daemon must give it up for that.
LIES: dict[str, tuple[Callable[[Helper, int, Bodies], None], bool]] = {
    "a body that can still change": (lambda h, n, b: h.say(ANSWER, OK, n, fds=(file_of(b.right, 0),)), False),
    "a pipe": (lambda h, n, b: h.say(ANSWER, OK, n, fds=(os.pipe()[0],)), False),
    "another archive": (lambda h, n, b: h.say(ANSWER, OK, n, fds=(file_of(b.other),)), False),
    "no body": (lambda h, n, b: h.say(ANSWER, OK, n), True),
    "a body with a miss": (lambda h, n, b: h.say(ANSWER, MISSING, n, fds=(file_of(b.right),)), True),
    "two bodies": (lambda h, n, b: h.say(ANSWER, OK, n, fds=(file_of(b.right), file_of(b.right))), True),
    "many descriptors": (lambda h, n, b: h.say(ANSWER, OK, n, fds=tuple(file_of(b"") for _ in range(20))), True),
    "a packet that is too long": (lambda h, n, b: h.socket.send(b"x" * 70000) and None, True),  # type: ignore[union-attr]
    "words that are no text": (lambda h, n, b: h.say(ANSWER, NO, n, b"\xff\x00\x1b[2J\n" * 12), False),
    "an end": (lambda h, n, b: h.say(FAILED_EVENT, 0, 0, b"it was \xfe nice"), True),
    "a kind that is none": (lambda h, n, b: (h.say(99, 0, n), h.say(ANSWER, 77, n), h.say(ANSWER, NO, n))[-1], False),
    "answers that nobody asked for": (
        lambda h, n, b: ([h.say(ANSWER, OK, n + 1 + i, fds=(file_of(b.right),)) for i in range(50)], h.say(ANSWER, NO, n))[-1],
        False,
    ),
}


@pytest.mark.parametrize("what", LIES)
def test_a_helper_that_lies_is_as_harmless(what: str, tmp_path: Path, bodies: Bodies) -> None:
    lie, gives_up = LIES[what]
    path = str(tmp_path / "cache.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        h = Helper(listener)
        settings = {"remote_trust": bodies.key.public, "remote_helper": path, **PATIENT}
        with node("http://127.0.0.1:1", **settings) as d, d.connect() as c:
            h.accept()
            warm = c.request("compile", shared_cache.request_of("warm"))
            h.say(ANSWER, MISSING, h.order())
            c.reply(warm).get()
            before = d.holdings()
            waits = c.request("compile", shared_cache.request_of("asked"))
            lie(h, h.order(), bodies)
            assert c.reply(waits).get()["cached"] == "no"
            if gives_up:
                h.accept()  # the daemon connects anew
                assert "helper=down" in d.log()
            proc.eventually(lambda: state(c) == "serving", lambda: state(c))
            assert c.call("hello")["kernels"].get("remote_why", "").isascii()
            d.wait_holdings(before)
            c.call("cache", {"action": "clear"})
            waits = c.request("compile", shared_cache.request_of("asked"))
            h.say(ANSWER, OK, h.order(), fds=(file_of(bodies.right),))
            assert c.reply(waits).get()["cached"] == "remote"
