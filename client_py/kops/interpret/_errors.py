"""Errors of a run."""

from __future__ import annotations

from .. import KopsError

# In the order of the runtime's list.
KINDS = (
    "", "out_of_bounds", "race", "divergent_barrier", "divergent_warp", "uninitialised", "misaligned", "read_only", "wild_access",
    "timeout", "interrupted", "assertion", "trap", "division_by_zero", "stack_overflow", "unsupported",
)  # fmt: skip
_Place = tuple[int, int, int]


class InterpretError(KopsError):
    """A kernel did something wrong, or could not be compiled or launched; the arrays are as they were.

    `kind` says what: one of `out_of_bounds` (an access outside a tensor, shared memory, an array of the kernel or a block of the
    device's heap), `race` (also with an asynchronous copy that nothing has waited for), `divergent_barrier`,
    `divergent_warp` (a warp's collective that some lanes of its mask do not reach),
    `uninitialised` (shared memory that was read before it was written), `misaligned`, `read_only` (a write to an `in`
    tensor), `wild_access`, `timeout`, `assertion`, `trap`, `division_by_zero`, `stack_overflow`, `unsupported` (a GPU could run it),
    `compile` (`log` has the compiler's messages), `signature` and `launch`.

    Where they apply, `block` and `thread` say who, `other` is the second thread (of a race, say), `tensor` names the
    tensor or the shared array, `index` is the element in it (in shared memory the byte), `file` and `line` the place in the
    source and `other_line` that of the second thread.
    """

    code = "interpret"

    def __init__(
        self, message: str, kind: str, *, block: _Place | None = None, thread: _Place | None = None, other: _Place | None = None,
        tensor: str | None = None, index: int | None = None, file: str | None = None, line: int | None = None,
        other_line: int | None = None, log: str = "",
    ) -> None:  # fmt: skip
        super().__init__(message, {"kind": kind})
        self.kind, self.log = kind, log
        self.block, self.thread, self.other = block, thread, other
        self.tensor, self.index, self.file, self.line, self.other_line = tensor, index, file, line, other_line

    def __reduce__(self) -> tuple[object, ...]:
        return (_remake, (self.message, self.kind, dict(self.__dict__)))


def _remake(message: str, kind: str, state: dict[str, object]) -> InterpretError:
    error = InterpretError(message, kind)
    error.__dict__.update(state)
    return error
