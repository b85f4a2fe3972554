"""Compiling host code: one call of the system's C++ compiler, whose result is kept under a hash of all that it depends on.

The precompiled header is made once for every compiler. Processes that want the same object wait for the first one, which makes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .. import CompileFailed, Unsupported
from .._companions import compiled_part, gather
from ..interpret._compiler import directory as _objects
from ..interpret._compiler import is_mine
from . import headers

COMPILE_SECONDS = 300
KEEP = {"extension": 256, "prefix": 4, "torch": 64}  # in the cache
_PREFIX = "#include <torch/extension.h>\n#include <kops/entry.h>\n"
_FLAGS = ("-std=c++17", "-w", "-O0", "-fPIC", "-pthread", "-Wno-narrowing", "-fno-strict-aliasing", "-fwrapv")
_OF_GCC = ("-fno-gnu-unique",)  # variables of a header are the object's own, though others have the header, too
_PRECOMPILED_BY_CLANG = ("-fpch-instantiate-templates",)  # what headers need of templates is made once
_LINK = ("-shared", "-Wl,-z,now", "-Wl,-z,defs", "-Wl,-Bsymbolic")
_ERROR = re.compile(r"^(.*?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)$", re.M)
_OUTDATED = re.compile(r"precompiled (?:header|file).* (?:was built|is out of date)")  # files that it was made of have changed since
_ASKED = re.compile(r"^(.*?):(\d+):(?:\d+:)? +(?:note: .* requested here|required from here)", re.M)  # what an error in a header is of
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.M)
_FILES = "files/a/b/c/d"  # so deep that "../x.h" is in the folder, too
STALE_SECONDS = 86400  # of a build's folder: its process was killed


class Unit(NamedTuple):
    """A source of C++ under the name that its errors have."""

    name: str
    text: str


class Compiler(NamedTuple):
    command: tuple[str, ...]
    is_clang: bool
    identity: str  # changes when another compiler is installed under its name


@cache
def compiler(named: str) -> Compiler:
    """The compiler that $CXX names, or one of the path."""
    command = shlex.split(named) or [next((name for name in ("clang++", "g++", "c++") if shutil.which(name)), "c++")]
    path = shutil.which(command[0])
    if path is None:
        raise Unsupported(
            f"there is no C++ compiler {command[0]!r}, which runs the functions of the host: install g++ or clang++, or set CXX"
        )
    found = os.stat(path)
    name = os.path.basename(os.path.realpath(path))
    is_clang = "clang" in name or ("++" in name and "g++" not in name and "clang" in _version(command))
    return Compiler(tuple(command), is_clang, f"{os.path.realpath(path)} {found.st_size} {found.st_mtime_ns} {named}")


def _version(command: Sequence[str]) -> str:
    with contextlib.suppress(OSError):
        return subprocess.run([*command, "--version"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL).stdout
    return ""


# ---- the cache ----


def directory() -> Path:
    return _objects("extension")


def hashed(*parts: str | bytes) -> str:
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(str(len(data)).encode() + b":" + data)
    return digest.hexdigest()


@cache
def _headers() -> str:
    """A hash of the headers, and of what they are generated of."""
    here = headers.INCLUDE.parent
    paths = [*headers.INCLUDE.rglob("*"), *here.glob("*.txt"), here / "headers.py"]
    texts = [part for path in sorted(paths) if path.is_file() for part in (str(path.relative_to(here)), path.read_bytes())]
    return hashed(_PREFIX, *texts)


@contextlib.contextmanager
def locked(key: str) -> Iterator[None]:
    """One process at a time makes what has this key. The files of the locks are few, and stay."""
    with open(directory() / f"lock-{key[:2]}", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _keep(made: str, path: Path) -> None:
    """Puts a file into the cache, out of which the oldest go."""
    os.chmod(made, 0o700)
    os.rename(made, path)
    for left in directory().glob("tmp*"):
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < time.time() - STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    for sort, most in KEEP.items():
        entries = sorted(directory().glob(f"{sort}-*"), key=lambda p: p.stat().st_mtime if p.exists() else 0.0)
        for old in entries[:-most]:
            if old.is_dir():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.unlink(missing_ok=True)


# ---- compiling ----


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
    key = hashed(using.identity, _headers(), *_FLAGS, *_OF_GCC, *_PRECOMPILED_BY_CLANG)
    path = directory() / f"prefix-{key}"
    output = "prefix.h.pch" if using.is_clang else "prefix.h.gch"
    if (path / output).is_file():
        with contextlib.suppress(OSError):
            os.utime(path)
        return path
    with locked(key), tempfile.TemporaryDirectory(dir=path.parent) as folder:
        if not path.is_dir():
            written = Path(folder, "headers")
            shutil.copytree(headers.INCLUDE, written)  # one place for all installations: a compiler knows headers by their paths
            headers.write(written)
            (written / "prefix.h").write_text(_PREFIX)
            os.rename(written, path)
        if not (path / output).is_file():
            made = os.path.join(folder, output)
            header = ["-x", "c++-header", str(path / "prefix.h"), "-o", made]
            more = _PRECOMPILED_BY_CLANG if using.is_clang else ()
            _run([*using.command, *_flags(using), *more, *_include(path), *header], folder, "the headers of extensions")
            _keep(made, path / output)
    return path


def _flags(using: Compiler) -> list[str]:
    return [*_FLAGS, *(() if using.is_clang else _OF_GCC)]


def _include(prefix: Path) -> list[str]:
    return ["-I", str(prefix)]


def host_text(text: str) -> str:
    """A CUDA source as C++ for the host."""
    made: bytes = compiled_part("compiling host code").host_cxx(text.encode("utf-8", "surrogatepass"))
    return made.decode("utf-8", "surrogatepass")


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


def _quoted(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def _of_environment(texts: Sequence[str]) -> list[str]:
    """What the sources include of CPATH's folders, in which the compiler looks by itself."""
    folders = [one for name in ("CPATH", "CPLUS_INCLUDE_PATH") for one in os.environ.get(name, "").split(os.pathsep) if one]
    found = [gather(text, Path(os.devnull), folders) for text in texts] if folders else []
    return [part for files in found for item in sorted(files.items()) for part in item]


def build(name: str, units: Sequence[Unit], defines: str, files: Mapping[str, str]) -> Path:
    """The shared object of these sources, made now or before. `defines`: directives before each. `files`: headers by name.
    Sources that do not go together, since both define the same, are compiled apart."""
    using = compiler(os.environ.get("CXX", ""))
    texts = [f'#line 1 "{_quoted(unit.name)}"\n{host_text(unit.text)}\n' for unit in units]
    headers = {name: f'#line 1 "{_quoted(name)}"\n{host_text(text)}' for name, text in sorted(files.items())}
    parts = [*texts, "", *(part for item in headers.items() for part in item)]
    key = hashed(using.identity, _headers(), *_FLAGS, *_LINK, defines, *parts, "", *_of_environment(parts))
    path = directory() / f"extension-{key}.so"
    if is_mine(path):
        with contextlib.suppress(OSError):
            os.utime(path)
        return path
    prefix = _prefix(using)
    with locked(key):
        if is_mine(path):
            return path
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            _write(Path(folder), headers)
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
    return path


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
        first = ["-include-pch", f"{header}.pch"] if self.using.is_clang else ["-include", header]
        include = ["-iquote", _FILES, "-I", _FILES, *_include(self.prefix)]
        _run([*self.using.command, *_flags(self.using), *first, *include, *_LINK, *sources, "-o", made], self.folder, self.name)
