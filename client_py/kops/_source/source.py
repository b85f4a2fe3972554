"""What a CUDA source contains: its kernels, their parameters, the types that it names, and the files that it includes.

Which lines of a source its conditionals choose, as far as that can be told without the compiler's headers.

`#if` and its kin are followed with the macros of the options, of the source and of the files that it includes by name.
Where a condition depends on what only the compiler knows (`__CUDA_ARCH__`, …) both branches are taken, and macros that such a
branch defines are uncertain. Macros that stand for a few words (`#define floatX float`) are replaced by them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from .._base.declarations import KERNEL_LIMITS, KERNEL_WORDS
from .._base.errors import BadArgument, LimitExceeded, SignatureMismatch
from .agreement import Found, disagreement
from .options import macros
from .signature import Declared, NotParsed, Param, parse, read_one, spelled, split
from .tokens import DIRECTIVE, NAME, NUMBER, PUNCTUATION, STRING, Token, directive, included, tokens
from .types import Type, is_scoped, type_of

__all__ = ["Preprocessor"]

MAX_WORDS = 8  # words of a macro that is replaced
MAX_LIST = 4096  # tokens in parentheses, of a kernel's parameters or of an attribute
MAX_TYPE = 256  # tokens of a declaration that names a type
MAX_STEPS = 256  # macros that are replaced for one name, or one condition
MAX_DEPTH = 32  # depth of includes, and of macros in macros
_SIMPLE = re.compile(r"(?:[A-Za-z_$][\w$]*|::|\*|&|\d+|\s+)*")
# Names that the compiler or the toolkit's headers may define.
_FOREIGN = re.compile(r"__\w+|(CUDA|CUDART|NVRTC|CUB|CCCL|THRUST|NV|CU)_?[A-Z]\w*|\w+_(MAX|MIN)|_\w+|NDEBUG")
_GUARD = re.compile(r"\w+_(H|HH|HPP|CUH|INCLUDED|GUARD)_*")  # the guard of an included file, a macro of the source's own
_TOKENS = re.compile(r"\s*(defined\b|[A-Za-z_$][\w$]*|0[xX][0-9a-fA-F]+|\d+|&&|\|\||[<>=!]=|<<|>>|[-+*/%<>!()~?:&|^,]|\S)")
_LEVELS = (("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("+", "-"), ("*", "/", "%"))


class _Unknown(Exception):
    """What a condition says depends on what is not known here."""


class _Condition:
    """A condition with integers; raises _Unknown where it needs what is not known. `steps`: macros that may yet be replaced."""

    def __init__(self, text: str, macros: Mapping[str, str | None], depth: int = 0, steps: list[int] | None = None) -> None:
        self.items, self.macros, self.depth, self.at = _TOKENS.findall(text), macros, depth, 0
        self.steps = [MAX_STEPS] if steps is None else steps

    def value(self) -> int:
        result = self.level(0)
        if self.at < len(self.items) or self.depth > MAX_DEPTH:
            raise _Unknown
        return result

    def take(self) -> str:
        self.at += 1
        return self.items[self.at - 1] if self.at <= len(self.items) else ""

    def peek(self) -> str:
        return self.items[self.at] if self.at < len(self.items) else ""

    def level(self, n: int) -> int:
        if n == len(_LEVELS):
            return self.unary()
        left = self.operand(n)
        while self.peek() in _LEVELS[n]:
            operator = self.take()
            right = self.operand(n)
            if operator in ("||", "&&"):
                left = self.logical(operator, left, right)
            elif left is None or right is None:
                raise _Unknown
            else:
                left = _apply(operator, left, right)
        if left is None:
            raise _Unknown
        return left

    def operand(self, n: int) -> int | None:
        """One side of an operator; None, and what belongs to it skipped, where it is not known."""
        if _LEVELS[n][0] not in ("||", "&&"):
            return self.level(n + 1)
        start = self.at
        try:
            return self.level(n + 1)
        except _Unknown:
            self.at, depth = start, 0
            while self.at < len(self.items) and (depth or self.peek() not in ("||", "&&", ")", "?", ":")):
                depth += {"(": 1, ")": -1}.get(self.take(), 0)
            return None

    @staticmethod
    def logical(operator: str, left: int | None, right: int | None) -> int | None:
        """`false && unknown` is false, `true || unknown` is true."""
        decides = operator == "||"
        if any(side is not None and bool(side) == decides for side in (left, right)):
            return int(decides)
        return None if left is None or right is None else int(not decides)

    def unary(self) -> int:
        token = self.take()
        if token == "!":
            return int(not self.unary())
        if token == "-":
            return -self.unary()
        if token == "(":
            value = self.level(0)
            if self.take() != ")":
                raise _Unknown
            return value
        if token == "defined":
            closing = self.peek() == "("
            name = self.items[self.at + 1] if closing and self.at + 1 < len(self.items) else self.peek()
            self.at += 3 if closing else 1
            return int(_is_defined(name, self.macros))
        if token[:1].isdigit():
            suffix = self.peek()
            if suffix and re.fullmatch(r"[uUlL]+", suffix):
                self.take()
            return int(token, 0) if token == "0" or not token.startswith("0") or token[1:2] in ("x", "X") else int(token, 8)
        if token in ("true", "false"):
            return int(token == "true")
        if re.match(r"[A-Za-z_$]", token) and self.peek() != "(":
            if not _is_defined(token, self.macros):
                return 0
            self.steps[0] -= 1
            if self.steps[0] < 0:
                raise _Unknown
            made = _Condition(self.macros[token] or "?", self.macros, self.depth + 1, self.steps)
            return made.value() if self.depth < MAX_DEPTH else 0
        raise _Unknown


def _apply(operator: str, left: int, right: int) -> int:
    if operator in ("/", "%"):
        if not right:
            raise _Unknown
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if operator == "/" else left - quotient * right
    return int({
        "==": left == right, "!=": left != right, "<": left < right, ">": left > right, "<=": left <= right, ">=": left >= right,
        "+": left + right, "-": left - right, "*": left * right,
    }[operator])  # fmt: skip


def _is_defined(name: str, macros: Mapping[str, str | None]) -> bool:
    if name in macros:
        if macros[name] is None:
            raise _Unknown
        return True
    if _FOREIGN.fullmatch(name) and not _GUARD.fullmatch(name):
        raise _Unknown
    return False


class _Branch:
    """An `#if` that is open."""

    def __init__(self, outer: bool, certain: bool) -> None:
        self.outer, self.certain_outside = outer, certain
        self.taken: bool | None = False  # a branch was chosen; None: perhaps
        self.active, self.certain = outer, certain

    def begin(self, condition: bool | None) -> None:
        """A branch begins with this condition; None: it is not known."""
        self.active = self.outer and self.taken is not True and condition is not False
        self.certain = self.certain_outside and self.taken is False and condition is True
        if condition is True:
            self.taken = True
        elif condition is None and self.taken is False:
            self.taken = None


class Preprocessor:
    """`macros` is what is defined, by name: its text; None where that is uncertain or takes arguments."""

    def __init__(self, files: Mapping[str, str], options: Iterable[str]) -> None:
        self.files = files
        self.macros: dict[str, str | None] = {}
        self._open: set[str] = set()
        self._once: set[str] = set()
        for macro in macros(options):
            if macro.value is not None:
                self.macros[macro.name] = None if macro.parameters else macro.value

    def run(self, source: str, main: bool = True) -> list[tuple[Token, bool]]:
        """The tokens that remain, without directives, and whether each is the source's own (not a file's)."""
        found = tokens(source)
        if not self.macros and "#" not in source:
            return [(token, main) for token in found]
        result: list[tuple[Token, bool]] = []
        branches: list[_Branch] = []
        for token in found:
            here = branches[-1] if branches else None
            active = here is None or here.active
            if token.kind == DIRECTIVE:
                self._directive(token, branches, active, here is None or here.certain, result)
            elif active and token.kind == NAME and token.text in self.macros:
                result += [(replaced, main) for replaced in self._replaced(token)]
            elif active:
                result.append((token, main))
        return result

    def _directive(
        self, token: Token, branches: list[_Branch], active: bool, certain: bool, result: list[tuple[Token, bool]]
    ) -> None:
        word, rest = directive(token)
        if word in ("if", "ifdef", "ifndef"):
            branches.append(_Branch(active, certain))
            branches[-1].begin(self._holds(word, rest) if active else False)
        elif word.startswith(("elif", "else")) and branches:
            branch = branches[-1]
            known = True if word == "else" else self._holds({"elifdef": "ifdef", "elifndef": "ifndef"}.get(word, "if"), rest)
            branch.begin(known if branch.outer else False)
        elif word == "endif" and branches:
            branches.pop()
        elif not active:
            return
        elif word == "define":
            self._define(rest, certain)
        elif word == "undef":
            if certain:
                self.macros.pop(rest, None)
            elif rest in self.macros:
                self.macros[rest] = None
        elif word == "include":
            self._include(rest, result)

    def _holds(self, word: str, text: str) -> bool | None:
        try:
            if word == "if":
                return bool(_Condition(text, self.macros).value())
            return _is_defined(text.split()[0] if text else "", self.macros) == (word == "ifdef")
        except (_Unknown, ValueError, RecursionError):
            return None

    def _define(self, text: str, certain: bool) -> None:
        match = re.match(r"([A-Za-z_$][\w$]*)(\(?)\s*(.*)", text, re.S)
        if match is None:
            return
        name, arguments, value = match.groups()
        same = name in self.macros and self.macros[name] == value
        if arguments or not (certain or same):
            self.macros[name] = None
        else:
            self.macros[name] = value.strip()

    def _include(self, text: str, result: list[tuple[Token, bool]]) -> None:
        name = text[1:].partition('"' if text[:1] == '"' else ">")[0]
        if name not in self.files or name in self._open or name in self._once or len(self._open) > MAX_DEPTH:
            return
        if re.search(r"^\s*#\s*pragma\s+once\b", self.files[name], re.M):
            self._once.add(name)
        self._open.add(name)
        result += self.run(self.files[name], False)
        self._open.discard(name)

    def replaces(self, name: str) -> bool:
        """Whether a macro is replaced by the words that it stands for."""
        token = Token(NAME, name, 0, 1)
        return self._replaced(token) != [token]

    def _replaced(self, token: Token, depth: int = 0, steps: list[int] | None = None) -> list[Token]:
        """The words that a macro stands for, at its place; itself where it is none that is replaced."""
        text = self.macros.get(token.text)
        steps = [MAX_STEPS] if steps is None else steps
        steps[0] -= 1
        if text is None or depth > MAX_DEPTH or steps[0] < 0 or not _SIMPLE.fullmatch(text):
            return [token]
        words = tokens(text)
        if len(words) > MAX_WORDS or any(word.text == token.text for word in words):
            return [token]
        result: list[Token] = []
        for word in words:
            made = Token(word.kind, word.text, token.start, token.line)
            known = word.kind == NAME and word.text in self.macros
            result += self._replaced(made, depth + 1, steps) if known else [made]
        return result if all(word.kind in (NAME, NUMBER) or word.text in ("::", "*", "&") for word in result) else [token]


MARKS, ATTRIBUTES, QUALIFIERS = KERNEL_WORDS["kernel_marks"], KERNEL_WORDS["attributes"], KERNEL_WORDS["qualifiers"]
# Words that may stand between a kernel's mark and its name.
SPECIFIERS = ("void", "static", "inline", "__inline__", "__forceinline__", "__noinline__", "extern", *MARKS)
_SEEN = frozenset((*MARKS, "namespace", "{", "}", "struct", "class", "union", "enum", "using", "typedef"))  # tokens that a scan stops at
MAX_ALIASES = 16  # steps from a name to the name that it stands for
Words = tuple[Token, ...]


@dataclass(frozen=True)
class Definition:
    """A kernel where the source defines or declares it."""

    name: str  # with its namespaces
    template: Words | None  # template parameters, between the angle brackets
    params: Words
    line: int
    own: bool  # in the source itself, not in a file that it includes


@dataclass
class Scan:
    """What was found in a source."""

    kernels: list[Definition] = field(default_factory=list)
    macros: set[str] = field(default_factory=set)  # macros that are not replaced
    # Types that the source declares, outside of classes and functions: for each declaration the words that the name
    # stands for, () for a new type.
    types: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)


def closing(found: Sequence[Token], at: int) -> int:
    """The place of the parenthesis that closes the one at `at`; -1 where none does."""
    depth = 0
    for i in range(at, min(at + MAX_LIST, len(found))):
        word = found[i][1]
        depth += 1 if word == "(" else -1 if word == ")" else 0
        if depth == 0:
            return i
    return -1


def template_of(found: Sequence[Token]) -> Words | None:
    """The parameters of a template, of the words before `__global__`; None where there are none."""
    for i, token in enumerate(found):
        if token.text != "template":
            continue
        depth = 0
        for j in range(i + 1, len(found)):
            depth += {"<": 1, ">": -1}.get(found[j].text, 0)
            if depth <= 0:
                return tuple(found[i + 2 : j])
        return ()
    return None


def _kernel(found: Sequence[Token], at: int, scope: str, own: bool) -> Definition | None:
    """The kernel whose mark is at `at`."""
    i = at + 1
    while i < len(found):
        token = found[i]
        if token.text in ATTRIBUTES and i + 1 < len(found) and found[i + 1].text == "(":
            i = closing(found, i + 1)
            if i < 0:
                return None
        elif token.text not in SPECIFIERS and token.kind != STRING:
            break
        i += 1
    if i + 1 >= len(found) or found[i].kind != NAME or found[i + 1].text != "(":
        return None  # a specialisation of a template, or something else that has no plain name
    end = closing(found, i + 1)
    if end < 0:
        return None
    begin = at
    while begin > 0 and found[begin - 1].text not in (";", "}", "{"):
        begin -= 1
    return Definition(scope + found[i].text, template_of(found[begin:at]), tuple(found[i + 2 : end]), found[i].line, own)


def _namespace(found: Sequence[Token], at: int) -> tuple[str, int] | None:
    """The scope that a `namespace` at `at` opens, and the place of its brace."""
    i, name = at + 1, ""
    while i < len(found) and found[i].kind in (NAME, PUNCTUATION) and found[i].text not in ("{", ";", "="):
        name += found[i].text
        i += 1
    return (name + "::" if name else "", i) if i < len(found) and found[i].text == "{" else None


def scan(text: str, files: Mapping[str, str] | None = None, options: Iterable[str] = ()) -> Scan:
    """Looks through a source and the files that it includes by name, as its conditionals choose. The result is kept: do not change it."""
    return _scanned(text, tuple((files or {}).items()), tuple(options))


@lru_cache(maxsize=8)
def _scanned(text: str, files: tuple[tuple[str, str], ...], options: tuple[str, ...]) -> Scan:
    made, before = Scan(), Preprocessor(dict(files), options)
    marked = before.run(text)
    found = [token for token, _ in marked]
    made.macros = {name for name in before.macros if not before.replaces(name)}
    scopes: list[tuple[str, bool]] = []  # names, and whether types in it are seen outside of functions and classes
    begin = 0  # a namespace's brace and name are part of it
    for i, (_, word, _, _) in enumerate(found):
        if word not in _SEEN or i < begin:
            continue
        if word == "namespace" and (opened := _namespace(found, i)) is not None:
            scopes.append((opened[0], True))
            begin = opened[1] + 1
        elif word == "{":
            linkage = i > 1 and found[i - 1].kind == STRING and found[i - 2].text == "extern"
            scopes.append(("", linkage))
        elif word == "}" and scopes:
            scopes.pop()
        elif word in MARKS and (kernel := _kernel(found, i, "".join(n for n, _ in scopes), marked[i][1])) is not None:
            made.kernels.append(kernel)
        elif word in ("struct", "class", "union", "enum", "using", "typedef") and all(is_open for _, is_open in scopes):
            _type(found, i, made)
    return made


def _type(found: Sequence[Token], at: int, made: Scan) -> None:
    """The type that is declared at `at`, and what it is another name for; nothing for any other type."""
    if found[at].text not in ("typedef", "using"):
        made.types.setdefault(found[at + 1].text if at + 1 < len(found) else "", set()).add(())
        return
    end, depth = at + 1, 0
    while end < min(len(found), at + MAX_TYPE) and not (depth <= 0 and found[end].text == ";"):
        depth += {"{": 1, "}": -1}.get(found[end].text, 0)
        end += 1
    words = [token.text for token in found[at + 1 : end]]
    name, stands_for = words[0] if words else "", []
    if found[at].text == "typedef" and words:
        name, stands_for = words[-1], words[:-1]
    else:
        if words[1:2] != ["="]:
            return  # a declaration or directive: names are looked up without their namespaces anyway
        stands_for = words[2:] if at == 0 or found[at - 1].text != ">" else []
    plain = all(word in ("::", "<", ">") or word[0].isalpha() or word[0] == "_" for word in stands_for)
    made.types.setdefault(name, set()).add(tuple(stands_for) if plain else ())


def names(made: Scan) -> list[str]:
    """The kernels that are no templates, each once, in the source's order."""
    return list(dict.fromkeys(kernel.name for kernel in made.kernels if kernel.template is None and kernel.own))


def _without_default(part: Sequence[Token]) -> Sequence[Token]:
    for i, (_, word, _, _) in enumerate(part):
        if word == "=":
            return part[:i]
    return part


def _bindings(kernel: Definition, entry: str) -> dict[str, Words]:
    """What the parameters of a template stand for in an entry such as `scale<float, 4>`. Raises NotParsed."""
    if kernel.template is None:
        return {}
    given = [tuple(part) for part in split(tokens(entry[entry.index("<") + 1 : entry.rindex(">")]))]
    result: dict[str, Words] = {}
    for i, part in enumerate(split(kernel.template)):
        words = _without_default(part)
        if [token.text for token in words] in (["typename"], ["class"]):
            continue  # nothing has its name
        if not words or words[-1].kind != NAME or words[0].text == "template" or any(t.text == "..." for t in words):
            raise NotParsed("its template parameters are not plain")
        argument = given[i] if i < len(given) else tuple(part[len(words) + 1 :])
        if not argument:
            raise NotParsed(f"the template argument {words[-1].text} is not given")
        result[words[-1].text] = argument
    return result


class _Resolver:
    """Parameters with C's types in place of the source's names for them."""

    def __init__(self, made: Scan, bindings: Mapping[str, Words]) -> None:
        self.made, self.bindings = made, bindings

    def parameter(self, part: Sequence[Token]) -> Declared:
        """Raises NotParsed."""
        part = _without_default(part)
        bracket = next((i for i, (_, word, _, _) in enumerate(part) if word == "["), len(part))
        if bracket and part[bracket - 1].kind == NAME:
            bracket -= 1  # the name is none of a type
        return read_one([*self.types(part[:bracket]), *part[bracket:]], only_c=True)

    def types(self, found: Sequence[Token], depth: int = 0) -> list[Token]:
        result: list[Token] = []
        end = 0  # end of the last qualified name
        for i, token in enumerate(found):
            if token.text == "typename" or i < end:
                continue
            if token.kind == NAME and is_scoped("".join(t.text for t in found[i : i + 3])):
                end = i + 3
                result.append(token._replace(text="".join(t.text for t in found[i:end])))
                continue
            if i + 1 < len(found) and found[i + 1].text == "::" and token.kind == NAME:
                if token.text in self.bindings:
                    raise NotParsed(f"{token.text}:: depends on the template's arguments")
                continue
            if token.text == "::":
                continue
            words = self.of_name(token) if token.kind == NAME else None
            if words is not None and depth > MAX_ALIASES:
                raise NotParsed(f"{token.text} is a name for itself")
            result += [token] if words is None else self.types(words, depth + 1)
        return result

    def of_name(self, token: Token) -> Sequence[Token] | None:
        """What a name stands for, None if only for itself."""
        if token.text in self.bindings:
            return [Token(t.kind, t.text, token.start, token.line) for t in self.bindings[token.text]]
        if token.text in self.made.macros:
            raise NotParsed(f"{token.text} is a macro")
        forms = self.made.types.get(token.text)
        if forms is None or forms == {(token.text,)}:
            return None
        if len(forms) > 1:
            raise NotParsed(f"{token.text} is a type that the source declares in several forms")
        (words,) = forms
        if not words:
            raise NotParsed(f"{token.text} is a type of the source's own")
        return [Token(PUNCTUATION if word in ("::", "<", ">") else NAME, word, token.start, token.line) for word in words]


def _definitions(made: Scan, entry: str) -> list[Definition]:
    """The kernels that an entry may mean. Raises NotParsed if there is none."""
    base = entry.partition("<")[0].strip()
    same = [kernel for kernel in made.kernels if base in (kernel.name, kernel.name.rpartition("::")[2])]
    if not same:
        have = names(made)
        raise NotParsed(f"the source shows no kernel {base}" + (f"; it has {', '.join(have)}" if have else ""))
    if "<" in entry:
        same = [kernel for kernel in same if kernel.template is not None]
        if not same or ">" not in entry:
            raise NotParsed(f"{base} is no template in the source")
    elif any(kernel.template is not None for kernel in same):
        raise NotParsed(f"{entry} is a template: name it with its arguments, {entry}<…>")
    return same


def _is_plainly(part: Sequence[Token], param: Param, made: Scan) -> bool:
    """Whether a parameter of the source, such as `const float *x`, is at first sight what is declared."""
    if not part:
        return False
    words = [word for _, word, _, _ in part if word not in QUALIFIERS]
    pointer = words[-2:-1] == ["*"]
    type_words = words[: -2 if pointer else -1]
    if param.map is not None or pointer != (param.kind != "scalar") or part[-1].kind != NAME:
        return False
    if any(word in made.types or word in made.macros for word in type_words):
        return False
    return type_of(type_words, False) == Type(param.dtype, param.lanes)


def _agrees_plainly(made: Scan, entry: str, declared: Sequence[Param]) -> bool:
    """Whether all of a declaration is at first sight what the source says. Where not, it has to be read."""
    same = [kernel for kernel in made.kernels if kernel.name.rpartition("::")[2] == entry]
    if len(same) != 1 or same[0].name != entry or same[0].template is not None:
        return False
    parts = split(same[0].params)
    return len(parts) == len(declared) and all(_is_plainly(part, param, made) for part, param in zip(parts, declared))


def check(made: Scan, entry: str, declared: Sequence[Param]) -> None:
    """Raises SignatureMismatch where a declaration is not what the source says. What cannot be read is not compared."""
    if _agrees_plainly(made, entry, declared):
        return
    try:
        found = parameters_found(made, entry)
    except NotParsed:
        return
    source = [d and Found(d.c, d.param.is_tensor, d.type) for d in found]
    wrong = disagreement(entry, declared, source)
    if wrong is not None:
        raise SignatureMismatch(wrong, {"key": "signature", "declared": len(declared), "compiled": len(found)})


def parameters_found(made: Scan, entry: str, plainly: bool = False) -> list[Declared | None]:
    """The parameters of a kernel; None for each that is not said plainly. Raises NotParsed where not even their
    number is; `plainly`: or one of them."""
    same = _definitions(made, entry)
    forms: list[list[Declared | None]] = []
    for kernel in same:
        resolver = _Resolver(made, _bindings(kernel, entry))
        found: list[Declared | None] = []
        for i, part in enumerate(split(kernel.params)):
            try:
                found.append(resolver.parameter(part))
            except NotParsed as error:
                if plainly:
                    raise NotParsed(f"{entry}, parameter {i + 1} (`{spelled(part)}`): {error}") from None
                found.append(None)
        forms.append(found)
    kinds = {tuple((d.param.kind, d.param.dtype, plainly and d.param.align) if d else None for d in found) for found in forms}
    if len(kinds) > 1:
        lines = ", ".join(str(kernel.line) for kernel in same)
        raise NotParsed(f"the source shows {entry} in several forms (lines {lines})")
    return forms[-1]


def parameter_names(made: Scan, entry: str) -> list[str]:
    """The names of a kernel's parameters; none where one of them is not said plainly."""
    try:
        found = parameters_found(made, entry)
    except NotParsed:
        return []
    return [declared.param.name for declared in found if declared is not None] if None not in found else []


def signature(made: Scan, entry: str) -> tuple[Param, ...]:
    """The parameters of a kernel, where the source says them plainly. Raises BadArgument, which asks for them."""
    ask = f"give the signature of {entry}, such as \"float* c, const float* a, int n\""
    try:
        return parse([declared.param for declared in parameters_found(made, entry, True) if declared is not None])
    except NotParsed as error:
        raise BadArgument(f"{error}: {ask}", {"key": "signature"}) from None


def headers(text: str, folders: Iterable[str | os.PathLike[str]]) -> dict[str, str]:
    """The files of these folders, and of the working directory, that a source includes, see `gather`. A folder of the CUDA
    toolkit is passed over: the daemon has its own. Raises LimitExceeded for more files than a compile takes."""
    found = gather(text, Path.cwd(), [folder for folder in folders if not Path(folder, "cuda_runtime.h").is_file()])
    most = KERNEL_LIMITS["files"]
    if len(found) > most:
        raise LimitExceeded(
            f"the source includes {len(found)} files of the folders that are given, and a compile takes {most}: the daemon reads no "
            "folder of yours, so they are sent along. Include less of them, or join them into one file",
            {"key": "files", "limit": most, "value": len(found)},
        )
    return found


def gather(text: str, directory: Path, more: Iterable[str | os.PathLike[str]] = ()) -> dict[str, str]:
    """The files that a source includes, and those that they include, by the names that they are included by. Looked for
    beside the including file, then in `more`; what is in neither is left to the compiler. Raises BadArgument where one
    name means two files."""
    files: dict[str, str] = {}
    places: dict[str, Path] = {}
    waiting = [(text, directory)]
    while waiting:
        source, here = waiting.pop()
        for name, angled, _line in included(tokens(source)):
            folders = [Path(folder) for folder in more]
            path = next((p for f in ([] if angled else [here]) + folders if (p := f / name).is_file()), None)
            if path is None:
                continue
            path = path.resolve()
            if name in places:
                if places[name] != path:
                    raise BadArgument(f"#include {name!r} means {places[name]} and {path}: give them different names")
                continue
            places[name] = path
            files[name] = path.read_text(encoding="utf-8")
            waiting.append((files[name], path.parent))
    return files
