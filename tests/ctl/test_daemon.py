"""kopsctl with a daemon that is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Ctl
from support import backends
from support.daemon import Daemon


def test_clients_top_and_drain(real: Daemon) -> None:
    ctl = Ctl(real.socket_path)
    with real.connect() as worker:
        worker.call("hello", {"client": "worker 1.0"})
        assert "worker 1.0" in ctl("clients").stdout
        (look,) = (json.loads(line) for line in ctl("top", "-b", "-n", "1", "-d", "0.1", "--json").stdout.splitlines())
        assert look["state"] == "serving" and look["requests_s"] > 0 and "worker 1.0" in {one["client"] for one in look["clients"]}
    assert "ends" in ctl("drain", "--stop").stdout
    assert real.wait() == 0
    ctl("drain", status=3)


KERNELS = """
#if 0
__global__ void old() {}
#endif
namespace a::b { namespace { __global__ void k(float* y) { y[0] = 1; } } inline namespace c { __global__ void m(int* x) { x[0] = 1; } } }
template <auto F = [](int x) { return x; }> __global__ void t(int* y) { y[0] = F(1); }
extern "C" { __global__ void z(int* y) { y[0] = 2; } }
struct S { __device__ int f() { return 1; } };
namespace d { void host() {} template <class T> __global__ void u(T* y) { y[0] = 1; }
__global__ __launch_bounds__(128) void w(int* y) { y[0] = 3; } }
"""


@pytest.mark.skipif(backends.nvrtc() is None, reason="no NVRTC")
def test_compile_finds_the_kernels(real: Daemon, tmp_path: Path) -> None:
    """Those that are no templates, with their namespaces."""
    source = tmp_path / "kernels.cu"
    source.write_text(KERNELS)
    made = json.loads(Ctl(real.socket_path)("compile", str(source), "--arch", "sm_90", "--json").stdout)
    assert [entry["name"] for entry in made["entries"]] == ["a::b::k", "a::b::c::m", "z", "d::w"]
