"""What the interpreting process gives up before it runs a stranger's code, which is machine code there: the file system (Landlock), and
all system calls but some (seccomp). Linux's own interfaces, by ctypes; x86-64 only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_GET_SECCOMP = 38, 22, 2, 21
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same everywhere
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL_FILES = (1 << 13) - 1  # what the first version of Landlock knows
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_TCP = 3
_O_PATH = 0o10000000

# Numbers of x86-64: what memory, time, signals and loading an object take.
_CALLS = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10,
    "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17, "readv": 19, "writev": 20,
    "access": 21, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "nanosleep": 35, "getitimer": 36, "setitimer": 38,
    "getpid": 39, "exit": 60, "uname": 63, "getcwd": 79, "readlink": 89, "gettimeofday": 96, "sigaltstack": 131,
    "gettid": 186, "futex": 202, "sched_getaffinity": 204, "restart_syscall": 219, "timer_create": 222, "timer_settime": 223,
    "timer_gettime": 224, "timer_delete": 226, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231,
    "openat": 257, "newfstatat": 262, "readlinkat": 267, "getrandom": 318, "statx": 332, "rseq": 334,
}  # fmt: skip
_ARCH, _X32 = 0xC000003E, 0x40000000
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_EPERM = 1

ADDRESS_SPACE = 64 << 30  # bytes beyond what the process has: the interpreter leaves wide gaps between tensors
FILE_BYTES = 256 << 20


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _version() -> int:
    """Landlock's; less than 1: there is none."""
    return int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def missing() -> str:
    """Why this system cannot confine the process; empty where it can."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64" or sys.maxsize < 1 << 32:
        return f"there is no sandbox for {sys.platform} on {platform.machine()}"
    if _version() < 1:
        return "this system has no Landlock"
    if _libc().prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        return "this system has no seccomp"
    return ""


def limit() -> None:
    """Bounds for what every process has too much of. No core files; the first one to go where memory is short."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, FILE_BYTES), (resource.RLIMIT_AS, ADDRESS_SPACE)):
        _, hard = resource.getrlimit(what)
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (value, value))


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def confine_files(read: Iterable[str | Path], write: Iterable[str | Path] = ()) -> None:
    """From now on files can be read, and programs run, below `read` alone, and anything be done below `write`; TCP cannot be used."""
    libc, version = _libc(), _version()
    files = _ALL_FILES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0) | (_IOCTL if version >= 5 else 0)
    handled = struct.pack("QQ", files, _TCP) if version >= 4 else struct.pack("Q", files)
    ruleset = _checked(libc.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0), "Landlock")
    try:
        for paths, allowed in ((read, _EXECUTE | _READ_FILE | _READ_DIR), (write, files & ~_IOCTL)):
            for path in paths:
                _allow(libc, ruleset, str(path), allowed)
        _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        _checked(libc.syscall(_RESTRICT_SELF, ruleset, 0), "Landlock")
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, allowed: int) -> None:
    try:
        fd = os.open(path, _O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            allowed &= _EXECUTE | _READ_FILE | _WRITE_FILE | _TRUNCATE
        _checked(libc.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, fd), 0), f"Landlock, {path}")
    finally:
        os.close(fd)


def _filter() -> bytes:
    """A program of the kernel's packet filter: the architecture, then the call's number against each that is allowed."""
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    numbers = sorted(_CALLS.values())
    program = [(load, 0, 0, 4), (equal, 1, 0, _ARCH), (answer, 0, 0, _KILL), (load, 0, 0, 0), (at_least, 0, 1, _X32), (answer, 0, 0, _KILL)]
    program += [(equal, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    program += [(answer, 0, 0, _ERRNO | _EPERM), (answer, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *one) for one in program)


def confine_calls() -> None:
    """From now on this process makes the calls in the table, and no others."""
    code = _filter()
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    libc = _libc()
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _checked(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0), "seccomp")
