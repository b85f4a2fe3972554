"""Messages between the judge and the process that interprets: a JSON header and the bytes of arrays. What comes back is a stranger's
code's, perhaps, so nothing of it is unpickled, and its sizes are bounded by what was asked for."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

from .._companions import numpy

HEADER_MAX = 8 << 20
_LENGTH = struct.Struct("<Q")


def send(file: BinaryIO, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    described = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    text = json.dumps({**header, "arrays": described}).encode()
    file.write(_LENGTH.pack(len(text)))
    file.write(text)
    for array in arrays.values():
        file.write(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).data)
    file.flush()


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise EOFError("the other side is gone")
    return data


def receive(file: BinaryIO, most: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and arrays, of at most so many bytes. Raises EOFError where the other side ends, ValueError for what is no message."""
    (length,) = _LENGTH.unpack(_exactly(file, _LENGTH.size))
    if length > HEADER_MAX:
        raise ValueError("a header that is too long")
    header = json.loads(_exactly(file, length))
    arrays = {}
    for name, (kind, shape) in header.pop("arrays").items():
        dtype = numpy.dtype(kind)
        count = 1
        for n in shape:
            if not isinstance(n, int) or n < 0:
                raise ValueError("a shape that is none")
            count *= n
        size = count * dtype.itemsize
        if dtype.hasobject or size > most:
            raise ValueError("more bytes than were asked for")
        most -= size
        arrays[name] = numpy.frombuffer(bytearray(_exactly(file, size)), dtype).reshape(shape)
    return header, arrays
