"""What a GPU refuses is refused, and what the interpreter lacks is told apart from what there is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import launch

Fails = Callable[..., Any]
BODY = "(int *y) { y[threadIdx.x] = 1; }"


@pytest.mark.parametrize(
    "source, entry, threads",
    [
        ("__global__ void __launch_bounds__(128) k" + BODY, "k", 128),
        ("constexpr int N = 32; namespace a { constexpr int M = 2; __launch_bounds__(N * M, 2) __global__ void k" + BODY + "}", "a::k", 64),
        ("template <typename T, int N = 2> __global__ void __launch_bounds__(N * 32) k(T *y) { y[threadIdx.x] = 1; }", "k<int>", 64),
        ("template <typename T, int N = 2> __global__ void __launch_bounds__(N * 32) k(T *y) { y[threadIdx.x] = 1; }", "k<int, 4>", 128),
        (
            "#define BOUNDS(x) __launch_bounds__(x)\n__global__ void k" + BODY + "\n__global__ void __launch_bounds__(8) other" + BODY,
            "k",
            1024,
        ),
    ],
)
def test_launch_bounds(fails: Fails, source: str, entry: str, threads: int) -> None:
    y = np.zeros(1024, "i4")
    launch(source, entry, "int* y", y, block=threads)
    assert y.sum() == threads
    if threads < 1024:
        error = fails("launch", source, entry, "int* y", y, block=2 * threads)
        assert f"a block of {2 * threads} threads" in str(error) and f"allow {threads}" in str(error)


def test_too_much_static_shared_memory(fails: Fails) -> None:
    """Of one kernel: what others of the source have does not count."""
    source = "template <int N> __global__ void k(int *y) { __shared__ float s[N << 8]; s[0] = 1; y[0] = s[0]; }\n"
    source += "__global__ void other(int *y) { __shared__ float s[40 << 8]; s[1] = 1; y[0] = s[1]; }"
    y = np.zeros(1, "i4")
    launch(source, "k<48>", "int* y", y, block=1)
    error = fails("compile", source, "k<49>", "int* y", y, block=1)
    assert "uses too much shared data" in str(error) and "50176 bytes" in str(error)


@pytest.mark.parametrize("entry, closest", [("transpos", "transpose"), ("scal", "scale"), ("ns::inne", "ns::inner")])
def test_misspelt_entry(fails: Fails, entry: str, closest: str) -> None:
    source = f"__global__ void scale{BODY}\n__global__ void transpose{BODY}\nnamespace ns {{ __global__ void inner{BODY} }}"
    error = fails("compile", source, entry, "int* y", np.zeros(1, "i4"))
    assert str(error).startswith(f"the source has no kernel {entry}; it has {closest}, ")
    assert all(name in str(error) for name in ("scale", "transpose", "ns::inner"))


@pytest.mark.parametrize(
    "name, text",
    [
        ("tex2D", "y[0] = tex2D<float>(0ull, 1.0f, 2.0f);"),
        ("cudaTextureObject_t", "cudaTextureObject_t t;"),
        ("this_cluster", "y[0] = cooperative_groups::this_cluster().size();"),
        ("__mbarrier_init", "__mbarrier_init(nullptr, 3);"),
        ("BlockRadixSort", "typedef cub::BlockRadixSort<int, 128, 4> Sort;"),
    ],
)
def test_function_that_is_of_cuda(fails: Fails, name: str, text: str) -> None:
    source = f"#include <cooperative_groups.h>\n#include <cub/cub.cuh>\n__global__ void k(int *y)\n{{\n{text}\n}}"
    error = fails("unsupported", source, "k", "int* y", np.zeros(1, "i4"))
    assert f"`{name}` is a CUDA" in str(error) and "on a GPU this kernel may be right" in str(error) and error.line == 5


def test_header_that_is_of_cuda(fails: Fails) -> None:
    error = fails("unsupported", f"#include <cub/device/device_reduce.cuh>\n__global__ void k{BODY}", "k", "int* y", np.zeros(1, "i4"))
    assert "`cub/device/device_reduce.cuh` is a CUDA header" in str(error)


@pytest.mark.parametrize("text", ["y[0] = vadd5(1, 2);", "y[0] = __vadd5(1, 2);", "tile t;", "y[0] = cooperative_groups::nothing(3);"])
def test_name_that_is_of_nothing(fails: Fails, text: str) -> None:
    source = f"#include <cooperative_groups.h>\n__global__ void k(int *y) {{ {text} }}"
    assert "CUDA" not in str(fails("compile", source, "k", "int* y", np.zeros(1, "i4")))
