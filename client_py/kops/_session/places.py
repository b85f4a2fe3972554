"""Where a client and a daemon meet: the sockets that are tried, and which server at one is trusted.

libkops and the daemon have the same rule in C (`daemon/util/places.c`); both run `tests/vectors/places.json`.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import socket
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SYSTEM = "/run/kopsd/kopsd.sock"  # socket of the machine's daemon
SHARED = stat.S_IWGRP | stat.S_IWOTH


def listed(runtime: str | None, uid: int, is_private: Callable[[str], bool]) -> list[str]:
    """The sockets to try, in order: those of the user's own folders up to the first private one, where a daemon of the user's is
    started, then the system's. `runtime` is XDG_RUNTIME_DIR."""
    own = dict.fromkeys([f"/run/user/{uid}", f"/tmp/.kopsd-{uid}"])
    if runtime and runtime.startswith("/"):
        own = dict.fromkeys([runtime, *own])
    paths = []
    for folder in own:
        paths.append(f"{folder}/kopsd.sock")
        if is_private(folder):
            break
    return [*paths, SYSTEM]


def candidates(path: str | os.PathLike[str] | None = None) -> list[str]:
    """The socket paths to try, in order. A path that was given, or KOPS_SOCKET, is the only one."""
    if path is not None:
        return [os.fspath(path)]
    named = os.environ.get("KOPS_SOCKET")
    return [named] if named else listed(os.environ.get("XDG_RUNTIME_DIR"), os.geteuid(), _is_private)


@dataclass(frozen=True)
class Server:
    """A server that has taken a connection, as this process sees it. None: there is no such user."""

    uid: int
    self: int
    kops: int | None  # the user kops
    unmapped: int | None  # the number of every user from outside this process's user namespace
    folder: int | None  # the owner of the socket's folder
    folder_shared: bool  # others may write to it
    parent_shared: bool  # others may write to the folder above
    system: bool  # the socket is SYSTEM
    named: bool  # KOPS_TRUST_USER has the server's user

    @property
    def trusted(self) -> bool:
        if self.named:
            return True
        if self.uid == self.unmapped:
            # The number alone proves nothing, but the folder does: it was put here by the user who made this namespace,
            # unless a user of the namespace could make it.
            return self.folder in (0, self.unmapped) and not self.folder_shared and not self.parent_shared
        given = self.system and self.uid == self.folder and not self.folder_shared  # by root
        return self.uid in (0, self.self, self.kops) or given


def distrust(path: str, sock: socket.socket) -> str | None:
    """Why the server at a connected socket is not trusted, and what to do; None: it is."""
    uid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1] & 0xFFFFFFFF
    unmapped, at = _unmapped_user(), os.path.dirname(path) or "."
    (folder, folder_shared), (_, parent_shared) = _look_at(at), _look_at(f"{at}/..")
    me = os.geteuid()
    server = Server(uid, me, _user_called("kops"), unmapped, folder, folder_shared, parent_shared, path == SYSTEM, _is_named(uid))
    if server.trusted:
        return None
    if uid == unmapped:
        return (
            "its server is a user from outside this user namespace, and users of the namespace may have made its folder: mount the "
            f"folder that root made, or trust such users with KOPS_TRUST_USER={uid}"
        )
    expected = "root or kops" if me == 0 else f"{_described(me)}, root or kops"
    return f"its server is user {_described(uid)}, expected is {expected}: KOPS_TRUST_USER={uid} trusts that user"


def explained(path: str, error: OSError) -> str:
    """Why connecting failed; for EACCES also who may connect, and how to become one of them."""
    text = error.strerror or str(error)
    if error.errno != errno.EACCES:
        return text
    try:
        found = os.stat(path)
    except OSError:
        return text
    if not found.st_mode & stat.S_IWGRP:
        return f"{text}: only its owner {_described(found.st_uid)} may connect"
    try:
        group = grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        group = str(found.st_gid)
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = "USER"
    return f"{text}: the group {group} may connect, `sudo usermod -aG {group} {user}` and a new login join it"


def _is_private(folder: str) -> bool:
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & SHARED


def _look_at(folder: str) -> tuple[int | None, bool]:
    try:
        found = os.stat(folder)
    except OSError:
        return None, True
    return found.st_uid, bool(found.st_mode & SHARED)


def _user_called(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _described(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return str(uid)


def _unmapped_user() -> int | None:
    """The number that stands for users without one in this user namespace. The first namespace gives every user one, and has
    none to spare: 65534 is a user like others there."""
    try:
        if Path("/proc/self/uid_map").read_text(encoding="ascii").split()[:3] == ["0", "0", "4294967295"]:
            return None
    except OSError:
        return None
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except OSError:
        return 65534


def _is_named(uid: int) -> bool:
    """By KOPS_TRUST_USER: names or numbers, with commas between them."""
    names = os.environ.get("KOPS_TRUST_USER", "").split(",")
    return any(uid == (int(name) if name.isdecimal() else _user_called(name)) for name in names if name)
