"""Outputs of recorded ops, which have no content before the sequence or program runs.

`Recorded` is a NumPy array in every respect but that reading it before then raises `BadArgument`, and that its text says so.
Views of it are the same. It is told by the recorder's `Promise`, once for all arrays.
"""

from __future__ import annotations

from typing import Any

from .._base.errors import BadArgument
from .._base.needs_numpy import numpy


class Promise:
    """Whether a recorder's ops have run, so that their outputs can be read."""

    __slots__ = ("kept", "name")

    def __init__(self, name: str) -> None:
        self.kept = False
        self.name = name  # "sequence" or "program"

    def __reduce__(self) -> tuple[Any, ...]:
        return Promise, (self.name,)


WHEN = {"sequence": "when its `with` block ends", "program": "with its first run()"}


def _plain(value: Any) -> Any:
    """Without the guard; raises where there is nothing to read yet."""
    if isinstance(value, Recorded):
        value._check()
        return value.view(numpy.ndarray)
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    return value


class Recorded(numpy.ndarray):  # type: ignore[misc]
    """See above. Operations on it give plain arrays."""

    _promise: Promise | None

    def __array_finalize__(self, obj: Any) -> None:
        self._promise = getattr(obj, "_promise", None)

    def _check(self) -> None:
        promise = self._promise
        if promise is not None and not promise.kept:
            raise BadArgument(
                f"this array is written {WHEN[promise.name]}: the {promise.name} that an op was recorded in has not run, and "
                "there is nothing to read before. Its shape and dtype can be looked at, and it can be given to other ops of "
                f"the {promise.name}"
            )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        return getattr(ufunc, method)(*map(_plain, inputs), **{key: _plain(value) for key, value in keywords.items()})

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in SEEN_FROM_OUTSIDE:
            return super().__array_function__(func, types, args, kwargs)
        plain = {key: _plain(value) for key, value in kwargs.items()}
        return func(*map(_plain, args), **plain)

    def __repr__(self) -> str:
        if self._promise is not None and not self._promise.kept:
            shape = "×".join(map(str, self.shape)) or "a number"
            return f"<kops: {shape} {self.dtype}, written {WHEN[self._promise.name]}>"
        return repr(self.view(numpy.ndarray))

    def __str__(self) -> str:
        return repr(self) if self._promise is not None and not self._promise.kept else str(self.view(numpy.ndarray))

    def __format__(self, spec: str) -> str:
        return repr(self) if self._promise is not None and not self._promise.kept else format(self.view(numpy.ndarray), spec)

    def __reduce__(self) -> Any:
        return _plain(self).__reduce__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return _plain(self).__deepcopy__(memo)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if not isinstance(found, Recorded):  # a number
            self._check()
        return found


# Functions that look at shape and place only.
SEEN_FROM_OUTSIDE = {
    getattr(numpy, name)
    for name in ("shape", "ndim", "size", "shares_memory", "may_share_memory", "broadcast_to", "broadcast_arrays", "reshape",
                 "transpose", "swapaxes", "moveaxis", "squeeze", "expand_dims", "ravel", "atleast_1d", "atleast_2d", "result_type",
                 "empty_like", "zeros_like", "ones_like", "full_like", "copyto", "putmask")
    if hasattr(numpy, name)
}  # fmt: skip


def _reading(name: str) -> Any:
    method = getattr(numpy.ndarray, name)

    def read(self: Recorded, *args: Any, **keywords: Any) -> Any:
        return method(_plain(self), *map(_plain, args), **keywords)

    read.__name__, read.__doc__ = name, method.__doc__
    return read


for _name in (
    "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__", "__int__", "__float__", "__complex__", "__index__",
    "__iter__", "__contains__", "__copy__", "item", "tolist",
    "tobytes", "tofile", "dump", "dumps", "copy", "astype", "byteswap", "all", "any", "argmax", "argmin", "argsort",
    "argpartition", "choose", "clip", "compress", "conj", "conjugate", "cumprod", "cumsum", "diagonal", "dot", "flatten", "max",
    "mean", "min", "nonzero", "prod", "ptp", "repeat", "round", "searchsorted", "std", "sum", "take", "trace", "var",
):  # fmt: skip
    if hasattr(numpy.ndarray, _name):
        setattr(Recorded, _name, _reading(_name))


def promised(value: Any, promise: Promise) -> Any:
    """An output of a recorded op as its caller gets it."""
    if type(value) is numpy.ndarray:
        value = value.view(Recorded)
        value._promise = promise
        return value
    return tuple(promised(one, promise) for one in value) if type(value) is tuple else value
