"""Headers that an administrator has installed for every source: kernels.include_extra."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon import Daemon
from support.users import as_root
from test_socket import refused
from user_kernels import ARCH, only_with_nvrtc

pytestmark = only_with_nvrtc
HOST = "[cuda]\ndriver = none\n"
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
def start(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
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


def test_sources_include_headers_of_the_trees_alone(start: Callable[..., Daemon], tree: Path) -> None:
    second = tree.parent / "second"
    second.mkdir(mode=0o755)
    write(second / "own.h", "#define OWN 1\n")
    daemon = start(tree, second)
    with daemon.connect() as connection:
        assert connection.call("hello")["kernels"]["include_extra"] == [str(tree), str(second)]
    assert [compiled(daemon, "#include <own.h>\n" + SOURCE)["cached"] for _ in range(2)] == ["no", "memory"]
    with start().connect() as connection:
        assert "include_extra" not in connection.call("hello")["kernels"]
        error = connection.error("compile", {"source": SOURCE, "entries": ["scaled"], "arch": ARCH})
        assert error.code == "compile_failed" and "small/scale.h" in error.detail["log"]


def not_started(tmp_path: Path, *trees: Path | str) -> str:
    return refused(tmp_path / "socket", "--set", f"kernels.include_extra={':'.join(map(str, trees))}")


def test_nothing_beside_it_is_read(start: Callable[..., Daemon], tree: Path) -> None:
    write(tree.parent / "secret.h", "#define SECRET 1\n")
    (tree / "link.h").symlink_to(tree.parent / "secret.h")
    daemon = start(tree)
    for name in (tree.parent / "secret.h", tree / "../secret.h", "link.h"):
        with daemon.connect() as connection:
            source = f'#include "{name}"\nextern "C" __global__ void f(float* x) {{ *x = SECRET; }}\n'
            error = connection.error("compile", {"source": source, "entries": ["f"], "arch": ARCH})
            assert error.code == "compile_failed", name


def test_keys_stand_for_its_contents(start: Callable[..., Daemon], tree: Path) -> None:
    first = compiled(start(tree))
    os.utime(tree / "small/scale.h", (1, 1))  # the same contents
    again = compiled(start(tree))
    assert again["key"] == first["key"] and again["cached"] == "disk"
    write(tree / "small/detail/factor.h", "#define FACTOR 3\n")
    other = compiled(start(tree))
    assert other["key"] != first["key"] and other["cached"] == "no"
    write(tree / "small/detail/factor.h", "#define FACTOR 2\n")
    assert compiled(start(tree))["key"] == first["key"]


@pytest.mark.parametrize("change", ["edit", "add", "remove"])
def test_a_change_under_a_daemon_is_noticed(start: Callable[..., Daemon], tree: Path, change: str) -> None:
    daemon = start(tree)
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
