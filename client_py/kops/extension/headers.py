"""Headers that are made of declarations: torch's functions (ops.txt) and forwarding headers (includes.txt)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).absolute().parent
INCLUDE = HERE / "include"

TYPES = {
    "Tensor": "const Tensor &",
    "Tensor?": "const std::optional<Tensor> &",
    "Tensor[]": "TensorList ",
    "Scalar": "const Scalar &",
    "Scalar?": "const std::optional<Scalar> &",
    "int": "int64_t ",
    "int?": "std::optional<int64_t> ",
    "int[]": "IntArrayRef ",
    "int[]?": "OptionalIntArrayRef ",
    "float": "double ",
    "float?": "std::optional<double> ",
    "float[]?": "std::optional<ArrayRef<double>> ",
    "bool": "bool ",
    "bool?": "std::optional<bool> ",
    "bool[3]": "std::array<bool, 3> ",
    "str": "std::string_view ",
    "str?": "std::optional<std::string_view> ",
    "ScalarType": "ScalarType ",
    "ScalarType?": "std::optional<ScalarType> ",
    "Layout?": "std::optional<Layout> ",
    "Device": "Device ",
    "Device?": "std::optional<Device> ",
    "MemoryFormat": "MemoryFormat ",
    "MemoryFormat?": "std::optional<MemoryFormat> ",
    "Generator?": "const std::optional<Generator> &",
    "Options": "const TensorOptions &",
}
DEFAULTS = {
    "None": "std::nullopt",
    "True": "true",
    "False": "false",
    "[]": "{}",
    "Mean": "Reduction::Mean",
    "long": "ScalarType::Long",
}
BRACES = str.maketrans({"[": "{", "]": "}", "'": '"'})
OP = r"(?P<forms>[fmiIo]+) +(?P<name>\w+)\((?P<arguments>.*)\) -> (?P<result>.+)"


class Op(NamedTuple):
    forms: str
    name: str
    arguments: list[tuple[str, str]]  # declaration in C++, name
    keywords: list[str]  # names of the last arguments, which torch takes only by name
    result: str


def argument(text: str) -> tuple[str, str]:
    kind, name = text.split(" ", 1)
    name, _, default = name.partition("=")
    declared = TYPES[re.sub(r"int\[\d\]", "int[]", kind)] + name
    if default:
        default = DEFAULTS.get(default, default.translate(BRACES))
        declared += f" = {default}"
    return declared, name


def result(text: str) -> str:
    kinds = {"Tensor": "Tensor", "Tensor[]": "std::vector<Tensor>", "bool": "bool"}
    if text.startswith("("):
        return f"std::tuple<{', '.join(kinds[kind] for kind in text.strip('()').split(', '))}>"
    return kinds[text]


def op(line: str) -> Op:
    found = re.fullmatch(OP, line)
    if not found:
        raise ValueError(f"ops.txt: cannot read {line!r}")
    positional, _, keywords = found["arguments"].partition("*, ")
    split = re.compile(r", (?![^\[]*\])")  # no comma within a default in brackets
    both = [[argument(part) for part in split.split(group.removesuffix(", ")) if part] for group in (positional, keywords)]
    names = [name for _, name in both[1]]
    return Op(found["forms"], found["name"], both[0] + both[1], names, result(found["result"]))


def ops() -> list[Op]:
    lines = (HERE / "ops.txt").read_text().splitlines()
    return [op(line) for line in lines if line and not line.startswith("#")]


def called(op: Op, name: str, values: list[str], keywords: list[str]) -> str:
    return f'"{" ".join([name, *keywords])}", {{{", ".join(values)}}}'


def method(op: Op, name: str, changes: bool) -> str:
    arguments = [pair for pair in op.arguments if pair[1] != "self"]
    values = ["*this" if name == "self" else name for _, name in op.arguments]
    call = called(op, name, values, op.keywords)
    declared = f"{name}({', '.join(declared for declared, _ in arguments)}) const"
    if changes:
        return f"Tensor &{declared} {{ return kops::call_in_place(*this, {call}); }}"
    return f"{op.result} {declared} {{ return kops::call<{op.result}>({call}); }}"


def function(op: Op, name: str, changes: bool) -> str:
    call = called(op, name, [name for _, name in op.arguments], op.keywords)
    declared = f"{name}({', '.join(declared for declared, _ in op.arguments)})"
    if changes:
        return f"inline const Tensor &{declared} {{ return kops::call_in_place(self, {call}); }}"
    return f"inline {op.result} {declared} {{ return kops::call<{op.result}>({call}); }}"


def out_function(op: Op) -> str:
    call = called(op, op.name, [name for _, name in op.arguments] + ["out"], [*op.keywords, "out"])
    declared = ", ".join(["const Tensor &out", *(declared for declared, _ in op.arguments)])
    return f"inline Tensor &{op.name}_out({declared}) {{ return kops::call_in_place(out, {call}); }}"


def generated() -> dict[str, str]:
    """The text of each generated header by its path."""
    methods, functions = [], []
    for op in ops():
        changes = op.name.endswith("_") and not op.name.startswith("__")
        if "m" in op.forms:
            methods.append(method(op, op.name, changes))
        if "f" in op.forms:
            functions.append(function(op, op.name, changes))
        if "i" in op.forms or "I" in op.forms:
            methods.append(method(op, op.name + "_", True))
        if "I" in op.forms:
            functions.append(function(op, op.name + "_", True))
        if "o" in op.forms:
            functions.append(out_function(op))
    made = {
        "kops/methods.h": "\n".join(methods) + "\n",
        "kops/functions.h": "\n".join(["#pragma once", "namespace at", "{", *functions, "} // namespace at", ""]),
    }
    for line in (HERE / "includes.txt").read_text().splitlines():
        target, _, paths = line.partition(": ")
        if not line.startswith("#"):
            made |= dict.fromkeys(paths.split(), f"#include <{target}>\n")
    return made


def write(folder: Path) -> None:
    """Writes the generated headers into a folder. A compiler needs it before INCLUDE in its search path."""
    for path, text in generated().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
