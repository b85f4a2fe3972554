#!/usr/bin/env python3
"""House rules that a program can check: `lint.py CHECK…`, or `lint.py` for all of them.

    format      clang-format has nothing to change
    layers      includes point downwards only: the daemon's layers and the server's rooms, kernels/cuda, libkops, kopsctl
    functions   no call of a function that cannot be used safely
    text        no marks of unfinished work, no paths of one machine, no stray blanks
    generated   tables derived from proto/ are up to date
    python      ruff finds nothing
    size        no file is over 1 MiB
    length      files and functions are short (warns, never fails)

Exit status: 0 clean, 1 findings, 77 a tool is missing (with --strict: 1).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
C_SUFFIXES = {".c", ".h", ".cu", ".cuh"}
TEXT_SUFFIXES = C_SUFFIXES | {
    ".py",
    ".md",
    ".txt",
    ".cmake",
    ".json",
    ".toml",
    ".yml",
    ".sh",
    ".service",
    ".socket",
    ".in",
    ".conf",
}
LAYERS = ("util", "rpc", "core", "backend", "server", "main")
SERVER_ROOMS = ("account", "base", "peer", "memory", "code", "exec", "observe", "tune", "control")
# The rooms of kernels/cuda, and the rooms that each may include; files beside the folders may include all but the lab.
CUDA_ROOMS = {
    "driver": (),
    "ops": (),
    "memory": ("driver",),
    "times": ("driver",),
    "blaslt": ("driver", "times"),
    "compute": ("driver", "memory", "times", "blaslt", "ops"),
    "staging": ("driver", "memory", "ops", "compute"),
    "counters": ("driver", "memory", "blaslt", "ops", "compute"),
    "tune": ("driver", "memory", "blaslt", "ops", "compute"),
    "jobs": ("driver", "memory", "blaslt", "ops", "compute", "counters", "staging", "times"),
    "lab": ("ops",),
}
CLIENT_LAYERS = {  # folders of client_c/src, and the folders that each may include
    "base": (),
    "cuda": ("base",),
    "wire": ("base",),
    "link": ("base",),
    "session": ("base", "wire", "link"),
    "memory": ("base", "cuda", "wire", "session"),
    "jobs": ("base", "cuda", "wire", "session"),
    "here": ("base", "cuda", "wire"),
    "run": ("base", "cuda", "wire", "session", "memory", "jobs", "here"),
    "api": ("base", "cuda", "wire", "session", "memory", "jobs", "here", "run"),
}
CLIENT_RULES = ("core", "ops", "rpc", "util")  # the daemon's rules of launches, which "here" uses
CTL_LAYERS = {  # the same for daemon/ctl
    "base": (),
    "data": (),
    "view": ("base",),
    "commands": ("base", "data", "view"),
}
# Of client_py/kops.
PYTHON_LAYERS = (
    "_base", "_source", "interpret", "extension", "_memory", "_tensors", "_session", "_calls", "_kernels", "_clients", "torch", "profiler",
    "judge", "ray",
)  # fmt: skip
# They import, besides each other in this order, what `kops` exports, and `_companions`: nothing else of the layers that are the core.
PYTHON_COMPANIONS = ("interpret", "extension", "profiler", "judge", "ray")
MAX_FUNCTION = 80
MAX_BYTES = 1 << 20
SKIPPED = 77

BANNED = (
    "strcpy",
    "stpcpy",
    "strcat",
    "sprintf",
    "vsprintf",
    "gets",
    "strtok",
    "alloca",
    "atoi",
    "atol",
    "atof",
    "mktemp",
    "tmpnam",
    "system",
    "popen",
    "cudaLaunchHostFunc",
    "cuLaunchHostFunc",
)


class Missing(Exception):
    """A tool that the check needs is not installed."""


def project_files() -> list[Path]:
    """Files of the project: tracked ones, and new ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        found = (p for p in ROOT.rglob("*") if "build" not in p.parts and ".git" not in p.parts)
    else:
        found = (ROOT / name for name in listed.stdout.decode().split("\0") if name)
    return sorted(p for p in found if p.is_file())


def c_files() -> list[Path]:
    return [p for p in project_files() if p.suffix in C_SUFFIXES]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def without_comments(text: str) -> str:
    """C with comments, strings and characters blanked; line numbers stay."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group(0))

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


# ---- checks: each yields findings ----


def check_format() -> Iterator[str]:
    tool = shutil.which("clang-format-14") or shutil.which("clang-format")
    if not tool:
        raise Missing("clang-format")
    files = [str(p) for p in c_files() if "generated" not in p.parts and p.name != "declarations.h"]
    for i in range(0, len(files), 50):
        done = subprocess.run(
            [tool, "--dry-run", "--Werror", *files[i : i + 50]], capture_output=True, text=True, check=False
        )
        yield from (line.replace(f"{ROOT}/", "") for line in done.stderr.splitlines() if "error:" in line)


def allowed_room(room: str, included: str) -> bool:
    """Whether a file of a room of the server may include that one: of its own room, or a public header of one below."""
    _, other, header = included.split("/")
    if header == "room.h":
        return other == room
    return SERVER_ROOMS.index(other) <= SERVER_ROOMS.index(room)


def allowed_include(path: Path, included: str) -> bool:
    """Whether a file may include that path ("" quotes, as written)."""
    parts = path.relative_to(ROOT).parts
    top = included.split("/")[0]
    if (path.parent / included).exists() and "/" not in included:
        return True
    if parts[0] == "daemon" and len(parts) > 2:
        layer = parts[1]
        if layer == "ctl":
            allowed = CTL_LAYERS[parts[2]] if len(parts) > 3 else ("base", "commands")
            return top in ("kops", "proto", "source", *allowed)
        if layer == "source":  # beside util, for compile, kopsctl and client_py/native
            return top in ("source", "proto")
        if top == "source":
            return layer == "compile"
        if layer == "sandbox":  # beside rpc: it knows util only
            return top in ("sandbox", "util", "proto")
        if layer == "remote":  # beside rpc, above sandbox
            return top in ("remote", "sandbox", "util", "proto")
        if top == "remote":
            return layer in ("compile", "server", "main")
        if top == "sandbox":
            return layer in ("compile", "executor")
        if layer == "compile":  # beside rpc, above sandbox and remote
            return top in ("compile", "remote", "sandbox", "util", "proto")
        if top == "compile":
            return layer in ("server", "main")
        if layer == "executor":  # beside server
            return top in ("executor", "backend", "core", "sandbox", "util", "proto")
        if top == "executor":
            return layer == "main"
        if layer == "server" and top == "server":
            return allowed_room(parts[2], included)
        rank = LAYERS.index(layer)
        return top == "proto" or (top == "codec" and layer == "rpc") or (top in LAYERS and LAYERS.index(top) <= rank)
    if parts[0] == "kernels":
        if parts[1] == "cuda" and top in CUDA_ROOMS:
            return top in CUDA_ROOMS.get(parts[2], CUDA_ROOMS.keys() - {"lab"})
        in_lab = parts[2] == "lab" and included.startswith("../ops/")  # candidates are built from kernels' headers
        return in_lab or top in ("backend", "core", "util", "proto")
    if parts[:2] == ("client_c", "src"):
        rules = CLIENT_RULES if parts[2] == "here" else ()
        if included == "util/places.h":  # the daemon's rule, too
            return parts[2] == "session"
        return top in ("kops", "proto", *CLIENT_LAYERS[parts[2]], *rules) or (top == "codec" and parts[2] in ("wire", "link"))
    if parts[0] == "client_c":
        return top == "kops"
    if parts[0] in ("proto", "codec"):
        return top == parts[0]
    return True


def check_layers() -> Iterator[str]:
    include = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)
    system = re.compile(r"^[ \t]*#[ \t]*include[ \t]+<([^>]+)>", re.M)
    for path in c_files():
        text = path.read_text(encoding="utf-8")
        for match in include.finditer(text):
            if not allowed_include(path, match.group(1)):
                yield f"{name(path)}:{line_of(text, match.start())}: must not include {match.group(1)}"
        parts = path.relative_to(ROOT).parts
        for match in system.finditer(text):
            wire = match.group(1).startswith("msgpack")
            if wire and parts[0] in ("daemon", "kernels", "client_c", "client_py"):
                yield f"{name(path)}:{line_of(text, match.start())}: msgpack belongs to codec/"
            if match.group(1) == "uv.h" and parts[0] == "kernels":
                yield f"{name(path)}:{line_of(text, match.start())}: kernels do not know the loop"
    yield from check_python_layers()


def allowed_python(folder: str, wanted: str, exported: bool) -> bool:
    """Whether a file of a folder of the package may import that folder or module, or that name, `exported` by `kops` itself."""
    layers = PYTHON_LAYERS
    if folder in PYTHON_COMPANIONS:
        if wanted == "_companions" or (exported and not wanted.startswith("_") and wanted not in layers):
            return True
        layers = PYTHON_COMPANIONS
    elif wanted == "_version":
        return True
    return wanted in layers and layers.index(wanted) <= layers.index(folder)


def check_python_layers() -> Iterator[str]:
    """Of the package: its folders import those before them, and its own modules only."""
    imports = re.compile(r"^\s*(?:from|import)\s+(support|tests|bench|golden)\b", re.M)
    relative = re.compile(r"^\s*from (\.+)([\w.]*) import (\w+)", re.M)
    package = ROOT / "client_py" / "kops"
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for match in imports.finditer(text):
            yield f"{name(path)}:{line_of(text, match.start())}: the client must not import {match.group(1)}"
        folders = path.relative_to(package).parts[:-1]
        if path.parent == package:
            if path.stem not in ("__init__", "_version", "_companions"):
                yield f"{name(path)}: a module belongs to one of {', '.join(PYTHON_LAYERS)}"
            continue
        for match in relative.finditer(text):
            above = len(folders) + 1 - len(match.group(1))
            wanted = (*folders[:above], *match.group(2).split("."), match.group(3))
            top = next(part for part in wanted if part)
            if not allowed_python(folders[0], top, above == 0 and not match.group(2)):
                yield f"{name(path)}:{line_of(text, match.start())}: {folders[0]} must not import {top}"


def check_functions() -> Iterator[str]:
    # The stand-in driver defines functions, after "API", that no other code may call.
    call = re.compile(r"(?<![\w.>])(?<!API )(" + "|".join(BANNED) + r")\s*\(")
    for path in c_files():
        text = without_comments(path.read_text(encoding="utf-8"))
        for match in call.finditer(text):
            yield f"{name(path)}:{line_of(text, match.start())}: {match.group(1)}() is banned"


def text_rules() -> list[tuple[re.Pattern[str], str]]:
    # Written in pieces, so that this file does not find itself.
    unfinished = "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X"))
    places = "|".join(("/wo" + "rk/", "/tmp/ko" + "ps", "/ro" + "ot/"))
    papers = "|".join(("DESIGN" + r"\.md", "STYLE" + r"\.md", "BRIEF" + r"\.md", r"\b[Ii]ssue " + r"#?\d"))
    return [
        (re.compile(rf"\b({unfinished})\b"), "a mark of unfinished work"),
        (re.compile(places), "a path of one machine"),
        (re.compile(papers), "a paper that readers do not have"),
        (re.compile(r"[ \t]+$", re.M), "blanks at the end of a line"),
        (re.compile(r"\r"), "a carriage return"),
    ]


def check_text() -> Iterator[str]:
    rules = text_rules()
    for path in project_files():
        if path.suffix not in TEXT_SUFFIXES and path.suffix:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            if path.suffix:
                yield f"{name(path)}: is no UTF-8"
            continue
        if path.name == "LICENSE" or "corpus" in path.parts:
            continue
        for rule, what in rules:
            for match in rule.finditer(text):
                yield f"{name(path)}:{line_of(text, match.start())}: {what}"
        if text and not text.endswith("\n"):
            yield f"{name(path)}: does not end with a newline"


def check_generated() -> Iterator[str]:
    for script in ("proto/generate.py", "proto/golden/golden.py", "bench/table"):
        done = subprocess.run(
            [sys.executable, str(ROOT / script), "--check"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            yield from (f"{script}: {line}" for line in (done.stdout + done.stderr).splitlines())


def find_ruff() -> str:
    candidates = [
        os.environ.get("KOPS_RUFF", ""),
        "ruff",
        str(ROOT / "build/lint-venv/bin/ruff"),
    ]
    for candidate in candidates:
        found = shutil.which(candidate) if candidate else None
        if found:
            return found
    raise Missing("ruff (pip install ruff, or set KOPS_RUFF)")


def check_python() -> Iterator[str]:
    generated = {ROOT / "client_py/kops/_base" / made for made in ("declarations.py", "records.py")}
    files = [str(p) for p in project_files() if p.suffix == ".py" and p not in generated]
    config = Path(__file__).resolve().parent / "ruff.toml"
    done = subprocess.run(
        [find_ruff(), "check", "--quiet", "--no-cache", "--output-format", "concise", "--config", str(config), *files],
        cwd=ROOT,  # what is first-party would depend on it
        capture_output=True,
        text=True,
        check=False,
    )
    yield from (line.replace(f"{ROOT}/", "") for line in (done.stdout + done.stderr).splitlines())


def function_lengths(path: Path) -> Iterator[tuple[int, int]]:
    """First line and length of each function whose braces stand in the first column."""
    start = None
    for number, line in enumerate(without_comments(path.read_text(encoding="utf-8")).split("\n"), 1):
        if line.startswith("{"):
            start = number
        elif line.startswith("}") and start is not None:
            yield start, number - start + 1
            start = None


def check_size() -> Iterator[str]:
    """Files that got in by mistake, such as a download or a build: every clone would carry them for ever."""
    for path in project_files():
        if path.stat().st_size > MAX_BYTES:
            yield f"{name(path)}: {path.stat().st_size >> 10} KiB, more than {MAX_BYTES >> 10}; has it been added by mistake?"


def check_length() -> Iterator[str]:
    """Long functions. How long a file is says nothing: it is one responsibility."""
    for path in project_files():
        if path.suffix in C_SUFFIXES and "generated" not in path.parts:
            yield from (
                f"{name(path)}:{at}: a function of {n} lines" for at, n in function_lengths(path) if n > MAX_FUNCTION
            )


CHECKS: dict[str, Callable[[], Iterator[str]]] = {
    "format": check_format,
    "layers": check_layers,
    "functions": check_functions,
    "text": check_text,
    "generated": check_generated,
    "python": check_python,
    "size": check_size,
    "length": check_length,
}
WARN_ONLY = {"length"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strict", action="store_true", help="a missing tool is a failure")
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS], metavar="CHECK")
    args = parser.parse_args()
    status = 0
    for check in args.checks or CHECKS:
        try:
            findings = list(CHECKS[check]())
        except Missing as missing:
            print(f"lint {check}: skipped, no {missing}")
            status = status or (1 if args.strict else SKIPPED)
            continue
        print(
            "\n".join([*findings, f"lint {check}: {len(findings)} {'warnings' if check in WARN_ONLY else 'findings'}"])
        )
        if findings and check not in WARN_ONLY:
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
