"""`python3 -m kops.extension FILE…`, which `kopsctl check` runs: what of tutorials' files compiles here, what does not, and at which line.

Nothing of a file runs: a program of Python is read, and what its variables hold is found out as far as its text tells it.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import BadArgument, KopsError
from .._companions import inline
from . import build, kernels_of

DONE, FAILED, USAGE = 0, 1, 2  # exit statuses, as kopsctl's
_CALLS: dict[str, Callable[..., Any]] = {
    "load_inline": inline.gathered_inline, "load": inline.gathered, "CUDAExtension": inline.gathered_setup,
    "CppExtension": inline.gathered_setup,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "open": lambda path, *_, **__: Path(path), "Path": Path, "pathlib.Path": Path, "str": str, "os.path.join": os.path.join,
    "os.path.dirname": os.path.dirname, "os.path.abspath": os.path.abspath, "os.path.realpath": os.path.realpath,
    "textwrap.dedent": textwrap.dedent,
}  # fmt: skip
_METHODS: dict[str, Callable[..., Any]] = {
    "read": Path.read_text, "read_text": Path.read_text, "resolve": Path.resolve, "absolute": Path.absolute,
}  # fmt: skip
_TEXTS = ("format", "join", "replace", "strip", "lstrip", "rstrip", "splitlines")
_DEF = re.compile(r'\bm\s*\.\s*(?:def|impl)\s*\(\s*"([^"(]+)')
_PLACE = re.compile(r"\b([\w./+-]+\.\w+):(\d+)")


class Finding(NamedTuple):
    """What is known of one call, or of a file."""

    file: str
    line: int
    runs: bool
    text: str


class Unknown(Exception):
    """The text of a program does not tell a value."""


class Literal(str):
    """A text of a program, with its line there."""

    line = 0


class Program:
    """The calls of a program of Python that load or declare extensions."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._tree = ast.parse(Path(path).read_text(encoding="utf-8"), path)
        self._assigned: dict[str, list[tuple[int, ast.expr]]] = {}
        for node in ast.walk(self._tree):
            targets: Sequence[tuple[ast.expr | None, ast.expr | None]] = ()
            if isinstance(node, ast.Assign):
                targets = [(target, node.value) for target in node.targets]
            elif isinstance(node, ast.AnnAssign):
                targets = [(node.target, node.value)]
            elif isinstance(node, ast.With):
                targets = [(item.optional_vars, item.context_expr) for item in node.items]
            for target, value in targets:
                if isinstance(target, ast.Name) and value is not None:
                    self._assigned.setdefault(target.id, []).append((node.lineno, value))  # type: ignore[attr-defined]

    def calls(self) -> Iterator[tuple[str, int, dict[str, ast.expr]]]:
        """What is called, where, and with which arguments."""
        for node in ast.walk(self._tree):
            name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and name in _CALLS and (name != "load" or any(one.arg == "sources" for one in node.keywords)):
                order = ("name", "cpp_sources", "cuda_sources", "functions") if name == "load_inline" else ("name", "sources")
                given = {**dict(zip(order, node.args)), **{one.arg: one.value for one in node.keywords if one.arg is not None}}
                yield name, node.lineno, {key: value for key, value in given.items() if key in _TAKEN}

    def value(self, node: ast.expr, line: int) -> Any:
        """The value of an expression on a line. Raises Unknown."""
        if isinstance(node, ast.Constant):
            if not isinstance(node.value, str):
                return node.value
            made = Literal(node.value)
            made.line = node.lineno
            return made
        if isinstance(node, ast.Name):
            if node.id == "__file__":
                return self.path
            found = [one for one in self._assigned.get(node.id, ()) if one[0] < line]
            if found:
                return self.value(found[-1][1], found[-1][0])
        elif isinstance(node, (ast.List, ast.Tuple)):
            return [self.value(one, line) for one in node.elts]
        elif isinstance(node, ast.Dict) and None not in node.keys:
            return {self.value(key, line): self.value(one, line) for key, one in zip(node.keys, node.values) if key is not None}
        elif isinstance(node, ast.JoinedStr):
            return "".join(str(self.value(one.value if isinstance(one, ast.FormattedValue) else one, line)) for one in node.values)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod, ast.Div)):
            left, right = self.value(node.left, line), self.value(node.right, line)
            if isinstance(node.op, ast.Mod):
                return left % (tuple(right) if isinstance(right, list) else right)
            return left + right if isinstance(node.op, ast.Add) else left / right
        elif isinstance(node, ast.Attribute) and node.attr in ("parent", "name", "stem"):
            return getattr(Path(self.value(node.value, line)), node.attr)
        elif isinstance(node, ast.Call):
            function, arguments = node.func, [self.value(one, line) for one in node.args]
            named = {one.arg: self.value(one.value, line) for one in node.keywords if one.arg is not None}
            if ast.unparse(function) in _FUNCTIONS:
                return _FUNCTIONS[ast.unparse(function)](*arguments, **named)
            if isinstance(function, ast.Attribute) and function.attr in _METHODS:
                return _METHODS[function.attr](self.value(function.value, line))
            if isinstance(function, ast.Attribute) and function.attr in _TEXTS:
                return getattr(str, function.attr)(self.value(function.value, line), *arguments, **named)
        raise Unknown(f"`{ast.unparse(node):.60}` is known when the program runs only")


_TAKEN = (
    "name", "cpp_sources", "cuda_sources", "functions", "sources", "extra_cflags", "extra_cuda_cflags", "extra_include_paths",
    "extra_compile_args", "include_dirs", "define_macros", "undef_macros",
)  # fmt: skip


def _checked(made: dict[str, Any], of_host: bool) -> str:
    """What of these arguments of `extension.compile` there is. Raises KopsError for what does not compile."""
    kernels = kernels_of(inline.default_client(), made["name"], made["device_sources"], made["options"], made["files"], None).check()
    if of_host:
        build(made["name"], made["sources"], made["functions"], made["options"], made["files"], made["host_options"])
    texts = [text for _, text in made["sources"]]
    functions = [*(made["functions"] or ()), *dict.fromkeys(name for text in texts for name in _DEF.findall(text))] if of_host else []
    parts = [f"{what} {', '.join(names)}" for what, names in (("functions", functions), ("kernels", kernels)) if names]
    return "; ".join(parts) or "no plain kernels"


def _of_program(path: str) -> Iterator[Finding]:
    program = Program(path)
    there = os.getcwd()
    for what, line, expressions in program.calls():
        lines: dict[str, int] = {}
        try:
            given = {key: program.value(value, line) for key, value in expressions.items()}
            name = str(given.get("name", what))
            for file, key in (("cuda.cu", "cuda_sources"), (f"{name}.cu", "cuda_sources"), ("main.cpp", "cpp_sources")):
                lines[file] = getattr(given.get(key), "line", 0)
            os.chdir(os.path.dirname(program.path))
            made = _CALLS[what](**given)
            yield Finding(path, line, True, f"{name}: {_checked(*(made if isinstance(made, tuple) else (made, True)))}")
        except (KopsError, OSError, Unknown) as error:
            yield _failed(path, line, error, lines)
        except (TypeError, ValueError, LookupError) as error:
            yield Finding(path, line, False, f"an argument of {what}: {error}")
        finally:
            os.chdir(there)


def _failed(path: str, line: int, error: Exception, lines: dict[str, int]) -> Finding:
    """An error, at its line in the file, where the source is a text of the file."""
    text = str(error)
    found = _PLACE.search(text)
    start = lines.get(found[1], 0) if found else 0
    if found and start:
        line = start + int(found[2]) - 1
        text = f"{text[: found.start()]}{path}:{line}{text[found.end() :]}"
    return Finding(path, line, False, text)


def _of_source(path: str) -> Iterator[Finding]:
    name = Path(path).stem
    try:
        try:
            made, of_host = inline.gathered(name, [path]), True
        except BadArgument:  # kernels alone
            made, of_host = inline.gathered_inline(name, "", Path(path).read_text(encoding="utf-8"))
        yield Finding(path, 1, True, f"{name}: {_checked(made, of_host)}")
    except (KopsError, OSError) as error:
        yield _failed(path, 1, error, {path: 1, Path(path).name: 1})


def check(path: str) -> list[Finding]:
    """What of a file compiles: each call of `load_inline` and the like of a .py, or a .cu, .cuh or .cpp."""
    try:
        found = list(_of_program(path) if path.endswith(".py") else _of_source(path))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return [Finding(path, getattr(error, "lineno", 1) or 1, False, str(error))]
    return found or [Finding(path, 1, False, "there is no call of load_inline, load or CUDAExtension in it")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m kops.extension", description="What of tutorials' files compiles here.")
    parser.add_argument("files", metavar="FILE", nargs="+", help=".py with load_inline, load or CUDAExtension; .cu, .cuh, .cpp")
    parser.add_argument("--socket", metavar="PATH", help="the daemon's, which compiles kernels where it answers")
    parser.add_argument("--timeout", metavar="SECONDS", help="of no use here")
    parser.add_argument("--json", action="store_true", help="a finding a line, as JSON")
    wanted = parser.parse_args(arguments)
    if wanted.socket:
        os.environ["KOPS_SOCKET"] = wanted.socket
    os.environ["KOPS_AUTOSTART"] = "0"
    runs = True
    for path in wanted.files:
        for finding in check(path):
            runs = runs and finding.runs
            shown = f"{finding.file}:{finding.line}: {'runs' if finding.runs else 'does not run'}: {finding.text.partition(chr(10))[0]}"
            print(json.dumps(finding._asdict()) if wanted.json else shown, flush=True)
    return DONE if runs else FAILED


if __name__ == "__main__":
    sys.exit(main())
