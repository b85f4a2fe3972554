"""Eight processes of both languages at once, each checking everything that it gets."""

from __future__ import annotations

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from support.daemon import Daemon, binary
from workers import Worker

PYTHON_CLIENTS = 4
C_ROUNDS = (
    ["add", "--shape", "1048576", "--dtype", "f32", "--memory", "device"],
    ["square", "--shape", "1000x333", "--dtype", "bf16", "--memory", "shared"],
    ["gemm", "--shape", "640x640,640x640", "--dtype", "f64", "--memory", "device"],
    ["gemm", "--shape", "1000x17,17x333", "--dtype", "f16", "--memory", "shared"],
)


def test_eight_clients_of_both_languages(torch: Any, driver: Any, daemon: Any) -> None:
    kopsctl = binary("kopsctl")
    if not kopsctl.exists():
        pytest.skip(f"{kopsctl} is not built")
    env = {**os.environ, "KOPS_SOCKET": daemon.socket_path}
    more = ("--device", driver.uuid(), "--repeat", "50", "--check")
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker("checker", daemon.socket_path, str(seed), "40")) for seed in range(PYTHON_CLIENTS)]
        for worker in workers:
            assert worker.hear() == {"ready": True}
        for worker in workers:
            worker.tell()
        clients = [
            subprocess.Popen([str(kopsctl), "run", *arguments, *more], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for arguments in C_ROUNDS
        ]
        for client in clients:
            output, _ = client.communicate(timeout=180)
            assert client.returncode == 0, f"{client.args}: {output.decode(errors='replace')}"
        for worker in workers:
            assert worker.hear() == {"done": True}
            worker.finish()
    assert daemon.running()


@pytest.mark.parametrize("_again", range(3))
def test_first_gemms_of_many_clients(driver: Any, _again: int) -> None:
    """Each shape and dtype has code of cuBLASLt loaded, in a daemon that has none yet, while others' kernels are timed."""

    def multiply(seed: int) -> None:
        chance = numpy.random.default_rng(seed)
        with kops.connect(daemon.socket_path) as client:
            start.wait()
            for dtype in (numpy.float32, numpy.float16, numpy.float64) * 10:
                m, n, k = chance.integers(1, 400, 3)
                a, b = (chance.integers(-3, 4, shape).astype(dtype) for shape in ((m, k), (k, n)))
                product, timing = client.gemm(a, b, timing=True)
                assert timing.gpu_us
                assert numpy.allclose(product, (a.astype(float) @ b.astype(float)).astype(dtype), rtol=1e-2)

    with Daemon() as daemon, ThreadPoolExecutor(8) as pool:
        start = threading.Barrier(8)
        for done in [pool.submit(multiply, seed) for seed in range(8)]:
            done.result(timeout=120)


def test_c_examples(torch: Any, daemon: Any) -> None:
    """The C examples that the build made, each a program of its own."""
    folder: Path = binary().parent
    examples = sorted(path for path in folder.glob("*example*") if path.is_file())
    if not examples:
        pytest.skip(f"no examples in {folder}")
    env = {**os.environ, "KOPS_SOCKET": daemon.socket_path}
    for example in examples:
        done = subprocess.run([str(example)], env=env, capture_output=True, timeout=120)
        assert done.returncode == 0, f"{example.name}: {(done.stdout + done.stderr).decode(errors='replace')}"
