#!/usr/bin/env python3
"""Writes the type stubs of what the package makes at import: the exceptions and the op methods.

client_py/stubs.py            writes kops/_base/errors.pyi and kops/_calls/ops.pyi
client_py/stubs.py --check    writes nothing; exit status 1 when one is out of date
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent / "kops"
sys.path.insert(0, str(PACKAGE))  # without the package, which imports more than this needs

from _base.declarations import ERRORS, OPS  # noqa: E402
from _base.errors import MEMBERS  # noqa: E402

NOTE = "# Written by client_py/stubs.py from the declarations; run that to change it.\n"
TYPES = {"float": "float", "bool": "bool", "int": "int"}


def docstring(indent: str, *paragraphs: str) -> list[str]:
    """The lines of a docstring."""
    lines: list[str] = []
    for paragraph in paragraphs:
        lines += [""] if lines else []
        lines += textwrap.wrap(paragraph.replace("\\", "\\\\"), 110 - len(indent), break_on_hyphens=False)
    lines[0] = '"""' + lines[0]
    lines[-1] += '"""' if len(lines) == 1 else ""
    return [indent + line if line else "" for line in lines + (['"""'] if len(lines) > 1 else [])]


def errors_stub(errors: list[tuple[str, int, str, tuple[str, ...], str]], members: dict[str, dict[str, tuple[str, ...]]]) -> str:
    names = {code: "".join(part.capitalize() for part in code.split("_")) for code, *_ in errors}
    modules = sorted({base.rpartition(".")[0] for _, _, _, bases, _ in errors for base in bases} - {""})
    lines = [
        NOTE + "\n".join(f"import {module}" for module in modules) + ("\n" if modules else "") + "from collections.abc import Mapping",
        "from typing import Any",
        "",
        "__all__ = [",
        *(f'    "{name}",' for name in ["KopsError", *names.values()]),
        "]",
        "",
        "class KopsError(Exception):",
        '    """Base of every error of this package."""',
        "",
        "    code: str",
        "    value: int",
        "    message: str",
        "    detail: dict[str, Any]",
        "    def __init__(",
        "        self, message: str = ..., detail: Mapping[str, Any] | None = ..., code: str | None = ...",
        "    ) -> None: ...",
        "",
    ]
    for code, _value, _origin, bases, doc in errors:
        lines += [f"class {names[code]}({', '.join(('KopsError', *bases))}):", *docstring("    ", doc), ""]
        for name, (kind, text, _) in members.get(code, {}).items():
            lines += ["    @property", f"    def {name}(self) -> {kind}:", *docstring("        ", text), ""]
    lines += [
        "BY_CODE: dict[str, type[KopsError]]",
        "",
        "def class_name(code: str) -> str: ...",
        "def from_reply(error: Any) -> KopsError: ...",
        "def from_os(call: str, error: OSError) -> KopsError: ...",
    ]
    return "\n".join(lines) + "\n"


def filled(indent: str, parameters: list[str]) -> list[str]:
    """Lines of parameters, none of which is broken."""
    text = " ".join(f"{parameter},".replace(" ", "\0") for parameter in parameters)
    lines = textwrap.wrap(text, 140, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    return [line.replace("\0", " ") for line in lines]


def annotation(attr: dict[str, object]) -> str:
    if attr["type"] == "choice":
        return "Literal[" + ", ".join(f'"{c}"' for c in attr["choices"]) + "]"  # type: ignore[attr-defined]
    return TYPES[str(attr["type"])]


def default(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def op_methods(name: str, op: dict[str, object], asynchronous: bool) -> list[str]:
    first, *others = op["inputs"]  # type: ignore[misc]
    forms = [[f"{first}: T", *(f"{other}: Any" for other in others)]]
    if others and op["rule"] == "elementwise":  # a number first: the result is of the other's type
        forms.insert(0, [f"{first}: float", f"{others[0]}: T", *(f"{other}: Any" for other in others[1:])])
    lines = []
    for i, form in enumerate(forms):
        lines += op_overloads(name, op, form, asynchronous, documented=i == len(forms) - 1)
    return lines


def op_overloads(name: str, op: dict[str, object], operands: list[str], asynchronous: bool, documented: bool) -> list[str]:
    parameters = [*operands, "*"]
    parameters += [f"{a['name']}: {annotation(a)} = {default(a['default'])}" for a in op["attrs"]]  # type: ignore[attr-defined]
    parameters += ["out_dtype: Any = None"] if "out_dtypes" in op else []
    parameters += [
        "out: Any = None",
        "variant: str | None = None",
        "device: Device | str | int | None = None",
        "stream: int = 0",
    ]
    last = [
        "deadline_ms: int | None = None",
        'priority: Literal["low", "normal", "high"] | None = None',
        "blocking: bool | None = None",
        *([] if asynchronous else ['where: Literal["daemon", "here", "auto"] | None = None']),
        "timeout: float | None = ...",
    ]
    result = "T" if len(op["outputs"]) == 1 else "tuple[T, ...]"  # type: ignore[arg-type]
    keyword = "async def" if asynchronous else "def"
    lines = []
    for timing, returned in (("Literal[False] = False", result), ('Literal[True, "exact"]', f"tuple[{result}, Timings]")):
        lines += ["    @overload", f"    {keyword} {name}("]
        lines += filled("        ", ["self", *parameters, f"timing: {timing}", *last])
        lines += [f"    ) -> {returned}:" if documented and timing.endswith("False") else f"    ) -> {returned}: ..."]
        if documented and timing.endswith("False"):
            lines += docstring("        ", str(op["summary"]), str(op["doc"]))
    return lines


def ops_stub(ops: dict[str, dict[str, object]]) -> str:
    lines = [
        NOTE + "from typing import Any, Literal, TypeVar, overload",
        "",
        "from .._base.records import Device",
        "from .._base.results import Timings",
        "",
        'T = TypeVar("T")',
        "",
        "NUMBERS: dict[str, int]",
        "OPTIONS: str",
        "",
        "def check_attrs(op: str, attrs: dict[str, Any], variant: str | None) -> dict[str, Any]: ...",
        "def coerce(op: str, attr: dict[str, Any], value: Any) -> Any: ...",
        "def signature_source(op: str) -> tuple[str, str]: ...",
    ]
    for cls, asynchronous in (("OpMethods", False), ("AsyncOpMethods", True)):
        lines += ["", f"class {cls}:"]
        for name, op in ops.items():
            lines += op_methods(name, op, asynchronous)
    return "\n".join(lines) + "\n"


def main() -> int:
    wanted = {PACKAGE / "_base/errors.pyi": errors_stub(ERRORS, MEMBERS), PACKAGE / "_calls/ops.pyi": ops_stub(OPS)}
    check = "--check" in sys.argv[1:]
    stale = [(path, text) for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path, text in stale:
        print(("out of date: " if check else "wrote ") + str(path.relative_to(PACKAGE.parent.parent)))
        if not check:
            path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
