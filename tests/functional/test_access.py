"""Who may connect, and who may call what."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from arrays import LongRun, Vectors
from quotas import HOST, daemons, refusals
from support import raw, users
from support.daemon import Daemon, binary
from support.users import as_root

ALICE, BOB, CLUB = 54001, 54002, 54100
Start = Callable[..., Daemon]


@pytest.fixture
def start() -> Iterator[Start]:
    yield from daemons()


def may_connect(daemon: Daemon, uid: int, gid: int | None = None, groups: tuple[int, ...] = ()) -> bool:
    """Served, or told why not and closed."""
    connection = users.connect(daemon, uid, gid, groups)
    try:
        return connection.alive()
    except raw.Closed as closed:
        notification = closed.notification
    except (BrokenPipeError, ConnectionResetError):
        notification = connection.wait_closed()
    finally:
        connection.close()
    assert notification is not None
    assert notification["code"] == "permission_denied"
    assert notification["detail"]["uid"] == uid
    return False


@as_root
@pytest.mark.parametrize(
    "lists, uid, gid, groups, allowed",
    [
        ("", ALICE, None, (), True),
        (f"allow = {ALICE} {BOB}", BOB, None, (), True),
        ("allow =", ALICE, None, (), False),
        ("allow = owner", 0, None, (), True),
        (f"allow = {CLUB}", ALICE, CLUB, (CLUB,), False),  # that is a user's number
        (f"allow = @{CLUB}", ALICE, None, tuple(range(60000, 60100)) + (CLUB,), True),
        (f"deny = {ALICE}", BOB, None, (), True),
        (f"deny = @{CLUB}\nallow = {ALICE}", ALICE, None, (CLUB,), False),
        ("deny = *, root, 0", 0, None, (), True),
    ],
)
def test_the_lists_decide_who_connects(
    start: Start, lists: str, uid: int, gid: int | None, groups: tuple[int, ...], allowed: bool
) -> None:
    """More of them: tests/unit/server/test_access_list.c."""
    daemon = start(f"[access]\n{lists}\n")
    assert may_connect(daemon, uid, gid, groups) == allowed
    assert len(refusals(daemon, "connect")) == (not allowed)
    if not allowed:
        assert f"uid={uid} " in refusals(daemon, "connect")[0]
        assert f"pid={os.getpid()} " in refusals(daemon, "connect")[0]
    with daemon.connect() as connection:
        assert connection.alive()


@as_root
def test_the_daemons_own_user_is_never_denied(start: Start) -> None:
    daemon = start("[access]\ndeny = *\n", user=ALICE)
    assert may_connect(daemon, ALICE)
    assert may_connect(daemon, 0)
    assert not may_connect(daemon, BOB)


@as_root
def test_names_are_looked_up(start: Start) -> None:
    daemon = start("[access]\nallow = nobody, @daemon\n")
    assert may_connect(daemon, pwd.getpwnam("nobody").pw_uid)
    assert may_connect(daemon, ALICE, None, (grp.getgrnam("daemon").gr_gid,))
    assert not may_connect(daemon, ALICE)


@as_root
@pytest.mark.parametrize(
    "lists, tune, administer",
    [("", False, False), (f"tune = {ALICE}", True, False), (f"administer = @{CLUB}", False, True)],
)
def test_methods_have_classes(start: Start, lists: str, tune: bool, administer: bool) -> None:
    daemon = start(f"[access]\n{lists}\n")
    with users.connect(daemon, ALICE, groups=(CLUB,)) as connection:
        connection.call("hello")
        connection.call("stats")
        if not administer:  # before the parameters are read
            assert connection.error("cache", {"action": 7}).code == "permission_denied"
        for method, params, class_, allowed in [
            ("stats", {"reset": True}, "tune", tune),
            ("cache", {"action": "list"}, "administer", administer),
        ]:
            reply = connection.reply(connection.request(method, params))
            if allowed:
                assert reply.error is None or reply.error["code"] != "permission_denied"
                continue
            assert reply.error is not None and reply.error["code"] == "permission_denied"
            assert reply.error["detail"] == {"method": method, "class": class_, "uid": ALICE}
            assert f"access.{class_}" in reply.error["message"]
        assert connection.alive()
    if not tune:
        (line,) = refusals(daemon, "method")[:1]
        assert f"uid={ALICE} " in line and f"pid={os.getpid()} " in line
    with daemon.connect() as connection:
        connection.call("stats", {"reset": True})


@as_root
def test_new_lists_are_for_those_who_are_there_as_well(start: Start) -> None:
    daemon = start("")
    config = HOST + users.OPEN + "[access]\n"
    with (
        users.connect(daemon, ALICE) as alice,
        users.connect(daemon, BOB, groups=(CLUB,)) as bob,
        daemon.connect() as root,
    ):
        assert alice.alive() and bob.alive()
        users.reload(daemon, config + f"deny = {ALICE}\ntune = @{CLUB}\n")
        notification = alice.wait_closed()
        assert notification is not None and notification["code"] == "permission_denied"
        assert notification["detail"]["uid"] == ALICE
        assert not may_connect(daemon, ALICE)
        bob.call("stats", {"reset": True})
        users.reload(daemon, config + f"allow = {ALICE}, @{CLUB}\n")
        assert may_connect(daemon, ALICE)
        assert bob.error("stats", {"reset": True}).code == "permission_denied"
        assert bob.alive()
        users.reload(daemon, config + "allow = owner\n")
        assert bob.wait_closed() is not None
        assert root.alive()


@as_root
def test_a_run_of_who_is_not_allowed_any_more_is_ended(start: Start) -> None:
    daemon = start("")
    with users.connect(daemon, ALICE) as alice:
        LongRun(alice)
        users.reload(daemon, HOST + users.OPEN + "[access]\nallow = owner\n")
        assert alice.wait_closed() is not None
    with daemon.connect() as root:
        vectors = Vectors(root, 2, 8)
        root.run("square", [vectors.tensor(0)], [vectors.tensor(1)])


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("allow", "no-such-user-here", 'no user "no-such-user-here"'),
        ("deny", "@no-such-group-here", 'no group "no-such-group-here"'),
    ],
)
def test_a_wrong_list_is_refused_at_start(tmp_path: Path, key: str, value: str, why: str) -> None:
    path = tmp_path / "kopsd.conf"
    path.write_text(f"[access]\n{key} = root, {value}\n", encoding="utf-8")
    command = [binary(), "--config", path, "--socket", tmp_path / "socket", "--check-config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"access.{key}: " in done.stderr and why in done.stderr
