"""Requests that are bad for one reason: what is changed in a good one, and the codes that may answer it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import golden
from support import memfd

Params = dict[str, Any]
Fault = tuple[Callable[[Params], None], str]


def put(key: str, value: Any) -> Callable[[Params], None]:
    return lambda params: params.__setitem__(key, value)


def drop(key: str) -> Callable[[Params], None]:
    return lambda params: params.__delitem__(key)


def shaped(shape: list[int]) -> Callable[[Params], None]:
    """Row-major, whatever it was."""

    def act(params: Params) -> None:
        params["shape"] = shape
        params.pop("strides", None)

    return act


def attribute(name: str, value: Any) -> Callable[[Params], None]:
    return lambda params: params.__setitem__("attrs", {**params.get("attrs", {}), name: value})


def of_first(name: str, change: Callable[[Params], None]) -> Callable[[Params], None]:
    """In a copy of the first map of a list."""

    def act(params: Params) -> None:
        params[name] = [dict(params[name][0]), *params[name][1:]]
        change(params[name][0])

    return act


OPTIONS: list[Fault] = [
    (put("colour", 1), "unknown_key"),
    (put("stream", "0"), "wrong_type"),
    (put("stream", 256), "out_of_range"),
    (put("stream", -1), "out_of_range"),
    (put("repeat", 0), "out_of_range"),
    (put("warmup", 10001), "out_of_range"),
    (put("deadline_ms", 0), "out_of_range"),
    (put("priority", "urgent"), "invalid_argument"),
    (put("timing", 1), "wrong_type"),
    (put("ready", 0), "out_of_range"),
]
BODY: list[Fault] = [
    (drop("tensors"), "missing_key"),
    (drop("ops"), "missing_key"),
    (put("ops", []), "invalid_argument"),
    (put("tensors", {}), "wrong_type"),
    (put("device", 99), "unknown_device"),
    (of_first("ops", put("op", "cube")), "unknown_op"),
    (of_first("ops", put("op", 7)), "wrong_type"),
    (of_first("ops", put("in", [])), "invalid_argument"),
    (of_first("ops", put("out", [5000])), "out_of_range"),
    (of_first("ops", put("colour", 0)), "unknown_key"),
    (of_first("ops", attribute("nosuch", 1)), "unknown_key"),
]
# Of the first input of a run, which has elements.
TENSOR: list[Fault] = [
    (put("buffer", 2**40), "unknown_buffer"),
    (put("buffer", "1"), "wrong_type"),
    (drop("buffer"), "missing_key"),
    (drop("shape"), "missing_key"),
    (put("dtype", "bool"), "unknown_dtype"),
    (put("dtype", "f12"), "unknown_dtype"),
    (put("offset", 1 << 40), "out_of_bounds"),
    (put("offset", 2**63), "out_of_range"),
    (shaped([-1]), "out_of_range"),
    (shaped([1] * 9), "limit_exceeded"),
    (shaped([2**62, 2**62]), "out_of_range"),
    (put("strides", [1] * 5), "invalid_argument"),
    (put("colour", 1), "unknown_key"),
]
RUN: list[Fault] = [
    *OPTIONS,
    *((of_first("in", change), code) for change, code in TENSOR),
    (put("op", "cube"), "unknown_op"),
    (put("op", 1), "wrong_type"),
    (drop("op"), "missing_key"),
    (drop("in"), "missing_key"),
    (drop("out"), "missing_key"),
    (put("in", []), "invalid_argument"),
    (lambda params: params.__setitem__("in", params["in"] * 3), "limit_exceeded"),
    (put("device", 99), "unknown_device"),
    (put("device", "GPU-none"), "unknown_device"),
    (attribute("nosuch", 1), "unknown_key"),
    (attribute("variant", "nosuch"), "invalid_argument"),
    (put("attrs", []), "wrong_type"),
]
FAULTS: dict[str, list[Fault]] = {
    "run": RUN,
    "sequence": [*OPTIONS, *BODY],
    "program": [(put("colour", 1), "unknown_key"), *BODY],
    "run_program": [
        *OPTIONS,
        (put("program", 2**40), "unknown_program"),
        (drop("program"), "missing_key"),
        (put("program", "1"), "wrong_type"),
        (put("bind", [{"index": 5000, "buffer": 1}]), "invalid_argument"),
        (put("bind", [{"buffer": 1}]), "missing_key"),
        (put("bind", [{"index": 0, "buffer": 2**40}]), "unknown_buffer"),
    ],
}

# Whole requests, of nobody's memory.
OF_THE_GOLDEN = ("no_such_method", "hello", "alloc", "release", "ping", "cancel", "stats", "drain", "trim", "trace", "tuning")


def whole(vector: dict[str, Any]) -> bool:
    """Nothing of it is bytes, or says more than a map can, or depends on how the daemon isolates."""
    _, _, method, params = vector["message"]
    plain = "fds" not in vector and vector["canonical"] and "$" not in str(params) and "isolate" not in str(params)
    return plain and method in OF_THE_GOLDEN and isinstance(params, list) and list(map(type, params)) == [dict]


SINGLE: list[tuple[str, Params, str]] = [
    (v["message"][2], v["message"][3][0], v["expect"]["code"]) for v in golden.load("request_errors") if whole(v)
] + [
    ("release", {"program": 2**40}, "unknown_program"),
    ("release", {"module": 2**40}, "unknown_kernel"),
    ("release", {"kernel": 2**40}, "unknown_kernel"),
    ("stats", {"op": "nosuch"}, "unknown_op"),
    ("clients", {"colour": 1}, "unknown_key"),
    ("metrics", {"colour": 1}, "unknown_key"),
    ("drain", {"timeout_ms": "1"}, "wrong_type"),
    ("cache", {}, "missing_key"),
    ("cache", {"action": "nosuch"}, "invalid_argument"),
    ("timelines", {"colour": 1}, "unknown_key"),
    ("compile", {"source": ""}, "missing_key"),
    ("kernel", {"module": 2**40, "entry": "f", "params": []}, "unknown_kernel"),
    ("kernel", {"entry": "f", "params": []}, "missing_key"),
    ("launch", {"kernel": 2**40, "args": []}, "unknown_kernel"),
    ("launch", {"kernel": 1}, "missing_key"),
]
# After which a connection is closed.
VIOLATIONS: list[bytes] = [v["bytes"] for v in golden.load("invalid") if v["expect"]["kind"] == "close" and "fds" not in v]


def bad_registration(rng: random.Random) -> tuple[Params, list[int], str]:
    """Params, descriptors that the caller closes, and the code."""
    params: Params = {"kind": "memfd", "size": 4096, "fd": 0}
    kinds: list[Callable[[], tuple[Params, int, str]]] = [
        lambda: ({**params, "size": 4097}, memfd.make(4096), "invalid_fd"),
        lambda: (params, memfd.make(4096, ()), "invalid_fd"),
        lambda: (params, os.open("/dev/null", os.O_RDWR), "invalid_fd"),
        lambda: ({**params, "size": 0}, memfd.make(4096), "out_of_range"),
        lambda: ({**params, "kind": "paper"}, memfd.make(4096), "invalid_argument"),
        lambda: ({**params, "access": "x"}, memfd.make(4096), "invalid_argument"),
        lambda: ({**params, "fd": 1}, memfd.make(4096), "out_of_range"),
        lambda: ({**params, "fd": "0"}, memfd.make(4096), "wrong_type"),
        lambda: ({"kind": "memfd", "size": 4096}, memfd.make(4096), "missing_key"),
        lambda: ({"kind": "memfd", "fd": 0}, memfd.make(4096), "missing_key"),
        lambda: ({**params, "colour": 1}, memfd.make(4096), "unknown_key"),
        lambda: (params, memfd.make(4096, ("shrink", "write")), "read_only"),
    ]
    made, fd, code = rng.choice(kinds)()
    return made, [fd], code
