"""Runs kernels for the tests: `launch` compiles and runs one, `fails` returns the error of one that must fail, and `Together` compiles
many at once, since a compiler takes longest to begin."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("client_py", "tests")]
numpy = pytest.importorskip("numpy")

from kops import interpret  # noqa: E402
from kops.interpret import InterpretError, _compiler, _runtime, run  # noqa: E402

TYPES = {"float": "f32", "double": "f64", "half": "f16", "__nv_bfloat16": "bf16", "int": "i32", "unsigned": "u32"}
TYPES |= {"unsigned char": "u8", "long long": "i64", "bool": "bool"}


def params_of(text: str) -> list[dict[str, str]]:
    """`"float* c, const float* a, int n"` as a list of parameters; what is not const is inout."""
    result = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = re.fullmatch(r"(const )?([\w ]+?)\s*(\*?)\s*(\w+)", part)
        assert match, part
        const, kind, pointer, name = match.groups()
        result.append({"name": name, "kind": ("in" if const else "inout") if pointer else "scalar", "dtype": TYPES[kind]})
    return result


class Part(NamedTuple):
    """A source of several that are compiled as one."""

    whole: Together
    number: int

    def load(self, watched: bool) -> _runtime.Kernel:
        entries = [f"n{i}::k" for i in range(len(self.whole.texts))]
        path = _compiler.compile_kernel(self.whole.source(), "kernel.cu", entries, {}, (), watched)
        return _runtime.load(path, self.number)


class Together:
    """Sources with one kernel `k` each, behind a head that they share. Each has its own lines, from 1 on."""

    def __init__(self, head: str = "") -> None:
        self.head, self.texts = head, list[str]()

    def __call__(self, text: str) -> Part:
        self.texts.append(text)
        return Part(self, len(self.texts) - 1)

    def source(self) -> str:
        return self.head + "".join(f"namespace n{i} {{\n#line 1\n{text}\n}}\n" for i, text in enumerate(self.texts))


def launch(source: str | Part, entry: str, signature: str, *args: Any, grid: Any = 1, block: Any = 32, **more: Any) -> None:
    how = {"grid": grid, "block": block, **more}
    if isinstance(source, Part):
        interpret.launch(source.load, entry, params_of(signature), args, **how)
    else:
        run(source, entry, params_of(signature), args, **how)


@pytest.fixture
def fails() -> Callable[..., InterpretError]:
    def call(kind: str, *args: Any, **more: Any) -> InterpretError:
        with pytest.raises(InterpretError) as caught:
            launch(*args, **more)
        assert caught.value.kind == kind, caught.value
        return caught.value

    return call


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    if "XDG_CACHE_HOME" not in os.environ:
        os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    if not any(map(shutil.which, (os.environ.get("CXX", "c++").split()[0], "g++", "clang++"))):
        pytest.skip("no C++ compiler")


@pytest.fixture
def rng() -> Any:
    return numpy.random.default_rng(7)
