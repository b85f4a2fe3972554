"""Ways to ask a daemon for the same run: by raw messages, through libkops, through the Python client.

Each owns one block of shared memory that the daemon knows, as `memory` (an array of bytes), and runs an op on operands
in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from cases import Operand
from support import backends, memfd, raw
from support import daemon as daemons


class Refused(Exception):
    def __init__(self, code: str, message: str, key: str | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.key = key  # what the error names: "args[2]"


@dataclass(frozen=True)
class Param:
    name: str
    kind: str  # in, out, inout, scalar
    dtype: str
    elements: str | None = None  # expressions have no blanks
    rank: int = 0  # 0: any


@dataclass(frozen=True)
class Kernel:
    """A source with what a client declares about one entry of it."""

    source: str
    entry: str
    params: tuple[Param, ...]
    grid: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    arch: str | None = None  # None: the device's


@dataclass(frozen=True)
class Tensor:
    """An argument: an operand in the runner's memory, of a dtype."""

    operand: Operand
    dtype: str


Argument = Tensor | int | float | bool | None
Sizes = tuple[int, ...]  # of a launch, in place of the kernel's; (): the kernel's


class Runner(Protocol):
    memory: np.ndarray

    def run(
        self, op: str, dtype: str, inputs: list[Operand], out: Operand, attrs: dict[str, Any], device: str,
        out_dtype: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """`dtype`: of all inputs, or one each, with commas between them. Returns {"device", "variant", "timings"}; raises Refused."""
        ...

    def define(self, kernel: Kernel) -> str:
        """Makes it the kernel that launch() launches; returns the code's key; raises Refused."""
        ...

    def launch(self, args: Sequence[Argument], grid: Sizes = (), block: Sizes = ()) -> dict[str, Any]:
        """As run()."""
        ...

    def close(self) -> None: ...


def each(dtype: str, inputs: list[Operand]) -> list[str]:
    """The dtypes of a run's inputs."""
    return dtype.split(",") if "," in dtype else [dtype] * len(inputs)


@contextmanager
def refusals() -> Iterator[None]:
    """Errors of raw messages as Refused."""
    try:
        yield
    except raw.RpcError as error:
        raise Refused(error.code, str(error), error.detail.get("key")) from error


class RawRunner:
    """MessagePack by hand."""

    def __init__(self, daemon: daemons.Daemon, size: int) -> None:
        self.shared = memfd.Shared(size)
        self.memory = self.shared.bytes
        self.connection = daemon.connect()
        self.buffer = self.connection.register(self.shared)

    def run(
        self, op: str, dtype: str, inputs: list[Operand], out: Operand, attrs: dict[str, Any], device: str,
        out_dtype: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        def tensor(o: Operand, dtype: str) -> dict[str, Any]:
            return raw.tensor(self.buffer, o.shape, dtype, offset=o.offset, strides=list(o.strides))

        with refusals():
            given = [tensor(o, of) for o, of in zip(inputs, each(dtype, inputs), strict=True)]
            return self.connection.run(op, given, [tensor(out, out_dtype or dtype)], attrs=attrs, device=device)

    def define(self, kernel: Kernel) -> str:
        params = [
            {
                "name": p.name,
                "kind": p.kind,
                "dtype": p.dtype,
                **({"elements": p.elements} if p.elements else {}),
                **({"rank": p.rank} if p.rank else {}),
            }
            for p in kernel.params
        ]
        sizes = {"grid": list(kernel.grid), "block": list(kernel.block)}
        with refusals():
            source = {"source": kernel.source, "entries": [kernel.entry], **({"arch": kernel.arch} if kernel.arch else {})}
            module = self.connection.call("compile", source)
            declared = {"module": module["module"], "entry": kernel.entry, "params": params}
            declared |= {name: given for name, given in sizes.items() if given}
            self.kernel = self.connection.call("kernel", declared)["kernel"]
        return module["key"]

    def launch(self, args: Sequence[Argument], grid: Sizes = (), block: Sizes = ()) -> dict[str, Any]:
        def argument(a: Argument) -> Any:
            if not isinstance(a, Tensor):
                return a
            o = a.operand
            return raw.tensor(self.buffer, o.shape, a.dtype, offset=o.offset, strides=list(o.strides))

        request = {"kernel": self.kernel, "args": [argument(a) for a in args]}
        request |= {name: list(given) for name, given in (("grid", grid), ("block", block)) if given}
        with refusals():
            return self.connection.call("launch", request)

    def close(self) -> None:
        self.connection.close()


class CRunner:
    """libkops, by tests/conformance/c_runner; its header comment describes the lines."""

    options: tuple[str, ...] = ()

    def __init__(self, daemon: daemons.Daemon, size: int) -> None:
        self.shared = memfd.Shared(size)
        self.memory = self.shared.bytes
        command = [str(self.binary()), str(self.shared.fd), str(size), *self.options]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[self.shared.fd],
            env={**os.environ, "KOPS_SOCKET": daemon.socket_path, **self.driver(daemon)},
        )
        assert self.answer() == ["ready"]

    def driver(self, daemon: daemons.Daemon) -> dict[str, str]:
        """What the runner's own use of CUDA needs."""
        standin = self.options and daemon.backend == backends.STANDIN
        return {"KOPS_CUDA_DRIVER": str(backends.standin_driver())} if standin else {}

    @staticmethod
    def binary() -> Path:
        return daemons.build_folder() / "bin" / "kops_c_runner"

    def answer(self) -> list[str]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the C runner ended with status {self.process.wait()}"
        return line.rstrip("\n").split("\t")

    def run(
        self, op: str, dtype: str, inputs: list[Operand], out: Operand, attrs: dict[str, Any], device: str,
        out_dtype: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        variant = attrs.get("variant", "-")
        attrs = {k: v for k, v in attrs.items() if k != "variant"}
        lines = [f"run {op} {dtype} {out_dtype or dtype} {len(inputs)} 1 {len(attrs)} {device} {variant}"]
        for o in (*inputs, out):
            lines.append(self.tensor_line(o))
        for key, value in attrs.items():
            kind = {bool: "bool", int: "int", float: "float", str: "text"}[type(value)]
            lines.append(f"attr {key} {kind} {int(value) if kind == 'bool' else value}")
        return self.outcome(self.ask(lines))

    def ask(self, lines: list[str]) -> list[str]:
        """The fields of the answer behind `ok`."""
        assert self.process.stdin
        self.process.stdin.write("\n".join(lines) + "\n")
        self.process.stdin.flush()
        answer = self.answer()
        if answer[0] == "error":
            raise Refused(answer[1], answer[3], None if answer[2] == "-" else answer[2])
        assert answer[0] == "ok", answer
        return answer

    @staticmethod
    def outcome(answer: list[str]) -> dict[str, Any]:
        timings = dict(zip(("total_us", "host_us", "gpu_us"), map(float, answer[3:6]), strict=True))
        timings = {k: v for k, v in timings.items() if v == v}
        return {"device": answer[1], "variant": answer[2], "timings": timings}

    @staticmethod
    def tensor_line(o: Operand) -> str:
        return " ".join(map(str, ("tensor", o.offset, len(o.shape), *o.shape, *o.strides)))

    def define(self, kernel: Kernel) -> str:
        with tempfile.NamedTemporaryFile("w", suffix=".cu") as file:
            file.write(kernel.source)
            file.flush()
            sizes = [";".join(given) or "-" for given in (kernel.grid, kernel.block)]
            lines = [f"kernel {file.name} {kernel.entry} {kernel.arch or '-'} {len(kernel.params)} {' '.join(sizes)}"]
            lines += [f"param {p.name} {p.kind} {p.dtype} {p.rank} {p.elements or '-'}" for p in kernel.params]
            return self.ask(lines)[1]

    def launch(self, args: Sequence[Argument], grid: Sizes = (), block: Sizes = ()) -> dict[str, Any]:
        sizes = [";".join(map(str, given)) or "-" for given in (grid, block)]
        lines = [f"launch {len(args)} {' '.join(sizes)}"]
        for a in args:
            if isinstance(a, Tensor):
                lines += [f"arg {a.dtype}", self.tensor_line(a.operand)]
            elif a is None:
                lines.append("arg null -")
            else:
                lines.append(f"arg {type(a).__name__} {int(a) if isinstance(a, bool) else a}")
        return self.outcome(self.ask(lines))

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        assert self.process.wait(raw.PATIENCE) == 0
        self.process.stdout.close()


class HereRunner(CRunner):
    """libkops, with ops and kernels in the runner's own CUDA context."""

    options = ("here",)


OF_ML_DTYPES = {"bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2"}


class PythonRunner:
    """The Python client, on views of an array in its shared memory."""

    def __init__(self, daemon: daemons.Daemon, size: int) -> None:
        sys.path.insert(0, str(daemons.ROOT / "client_py"))
        import kops

        self.kops = kops
        self.client = kops.connect(daemon.socket_path)
        self.arena = self.client.zeros(size // 4, "f32")
        self.memory = self.arena.view(np.uint8)

    def run(
        self, op: str, dtype: str, inputs: list[Operand], out: Operand, attrs: dict[str, Any], device: str,
        out_dtype: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        def array(o: Operand, dtype: str) -> np.ndarray:
            view = o.view(self.memory, dtype)
            if dtype not in OF_ML_DTYPES:
                return view
            ml_dtypes = pytest.importorskip("ml_dtypes", reason=f"NumPy has no {dtype} without ml_dtypes")
            return view.view(getattr(ml_dtypes, OF_ML_DTYPES[dtype]))

        arrays = [array(o, of) for o, of in zip(inputs, each(dtype, inputs), strict=True)]
        target = array(out, out_dtype or dtype)
        for i, operand in enumerate(inputs):
            if operand == out:
                target = arrays[i]
        try:
            result, timings = self.client.run(op, *arrays, out=target, device=device, timing=True, **attrs)
        except self.kops.KopsError as error:
            raise Refused(error.code, str(error)) from error
        assert result is target
        return self.outcome(timings)

    @staticmethod
    def outcome(timings: Any) -> dict[str, Any]:
        return {"device": timings.device, "variant": timings.variant, "timings": {"total_us": timings.total_us}}

    def define(self, kernel: Kernel) -> str:
        params = [
            self.kops.Param(p.name, p.kind, p.dtype, elements=p.elements, rank=p.rank or None) for p in kernel.params
        ]
        try:
            sizes = {"grid": kernel.grid or None, "block": kernel.block or None}
            self.kernel = self.client.kernel(kernel.source, kernel.entry, params, arch=kernel.arch, **sizes)
        except self.kops.KopsError as error:
            raise Refused(error.code, str(error), error.detail.get("key")) from error
        return self.client.compile(kernel.source, kernel.entry).key

    def launch(self, args: Sequence[Argument], grid: Sizes = (), block: Sizes = ()) -> dict[str, Any]:
        arguments = [a.operand.view(self.memory, a.dtype) if isinstance(a, Tensor) else a for a in args]
        try:
            return self.outcome(self.kernel(*arguments, grid=grid or None, block=block or None, timing=True))
        except self.kops.KopsError as error:
            raise Refused(error.code, str(error), error.detail.get("key")) from error

    def close(self) -> None:
        self.client.close()
