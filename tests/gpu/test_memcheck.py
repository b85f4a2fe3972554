"""The daemon's kernels under compute-sanitizer: no access outside its memory, in any dtype, layout and variant."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from check import DTYPES, assert_add, assert_gemm, assert_square, gemm_by, gemm_variants
from support import proc
from support.daemon import Daemon
from support.kernels import ADD

FOUND_STATUS = 86  # of the sanitizer, when it found something


def run_together(k: Any, random: Callable[..., Any]) -> None:
    """Sequences and programs, as graphs too: on the tensors they were recorded with, and on others."""
    a, b = random(33, 65), random(33, 65)
    with k.sequence():
        total = k.add(a, b)
        squares = k.square(total)
    assert_add(total, a, b)
    assert_square(squares, total)
    with k.program() as p:
        total = k.add(a, b)
        product = k.gemm(total, b.t())
    for _ in range(3):
        p.run()
    other = random(33, 65)
    p.run(bind={a: other}, blocking=True)
    assert_add(total, other, b)
    p.run()
    k.synchronize()
    assert_add(total, a, b)
    assert_gemm(product, total, b.t())


def user_kernel(k: Any) -> Any:
    signature = "out float* c[n], const float* a[n], const float* b[n], int n"
    return k.kernel(ADD, "add2_kernel", signature, grid="ceil_div(n, 256)", block=256)


def run_user_kernels(torch: Any, k: Any) -> None:
    add = user_kernel(k)
    for n in (1, 257, 100_003):
        a, b, c = (torch.randn(n, device="cuda") for _ in range(3))
        add(c, a, b, n)
        assert_add(c, a, b)
        with k.program() as p:
            p.launch(add, c, a, b, n)
            p.launch(add, a, c, b, n)
        p.run(blocking=True)


def run_everything(torch: Any, k: Any) -> None:
    for dtype in DTYPES:

        def random(*shape: int, dtype: str = dtype) -> Any:
            return torch.randn(*shape, device="cuda").to(getattr(torch, dtype))

        for n in (1, 15, 1024, 100_003):
            for offset in (0, 1, 3):
                # Memory of its own for each, so that a step over the end leaves the allocation.
                a, b = random(n + offset)[offset:], random(n + offset)[offset:]
                assert_add(k.add(a, b), a, b)
                assert_square(k.square(a), a)
        whole = random(67, 45)
        assert_add(k.add(whole.t(), whole.t()), whole.t(), whole.t())
        assert_add(k.add(whole[:1], whole[:, :1]), whole[:1], whole[:, :1])
        assert_square(k.square(whole[::2, 1::3]), whole[::2, 1::3])
        for m, j, n in ((1, 1, 1), (33, 65, 17), (129, 130, 131)):
            for variant in gemm_variants(k):
                a, b = random(m, j), random(j, n)
                for x, y in ((a, b), (b.t(), a.t())):
                    got = gemm_by(k, variant, x, y, precision="high")
                    if got is not None:
                        assert_gemm(got, x, y, "high")
        run_together(k, random)
    run_user_kernels(torch, k)
    gpu = next(device for device in k.devices if device.backend == "cuda")
    staged = k.array(numpy.arange(10_001, dtype=numpy.float32))
    assert bool((numpy.asarray(k.square(staged, device=gpu)) == numpy.arange(10_001, dtype=numpy.float32) ** 2).all())


def test_memcheck(torch: Any, tmp_path: Path) -> None:
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(sanitizer).exists():
        pytest.skip("there is no compute-sanitizer")
    report = tmp_path / "memcheck.log"
    # The sanitizer would follow the compilers, too, so code comes from the cache of a daemon without it.
    # Nor does it get into an executor's sandbox, or beside another user of CUPTI.
    env = {
        "CACHE_DIRECTORY": str(tmp_path / "cache"), "KOPSD_EXECUTORS_ISOLATE": "none", "KOPSD_SERVER_SANDBOX": "off",
        "KOPSD_EXECUTORS_CUPTI": "off",
    }  # fmt: skip
    with Daemon(env=env) as plain, kops.connect(plain.socket_path) as k:
        user_kernel(k)
        proc.eventually(lambda: any(len(p.name) == 64 for p in (tmp_path / "cache").iterdir()), "the code is on disk")
    daemon = Daemon(start=False, env=env)
    # The daemon asks the driver questions that it may refuse: API errors are its business, accesses are ours.
    daemon.command[:0] = [
        sanitizer, "--tool", "memcheck", "--require-cuda-init=no", "--target-processes", "all",
        "--report-api-errors", "no", "--error-exitcode", str(FOUND_STATUS), "--log-file", str(report),
    ]  # fmt: skip
    try:
        try:
            daemon.start()
        except AssertionError:
            if report.exists() and "not supported" in report.read_text(encoding="utf-8", errors="replace").lower():
                pytest.skip("compute-sanitizer does not support this device")
            raise
        with daemon.connect() as raw:
            pid = raw.call("hello", {})["pid"]  # the sanitizer's own process is another
        with kops.connect(daemon.socket_path, timeout=300) as k:
            run_everything(torch, k)
        os.kill(pid, signal.SIGTERM)
        status = daemon.wait()
        text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
        assert status == 0, f"status {status}; the sanitizer's report:\n{text[-6000:]}\nthe daemon's log:\n{daemon.log()}"
        assert "ERROR SUMMARY: 0 errors" in text, text[-6000:]
    finally:
        daemon.cleanup()
