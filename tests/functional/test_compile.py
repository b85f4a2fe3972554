"""Sources that clients bring become modules, and entries of modules kernels: once for everybody, or a clear error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import user_kernels as kernels
from gpu_machine import FIXTURES, Machine, only_with_the_standin
from support import proc, raw
from user_kernels import (
    ADD,
    ADD_PARAMS,
    ARCH,
    add_kernel,
    compile_source,
    only_with_nvrtc,
    pointer,
    scalar,
)

pytestmark = [only_with_the_standin, only_with_nvrtc]
shared_machine, machine, connect, connection, exporter = FIXTURES
compilers, steady, vectors = kernels.FIXTURES


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
def test_a_source_that_does_not_compile_answers_with_the_log(connection: raw.Connection, source: str, wanted: str) -> None:
    error = connection.error("compile", {"source": source, "entries": ["k"], "name": "k.cu"})
    assert error.code == "compile_failed" and error.detail["reason"] == "source"
    assert wanted in error.detail["log"]
    assert "root:" not in error.detail["log"]
    assert connection.alive()


def test_a_log_does_not_say_which_files_there_are(connection: raw.Connection) -> None:
    logs = []
    for path in ("/etc/passwd", "/etc/nobody"):
        source = f'#include "{path}"\nextern "C" __global__ void k() {{}}'
        logs.append(connection.error("compile", {"source": source, "entries": ["k"]}).detail["log"].replace(path, "FILE"))
    assert logs[0] == logs[1]


def test_an_entry_that_is_not_there_is_named(connection: raw.Connection) -> None:
    error = connection.error("compile", {"source": ADD, "entries": ["add2_kernel", "sub2_kernel"]})
    assert error.code == "compile_failed" and error.detail["reason"] == "entry"
    assert "sub2_kernel" in error.message


def test_an_endless_instantiation_is_ended_by_the_limit() -> None:
    source = """template <int D, int P> struct B { static constexpr long v = B<D - 1, 2 * P>::v + B<D - 1, 2 * P + 1>::v; };
    template <int P> struct B<0, P> { static constexpr long v = P; };
    extern "C" __global__ void k(long* p) { *p = B<40, 1>::v; }"""
    m = Machine("[kernels]\ntime_s = 3\n")  # the source behind it is compiled in less on any machine
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


def test_a_source_that_is_too_long_is_refused(connection: raw.Connection) -> None:
    m = Machine("[limits]\nsource_bytes = 4096\n")
    with m.daemon, m.daemon.connect() as other:
        assert other.call("hello")["limits"]["source_bytes"] == 4096
        error = other.error("compile", {"source": ADD + "//" + "x" * 5000, "entries": ["add2_kernel"]})
        assert error.code == "limit_exceeded"
        assert error.detail["limit"] == 4096


def test_code_outlives_the_daemon_on_disk(tmp_path: Path) -> None:
    config = f"[cache]\ndirectory = {tmp_path}/cache\n"
    replies = []
    for i in range(2):
        m = Machine(config)
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
    proc.eventually(lambda: other.call("stats")["kernels"]["compiles"] > before["compiles"], "the compile has begun")
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


# ---- many ----


def test_nothing_is_left_of_a_connection(machine: Machine, connect: Callable[[], raw.Connection]) -> None:
    """Its modules and kernels go with it; the code stays for others."""
    with machine.daemon.connect() as connection:
        for _ in range(5):
            add_kernel(connection)
    survivor = connect()
    assert compile_source(survivor)["cached"] == "memory"


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


def test_compiles_run_beside_each_other() -> None:
    m = Machine(env={"KOPSD_KERNELS_HELPERS": "4"})
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
