#!/usr/bin/env python3
"""Reads, checks and converts the golden vectors beside this file (README.md says what they mean).

    proto/golden/golden.py --check        every vector's bytes and meaning agree; exit status 1 when one does not
    proto/golden/golden.py --fill         writes the canonical bytes of vectors that have a meaning and no bytes yet
    proto/golden/golden.py --c FILE       the vectors as a C header, for programs that do not read JSON

Needs only the standard library: its decoder is written from the MessagePack specification and shares no code with
what it tests. Tests import `load()` and `parse_hex()` from here.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FILES = ("requests", "request_errors", "invalid", "responses", "bad_responses")
EXPECTS = {
    "requests": {"reply", "none"},
    "request_errors": {"error"},
    "invalid": {"close", "more"},
    "responses": {"result", "error", "notification"},
    "bad_responses": {"bad_reply", "more"},
}
KEYS = {"name", "doc", "message", "canonical", "hex", "fds", "expect"}


class Malformed(Exception):
    """The bytes are no MessagePack that this protocol takes."""


class Truncated(Exception):
    """The bytes end inside a value."""


class Pairs(list):
    """A map as its pairs, for maps that no JSON object can express."""


def parse_hex(text: str) -> bytes:
    """Bytes of a `hex` field: blank-separated tokens, `xx*N` being N times the bytes xx."""
    out = bytearray()
    for token in text.split():
        unit, _, times = token.partition("*")
        out += bytes.fromhex(unit) * int(times or 1)
    return bytes(out)


def load(name: str) -> list[dict[str, Any]]:
    """The vectors of one file, each with `bytes` beside `hex`."""
    vectors = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))["vectors"]
    for vector in vectors:
        if "hex" in vector:
            vector["bytes"] = parse_hex(vector["hex"])
    return vectors


# ---- a decoder and an encoder, from the specification ----


def decode(data: bytes, at: int = 0, depth: int = 1) -> tuple[Any, int]:
    """One value and where it ends. Maps become Pairs, bin becomes bytes."""

    def take(n: int) -> bytes:
        nonlocal at
        if at + n > len(data):
            raise Truncated
        at += n
        return data[at - n : at]

    def number(n: int) -> int:
        return int.from_bytes(take(n), "big")

    def text(n: int) -> str:
        return take(n).decode("utf-8")

    def values(n: int) -> list:
        nonlocal at
        out = []
        for _ in range(n):
            value, at = decode(data, at, depth + 1)
            out.append(value)
        return out

    def pairs(n: int) -> Pairs:
        flat = values(2 * n)
        return Pairs(zip(flat[::2], flat[1::2], strict=True))

    if depth > 40:
        raise Malformed("too deep")
    kind = take(1)[0]
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 256, at
    if kind < 0x90:
        return pairs(kind & 15), at
    if kind < 0xA0:
        return values(kind & 15), at
    if kind < 0xC0:
        return text(kind & 31), at
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], at
    if kind in (0xC4, 0xC5, 0xC6):
        return take(number(1 << (kind - 0xC4))), at
    if kind in (0xCA, 0xCB):
        return struct.unpack(">f" if kind == 0xCA else ">d", take(4 if kind == 0xCA else 8))[0], at
    if 0xCC <= kind <= 0xCF:
        return number(1 << (kind - 0xCC)), at
    if 0xD0 <= kind <= 0xD3:
        return int.from_bytes(take(1 << (kind - 0xD0)), "big", signed=True), at
    if 0xD9 <= kind <= 0xDB:
        return text(number(1 << (kind - 0xD9))), at
    if kind in (0xDC, 0xDD):
        return values(number(2 if kind == 0xDC else 4)), at
    if kind in (0xDE, 0xDF):
        return pairs(number(2 if kind == 0xDE else 4)), at
    raise Malformed(f"type byte {kind:#x}")


def from_json(value: Any) -> Any:
    """A `message` as decode() would give it: {"$bin": hex} is bytes, {"$map": [[k, v], …]} any map."""
    if isinstance(value, list):
        return [from_json(v) for v in value]
    if isinstance(value, dict):
        if set(value) == {"$bin"}:
            return parse_hex(value["$bin"])
        if set(value) == {"$map"}:
            return Pairs((from_json(k), from_json(v)) for k, v in value["$map"])
        return Pairs((k, from_json(v)) for k, v in value.items())
    return value


def header(n: int, fix: int | None, fix_max: int, kinds: dict[int, int]) -> bytes:
    if fix is not None and n <= fix_max:
        return bytes([fix | n])
    for size, kind in kinds.items():
        if n < 1 << (8 * size):
            return bytes([kind]) + n.to_bytes(size, "big")
    raise ValueError(n)


def encode_parts(value: Any) -> Iterator[bytes]:
    """The shortest encoding, value by value; floats are float 64."""
    if value is None or isinstance(value, bool):
        yield {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    elif isinstance(value, int):
        if -32 <= value < 0:
            yield struct.pack("b", value)
        elif value < 0:
            size = next(s for s in (1, 2, 4, 8) if -(1 << (8 * s - 1)) <= value)
            yield bytes([{1: 0xD0, 2: 0xD1, 4: 0xD2, 8: 0xD3}[size]]) + value.to_bytes(size, "big", signed=True)
        else:
            yield header(value, 0, 0x7F, {1: 0xCC, 2: 0xCD, 4: 0xCE, 8: 0xCF})
    elif isinstance(value, float):
        yield b"\xcb" + struct.pack(">d", value)
    elif isinstance(value, str):
        raw = value.encode()
        yield header(len(raw), 0xA0, 31, {1: 0xD9, 2: 0xDA, 4: 0xDB}) + raw
    elif isinstance(value, bytes):
        yield header(len(value), None, 0, {1: 0xC4, 2: 0xC5, 4: 0xC6}) + value
    elif isinstance(value, Pairs):
        yield header(len(value), 0x80, 15, {2: 0xDE, 4: 0xDF})
        for k, v in value:
            yield from encode_parts(k)
            yield from encode_parts(v)
    else:
        yield header(len(value), 0x90, 15, {2: 0xDC, 4: 0xDD})
        for v in value:
            yield from encode_parts(v)


def encode(value: Any) -> bytes:
    return b"".join(encode_parts(value))


# ---- checking ----


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types: 1 is not 1.0, and not true."""
    if type(a) is not type(b) or (isinstance(a, list) and len(a) != len(b)):
        return False
    if isinstance(a, Pairs):
        return all(same(ka, kb) and same(va, vb) for (ka, va), (kb, vb) in zip(a, b, strict=True))
    if isinstance(a, list):
        return all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def check_vector(file: str, vector: dict[str, Any], codes: set[str]) -> Iterator[str]:
    if set(vector) - {"bytes"} - KEYS or not {"name", "doc", "expect", "hex"} <= set(vector):
        yield "has other keys than the README says"
        return
    expect = vector["expect"]
    if expect.get("kind") not in EXPECTS[file]:
        yield f"expect.kind {expect.get('kind')!r} does not belong into {file}.json"
    if expect["kind"] == "error" and expect.get("code") not in codes:
        yield f"no error code {expect.get('code')!r}"
    if vector.get("canonical") and "message" not in vector:
        yield "canonical, but without a message"
    try:
        value, end = decode(vector["bytes"])
        result = "value" if end == len(vector["bytes"]) else "longer"
    except Truncated:
        result = "truncated"
    except (Malformed, UnicodeDecodeError, RecursionError):
        result = "malformed"
    if expect["kind"] == "more" and result != "truncated":
        yield "is not incomplete"
    if "message" in vector:
        meant = from_json(vector["message"])
        if result != "value":
            yield f"the bytes are {result}"
        elif not same(value, meant):
            yield f"the bytes mean {value!r}"
        elif (encode(meant) == vector["bytes"]) != bool(vector.get("canonical")):
            yield "`canonical` is wrong"
    elif file in ("requests", "request_errors", "responses"):
        yield "has no message"


def check() -> int:
    codes = {e["name"] for e in json.loads((HERE.parent / "errors.json").read_text(encoding="utf-8"))["errors"]}
    failures, names, count = [], set(), 0
    for file in FILES:
        for vector in load(file):
            count += 1
            failures += [f"{file}: {vector.get('name')}: {f}" for f in check_vector(file, vector, codes)]
            if vector["name"] in names:
                failures.append(f"{file}: {vector['name']}: the name is used twice")
            names.add(vector["name"])
    print("\n".join([*failures, f"golden: {count} vectors, {len(failures)} wrong"]))
    return 1 if failures else 0


# ---- writing ----


def spaced_hex(value: Any) -> str:
    return " ".join(p.hex() for p in encode_parts(value))


def fill() -> int:
    for file in FILES:
        path = HERE / f"{file}.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        for vector in document["vectors"]:
            if "hex" not in vector:
                vector["hex"] = spaced_hex(from_json(vector["message"]))
                vector["canonical"] = True
        rows = []
        for vector in document["vectors"]:
            ordered = {
                k: vector[k] for k in ("name", "doc", "message", "canonical", "hex", "fds", "expect") if k in vector
            }
            rows.append(
                "    {"
                + ",\n     ".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in ordered.items())
                + "}"
            )
        head = json.dumps(document["doc"], ensure_ascii=False)
        path.write_text(
            '{\n  "doc": ' + head + ',\n  "vectors": [\n' + ",\n".join(rows) + "\n  ]\n}\n", encoding="utf-8"
        )
    return check()


def c_text(value: Any) -> str:
    """A message as the C runners print it: compact JSON, bin as {"$bin":"hex"}, floats as %.17g."""
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{c_text(k)}:{c_text(v)}" for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(c_text(v) for v in value) + "]"
    if isinstance(value, bytes):
        return '{"$bin":"' + value.hex() + '"}'
    if isinstance(value, float):
        return f"{value:.17g}"
    return json.dumps(value, ensure_ascii=False)


def c_string(text: str | None) -> str:
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("??", '?""?') + '"'


def c_bytes(symbol: str, data: bytes) -> str:
    lines = [", ".join(f"0x{b:02x}" for b in data[i : i + 20]) for i in range(0, len(data), 20)] or ["0"]
    return f"static const unsigned char {symbol}[] = {{\n    " + ",\n    ".join(lines) + "};"


def write_c(path: Path) -> int:
    out = [
        "/* Made by proto/golden/golden.py from the JSON files beside it; its README.md says what fields mean. */",
        "#ifndef KOPS_GOLDEN_VECTORS_H",
        "#define KOPS_GOLDEN_VECTORS_H",
        "",
        "#include <stddef.h>",
        "",
        "struct golden_vector {",
        "    const char *file, *name;",
        "    const unsigned char *bytes;",
        "    size_t length;",
        "    const char *text;               /* the message, see c_text() in golden.py; NULL: the bytes mean none */",
        "    const unsigned char *shortest;  /* the shortest encoding of the message; bytes itself where it is that */",
        "    size_t shortest_length;",
        "    unsigned nfds;                  /* descriptors that go with it */",
        "    const char *expect, *code, *key; /* code and key: NULL where none is expected */",
        "};",
        "",
    ]
    rows = []
    for file in FILES:
        for vector in load(file):
            data, symbol = vector["bytes"], f"golden_{vector['name']}"
            out.append(c_bytes(symbol, data))
            text, shortest = None, ("NULL", 0)
            if "message" in vector:
                text = c_text(from_json(vector["message"]))
                short = encode(from_json(vector["message"]))
                shortest = (symbol if short == data else f"{symbol}_shortest", len(short))
                if short != data:
                    out.append(c_bytes(shortest[0], short))
            expect = vector["expect"]
            rows.append(
                f"    {{{c_string(file)}, {c_string(vector['name'])}, {symbol}, {len(data)}, {c_string(text)},\n"
                f"     {shortest[0]}, {shortest[1]}, {len(vector.get('fds', []))}, "
                f"{c_string(expect['kind'])}, {c_string(expect.get('code'))}, {c_string(expect.get('key'))}}},"
            )
    out += [
        "",
        "static const struct golden_vector golden_vectors[] = {",
        *rows,
        "};",
        "",
        f"enum {{ GOLDEN_VECTORS = {len(rows)} }};",
        "",
        "#endif",
        "",
    ]
    path.write_text("\n".join(out), encoding="utf-8")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--check", action="store_true", help="compare bytes and meaning")
    group.add_argument("--fill", action="store_true", help="add missing canonical bytes")
    group.add_argument("--c", type=Path, metavar="FILE", help="write a C header")
    args = parser.parse_args()
    if args.c:
        return write_c(args.c)
    return fill() if args.fill else check()


if __name__ == "__main__":
    sys.exit(main())
