"""Who gets the compiler when many want it, and whom the end of one of its processes hurts: nobody else."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from gpu_machine import Machine, only_with_the_standin
from support import backends, proc
from user_kernels import ADD, compile_source, only_with_nvrtc

pytestmark = [only_with_the_standin, only_with_nvrtc]

MANY = 8


def test_a_second_program_does_not_wait_for_all_that_the_first_asked_for() -> None:
    m = Machine(env={"KOPSD_KERNELS_HELPERS": "1"})
    with m.daemon, m.daemon.connect() as first, m.daemon.connect() as second, m.daemon.connect() as watcher:
        compile_source(watcher)  # from here on the compiler runs
        before = watcher.call("stats")["kernels"]["compiles"]
        for i in range(MANY):
            first.request("compile", {"source": ADD + f"// the first's {i}\n", "entries": ["add2_kernel"]})
        proc.eventually(lambda: watcher.call("stats")["kernels"]["compiles"] > before, "the first one's sources are compiled")
        compile_source(second, ADD + "// the second's\n")
        assert watcher.call("stats")["kernels"]["compiles"] - before <= MANY


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's compiler is another user")
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


def forker(daemon: int) -> int:
    """The helper that forks."""
    return proc.only(lambda: proc.executors(daemon, "compile-helper"), "there is one helper that forks")


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
            kill(forker(m.daemon.pid))
            seen = compiles()
            if i % 2:  # or the next one while it starts
                proc.eventually(lambda seen=seen: compiles() > min(seen, before + len(waiting) - 1), "the next source is compiled")
        for connection, msgid in waiting:
            assert connection.reply(msgid).get()["module"]


def test_a_compile_whose_process_is_killed_is_repeated_once() -> None:
    slow = """template <int D, int P> struct B { static constexpr long v = B<D - 1, 2 * P>::v + B<D - 1, 2 * P + 1>::v; };
    template <int P> struct B<0, P> { static constexpr long v = P; };
    extern "C" __global__ void k(long* p) { *p = B<40, 1>::v; }"""
    m = Machine(env={"KOPSD_KERNELS_HELPERS": "2"})
    with m.daemon, m.daemon.connect() as connection, m.daemon.connect() as other:
        compile_source(other)
        helper = forker(m.daemon.pid)
        msgid = connection.request("compile", {"source": slow, "entries": ["k"]})

        def compiling() -> list[int]:
            """Those that have used processor time for a while: what is kept ready has not."""
            return [p for p in children(helper) if ticks(p) > 30]

        for _ in range(2):
            pid = proc.only(compiling, "the source is compiled")
            kill(pid)
            proc.eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "it has ended")
            assert compile_source(other, ADD + f"// beside {pid}\n")["cached"] == "no"
        assert connection.reply_error(msgid).detail["reason"] == "crash"
