"""Who may bring code and look after its cache, on a daemon without a GPU; that compilers leave nothing behind; and headers
that an administrator has installed for every source (kernels.include_extra)."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from gpu_machine import only_with_nvrtc, wait_for_compilers
from support import memfd, proc, raw
from support.daemon import Daemon, binary, check_config
from support.kernels import ADD, ADD_PARAMS, ARCH, compile_source
from support.users import OPEN, STRANGER, as_root
from test_socket import refused

pytestmark = only_with_nvrtc

HOST = "[cuda]\ndriver = none\n"
CLUB = 54399


@pytest.fixture
def start() -> Iterator[Callable[[str], Daemon]]:
    daemons: list[Daemon] = []

    def new(config: str) -> Daemon:
        daemons.append(Daemon(config=config))
        os.chmod(daemons[-1].folder, 0o755)
        return daemons[-1]

    yield new
    for daemon in daemons:
        with daemon:
            pass


def as_user(uid: int, groups: list[int], what: Callable[[], None]) -> None:
    """Runs it in a child process of that user."""
    pid = os.fork()
    if not pid:
        try:
            os.setgroups(groups)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            what()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def expect(daemon: Daemon, allowed: bool) -> None:
    with daemon.connect() as connection:
        hello = connection.call("hello")
        assert hello["kernels"]["allowed"] == allowed
        assert ("compile" in hello["features"]) == allowed
        assert "kernels" not in hello["features"]  # there is no GPU
        params = {"source": ADD, "entries": ["add2_kernel"], "arch": ARCH}
        if allowed:
            assert connection.call("compile", params)["arch"] == ARCH
        else:
            assert connection.error("compile", params).code == "permission_denied"


def test_the_owner_compiles_without_a_gpu(start: Callable[[str], Daemon]) -> None:
    daemon = start(HOST)
    expect(daemon, True)
    with daemon.connect() as connection:
        assert connection.call("hello")["kernels"]["compiler"].startswith("NVRTC ")
        assert connection.call("hello")["kernels"]["arch"] == [""]
        error = connection.error("compile", {"source": ADD, "entries": ["add2_kernel"]})
        assert error.code == "missing_key" and error.key == "arch"
        module = compile_source(connection, arch=ARCH)["module"]
        error = connection.error("kernel", {"module": module, "entry": "add2_kernel", "params": ADD_PARAMS})
        assert error.code == "unsupported"


def test_kopsctl_names_its_option_where_there_is_no_gpu(start: Callable[[str], Daemon], tmp_path: Path) -> None:
    daemon = start(HOST)
    (tmp_path / "add2.cu").write_text(ADD, encoding="utf-8")
    command = [str(binary("kopsctl")), "--socket", daemon.socket_path, "compile", str(tmp_path / "add2.cu")]
    without = subprocess.run(command, capture_output=True, text=True, check=False)
    assert without.returncode == 1 and "no GPU" in without.stderr and "--arch sm_" in without.stderr
    assert "add2_kernel" in subprocess.run([*command, "--arch", ARCH], capture_output=True, text=True, check=True).stdout


@as_root
@pytest.mark.parametrize(
    "policy, groups, allowed",
    [("off", [], False), ("owner", [], False), (f"@{CLUB}", [], False), (f"@{CLUB}", [CLUB], True), ("all", [], True)],
)
def test_others_compile_by_policy(start: Callable[[str], Daemon], policy: str, groups: list[int], allowed: bool) -> None:
    daemon = start(HOST + OPEN + f"[kernels]\nuser_kernels = {policy}\n")
    expect(daemon, policy != "off")
    as_user(STRANGER, groups, lambda: expect(daemon, allowed))
    assert ("event=refuse" in daemon.log()) == (not allowed)


@pytest.mark.parametrize("arch", [{"arch": ARCH}, {}], ids=["arch", "no arch"])
def test_without_a_compiler_it_is_said(start: Callable[[str], Daemon], arch: dict[str, str]) -> None:
    """Also to who says no architecture: the key would not help."""
    daemon = start(HOST + "[kernels]\nnvrtc = none\n")
    with daemon.connect() as connection:
        hello = connection.call("hello")
        assert hello["kernels"]["compiler"] == "" and "compile" not in hello["features"]
        error = connection.error("compile", {"source": ADD, "entries": ["add2_kernel"], **arch})
        assert error.code == "unsupported" and "kernels.nvrtc" in error.message


@pytest.mark.parametrize(
    "setting",
    ["user_kernels = some", "user_kernels = group", "user_kernels = @no-such-group-here", "hand_out = @no-such-group", "hand_out = auto"],
)
def test_a_wrong_setting_is_refused_at_start(setting: str, tmp_path: Path) -> None:
    path = tmp_path / "kopsd.conf"
    path.write_text(f"[kernels]\n{setting}\n", encoding="utf-8")
    done = check_config(path)
    assert done.returncode == 2 and "kernels." in done.stderr


# ---- the cache ----


def wait_for_disk(connection: raw.Connection) -> None:
    proc.eventually(lambda: any(e["on_disk"] for e in connection.call("cache", {"action": "list"})["entries"]), "it is on disk")


def test_the_cache_is_listed_exported_cleared_and_imported(start: Callable[[str], Daemon]) -> None:
    daemon = start(HOST)
    with daemon.connect() as connection:
        key = compile_source(connection, arch=ARCH)["key"]
        wait_for_disk(connection)
        (entry,) = connection.call("cache", {"action": "list"})["entries"]
        assert entry["key"] == key and entry["names"] == ["add2_kernel"] and entry["arch"] == ARCH
        assert entry["in_memory"]
        files = [p for p in (daemon.folder / "cache").rglob("*") if p.is_file()]
        assert files and all(not stat.S_IMODE(p.stat().st_mode) & 0o077 for p in files)
        assert not stat.S_IMODE((daemon.folder / "cache").stat().st_mode) & 0o077

        reply = connection.reply(connection.request("cache", {"action": "export"}))
        assert reply.get()["nfds"] == 1
        (fd,) = reply.fds
        archive = os.pread(fd, reply.get()["bytes"] + 1, 0)
        assert len(archive) == reply.get()["bytes"]
        assert connection.call("cache", {"action": "clear"}) == {"removed": 1}
        assert connection.call("cache", {"action": "list"})["entries"] == []
        assert connection.call("cache", {"action": "import", "fd": 0}, [fd]) == {"imported": 1, "skipped": 0}
        assert compile_source(connection, arch=ARCH)["cached"] in ("memory", "disk")
        os.close(fd)

        broken = memfd.Shared(len(archive))
        os.pwrite(broken.fd, archive[:-1] + bytes([archive[-1] ^ 1]), 0)
        error = connection.error("cache", {"action": "import", "fd": 0}, [broken.fd])
        assert error.code == "invalid_argument"
        assert connection.alive()


@pytest.mark.parametrize(
    "params, code, key",
    [
        ({"action": "burn"}, "invalid_argument", "action"),
        ({}, "missing_key", "action"),
        ({"action": "clear", "key": "00"}, "invalid_argument", "key"),
        ({"action": "clear", "key": "0" * 64}, "invalid_argument", "key"),
        ({"action": "import"}, "missing_key", "fd"),
        ({"action": "import", "fd": 0}, "invalid_fd", "fd"),
    ],
)
def test_a_cache_action_that_is_refused(
    start: Callable[[str], Daemon], params: dict[str, Any], code: str, key: str
) -> None:
    with start(HOST).connect() as connection:
        error = connection.error("cache", params)
        assert error.code == code and error.key == key, error


# ---- nothing is left ----


def helpers_of(pid: int) -> set[int]:
    """Every process below it that compiles."""
    found, look = set(), [pid]
    while look:
        children = proc.executors(look.pop(), "compile-helper")
        found.update(children)
        look += children
    return found


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_compiler_outlives_its_daemon(start: Callable[[str], Daemon], how: signal.Signals) -> None:
    daemon = start(HOST)
    with daemon.connect() as connection:
        compile_source(connection, arch=ARCH)
        helpers = []
        for pid in helpers_of(daemon.pid):
            with suppress(ProcessLookupError):  # one that has ended since
                helpers.append(os.pidfd_open(pid))
        assert helpers
        os.kill(daemon.pid, how)
        assert daemon.process is not None
        daemon.process.wait(raw.PATIENCE)
        daemon.process = None
    for pidfd in helpers:
        proc.wait_exit(pidfd)
        os.close(pidfd)


@as_root
def test_compilers_are_somebody_else(start: Callable[[str], Daemon]) -> None:
    daemon = start(HOST)
    with daemon.connect() as connection:
        compile_source(connection, arch=ARCH)
        texts = []
        for pid in helpers_of(daemon.pid):
            with suppress(FileNotFoundError, ProcessLookupError):  # one that has ended since
                texts.append(Path(f"/proc/{pid}/status").read_text())
        assert texts
        for text in texts:
            uids = next(line for line in text.splitlines() if line.startswith("Uid:")).split()[1:]
            assert "0" not in uids
            assert "Seccomp:\t2" in text and "NoNewPrivs:\t1" in text


def test_compiles_leave_nothing_in_the_daemon(start: Callable[[str], Daemon]) -> None:
    daemon = start(HOST)
    with daemon.connect() as connection:
        compile_source(connection, arch=ARCH)
        wait_for_compilers(daemon.pid, connections=1)
        before = daemon.holdings()
        for i in range(6):
            source = ADD + f"// {i}\n" if i % 2 else ADD + f"#error {i}\n"
            params = {"source": source, "entries": ["add2_kernel"], "arch": ARCH}
            assert (connection.reply(connection.request("compile", params)).error is None) == bool(i % 2)
        daemon.wait_holdings(before)
        proc.eventually(lambda: len(helpers_of(daemon.pid)) <= 3, "spent compilers are gone")


SOURCE = """#include <small/scale.h>
extern "C" __global__ void scaled(float* x) { *x = small::scale(*x); }
"""


@pytest.fixture
def tree() -> Iterator[Path]:
    """A tree that the compiler's user reaches, too."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        root = Path(folder) / "include"
        for path in (root, root / "small", root / "small/detail"):
            path.mkdir(mode=0o755)
        write(root / "small/scale.h", '#pragma once\n#include <small/detail/factor.h>\n#include "detail/name.h"\nnamespace small {\n'
              "__device__ float scale(float x) { return FACTOR * x; }\n}\n")  # fmt: skip
        write(root / "small/detail/factor.h", "#define FACTOR 2\n")
        write(root / "small/detail/name.h", "\n")
        yield root


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    os.chmod(path, 0o644)


@pytest.fixture
def with_trees(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    started: list[Daemon] = []

    def make(*trees: Path) -> Daemon:
        more = f"[kernels]\ninclude_extra = {':'.join(map(str, trees))}\n[cache]\ndirectory = {tmp_path / 'cache'}\n"
        started.append(Daemon(config=HOST + more))
        return started[-1]

    yield make
    for daemon in started:
        daemon.stop()


def compiled(daemon: Daemon, source: str = SOURCE, entry: str = "scaled") -> dict[str, Any]:
    with daemon.connect() as connection:
        return connection.call("compile", {"source": source, "entries": [entry], "arch": ARCH})


def test_sources_include_headers_of_the_trees_alone(with_trees: Callable[..., Daemon], tree: Path) -> None:
    second = tree.parent / "second"
    second.mkdir(mode=0o755)
    write(second / "own.h", "#define OWN 1\n")
    daemon = with_trees(tree, second)
    with daemon.connect() as connection:
        assert connection.call("hello")["kernels"]["include_extra"] == [str(tree), str(second)]
    assert [compiled(daemon, "#include <own.h>\n" + SOURCE)["cached"] for _ in range(2)] == ["no", "memory"]
    with with_trees().connect() as connection:
        assert "include_extra" not in connection.call("hello")["kernels"]
        error = connection.error("compile", {"source": SOURCE, "entries": ["scaled"], "arch": ARCH})
        assert error.code == "compile_failed" and "small/scale.h" in error.detail["log"]


def not_started(tmp_path: Path, *trees: Path | str) -> str:
    return refused(tmp_path / "socket", "--set", f"kernels.include_extra={':'.join(map(str, trees))}")


def test_nothing_beside_it_is_read(with_trees: Callable[..., Daemon], tree: Path) -> None:
    write(tree.parent / "secret.h", "#define SECRET 1\n")
    (tree / "link.h").symlink_to(tree.parent / "secret.h")
    daemon = with_trees(tree)
    for name in (tree.parent / "secret.h", tree / "../secret.h", "link.h"):
        with daemon.connect() as connection:
            source = f'#include "{name}"\nextern "C" __global__ void f(float* x) {{ *x = SECRET; }}\n'
            error = connection.error("compile", {"source": source, "entries": ["f"], "arch": ARCH})
            assert error.code == "compile_failed", name


def test_keys_stand_for_its_contents(with_trees: Callable[..., Daemon], tree: Path) -> None:
    first = compiled(with_trees(tree))
    os.utime(tree / "small/scale.h", (1, 1))  # the same contents
    again = compiled(with_trees(tree))
    assert again["key"] == first["key"] and again["cached"] == "disk"
    write(tree / "small/detail/factor.h", "#define FACTOR 3\n")
    other = compiled(with_trees(tree))
    assert other["key"] != first["key"] and other["cached"] == "no"
    write(tree / "small/detail/factor.h", "#define FACTOR 2\n")
    assert compiled(with_trees(tree))["key"] == first["key"]


@pytest.mark.parametrize("change", ["edit", "add", "remove"])
def test_a_change_under_a_daemon_is_noticed(with_trees: Callable[..., Daemon], tree: Path, change: str) -> None:
    daemon = with_trees(tree)
    first = compiled(daemon)
    if change == "edit":
        write(tree / "small/detail/factor.h", "#define FACTOR 7\n")
    elif change == "add":
        write(tree / "small/new.h", "\n")
    else:
        (tree / "small/detail/name.h").unlink()
    assert compiled(daemon)["key"] == first["key"]  # what was compiled before stays right
    with daemon.connect() as connection:
        error = connection.error("compile", {"source": SOURCE + "\n", "entries": ["scaled"], "arch": ARCH})
    assert error.code == "unsupported" and "started anew" in error.message


def test_what_others_can_write_is_refused_at_start(tmp_path: Path, tree: Path) -> None:
    header = tree / "small/detail/factor.h"
    for path, mode in ((header, 0o664), (header, 0o646), (tree / "small", 0o777), (tree, 0o775), (tree.parent, 0o757)):
        before = path.stat().st_mode & 0o7777
        os.chmod(path, mode)
        log = not_started(tmp_path, tree)
        assert "kernels.include_extra" in log and str(path) in log and "written by others" in log
        os.chmod(path, before)


@as_root
def test_what_belongs_to_somebody_else_is_refused_at_start(tmp_path: Path, tree: Path) -> None:
    for path in (tree / "small/scale.h", tree / "small/detail", tree, tree.parent):
        os.chown(path, 65534, 65534)
        assert "another user" in not_started(tmp_path, tree)
        os.chown(path, 0, 0)
    os.chmod(tree / "small/scale.h", 0o600)
    assert "chmod -R go+rX" in not_started(tmp_path, tree)


def test_what_is_no_tree_is_refused_at_start(tmp_path: Path, tree: Path) -> None:
    assert "no absolute path" in not_started(tmp_path, "include")
    assert "No such file" in not_started(tmp_path, tree / "nothing")
    assert "no folder" in not_started(tmp_path, tree / "small/scale.h")
    assert "no folder" in not_started(tmp_path, "/")
    os.mkfifo(tree / "pipe", 0o644)
    assert "no file, folder or link" in not_started(tmp_path, tree)
    (tree / "pipe").unlink()
    assert "more than 8" in not_started(tmp_path, *[tree] * 9)
