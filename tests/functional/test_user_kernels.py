"""Kernels that clients bring, launched as the ops are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import user_kernels as kernels
from gpu_machine import FIXTURES, Machine, N, only_with_the_standin, reuse, values
from support import expressions, memfd, raw
from support.cuda_exporter import Exporter, Memory
from support.expressions import EXPRESSIONS, SHAPE
from support.raw import tensor
from user_kernels import (
    ADD_PARAMS,
    OTHERS,
    add_args,
    add_kernel,
    compile_source,
    custom_kernel,
    declare,
    hostile_kernel,
    only_with_nvrtc,
    pointer,
    scalar,
)

pytestmark = [only_with_the_standin, only_with_nvrtc]
shared_machine, machine, connect, connection, _ = FIXTURES
compilers, steady, vectors = kernels.FIXTURES


@pytest.fixture(scope="module")
def exporter(shared_machine: Machine) -> Iterator[Exporter]:
    process = shared_machine.exporter()
    yield process
    process.close()


# ---- launching ----


@pytest.mark.parametrize("n", [1, 255, 257, N])
def test_a_launch_computes_on_the_clients_memory(connection: raw.Connection, vectors: list[Memory], n: int) -> None:
    before, want = values(vectors[0]).copy(), (values(vectors[1]) + values(vectors[2]))[:n]
    result = connection.call("launch", {"kernel": add_kernel(connection), "args": add_args(vectors, n)})
    assert np.array_equal(values(vectors[0])[:n], want)
    assert np.array_equal(values(vectors[0])[n:], before[n:])
    assert result["variant"] == "user"
    assert result["timings"]["gpu_us"] > 0


def test_nothing_to_do_is_done(connection: raw.Connection) -> None:
    empty = tensor(None, [0])
    result = connection.call("launch", {"kernel": add_kernel(connection), "args": [empty, empty, empty, 0]})
    assert "gpu_us" not in result["timings"] or result["timings"]["gpu_us"] >= 0


def test_shared_host_memory_is_staged(connection: raw.Connection) -> None:
    shared = memfd.Shared(3 * 4 * N)
    buffer = connection.register(shared)
    data = np.frombuffer(shared.map, np.float32).reshape(3, N)
    data[:] = np.random.default_rng().integers(1, 100, (3, N))
    want = data[1] + data[2]
    views = [tensor(buffer, [N], offset=4 * N * i) for i in range(3)]
    result = connection.call("launch", {"kernel": add_kernel(connection), "args": [*views, N]})
    assert np.array_equal(data[0], want)
    assert result["timings"]["h2d_us"] > 0 and result["timings"]["d2h_us"] > 0
    # What the kernel does not write stays.
    half = N // 2
    data[0] = 7
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


def test_a_kernel_reads_whatever_its_process_has_mapped(connection: raw.Connection, exporter: Exporter, vectors: list[Memory]) -> None:
    """No argument names the memory that it reads."""
    out, secret, told = *vectors[:2], exporter.alloc(8)
    args = [told.inline([1], dtype="u64"), secret.inline([N])]
    connection.call("launch", {"kernel": hostile_kernel(connection, "tell_address"), "args": args})
    args = [out.inline([N], dtype="u32"), int.from_bytes(told.read(8), "little"), N]
    connection.call("launch", {"kernel": hostile_kernel(connection, "read_range"), "args": args})
    assert out.read(4 * N) == secret.read(4 * N)


def test_a_kernel_takes_its_time(connection: raw.Connection, exporter: Exporter) -> None:
    runs = exporter.alloc(4)
    runs.write(bytes(4))
    launch = {"kernel": hostile_kernel(connection, "run_for"), "args": [runs.inline([1], dtype="u32"), 20000]}
    timings = connection.call("launch", launch)["timings"]
    # What events add is taken off, which was measured when the daemon began: much, where the machine had much else to do then.
    assert timings["wall_us"] >= 20000 and timings["gpu_us"] > 10000
    assert runs.read(4) == (1).to_bytes(4, "little")


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
        ({"args": {3: N + 1}}, "shape_mismatch", "args[1]"),
        ({"args": {0: 5}}, "wrong_type", "args[0]"),
        ({"args": {1: {"dtype": "f64", "shape": [N // 2]}}}, "dtype_mismatch", "args[1]"),
        ({"args": {1: {"shape": [2 * N]}}}, "out_of_bounds", "args[1]"),
        ({"args": {1: {"buffer": 999, "ipc": None}}}, None, None),
        ({"grid": [0]}, None, "grid[0]"),
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


@pytest.mark.parametrize("text", ["ceil_div(n, 2)", "p.shape[-1]", "p.shape[2]", "1 +"])
def test_expressions(connection: raw.Connection, exporter: Exporter, text: str) -> None:
    """What one says is seen by asking for more elements than there are. All of them: tests/rules."""
    base = 1_000_000
    module = compile_source(connection, OTHERS, "custom_kernel")["module"]
    params = [pointer("out", "out"), pointer("p", "in"), scalar("n")]
    params[0]["elements"] = f"{base} + ({text})" if EXPRESSIONS[text] is not None else text
    declaration = {"module": module, "entry": "custom_kernel", "params": params, "grid": [1], "block": [1]}
    reply = connection.reply(connection.request("kernel", declaration))
    if reply.error is None:
        out, p = exporter.alloc(4 * N), exporter.alloc(4 * N)
        args = [out.inline([1]), p.inline(list(SHAPE)), expressions.N]
        error = connection.error("launch", {"kernel": reply.result["kernel"], "args": args})
    else:
        error = raw.RpcError(reply.error)
    wanted = EXPRESSIONS[text]
    assert error.detail.get("needed") == (None if wanted is None else base + wanted), error


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
