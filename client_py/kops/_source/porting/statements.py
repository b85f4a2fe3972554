"""Functions of the host in Python: their statements one by one. What has no translation becomes an error at its place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..tokens import NAME, PUNCTUATION, STRING, Token
from .expressions import Names, converted, dim3, python_name, sequence, translate
from .kernels import Kernels
from .words import (
    CHECKS,
    DISPATCHES,
    DTYPES,
    NAMESPACES,
    NEEDLESS,
    UNREADABLE,
    NotTranslated,
    closing,
    closing_angle,
    read_type,
    reason,
    split_at,
)  # fmt: skip

INDENT = "    "
_ASSIGNING = ("=", "+=", "-=", "*=", "/=", "%=", "|=", "&=")


class Function(NamedTuple):
    """A function of the host. `kind` is that of its result; `params` are names with kinds and the tokens of default values."""

    name: str
    kind: str
    params: list[tuple[str, str, list[Token]]]
    body: list[Token]
    line: int


def function_of(part: list[Token]) -> Function | None:
    """The function that a part of the host's code defines; None where it defines none. Raises NotTranslated."""
    opening = next((i for i, token in enumerate(part) if token.text == "(" and i and part[i - 1].kind == NAME), None)
    if opening is None or part[-1].text != "}":
        return None
    end = closing(part, opening)
    body = next((i for i in range(end, len(part)) if part[i].text == "{"), None)
    read = read_type(part, 0, {})
    if body is None:
        return None
    params = []
    for given in split_at(part[opening + 1 : end], ","):
        left, *default = split_at(given, "=")
        kind = read_type(left, 0, {})
        if [token.text for token in left] == ["void"]:
            continue
        if kind is None or kind[1] >= len(left) or left[kind[1]].kind != NAME:
            raise NotTranslated(part[0].line, f"the parameter `{' '.join(token.text for token in left)}`")
        params.append((left[kind[1]].text, "pointer" if kind[2] else kind[0], default[0] if default else []))
    result = read[0] if read is not None and read[0] != "auto" else "tensor"
    return Function(part[opening - 1].text, result, params, part[body + 1 : -1], part[opening - 1].line)


class Body:
    """The statements of one function."""

    def __init__(self, names: Names, kernels: Kernels, missing: list[tuple[int, str]]) -> None:
        self.names, self.kernels, self.missing = names, kernels, missing
        self.lines: list[str] = []
        self.depth = 1

    def emit(self, text: str) -> None:
        self.lines.append(INDENT * self.depth + text)

    def fail(self, line: int, why: str) -> None:
        self.missing.append((line, why))
        self.emit(f"raise NotImplementedError({f'line {line} of the C++ is not translated: {why}'!r})")

    def _behind(self, found: list[Token], at: int) -> int:
        """The place behind a statement, or behind all where its end is not found."""
        try:
            return self.end_of(found, at)
        except UNREADABLE:
            return len(found)

    # ---- control ----

    def statements(self, found: list[Token]) -> None:
        i = 0
        while i < len(found):
            try:
                i = self.statement(found, i)
            except UNREADABLE as error:
                self.fail(*reason(error, found[i].line))
                i = max(self._behind(found, i), i + 1)

    def nested(self, found: list[Token]) -> None:
        """Indented, and never empty."""
        self.depth += 1
        before = len(self.lines)
        self.statements(found)
        if len(self.lines) == before:
            self.emit("pass")
        self.depth -= 1

    def end_of(self, found: list[Token], at: int) -> int:
        """The place behind the statement that begins at `at`."""
        text = found[at].text
        if text == "{":
            return closing(found, at) + 1
        if text in ("if", "for", "while", "switch"):
            at += 1 + (at + 1 < len(found) and found[at + 1].text == "constexpr")
            end = self.end_of(found, closing(found, at) + 1)
            return self.end_of(found, end + 1) if text == "if" and end < len(found) and found[end].text == "else" else end
        depth = 0
        for i in range(at, len(found)):
            depth += (found[i].text in ("(", "[", "{")) - (found[i].text in (")", "]", "}"))
            if not depth and found[i].text == ";":
                return i + 1
        return len(found)

    def statement(self, found: list[Token], at: int) -> int:
        """One statement; the place behind it."""
        text, end = found[at].text, self.end_of(found, at)
        if text == "{":
            self.statements(found[at + 1 : end - 1])
        elif text == "if":
            self.condition(found, at, end)
        elif text == "for":
            self.loop(found, at, end)
        elif text == "while":
            close = closing(found, at + 1)
            self.emit(f"while {translate(found[at + 2 : close], self.names, found[at].line).text}:")
            self.nested(found[close + 1 : end])
        elif text == "do":
            close = closing(found, at + 1)
            if [token.text for token in found[close + 1 : end]] not in (["while", "(", "0", ")", ";"], ["while", "(", "false", ")", ";"]):
                raise NotTranslated(found[at].line, "a loop with its condition at the end")
            self.statements(found[at + 2 : close])
        else:
            self.simple([token for token in found[at:end] if token is not found[end - 1] or token.text != ";"])
        return end

    def condition(self, found: list[Token], at: int, end: int) -> None:
        opening = at + 1 + (found[at + 1].text == "constexpr")
        close = closing(found, opening)
        value = translate(found[opening + 1 : close], self.names, found[at].line)
        middle = self.end_of(found, close + 1)
        if value.kind == "status":
            return  # the check of an error that the daemon reports
        self.emit(f"if {value.text}:")
        self.nested(found[close + 1 : middle])
        if middle < end and found[middle].text == "else":
            self.emit("else:")
            self.nested(found[middle + 1 : end])

    def loop(self, found: list[Token], at: int, end: int) -> None:
        close = closing(found, at + 1)
        parts = split_at(found[at + 2 : close], ";")
        body = found[close + 1 : end]
        if len(parts) != 3:
            raise NotTranslated(found[at].line, "a loop over a range")
        if not self.counted(parts, body):
            if any(token.text == "continue" for token in body):
                raise NotTranslated(found[at].line, "a loop of this form with `continue`")
            if parts[0]:
                self.simple(parts[0])
            self.emit(f"while {translate(parts[1], self.names, found[at].line).text if parts[1] else 'True'}:")
            self.nested([*body, Token(PUNCTUATION, ";", 0, found[at].line), *parts[2]])

    def counted(self, parts: list[list[Token]], body: list[Token]) -> bool:
        """`for (int i = a; i < b; i++)` as a range."""
        first, condition, step = ([token.text for token in part] for part in parts)
        read = read_type(parts[0], 0, {})
        at = read[1] if read is not None else 0
        if read is None or read[0] != "int" or len(first) < at + 3 or first[at + 1] != "=":
            return False
        name = first[at]
        if condition[:1] != [name] or condition[1] not in ("<", "<="):
            return False
        used = {token.text for token in parts[1][2:]} | {name}
        changed = {body[i].text for i in range(len(body) - 1) if body[i].kind == NAME and body[i + 1].text in (*_ASSIGNING, "++", "--")}
        by = "1" if step in ([name, "++"], ["++", name]) else None
        if len(step) == 3 and step[:2] == [name, "+="] and step[2].isdecimal():
            by = step[2]
        if by is None or used & changed:
            return False
        start = translate(parts[0][at + 2 :], self.names, parts[0][0].line)
        stop = translate(parts[1][2:], self.names, parts[1][0].line)
        self.names.kinds[name] = "int"
        limits = [start.text, stop.text if condition[1] == "<" else f"{stop.at(9)} + 1", by]
        limits = limits[: 2 if by == "1" else 3][1 if start.text == "0" and by == "1" else 0 :]
        self.emit(f"for {python_name(name)} in range({', '.join(limits)}):")
        self.nested(body)
        return True

    # ---- simple statements ----

    def simple(self, found: list[Token]) -> None:
        if not found:
            return
        line = found[0].line
        place = next((i for i, token in enumerate(found) if token.kind == NAME and not _is_namespace(found, i)), 0)
        name = found[place].text
        if any(token.text == "<<<" for token in found) and not name.startswith("AT_DISPATCH_"):
            self.launch(found, place)
        elif name == "return":
            value = translate(found[1:], self.names, line) if len(found) > 1 else None
            self.emit("return" + (f" {value.text}" if value is not None else ""))
        elif name in ("break", "continue"):
            self.emit(name)
        elif name in CHECKS:
            self.check(found, place)
        elif name in NEEDLESS:
            return
        elif name.startswith("AT_DISPATCH_"):
            self.dispatch(found, place)
        elif name == "printf" and len(found) > place + 2:
            form, *values = (translate(part, self.names, line) for part in split_at(found[place + 2 : closing(found, place + 1)], ","))
            self.emit(f"print({form.text}{f' % {sequence(values).text}' if values else ''}, end=\"\")")
        elif name == "swap":
            a, b = (translate(part, self.names, line).text for part in split_at(found[place + 2 : closing(found, place + 1)], ","))
            self.emit(f"{a}, {b} = {b}, {a}")
        elif not self.declaration(found) and not self.assignment(found):
            value = translate(found, self.names, line)
            if value.kind != "status":
                self.emit(value.text)

    def declaration(self, found: list[Token]) -> bool:
        if found[0].text == "using":
            return True
        read = read_type(found, 0, dict.fromkeys(self.names.types, "float"))
        if read is None or read[1] >= len(found) or found[read[1]].kind != NAME or found[read[1] - 1].text == "::":
            return False
        for part in split_at(found[read[1] :], ","):
            while part and part[0].text in ("*", "&"):
                part = part[1:]
            self.variable("pointer" if read[2] else read[0], part)
        return True

    def variable(self, kind: str, found: list[Token]) -> None:
        name, rest = found[0].text, found[1:]
        line = found[0].line
        self.names.kinds[name] = kind if kind != "auto" else "tensor"
        if kind == "status":
            self.status(rest, line)
            return
        if not rest:
            empty = {"int": "0", "float": "0.0", "bool": "False", "dim3": "(1, 1, 1)"}.get(kind)
            self.emit(f"{python_name(name)} = {empty or 'None'}")
            return
        if rest[0].text == "=":
            value = translate(rest[1:], self.names, line)
        elif rest[0].text in ("(", "{"):
            inner = [translate(part, self.names, line) for part in split_at(rest[1 : closing(rest, 0)], ",")]
            value = dim3(inner) if kind == "dim3" else inner[0] if len(inner) == 1 else sequence(inner)
        else:
            raise NotTranslated(line, f"the array `{name}`: memory is a tensor's here")
        if value.kind == "status":
            self.names.kinds[name] = "status"
            return
        value = converted(value, kind)
        self.names.kinds[name] = value.kind if kind == "auto" else kind
        self.emit(f"{python_name(name)} = {value.text}")

    def status(self, rest: list[Token], line: int) -> None:
        """A variable for an error or a stream: nothing, where no memory is made on the way."""
        for i, token in enumerate(rest[:-1]):
            if token.text.startswith("cuda") and rest[i + 1].text == "(" and token.text not in NEEDLESS:
                raise NotTranslated(line, f"`{token.text}(…)` has no translation: memory is a tensor's here")

    def assignment(self, found: list[Token]) -> bool:
        texts = [token.text for token in found]
        if len(found) == 2 and ("++" in texts or "--" in texts):
            name = next(token for token in found if token.text not in ("++", "--"))
            if name.kind == NAME and name.text in self.names.kinds:
                self.emit(f"{python_name(name.text)} {'+' if '++' in texts else '-'}= 1")
                return True
        if len(found) < 3 or found[0].kind != NAME or texts[1] not in _ASSIGNING:
            return False
        kind = self.names.kinds.get(found[0].text)
        if kind is None:
            raise NotTranslated(found[0].line, f"`{found[0].text}` is not known")
        if kind == "status":
            self.status(found[2:], found[0].line)
            return True
        value = translate(found[2:], self.names, found[0].line)
        operator = "//=" if texts[1] == "/=" and kind == "int" and value.kind == "int" else texts[1]
        self.emit(f"{python_name(found[0].text)} {operator} {converted(value, kind).text if operator == '=' else value.text}")
        return True

    # ---- torch's macros ----

    def check(self, found: list[Token], place: int) -> None:
        condition, *message = split_at(found[place + 2 : closing(found, place + 1)], ",")
        value = translate(condition, self.names, found[0].line)
        texts = [translate(part, self.names, found[0].line) for part in message]
        if not texts:
            why = repr(" ".join(token.text for token in condition))
        elif len(texts) == 1 and texts[0].kind == "text":
            why = texts[0].text
        else:
            why = f"\"\".join(map(str, {sequence(texts).text}))"
        self.emit(f"if not {value.at(4)}:")
        self.emit(f"{INDENT}raise RuntimeError({why})")

    def dispatch(self, found: list[Token], place: int) -> None:
        """`AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "name", [&] { … });`: its body, for a dtype that is known when it runs."""
        word = found[place].text.removeprefix("AT_DISPATCH_")
        group = next((name for name in sorted(DISPATCHES, key=len, reverse=True) if word.startswith(name)), None)
        parts = split_at(found[place + 2 : closing(found, place + 1)], ",")
        at = next((i for i, part in enumerate(parts) if len(part) == 1 and part[0].kind == STRING), None)
        if group is None or not at:
            raise NotTranslated(found[0].line, f"`{found[place].text}` is not known")
        dtypes = list(DISPATCHES[group])
        more = [token.text[1:] for part in parts[: at - 1] for token in part if token.text[:1] == "k" and token.text[1:] in DTYPES]
        dtypes += [DTYPES[name] for name in more] + (["float16"] if word.startswith(f"{group}_AND_HALF") else [])
        dtype = translate(parts[at - 1], self.names, found[0].line)
        body = parts[-1]
        brace = next((i for i, token in enumerate(body) if token.text == "{"), None)
        if brace is None:
            raise NotTranslated(found[0].line, f"the body of `{found[place].text}`")
        allowed = ", ".join(f"torch.{name}" for name in dtypes)
        self.emit(f"if {dtype.text} not in ({allowed}):")
        self.emit(f"{INDENT}raise NotImplementedError(f\"{parts[at][0].text[1:-1]} is not implemented for {{{dtype.text}}}\")")
        before = dict(self.names.types)
        self.names.types["scalar_t"] = dtype.text
        self.kernels.dtypes = dtypes
        self.statements(body[brace + 1 : closing(body, brace)])
        self.names.types = before

    # ---- launches ----

    def launch(self, found: list[Token], place: int) -> None:
        """`kernel<T><<<grid, block, shared, stream>>>(arguments)`."""
        line, name = found[place].line, found[place].text
        at, given = place + 1, []
        if found[at].text == "<":
            end = closing_angle(found, at)
            if end < 0:
                raise NotTranslated(line, f"the template arguments of `{name}`")
            given, at = split_at(found[at + 1 : end], ","), end + 1
        if found[at].text != "<<<":
            raise NotTranslated(line, f"a launch of the form `{name}{found[at].text}…`")
        end = next((i for i in range(at, len(found) - 2) if [token.text for token in found[i : i + 3]] == [">"] * 3), -1)
        if end < 0 or end + 3 >= len(found) or found[end + 3].text != "(":
            raise NotTranslated(line, f"a launch of `{name}` whose end is not found")
        sizes = [translate(part, self.names, line) for part in split_at(found[at + 1 : end], ",")]
        parts = split_at(found[end + 4 : closing(found, end + 3)], ",")
        arguments = [translate(part, self.names, part[0].line) for part in parts]
        for i, size in enumerate(sizes[:3]):
            if size.kind not in ("int", "float", "dim3"):
                raise NotTranslated(line, f"the {('grid', 'block', 'shared memory')[i]} of `{name}`, a {size.kind}")
        for value in arguments:
            if value.kind not in ("int", "float", "bool", "tensor", "pointer", "none"):
                raise NotTranslated(line, f"an argument of `{name}` that is a {value.kind}")
        shown = [converted(size, "int").text if size.kind == "float" else size.text for size in sizes[:3]]
        if len(shown) == 3 and shown[2] == "0":
            shown.pop()
        kernel = self.kernels.use(name, given, self.names, arguments, line)
        self.emit(f"{kernel}[{', '.join(shown)}]({', '.join(value.text for value in arguments)})")


def _is_namespace(found: list[Token], i: int) -> bool:
    return i + 1 < len(found) and found[i + 1].text == "::" and found[i].text in NAMESPACES


def written(function: Function, body: Body) -> Iterable[str]:
    """A function in Python, line by line."""
    params = []
    for name, kind, default in function.params:
        body.names.kinds[name] = kind
        params.append(python_name(name) + (f"={translate(default, body.names, function.line).text}" if default else ""))
    body.statements(function.body)
    yield f"def {python_name(function.name)}({', '.join(params)}):"
    yield from body.lines or [f"{INDENT}pass"]
