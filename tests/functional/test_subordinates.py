"""Users that another may become by /etc/subuid count as that one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgpack
import pytest
from quotas import HOST, check, daemons
from support import proc, raw, users
from support.daemon import Daemon
from support.users import as_root

ALICE, BOB = 54001, 54002
FIRST = 100000  # of ALICE's subordinates
HELPER = Path(__file__).resolve().parent / "subordinate.py"


@pytest.fixture
def start() -> Iterator[Callable[[str], Daemon]]:
    yield from daemons()


@as_root
def test_they_count_as_their_owner(start: Callable[[str], Daemon], tmp_path: Path) -> None:
    """As if newuidmap had let them."""
    subuid = tmp_path / "subuid"
    subuid.write_text(f"nonsense\n{ALICE}:100000:3\n{BOB}:100003:65536\n", encoding="utf-8")
    access = f"[access]\nsubuid = {subuid}\n"
    daemon = start("[quota]\nconnections = 3\n" + access)
    with ExitStack() as there:
        hers = [there.enter_context(users.connect(daemon, uid)) for uid in (ALICE, 100000, 100002)]
        assert all(connection.alive() for connection in hers)
        with users.connect(daemon, 100001) as more:
            check(more.wait_closed(), "connections", 3, 3)
        his = there.enter_context(users.connect(daemon, 100003))
        assert his.alive()
        rows = {row["uid"]: row["connections"] for row in hers[0].call("clients")["users"]}
        assert rows == {ALICE: 3}
        assert [row["uid"] for row in hers[1].call("clients")["users"]] == [ALICE]  # the account that she is charged to
        # Another file counts from the next connection on.
        subuid.write_text("", encoding="utf-8")
        users.reload(daemon, HOST + users.OPEN + "[quota]\nconnections = 3\n" + access)
        assert there.enter_context(users.connect(daemon, 100001)).alive()


def may_be_others() -> str | None:
    """Why a user cannot become its subordinates here."""
    if not all(map(shutil.which, ("newuidmap", "unshare", "setpriv"))):
        return "newuidmap, unshare or setpriv is not installed"
    probe = " && ".join(f"mount --bind {path} {path}" for path in ("/etc/subuid", "/etc/passwd")) + " && unshare --user true"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", probe], capture_output=True, text=True, check=False)
    return f"no namespaces, or no /etc/subuid: {done.stderr.strip()}" if done.returncode else None


@as_root
@pytest.mark.parametrize("mapped", [True, False])
def test_a_user_namespace_is_no_way_around_a_quota(
    start: Callable[[str], Daemon], tmp_path: Path, mapped: bool
) -> None:
    """The user, and its subordinates in namespaces of their own: with three connections at most the fourth is refused. Without
    the daemon's knowing of the range each is a user of its own."""
    if why := may_be_others():
        pytest.skip(why)
    subuid, passwd, known = tmp_path / "subuid", tmp_path / "passwd", tmp_path / "known"
    subuid.write_text(f"{ALICE}:{FIRST}:3\n", encoding="utf-8")
    known_users = Path("/etc/passwd").read_text(encoding="utf-8")
    passwd.write_text(f"{known_users}kops-alice:x:{ALICE}:{ALICE}::/:/bin/sh\n", encoding="utf-8")
    known.write_text(subuid.read_text(encoding="utf-8") if mapped else "", encoding="utf-8")
    daemon = start(f"[quota]\nconnections = 3\n[access]\nsubuid = {known}\n")
    daemon.folder.chmod(0o755)
    script = 'mount --bind "$0" /etc/subuid && mount --bind "$1" /etc/passwd && shift && exec "$@"'
    become = ["setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups"]
    request = raw.pack_request(1, "ping", {}).hex()
    helper = [sys.executable, "-c", HELPER.read_text(encoding="utf-8"), daemon.socket_path, request, str(ALICE), "3", str(FIRST)]
    command = ["unshare", "--mount", "sh", "-c", script, str(subuid), str(passwd), *become, *helper]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        assert process.stdout is not None
        got = [msgpack.unpackb(bytes.fromhex(process.stdout.readline())) for _ in range(4)]
        refused = [message for message in got if message[0] == 2]
        assert len(refused) == (1 if mapped else 0), got
        for message in refused:
            check(message[2][0], "connections", 3, 3)
        with daemon.connect() as mine:
            rows = {row["uid"]: row["connections"] for row in mine.call("clients")["users"] if row["connections"]}
        want = {ALICE: 3} if mapped else {ALICE: 1, **{FIRST + i: 1 for i in range(3)}}
        assert {uid: n for uid, n in rows.items() if uid} == want
        process.communicate()
    proc.eventually(lambda: proc.fds(daemon.pid)["socket"] == proc.own_sockets(daemon.pid), "they are gone")
