"""The options of a compile that say something about the source: macros, and the standard of the language. The daemon reads
options by the same rules (daemon/compile/options.c), and says which others there are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from .._base.declarations import KERNEL_WORDS

__all__ = ["Macro", "macros", "of_nvcc", "standard"]

# Names of more than one letter take one or two dashes; names of one letter take one.
_OPTION = re.compile(r"-[DU]|--?(?:define-macro|undefine-macro|std)(?==|$)")
# Options of nvcc, torch and CuPy that mean nothing here: the daemon optimises, compiles for its own GPU, and has a
# single compiler, without such modes of lambdas.
_WITHOUT_EFFECT = re.compile(
    r"-O[0-4]?|--?dopt=on|--?(?:expt-)?(?:relaxed-constexpr|extended-lambda)|--?pch(?:-.*)?|--?(?:arch|gpu-architecture|gencode|code)=.*"
)
_WITH_VALUE = ("-arch", "--gpu-architecture", "-gencode", "--generate-code")  # options whose value may be the next option
_OF_HOST = frozenset(dash + name for name in KERNEL_WORDS["host_options"] for dash in ("-", "--"))  # skipped with their values
_FOLDER = re.compile(r"-I|-isystem|--include-path=?")
# A name has letters, digits, _ and all that is not ASCII; `re` takes milliseconds to compile a range up to U+10FFFF.
_MACRO = re.compile(r"([^\x00-@\[-^`{-\x7f][^\x00-/:-@\[-^`{-\x7f]*)(\([^)=]*\))?(?:=(.*))?", re.S)


class Macro(NamedTuple):
    name: str
    parameters: str  # with their parentheses; empty where it has none
    value: str | None  # None: it is not defined

    @property
    def option(self) -> str:
        """As a compiler takes it."""
        return f"-U{self.name}" if self.value is None else f"-D{self.name}{self.parameters}={self.value}"


def _read(options: Iterable[str]) -> Iterable[tuple[str, str]]:
    """What is set, "D", "U" or "std", and to what."""
    items = iter(options)
    for option in items:
        found = _OPTION.match(option)
        if option in _OF_HOST:
            next(items, None)
        if found is None:
            continue
        word, rest = found[0].lstrip("-"), option[found.end() :]
        what = {"define-macro": "D", "undefine-macro": "U"}.get(word, word)
        if not rest:
            yield what, next(items, "")
        else:
            yield what, rest.lstrip(" ") if len(word) == 1 else rest[1:]


def macros(options: Iterable[str]) -> list[Macro]:
    """The macros that they define or undefine, each once: of two of one name the last one counts."""
    result: dict[str, Macro] = {}
    for what, text in _read(options):
        found = _MACRO.fullmatch(text) if what != "std" else None
        if found is not None:
            name, parameters, value = found.groups()
            result[name] = Macro(name, parameters or "", None if what == "U" else "1" if value is None else value)
    return list(result.values())


def standard(options: Iterable[str]) -> str:
    """The standard that they ask for, such as c++20; empty where they do not. GNU's extensions to it are not for device code."""
    return next((re.sub(r"^gnu(?=\+\+)", "c", text) for what, text in reversed(list(_read(options))) if what == "std"), "")


def of_nvcc(options: Iterable[str]) -> tuple[list[str], list[str]]:
    """Options as nvcc, torch and CuPy take them: those that are for the daemon, and the folders of headers among them, whose
    files a client sends along. Options that change nothing there are left out."""
    kept: list[str] = []
    folders: list[str] = []
    items = iter(options)
    for option in items:
        found = _FOLDER.match(option)
        if found is not None:
            folders.append(option[found.end() :].lstrip(" =") or next(items, ""))
        elif option in _WITH_VALUE or option in _OF_HOST:
            next(items, None)
        elif option.strip() and _WITHOUT_EFFECT.fullmatch(option) is None:
            kept.append(option)
    return kept, [folder for folder in folders if folder]
