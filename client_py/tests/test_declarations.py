"""What derives from the declarations: exceptions, op methods, stubs."""

from __future__ import annotations

import inspect
import pickle
import pydoc
import subprocess
import sys
from pathlib import Path

import kops
import pytest
from kops._base.declarations import DTYPES, ERRORS, OPS
from kops._calls import ops as _ops
from kops._calls.rules import RULES
from kops._tensors.numpy import NAMES

ROOT = Path(__file__).resolve().parents[1]


def test_every_error_is_an_exception_of_its_name_and_builtins() -> None:
    for code, value, _origin, bases, doc in ERRORS:
        cls = getattr(kops, "".join(part.capitalize() for part in code.split("_")))
        assert issubclass(cls, kops.KopsError) and cls.code == code and cls.value == value and cls.__doc__ == doc
        for base in bases:
            assert issubclass(cls, pydoc.locate(base))
        assert cls.__name__ in kops.__all__


def test_errors_survive_pickling() -> None:
    error = kops.OutOfBounds("too far", {"needed": 8}, "out_of_bounds")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kops.OutOfBounds and again.message == "too far" and again.detail == {"needed": 8}


def test_every_op_is_a_method_of_both_clients() -> None:
    for name, op in OPS.items():
        for client in (kops.Client, kops.AsyncClient):
            signature = inspect.signature(getattr(client, name))
            assert list(signature.parameters)[1 : 1 + len(op["inputs"])] == op["inputs"]
            for attr in op["attrs"]:
                assert signature.parameters[attr["name"]].default == attr["default"]
            for option in ("out", "variant", "device", "stream", "timing", "deadline_ms", "timeout"):
                assert signature.parameters[option].kind is inspect.Parameter.KEYWORD_ONLY
        doc = getattr(kops.Client, name).__doc__
        assert op["summary"] in doc and all(attr["doc"] in doc for attr in op["attrs"])
        assert not hasattr(kops.Client, "__getattr__")


def test_a_new_declaration_needs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    attr = {"name": "power", "type": "int", "default": 2, "doc": "d"}
    monkeypatch.setitem(OPS, "raise_to", {**OPS["square"], "attrs": [attr]})
    method = _ops._make_method("raise_to")
    calls = []

    class Client:
        def _op(self, *args: object) -> None:
            calls.append(args)

    method(Client(), 1.0, power=3)
    method(Client(), 1.0, variant="v")
    assert [call[:4] for call in calls] == [
        ("raise_to", (1.0,), None, {"power": 3}),
        ("raise_to", (1.0,), None, {"variant": "v"}),
    ]
    with pytest.raises(TypeError):
        method(Client(), 1.0, power=1.5)


def test_shape_rules_and_dtypes_are_known() -> None:
    assert {op["rule"] for op in OPS.values()} <= set(RULES)
    assert set(NAMES) == set(DTYPES)


def test_the_stubs_are_current() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "stubs.py"), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + "run client_py/stubs.py"


def test_numpy_is_not_imported_for_nothing() -> None:
    code = "import kops, sys; assert not {'numpy', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
