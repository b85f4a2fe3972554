"""Compiling host code: one call of the system's C++ compiler for each object that is not in the cache yet.

The precompiled header is made once for every compiler. Processes that want the same object wait for the first one, which makes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .. import CompileFailed
from .._companions import is_mine, surplus
from . import headers
from ._builder import FLAGS, LINK, PREFIX, Compiler, Unit, directory, hash_of_headers, hashed

COMPILE_SECONDS = 300
KEEP = {"extension": 256, "headers": 16, "prefix": 4, "torch": 64}  # in the cache
STALE_SECONDS = 86400  # of a build's folder: its process was killed
SETTLED_SECONDS = 2  # a file that has changed within these may change again and keep its times: its hash is not kept yet
_OF_GCC = ("-fno-gnu-unique",)  # variables of a header are the object's own, though others have the header, too
_PRECOMPILED_BY_CLANG = ("-fpch-instantiate-templates",)  # what headers need of templates is made once
_ERROR = re.compile(r"^(.*?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)$", re.M)
_OUTDATED = re.compile(r"precompiled (?:header|file).* (?:was built|is out of date)")  # files that it was made of have changed since
_ASKED = re.compile(r"^(.*?):(\d+):(?:\d+:)? +(?:note: .* requested here|required from here)", re.M)  # what an error in a header is of
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.M)
_FILES = "files/a/b/c/d"  # so deep that "../x.h" is in the folder, too


# ---- the cache ----


@contextlib.contextmanager
def locked(key: str) -> Iterator[None]:
    """One process at a time makes what has this key. The files of the locks are few, and stay."""
    with open(directory() / f"lock-{key[:2]}", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _tidy() -> None:
    """Removes the oldest of each kind."""
    for left in directory().glob("tmp*"):
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < time.time() - STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    for sort, most in KEEP.items():
        for old in surplus(directory().glob(f"{sort}-*"), most):
            if old.is_dir():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.unlink(missing_ok=True)


def _keep(made: str, path: Path) -> None:
    os.chmod(made, 0o700)
    os.rename(made, path)
    _tidy()


def keep_hash(text: str, path: Path, changed: float) -> None:
    """Keeps the hash of files of which the newest was changed at a time."""
    if changed > time.time() - SETTLED_SECONDS:
        return
    with contextlib.suppress(OSError):  # the cache may be read-only
        path.write_text(text, encoding="utf-8")
        _tidy()


# ---- compiling ----


@cache
def _is_clang(using: Compiler) -> bool:
    name = os.path.basename(using.path)
    return "clang" in name or ("++" in name and "g++" not in name and "clang" in _version(using.command))


def _version(command: Sequence[str]) -> str:
    with contextlib.suppress(OSError):
        return subprocess.run([*command, "--version"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL).stdout
    return ""


def _user_place(log: str, error: re.Match[str]) -> re.Match[str]:
    """The line that asked for what has an error in our headers: g++ tells it before the error, clang behind."""
    asked = [one for one in _ASKED.finditer(log) if not one[1].startswith(str(directory()))]
    behind = next((one for one in asked if one.start() > error.start()), None)
    return behind or (asked[-1] if asked else error)


def _run(command: Sequence[str], folder: str, name: str) -> None:
    """Raises CompileFailed with the compiler's first error, its file and line."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise CompileFailed(f"{name}: the C++ compiler took longer than {COMPILE_SECONDS} s", {"reason": "time", "log": ""}) from None
    except OSError as error:
        raise CompileFailed(f"{name}: the C++ compiler cannot be run: {error}", {"reason": "crash", "log": ""}) from None
    if not done.returncode:
        return
    log = done.stderr + done.stdout
    found = _ERROR.search(log)
    if found is not None:
        place = _user_place(log, found) if found[1].startswith(str(directory())) else found
        first = f"{place[1]}:{place[2]}: {found[3]}"
    else:
        first = next((line.strip() for line in log.splitlines() if "undefined" in line or "error" in line), "")
        first = first or (f"it was killed by signal {-done.returncode}" if done.returncode < 0 else "see the log")
    reason = "source" if found is not None or "undefined" in first else "crash"
    raise CompileFailed(f"{name}: host code does not compile: {first}", {"reason": reason, "log": log})


def _prefix(using: Compiler) -> Path:
    """The folder with the headers, of which one is precompiled."""
    key = hashed(using.identity, hash_of_headers(), *FLAGS, *_OF_GCC, *_PRECOMPILED_BY_CLANG)
    path = directory() / f"prefix-{key}"
    output = "prefix.h.pch" if _is_clang(using) else "prefix.h.gch"
    if (path / output).is_file():
        with contextlib.suppress(OSError):
            os.utime(path)
        return path
    with locked(key), tempfile.TemporaryDirectory(dir=path.parent) as folder:
        if not path.is_dir():
            written = Path(folder, "headers")
            shutil.copytree(headers.INCLUDE, written)  # one place for all installations: a compiler knows headers by their paths
            headers.write(written)
            (written / "prefix.h").write_text(PREFIX)
            os.rename(written, path)
        if not (path / output).is_file():
            made = os.path.join(folder, output)
            header = ["-x", "c++-header", str(path / "prefix.h"), "-o", made]
            more = _PRECOMPILED_BY_CLANG if _is_clang(using) else ()
            _run([*using.command, *_flags(using), *more, *_include(path), *header], folder, "the headers of extensions")
            _keep(made, path / output)
    return path


def _flags(using: Compiler) -> list[str]:
    return [*FLAGS, *(() if _is_clang(using) else _OF_GCC)]


def _include(prefix: Path) -> list[str]:
    return ["-I", str(prefix)]


def _write(folder: Path, files: Mapping[str, str]) -> None:
    (folder / _FILES).mkdir(parents=True)
    for name, text in files.items():
        path = Path(os.path.normpath(folder / _FILES / name))
        if folder not in path.parents:
            continue  # a header far outside is found by nobody, and the compiler says so
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")


def _undefined(texts: Sequence[str]) -> str:
    """Directives that undefine the macros of these sources."""
    return "".join(f"#undef {name}\n" for name in dict.fromkeys(name for text in texts for name in _DEFINE.findall(text)))


def make(
    path: Path, key: str, using: Compiler, name: str, units: Sequence[Unit], texts: Sequence[str], defines: str, files: Mapping[str, str]
) -> None:
    """Makes an object of sources: `texts` are those of the units as the host's compiler takes them, and `files` the headers."""
    prefix = _prefix(using)
    with locked(key):
        if is_mine(path):
            return
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            _write(Path(folder), files)
            made = os.path.join(folder, "extension.so")
            how = _Command(using, prefix, folder, name, defines)
            try:
                _compile(how, units, texts, made)
            except CompileFailed as error:
                if not _OUTDATED.search(error.log):
                    raise
                for output in prefix.glob("prefix.h.*"):
                    output.unlink(missing_ok=True)
                _prefix(using)
                _compile(how, units, texts, made)
            _keep(made, path)


def _compile(how: _Command, units: Sequence[Unit], texts: Sequence[str], made: str) -> None:
    """All in one, which is quicker; apart where that fails behind the first source: what it declares is none of the others' business."""
    whole = [(_undefined(texts[:i]) + how.defines if i else "") + text for i, text in enumerate(texts)]
    try:
        how.compile(["".join(whole)], made)
    except CompileFailed as error:
        found = _ERROR.search(error.log)
        if len(units) == 1 or found is None or found[1] == units[0].name:
            raise
        how.compile(texts, made)


class _Command(NamedTuple):
    using: Compiler
    prefix: Path
    folder: str
    name: str
    defines: str

    def compile(self, texts: Sequence[str], made: str) -> None:
        sources = []
        for i, text in enumerate(texts):
            sources.append(f"unit{i}.cpp")
            Path(self.folder, sources[-1]).write_text(self.defines + text, encoding="utf-8", errors="surrogatepass")
        header = str(self.prefix / "prefix.h")
        first = ["-include-pch", f"{header}.pch"] if _is_clang(self.using) else ["-include", header]
        include = ["-iquote", _FILES, "-I", _FILES, *_include(self.prefix)]
        _run([*self.using.command, *_flags(self.using), *first, *include, *LINK, *sources, "-o", made], self.folder, self.name)
