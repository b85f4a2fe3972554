"""Kernels that clients bring: sources become modules, once for everybody, entries of modules kernels, which are launched as the ops are;
and what kernels for compute capability 9.0 need of a launch. The real compiler makes the code, the stand-in driver computes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_machine import (
    FIXTURES,
    KERNEL_FIXTURES,
    LAUNCH_OUT_OF_RESOURCES,
    Machine,
    N,
    add_args,
    only_with_nvrtc,
    only_with_the_standin,
    reuse,
    values,
)
from support import backends, memfd, proc, raw
from support.cuda_exporter import Exporter, Memory
from support.daemon import binary
from support.kernels import (
    ADD,
    ADD_PARAMS,
    ARCH,
    CUSTOM_PARAMS,
    ENDLESS,
    OTHERS,
    add_kernel,
    compile_source,
    custom_kernel,
    declare,
    pointer,
    scalar,
)
from support.raw import tensor
from support.users import as_root

pytestmark = [only_with_the_standin, only_with_nvrtc]
shared_machine, machine, connect, connection, exporter = FIXTURES
compilers, steady, vectors = KERNEL_FIXTURES


# ---- launching ----


def test_other_element_types(connection: raw.Connection, exporter: Exporter) -> None:
    bins, data = exporter.alloc(1024), exporter.alloc(N)
    raw_data = np.random.default_rng().integers(0, 256, N).astype(np.uint8)
    bins.write(bytes(1024))
    data.write(raw_data.tobytes())
    module = compile_source(connection, OTHERS, "histogram_kernel")["module"]
    params = [pointer("bins", "inout", "u32", shape=[256]), pointer("data", "in", "u8", elements="n"), scalar("n")]
    kernel = declare(connection, module, entry="histogram_kernel", params=params)
    connection.call("launch", {"kernel": kernel, "args": [bins.inline([256], dtype="u32"), data.inline([N], dtype="u8"), N]})
    assert np.array_equal(np.frombuffer(bins.read(1024), np.uint32), np.bincount(raw_data, minlength=256))


def test_a_kernel_that_reads_what_it_writes_is_not_repeated(connection: raw.Connection, vectors: list[Memory]) -> None:
    params = [pointer("c", "inout"), *ADD_PARAMS[1:]]
    kernel = add_kernel(connection, params=params)
    error = connection.error("launch", {"kernel": kernel, "args": add_args(vectors), "repeat": 2})
    assert error.code == "invalid_argument" and error.key == "repeat"
    connection.call("launch", {"kernel": kernel, "args": add_args(vectors)})


@pytest.mark.parametrize(
    "change, code, key",
    [
        ({"kernel": 77777}, "unknown_kernel", "kernel"),
        ({"args": []}, "invalid_argument", "args"),
        ({"args": {3: 1.5}}, "wrong_type", "args[3]"),
        ({"args": {0: 5}}, "wrong_type", "args[0]"),
        ({"args": {1: {"buffer": 999, "ipc": None}}}, None, None),
        ({"grid": [1, 65536]}, None, "grid[1]"),
        ({"block": [32, 64]}, None, "block"),
        ({"block": []}, "invalid_argument", "block"),
        ({"shared": 1 << 20}, None, "shared"),
        ({"cluster": [64]}, None, None),
        ({"stream": 256}, "out_of_range", "stream"),
    ],
)
def test_a_launch_that_is_refused(
    connection: raw.Connection, vectors: list[Memory], change: dict[str, Any], code: str | None, key: Any
) -> None:
    before = values(vectors[0]).copy()
    args: Any = add_args(vectors)
    if isinstance(change.get("args"), dict):
        for i, arg in change["args"].items():
            args[i] = {**args[i], **arg} if isinstance(arg, dict) and isinstance(args[i], dict) else arg
        args = [{k: v for k, v in a.items() if v is not None} if isinstance(a, dict) else a for a in args]
        change = {}
    error = connection.error("launch", {"kernel": add_kernel(connection), "args": args, **change})
    assert code is None or error.code == code, error
    assert key is None or error.key == key, error
    assert connection.alive()
    assert np.array_equal(values(vectors[0]), before)


def test_outputs_must_not_share_memory_unless_declared(connection: raw.Connection, vectors: list[Memory]) -> None:
    args = add_args(vectors)
    args[0] = args[1]
    error = connection.error("launch", {"kernel": add_kernel(connection), "args": args})
    assert error.code == "overlap" and error.key == "args[0]"
    want = values(vectors[1]) + values(vectors[2])
    connection.call("launch", {"kernel": add_kernel(connection, alias=True), "args": args})
    assert np.array_equal(values(vectors[1]), want)


def test_a_read_only_buffer_is_not_written(connection: raw.Connection) -> None:
    shared = memfd.Shared(3 * 4 * N)
    buffer = connection.register(shared, access="r")
    views = [tensor(buffer, [N], offset=4 * N * i) for i in range(3)]
    error = connection.error("launch", {"kernel": add_kernel(connection), "args": [*views, N]})
    assert error.code == "read_only" and error.key == "args[0].buffer"


def test_references_that_contradict_each_other_are_named(connection: raw.Connection, exporter: Exporter) -> None:
    kernel = add_kernel(connection)
    out, old = exporter.alloc(4 * N), exporter.alloc(4 * N)
    args = [out.inline([N]), old.inline([N]), reuse(exporter, old).inline([N]), N]
    error = connection.error("launch", {"kernel": kernel, "args": args})
    assert error.code == "stale_buffer" and error.key == "args[1]"


def test_ids_belong_to_the_connection(connect: Callable[[], raw.Connection], vectors: list[Memory]) -> None:
    one, two = connect(), connect()
    kernel = add_kernel(one)
    assert two.error("launch", {"kernel": kernel, "args": add_args(vectors)}).code == "unknown_kernel"


def test_release(connection: raw.Connection, vectors: list[Memory]) -> None:
    module = compile_source(connection)["module"]
    kernel = declare(connection, module)
    connection.call("release", {"module": module})
    assert connection.error("kernel", {"module": module, "entry": "add2_kernel", "params": []}).code == "unknown_kernel"
    connection.call("launch", {"kernel": kernel, "args": add_args(vectors)})
    connection.call("release", {"kernel": kernel})
    assert connection.error("launch", {"kernel": kernel, "args": add_args(vectors)}).code == "unknown_kernel"
    assert connection.error("release", {"kernel": kernel}).code == "unknown_kernel"
    assert connection.error("release", {"module": module}).code == "unknown_kernel"


# ---- sequences and programs ----


@pytest.mark.parametrize(
    "change, code, key",
    [
        ({"op": "add"}, "invalid_argument", "ops[0].op"),
        ({"in": [0]}, "invalid_argument", "ops[0].in"),
        ({"args": [0, 1, 9, N]}, "out_of_range", "ops[0].args[2]"),
        ({"args": [0, 1, 2.5, N]}, "wrong_type", "ops[0].args[2]"),
        ({"args": [0, 1, 2, N + 1]}, "shape_mismatch", "ops[0].args[1]"),
        ({"args": [0, 1, 0, N]}, "overlap", "ops[0].args[0]"),
        ({"grid": [0]}, None, "ops[0].grid[0]"),
    ],
)
def test_errors_say_which_step(
    connection: raw.Connection, vectors: list[Memory], change: dict[str, Any], code: str | None, key: str
) -> None:
    op = {"kernel": add_kernel(connection), "args": [0, 1, 2, N], **change}
    error = connection.error("sequence", {"tensors": [v.inline([N]) for v in vectors], "ops": [op]})
    assert code is None or error.code == code, error
    assert error.key == key, error


# ---- statistics ----


def test_stats_know_user_kernels(connection: raw.Connection, vectors: list[Memory]) -> None:
    kernel = custom_kernel(connection)
    args = [vectors[0].inline([N]), vectors[1].inline([N]), N]
    before = connection.call("stats")["kernels"]["launches"]
    for _ in range(3):
        connection.call("launch", {"kernel": kernel, "args": args})
    assert connection.error("launch", {"kernel": kernel, "args": args[:2]}).code == "invalid_argument"
    stats = connection.call("stats", {"op": "custom_kernel"})
    rows = [r for r in stats["ops"] if r["shapes"] == [[N], [N]]]
    assert len(rows) == 1 and rows[0]["op"] == "custom_kernel" and rows[0]["variant"] == "user"
    assert rows[0]["count"] >= 3 and rows[0]["bytes"] == 2 * 4 * N and "operations" not in rows[0]
    assert stats["kernels"]["launches"] == before + 3
    assert connection.error("stats", {"op": "never_launched"}).code == "unknown_op"


# ---- traces ----


def test_a_trace_has_compilations_and_launches(connection: raw.Connection, vectors: list[Memory]) -> None:
    connection.call("trace", {"begin": True})
    kernel = add_kernel(connection)
    connection.error("compile", {"source": "nonsense", "entries": ["add2_kernel"]})
    for _ in range(3):  # some untimed run is timed for the statistics, the first one among them
        connection.call("launch", {"kernel": kernel, "args": add_args(vectors), "timing": False})
    reply = connection.call("trace", {"end": True})
    kinds = {kind["kind"]: kind for kind in reply["kinds"]}
    good, bad, *launches = [{**kinds[event[0]], "started": event[6], "busy": event[8], "failed": event[10]} for event in reply["events"]]
    assert (good["what"], good["op"], good["ops"], good["failed"]) == ("compile", "add2_kernel", 0, 0)
    assert (bad["what"], bad["op"], bad["failed"]) == ("compile", "", 1)
    assert len(launches) == 3
    for launch in launches:
        assert (launch["what"], launch["op"], launch["variant"], launch["failed"]) == ("launch", "add2_kernel", "user", 0)
        assert launch["busy"] > 0, "what is traced is timed"


# ---- compiling ----


def test_a_source_becomes_a_module_with_what_is_known_of_its_kernels(connection: raw.Connection) -> None:
    reply = compile_source(connection, ADD + "// this one is new\n")
    assert reply["arch"] == ARCH and reply["compiler"].startswith("NVRTC ")
    assert reply["cached"] == "no" and reply["compile_us"] > 0
    assert len(bytes.fromhex(reply["key"])) == 32
    (entry,) = reply["entries"]
    assert entry["name"] == entry["lowered"] == "add2_kernel"
    assert entry["params"] == [8, 8, 8, 4]
    assert 8 <= entry["registers"] <= 255
    assert entry["shared_bytes"] == entry["local_bytes"] == 0


def test_the_same_source_is_compiled_once_for_everybody(connect: Callable[[], raw.Connection]) -> None:
    source = ADD + "// once\n"
    replies = [compile_source(connect(), source) for _ in range(3)]
    assert [r["cached"] for r in replies] == ["no", "memory", "memory"]
    assert len({r["key"] for r in replies}) == 1
    other = compile_source(connect(), source, options=["-DUNUSED=1"])
    assert other["cached"] == "no" and other["key"] != replies[0]["key"]


@pytest.mark.parametrize(
    "line, wanted",
    [
        ("*p = ;", "k.cu(1)"),
        ('\n#include "nowhere.h"\n', "nowhere.h"),
        ('\n#include "/etc/passwd"\n', "/etc/passwd"),
    ],
)
def test_a_source_that_does_not_compile_answers_with_the_log(connection: raw.Connection, line: str, wanted: str) -> None:
    """It does not say what files there are, nor what is in them."""
    logs = []
    for text in (line, line.replace("passwd", "nobody")):
        source = f'extern "C" __global__ void k(int* p) {{ {text} }}'
        error = connection.error("compile", {"source": source, "entries": ["k"], "name": "k.cu"})
        assert error.code == "compile_failed" and error.detail["reason"] == "source"
        logs.append(error.detail["log"].replace("nobody", "passwd"))
    assert wanted in logs[0] and "root:" not in logs[0]
    assert logs[0] == logs[1]
    assert connection.alive()


def test_an_endless_instantiation_is_ended_by_the_limit() -> None:
    m = Machine("[kernels]\ntime_s = 3\n")  # the source behind it is compiled in less on any machine
    with m.daemon, m.daemon.connect() as connection:
        error = connection.error("compile", {"source": ENDLESS, "entries": ["k"]})
        assert error.code == "compile_failed" and error.detail["reason"] in ("time", "memory"), error
        assert compile_source(connection)["module"]


@pytest.mark.parametrize(
    "change, code, key",
    [
        ({"options": [3]}, "wrong_type", "options[0]"),
        ({"entries": []}, "invalid_argument", "entries"),
        ({"entries": ["k"] * 65}, None, "entries"),
        ({"files": {"x.h": 3}}, "wrong_type", "files.(file)"),
        ({"name": "--pch"}, "invalid_argument", "name"),
        ({"source": 3}, "wrong_type", "source"),
        ({"device": 99}, "unknown_device", "device"),
    ],
)
def test_a_compile_that_is_refused(connection: raw.Connection, change: dict[str, Any], code: str | None, key: Any) -> None:
    error = connection.error("compile", {"source": ADD, "entries": ["add2_kernel"], **change})
    assert code is None or error.code == code, error
    assert key is None or error.key == key, error
    assert connection.alive()


def test_a_source_that_is_too_long_is_refused() -> None:
    """It has most of a request, also after a reload."""
    m = Machine("[limits]\nmessage_bytes = 65536\n")
    with m.daemon, m.daemon.connect() as other:
        assert other.call("hello")["limits"]["source_bytes"] == 62500
        error = other.error("compile", {"source": ADD + "//" + "x" * 63000, "entries": ["add2_kernel"]})
        assert error.code == "limit_exceeded"
        assert error.detail["limit"] == 62500


def test_a_compile_can_be_cancelled(connection: raw.Connection) -> None:
    msgid = connection.request("compile", {"source": ENDLESS.replace("40", "39"), "entries": ["k"]})
    assert connection.call("cancel", {"msgid": msgid}) == {"cancelled": True}
    assert connection.reply_error(msgid).code == "cancelled"
    assert compile_source(connection)["module"]


# ---- declaring ----


@pytest.mark.parametrize(
    "change, code, key",
    [
        ({"module": 12345}, "unknown_kernel", "module"),
        ({"params": [pointer("c", "both"), *ADD_PARAMS[1:]]}, "invalid_argument", "params[0].kind"),
        ({"params": [pointer("c", "out", "f77"), *ADD_PARAMS[1:]]}, "unknown_dtype", "params[0].dtype"),
        ({"params": [{"name": "c"}, *ADD_PARAMS[1:]]}, "missing_key", "params[0].kind"),
        ({"grid": [1, 1, 1, 1]}, "invalid_argument", "grid"),
        ({"block": [1.5]}, "wrong_type", "block[0]"),
    ],
)
def test_a_declaration_that_is_refused(connection: raw.Connection, change: dict[str, Any], code: str, key: Any) -> None:
    module = compile_source(connection)["module"]
    params = {"module": module, "entry": "add2_kernel", "params": ADD_PARAMS, "grid": [1], "block": [1], **change}
    error = connection.error("kernel", params)
    assert error.code == code, error
    assert key is None or error.key == key, error


def test_code_for_another_architecture_is_compiled_but_not_launched(connection: raw.Connection) -> None:
    reply = compile_source(connection, arch="sm_80")
    assert reply["arch"] == "sm_80"
    error = connection.error("kernel", {"module": reply["module"], "entry": "add2_kernel", "params": ADD_PARAMS})
    assert error.code == "unsupported" and "sm_80" in error.message


# ---- many ----


def test_code_stays_loaded_for_others_unless_it_takes_much_of_the_gpu(machine: Machine, connect: Callable[[], raw.Connection]) -> None:
    """Variables of a source are memory of the GPU as long as its code is loaded."""
    large = f"__device__ float table[1 << 22];\n{ADD.replace('a[i]', 'a[i] + table[i]')}"
    connection, before = connect(), machine.control.total("live_modules")
    modules = [compile_source(connection, source)["module"] for source in (ADD + "// small\n", large)]
    assert machine.control.total("live_modules") == before + 2
    for module in modules:
        connection.call("release", {"module": module})
    machine.wait(lambda: machine.control.total("live_modules") == before + 1)
    assert compile_source(connection, large)["cached"] == "memory"  # it is loaded again
    assert machine.control.total("live_modules") == before + 2


# ---- sharing the compiler: turns, and processes of it that end ----


@as_root
def test_a_toolkit_in_roots_home_serves_a_compiler_that_cannot_enter_it(tmp_path: Path) -> None:
    """As `pip install` puts it there. A header of the toolkit is included, and named in the log as always."""
    library = backends.nvrtc()
    assert library
    (tmp_path / "home").mkdir(mode=0o700)
    home = tmp_path / "home/toolkit"
    (home / "include").mkdir(parents=True)
    (home / "include/of_the_toolkit.h").write_text("#define TWO 2\n")
    (home / "include/wrong.h").write_text("#error not for kernels\n")
    for part in library.resolve().parent.glob("libnvrtc*.so.*"):
        shutil.copy(part, home / part.name, follow_symlinks=False)
    copied = home / library.resolve().name
    m = Machine(env={"KOPSD_KERNELS_NVRTC": str(copied), "KOPSD_KERNELS_INCLUDE": str(home / "include")})
    with m.daemon, m.daemon.connect() as client:
        compile_source(client, '#include <of_the_toolkit.h>\nextern "C" __global__ void two(float* c) { *c = TWO; }\n', "two")
        error = client.error("compile", {"source": "#include <wrong.h>\n", "entries": ["two"]})
        assert f"{home}/include/wrong.h" in error.detail["log"] and "/proc/" not in error.detail["log"]


def children(pid: int) -> list[int]:
    """Of all its threads."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text().split()]
        except FileNotFoundError:
            pass
    return found


def ticks(pid: int) -> int:
    try:
        return proc.cpu_ticks(pid)
    except FileNotFoundError:
        return 0


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has compiled its source


def test_a_helper_that_is_killed_fails_no_source() -> None:
    m = Machine(env={"KOPSD_KERNELS_HELPERS": "4"})
    with m.daemon, m.daemon.connect() as first, m.daemon.connect() as second, m.daemon.connect() as watcher:

        def compiles() -> int:
            return int(watcher.call("stats")["kernels"]["compiles"])

        compile_source(watcher)
        before = compiles()
        waiting = [
            (c, c.request("compile", {"source": ADD + f"// {i} of {n}\n", "entries": ["add2_kernel"]}))
            for i in range(12)
            for n, c in enumerate((first, second))
        ]
        for i in range(4):
            kill(proc.only(lambda: proc.executors(m.daemon.pid, "compile-helper"), "one helper forks"))
            seen = compiles()
            if i % 2:  # or the next one while it starts
                proc.eventually(lambda seen=seen: compiles() > min(seen, before + len(waiting) - 1), "the next source is compiled")
        for connection, msgid in waiting:
            assert connection.reply(msgid).get()["module"]


def test_a_compile_whose_process_is_killed_is_repeated_once() -> None:
    m = Machine(env={"KOPSD_KERNELS_HELPERS": "2"})
    with m.daemon, m.daemon.connect() as connection, m.daemon.connect() as other:
        compile_source(other)
        helper = proc.only(lambda: proc.executors(m.daemon.pid, "compile-helper"), "one helper forks")
        msgid = connection.request("compile", {"source": ENDLESS, "entries": ["k"]})

        def compiling() -> list[int]:
            """Those that have used processor time for a while: what is kept ready has not."""
            return [p for p in children(helper) if ticks(p) > 30]

        for _ in range(2):
            pid = proc.only(compiling, "the source is compiled")
            kill(pid)
            proc.eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "it has ended")
            assert compile_source(other, ADD + f"// beside {pid}\n")["cached"] == "no"
        assert connection.reply_error(msgid).detail["reason"] == "crash"


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


def test_a_map_has_the_strides_of_its_tensor(connection: raw.Connection, vectors: list[Memory]) -> None:
    before = values(vectors[0]).copy().reshape(ROWS, -1)
    wide = before.shape[1]  # 64 floats a row
    want = values(vectors[1]).reshape(ROWS, wide)[:, 4 : 4 + COLUMNS] ** 2
    args = [v.inline(SHAPE, strides=[wide, 1], offset=16) for v in vectors[:2]]
    connection.call("launch", {"kernel": square_by_maps(connection), "args": args})
    after = values(vectors[0]).reshape(ROWS, wide)
    assert np.array_equal(after[:, 4 : 4 + COLUMNS], want)
    assert np.array_equal(after[:, :4], before[:, :4]) and np.array_equal(after[:, 4 + COLUMNS :], before[:, 4 + COLUMNS :])


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


@pytest.mark.parametrize(
    "change, code, key",
    [
        ({"box": [8, None]}, "wrong_type", "params[1].map.box[1]"),
        ({"steps": ["1", 1]}, "wrong_type", "params[1].map.steps"),
        ({"size": 1}, "unknown_key", "params[1].map.size"),
        (None, "signature_mismatch", "params[1]"),  # a pointer is no map
    ],
)
def test_declarations_of_maps(connection: raw.Connection, change: dict[str, Any] | None, code: str, key: str) -> None:
    module = compile_source(connection, MAPS, "square_by_maps")["module"]
    params = [mapped("out", "out"), pointer("in_", "in") if change is None else mapped("in_", "in", **change)]
    error = connection.error("kernel", {"module": module, "entry": "square_by_maps", "params": params})
    assert error.code == code and error.key == key


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


def test_a_launch_that_the_driver_refuses(machine: Machine, connection: raw.Connection, vectors: list[Memory]) -> None:
    """It knows of registers and launch bounds, which the daemon does not."""
    launch = {"kernel": grid_sync(connection), "args": [v.inline([N]) for v in vectors[:2]] + [N]}
    fault = machine.control.fail("cuLaunchKernel", LAUNCH_OUT_OF_RESOURCES, nth=2)  # the first takes the time
    error = connection.error("launch", launch)
    assert fault.fired and error.code == "out_of_range" and "RESOURCES" in str(error.detail["driver"]), error
    connection.call("launch", launch)


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
