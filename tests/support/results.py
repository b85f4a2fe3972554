"""Checks every result that a test's connection receives against its declaration in proto/methods.json and
proto/results.json: each key is declared, has its type, and is there where it must be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROTO = Path(__file__).resolve().parents[2] / "proto"


class Undeclared(AssertionError):
    """A result is not what its declaration says."""


def _load(name: str) -> dict[str, Any]:
    return json.loads((PROTO / name).read_text(encoding="utf-8"))


METHODS: dict[str, Any] = {m["name"]: m["result"] for m in _load("methods.json")["methods"]}
MAPS: dict[str, list[dict[str, Any]]] = {m["name"]: m["fields"] for m in _load("results.json")["maps"]}


def _is_uint(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


PLAIN: dict[str, Callable[[Any], bool]] = {
    "uint": _is_uint,
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, float),
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "bin": lambda value: isinstance(value, bytes),
    "device": lambda value: isinstance(value, str) or _is_uint(value),
    "any": lambda value: True,
}


def _check_of(where: str, of: Any, value: Any) -> None:
    """`of` is a type, a declared map, or a list of these."""
    if isinstance(of, dict):
        _check_list(where, of["of"], value)
    elif of in MAPS:
        check_map(where, MAPS[of], value, None)
    elif not PLAIN[of](value):
        raise Undeclared(f"{where} is {value!r}, declared as {of}")


def _check_list(where: str, of: Any, value: Any) -> None:
    if not isinstance(value, list):
        raise Undeclared(f"{where} is {value!r}, declared as a list")
    for i, element in enumerate(value):
        _check_of(f"{where}[{i}]", of, element)


def _check_field(where: str, declared: dict[str, Any], value: Any) -> None:
    if "values" in declared:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise Undeclared(f"{where} is {value!r}, declared as a map")
        for key, element in value.items():
            _check_of(f"{where}.{key}", declared["values"], element)
    elif declared["type"] == "list":
        _check_list(where, declared["of"], value)
    else:
        _check_of(where, declared.get("of", declared["type"]), value)


def _asked(conditions: list[str], params: dict[str, Any]) -> bool:
    """Whether the request has one of these parameters, or one of these values of it."""
    for condition in conditions:
        key, _, value = condition.partition("=")
        if params.get(key) == value if value else params.get(key):
            return True
    return False


def check_map(where: str, fields: list[dict[str, Any]], value: Any, params: dict[str, Any] | None) -> None:
    if not isinstance(value, dict):
        raise Undeclared(f"{where} is {value!r}, declared as a map")
    declared = {field["key"]: field for field in fields}
    if extra := set(value) - set(declared):
        raise Undeclared(f"{where} has keys that are not declared: {', '.join(sorted(map(str, extra)))}")
    for key, field in declared.items():
        there = key in value
        if field.get("required") and not there:
            raise Undeclared(f"{where} has no {key}, which is declared as always there")
        if "with" in field and there != _asked(field["with"], params or {}):
            raise Undeclared(f"{where} has {'a' if there else 'no'} {key}, declared with {', '.join(field['with'])}")
        if there:
            _check_field(f"{where}.{key}", field, value[key])


def check(method: str, params: dict[str, Any], result: Any) -> None:
    """Raises Undeclared where the method's result is not what is declared."""
    declared = METHODS[method]
    if declared != "any":
        check_map(method, declared, result, params)
