"""Rules about kernel source on random inputs, most of which exist in C and in Python.

RULES_ROUNDS (2000) is the number of inputs a rule, RULES_SEED (1) the seed, 0 for another one each time; a failure prints it.
"""

from __future__ import annotations

import json
import math
import os
import random
import struct
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from kops._base.errors import KopsError
from kops._calls.launch import scalar
from kops._source.options import macros, standard
from kops._source.scalars import convert, is_plain, to_bytes
from kops._source.signature import Param
from kops._source.types import type_of
from kops.interpret import InterpretError
from kops.interpret._arguments import Arguments

PEER = os.environ["RULES_PEER"]
ROUNDS = int(os.environ.get("RULES_ROUNDS", "2000"))
SEED = int(os.environ.get("RULES_SEED", "1")) or random.SystemRandom().randrange(1, 2**32)
ERROR = "!"


@pytest.fixture
def chance() -> random.Random:
    print(f"RULES_SEED={SEED}")
    return random.Random(SEED)


def answers(letter: str, payloads: Iterable[bytes]) -> list[bytes]:
    """What the C side makes of each."""
    requests = b"".join(letter.encode() + struct.pack("=I", len(payload)) + payload for payload in payloads)
    done = subprocess.run([PEER], input=requests, stdout=subprocess.PIPE, check=True).stdout
    result, at = [], 0
    while at < len(done):
        (length,) = struct.unpack_from("=I", done, at)
        result.append(done[at + 4 : at + 4 + length])
        at += 4 + length
    return result


def compare(letter: str, inputs: list[Any], encode: Callable[[Any], bytes], ours: Callable[[Any], str]) -> None:
    theirs = answers(letter, [encode(one) for one in inputs])
    assert len(theirs) == len(inputs)
    pairs = [(one, c.decode(errors="replace"), ours(one)) for one, c in zip(inputs, theirs)]
    wrong = [(one, c, py) for one, c, py in pairs if c != py and not (py == ERROR and c.startswith(ERROR))]
    assert not wrong, f"{len(wrong)} differ; the shortest: input, C, Python = {min(wrong, key=lambda w: len(repr(w[0])))!r}"


# ---- Host code ----

PIECES = [
    "__global__ ", "__device__ ", "__host__ ", "__constant__ ", "__tile_global__ ", "__shared__ ", "C10_DEVICE ", "HD ", "void ", "int ",
    "static ", "inline ", "template <class T> ", "template <int N = (3 > 2)> ", "template <a<b<c>>> ",
    "template <auto x = p->y> ", "f", "g",
    "(int a)", "()", " { return 1; }", "{", "}", ";", "\n", " ", "struct S ", "class C ", "enum E ", "namespace n ", "extern \"C\" ",
    "public:", "private :", " : x(1), y{2} ", "= 3", "= {1, 2}", "[4]", "const ", "constexpr ", "using A = int", "typedef int B",
    "operator()", "operator<", "operator->", "operator T", "#if X\n", "#ifdef Y\n", "#else\n", "#elif Z\n", "#endif\n", "#pragma once\n",
    "#define HD __host__ __device__\n", "#define\tHD\t__device__\n", "#define X 1 // __device__\n", "#define F(a, b) __device__ a\n",
    "# define HD \\\n  __device__\n", "#\\\ndefine HD __device__\n", "#define S \"__device__\"\n",
    "#define HD/**/__device__\n", "//c {\n", "// c \\\n } \n",
    "/* } */", "/* ", "\"a } b\"", "\"\\\"\"", "'}'", "'", "\"", "R\"x( } )x\"", "R\"(\n})\"", "R\"x(", "u8R\"({)\"",
    "LR\"(})\"", "L'x'", "u8\"{\"",
    "1'000", "0x1p+3", "1e-5f", ".5f", "é", "naïve", "\\\n", "\\\r\n", "\r\n", "\f", "\v", "->", "::", "<", ">", ">>",
    ">>>", "<<<1, 2>>>", "...", ",",
    "#", "##", "x", "a::b ", "~", "*", "&", "= default", "decltype(x) ", "alignas(16) ", "__launch_bounds__(N) ",
    "__declspec(x) ", "asm(\"\")",
    "friend ", "union U ", "concept K = ", "noexcept ", "noexcept(true) ", "static_assert(1)", "M(x)", "M(x);",
    "$d", "\u2028", "\x1c",
]  # fmt: skip


def source(chance: random.Random) -> str:
    if chance.random() < 0.5:
        return "".join(chance.choice(PIECES) for _ in range(chance.randrange(1, 14)))
    result = ""
    for _ in range(chance.randrange(1, 6)):
        mark = chance.choice(["__global__ ", "__device__ ", "", "", "HD ", "__host__ ", "static ", "constexpr "])
        body = chance.choice([" { return 1; }", ";", " { if (a) { b; } }\n", " {\n#if X\n }\n#else\n x; }\n#endif\n"])
        result += chance.choice(PIECES) if chance.random() < 0.5 else ""
        result += chance.choice(["template <class T> ", "", ""]) + mark + "void " + chance.choice("fgh") + "(int a)" + body
    return result


def test_host_code(chance: random.Random) -> None:
    """Whatever the texts are: each byte stays or becomes a blank, and lines stay."""
    programs = [[source(chance) for _ in range(chance.choice([1, 1, 2]))] for _ in range(ROUNDS)]
    programs += [["namespace a {" * k + "void f() { x; }" + "}" * k] for k in (255, 256, 257)]
    programs += [["#if A\n" * k + "void f() {\n#else\nvoid f() {\n#endif\n }\n" + "#endif\n" * k] for k in (62, 63, 64, 65)]
    programs += [["void f() {" + "#if A\n" * k + "{\n#else\n}\n#endif\n" + "#endif\n" * k + "}} int x;"] for k in (1, 62, 63, 64, 65)]
    for k in (4095, 4096, 4097):
        marks = "".join(f"#define M{i} __device__\n" for i in range(k))
        programs.append([f"{marks}M{k - 1} void f() {{}}\nM0 void g() {{}}"])
    given = ["\0".join(texts).encode() for texts in programs]
    for before, after in zip(given, answers("H", given), strict=True):
        assert len(after) == len(before), before
        assert all(b in (a, 32) and (b == a or a not in b"\r\n\0") for a, b in zip(before, after)), before


# ---- Types ----


def test_types(chance: random.Random) -> None:
    words = ["signed", "unsigned", "char", "short", "int", "long", "float", "half", "int32_t", "f32", "bf16", "size_t", "bool", "float4",
             "void", "double", "__half", "std::size_t", "::std::uint8_t", "f8_e4m3", "cuda::std::int8_t", "at::Half", "std::std::int8_t",
             "cuda::half", "::c10::BFloat16", "::int"]  # fmt: skip
    texts = [" ".join("".join(chance.choice(words) + " " for _ in range(chance.randrange(1, 5))).split()) for _ in range(ROUNDS)]

    def ours(text: str) -> str:
        kind = type_of(text.split())
        return kind.dtype if kind is not None and kind.lanes == 1 else ""

    compare("T", texts, str.encode, ours)


# ---- Options ----


def test_options(chance: random.Random) -> None:
    """Of the options that the daemon takes: the macros, and the standard of the language."""
    words = ["-D", "-U", "-DN", "-DN=3", "-D N=4", "-D  M", "-DF(a)=a", "-DG(a, b)", "-UN", "-U M", "--define-macro", "--define-macro=N=1",
             "-define-macro=M=2", "--undefine-macro=N", "-undefine-macro", "-std=c++11", "--std=c++20", "-std", "--std", "c++17", "c++20",
             "c++23", "N", "M=5", "F(x)=x", "-DN=", "-D3", "-D=N", "-DN(=1", "-Dé=1", "-DN=a=b", "-w", "--use_fast_math", "-ftz", "true",
             "-stdx", "--define-macros=N", "-DN M", "--D", "--DN", "-Xcompiler", "--compiler-options", "-Xcompiler=-DN", "-O3",
             "-std=gnu++17", "gnu++20", "-std=gnu++03", "-arch=sm_90", "-gencode", "arch=compute_90,code=sm_90", "-Xptxas",
             "-v"]  # fmt: skip
    given = [[chance.choice(words) for _ in range(chance.randrange(1, 6))] for _ in range(ROUNDS * 5)]
    taken = 0
    for options, theirs in zip(given, answers("O", ["\0".join(options).encode() for options in given])):
        if theirs.startswith(b"!"):
            continue
        taken += 1
        there = theirs.decode().split("\0")
        defined = [text.partition("=")[2] for text in there if text.startswith("--define-macro=")]
        removed = [text.partition("=")[2] for text in there if text.startswith("--undefine-macro=")]
        made = macros(options)
        ours = {f"{m.name}{m.parameters}={m.value}" for m in made if m.value is not None}
        assert ours == {text if "=" in text else f"{text}=1" for text in defined}, options
        assert {m.name for m in made if m.value is None} == set(removed), options
        assert [f"--std={text}" for text in [standard(options)] if text] == [text for text in there if text.startswith("--std=")], options
    assert taken > ROUNDS / 2


# ---- Scalars ----

FLOATS = ("f16", "bf16", "f32", "f64")
INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool")


def numbers(chance: random.Random) -> list[tuple[str, str, Any]]:
    """dtype, what the wire calls the number, the number."""
    result: list[tuple[str, str, Any]] = []
    edges = [s * 2**k + d for k in (0, 7, 8, 15, 16, 31, 32, 53, 62, 63, 64) for s in (1, -1) for d in (-1, 0, 1)]
    floats = [65504.0, 65505.0, 65519.99, 65520.0, 3.4028234663852886e38, 3.4028235677973362e38, 3.4028235677973366e38,
              3.3895313892515355e38, 3.3961775292304957e38, 3.39617752923046e38, 1e308, math.inf, math.nan, 0.5, 1.0, 6e-8, 2e-45,
              -0.0, 1e-40, 2.0**-25, 2.0**-24, 2.98e-8]  # fmt: skip
    for dtype in (*FLOATS, *INTEGERS):
        for number in edges:
            if -(2**63) <= number < 2**64:
                result.append((dtype, "uint" if number >= 2**63 else "int", number))
        for real in [*floats, *(-x for x in floats), *(chance.uniform(-7e4, 7e4) for _ in range(ROUNDS // 100))]:
            result.append((dtype, "float", real))
        result += [(dtype, "float", math.ldexp(chance.uniform(1, 2), chance.randrange(-160, 140))) for _ in range(ROUNDS // 50)]
        result += [(dtype, "bool", True), (dtype, "bool", False)]
    return result


def _payload(case: tuple[str, str, Any]) -> bytes:
    dtype, kind, number = case
    if kind == "float":
        sign, size = "-" if math.copysign(1, number) < 0 else "", abs(number)
        return f"{dtype} {kind} {sign}{float.hex(size) if math.isfinite(size) else size}".encode()
    return f"{dtype} {kind} {int(number)}".encode()


def test_scalars_of_the_interpreter(chance: random.Random) -> None:
    def ours(case: tuple[str, str, Any]) -> str:
        if case[1] == "bool" and case[0] in FLOATS:
            return ERROR  # the daemon refuses it; the client, and so the interpreter, takes it for 0.0 or 1.0
        try:
            return Arguments._number(Arguments([], []), Param("x", "scalar", case[0]), case[2]).hex()
        except InterpretError:
            return ERROR

    compare("S", numbers(chance), _payload, ours)


def test_scalars_of_the_vectors() -> None:
    """The daemon takes each row of tests/vectors/scalars.json as the client does."""
    rows = json.loads((Path(__file__).resolve().parents[1] / "vectors/scalars.json").read_text(encoding="utf-8"))
    payloads = [f"{row['dtype']} {row['kind']} {row['number']}".encode() for row in rows]
    for row, theirs in zip(rows, answers("S", payloads), strict=True):
        assert theirs.decode() == (ERROR + row["error"] if "error" in row else row["bytes"]), row


def test_scalars_of_launches(chance: random.Random) -> None:
    """The client refuses nothing that the daemon takes, and what it sends is taken."""
    cases = numbers(chance)
    for case, theirs in zip(cases, answers("S", map(_payload, cases))):
        try:
            sent: Any = scalar("k", 0, Param("x", "scalar", case[0]), case[2])
        except KopsError as error:
            assert theirs.decode() == ERROR + error.code, (case, error)
            continue
        kind = "bool" if isinstance(sent, bool) else "float" if isinstance(sent, float) else "uint" if sent >= 2**63 else "int"
        assert not answers("S", [_payload((case[0], kind, sent))])[0].startswith(b"!"), (case, sent)


ROWS = json.loads((Path(__file__).resolve().parents[1] / "vectors/scalars.json").read_text(encoding="utf-8"))


def number_of(row: dict[str, str]) -> Any:
    text = row["number"]
    if row["kind"] == "float":
        return float.fromhex(text) if "0x" in text else math.copysign(float(text.lstrip("-")), -1 if text[0] == "-" else 1)
    return bool(int(text)) if row["kind"] == "bool" else int(text)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['dtype']} {row['kind']} {row['number']}")
def test_scalar(row: dict[str, str]) -> None:
    if "error" in row:
        with pytest.raises(KopsError) as caught:
            convert(row["dtype"], number_of(row), "x:", "x")
        assert caught.value.code == row["error"]
    else:
        assert to_bytes(row["dtype"], convert(row["dtype"], number_of(row), "x:", "x")).hex() == row["bytes"]


def test_what_is_plain() -> None:
    """A number that is passed on as it is is one that would be taken, and most are."""
    plain = [row for row in ROWS if is_plain(row["dtype"], number_of(row))]
    for row in plain:
        assert "error" not in row, row
        taken = convert(row["dtype"], number_of(row), "x:", "x")
        assert type(taken) is type(number_of(row)) and taken == number_of(row), row
    assert {row["dtype"] for row in plain} == {row["dtype"] for row in ROWS} - {"bool"}
    assert not is_plain("bool", 1) and not is_plain("f32", math.nan) and not is_plain("i32", True)
