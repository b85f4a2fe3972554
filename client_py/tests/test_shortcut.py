"""The first step of a call of an op of torch's: what it passes the dispatcher by for, without torch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kops._base.compiled import native

if native is None:
    pytest.skip("the compiled part is not there", allow_module_level=True)


class Plain:
    def __init__(self, is_cuda: bool = False, is_cpu: bool = False, requires_grad: bool = False) -> None:
        self.is_cuda, self.is_cpu, self.requires_grad = is_cuda, is_cpu, requires_grad


class Derived(Plain):
    pass


CUDA, CPU = Plain(is_cuda=True), Plain(is_cpu=True)


def shortcut(*questions: Callable[[], Any], level: Any = -1, count: int = 2) -> Any:
    def run(*arguments: Any) -> tuple[Any, ...]:
        return ("run", *arguments)

    def otherwise(*arguments: Any, **keywords: Any) -> tuple[Any, ...]:
        return ("otherwise", *arguments, *keywords)

    return native.Shortcut(Plain, count, questions, SimpleNamespace(_current_level=level), run, otherwise)


def test_plain_tensors_that_nothing_watches_run_at_once() -> None:
    made = shortcut(lambda: False, lambda: 0)
    assert made(CUDA, CPU) == ("run", CUDA, CPU)
    assert shortcut(count=1)(CUDA) == ("run", CUDA)

    class Packet:
        __call__ = made

    assert Packet()(CPU, CPU) == ("run", CPU, CPU)


@pytest.mark.parametrize(
    "arguments",
    [(), (CUDA,), (CUDA, CUDA, CUDA), (CUDA, 1), (Derived(True), CUDA), (CUDA, Plain()), (Plain(True, requires_grad=True), CUDA)],
)
def test_other_arguments_go_the_usual_way(arguments: tuple[Any, ...]) -> None:
    assert shortcut(lambda: False)(*arguments) == ("otherwise", *arguments)


def test_what_is_watched_goes_the_usual_way() -> None:
    assert shortcut()(CUDA, CUDA, alpha=1) == ("otherwise", CUDA, CUDA, "alpha")
    assert shortcut(lambda: False, lambda: 2)(CUDA, CUDA) == ("otherwise", CUDA, CUDA)
    assert shortcut(lambda: True, lambda: False)(CUDA, CUDA) == ("otherwise", CUDA, CUDA)
    assert shortcut(level=0)(CUDA, CUDA) == ("otherwise", CUDA, CUDA)


def test_an_error_of_a_question_is_the_call_s() -> None:
    def broken() -> bool:
        raise LookupError("no answer")

    with pytest.raises(LookupError, match="no answer"):
        shortcut(broken)(CUDA, CUDA)
    with pytest.raises(TypeError):
        shortcut(level="high")(CUDA, CUDA)
    odd = Plain(True)
    del odd.requires_grad
    with pytest.raises(AttributeError):
        shortcut()(odd, CUDA)
    with pytest.raises(TypeError, match="not initialised"):
        native.Shortcut.__new__(native.Shortcut)(CUDA)
