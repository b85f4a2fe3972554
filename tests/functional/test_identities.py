"""Sockets with identities: their peers count as the socket's name, whoever the process's user is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import prometheus
import pytest
from arrays import Vectors
from domains import Client, Domains
from gpu_machine import only_with_nvrtc, only_with_the_standin
from quotas import HOST, check, refusals, register, register_error
from support import proc, raw, users
from support.daemon import Daemon, binary
from support.kernels import ADD, ARCH
from support.users import STRANGER, as_root, reload

FIRST = 0xFFFF0000  # the number of the first identity


class Identities(Daemon):
    """A daemon whose sockets are folders/NAME/kopsd.sock, and those of `sections`."""

    def __init__(self, sections: str = "", config: str = HOST, names: tuple[str, ...] = ("a", "b")) -> None:
        super().__init__(config="", start=False)
        self.folders = self.folder / "folders"
        self.folders.mkdir()
        for name in names:
            (self.folders / name).mkdir()
        self.write(sections, config)

    def text(self, sections: str = "", config: str = HOST) -> str:
        return f"{config}[socket *]\npath = {self.folders}/*/kopsd.sock\n{sections}"

    def write(self, sections: str = "", config: str = HOST) -> None:
        (self.folder / "kopsd.conf").write_text(self.text(sections, config), encoding="utf-8")

    def path(self, name: str) -> str:
        return str(self.folders / name / "kopsd.sock")

    def at(self, name: str) -> raw.Connection:
        return raw.Connection(self.path(name))

    def may_connect(self, name: str) -> bool:
        """A socket that is made anew meanwhile drops who waits to be accepted."""
        lost = BrokenPipeError, ConnectionResetError, raw.Closed
        with suppress(FileNotFoundError, ConnectionRefusedError, *lost), self.at(name) as connection:
            return connection.alive()
        return False


Start = Callable[..., Identities]


@pytest.fixture
def start() -> Iterator[Start]:
    daemons: list[Identities] = []

    def new(*args: Any, **options: Any) -> Identities:
        daemons.append(Identities(*args, **options))
        daemons[-1].start()
        return daemons[-1]

    yield new
    for daemon in daemons:
        with daemon:
            pass


def run(connection: raw.Connection) -> None:
    vectors = Vectors(connection, 2, 1000)
    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])


# ---- who a peer is ----


def test_a_peer_is_the_socket_s_identity(start: Start) -> None:
    daemon = start()
    with daemon.at("a") as a, daemon.at("b") as b, daemon.connect() as user:
        assert a.call("hello")["identity"] == "a"
        assert b.call("hello")["identity"] == "b"
        assert "identity" not in user.call("hello")
        for connection in (a, b, user):
            run(connection)
        (row,) = a.call("clients")["clients"]
        assert (row["uid"], row["identity"], row["pid"]) == (os.getuid(), "a", os.getpid())
        (mine,) = a.call("clients")["users"]
        assert (mine["identity"], mine["connections"]) == ("a", 1) and mine["uid"] >= FIRST
        assert {op["identity"] for op in a.call("stats")["ops"]} == {"a"}
        # Administrators, at the daemon's own socket, see all.
        rows = {client.get("identity") for client in user.call("clients")["clients"]}
        assert rows == {"a", "b", None}
        assert {op.get("identity") for op in user.call("stats")["ops"]} == {"a", "b", None}
        families = prometheus.parse(user.call("metrics")["text"])
        of = families["kopsd_user_connections"]
        assert of.value(uid="", identity="a") == of.value(uid="", identity="b") == of.value(uid=str(os.getuid()), identity="") == 1
        families = prometheus.parse(b.call("metrics")["text"])
        assert {dict(labels)["identity"] for _, labels in families["kopsd_user_connections"].samples} == {"b"}
        a.call("trace", {"begin": True})
        user.call("trace", {"begin": True, "everybody": True})
        run(a)
        run(b)
        assert [client["identity"] for client in a.call("trace")["clients"]] == ["a"]
        assert {client["identity"] for client in user.call("trace")["clients"]} == {"a", "b"}
        assert a.error("trace", {"begin": True, "everybody": True}).code == "permission_denied"


@as_root
def test_root_is_nobody(start: Start) -> None:
    """Root of a container may do what any peer may there, and nothing of a daemon's administrator."""
    daemon = start("[socket c]\nclasses = use, tune\n[socket d]\nclasses = administer\n", names=("a", "c", "d"))
    with daemon.at("a") as a, daemon.at("c") as c, daemon.at("d") as d:
        for method, params in (("drain", {}), ("cache", {"action": "clear"}), ("stats", {"reset": True})):
            error = a.error(method, params)
            assert (error.code, error.detail["identity"]) == ("permission_denied", "a"), method
            assert "[socket a]" in error.message and "uid" not in error.detail
        assert not c.call("stats", {"reset": True})["ops"]
        assert c.error("cache", {"action": "clear"}).code == "permission_denied"
        d.call("cache", {"action": "clear"})
        assert {row.get("identity") for row in d.call("clients")["clients"]} == {"a", "c", "d"}
        assert "action=clear pid=" in daemon.log() and f"uid={os.getuid()} identity=d" in daemon.log()
    assert "identity=a" in refusals(daemon, "method")[0]


@as_root
def test_users_and_lists_do_not_count_there(start: Start) -> None:
    """Whoever may open the socket is served, as the identity."""
    daemon = start("mode = 0666\n[access]\nallow = owner\n")
    daemon.folder.chmod(0o755)
    with users.acting_as(STRANGER):
        connection = daemon.at("a")
    with connection:
        assert connection.call("hello")["identity"] == "a"
        (row,) = connection.call("clients")["clients"]
        assert (row["uid"], row["identity"]) == (STRANGER, "a")


@as_root
def test_a_user_with_an_identity_s_number_is_refused(start: Start) -> None:
    daemon = start(config=HOST + users.OPEN)
    with daemon.at("a") as connection:
        number = connection.call("clients")["users"][0]["uid"]
        os.chmod(daemon.folder, 0o755)
        with users.acting_as(number):
            other = daemon.connect()
        with other:
            notification = other.wait_closed()
            assert notification is not None and notification["code"] == "permission_denied"
            assert str(FIRST) in notification["message"]
        assert connection.call("clients")["users"][0]["connections"] == 1


# ---- quotas ----


def test_quotas_are_the_identity_s(start: Start) -> None:
    daemon = start("quota_buffers = 2\n[socket b]\nquota_buffers = 3\nquota_connections = 2\n")
    with daemon.at("a") as a, daemon.at("a") as other, daemon.at("b") as b, daemon.at("b") as second, daemon.connect() as user:
        register(a, 4096)
        register(other, 4096)
        check(register_error(a, 4096), "buffers", 2, 2)
        assert "quota_buffers" in register_error(other, 4096).message and 'identity "a"' in register_error(a, 4096).message
        for _ in range(3):
            register(b, 4096)
        check(register_error(second, 4096), "buffers", 3, 3)
        with daemon.at("b") as third:
            check(third.wait_closed(), "connections", 2, 2)
        for _ in range(4):
            register(user, 4096)
        limits = {row.get("identity"): row["limits"]["buffers"] for row in user.call("clients")["users"]}
        assert limits == {"a": 2, "b": 3, None: 65536}
    assert "identity=a" in refusals(daemon, "buffers")[0]


def test_a_reload_changes_quotas_and_rights(start: Start) -> None:
    daemon = start("quota_buffers = 1\n")
    with daemon.at("a") as a:
        register(a, 4096)
        check(register_error(a, 4096), "buffers", 1, 1)
        assert a.error("drain", {"resume": True}).code == "permission_denied"
        reload(daemon, daemon.text("quota_buffers = 2\n[socket a]\nclasses = use administer\n"))
        register(a, 4096)
        a.call("drain", {"resume": True})
        reload(daemon, daemon.text("[socket a]\nquota_buffers = 2\n"))
        check(register_error(a, 4096), "buffers", 2, 2)
        assert a.error("drain", {"resume": True}).code == "permission_denied"


# ---- kernels ----


@only_with_nvrtc
@pytest.mark.parametrize(
    ("section", "config", "allowed"),
    [
        ("", "", True),
        ("user_kernels = off\n", "", False),
        ("user_kernels = on\n", "", True),
        ("user_kernels = auto\nhand_out = off\n", "", True),
        ("user_kernels = on\n", "[kernels]\nuser_kernels = off\n", False),
    ],
)
def test_a_socket_says_who_brings_kernels(start: Start, section: str, config: str, allowed: bool) -> None:
    """Where the daemon allows any."""
    daemon = start(section, config="[cuda]\ndriver = none\n" + config)
    with daemon.at("a") as a:
        hello = a.call("hello")
        assert hello["kernels"]["allowed"] == allowed == ("compile" in hello["features"])
        assert hello["kernels"]["policy"] == ("all" if allowed else "off")
        reply = a.reply(a.request("compile", {"source": ADD, "entries": ["add2_kernel"], "arch": ARCH}))
        if allowed:
            reply.get()
        else:
            assert reply.error and reply.error["code"] == "permission_denied"
            assert config or 'identity "a"' in reply.error["message"]


@pytest.mark.parametrize(
    ("isolate", "section", "expected"),
    [
        ("user", "", "connection"),
        ("user", "isolate = user\n", "user"),
        ("connection", "isolate = user\n", "connection"),  # never less than all have
        ("none", "", "none"),
    ],
)
def test_the_isolation_of_a_socket(start: Start, isolate: str, section: str, expected: str) -> None:
    daemon = start(section, config=HOST + f"[executors]\nisolate = {isolate}\n")
    with daemon.at("a") as a, daemon.connect() as user:
        assert a.call("hello")["isolation"] == expected
        assert user.call("hello")["isolation"] == isolate
        allowed = user.call("hello")["kernels"]["policy"]
        assert a.call("hello")["kernels"]["policy"] == ("off" if isolate == "none" else allowed)


# ---- which sockets there are ----


def test_a_folder_s_end_is_the_end_of_its_connections(start: Start) -> None:
    """And a new one has a socket. Without a reload: as where a pod is the first of its namespace."""
    daemon = start(names=("b",))
    (daemon.folders / "a").mkdir()
    proc.eventually(lambda: daemon.may_connect("a"), daemon.log)
    with daemon.at("a") as a, daemon.at("b") as b:
        assert a.call("hello")["identity"] == "a" and b.alive()
        shutil.rmtree(daemon.folders / "a")
        notification = a.wait_closed()
        assert notification is not None and notification["code"] == "permission_denied"
        assert b.alive()
        before = daemon.holdings()
        (daemon.folders / "a").mkdir()  # it may come again, as the same identity
        proc.eventually(lambda: daemon.may_connect("a"), daemon.log)
        shutil.rmtree(daemon.folders / "a")
        proc.eventually(lambda: not daemon.may_connect("a"), daemon.log)
        daemon.wait_holdings(before)
        assert b.alive()


def test_a_socket_that_was_removed_comes_again_at_a_reload(start: Start) -> None:
    """Settings that cannot be read leave the sockets."""
    daemon = start()
    with daemon.at("a") as a:
        os.unlink(daemon.path("a"))
        reload(daemon, daemon.text())
        proc.eventually(lambda: daemon.may_connect("a"), daemon.log)
        (daemon.folder / "kopsd.conf").write_text("[socket a]\nnonsense = 1\n", encoding="utf-8")
        os.kill(daemon.pid, signal.SIGHUP)
        proc.eventually(lambda: "nonsense" in daemon.log(), daemon.log)
        assert a.alive() and daemon.may_connect("b")


def sections(folder: Path, places: dict[str, str]) -> str:
    return "".join(f"[socket {name}]\npath = {folder}/{place}.sock\n" for name, place in places.items())


def identity_at(path: Path) -> Any:
    with raw.Connection(str(path)) as connection:
        return connection.call("hello")["identity"]


def test_a_socket_that_stays_is_left_alone_by_a_reload(start: Start) -> None:
    """The same file, which a client may be about to connect to; who is connected keeps all they have."""
    daemon = start()
    kept, gone, new = (daemon.folder / f"{name}.sock" for name in ("kept", "gone", "new"))
    reload(daemon, daemon.text(sections(daemon.folder, {"gone": "gone", "kept": "kept"})))
    inode = kept.stat().st_ino
    with raw.Connection(str(kept)) as before, raw.Connection(str(gone)) as lost:
        register(before, 4096)
        assert lost.call("hello")["identity"] == "gone"
        text = daemon.text(sections(daemon.folder, {"new": "new", "kept": "kept"}))
        (daemon.folder / "kopsd.conf").write_text(text, encoding="utf-8")
        os.kill(daemon.pid, signal.SIGHUP)
        assert identity_at(kept) == "kept"  # whenever that is
        proc.eventually(lambda: "event=reload done=true" in daemon.log().partition("identity=new")[2], daemon.log)
        assert lost.wait_closed() and not gone.exists()
        assert identity_at(new) == "new" and identity_at(kept) == "kept" and kept.stat().st_ino == inode
        assert before.call("hello")["identity"] == "kept"
        (mine,) = before.call("clients")["users"]
        assert mine["buffers"] == 1
    assert daemon.may_connect("a") and daemon.may_connect("b")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({"one": "x"}, {"one": "y"}, id="it moves"),
        pytest.param({"one": "x"}, {"two": "x"}, id="its path is another identity's"),
        pytest.param({"one": "x", "two": "y"}, {"one": "y", "two": "x"}, id="two change places"),
    ],
)
def test_a_reload_moves_sockets(start: Start, before: dict[str, str], after: dict[str, str]) -> None:
    """What came as one identity stays that, or is closed where there is none of that name any more."""
    daemon = start()
    paths = {place: daemon.folder / f"{place}.sock" for place in "xy"}
    reload(daemon, daemon.text(sections(daemon.folder, before)))
    with raw.Connection(str(paths["x"])) as connection:
        assert connection.call("hello")["identity"] == "one"
        reload(daemon, daemon.text(sections(daemon.folder, after)))
        assert {place: identity_at(path) for place, path in paths.items() if path.exists()} == {p: name for name, p in after.items()}
        if "one" in after:
            assert connection.call("hello")["identity"] == "one"
        else:
            assert connection.wait_closed()
            assert "event=socket_gone identity=one" in daemon.log()
    reload(daemon, daemon.text())
    assert not any(path.exists() for path in paths.values())


def test_there_is_a_most_of_sockets(start: Start) -> None:
    """Those of sections come first, and one that is there stays."""
    daemon = start("[socket z]\n[sockets]\nmax = 3\n", names=("a", "b", "c", "z"))
    assert [name for name in "abcz" if daemon.may_connect(name)] == ["a", "b", "z"]
    assert 'identity=c left_out=1 why="there are 3 sockets, the most (sockets.max)"' in daemon.log()
    (daemon.folders / "0").mkdir()
    proc.eventually(lambda: "left_out=2" in daemon.log(), daemon.log)
    assert [name for name in "0abcz" if daemon.may_connect(name)] == ["a", "b", "z"]
    shutil.rmtree(daemon.folders / "b")
    proc.eventually(lambda: daemon.may_connect("0"), daemon.log)
    assert not daemon.may_connect("c")
    reload(daemon, daemon.text("[sockets]\nmax = 0\n"))
    assert not any(daemon.may_connect(name) for name in "0acz")


def test_what_is_no_folder_of_a_name_has_none(start: Start) -> None:
    """A link may lead to another identity's folder."""
    daemon = start(names=("a",))
    (daemon.folders / "link").symlink_to("a")
    (daemon.folder / "elsewhere").mkdir()
    (daemon.folders / "away").symlink_to(daemon.folder / "elsewhere")
    (daemon.folders / "file").write_text("", encoding="utf-8")
    for name in (".hidden", "-x", "with blank", "x" * 64, "ü"):
        (daemon.folders / name).mkdir()
    (daemon.folders / "last").mkdir()
    proc.eventually(lambda: daemon.may_connect("last"), daemon.log)
    made = [line.split("identity=")[1].split()[0] for line in daemon.log().splitlines() if "event=socket_made" in line]
    assert sorted(made) == ["a", "last"]


def test_a_socket_that_cannot_be_made_is_told_of(start: Start) -> None:
    """Another program's, or a folder that all may write to; the other sockets are served."""
    daemon = start(names=("a",))
    (daemon.folders / "b").mkdir()
    with suppress(FileExistsError):
        (daemon.folders / "b" / "kopsd.sock").write_text("mine", encoding="utf-8")
    reload(daemon, daemon.text(f"[socket open]\npath = {daemon.folder}/open/x.sock\n"))
    assert 'event=socket identity=open why="the socket\'s directory' in daemon.log()
    assert daemon.may_connect("a")


def test_at_its_start_the_daemon_wants_the_sockets_of_sections() -> None:
    daemon = Identities("[socket c]\npath = /nonexistent/x.sock\n")
    done = subprocess.run(daemon.command, env=daemon.env, capture_output=True, text=True, timeout=raw.PATIENCE, check=False)
    assert done.returncode == 1
    assert "a socket of an identity: the socket's directory /nonexistent" in done.stderr
    assert not os.path.exists(daemon.socket_path) and not os.path.exists(daemon.path("a"))
    shutil.rmtree(daemon.folder)


@pytest.mark.parametrize("killed", [False, True])
def test_files_are_gone_with_the_daemon(killed: bool) -> None:
    """Where it is killed, the next one makes them again."""
    with Identities() as daemon:
        daemon.start()
        assert daemon.may_connect("a")
        paths = [daemon.path("a"), daemon.path("b")]
        assert all(map(os.path.exists, paths))
        if not killed:
            daemon.stop()
            assert not any(map(os.path.exists, paths))
            return
        assert daemon.process is not None
        daemon.process.kill()
        daemon.process.wait()
        assert all(map(os.path.exists, paths))
        daemon.start()
        assert daemon.may_connect("a")


# ---- settings ----


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[socket *]\n", ""),
        ("[socket a]\n[socket *]\n", "socket a.path is missing"),
        ("[socket a]\npath = /x/a.sock\n[socket b]\npath = /x/a.sock\n", "socket b.path is that of [socket a]"),
        ("[socket a]\npath = x.sock\n", "a path from /"),
        ("[socket a]\npath = /tmp/unused.sock\n", "that of server.socket"),
        ("[socket a]\npath = /x/a.sock\nclasses = root\n", '"root" is none of use, tune, administer'),
        ("[socket a]\npath = /x/a.sock\nisolate = none\n", '"none" is none of user, connection'),
        ("[executors]\nisolate = none\n[socket *]\nisolate = user\n", "executors.isolate is none"),
        ("[socket a]\npath = /x/a.sock\nuser_kernels = owner\n", '"owner" is none of on, off, auto'),
        ("[socket a]\npath = /x/a.sock\nmode = 9\n", 'socket a.mode: "9" is no octal number'),
        ("[socket a]\npath = /x/a.sock\ngroup = nonesuch\n", 'no group "nonesuch"'),
        ("[socket a]\nuid = 1\n", 'no setting "uid" of a socket'),
        ("[socket a b]\npath = /x\n", "no section [socket a b]"),
        (f"[socket {'x' * 64}]\npath = /x\n", "no section [socket xxx"),
        (f"[socket {'x' * 63}]\npath = /x\n", ""),
        ("[socket *]\npath = /x/y.sock\n", "no * in the place of one folder"),
        ("[socket *]\npath = /x/a*/y\n", "no * in the place of one folder"),
        ("[socket *]\npath = /" + "x" * 99 + "/*/y\n[socket abcdefgh]\n", "the path is too long"),
    ],
)
def test_errors_of_the_settings(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "kopsd.conf"
    path.write_text(HOST + text, encoding="utf-8")
    command = [str(binary()), "--check-config", "--config", str(path), "--socket", "/tmp/unused.sock"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == (2 if error else 0)
    assert error in done.stderr if error else not done.stderr


def printed(*args: str) -> str:
    command = [str(binary()), "--print-config", "--socket", "/tmp/unused.sock", *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_name_keeps_all_its_letters(tmp_path: Path) -> None:
    """The reader of such files cuts the names of sections at 49 bytes."""
    first, again = tmp_path / "kopsd.conf", tmp_path / "again.conf"
    sections = [f"[socket {name}]\npath = /x/{i}\n" for i, name in enumerate(("x" * 63, "x" * 62 + "y"))]
    first.write_text("".join(sections), encoding="utf-8")
    text = printed("--config", str(first))
    assert all(section in text for section in sections)
    again.write_text(text, encoding="utf-8")
    assert printed("--config", str(again)) == text


def test_flags_may_name_sockets() -> None:
    assert "[socket a.b]\npath = /x/a\n" in printed("--config", os.devnull, "--set", "socket a.b.path=/x/a")


# ---- GPU work ----


@only_with_the_standin
@only_with_nvrtc
def test_executors_are_by_connection(tmp_path: Path) -> None:
    """Two pods of one namespace have a process each; `stats` names the identity of each."""
    folders = tmp_path / "folders"
    for name in ("a", "b"):
        (folders / name).mkdir(parents=True)
    machine = Domains(isolate="user", more=f"[socket *]\npath = {folders}/*/kopsd.sock\n[socket b]\nisolate = user\n")
    with machine.daemon:
        clients = [Client(machine, path=str(folders / name / "kopsd.sock")) for name in "aabb"]
        for client in clients:
            client.own()
        with machine.daemon.connect() as user:
            rows = user.call("stats")["executors"]
        assert sorted((row["domain"], row["identity"]) for row in rows if "identity" in row) == [
            ("connection", "a"), ("connection", "a"), ("user", "b"),
        ]  # fmt: skip
        for client in clients:
            client.close()
