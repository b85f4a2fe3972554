"""A reload beside sockets with identities: one that stays is left alone, others come, go, move and change their names."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from quotas import register
from support import proc, raw
from support.users import reload
from test_identities import Start
from test_identities import start as start


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
