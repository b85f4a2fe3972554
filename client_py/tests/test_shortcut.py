"""The first step of a call of an op of torch's: what it passes the dispatcher by for, without torch."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from kops._base.compiled import native

if native is None:
    pytest.skip("the compiled part is not there", allow_module_level=True)


class Plain:
    def __init__(self, is_cuda: bool = False, is_cpu: bool = False, requires_grad: bool = False) -> None:
        self.is_cuda, self.is_cpu, self.requires_grad = is_cuda, is_cpu, requires_grad


class Other(Plain): ...


class Derived(Plain): ...


CUDA, CPU = Plain(is_cuda=True), Plain(is_cpu=True)


def shortcut(
    *questions: Callable[[], Any], level: Any = -1, count: int = 2, watched: Any = lambda value: False, grad: Any = lambda: True,
    quick: Any = None,
) -> Any:  # fmt: skip
    def run(*arguments: Any) -> tuple[Any, ...]:
        return ("run", *arguments)

    def otherwise(*arguments: Any, **keywords: Any) -> tuple[Any, ...]:
        return ("otherwise", *arguments, *keywords)

    state = {} if level is None else {"_current_level": level}
    return native.Shortcut((Plain, Other), count, questions, watched, grad, state, quick, run, otherwise)


def test_plain_tensors_that_nothing_watches_run_at_once() -> None:
    made = shortcut(lambda: False, lambda: 0)
    assert made(CUDA, CPU) == ("run", CUDA, CPU)
    assert shortcut(count=1)(CUDA) == ("run", CUDA)
    other, wanted = Other(is_cuda=True), Plain(True, requires_grad=True)
    assert made(other, CPU) == ("run", other, CPU)

    class Packet:
        __call__ = made

    assert Packet()(CPU, CPU) == ("run", CPU, CPU)
    for arguments in ((), (CUDA,), (CUDA, CUDA, CUDA), (CUDA, 1), (Derived(True), CUDA), (CUDA, Plain()), (wanted, CUDA)):
        assert made(*arguments) == ("otherwise", *arguments)
    assert shortcut(grad=lambda: False)(CUDA, wanted) == ("run", CUDA, wanted), "where no gradient is made"


def test_what_is_watched_goes_the_usual_way() -> None:
    assert shortcut()(CUDA, CUDA, alpha=1) == ("otherwise", CUDA, CUDA, "alpha")
    assert shortcut(lambda: False, lambda: 2)(CUDA, CUDA) == ("otherwise", CUDA, CUDA)
    assert shortcut(lambda: True, lambda: False)(CUDA, CUDA) == ("otherwise", CUDA, CUDA)
    assert shortcut(level=0)(CUDA, CUDA) == ("otherwise", CUDA, CUDA)
    asked: list[Any] = []
    assert shortcut(watched=lambda value: asked.append(value) or True)(CUDA, CPU) == ("otherwise", CUDA, CPU)
    assert asked == [CUDA]


def test_c_functions_are_asked_without_python_s_way() -> None:
    """One without arguments, one with one, and others, which Python calls."""
    was = gc.isenabled()
    try:
        for enabled, wanted in ((True, "otherwise"), (False, "run")):
            gc.enable() if enabled else gc.disable()
            assert shortcut(gc.isenabled)(CUDA, CUDA)[0] == wanted
    finally:
        gc.enable() if was else gc.disable()
    assert shortcut(watched=callable)(CUDA, CUDA)[0] == "run"
    assert shortcut(watched=id)(CUDA, CUDA)[0] == "otherwise"
    assert shortcut([].copy, {}.copy)(CUDA, CUDA)[0] == "run"
    assert shortcut([].copy, [0].copy)(CUDA, CUDA)[0] == "otherwise"
    assert shortcut([].sort)(CUDA, CUDA)[0] == "run"  # None; it takes keywords
    with pytest.raises(TypeError):
        shortcut(len)(CUDA, CUDA)


def test_the_quickest_way_is_tried_before_devices_are_asked_for() -> None:
    nowhere = Plain()
    taken = shortcut(quick=lambda *arguments: ("quick", *arguments))
    assert taken(CUDA, nowhere) == ("quick", CUDA, nowhere)
    declined = shortcut(quick=lambda *arguments: NotImplemented)
    assert declined(CUDA, CPU) == ("run", CUDA, CPU)
    assert declined(CUDA, nowhere) == ("otherwise", CUDA, nowhere)
    assert shortcut(lambda: True, quick=lambda *arguments: "quick")(CUDA, CPU)[0] == "otherwise"
    with pytest.raises(ZeroDivisionError):
        shortcut(quick=lambda *arguments: 1 // 0)(CUDA, CPU)


def test_an_error_of_a_question_is_the_call_s() -> None:
    def broken(*_: Any) -> bool:
        raise LookupError("no answer")

    for one in (shortcut(broken), shortcut(watched=broken)):
        with pytest.raises(LookupError, match="no answer"):
            one(CUDA, CUDA)
    with pytest.raises(LookupError, match="no answer"):
        shortcut(grad=broken)(CUDA, Plain(True, requires_grad=True))
    with pytest.raises(TypeError):
        shortcut(level="high")(CUDA, CUDA)
    with pytest.raises(AttributeError):
        shortcut(level=None)(CUDA, CUDA)
    odd, nowhere = Plain(True), Plain()
    del odd.requires_grad, nowhere.is_cpu
    for value in (odd, nowhere):
        with pytest.raises(AttributeError):
            shortcut()(value, CUDA)
    with pytest.raises(TypeError, match="not initialised"):
        native.Shortcut.__new__(native.Shortcut)(CUDA)
    with pytest.raises(ValueError, match="an argument or more"):
        shortcut(count=0)
    with pytest.raises(ValueError, match="8 questions at most"):
        shortcut(*[lambda: False] * 9)
