"""Ctrl-C at every moment of every kind of call."""

from __future__ import annotations

import dis
import sys
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from kops._memory import device_pool
from which import drained, plain_only

PACKAGE = str(Path(kops.__file__).parent)


def handlers(code: Any) -> Any:
    """From a bytecode offset to the place where an exception raised there is handled."""
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return lambda offset: next((e.target for e in entries if e.start <= offset < e.end), None)


class Interrupter:
    """Raises KeyboardInterrupt in this thread where the interpreter looks for signals: after the `at`-th call that
    returns to a function of the package. Counts them when `at` is None.

    The interpreter raises it at the call itself, a trace function only at the next instruction: where another handler
    is in force there (a `return f()` inside `with`), nothing is raised."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.seen = 0
        self.before: dict[Any, tuple[str, int]] = {}
        self.handlers: dict[Any, Any] = {}

    def trace(self, frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith((PACKAGE, "<op")) or "__del__" in frame.f_code.co_name:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.opcode

    def opcode(self, frame: Any, event: str, _: Any) -> Any:
        if event == "opcode":
            code, at = frame.f_code, frame.f_lasti
            name, where = self.before.get(frame, ("", 0))
            self.before[frame] = (dis.opname[code.co_code[at]], at)
            if name.startswith("CALL"):
                handler = self.handlers.get(code) or self.handlers.setdefault(code, handlers(code))
                if handler(where) == handler(at):
                    self.seen += 1
                    if self.seen == self.at:
                        raise KeyboardInterrupt
        return self.opcode

    def run(self, function: Any) -> bool:
        """True when the function was interrupted."""
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            function()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


# 3.10 has no exception tables to tell where a signal's exception is handled, 3.12 traces instructions in another way.
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="reads the bytecode of Python 3.11")
@plain_only
@pytest.mark.parametrize("what", ["ping", "shared", "staged", "submit", "register"])
def test_ctrl_c_at_any_moment(k: kops.Client, what: str, a: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_pool, "_pools", {})  # trim() looks at every free block that other tests have left there
    ordinary = numpy.arange(16, dtype="float32")
    calls = {
        "ping": lambda: k.ping({"x": 1}),
        "shared": lambda: k.add(a, a),
        "staged": lambda: k.add(ordinary, ordinary, out=ordinary.copy()),
        "submit": lambda: [pending.result() for pending in [k.submit("square", a) for _ in range(3)]],
        "register": lambda: k.square(k.zeros(70_000)) is not None and k.trim(),
    }
    call = calls[what]
    for _ in range(3):
        call()
    counter = Interrupter(None)
    assert not counter.run(call)
    assert counter.seen > 10
    connection = k._connection
    for at in range(1, counter.seen + 1, counter.seen // 300 + 1):
        Interrupter(at).run(call)
        assert k.ping({"at": at}) == {"at": at}, f"after an interrupt at {at} of {counter.seen}"
        assert (k.add(ordinary, a) == ordinary + a).all()
    assert k._connection is connection, "the connection did not survive"
    drained(k)
