"""Functions of the host for torch's `load_inline` and `load`: C++ that checks tensors, makes an output and launches kernels with <<<…>>>.

The system's C++ compiler compiles them as they are, against headers of this package, in about a second: no nvcc, no libtorch. Their
tensors are torch's (or NumPy's) of this process, and each function of torch is torch's own. Kernels are compiled by the daemon, as all
kernels, and launched by it or in this process, as with `where="auto"` unless the client says otherwise; with `fallback="interpret"` on
the CPU, with checks.

What it needs is g++ or clang++ (C++17) and the package's compiled part. Objects are kept in the user's cache, so that a second process
loads them in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import BadArgument, Client, CompileFailed, KopsError, Unsupported
from .._companions import macros, warn
from . import _builder, _runtime
from ._abi import declared
from ._builder import Unit
from ._kernels import Kernels, SeveralKernels

__all__ = ["Extension", "Function", "compile"]

_SECOND_MODULE = re.compile(r"redefinition of .{0,30}\bkops_module_")  # of what the macro declares


class Function:
    """A function of C++. Its arguments are tensors, numbers, texts, lists of these, and None."""

    def __init__(self, definitions: list[Any], kernels: Kernels | SeveralKernels) -> None:
        self._definitions, self._kernels = definitions, kernels
        self._run = {definition.number: _runtime.host_function(definition, kernels).call for definition in definitions}
        self._by_device = any(definition.key or definition.is_declaration for definition in definitions)
        only = definitions[0] if len(definitions) == 1 and not self._by_device else None
        self._only, self._count = (self._run[only.number], len(only.parameters)) if only is not None else (None, 0)
        self.__name__ = definitions[0].name.rpartition("::")[2].partition("@")[0]
        self.__doc__ = "\n".join(filter(None, (definition.doc for definition in definitions))) or None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs it. An exception of C++ is one of Python: `RuntimeError` with its text."""
        if self._only is not None and not named and len(arguments) == self._count:
            try:
                return self._only(arguments, False)
            except _runtime.NoMatch:
                pass  # told below
        wrong: list[str] = []
        definitions: Sequence[Any] = self._definitions
        if self._by_device:
            definitions = _runtime.implementations(definitions, [*arguments, *named.values()], self._kernels)
        for strict in (True, False) if len(definitions) > 1 else (False,):  # as pybind11: first without conversions
            wrong.clear()
            for definition in definitions:
                try:
                    values = _runtime.positional(definition, arguments, named)
                    return self._run[definition.number](tuple(values), strict)
                except _runtime.NoMatch as error:
                    wrong.append(f"{definition.shown}: {error}")
        kinds = ", ".join([type(value).__name__ for value in arguments] + [f"{key}={type(value).__name__}" for key, value in named.items()])
        raise TypeError(f"{self.__name__}({kinds}) does not match " + "; nor ".join(wrong))

    def __repr__(self) -> str:
        return f"<kops.extension.Function {self.__name__}>"


class Extension:
    """A compiled extension: its functions are attributes."""

    def __init__(self, name: str, path: str, functions: Mapping[str, Function]) -> None:
        self.__name__, self.__file__ = name, path
        self._functions = dict(functions)
        self.__dict__.update(functions)  # found without __getattr__

    def __getattr__(self, name: str) -> Function:
        found: Function | None = self.__dict__.get("_functions", {}).get(name)
        if found is None:
            raise AttributeError(f"{self!r} has no function {name}; it has {', '.join(self.__dict__.get('_functions', ()))}")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._functions]

    def __repr__(self) -> str:
        return f"<kops.extension.Extension {self.__name__}: {', '.join(self._functions)}>"


def _binding(functions: Mapping[str, str]) -> str:
    lines = [f'm.def("{name}", &{name}, {_literal(doc)});' for name, doc in functions.items()]
    return '#line 1 "functions of load_inline"\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { ' + " ".join(lines) + " }\n"


def _directive(macro: Any) -> str:
    return f"#undef {macro.name}\n" if macro.value is None else f"#define {macro.name}{macro.parameters} {macro.value}\n"


def _literal(text: str) -> str:
    return '"' + "".join(c if c.isalnum() or c in " _.,:;()[]" else f"\\{ord(c):03o}" if ord(c) < 256 else "?" for c in text) + '"'


def build(
    name: str, sources: Iterable[tuple[str, str]], functions: Mapping[str, str] | None, options: Iterable[str] = (),
    files: Mapping[str, str] | None = None, host_options: Iterable[str] = (),
) -> str:  # fmt: skip
    """The path of the shared object of host code, with the arguments of `compile`."""
    for function in functions or ():
        if not re.fullmatch(r"(?:\w+::)*[A-Za-z_]\w*", function):
            raise BadArgument(f"functions: {function!r} is no name of a function of C++", {"key": "functions"})
    units = [Unit(*source) for source in sources if source[1].strip()]
    if functions:
        binding = _binding(functions)
        last = units.pop() if units else Unit("main.cpp", "")
        units.append(Unit(last.name, f"{last.text}\n{binding}"))
    defines = "".join(_directive(macro) for macro in macros([*options, *host_options]))
    try:
        return str(_builder.build(name, units, defines, files or {}))
    except CompileFailed as error:
        if functions and _SECOND_MODULE.search(error.log):
            why = f"{name}: the sources have a PYBIND11_MODULE, which says itself what Python calls: leave functions out"
            raise BadArgument(why, {"key": "functions"}) from None
        raise


def kernels_of(
    client: Client, name: str, device_sources: Sequence[tuple[str, str]], options: Sequence[str], files: Mapping[str, str],
    fallback: str | None,
) -> Kernels | SeveralKernels:  # fmt: skip
    """The kernels of sources, with the arguments of `compile`."""
    if len(device_sources) == 1:
        return Kernels(client, device_sources[0][1], device_sources[0][0], options, files, fallback)
    return SeveralKernels(client, device_sources or [(f"{name}.cu", "")], options, files, fallback)


@contextlib.contextmanager
def _compiled(kernels: Kernels | SeveralKernels) -> Iterator[None]:
    """Has the daemon compile kernels meanwhile. What is wrong with them is raised, whatever else is wrong."""
    if kernels.fallback is not None:
        yield
        return
    failed: list[BaseException] = []

    def work() -> None:
        try:
            kernels.compile()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="kops-extension")
    thread.start()
    try:
        yield
    finally:
        thread.join()
        if failed:
            raise failed[0]


def compile(
    client: Client, name: str, sources: Iterable[tuple[str, str]], functions: Mapping[str, str] | None,
    device_sources: Sequence[tuple[str, str]],
    options: Iterable[str] = (), files: Mapping[str, str] | None = None, fallback: str | None = None,
    host_options: Iterable[str] = (),
) -> Extension:  # fmt: skip
    """Compiles host code. `sources`: names and texts, C++ and CUDA; `functions`: names and docs of those that Python calls, None where the
    sources have a PYBIND11_MODULE; `device_sources`: where the kernels are; `options` are of the kernels, and their macros of the host
    code, too, as those of `host_options`; `files`: headers that both include."""
    options, files = list(options), dict(files or {})
    kernels = kernels_of(client, name, device_sources, options, files, fallback)
    with _compiled(kernels):
        path = build(name, sources, functions, options, files, host_options)
    definitions = _runtime.load(path)
    found: dict[str, list[Any]] = {}
    for definition in declared(definitions):
        found.setdefault(definition.name.rpartition("::")[2].partition("@")[0], []).append(definition)
    functions_of = {key: Function(several, kernels) for key, several in found.items()}
    if "torch" in sys.modules and any("::" in definition.name for definition in definitions):
        from . import _ops

        _ops.register(definitions, functions_of)
    return Extension(name, path, functions_of)


def by_torch(function: str, why: KopsError, given: dict[str, Any]) -> Any:
    """torch's own load or load_inline, for what does not compile here. Processes that ask for the same at the same time build it once, in
    a folder that all of the user's processes share."""
    try:
        from torch.utils import cpp_extension
    except ImportError:
        raise why from None
    from ._cxx import locked

    version = sys.modules["torch"].__version__
    key = _builder.hashed(version, sys.version, function, *(f"{name}={value!r}" for name, value in sorted(given.items())))
    folder = Path(given.pop("build_directory", None) or _builder.directory() / f"torch-{key}")
    with locked(key):
        folder.mkdir(0o700, parents=True, exist_ok=True)
        os.utime(folder)
        first = str(why).partition("\n")[0]
        warn(f"{given['name']} is compiled by torch, since {first}", RuntimeWarning)
        try:
            return getattr(cpp_extension, function)(**given, build_directory=str(folder))
        except OSError as error:  # there is no nvcc
            raise Unsupported(f"{first}; and torch cannot compile it: {error}") from error
