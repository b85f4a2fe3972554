"""Parameter lists of kernels: written as C writes them, or taken from the source.

A parameter is `[in|out|inout] type [*] name [[size]…]`. The type is one of C and CUDA, or a dtype's name (`bf16`). A
pointer is a tensor of the type's elements: to const it is `in`, else `inout` unless it says `out`; the rest are scalars.
`name[n]` asks for at least n elements, `name[h][w]` for exactly that shape, in expressions over the other arguments. A
pointer to a vector (`float4*`) or complex number is a tensor of its elements, aligned for it, and sizes count vectors.
`bytes<24>` is a structure of so many bytes: as a pointer a tensor of u8, whose sizes count structures.

`tma type* name[h][w] box[64][64] swizzle 128` is a tensor map (`const __grid_constant__ CUtensorMap name` in the source).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._base.compiled import compiled_part, pack
from .._base.declarations import DTYPES, KERNEL_WORDS
from .._base.errors import BadArgument, WrongType
from . import maps
from .maps import TensorMap
from .tokens import DIRECTIVE, NAME, Token, tokens
from .types import C_NAMES, MAX_VECTOR, TENSORS_ONLY, WORDS, Type, is_type_name, type_of

KINDS = ("in", "out", "inout", "scalar")
QUALIFIERS = KERNEL_WORDS["qualifiers"]


@dataclass(frozen=True)
class Param:
    """A parameter of a kernel, where a signature's text does not say enough.

    `kind`: "in", "out", "inout" or "scalar". `dtype`: of the elements, or of the scalar: f32 f64 f16 bf16 i8 u8 i16 u16
    i32 u32 i64 u64 bool, for tensors also f8_e4m3 f8_e5m2. Of tensors: `shape` is exact, an entry None for any size;
    `elements` at least so many; `rank` exact; `align` of the address in bytes; `strided` allows other layouts than
    row-major; `map` (a `kops.TensorMap`) makes it a tensor map, whose layout is any that maps take. `lanes`: a scalar of so many
    numbers side by side, a structure, vector or complex number by value (16 of u8: any structure of 16 bytes); of a tensor of u8, the
    bytes of a structure, as elements of structured arrays must have.
    Sizes are numbers or expressions over the other arguments: "n", "a.numel", "a.shape[0]", "ceil_div(n, 4)".
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int | str | None, ...] | None = None
    elements: int | str | None = None
    rank: int | None = None
    align: int | None = None
    strided: bool = False
    map: TensorMap | None = None
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadArgument(f"parameter {self.name}: kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if self.dtype not in DTYPES:
            raise BadArgument(f"parameter {self.name}: no dtype {self.dtype!r}; there are {' '.join(DTYPES)}")
        if self.kind == "scalar" and self.dtype in TENSORS_ONLY:
            raise BadArgument(f"parameter {self.name}: {self.dtype} is for tensors only")
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(self.shape))
        if self.map is not None:
            object.__setattr__(self, "strided", True)

    @property
    def is_tensor(self) -> bool:
        return self.kind != "scalar"

    @property
    def is_structure(self) -> bool:
        """Whether its argument is bytes."""
        return self.lanes > 1 and self.kind == "scalar"

    def wire(self) -> dict[str, Any]:
        """The param map."""
        params: dict[str, Any] = {"name": self.name, "kind": self.kind, "dtype": self.dtype}
        for key in ("shape", "elements", "rank", "align"):
            if getattr(self, key) is not None:
                params[key] = getattr(self, key)
        if self.strided:
            params["strided"] = True
        if self.map is not None:
            params["map"] = self.map.wire()
        if self.is_structure:
            params["lanes"] = self.lanes
        return params


class NotParsed(Exception):
    """A parameter list that cannot be understood: why."""


class Declared(NamedTuple):
    """A parameter as it was read: with its declaration in C, without what only kopsd understands."""

    param: Param
    c: str
    type: Type


def _type_of(words: list[str], only_c: bool) -> Type:
    """The type that the words say. A source's own words are C's only: there `f32` would be a name of the source."""
    if not words:
        raise NotParsed("no type")
    found = type_of(words, not only_c)
    if found is None:
        name = " ".join(words)
        if all(word in WORDS for word in words):
            raise NotParsed(f"{name} is no type")
        hint = {"void": ": say what its elements are", "CUtensorMap": f": declare it as a tensor map, {maps.FORM}"}.get(name, "")
        if not hint and not only_c:
            hint = ": for a structure write its size, bytes<16>, and pass NumPy's structured scalar or array"
        raise NotParsed(f"{name} is no type that is known here{hint}")
    return found


def _number_or_text(size: str) -> int | str:
    return int(size) if size.isascii() and size.isdecimal() else size


def _joined(found: list[Token]) -> list[Token]:
    """The tokens with each name's namespaces and template arguments as a part of it: `thrust::complex<float>` is one."""
    result: list[Token] = []
    depth, follows = 0, False
    for token in found:
        word = token.text
        if depth or follows or (word in ("::", "<") and result and result[-1].kind == NAME and result[-1].text not in QUALIFIERS):
            last, gap = result[-1], " " if depth and result[-1].text[-1].isalnum() and token.kind == NAME else ""
            result[-1] = last._replace(kind=NAME, text=last.text + gap + word)
            depth += {"<": 1, ">": -1}.get(word, 0)
        else:
            result.append(token)
        follows = word == "::"
    return result


class _Parameter:
    """One parameter's tokens."""

    def __init__(self, found: list[Token], text: str, only_c: bool) -> None:
        self.text, self.only_c = text, only_c
        self.map: TensorMap | None = None
        if not only_c and len(found) > 2 and found[0].text == "tma" and found[1].kind == NAME:
            found = self._without_map(found[1:])
        bracket = 0
        for _, word, _, _ in found:
            if word == "[":
                break
            bracket += 1
        self.head, self.tail = _joined(found[:bracket]), found[bracket:]
        if only_c and self.tail:
            raise NotParsed("an array as a parameter")
        self.kind = ""
        if not only_c and len(self.head) > 2 and self.head[0].text in KINDS[:3] and self.head[1].kind == NAME:
            self.kind = self.head.pop(0).text

    def _without_map(self, found: list[Token]) -> list[Token]:
        """Takes what is said of a tensor map, behind the name and its sizes, from a parameter's tokens."""
        star = next((i for i, t in enumerate(found) if t.text == "*"), len(found))
        depth, places = 0, []
        for i, token in enumerate(found):
            depth += {"[": 1, "]": -1}.get(token.text, 0)
            if depth == 0 and i > star + 1 and token.text in maps.WORDS:
                places.append(i)
        said: list[tuple[str, Any]] = []
        for start, end in zip(places, [*places[1:], len(found)]):
            word, rest = found[start].text, found[start + 1 : end]
            if word in maps.LISTS:
                said.append((word, [_number_or_text(size) for size in self._bracketed(rest)]))
            else:
                said.append((word, " ".join(token.text for token in rest)))
        self.map = maps.made_of(said)
        return found[: places[0]]

    def sizes(self) -> list[str]:
        """The expressions in brackets."""
        return self._bracketed(self.tail) if self.tail else []

    def _bracketed(self, found: Sequence[Token]) -> list[str]:
        """Those in `[a][b]` or `[a, b]`."""
        result, depth, start = [], 0, 0
        for _, word, at, _ in found:
            depth += _PARENTHESES.get(word, 0)
            if word == "[":
                depth += 1
                if depth == 1:
                    start = at + 1
            elif word == "]" or (word == "," and depth == 1):
                depth -= word == "]"
                if depth < 0:
                    break
                if depth == 0 or word == ",":
                    result.append(self.text[start:at].strip())
                    start = at + 1
            elif depth == 0:
                raise NotParsed(f"`{word}` after the sizes")
        if depth:
            raise NotParsed("brackets that do not match")
        return result

    def read(self) -> Declared:
        const, pointers, words, name = False, 0, [], ""
        for i, (kind, word, _, _) in enumerate(self.head):
            if kind == DIRECTIVE:
                raise NotParsed("a preprocessor directive")
            if word == "*":
                pointers += 1
            elif word == "&":
                raise NotParsed("a reference, which a kernel cannot take from another process")
            elif word in QUALIFIERS:
                const |= word == "const" and not pointers
            elif kind != NAME:
                raise NotParsed(f"`{word}` is not understood")
            elif i + 1 == len(self.head):
                name = word
            elif pointers:
                raise NotParsed(f"`{word}` after a pointer is not understood")
            else:
                words.append(word)
        if not name.isidentifier() or is_type_name(name) or (not words and not self.only_c and name in DTYPES):
            raise NotParsed("it has no name")
        sizes = self.sizes()
        if pointers > 1 or (pointers and len(words) == 0):
            raise NotParsed("a pointer to a pointer cannot cross processes" if words else "no type")
        made = _type_of(words, self.only_c)
        dtype, lanes, _ = made
        texts = [C_NAMES.get(word, word) if word == words[0] else word for _, word, _, _ in self.head[:-1]]
        declaration = " ".join([*texts, name]) + ("[]" if sizes and not pointers else "")
        if self.map is not None:
            return Declared(self._mapped(name, made, const, sizes), f"{maps.C_TYPE} {name}", Type(dtype))
        if pointers or sizes:
            return Declared(self._tensor(name, made, const, sizes), declaration, made)
        if self.kind:
            raise NotParsed(f"`{self.kind}` is for pointers")
        return Declared(Param(name, "scalar", dtype, lanes=lanes), declaration, made)

    def _mapped(self, name: str, type: Type, const: bool, sizes: list[str]) -> Param:
        if type.lanes > 1:
            raise NotParsed("a tensor map of vectors: say its elements' type")
        plain = self._tensor(name, type, const, sizes)
        shape = plain.shape if plain.elements is None else (plain.elements,)
        return Param(name, plain.kind, type.dtype, shape=shape, map=self.map)

    def _tensor(self, name: str, type: Type, const: bool, sizes: list[str]) -> Param:
        dtype, lanes, structure = type
        kind = self.kind or ("in" if const else "inout")
        if const and kind != "in":
            raise NotParsed(f"a pointer to const is `in`, not `{kind}`")
        if sizes and lanes > 1 and sizes[-1]:
            sizes[-1] = f"{lanes} * ({sizes[-1]})"
        wanted = [_number_or_text(size) if size else None for size in sizes]
        align = min(lanes * DTYPES[dtype], MAX_VECTOR) if lanes in (2, 4) and not structure else None
        shape = tuple(wanted) if len(wanted) > 1 else None
        elements = wanted[0] if len(wanted) == 1 else None
        return Param(name, kind, dtype, shape, elements, align=align, lanes=lanes if structure else 1)


_PARENTHESES = {"(": 1, ")": -1}
_NESTING = {"(": 1, "[": 1, "{": 1, "<": 1, ")": -1, "]": -1, "}": -1, ">": -1}


def split(found: Sequence[Token]) -> list[list[Token]]:
    """The tokens between the commas; none for an empty list or `void`."""
    if not found or (len(found) == 1 and found[0].text == "void"):
        return []
    result: list[list[Token]] = [[]]
    depth = 0
    for token in found:
        word = token[1]
        depth += _NESTING.get(word, 0)
        if word == "," and depth == 0:
            result.append([])
        else:
            result[-1].append(token)
    return result


def spelled(found: Sequence[Token]) -> str:
    """Tokens as somebody would write them."""
    return re.sub(r" (?=[*&,)\]>]|::)|(?<=[(<[]) |(?<=::) | (?=[(<[])", "", " ".join(token.text for token in found))


def read_one(part: Sequence[Token], text: str = "", only_c: bool = False) -> Declared:
    """A parameter. Without a text the tokens may come from several. Raises NotParsed."""
    if not part:
        raise NotParsed("it is empty")
    try:
        return _Parameter(list(part), text, only_c).read()
    except BadArgument as error:
        raise NotParsed(str(error)) from None


def read(found: Sequence[Token], text: str = "", only_c: bool = False) -> list[Declared]:
    """The parameters. Raises NotParsed, which names the one that is not understood."""
    result: list[Declared] = []
    for i, part in enumerate(split(found)):
        try:
            made = read_one(part, text, only_c)
            if any(made.param.name == other.param.name for other in result):
                raise NotParsed(f"a second parameter {made.param.name}")
        except NotParsed as error:
            shown = text[part[0].start : part[-1].start + len(part[-1].text)] if part and text else spelled(part)
            raise NotParsed(f"parameter {i + 1} (`{shown}`): {error}") from None
        result.append(made)
    return result


def declarations(text: str) -> list[Declared]:
    """The parameters of a signature. Raises BadArgument."""
    try:
        return read(tokens(text), text)
    except NotParsed as error:
        raise BadArgument(f"the signature is not understood: {error}", {"key": "signature"}) from None


# `[in|out|inout] [const] TYPE [*] NAME [[SIZE]…]` with a type of one word, and sizes that are names or numbers.
_PLAIN = re.compile(
    r"\s*(?:(inout|in|out)\s+)?(const\s+)?([A-Za-z_]\w*)(?:\s*(\*)\s*|\s+)([A-Za-z_]\w*)\s*((?:\[\s*\w+\s*\]\s*)*)(,|\Z)", re.ASCII
)
_SIZE = re.compile(r"\w+", re.ASCII)


def _plain(text: str) -> tuple[Param, ...] | None:
    """The parameters of a signature all of which are plain, as most are; None for any other, which has to be read. Much of the time
    that a process takes from a source to its first launch would go into that."""
    made: dict[str, Param] = {}
    at, more = 0, ","
    while more:
        found = _PLAIN.match(text, at)
        if found is None:
            return None
        kind, const, word, star, name, brackets, more = found.groups()
        at, type = found.end(), type_of([word])
        if type is None or type.lanes > 1 or name in made or is_type_name(name) or name in QUALIFIERS or name in DTYPES or name == "std":
            return None
        if not star and not brackets:
            if kind or type.dtype in TENSORS_ONLY:
                return None
            made[name] = Param(name, "scalar", type.dtype)
            continue
        if const and kind not in (None, "in"):
            return None
        kind = kind or ("in" if const else "inout")
        sizes = tuple(_number_or_text(size) for size in _SIZE.findall(brackets))
        if len(sizes) > 1:
            made[name] = Param(name, kind, type.dtype, sizes)
        else:
            made[name] = Param(name, kind, type.dtype, None, sizes[0] if sizes else None)
    return tuple(made.values())


def _without_expressions(param: Param) -> dict[str, Any]:
    """The param map with sizes that every launch takes in place of texts."""
    made = param.wire()
    if "shape" in made:
        made["shape"] = [None if isinstance(size, str) else size for size in made["shape"]]
    if isinstance(param.elements, str):
        del made["elements"]
    if "map" in made:
        made["map"]["box"] = [1 if isinstance(size, str) else size for size in made["map"]["box"]]
    return made


def fault(params: Sequence[Param]) -> str | None:
    """The first rule of the daemon that a parameter list breaks, apart from its expressions; None if it breaks none."""
    check = compiled_part("checking a parameter list").check_declaration
    try:
        check(pack({"module": 0, "entry": "", "params": [_without_expressions(param) for param in params]}))
    except (ValueError, OverflowError, TypeError) as error:
        return str(error)
    return None


def parse(signature: str | Iterable[Param]) -> tuple[Param, ...]:
    """The parameters of a signature, which may also be a list of them."""
    if isinstance(signature, str):
        plain = _plain(signature)
        return plain if plain is not None else tuple(declared.param for declared in declarations(signature))
    params = tuple(signature)
    for param in params:
        if not isinstance(param, Param):
            raise WrongType(f"a signature is a text or a list of kops.Param, not of {type(param).__name__}", {"key": "signature"})
    if len({param.name for param in params}) != len(params):
        raise BadArgument("two parameters have the same name", {"key": "signature"})
    return params
