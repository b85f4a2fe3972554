"""The objects of host code, each kept under a hash of all that it depends on. What is not there is compiled, see `_cxx`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .. import Unsupported
from .._companions import cache_directory, compiled_part, gather, is_mine

HERE = os.path.dirname(os.path.abspath(__file__))
PREFIX = "#include <torch/extension.h>\n#include <kops/entry.h>\n"
FLAGS = ("-std=c++17", "-w", "-O1", "-fPIC", "-pthread", "-Wno-narrowing", "-fno-strict-aliasing", "-fwrapv")
LINK = ("-shared", "-Wl,-z,now", "-Wl,-z,defs", "-Wl,-Bsymbolic")
HASH_CHARACTERS = 40


class Unit(NamedTuple):
    """A source of C++ under the name that its errors have."""

    name: str
    text: str


class Compiler(NamedTuple):
    command: tuple[str, ...]
    path: str  # without symbolic links
    identity: str  # changes when another compiler is installed under its name


@cache
def compiler(named: str) -> Compiler:
    """The compiler that $CXX names, or one of the path."""
    command = shlex.split(named)
    names = command[:1] or ["clang++", "g++", "c++"]
    path = next(filter(None, map(shutil.which, names)), None)
    command = command or [os.path.basename(path or names[-1])]
    if path is None:
        raise Unsupported(
            f"there is no C++ compiler {command[0]!r}, which runs the functions of the host: install g++ or clang++, or set CXX"
        )
    found, real = os.stat(path), os.path.realpath(path)
    return Compiler(tuple(command), real, f"{real} {found.st_size} {found.st_mtime_ns} {named}")


# ---- the cache ----


def directory() -> Path:
    return cache_directory("extension")


def hashed(*parts: str | bytes) -> str:
    digest = hashlib.blake2b(digest_size=HASH_CHARACTERS // 2)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(str(len(data)).encode() + b":" + data)
    return digest.hexdigest()


def _files(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path)
            else:
                yield entry.path


@cache
def hash_of_headers() -> str:
    """A hash of the headers, and of what they are generated of. It is kept by the files' sizes and times: most processes read none."""
    own = (entry for entry in os.listdir(HERE) if entry.endswith(".txt") or entry == "headers.py")
    paths = sorted([*_files(os.path.join(HERE, "include")), *(os.path.join(HERE, name) for name in own)])
    found = [os.stat(path) for path in paths]
    told = [f"{path} {one.st_size} {one.st_mtime_ns} {one.st_ctime_ns}" for path, one in zip(paths, found)]
    kept = directory() / f"headers-{hashed(PREFIX, *told)}"
    with contextlib.suppress(OSError), open(kept, "rb", buffering=0) as file:
        made = file.read(HASH_CHARACTERS).decode()
        if len(made) == HASH_CHARACTERS:
            return made
    from . import _cxx

    made = hashed(PREFIX, *(part for path in paths for part in (os.path.relpath(path, HERE), Path(path).read_bytes())))
    _cxx.keep_hash(made, kept, max(one.st_ctime for one in found))
    return made


def host_text(text: str) -> str:
    """A CUDA source as C++ for the host."""
    made: bytes = compiled_part("compiling host code").host_cxx(text.encode("utf-8", "surrogatepass"))
    return made.decode("utf-8", "surrogatepass")


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
    included = {name: f'#line 1 "{_quoted(name)}"\n{host_text(text)}' for name, text in sorted(files.items())}
    parts = [*texts, "", *(part for item in included.items() for part in item)]
    key = hashed(using.identity, hash_of_headers(), *FLAGS, *LINK, defines, *parts, "", *_of_environment(parts))
    path = directory() / f"extension-{key}.so"
    if is_mine(path):
        with contextlib.suppress(OSError):
            os.utime(path)
        return path
    from . import _cxx

    _cxx.make(path, key, using, name, units, texts, defines, included)
    return path
