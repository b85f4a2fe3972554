"""Calls here, in the daemon, or where it is faster: who decides, by whom they are launched, and what is said of it. On the stand-in
CUDA driver."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import pydoc
import warnings
from typing import Any

import fake_torch as torch
import kops
import numpy
import pytest
from kops._base.compiled import native
from kops._calls import calls, contexts
from test_daemon_cuda import driver, k, numbers, real, tensor
from test_daemon_kernels import add2, vectors
from test_here import Graph, launches
from test_ops_here import near, of, random, result, runs

from support.daemon import Daemon  # isort: skip

__all__ = ["driver", "k", "real"]

if native is None:
    pytest.skip("the compiled part is not there", allow_module_level=True)


@pytest.fixture
def by_python(k: kops.Client, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The places of the calls that Python has seen: the extension launches the others by itself."""
    seen: list[Any] = []
    kept = kops.Client._op

    def op(self: Any, name: str, *arguments: Any) -> Any:
        seen.append(arguments[-1])
        return kept(self, name, *arguments)

    monkeypatch.setattr(kops.Client, "_op", op)
    return seen


def test_a_launch_here_is_the_extension_s(k: kops.Client, driver: Any, by_python: list[Any]) -> None:
    """From the first call on that needs no binary, and after it also where addresses, shapes, strides and attributes change."""
    a, b = random(4, 6), random(4, 6)
    x, y, z = of(driver, a), of(driver, b), of(driver, numpy.zeros((4, 6), "float32"))
    product = of(driver, numpy.zeros((4, 4), "float32"))
    wide = of(driver, random(1, 4, 6))
    k.add(x, y, out=z, where="here")
    k.gemm(x, y, trans_b=True, out=product, where="here")
    made = k.gemm(x, y, trans_b=True, where="here")
    k.square(wide, where="here")
    by_python.clear()
    for _ in range(3):
        for first, second, out, want in (
            (x, y, z, a + b), (y, x, z, b + a), (x, x, z, a + a), (x[:2], y[2:], z[:2], a[:2] + b[2:]),
            (x[:, ::2], y[:, ::2], z[:, 1::2], a[:, ::2] + b[:, ::2]), (x, y[0], z, a + b[0]),
        ):  # fmt: skip
            assert k.add(first, second, out=out, where="here") is out
            assert near(result(driver, out), want, "float32")
        assert near(result(driver, k.add(x, y, where="here")), a + b, "float32")
        for alpha in (1.0, 0.5, 1, -2.0):
            k.gemm(x, y, trans_b=True, alpha=alpha, out=product, where="here")
            assert near(result(driver, product), alpha * (a @ b.T), "float32")
        k.gemm(x, y, out=product, where="here", trans_b=True, variant="tiled")
        assert near(result(driver, product), a @ b.T, "float32")
        assert near(result(driver, k.square(wide, where="here")), wide.array.numpy() ** 2, "float32")
        assert near(result(driver, k.add(*(x, y), **{"where": "he" + "re"[:], "out": z})), a + b, "float32")
    assert not by_python
    assert near(result(driver, made), a @ b.T, "float32")


def test_what_the_extension_does_not_launch_is_the_function_s(k: kops.Client, driver: Any, by_python: list[Any]) -> None:
    """A call that ends as one did that the extension knows: everything is looked at again."""
    a = random(4, 4)
    x, y, z = (of(driver, a) for _ in range(3))
    k.add(x, y, out=z, where="here")

    def refused(error: type[Exception], *inputs: Any, **keywords: Any) -> None:
        told = []
        for call in (k.add, type(k).add.__wrapped__.__get__(k)):
            with pytest.raises(error) as raised:
                call(*inputs, **{"where": "here", **keywords})
            told.append(str(raised.value))
        assert told[0] == told[1]

    refused(kops.Overlap, x[:2], y[:2], out=x[1:3])
    refused(kops.ShapeMismatch, x, y[:3], out=z)
    refused(kops.ShapeMismatch, x, y, out=z[:2])
    refused(kops.DtypeMismatch, x, of(driver, a.astype("float64")), out=z)
    refused(kops.BadArgument, x, y, out=z, where="there")
    refused(kops.BadArgument, x, y, out=z, stream=1)
    refused(kops.InvalidArgument, x, y, out=z, variant="no such")
    refused(kops.WrongType, a, y, out=z)
    refused(TypeError, x)
    refused(TypeError, x, y, bias=z)
    negated = of(driver, a)
    negated.negated = True
    refused(kops.BadArgument, x, y, out=negated)
    negated.resolve_neg = lambda: of(driver, -a)  # type: ignore[method-assign]
    assert near(result(driver, k.add(x, negated, where="here")), a - a, "float32")
    other = of(driver, a)
    other.device = torch.device("cuda", 1)
    refused(kops.DeviceMismatch, x, other, out=z)
    by_python.clear()
    with k.sequence() as s:
        recorded = k.add(x, y)
    assert by_python == [None] and s is not None and near(result(driver, recorded), a + a, "float32")
    with pytest.raises(kops.BadArgument, match="recorded"), k.sequence():
        k.add(x, y, where="here")
    with pytest.raises(AttributeError):
        type(k).add(object(), x, y, where="here")


def test_auto_asks_once(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch, by_python: list[Any]) -> None:
    """What was decided stays until the client connects anew; what could not be measured is asked again."""
    x, y = tensor(driver, 1, 2), tensor(driver, 0, 0)
    for times, place in (((2.0, 11.0), "here"), ((12.0, 11.0), "daemon")):
        monkeypatch.setattr(contexts, "measure", lambda client, device, times=times: times)
        k._forget_places()
        for _ in range(3):
            before = runs(k)
            k.add(x, x, out=y, where="auto")
            k.synchronize()
            assert numbers(driver, y) == [2, 4] and runs(k) == before + (place == "daemon")
        asked = [one for one in by_python if one == "auto"]
        assert len(asked) == 1, "the first call alone"
        assert place == "here" or contexts.DAEMON_BY_AUTO in by_python
        by_python.clear()

    def fails(client: Any, device: int) -> Any:
        raise kops.KopsError("not now")

    monkeypatch.setattr(contexts, "measure", fails)
    k._forget_places()
    for _ in range(2):
        k.add(x, x, out=y, where="auto")
    assert by_python == ["auto", "auto"]


def test_the_place_is_a_choice_of_the_connection(
    real: Daemon, k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch, by_python: list[Any]
) -> None:
    """Of connect(), or of KOPS_WHERE; a call's own is more. What the daemon alone can do stays its own."""
    a = random(4, 4)
    x, y, out = of(driver, a), of(driver, a), of(driver, a)
    k.add(x, y, where="here")
    monkeypatch.setattr(contexts, "measure", lambda client, device: (2.0, 11.0))

    def of_daemon(call: Any) -> bool:
        before = runs(k)
        made = call()
        client.synchronize()
        assert near(result(driver, made) if isinstance(made, torch.Tensor) else made, a + a, "float32")
        return runs(k) == before + 1

    for where in ("here", "auto"):
        for environment in (False, True):
            if environment:
                monkeypatch.setenv("KOPS_WHERE", where)
            with kops.connect(real.socket_path, timeout=120, where=None if environment else where) as client:
                assert client.where == where
                assert not of_daemon(lambda: client.add(x, y)) and not of_daemon(lambda: client.add(x, y, out=out))
                assert not of_daemon(lambda: client.run("add", x, y))
                kern, (c, one, two) = add2(client, alias=True), vectors(driver)
                before = launches(k)
                kern(c, one, two, 4)
                kern[4, 32](c, c, one, 3)
                assert launches(k) == before and numbers(driver, c) == [12, 24, 36, 44]
                kern(c, one, two, 4, blocking=True)
                kern[4, 32](c, c, one, 3, where="daemon")
                client.synchronize()
                assert launches(k) == before + 2 and numbers(driver, c) == [12, 24, 36, 44]
                by_python.clear()
                client.add(x, y, out=out)
                assert not by_python
                for call in (
                    lambda: client.add(x, y, where="daemon"), lambda: client.add(x, y, blocking=True), lambda: client.add(x, y, stream=1),
                    lambda: client.add(a, a), lambda: client.submit("add", x, y).result(), lambda: recorded(client, x, y),
                ):  # fmt: skip
                    assert of_daemon(call)
                assert pickle.loads(pickle.dumps(client)).where == where
            monkeypatch.delenv("KOPS_WHERE", raising=False)
    with kops.connect(real.socket_path, where="daemon") as client:
        assert of_daemon(lambda: client.add(x, y))
    monkeypatch.setenv("KOPS_WHERE", "here")
    with kops.connect(real.socket_path, blocking=True) as client:
        assert client.where == "daemon", "which alone waits"
    with kops.connect(real.socket_path, where="daemon") as client:
        assert client.where == "daemon"
    for given, message in ({"where": "there"}, "where must be one of"), ({"where": "auto", "blocking": True}, "leave out where='auto'"):
        with pytest.raises(kops.BadArgument, match=message):
            kops.connect(real.socket_path, **given)
    monkeypatch.setenv("KOPS_WHERE", "there")
    with pytest.raises(kops.BadArgument, match="KOPS_WHERE must be one of"):
        kops.connect(real.socket_path)


def recorded(client: kops.Client, x: Any, y: Any) -> Any:
    with client.sequence():
        made = client.add(x, y)
    return made


def test_who_takes_turns_is_told_once(real: Daemon, k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = tensor(driver, 1, 2), tensor(driver, 0, 0)
    k.square(x, out=y, where="here")
    monkeypatch.setattr(contexts, "measure", lambda client, device: (12.0, 11.0))

    def told(call: Any, **how: Any) -> list[Any]:
        monkeypatch.setattr(calls, "_told_of_turns", False)
        with kops.connect(real.socket_path, timeout=120, **how) as client, warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(2):
                call(client)
            client.synchronize()
        return [one for one in seen if one.category is kops.TurnsWarning]

    def add(client: kops.Client, **how: Any) -> None:
        client.add(x, x, out=y, **how)

    def under_mps(client: kops.Client) -> None:
        devices = [dataclasses.replace(one, mps=True) for one in client.info.devices]
        client._connection.info = dataclasses.replace(client.info, devices=devices)  # type: ignore[union-attr]
        add(client)

    def captured(client: kops.Client) -> None:
        with Graph(driver, monkeypatch):
            add(client)

    (once,) = told(add)
    assert "MPS" in str(once.message) and 'where="auto"' in str(once.message) and once.filename == __file__
    for quiet in ({"where": "daemon"}, {"where": "here"}, {"where": "auto"}, {"blocking": True}):
        assert not told(add, **quiet) and not told(lambda client, quiet=quiet: add(client, **quiet))
    assert not told(lambda client: client.add(random(2), random(2))) and not told(under_mps) and not told(captured)
    monkeypatch.setenv("KOPS_WHERE", "daemon")
    assert not told(add)


def test_an_op_s_method_is_described_as_the_function_that_it_has(k: kops.Client) -> None:
    assert list(inspect.signature(k.add).parameters)[:3] == ["a", "b", "out"] and "self" in inspect.signature(kops.Client.add).parameters
    assert k.add.__name__ == "add" and kops.Client.add.__qualname__ == "Client.add" and kops.Client.add.__module__ == "kops"
    assert "where:" in (k.gemm.__doc__ or "") and k.add.__self__ is k
    assert "add(a, b, *, out=None" in pydoc.render_doc(k.add, renderer=pydoc.plaintext)
