"""What would take a function out of the interpreter's checks: attributes, pragmas, assembly, and functions of the checks' own names.

It is looked for in what the compiler has made of a source, so that no macro hides it: the text behind the preprocessor, the
assembler's text, and the symbols of the object.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from ._elf import symbols
from ._errors import InterpretError

SAVED = "-save-temps=obj"  # has the compiler leave the texts beside the object
INCLUDE = Path(__file__).resolve().parent / "include"

# In any place: the words have no other use. Two underscores around a word are the same attribute.
_WORDS = re.compile(
    r"\b(?:__)?(?:no_sanitize|disable_sanitizer_instrumentation|no_address_safety_analysis|no_instrument_function|"
    r"no_profile_instrument_function|optnone)\w*|"
    r"^[ \t]*#[ \t]*pragma[ \t]+(?:clang[ \t]+(?:attribute|optimize)|GCC[ \t]+(?:optimize|target|push_options|pop_options))\b",
    re.M,
)
# Attributes whose names are words that sources use for other things, too.
_ATTRIBUTES = re.compile(
    r"(?:__attribute(?:__)?\s*\(\s*\(|\[\s*\[)(?:(?!\)\s*\)|\]\s*\]).)*?\b(?:__)?(optimize|naked|target|target_clones|ifunc)(?:__)?\s*[(),\]]",
    re.S,
)
_COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_MARKER = re.compile(r'^# (\d+) "((?:[^"\\\n]|\\.)*)"', re.M)
_CHECKS = re.compile(r"__(?:tsan|asan|ubsan|sanitizer|cyg_profile)_\w+|__(?:wrap|real)_\w+|kops_host_\w+")
_APP = re.compile(r"^[ \t]*#APP\n(.*?)^[ \t]*#NO_APP\n", re.M | re.S)
_APP_OF_FILE = "# Start of file scope inline assembly"  # of clang
_ASSEMBLY_IN_IR = re.compile(r'^module asm "|\basm (?:[a-z]+ )*"[^"]', re.M)


@cache
def _own_words() -> int:
    """How often the interpreter's own headers, which are there once, use such words."""
    return sum(len(_WORDS.findall(_COMMENTS.sub("", path.read_text(encoding="utf-8")))) for path in INCLUDE.rglob("*.h"))


def _place(text: str, at: int) -> tuple[str, int]:
    """File and line of a place behind the preprocessor."""
    marker = None
    for found in _MARKER.finditer(text, 0, at):
        marker = found
    return (marker[2], int(marker[1]) + text.count("\n", marker.end(), at) - 1) if marker is not None else ("", 0)


def _refuse(name: str, what: str, file: str = "", line: int = 0) -> None:
    where = f", line {line} of {Path(file).name}" if file else ""
    raise InterpretError(
        f"{name}: {what}{where}: the interpreter checks every function, and nothing in a source can switch that off. Leave it out",
        "compile", file=Path(file).name if file else None, line=line or None,
    )  # fmt: skip


def _in_text(name: str, text: str) -> None:
    found = list(_WORDS.finditer(text))
    if len(found) > _own_words():
        places = [(one, *_place(text, one.start())) for one in found]
        one, file, line = next((place for place in places if not place[1].startswith(str(INCLUDE))), places[-1])
        _refuse(name, " ".join(one[0].split()), file, line)
    attribute = _ATTRIBUTES.search(text)
    while attribute is not None:
        file, line = _place(text, attribute.start(1))
        if not file.startswith("/"):  # the C library's headers have some
            _refuse(name, f"the attribute {attribute[1]}", file, line)
        attribute = _ATTRIBUTES.search(text, attribute.end())


def _assembles(path: Path) -> bool:
    """Whether assembly of the source's own, other than an empty text, is in what the compiler wrote."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".ll":
        return bool(_ASSEMBLY_IN_IR.search(text))
    lines = (line.strip() for part in _APP.findall(text) for line in part.splitlines())
    return _APP_OF_FILE in text or any(line and not line.startswith("#") for line in lines)


def refuse_switches(made: Path, runtime: Path, name: str) -> None:
    """Raises InterpretError for an object whose source would escape the checks. The compiler's texts lie beside it."""
    for text in made.parent.glob(f"{made.stem}*.ii"):
        _in_text(name, text.read_text(encoding="utf-8", errors="replace"))
    for kind in ("s", "ll"):
        if any(map(_assembles, made.parent.glob(f"{made.stem}*.{kind}"))):
            raise InterpretError(
                f"{name}: inline assembly: the interpreter runs C++ only. Give it a branch of its own, such as `#ifdef KOPS_INTERPRET`",
                "unsupported",
            )
    taken = {one.name for one in symbols(runtime.read_bytes()) if one.section and _CHECKS.fullmatch(one.name)}
    for one in symbols(made.read_bytes()):
        if one.section and (one.name in taken or one.name.startswith(("__tsan_", "__ubsan_", "__sanitizer_"))):
            _refuse(name, f"a function or variable that is called {one.name}, as one of the checks'")
