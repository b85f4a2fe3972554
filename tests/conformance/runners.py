"""Ways to ask a daemon for the same run: by raw messages, through libkops, through the Python client.

Each owns one block of shared memory that the daemon knows, as `memory` (an array of bytes), and runs an op on operands
in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from cases import Operand
from support import daemon as daemons
from support import memfd, raw


class Refused(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Runner(Protocol):
    memory: np.ndarray

    def run(
        self, op: str, dtype: str, inputs: list[Operand], out: Operand, attrs: dict[str, Any], device: str
    ) -> dict[str, Any]:
        """Returns {"device", "variant", "timings"}; raises Refused."""
        ...

    def close(self) -> None: ...


class RawRunner:
    """MessagePack by hand."""

    def __init__(self, daemon: daemons.Daemon, size: int) -> None:
        self.shared = memfd.Shared(size)
        self.memory = self.shared.bytes
        self.connection = daemon.connect()
        self.buffer = self.connection.register(self.shared)

    def run(
        self, op: str, dtype: str, inputs: list[Operand], out: Operand, attrs: dict[str, Any], device: str
    ) -> dict[str, Any]:
        def tensor(o: Operand) -> dict[str, Any]:
            return raw.tensor(self.buffer, o.shape, dtype, offset=o.offset, strides=list(o.strides))

        try:
            return self.connection.run(op, [tensor(o) for o in inputs], [tensor(out)], attrs=attrs, device=device)
        except raw.RpcError as error:
            raise Refused(error.code, str(error)) from error

    def close(self) -> None:
        self.connection.close()


class CRunner:
    """libkops, by tests/conformance/c_runner; its header comment describes the lines."""

    def __init__(self, daemon: daemons.Daemon, size: int) -> None:
        self.shared = memfd.Shared(size)
        self.memory = self.shared.bytes
        command = [str(self.binary()), str(self.shared.fd), str(size)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[self.shared.fd],
            env={**os.environ, "KOPS_SOCKET": daemon.socket_path},
        )
        assert self.answer() == ["ready"]

    @staticmethod
    def binary() -> Path:
        return daemons.build_folder() / "bin" / "kops_c_runner"

    def answer(self) -> list[str]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the C runner ended with status {self.process.wait()}"
        return line.rstrip("\n").split("\t")

    def run(
        self, op: str, dtype: str, inputs: list[Operand], out: Operand, attrs: dict[str, Any], device: str
    ) -> dict[str, Any]:
        variant = attrs.get("variant", "-")
        attrs = {k: v for k, v in attrs.items() if k != "variant"}
        lines = [f"run {op} {dtype} {len(inputs)} 1 {len(attrs)} {device} {variant}"]
        for o in (*inputs, out):
            lines.append(" ".join(map(str, ("tensor", o.offset, len(o.shape), *o.shape, *o.strides))))
        for key, value in attrs.items():
            kind = {bool: "bool", int: "int", float: "float", str: "text"}[type(value)]
            lines.append(f"attr {key} {kind} {int(value) if kind == 'bool' else value}")
        assert self.process.stdin
        self.process.stdin.write("\n".join(lines) + "\n")
        self.process.stdin.flush()
        answer = self.answer()
        if answer[0] == "error":
            raise Refused(answer[1], answer[2])
        assert answer[0] == "ok", answer
        timings = dict(zip(("total_us", "host_us", "gpu_us"), map(float, answer[3:6]), strict=True))
        timings = {k: v for k, v in timings.items() if v == v}
        return {"device": answer[1], "variant": answer[2], "timings": timings}

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        assert self.process.wait(raw.PATIENCE) == 0
        self.process.stdout.close()


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
        self, op: str, dtype: str, inputs: list[Operand], out: Operand, attrs: dict[str, Any], device: str
    ) -> dict[str, Any]:
        native = None
        if dtype == "bf16":
            native = pytest.importorskip("ml_dtypes", reason="NumPy has no bf16 without ml_dtypes").bfloat16

        def array(o: Operand) -> np.ndarray:
            view = o.view(self.memory, dtype)
            return view if native is None else view.view(native)

        arrays, target = [array(o) for o in inputs], array(out)
        for i, operand in enumerate(inputs):
            if operand == out:
                target = arrays[i]
        try:
            result, timings = self.client.run(op, *arrays, out=target, device=device, timing=True, **attrs)
        except self.kops.KopsError as error:
            raise Refused(error.code, str(error)) from error
        assert result is target
        return {"device": timings.device, "variant": timings.variant, "timings": {"total_us": timings.total_us}}

    def close(self) -> None:
        self.client.close()
