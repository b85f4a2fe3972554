"""Which sockets a client tries, which server it trusts, and how long it waits for one that says nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kops
import pytest
from fake_daemon import FakeDaemon
from kops._session import native_link, plain
from which import compiled_only

FILE = Path(__file__).resolve().parents[2] / "tests/vectors/places.json"
if not FILE.exists():
    pytest.skip("the vectors come with the source tree", allow_module_level=True)
VECTORS = json.loads(FILE.read_text(encoding="utf-8"))
STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become others")


def synchronous(path: Any = None, **options: Any) -> None:
    with kops.connect(path, **options) as k:
        k.ping()


def asynchronous(path: Any = None, **options: Any) -> None:
    async def ask() -> None:
        async with kops.connect_async(path, **options) as k:
            await k.ping()

    asyncio.run(ask())


clients = pytest.mark.parametrize("client", [synchronous, pytest.param(asynchronous, marks=compiled_only)])


@pytest.mark.parametrize("row", VECTORS["lists"], ids=lambda row: "{runtime} {uid}".format(**row))
def test_sockets(row: dict[str, Any]) -> None:
    assert plain.listed(row["runtime"], row["uid"], lambda folder: folder in row["private"]) == row["paths"]


@pytest.mark.parametrize("row", VECTORS["trust"], ids=lambda row: row["about"])
def test_trust(row: dict[str, Any]) -> None:
    users = {key: row.get(key) for key in ("uid", "self", "kops", "unmapped", "folder")}
    flags = {key: row.get(key, False) for key in ("folder_shared", "parent_shared", "system", "named")}
    assert plain.Server(**users, **flags).trusted == row["trusted"]


@contextlib.contextmanager
def acting_as_stranger() -> Iterator[None]:
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(STRANGER)
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.fixture
def strangers(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon of another user's: the one that calls listen()."""
    with acting_as_stranger():
        daemon._listener.listen(8)
    return daemon


@as_root
@clients
def test_a_server_of_another_user(strangers: FakeDaemon, client: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(kops.ConnectFailed, match=rf"{strangers.path}.*server is user {STRANGER}, expected is root or kops") as caught:
        client(strangers.path, timeout=20)
    assert f"KOPS_TRUST_USER={STRANGER} trusts" in str(caught.value)
    assert not strangers.requests
    for other in ("1", "nobody", "-1", f"{STRANGER}x"):
        monkeypatch.setenv("KOPS_TRUST_USER", other)
        with pytest.raises(kops.ConnectFailed, match="server is user"):
            client(strangers.path, timeout=20)
    monkeypatch.setenv("KOPS_TRUST_USER", f"nobody,{STRANGER}")
    client(strangers.path, timeout=20)


@as_root
@clients
def test_the_next_place_after_a_strangers(
    strangers: FakeDaemon, client: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KOPS_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    (tmp_path / "kopsd.sock").symlink_to(strangers.path)
    if Path(plain.SYSTEM).exists():
        pytest.skip("a daemon of the system is there")
    with pytest.raises(kops.ConnectFailed, match=rf"{tmp_path}/kopsd.sock.*server is user.*{plain.SYSTEM}.*No such file") as caught:
        client(autostart=False)
    assert len(caught.value.detail["tried"]) == 2


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "silent.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(8)
        yield path


@clients
def test_a_server_that_says_nothing(silent: str, client: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(kops.Timeout, match=rf"{silent}: kopsd does not answer: .* start it anew, or name another"):
        client(silent, timeout=0.2)
    if native_link.native is None:  # libkops' own limit is as long
        monkeypatch.setattr(plain, "CONNECT_LIMIT", 0.2)
        with pytest.raises(kops.Timeout, match=r"does not answer.*for 0\.2 s"):
            client(silent)


@as_root
@clients
def test_a_socket_that_does_not_let_in(client: Callable[..., None]) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        os.chmod(folder, 0o711)
        path = f"{folder}/kopsd.sock"
        listener.bind(path)
        listener.listen()
        for mode, why in ((0o660, "the group daemon may connect, `sudo usermod -aG daemon USER`"), (0o600, r"only its owner root \(0\)")):
            os.chmod(path, mode)
            os.chown(path, 0, 1)  # daemon, on every Linux
            with acting_as_stranger(), pytest.raises(kops.ConnectFailed, match=f"Permission denied: {why}"):
                client(path, timeout=20)
