"""The shortest way of a call of an op of torch's, with PyTorch itself: from the shortcut to the extension, without a daemon."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import kops
import pytest
from kops._base.compiled import native
from kops._calls.calls import Calls
from kops.profiler import _spans

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed; continuous integration does without its gigabytes", allow_module_level=True)
if native is None:
    pytest.skip("the compiled part is not there", allow_module_level=True)
import kops.torch  # noqa: E402
import torch  # noqa: E402

OPS: Any = torch.ops.kops


class Link:
    """A connection whose calls are noted."""

    failure: Any = None
    doomed = False
    offers_ordered = True

    def __init__(self) -> None:
        self.garbage: list[Any] = []
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None

    @property
    def alive(self) -> bool:
        return self.failure is None and not self.doomed

    def run(self, *arguments: Any) -> Any:
        self.calls.append(arguments)
        if self.error is not None:
            raise self.error
        return arguments[1][0]

    def lost(self, error: Exception) -> Exception:
        return kops.ConnectionLost("this one")

    def synchronize(self, timeout: Any) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def noting() -> Iterator[tuple[kops.Client, Any]]:
    """A client that has such a connection, and the connection."""
    link: Any = Link()
    with kops.Client.unconnected(timeout=3) as client:
        client._connection = link
        kops.torch.use(client)
        yield client, link
        kops.torch.use(None)


def test_an_op_that_nothing_watches_is_one_call_of_the_extension(noting: Any) -> None:
    _, link = noting
    a, b = torch.ones(4, 4), torch.nn.Parameter(torch.ones(4, 4))
    assert OPS.square(a) is a and OPS.gemm(a, a) is a
    with torch.no_grad():
        assert OPS.add(a, b) is a and OPS.add(b, a) is b
    assert link.calls == [
        ("square", (a,), None, None, 1, 0, 3.0), ("gemm", (a, a), None, None, 2, 0, 3.0), ("add", (a, b), None, None, 1, 0, 3.0),
        ("add", (b, a), None, None, 1, 0, 3.0),
    ]  # fmt: skip
    link.error = kops.ConnectFailed("gone")
    with pytest.raises(kops.ConnectionLost, match="this one"):
        OPS.add(a, a)


def test_a_call_that_is_noted_goes_the_clients_own_way(noting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, link = noting
    a, watch = torch.ones(4, 4), _spans.Watch(10)
    monkeypatch.setattr(Calls, "_op", lambda self, op, values, *rest: values[0])
    _spans.install(watch)
    try:
        assert OPS.add(a, a) is a and not link.calls
    finally:
        _spans.remove()
    assert [span.name for span in watch.spans] == ["add"]
    assert OPS.add(a, a) is a and len(link.calls) == 1


@pytest.mark.parametrize(
    "state",
    [
        {"client": {"blocking": True}}, {"client": {"_scopes": {1: [None]}}}, {"client": {"_submitted": {1: []}}},
        {"client": {"_connection": None}}, {"link": {"failure": kops.ConnectionLost("gone")}}, {"link": {"doomed": True}},
        {"link": {"garbage": [1]}}, {"link": {"offers_ordered": False}},
    ],
)  # fmt: skip
def test_in_every_other_state_the_client_looks_first(noting: Any, state: dict[str, dict[str, Any]]) -> None:
    client, link = noting
    a = torch.ones(4)
    assert client._at_once("add", (a, a), 1) is a
    before = {name: getattr(client, name) for name in state.get("client", ())}
    for owner, members in ((client, state.get("client", {})), (link, state.get("link", {}))):
        for name, value in members.items():
            setattr(owner, name, value)
    assert client._at_once("add", (a, a), 1) is NotImplemented and len(link.calls) == 1
    for name, value in before.items():
        setattr(client, name, value)
