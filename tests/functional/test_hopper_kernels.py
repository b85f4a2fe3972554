"""What kernels for compute capability 9.0 need of a launch. The real compiler makes the code, the stand-in driver checks what it
is given and computes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import user_kernels as kernels
from gpu_machine import FIXTURES, Machine, N, only_with_the_standin, values
from support import memfd, raw
from support.cuda_exporter import Memory
from support.daemon import binary
from support.raw import tensor
from user_kernels import ADD_PARAMS, CUSTOM_PARAMS, add_kernel, compile_source, custom_kernel, declare, only_with_nvrtc, pointer

pytestmark = [only_with_the_standin, only_with_nvrtc]
shared_machine, machine, connect, connection, exporter = FIXTURES
compilers, steady, vectors = kernels.FIXTURES


# ---- tensor maps ----

MAPS = """#include <cuda.h>
extern "C" __global__ void square_by_maps(const __grid_constant__ CUtensorMap out, const __grid_constant__ CUtensorMap in)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&in) : "memory");
    asm volatile("prefetch.tensormap [%0];" ::"l"(&out) : "memory");
}
"""
ROWS, COLUMNS = 16, 32
BOX = {"box": [8, 16], "swizzle": 64}
SHAPE = [ROWS, COLUMNS]


def mapped(name: str, kind: str, **more: Any) -> dict[str, Any]:
    return pointer(name, kind, map={**BOX, **more})


def square_by_maps(connection: raw.Connection, **more: Any) -> int:
    module = compile_source(connection, MAPS, "square_by_maps")["module"]
    params = [mapped("out", "out"), mapped("in_", "in")]
    return declare(connection, module, **{"entry": "square_by_maps", "params": params, "grid": [1], "block": [32], **more})


def squares(memory: Memory) -> Any:
    return values(memory)[: ROWS * COLUMNS] ** 2


def test_a_map_has_the_strides_of_its_tensor(connection: raw.Connection, vectors: list[Memory]) -> None:
    before = values(vectors[0]).copy().reshape(ROWS, -1)
    wide = before.shape[1]  # 64 floats a row
    want = values(vectors[1]).reshape(ROWS, wide)[:, 4 : 4 + COLUMNS] ** 2
    args = [v.inline(SHAPE, strides=[wide, 1], offset=16) for v in vectors[:2]]
    connection.call("launch", {"kernel": square_by_maps(connection), "args": args})
    after = values(vectors[0]).reshape(ROWS, wide)
    assert np.array_equal(after[:, 4 : 4 + COLUMNS], want)
    assert np.array_equal(after[:, :4], before[:, :4]) and np.array_equal(after[:, 4 + COLUMNS :], before[:, 4 + COLUMNS :])


def test_each_launch_has_its_own_maps(connection: raw.Connection, vectors: list[Memory]) -> None:
    kernel = square_by_maps(connection)
    for v in (vectors[2], vectors[3], vectors[2]):
        result = connection.call("launch", {"kernel": kernel, "args": [vectors[0].inline(SHAPE), v.inline(SHAPE)]})
        assert result["variant"] == "user"
        assert np.array_equal(values(vectors[0])[: ROWS * COLUMNS], squares(v))


def test_shared_host_memory_has_maps_of_its_copies(connection: raw.Connection) -> None:
    shared = memfd.Shared(2 * 4 * N)
    buffer = connection.register(shared)
    data = np.frombuffer(shared.map, np.float32).reshape(2, N)
    data[:] = np.arange(2 * N).reshape(2, N)
    args = [tensor(buffer, SHAPE, offset=4 * N * i) for i in range(2)]
    want = data[1, : ROWS * COLUMNS] ** 2
    connection.call("launch", {"kernel": square_by_maps(connection), "args": args})
    assert np.array_equal(data[0, : ROWS * COLUMNS], want)
    del data


def test_a_program_encodes_maps_for_the_memory_it_runs_on(connection: raw.Connection, vectors: list[Memory]) -> None:
    small = (np.arange(N) % 5).astype(np.float32)
    kernel = square_by_maps(connection)
    buffers = [connection.call("register", v.register_params())["buffer"] for v in vectors]
    body = {
        "tensors": [tensor(b, SHAPE) for b in buffers[:3]],
        "ops": [{"kernel": kernel, "args": [1, 0]}, {"kernel": kernel, "args": [2, 1]}],
    }
    program = connection.call("program", body)["program"]
    bind = [{"index": 2, "buffer": buffers[3]}]
    vectors[0].write(small.tobytes())
    for method, params, out in (
        ("sequence", body, 2),
        *[("run_program", {"program": program}, 2)] * 3,
        *[("run_program", {"program": program, "bind": bind}, 3)] * 2,  # recorded for this memory at first, then launched again
    ):
        vectors[out].write(bytes(4 * N))
        connection.call(method, params)
        assert np.array_equal(values(vectors[out])[: ROWS * COLUMNS], small[: ROWS * COLUMNS] ** 4), (method, out)


# All of them: tests/unit/core/test_kernel_map.c
@pytest.mark.parametrize("change, code", [({"offset": 8}, "misaligned"), ({"shape": [ROWS]}, "shape_mismatch"), (None, "shape_mismatch")])
def test_what_no_map_describes(connection: raw.Connection, vectors: list[Memory], change: dict[str, Any] | None, code: str) -> None:
    args = [vectors[0].inline(SHAPE), None if change is None else {**vectors[1].inline(SHAPE), **change}]
    error = connection.error("launch", {"kernel": square_by_maps(connection), "args": args})
    assert error.code == code and error.key == "args[1]"


@pytest.mark.parametrize(
    "change, code, key",
    [
        ({"box": []}, "invalid_argument", "params[1].map.box"),
        ({"box": [8, None]}, "wrong_type", "params[1].map.box[1]"),
        ({"box": [8, "nobody"]}, "invalid_argument", "params[1].map.box[1]"),
        ({"steps": ["1", 1]}, "wrong_type", "params[1].map.steps"),
        ({"swizzle": 129}, "out_of_range", "params[1].map.swizzle"),
        ({"size": 1}, "unknown_key", "params[1].map.size"),
        (None, "signature_mismatch", "params[1]"),  # a pointer is no map
    ],
)
def test_declarations_of_maps(connection: raw.Connection, change: dict[str, Any] | None, code: str, key: str) -> None:
    module = compile_source(connection, MAPS, "square_by_maps")["module"]
    params = [mapped("out", "out"), pointer("in_", "in") if change is None else mapped("in_", "in", **change)]
    error = connection.error("kernel", {"module": module, "entry": "square_by_maps", "params": params})
    assert error.code == code and error.key == key


def test_a_box_may_be_too_large_in_a_call(connection: raw.Connection, vectors: list[Memory]) -> None:
    params = [mapped("out", "out"), mapped("in_", "in", box=["20 * in_.shape[0]", 16])]
    kernel = square_by_maps(connection, params=params)
    error = connection.error("launch", {"kernel": kernel, "args": [v.inline(SHAPE) for v in vectors[:2]]})
    assert error.code == "out_of_range" and error.key == "args[1]" and error.detail["max"] == 256


# ---- cooperative launches ----

GRID_SYNC = """#include <cooperative_groups.h>
extern "C" __global__ void custom_kernel(float* out, const float* in, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = in[i];
    cooperative_groups::this_grid().sync();
    if (i < n)
        out[n - 1 - i] += in[i];
}
"""
ROOM = 32  # blocks of 256 threads that the stand-in runs at one time


def grid_sync(connection: raw.Connection, **more: Any) -> int:
    module = compile_source(connection, GRID_SYNC, "custom_kernel")["module"]
    how = {"entry": "custom_kernel", "params": CUSTOM_PARAMS, "cooperative": True, **more}
    return declare(connection, module, **how)


@pytest.mark.parametrize("more", [{}, {"cluster": [2]}], ids=["blocks", "clusters"])
def test_its_blocks_run_at_one_time(connection: raw.Connection, vectors: list[Memory], more: dict[str, Any]) -> None:
    launch = {"kernel": grid_sync(connection, **more), "args": [v.inline([N]) for v in vectors[:2]] + [N]}
    connection.call("launch", {**launch, "grid": [ROOM]})
    error = connection.error("launch", {**launch, "grid": [ROOM + 2]})
    assert error.code == "out_of_range" and error.key == "grid"
    assert (error.detail["value"], error.detail["max"]) == (ROOM + 2, ROOM)
    connection.call("launch", {**launch, "grid": [ROOM, 2], "block": [128]})
    error = connection.error("launch", {**launch, "grid": [ROOM], "shared": 100 << 10})
    assert error.code == "out_of_range" and error.detail["max"] == 8


def test_a_cooperative_kernel_by_itself_and_in_a_program(machine: Machine, connection: raw.Connection, vectors: list[Memory]) -> None:
    a, before, kernel = values(vectors[1]).copy(), machine.control.total("cooperative_launches"), grid_sync(connection)
    connection.call("launch", {"kernel": kernel, "args": [v.inline([N]) for v in vectors[:2]] + [N]})
    assert machine.control.total("cooperative_launches") == before + 1
    assert np.array_equal(values(vectors[0]), 2 * a)  # what the stand-in computes by this name
    ops = [{"kernel": kernel, "args": [0, 1, N]}, {"kernel": kernel, "args": [2, 0, N]}]
    program = connection.call("program", {"tensors": [v.inline([N]) for v in vectors[:3]], "ops": ops})["program"]
    for _ in range(3):
        connection.call("run_program", {"program": program})
    assert np.array_equal(values(vectors[2]), 4 * a)


# ---- programmatic dependent launches ----


def early(connection: raw.Connection) -> int:
    return custom_kernel(connection, pdl=True)


def test_a_step_behind_a_kernel_may_begin_early(machine: Machine, connection: raw.Connection, vectors: list[Memory]) -> None:
    a, kernel, before = values(vectors[0]).copy(), early(connection), machine.control.total("early_launches")
    ops = [{"kernel": kernel, "args": [i + 1, i, N]} for i in range(3)]
    connection.call("sequence", {"tensors": [v.inline([N]) for v in vectors], "ops": ops})
    assert machine.control.total("early_launches") == before + 2  # not the first, which is behind other work
    assert np.array_equal(values(vectors[3]), 8 * a)


def test_nothing_else_begins_early(machine: Machine, connection: raw.Connection, vectors: list[Memory]) -> None:
    """Neither a launch by itself, nor a step behind something else."""
    kernel, before = early(connection), machine.control.total("early_launches")
    launch = {"kernel": kernel, "args": [v.inline([N]) for v in vectors[:2]] + [N], "repeat": 3, "warmup": 1}
    for _ in range(3):
        connection.call("launch", launch)
    square = {"op": "square", "in": [0], "out": [1]}
    ops = [square, {"kernel": kernel, "args": [2, 1, N]}, square]
    connection.call("sequence", {"tensors": [v.inline([N]) for v in vectors[:3]], "ops": ops})
    nothing = {"kernel": add_kernel(connection), "args": [3, 3, 3, 0]}
    empty = {**vectors[3].inline([0])}
    ops = [nothing, {"kernel": kernel, "args": [1, 0, N]}]
    connection.call("sequence", {"tensors": [*(v.inline([N]) for v in vectors[:3]), empty], "ops": ops})
    assert machine.control.total("early_launches") == before


def test_a_program_that_begins_early_is_no_graph(machine: Machine, connection: raw.Connection, vectors: list[Memory]) -> None:
    a, kernel = values(vectors[0]).copy(), early(connection)
    ops = [{"kernel": kernel, "args": [i + 1, i, N]} for i in range(2)]
    program = connection.call("program", {"tensors": [v.inline([N]) for v in vectors[:3]], "ops": ops})["program"]
    graphs, before = machine.control.total("graph_launches"), machine.control.total("early_launches")
    connection.call("run_program", {"program": program})
    connection.call("run_program", {"program": program, "repeat": 4, "warmup": 1})
    assert machine.control.total("graph_launches") == graphs and machine.control.total("early_launches") == before + 6
    assert np.array_equal(values(vectors[2]), 4 * a)


def test_a_kernel_is_not_both(connection: raw.Connection) -> None:
    module = compile_source(connection)["module"]
    how = {"module": module, "entry": "add2_kernel", "params": ADD_PARAMS, "cooperative": True, "pdl": True}
    error = connection.error("kernel", how)
    assert error.code == "invalid_argument" and error.key == "pdl"


# ---- from a shell ----


def kopsctl(machine: Machine, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(binary("kopsctl")), "launch", *arguments, "--socket", machine.daemon.socket_path]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_kopsctl_launches_on_maps(machine: Machine, tmp_path: Path) -> None:
    source = tmp_path / "maps.cu"
    source.write_text(MAPS)
    what = [str(source), "square_by_maps", "--grid", "1", "--block", "32", "-p"]
    out, read = "tma float* out[4,8] box[2,4]", "tma const float* in_[4x8] box[ceil_div(8, 4), 4] swizzle 32 l2 128=arange"
    done = kopsctl(machine, *what, out, "-p", read, "--save", f"out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.fromfile(tmp_path / "out", np.float32), np.arange(32, dtype=np.float32) ** 2)
    done = kopsctl(machine, *what, out, "-p", read.replace("swizzle 32", "swizzle 48"))
    assert done.returncode == 1 and "0, 32, 64 or 128" in done.stderr
    for wrong in ("swizzle", "swizzle 32 32", "steps[x,1]", "box[1,2", "fill zeros", "padding 3", "box[1,1,1,1,1,1]"):
        done = kopsctl(machine, *what, out, "-p", f"tma const float* in_[4x8] {wrong}")
        assert done.returncode == 2 and "--param takes tma" in done.stderr, wrong


def test_kopsctl_launches_cooperatively(machine: Machine, tmp_path: Path) -> None:
    source = tmp_path / "sync.cu"
    source.write_text(GRID_SYNC)
    params = ["-p", "float* out[n]", "-p", "const float* in_[n]", "-p", "int n=1000"]
    before = machine.control.total("cooperative_launches")
    done = kopsctl(machine, str(source), "custom_kernel", *params, "--grid", "4", "--block", "256", "--cooperative")
    assert done.returncode == 0 and machine.control.total("cooperative_launches") == before + 1, done.stderr
    done = kopsctl(machine, str(source), "custom_kernel", *params, "--grid", "33", "--block", "256", "--cooperative")
    assert done.returncode == 1 and "run at one time" in done.stderr
