"""Sources that clients bring become modules, and entries of modules kernels: once for everybody, or a clear error."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import user_kernels as kernels
from gpu_machine import FIXTURES, Machine, only_with_the_standin
from support import backends, proc, raw
from support.kernels import ENDLESS
from support.users import as_root
from user_kernels import ADD, ADD_PARAMS, ARCH, compile_source, only_with_nvrtc, pointer, scalar

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


@pytest.mark.parametrize(
    "line, wanted",
    [
        ("*p = ;", "k.cu(1)"),
        ('\n#include "nowhere.h"\n', "nowhere.h"),
        ('\n#include "/etc/passwd"\n', "/etc/passwd"),
        ('\n#include "../../../../../../etc/passwd"\n', "passwd"),
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


def test_an_entry_that_is_not_there_is_named(connection: raw.Connection) -> None:
    error = connection.error("compile", {"source": ADD, "entries": ["add2_kernel", "sub2_kernel"]})
    assert error.code == "compile_failed" and error.detail["reason"] == "entry"
    assert "sub2_kernel" in error.message


def test_an_endless_instantiation_is_ended_by_the_limit() -> None:
    m = Machine("[kernels]\ntime_s = 3\n")  # the source behind it is compiled in less on any machine
    with m.daemon, m.daemon.connect() as connection:
        error = connection.error("compile", {"source": ENDLESS, "entries": ["k"]})
        assert error.code == "compile_failed" and error.detail["reason"] in ("time", "memory"), error
        assert compile_source(connection)["module"]


@pytest.mark.parametrize(
    "change, code, key",
    [
        ({"options": ["--pch"]}, "invalid_argument", "options[0]"),
        ({"options": [3]}, "wrong_type", "options[0]"),
        ({"entries": []}, "invalid_argument", "entries"),
        ({"entries": ["a b; c"]}, "invalid_argument", "entries[0]"),
        ({"entries": ["k"] * 65}, None, "entries"),
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


def test_a_source_that_is_too_long_is_refused() -> None:
    """It has most of a request, also after a reload."""
    m = Machine("[limits]\nmessage_bytes = 65536\n")
    with m.daemon, m.daemon.connect() as other:
        assert other.call("hello")["limits"]["source_bytes"] == 62500
        error = other.error("compile", {"source": ADD + "//" + "x" * 63000, "entries": ["add2_kernel"]})
        assert error.code == "limit_exceeded"
        assert error.detail["limit"] == 62500


def test_a_client_that_ends_takes_its_compile_with_it(connect: Callable[[], raw.Connection]) -> None:
    other, connection = connect(), connect()
    before = other.call("stats")["kernels"]
    connection.request("compile", {"source": ENDLESS, "entries": ["k"]})
    proc.eventually(lambda: other.call("stats")["kernels"]["compiles"] > before["compiles"], "the compile has begun")
    connection.close()
    proc.eventually(lambda: other.call("stats")["counters"]["connections"] == 1, "only one connection is left")
    assert compile_source(other, ADD + "// after that\n")["cached"] == "no"


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
        ({"entry": "other"}, "unknown_kernel", "entry"),
        ({"params": ADD_PARAMS[:3]}, "signature_mismatch", "params"),
        ({"params": [*ADD_PARAMS[:3], scalar("n", "i64")]}, "signature_mismatch", "params[3]"),
        ({"params": [pointer("c", "both"), *ADD_PARAMS[1:]]}, "invalid_argument", "params[0].kind"),
        ({"params": [pointer("c", "out", "f77"), *ADD_PARAMS[1:]]}, "unknown_dtype", "params[0].dtype"),
        ({"params": [{"name": "c"}, *ADD_PARAMS[1:]]}, "missing_key", "params[0].kind"),
        ({"grid": ["ceil_div(m, 256)"]}, "invalid_argument", "grid[0]"),
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


def test_a_second_program_does_not_wait_for_all_that_the_first_asked_for() -> None:
    m = Machine(env={"KOPSD_KERNELS_HELPERS": "1"})
    with m.daemon, m.daemon.connect() as first, m.daemon.connect() as second, m.daemon.connect() as watcher:
        compile_source(watcher)  # from here on the compiler runs
        before = watcher.call("stats")["kernels"]["compiles"]
        for i in range(8):
            first.request("compile", {"source": ADD + f"// the first's {i}\n", "entries": ["add2_kernel"]})
        proc.eventually(lambda: watcher.call("stats")["kernels"]["compiles"] > before, "the first one's sources are compiled")
        compile_source(second, ADD + "// the second's\n")
        assert watcher.call("stats")["kernels"]["compiles"] - before <= 8


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
