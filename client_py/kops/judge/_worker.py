"""`python3 -m kops.judge._worker IN OUT`: the process that interprets one solution. It is given inputs and never what is right, keeps the
kernels' module state between launches, and is ended by its parent.

In the interpreter a stranger's kernel is machine code of this machine. So the process first loses what the compiler does not need,
then, before the code is loaded, all that running it does not need.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .. import KopsError, interpret
from ..interpret import _compiler, _report, _runtime
from . import _sandbox
from ._pipe import receive, send

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
    """With the system's and the compiler's files alone."""
    _compiler.compile_runtime()
    cache = _compiler.directory()
    made = tempfile.mkdtemp(prefix="judge-", dir=cache)
    os.environ["TMPDIR"] = made
    try:
        if spec["sandbox"]:
            compiler = Path(os.path.realpath(_which(_compiler.compiler()[0][0]))).parent
            python = [sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
            package = Path(__file__).resolve().parents[1]
            _sandbox.confine_files([*READABLE, *python, compiler, package, *_libraries()], [cache, "/dev/null"])
        return _Kernels(spec)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _libraries() -> list[Path]:
    """Where the packages lie that this process uses. Not all of sys.path: the judge's working directory is on it."""
    found = (getattr(sys.modules.get(name), "__file__", None) for name in ("numpy", "msgpack"))
    return [Path(file).resolve().parents[1] for file in found if file]


def _which(name: str) -> str:
    return shutil.which(name) or name


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
    _sandbox.limit()
    kernels = _confined_compile(spec)
    _runtime._runtime()
    _start_teller(list(map(str, kernels.paths.values())), others)
    if spec["sandbox"]:
        _sandbox.confine_files(kernels.paths.values())
        _sandbox.confine_calls()
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
    send(target, {}, {})  # it is compiled
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


if __name__ == "__main__":
    main()
