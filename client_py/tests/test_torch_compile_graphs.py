"""Kernels of `kops.torch.compile_kernel` on captured streams: PyTorch itself is there, and the tensors are the fake torch's, in the
stand-in driver's memory."""

from __future__ import annotations

import importlib.util
from typing import Any

import kops
import pytest

__all__ = ["driver", "k", "real"]

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed; continuous integration does without its gigabytes", allow_module_level=True)
import kops.torch  # noqa: E402
from test_daemon_cuda import driver, k, numbers, real, tensor  # noqa: E402
from test_here import Graph, launches  # noqa: E402
from test_kernels import ADD2  # noqa: E402


def test_a_captured_launch_is_a_part_of_the_graph(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add2 = kops.torch.compile_kernel(ADD2, "add2_kernel", client=k)
    c, a, b = tensor(driver, 0, 0, 0, 0), tensor(driver, 1, 2, 3, 4), tensor(driver, 10, 20, 30, 40)
    before = launches(k)
    with Graph(driver, monkeypatch) as graph:
        add2((1, 1, 1), (32, 1, 1), [c, a, b, 4])
        add2((1, 1, 1), (32, 1, 1), [c, c, a, 3])
    assert numbers(driver, c) == [0, 0, 0, 0], "captured, and not run"
    for _ in range(2):
        graph.replay()
        assert numbers(driver, c) == [12, 24, 36, 44]
    assert launches(k) == before
