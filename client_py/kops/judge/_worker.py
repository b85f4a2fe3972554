"""The process that interprets one solution, which `_host` starts. It is given inputs and never what is right, keeps the kernels' module
state between launches, and is ended by its parent.

In the interpreter a stranger's kernel is machine code of this machine. So the process first loses what the compiler does not need, then,
before the code is loaded, all that running it does not need: files (Landlock), and all system calls but some (seccomp). Both are Linux's
own interfaces, by ctypes; x86-64 only.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import shutil
import struct
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from .. import KopsError, interpret
from .._companions import numpy
from ..interpret import _compiler, _report, _runtime

# Messages between the judge and this process: a JSON header and the bytes of arrays. Answers may be a stranger's: they
# are never unpickled, and their sizes are bounded by what was asked for.

HEADER_MAX = 8 << 20
_LENGTH = struct.Struct("<Q")


def send(file: BinaryIO, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    described = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    text = json.dumps({**header, "arrays": described}).encode()
    file.write(_LENGTH.pack(len(text)))
    file.write(text)
    for array in arrays.values():
        file.write(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).data)
    file.flush()


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise EOFError("the other side is gone")
    return data


def receive(file: BinaryIO, most: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and arrays, of at most so many bytes. Raises EOFError where the other side ends, ValueError for what is no message."""
    (length,) = _LENGTH.unpack(_exactly(file, _LENGTH.size))
    if length > HEADER_MAX:
        raise ValueError("a header that is too long")
    header = json.loads(_exactly(file, length))
    arrays = {}
    for name, (kind, shape) in header.pop("arrays").items():
        dtype = numpy.dtype(kind)
        count = 1
        for n in shape:
            if not isinstance(n, int) or n < 0:
                raise ValueError("a shape that is none")
            count *= n
        size = count * dtype.itemsize
        if dtype.hasobject or size > most:
            raise ValueError("more bytes than were asked for")
        most -= size
        arrays[name] = numpy.frombuffer(bytearray(_exactly(file, size)), dtype).reshape(shape)
    return header, arrays


# The sandbox

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_GET_SECCOMP = 38, 22, 2, 21
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL_FILES = (1 << 13) - 1  # rights that the first version of Landlock knows
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_TCP = 3
_O_PATH = 0o10000000

# Numbers of x86-64's system calls for memory, time, signals and loading an object.
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
    """The version of Landlock; less than 1 where there is none."""
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


# The work

BYTES_MAX = 1 << 40  # from the judge, which is trusted
QUESTION_MAX, ANSWER_MAX = 256, 64 << 10  # characters of a question about a line, and of its answer
READABLE = ("/usr", "/lib", "/lib64", "/bin", "/opt", "/etc/ld.so.cache", "/etc/alternatives", "/proc/self", "/dev/null", "/dev/urandom")


class _Kernels:
    """The solution's, in one object: they share its variables. `load` answers one."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.entries: list[str] = spec["entries"]
        make: Callable[[bool], Path] = lambda watched: _compiler.compile_kernel(  # noqa: E731
            spec["source"], "solution.cu", self.entries, {}, spec["options"], watched
        )
        self.paths = {watched: make(watched) for watched in ({True} if spec["check"] else {True, False})}

    def load(self, entry: str, watched: bool) -> Any:
        return _runtime.load(self.paths[watched], self.entries.index(entry))


def _confined_compile(spec: dict[str, Any]) -> _Kernels:
    """Compiles with the system's and the compiler's files alone."""
    _compiler.compile_runtime()
    cache = _compiler.directory()
    made = tempfile.mkdtemp(prefix="judge-", dir=cache)
    os.environ["TMPDIR"] = made
    try:
        if spec["sandbox"]:
            compiler = Path(os.path.realpath(shutil.which(command := _compiler.compiler()[0][0]) or command)).parent
            python = [sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
            package = Path(__file__).resolve().parents[1]
            confine_files([*READABLE, *python, compiler, package, *_libraries()], [cache, "/dev/null"])
        return _Kernels(spec)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _libraries() -> list[Path]:
    """Where the packages lie that this process uses. Not all of sys.path: the judge's working directory is on it."""
    found = (getattr(sys.modules.get(name), "__file__", None) for name in ("numpy", "msgpack"))
    return [Path(file).resolve().parents[1] for file in found if file]


def _told(paths: list[str], question: str) -> str:
    """The line of a question: the number of an object that was compiled here, and an offset in it. The question may be a stranger's:
    nothing but these objects is looked at, and what is no question has no answer."""
    try:
        number, offset = json.loads(question)
        known = type(number) is int and 0 <= number < len(paths) and type(offset) is int and 0 <= offset < 1 << 48
    except (ValueError, TypeError, RecursionError):
        return ""
    return _report.addresses(paths[number], offset)[:ANSWER_MAX] if known else ""


def _start_teller(paths: list[str], others: list[int]) -> None:
    """A process that has what the compiler has: it tells lines of the source for offsets in the objects `paths`, since this one will
    start no program. `others`: descriptors that it must not hold open."""
    (asked, ask), (told, tell) = os.pipe(), os.pipe()
    if os.fork() == 0:
        for fd in (ask, told, *others):
            os.close(fd)
        with open(asked, encoding="utf-8") as questions, open(tell, "w", encoding="utf-8") as answers:
            while line := questions.readline(QUESTION_MAX):
                answers.write(json.dumps(_told(paths, line)) + "\n")
                answers.flush()
        os._exit(0)
    os.close(asked)
    os.close(tell)
    questions, answers = open(ask, "w", encoding="utf-8"), open(told, encoding="utf-8")

    def teller(path: str, offset: int) -> str:
        questions.write(json.dumps([paths.index(path), offset]) + "\n")
        questions.flush()
        return str(json.loads(answers.readline() or '""'))

    _report.teller = teller


def _run(kernels: _Kernels, check: bool, launches: list[dict[str, Any]], arrays: dict[str, Any]) -> None:
    for one in launches:
        args = [arrays[value] if what == "area" else value for what, value in one["arguments"]]
        try:
            interpret.launch(
                partial(kernels.load, one["entry"]), one["entry"], one["params"], args,
                grid=tuple(one["grid"]), block=tuple(one["block"]), shared=one["shared"],
                cluster=tuple(one["cluster"]) if one["cluster"] else None, cooperative=one["cooperative"],
                exited_threads="allow", check=check, timeout=one["timeout"], keeps=True,
            )  # fmt: skip
        except interpret.InterpretError as error:
            error.detail["kernel"] = one["entry"]
            raise


def _described(error: KopsError) -> dict[str, Any]:
    names = ("kind", "block", "thread", "line", "log", "tensor", "index")
    return {"message": str(error)[:4000], "kernel": error.detail.get("kernel", ""), **{name: getattr(error, name, None) for name in names}}


def _prepared(spec: dict[str, Any], others: list[int]) -> _Kernels:
    limit()
    kernels = _confined_compile(spec)
    _runtime._runtime()
    _start_teller(list(map(str, kernels.paths.values())), others)
    if spec["sandbox"]:
        confine_files(kernels.paths.values())
        confine_calls()
    return kernels


def main() -> None:
    source, target = open(int(sys.argv[1]), "rb"), open(int(sys.argv[2]), "wb")
    spec, _ = receive(source, BYTES_MAX)
    try:
        kernels = _prepared(spec, [source.fileno(), target.fileno()])
    except KopsError as error:
        send(target, {"error": _described(error)}, {})
        return
    except OSError as error:
        send(target, {"error": {"kind": "unsupported", "message": f"what the judge needs fails: {error}"}}, {})
        return
    send(target, {}, {})  # the source is compiled
    for entry in kernels.entries:
        for watched in kernels.paths:
            kernels.load(entry, watched)
    send(target, {}, {})  # from here on the stranger's code has run
    while True:
        try:
            asked, arrays = receive(source, BYTES_MAX)
        except EOFError:
            return
        for name in asked["bools"]:
            arrays[name] = arrays[name].view(bool)
        try:
            _run(kernels, spec["check"], asked["launches"], arrays)
        except KopsError as error:
            send(target, {"error": _described(error)}, {})
        else:
            send(target, {}, {name: arrays[name].view("u1") if name in asked["bools"] else arrays[name] for name in asked["wanted"]})
