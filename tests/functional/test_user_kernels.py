"""Kernels that clients bring: compiled once, launched as the ops are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_machine import DEVICE_LOST_STATUS, FIXTURES, Machine, N, only_with_the_standin, values, vector
from support import memfd, proc, raw
from support.cuda_exporter import Exporter, Memory
from support.raw import tensor
from user_kernels import (
    ADD,
    ADD_PARAMS,
    ARCH,
    OTHERS,
    add_kernel,
    compile_source,
    custom_kernel,
    declare,
    only_with_nvrtc,
    pointer,
    scalar,
)

pytestmark = [only_with_the_standin, only_with_nvrtc]
shared_machine, machine, connect, connection, exporter = FIXTURES


@pytest.fixture(scope="module", autouse=True)
def compilers(shared_machine: Machine) -> None:
    """The processes that compile are started by the first compile and stay: no leak of a later test."""
    with shared_machine.daemon.connect() as connection:
        compile_source(connection)


@pytest.fixture(autouse=True)
def steady(shared_machine: Machine) -> None:
    """A spent compiler goes and the next one comes after the answer."""
    proc.eventually(
        lambda: proc.fds(shared_machine.daemon.pid)["socket"] == 3, "the listener, the forker and a spare child are left"
    )


@pytest.fixture
def vectors(exporter: Exporter) -> list[Memory]:
    """Four vectors of N random numbers."""
    rng = np.random.default_rng()
    return [vector(exporter.alloc(4 * N), rng.integers(1, 100, N).astype(np.float32)) for _ in range(4)]


def add_args(vectors: list[Memory], n: int = N) -> list[Any]:
    c, a, b = (v.inline([n]) for v in vectors[:3])
    return [c, a, b, n]


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


def test_many_who_ask_at_once_cause_one_compile(machine: Machine, connect: Callable[[], raw.Connection]) -> None:
    source = ADD + "// all at once\n"
    connections = [connect() for _ in range(24)]
    before = connections[0].call("stats")["kernels"]
    ids = [c.request("compile", {"source": source, "entries": ["add2_kernel"]}) for c in connections]
    replies = [c.reply(i).get() for c, i in zip(connections, ids, strict=True)]
    after = connections[0].call("stats")["kernels"]
    assert after["compiles"] - before["compiles"] == 1
    assert len({r["key"] for r in replies}) == 1


def test_templates_are_instantiated_by_name(connection: raw.Connection) -> None:
    source = """template <typename T, int N> __global__ void scale(T* out, const T* in, T factor)
    { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < N) out[i] = in[i] * factor; }"""
    reply = compile_source(connection, source, "scale<float, 4>", "scale<double, 7>")
    one, two = reply["entries"]
    assert (one["name"], two["name"]) == ("scale<float, 4>", "scale<double, 7>")
    assert one["lowered"] != two["lowered"]
    assert (one["params"], two["params"]) == ([8, 8, 4], [8, 8, 8])


def test_files_are_included_by_the_names_that_they_are_given(connection: raw.Connection) -> None:
    source = '#include "mine/ops.cuh"\nextern "C" __global__ void k(int* p) { *p = VALUE; }'
    reply = compile_source(connection, source, "k", files={"mine/ops.cuh": "#define VALUE 3\n"})
    assert reply["entries"][0]["params"] == [8]


@pytest.mark.parametrize(
    "source, wanted",
    [
        ('extern "C" __global__ void k(int* p) { *p = }', "k.cu(1)"),
        ('#include "nowhere.h"\nextern "C" __global__ void k() {}', "nowhere.h"),
        ('#include "/etc/passwd"\nextern "C" __global__ void k() {}', "/etc/passwd"),
        ('#include "../../../../../../etc/passwd"\nextern "C" __global__ void k() {}', "passwd"),
    ],
)
def test_a_source_that_does_not_compile_answers_with_the_log(
    connection: raw.Connection, source: str, wanted: str
) -> None:
    error = connection.error("compile", {"source": source, "entries": ["k"], "name": "k.cu"})
    assert error.code == "compile_failed" and error.detail["reason"] == "source"
    assert wanted in error.detail["log"]
    assert "root:" not in error.detail["log"]
    assert connection.alive()


def test_an_entry_that_is_not_there_is_named(connection: raw.Connection) -> None:
    error = connection.error("compile", {"source": ADD, "entries": ["add2_kernel", "sub2_kernel"]})
    assert error.code == "compile_failed" and error.detail["reason"] == "entry"
    assert "sub2_kernel" in error.message


def test_an_endless_instantiation_is_ended_by_the_limit(tmp_path: Path) -> None:
    source = """template <int D, int P> struct B { static constexpr long v = B<D - 1, 2 * P>::v + B<D - 1, 2 * P + 1>::v; };
    template <int P> struct B<0, P> { static constexpr long v = P; };
    extern "C" __global__ void k(long* p) { *p = B<40, 1>::v; }"""
    m = Machine(tmp_path, "[kernels]\ntime_s = 2\n")
    with m.daemon, m.daemon.connect() as connection:
        error = connection.error("compile", {"source": source, "entries": ["k"]})
        assert error.code == "compile_failed" and error.detail["reason"] in ("time", "memory"), error
        assert compile_source(connection)["module"]


@pytest.mark.parametrize(
    "change, code, key",
    [
        ({"options": ["--pch"]}, "invalid_argument", "options[0]"),
        ({"options": ["-O3", "-I/etc"]}, "invalid_argument", None),
        ({"options": ["-arch=sm_80"]}, "invalid_argument", "options[0]"),
        ({"options": [3]}, "wrong_type", "options[0]"),
        ({"entries": []}, "invalid_argument", "entries"),
        ({"entries": ["a b; c"]}, "invalid_argument", "entries[0]"),
        ({"entries": ["k"] * 65}, None, "entries"),
        ({"arch": "sm_12345678901234567890"}, "invalid_argument", "arch"),
        ({"arch": "compute_90"}, "invalid_argument", "arch"),
        ({"files": {"x.h": 3}}, "wrong_type", "files.(file)"),
        ({"name": ""}, "invalid_argument", "name"),
        ({"source": 3}, "wrong_type", "source"),
        ({"device": 99}, "unknown_device", "device"),
    ],
)
def test_a_compile_that_is_refused(connection: raw.Connection, change: dict[str, Any], code: str | None, key: Any) -> None:
    error = connection.error("compile", {"source": ADD, "entries": ["add2_kernel"], **change})
    assert code is None or error.code == code, error
    assert key is None or error.key == key, error
    assert connection.alive()


def test_a_source_that_is_too_long_is_refused(connection: raw.Connection, tmp_path: Path) -> None:
    m = Machine(tmp_path, "[limits]\nsource_bytes = 4096\n")
    with m.daemon, m.daemon.connect() as other:
        assert other.call("hello")["limits"]["source_bytes"] == 4096
        error = other.error("compile", {"source": ADD + "//" + "x" * 5000, "entries": ["add2_kernel"]})
        assert error.code == "limit_exceeded"
        assert error.detail["limit"] == 4096


def test_code_outlives_the_daemon_on_disk(tmp_path: Path) -> None:
    config = f"[cache]\ndirectory = {tmp_path}/cache\n"
    replies = []
    for i in range(2):
        (tmp_path / str(i)).mkdir()
        m = Machine(tmp_path / str(i), config)
        with m.daemon, m.daemon.connect() as connection:
            replies.append(compile_source(connection))
            if i == 0:
                proc.eventually(
                    lambda: any(e["on_disk"] for e in connection.call("cache", {"action": "list"})["entries"]),
                    "the code is on disk",
                )
    assert [r["cached"] for r in replies] == ["no", "disk"]
    assert replies[0]["entries"] == replies[1]["entries"]


def test_a_client_that_ends_takes_its_compile_with_it(machine: Machine, connect: Callable[[], raw.Connection]) -> None:
    slow = """template <int D, int P> struct B { static constexpr long v = B<D - 1, 2 * P>::v + B<D - 1, 2 * P + 1>::v; };
    template <int P> struct B<0, P> { static constexpr long v = P; };
    extern "C" __global__ void k(long* p) { *p = B<40, 1>::v; }"""
    other = connect()
    before = other.call("stats")["kernels"]
    connection = connect()
    connection.request("compile", {"source": slow, "entries": ["k"]})
    proc.eventually(
        lambda: other.call("stats")["kernels"]["compiles"] > before["compiles"], "the compile has begun"
    )
    connection.close()
    proc.eventually(lambda: other.call("stats")["counters"]["connections"] == 1, "only one connection is left")
    assert compile_source(other, ADD + "// after that\n")["cached"] == "no"


def test_a_compile_can_be_cancelled(connection: raw.Connection) -> None:
    slow = """template <int D, int P> struct B { static constexpr long v = B<D - 1, 2 * P>::v + B<D - 1, 2 * P + 1>::v; };
    template <int P> struct B<0, P> { static constexpr long v = P; };
    extern "C" __global__ void k(long* p) { *p = B<39, 1>::v; }"""
    msgid = connection.request("compile", {"source": slow, "entries": ["k"]})
    assert connection.call("cancel", {"msgid": msgid}) == {"cancelled": True}
    assert connection.reply_error(msgid).code == "cancelled"
    assert compile_source(connection)["module"]


# ---- declaring ----


@pytest.mark.parametrize(
    "change, code, key",
    [
        ({"module": 12345}, "unknown_kernel", "module"),
        ({"entry": "other"}, "unknown_kernel", "entry"),
        ({"params": ADD_PARAMS[:3]}, "signature_mismatch", "params"),
        ({"params": [*ADD_PARAMS[:3], scalar("n", "i64")]}, "signature_mismatch", "params[3]"),
        ({"params": [*ADD_PARAMS[:2], scalar("b", "i32"), scalar("n")]}, "signature_mismatch", None),
        ({"params": [*ADD_PARAMS[:3], scalar("c")]}, "invalid_argument", "params[3].name"),
        ({"params": [pointer("c", "both"), *ADD_PARAMS[1:]]}, "invalid_argument", "params[0].kind"),
        ({"params": [pointer("c", "out", "f77"), *ADD_PARAMS[1:]]}, "unknown_dtype", "params[0].dtype"),
        ({"params": [{"name": "c"}, *ADD_PARAMS[1:]]}, "missing_key", "params[0].kind"),
        ({"grid": ["ceil_div(m, 256)"]}, "invalid_argument", "grid[0]"),
        ({"grid": ["ceil_div(n, "]}, "invalid_argument", "grid[0]"),
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


# ---- launching ----


def test_a_launch_computes_on_the_clients_memory(connection: raw.Connection, vectors: list[Memory]) -> None:
    want = values(vectors[1]) + values(vectors[2])
    result = connection.call("launch", {"kernel": add_kernel(connection), "args": add_args(vectors)})
    assert np.array_equal(values(vectors[0]), want)
    assert result["variant"] == "user"
    assert result["timings"]["gpu_us"] > 0


@pytest.mark.parametrize("n", [1, 255, 257, 1000])
def test_odd_sizes(connection: raw.Connection, vectors: list[Memory], n: int) -> None:
    before, want = values(vectors[0]).copy(), (values(vectors[1]) + values(vectors[2]))[:n]
    connection.call("launch", {"kernel": add_kernel(connection), "args": add_args(vectors, n)})
    assert np.array_equal(values(vectors[0])[:n], want)
    assert np.array_equal(values(vectors[0])[n:], before[n:])


def test_nothing_to_do_is_done(connection: raw.Connection) -> None:
    empty = tensor(None, [0])
    result = connection.call("launch", {"kernel": add_kernel(connection), "args": [empty, empty, empty, 0]})
    assert "gpu_us" not in result["timings"] or result["timings"]["gpu_us"] >= 0


def test_shared_host_memory_is_staged(machine: Machine, connection: raw.Connection) -> None:
    shared = memfd.Shared(3 * 4 * N)
    buffer = connection.register(shared)
    data = shared.array().view(np.float32).reshape(3, N) if hasattr(shared, "array") else None
    if data is None:
        data = np.frombuffer(shared.map, np.float32).reshape(3, N)
    rng = np.random.default_rng()
    data[:] = rng.integers(1, 100, (3, N))
    want = data[1] + data[2]
    views = [tensor(buffer, [N], offset=4 * N * i) for i in range(3)]
    result = connection.call("launch", {"kernel": add_kernel(connection), "args": [*views, N]})
    assert np.array_equal(data[0], want)
    assert result["timings"]["h2d_us"] > 0 and result["timings"]["d2h_us"] > 0
    # What the kernel does not write stays.
    half = N // 2
    data[0] = 7
    views = [tensor(buffer, [N], offset=4 * N * i) for i in range(3)]
    connection.call("launch", {"kernel": add_kernel(connection), "args": [*views, half]})
    assert np.array_equal(data[0][:half], want[:half]) and (data[0][half:] == 7).all()
    del data


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


def test_repeats_give_samples(connection: raw.Connection, vectors: list[Memory]) -> None:
    kernel = add_kernel(connection)
    result = connection.call("launch", {"kernel": kernel, "args": add_args(vectors), "warmup": 2, "repeat": 5})
    assert len(result["timings"]["samples"]) == 5


def test_a_kernel_that_reads_what_it_writes_is_not_repeated(connection: raw.Connection, vectors: list[Memory]) -> None:
    params = [pointer("c", "inout"), *ADD_PARAMS[1:]]
    kernel = add_kernel(connection, params=params)
    error = connection.error("launch", {"kernel": kernel, "args": add_args(vectors), "repeat": 2})
    assert error.code == "invalid_argument" and error.key == "repeat"
    connection.call("launch", {"kernel": kernel, "args": add_args(vectors)})


def test_geometry_may_be_given_with_the_launch(connection: raw.Connection, vectors: list[Memory]) -> None:
    module = compile_source(connection)["module"]
    kernel = connection.call("kernel", {"module": module, "entry": "add2_kernel", "params": ADD_PARAMS})["kernel"]
    error = connection.error("launch", {"kernel": kernel, "args": add_args(vectors)})
    assert error.key == "grid"
    want = values(vectors[1]) + values(vectors[2])
    connection.call("launch", {"kernel": kernel, "args": add_args(vectors), "grid": [3], "block": [64]})
    assert np.array_equal(values(vectors[0]), want)


@pytest.mark.parametrize(
    "change, code, key",
    [
        ({"kernel": 77777}, "unknown_kernel", "kernel"),
        ({"args": []}, "invalid_argument", "args"),
        ({"args": {3: 1.5}}, "wrong_type", "args[3]"),
        ({"args": {3: 2**31}}, "out_of_range", "args[3]"),
        ({"args": {3: "x"}}, "wrong_type", "args[3]"),
        ({"args": {3: N + 1}}, "shape_mismatch", "args[1]"),
        ({"args": {0: 5}}, "wrong_type", "args[0]"),
        ({"args": {1: {"dtype": "f64", "shape": [N // 2]}}}, "dtype_mismatch", "args[1]"),
        ({"args": {1: {"strides": [2], "shape": [N // 2]}}}, None, "args[1]"),
        ({"args": {1: {"shape": [2 * N]}}}, "out_of_bounds", "args[1]"),
        ({"args": {1: {"buffer": 999, "ipc": None}}}, None, None),
        ({"grid": [0]}, None, "grid[0]"),
        ({"grid": [2**40]}, None, "grid[0]"),
        ({"grid": [1, 65536]}, None, "grid[1]"),
        ({"block": [1025]}, None, None),
        ({"block": [32, 64]}, None, "block"),
        ({"block": [0]}, None, "block[0]"),
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


def test_alignment_is_checked(connection: raw.Connection, vectors: list[Memory]) -> None:
    params = [ADD_PARAMS[0], pointer("a", "in", align=16), *ADD_PARAMS[2:]]
    kernel = add_kernel(connection, params=params)
    args = add_args(vectors, 8)
    args[1] = {**args[1], "offset": 4}
    error = connection.error("launch", {"kernel": kernel, "args": args})
    assert error.code == "misaligned" and error.key == "args[1]"


def test_null_pointers(connection: raw.Connection, vectors: list[Memory]) -> None:
    params = [pointer("c", "out"), pointer("a", "in"), pointer("b", "in"), scalar("n")]
    kernel = add_kernel(connection, params=params, grid=[1])
    c, a, _, _ = add_args(vectors)
    connection.call("launch", {"kernel": kernel, "args": [c, a, None, 0]})  # it reads none of them
    error = connection.error("launch", {"kernel": add_kernel(connection), "args": [c, a, None, 4]})
    assert error.key == "args[2]"


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


def test_kernels_and_ops_in_one_sequence(connection: raw.Connection, vectors: list[Memory]) -> None:
    a, b = values(vectors[1]).copy(), values(vectors[2]).copy()
    ops = [
        {"kernel": add_kernel(connection), "args": [0, 1, 2, N]},
        {"op": "add", "in": [0, 1], "out": [3]},
        {"kernel": custom_kernel(connection), "args": [0, 3, N]},
    ]
    tensors = [v.inline([N]) for v in vectors]
    result = connection.call("sequence", {"tensors": tensors, "ops": ops})
    assert np.array_equal(values(vectors[0]), 2 * (a + b + a))
    assert result["variants"][0] == result["variants"][2] == "user"


def test_a_program_with_kernels_runs_again_on_other_memory(connection: raw.Connection, vectors: list[Memory]) -> None:
    a, b = values(vectors[1]).copy(), values(vectors[2]).copy()
    kernel = custom_kernel(connection)
    buffers = [connection.call("register", v.register_params())["buffer"] for v in vectors]
    ops = [
        {"kernel": add_kernel(connection), "args": [0, 1, 2, N]},
        {"kernel": kernel, "args": [1, 0, N]},
    ]
    program = connection.call("program", {"tensors": [tensor(i, [N]) for i in buffers[:3]], "ops": ops})["program"]
    connection.call("release", {"kernel": kernel})  # the program keeps it
    for _ in range(3):
        connection.call("run_program", {"program": program})
    a3 = a
    for _ in range(3):
        c = a3 + b
        a3 = 2 * c
    assert np.array_equal(values(vectors[0]), c) and np.array_equal(values(vectors[1]), a3)
    bind = [{"index": 0, "buffer": buffers[3]}]
    connection.call("run_program", {"program": program, "bind": bind})
    assert np.array_equal(values(vectors[3]), a3 + b)


@pytest.mark.parametrize(
    "change, code, key",
    [
        ({"op": "add"}, "invalid_argument", "ops[0].op"),
        ({"in": [0]}, "invalid_argument", "ops[0].in"),
        ({"args": [0, 1, 9, N]}, "out_of_range", "ops[0].args[2]"),
        ({"args": [0, 1, 2.5, N]}, "wrong_type", "ops[0].args[2]"),
        ({"args": [0, 1, 2, N + 1]}, "shape_mismatch", "ops[0].args[1]"),
        ({"args": [0, 1, 0, N]}, "overlap", "ops[0].args[0]"),
        ({"kernel": 4711}, "unknown_kernel", "ops[0].kernel"),
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


def test_an_op_takes_no_args(connection: raw.Connection, vectors: list[Memory]) -> None:
    op = {"op": "add", "in": [0, 1], "out": [2], "args": [1]}
    error = connection.error("sequence", {"tensors": [v.inline([N]) for v in vectors], "ops": [op]})
    assert error.code == "invalid_argument" and error.key == "ops[0].args"


# ---- statistics ----


def test_stats_know_user_kernels(connection: raw.Connection, vectors: list[Memory]) -> None:
    kernel = custom_kernel(connection)
    args = [vectors[0].inline([N]), vectors[1].inline([N]), N]
    for _ in range(3):
        connection.call("launch", {"kernel": kernel, "args": args})
    stats = connection.call("stats", {"op": "custom_kernel"})
    rows = [r for r in stats["ops"] if r["shapes"] == [[N], [N]]]
    assert len(rows) == 1 and rows[0]["op"] == "custom_kernel" and rows[0]["variant"] == "user"
    assert rows[0]["count"] >= 3
    assert stats["kernels"]["launches"] >= 3
    assert connection.error("stats", {"op": "never_launched"}).code == "unknown_op"


# ---- what goes wrong on the device ----


def test_a_kernel_that_never_ends_is_reported_and_the_device_freed(tmp_path: Path) -> None:
    m = Machine(tmp_path, "[server]\njob_timeout_s = 1\n")
    with m.daemon:
        exporter = m.exporter()
        memory = exporter.alloc(4 * N)
        memory.write(bytes(4 * N))
        connection, other = m.daemon.connect(), m.daemon.connect()
        module = compile_source(connection, OTHERS, "spin_forever")["module"]
        kernel = declare(
            connection, module, entry="spin_forever", params=[pointer("p", "inout")], grid=[1], block=[1]
        )
        error = connection.error("launch", {"kernel": kernel, "args": [memory.inline([N])]})
        assert error.code == "job_timeout" and "spin_forever" in error.message
        assert m.daemon.wait() == DEVICE_LOST_STATUS
        assert "event=job_timeout" in m.daemon.log() and "what=\"spin_forever [1024] f32\"" in m.daemon.log()
        m.daemon.process = None
        connection.close()
        other.close()
        exporter.close()


def test_a_kernel_that_faults_ends_the_daemon(tmp_path: Path) -> None:
    m = Machine(tmp_path)
    with m.daemon:
        exporter = m.exporter()
        memory = exporter.alloc(4 * N)
        with m.daemon.connect() as connection:
            module = compile_source(connection, OTHERS, "fault_kernel")["module"]
            kernel = declare(
                connection, module, entry="fault_kernel", params=[pointer("p", "inout")], grid=[1], block=[1]
            )
            error = connection.error("launch", {"kernel": kernel, "args": [memory.inline([N])]})
            assert error.code == "device_lost"
            assert m.daemon.wait() == DEVICE_LOST_STATUS
            m.daemon.process = None
        exporter.close()


def test_nothing_is_left_of_a_connection(machine: Machine, connect: Callable[[], raw.Connection]) -> None:
    """Its modules and kernels go with it; the code stays for others."""
    with machine.daemon.connect() as connection:
        for _ in range(5):
            add_kernel(connection)
    survivor = connect()
    assert compile_source(survivor)["cached"] == "memory"


def test_compiles_run_beside_each_other(tmp_path: Path) -> None:
    m = Machine(tmp_path, env={"KOPSD_KERNELS_HELPERS": "4"})
    connections = [m.daemon.connect() for _ in range(4)]
    results: list[Any] = [None] * 4

    def work(i: int) -> None:
        results[i] = compile_source(connections[i], ADD + f"// beside {i}\n")["cached"]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["no"] * 4
    for connection in connections:
        connection.close()
    with m.daemon:
        pass


