"""A reload beside sockets with identities: one that stays is left alone, others come, go, move and change their names."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quotas import register
from support import proc, raw
from support.users import reload
from test_identities import Identities
from test_identities import start as start


def section(name: str, path: Path) -> str:
    return f"[socket {name}]\npath = {path}\n"


def identity_at(path: Path) -> Any:
    with raw.Connection(str(path)) as connection:
        return connection.call("hello")["identity"]


def test_a_socket_that_stays_is_left_alone_by_a_reload(start: Callable[..., Identities]) -> None:
    """The same file, which a client may be about to connect to; who is connected keeps all they have."""
    daemon = start()
    kept, gone, new = (daemon.folder / f"{name}.sock" for name in ("kept", "gone", "new"))
    reload(daemon, daemon.text(section("gone", gone) + section("kept", kept)))
    inode = kept.stat().st_ino
    with raw.Connection(str(kept)) as before, raw.Connection(str(gone)) as lost:
        register(before, 4096)
        assert lost.call("hello")["identity"] == "gone"
        (daemon.folder / "kopsd.conf").write_text(daemon.text(section("new", new) + section("kept", kept)), encoding="utf-8")
        os.kill(daemon.pid, signal.SIGHUP)
        assert identity_at(kept) == "kept"  # whenever that is
        proc.eventually(lambda: "event=reload done=true" in daemon.log().partition("identity=new")[2], daemon.log)
        assert lost.wait_closed() and not gone.exists()
        assert identity_at(new) == "new" and identity_at(kept) == "kept" and kept.stat().st_ino == inode
        assert before.call("hello")["identity"] == "kept"
        (mine,) = before.call("clients")["users"]
        assert mine["buffers"] == 1
    assert daemon.may_connect("a") and daemon.may_connect("b")


def test_a_reload_moves_a_socket(start: Callable[..., Identities]) -> None:
    daemon = start()
    old, new = daemon.folder / "old.sock", daemon.folder / "new.sock"
    reload(daemon, daemon.text(section("extra", old)))
    with raw.Connection(str(old)) as connection:
        reload(daemon, daemon.text(section("extra", new)))
        assert identity_at(new) == "extra" and not old.exists()
        assert connection.call("hello")["identity"] == "extra"  # whoever was there is still that


def test_a_reload_gives_a_path_to_another_identity(start: Callable[..., Identities]) -> None:
    """What came as the first one does not become the second one."""
    daemon = start()
    path = daemon.folder / "extra.sock"
    reload(daemon, daemon.text(section("first", path)))
    with raw.Connection(str(path)) as connection:
        assert connection.call("hello")["identity"] == "first"
        reload(daemon, daemon.text(section("second", path)))
        assert identity_at(path) == "second"
        assert connection.wait_closed()
        assert "event=socket_gone identity=first" in daemon.log()


def test_two_sockets_change_places_at_a_reload(start: Callable[..., Identities]) -> None:
    daemon = start()
    x, y = daemon.folder / "x.sock", daemon.folder / "y.sock"
    reload(daemon, daemon.text(section("one", x) + section("two", y)))
    with raw.Connection(str(x)) as connection:
        reload(daemon, daemon.text(section("one", y) + section("two", x)))
        assert (identity_at(x), identity_at(y)) == ("two", "one")
        assert connection.call("hello")["identity"] == "one"
    reload(daemon, daemon.text())
    assert not x.exists() and not y.exists()
