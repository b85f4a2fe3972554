"""Expressions of C++ in Python."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Callable

from ..tokens import NAME, NUMBER, STRING, Token
from .words import (
    DTYPES,
    FUNCTIONS,
    KINDS,
    MATH,
    METHODS,
    NAMESPACES,
    NEEDLESS,
    SIZES,
    NotTranslated,
    Value,
    closing,
    closing_angle,
    read_type,
    split_at,
)  # fmt: skip

# C++'s operators, the weakest binding first: Python's for each, and whether the result is a bool. Operators of a line
# bind equally.
_LEVELS: tuple[tuple[dict[str, str], str], ...] = (
    ({"||": "or"}, "bool"), ({"&&": "and"}, "bool"), ({"|": "|"}, ""), ({"^": "^"}, ""), ({"&": "&"}, ""),
    ({"==": "==", "!=": "!="}, "bool"),
    ({"<": "<", ">": ">", "<=": "<=", ">=": ">="}, "bool"), ({"<<": "<<", ">>": ">>"}, ""), ({"+": "+", "-": "-"}, ""),
    ({"*": "*", "/": "/", "%": "%"}, ""),
)  # fmt: skip
# Binding strengths of Python's operators.
_BINDING = {"or": 1, "and": 2, "==": 4, "!=": 4, "<": 4, ">": 4, "<=": 4, ">=": 4, "|": 5, "^": 6, "&": 7, "<<": 8, ">>": 8, "+": 9, "-": 9,
            "*": 10, "/": 10, "//": 10, "%": 10}  # fmt: skip
_CONDITIONAL, _NOT, _UNARY = 0, 3, 11
_CASTS = ("static_cast", "reinterpret_cast", "const_cast", "dynamic_cast")
_AXES = {"x": 0, "y": 1, "z": 2}
_RESERVED = ("kops", "math", "torch", "len", "int", "float", "max", "min", "abs", "range", "dict", "print", "str", "None")


def python_name(name: str) -> str:
    """A name of C++ where Python has another use for it."""
    return name + "_" if keyword.iskeyword(name) or name in _RESERVED else name


class Names:
    """What names mean in one function: `kinds` of its variables, `types` that a dispatch stands for (the expression of their dtype), and,
    by a function, what the file has."""

    def __init__(self, of_file: Callable[[Token], Value | None], results: dict[str, str]) -> None:
        self.kinds: dict[str, str] = {}
        self.types: dict[str, str] = {}
        self.of_file, self.results = of_file, results


class Expression:
    """A parser of one expression's tokens."""

    def __init__(self, found: list[Token], names: Names, line: int) -> None:
        self.found, self.names, self.i = found, names, 0
        self.line = found[0].line if found else line

    # ---- tokens ----

    def peek(self, ahead: int = 0) -> str:
        return self.found[self.i + ahead].text if self.i + ahead < len(self.found) else ""

    def fail(self, why: str) -> NotTranslated:
        line = self.found[min(self.i, len(self.found) - 1)].line if self.found else self.line
        return NotTranslated(line, why)

    def take(self, text: str) -> None:
        if self.peek() != text:
            raise self.fail(f"`{self.peek()}` where `{text}` was expected")
        self.i += 1

    def group(self) -> list[list[Token]]:
        """The parts between the bracket that begins here and its partner, by commas."""
        end = closing(self.found, self.i)
        inner = self.found[self.i + 1 : end]
        self.i = end + 1
        return split_at(inner, ",")

    def arguments(self) -> list[Value]:
        return [translate(part, self.names, self.line) for part in self.group()]

    # ---- operators ----

    def whole(self) -> Value:
        value = self.conditional()
        if self.i < len(self.found):
            raise self.fail(f"`{self.peek()}` is not understood here")
        return value

    def conditional(self) -> Value:
        condition = self.binary(0)
        if self.peek() != "?":
            return condition
        self.i += 1
        yes = self.conditional()
        self.take(":")
        no = self.conditional()
        kind = "float" if "float" in (yes.kind, no.kind) else yes.kind
        return Value(f"{yes.at(1)} if {condition.at(1)} else {no.at(_CONDITIONAL)}", kind, _CONDITIONAL)

    def operator(self, level: int) -> str:
        text = self.peek()
        if text == ">" and self.peek(1) == ">":
            text = ">>"
        return text if text in _LEVELS[level][0] else ""

    def binary(self, level: int) -> Value:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while text := self.operator(level):
            self.i += 2 if text == ">>" else 1
            right = self.binary(level + 1)
            left = self.combined(_LEVELS[level][0][text], _LEVELS[level][1], left, right)
        return left

    def combined(self, text: str, kind: str, left: Value, right: Value) -> Value:
        if "status" in (left.kind, right.kind):
            return Value("", "status")
        if text == "/" and left.kind in ("int", "bool") and right.kind in ("int", "bool"):
            text = "//"
        if text == "+" and left.kind == "pointer":
            return Value(f"{left.at(_UNARY)}.view(-1)[{right.text}:]", "pointer")
        kinds = (left.kind, right.kind)
        kind = kind or next((k for k in ("tensor", "text", "float") if k in kinds), "int")
        level = _BINDING[text]
        return Value(f"{left.at(level + (kind == 'bool' and level == 4))} {text} {right.at(level + 1)}", kind, level)

    def unary(self) -> Value:
        text = self.peek()
        if text in ("!", "-", "+", "~"):
            self.i += 1
            value = self.unary()
            if text == "!":
                return Value(f"not {value.at(_NOT)}", "bool", _NOT)
            return value if text == "+" else Value(f"{text}{value.at(_UNARY)}", value.kind, _UNARY)
        if text in ("*", "&"):
            raise self.fail(f"`{text}` of an address: memory is a tensor's here")
        if text == "(" and (cast := self.cast()) is not None:
            return cast
        return self.postfix(self.primary())

    def cast(self) -> Value | None:
        """`(float)x`, `(float *)x.data_ptr()`."""
        end = closing(self.found, self.i)
        read = read_type(self.found[:end], self.i + 1, dict.fromkeys(self.names.types, "float"))
        if read is None or read[1] != end or end + 1 >= len(self.found):
            return None
        self.i = end + 1
        return converted(self.unary(), "pointer" if read[2] else read[0])

    # ---- operands ----

    def primary(self) -> Value:
        if self.i >= len(self.found):
            raise self.fail("an expression ends too early")
        token = self.found[self.i]
        if token.kind == NUMBER:
            self.i += 1
            return number(token)
        if token.kind == STRING:
            return self.strings()
        if token.text == "(":
            end = closing(self.found, self.i)
            value = translate(self.found[self.i + 1 : end], self.names, token.line)
            self.i = end + 1
            return value
        if token.text == "{":
            return sequence(self.arguments())
        if token.kind == NAME:
            return self.named(token)
        raise self.fail("a function without a name" if token.text == "[" else f"`{token.text}` is not understood")

    def strings(self) -> Value:
        texts = []
        while self.i < len(self.found) and self.found[self.i].kind == STRING:
            try:
                texts.append(str(ast.literal_eval(self.found[self.i].text)))
            except (ValueError, SyntaxError):
                raise self.fail("a text of this form") from None
            self.i += 1
        return Value(repr("".join(texts)), "text")

    def named(self, token: Token) -> Value:
        while self.peek(1) == "::" and self.peek() in NAMESPACES:
            self.i += 2
        token = self.found[self.i] if self.i < len(self.found) else token
        name = token.text
        if name == "sizeof":
            return self.size_of()
        if name in _CASTS or (name in ("data_ptr", "get") and self.peek(1) == "<"):
            return self.cast_by_name(name)
        self.i += 1
        if self.peek() == "<" and name not in self.names.kinds:
            end = closing_angle(self.found, self.i)
            if 0 < end < len(self.found) - 1 and self.found[end + 1].text in ("(", "{"):
                self.i = end + 1  # std::min<int>(…)
        if self.peek() == "(" or (self.peek() == "{" and name in KINDS):
            return self.call(token)
        if name in ("true", "false"):
            return Value(name.title(), "bool")
        if name in ("nullptr", "NULL", "nullopt"):
            return Value("None", "none")
        if name[:1] == "k" and name[1:] in DTYPES:
            return Value(f"torch.{DTYPES[name[1:]]}", "dtype")
        if name in ("kCUDA", "kCPU"):
            return Value(repr(name[1:].lower()), "device")
        if name == "cudaSuccess":
            return Value("", "status")
        kind = self.names.kinds.get(name)
        if kind is not None:
            return Value(python_name(name), kind)
        value = self.names.of_file(token)
        if value is None:
            raise NotTranslated(token.line, f"`{name}` is not known")
        return value

    def size_of(self) -> Value:
        self.i += 1
        words = [token.text for part in self.group() for token in part if token.kind == NAME and token.text not in ("const", "std")]
        if len(words) == 1 and words[0] in self.names.types:
            return Value(f"{self.names.types[words[0]]}.itemsize", "int")
        if not words or not all(word in KINDS or word in SIZES for word in words):
            raise self.fail("the size of a type that is not known")
        return Value(str(max(SIZES.get(word, 4) for word in words)), "int")

    def cast_by_name(self, name: str) -> Value:
        end = closing_angle(self.found, self.i + 1)
        if end < 0:
            raise self.fail(f"`{name}` of such a type")
        inside = self.found[self.i + 2 : end]
        self.i = end + 1
        arguments = self.arguments()
        if name == "get" and len(inside) == 1 and len(arguments) == 1:
            return Value(f"{arguments[0].at(_UNARY)}[{inside[0].text}]", "tensor")
        read = read_type(inside, 0, dict.fromkeys(self.names.types, "float"))
        if len(arguments) != 1:
            raise self.fail(f"`{name}` is not understood")
        if read is None and arguments[0].kind == "pointer":
            return arguments[0]  # to a type of the source's own, a vector
        if read is None:
            raise self.fail(f"`{name}` to a type that is not known")
        return converted(arguments[0], "pointer" if read[2] else read[0])

    def call(self, token: Token) -> Value:
        name = token.text
        if name in NEEDLESS:
            self.i = closing(self.found, self.i) + 1
            return Value("", "status")
        made = self.of_torch(name) if name in FUNCTIONS or name in ("dtype", "device", "TensorOptions") else None
        if made is not None:
            return made
        arguments = self.arguments()
        kinds = [value.kind for value in arguments]
        texts = ", ".join(value.text for value in arguments)
        if name == "dim3":
            return dim3(arguments)
        if name in ("min", "max", "fminf", "fmaxf", "abs", "fabs", "fabsf") and arguments:
            plain = next(word for word in ("min", "max", "abs") if word in name)
            return Value(f"{plain}({texts})", "float" if "float" in kinds else "int")
        if name in MATH:
            return Value(f"math.{MATH[name]}({texts})", "float")
        if name == "ceil_div" and len(arguments) == 2:
            return Value(f"-(-{arguments[0].at(_UNARY)} // {arguments[1].at(_UNARY)})", "int", _UNARY)
        if name in KINDS and len(arguments) == 1 and KINDS[name] in ("int", "float", "bool"):
            return converted(arguments[0], KINDS[name])
        if name in ("vector", "make_tuple", "tuple", "IntArrayRef"):
            return sequence(arguments) if len(arguments) != 1 or kinds[0] != "list" else arguments[0]
        if name in self.names.types and len(arguments) == 1:
            return converted(arguments[0], "float")
        if name in self.names.results:
            return Value(f"{python_name(name)}({texts})", self.names.results[name])
        raise NotTranslated(token.line, f"`{name}(…)` has no translation")

    def of_torch(self, name: str) -> Value | None:
        """A function that torch has in both languages, with its options as keywords."""
        start, arguments = self.i, self.arguments()
        if name in ("max", "min") and not any(value.kind == "tensor" for value in arguments):
            self.i = start
            return None
        if name in ("dtype", "device", "TensorOptions"):
            if name == "TensorOptions":
                return Value("dict()", "options")
            if name == "device" and arguments and arguments[0].kind not in ("device", "text"):
                self.i = start
                return None
            return Value(f"dict({name}={arguments[0].text})", "options") if arguments else None
        parts = []
        for value in arguments:
            if value.kind == "options":
                parts.append(keywords(value))
            elif value.kind == "dtype":
                parts.append(f"dtype={value.text}")
            else:
                parts.append(value.text)
        kind = "bool" if name in ("allclose", "equal") else "tensor"
        return Value(f"torch.{name}({', '.join(parts)})", kind)

    # ---- members ----

    def postfix(self, value: Value) -> Value:
        while True:
            text = self.peek()
            if text in (".", "->"):
                self.i += 1
                value = self.member(value)
            elif text == "[":
                (inside,) = self.group() or [[]]
                index = translate(inside, self.names, self.line)
                kind = "int" if value.kind in ("shape", "dim3") else "tensor"
                value = Value(f"{value.at(_UNARY)}[{index.text}]", kind)
            elif text in ("++", "--"):
                raise self.fail(f"`{text}` within an expression")
            else:
                return value

    def member(self, value: Value) -> Value:
        name = self.peek()
        self.i += 1
        if value.kind == "dim3" and name in _AXES:
            return Value(f"{value.at(_UNARY)}[{_AXES[name]}]", "int")
        if name == "template":
            return self.member(value)
        if self.peek() == "<":
            end = closing_angle(self.found, self.i)
            if end > 0:
                self.i = end + 1
        if self.peek() != "(":
            raise self.fail(f"the member `{name}`")
        arguments = self.arguments()
        made = _member(value, name, arguments)
        if made is None:
            raise self.fail(f"`.{name}(…)` has no translation")
        return made


def _member(value: Value, name: str, arguments: list[Value]) -> Value | None:
    text, first = value.at(_UNARY), arguments[0].text if arguments else ""
    if value.kind == "status":
        return value
    if value.kind == "options":
        if name in ("dtype", "device", "requires_grad") and arguments:
            return with_option(value, name, first)
        return value if name in ("layout", "memory_format") else None
    if value.kind == "device":
        of_device = {
            "type": (f"{text}.type", "device"), "index": (f"{text}.index", "int"), "is_cuda": (f"({text}.type == \"cuda\")", "bool"),
        }  # fmt: skip
        return Value(*of_device[name]) if name in of_device else None
    if value.kind in ("shape", "list"):
        found = {"size": (f"len({text})", "int"), "vec": (text, value.kind), "numel": (f"math.prod({text})", "int")}
        return Value(*found[name]) if name in found else None
    if value.kind not in ("tensor", "pointer"):
        return None
    plain = {
        "sizes": (f"{text}.shape", "shape"), "scalar_type": (f"{text}.dtype", "dtype"), "dtype": (f"{text}.dtype", "dtype"),
        "type": (f"{text}.dtype", "dtype"), "device": (f"{text}.device", "device"),
        "is_cuda": (f"{text}.is_cuda", "bool"),
        "options": (f"dict(dtype={text}.dtype, device={text}.device)", "options"), "is_cpu": (f"(not {text}.is_cuda)", "bool"),
        **dict.fromkeys(("data_ptr", "const_data_ptr", "mutable_data_ptr", "data"), (text, "pointer")),
        "defined": (f"({text} is not None)", "bool"), "has_value": (f"({text} is not None)", "bool"), "value": (text, "tensor"),
        "item": (f"{text}.item()", "float"), "strides": (f"{text}.stride()", "shape"), "nbytes": (f"{text}.nbytes", "int"),
    }  # fmt: skip
    if name in plain and not arguments:
        return Value(*plain[name])
    if name == "size" and len(arguments) == 1:
        return Value(f"{text}.shape[{first}]", "int")
    if name in METHODS:
        given = ", ".join(keywords(one) if one.kind == "options" else one.text for one in arguments)
        return Value(f"{text}.{name}({given})", METHODS[name])
    return None


def sequence(values: list[Value]) -> Value:
    """A tuple."""
    return Value(f"({', '.join(value.text for value in values)}{',' if len(values) == 1 else ''})", "list")


def with_option(options: Value, name: str, text: str) -> Value:
    """Options of a tensor with another value for one."""
    if not options.text.startswith("dict("):
        return Value(f"{{**{options.at(_UNARY)}, \"{name}\": {text}}}", "options")
    call = ast.parse(options.text, mode="eval").body
    given = {one.arg: ast.unparse(one.value) for one in call.keywords} if isinstance(call, ast.Call) else {}
    return Value(f"dict({', '.join(f'{key}={value}' for key, value in {**given, name: text}.items())})", "options")


def keywords(options: Value) -> str:
    """Options of a tensor, as a call takes them."""
    if not options.text.startswith("dict("):
        return f"**{options.at(_UNARY)}"
    return options.text[len("dict(") : -1]


def number(token: Token) -> Value:
    text = token.text.replace("'", "")
    if text[:2].lower() in ("0x", "0b"):
        return Value(text.rstrip("uUlL"), "int")
    if "." in text or "e" in text.lower() or text[-1:] in "fF":
        return Value(repr(float(text.rstrip("fFlL"))), "float")
    text = text.rstrip("uUlL")
    return Value(str(int(text, 8)) if text[:1] == "0" and text.isdecimal() and len(text) > 1 else text, "int")


def converted(value: Value, kind: str) -> Value:
    """As C++ converts to a type of this kind."""
    if kind == "pointer" or value.kind in ("pointer", "tensor") or kind == value.kind or kind in ("auto", "void"):
        return Value(value.text, "pointer" if kind == "pointer" else value.kind, value.level)
    if kind == "int" and value.kind == "float":
        exact = value.text.startswith(("math.ceil(", "math.floor(")) and value.level == 100
        return Value(value.text if exact else f"int({value.text})", "int")
    if kind == "int" and value.kind == "bool":
        return Value(f"int({value.text})", "int")
    if kind == "dim3":
        return dim3([value])
    numbers = ("float", "bool", "int")
    return Value(value.text, kind if kind in numbers and value.kind in numbers else value.kind, value.level)


def dim3(arguments: list[Value]) -> Value:
    """Three sizes."""
    if len(arguments) == 1 and arguments[0].kind in ("dim3", "list"):
        return Value(arguments[0].text, "dim3", arguments[0].level)
    sizes = [converted(value, "int").text for value in arguments] + ["1"] * (3 - len(arguments))
    return Value(f"({', '.join(sizes)})", "dim3")


def translate(found: list[Token], names: Names, line: int) -> Value:
    """An expression. Raises NotTranslated."""
    return Expression(found, names, line).whole()
