"""Binaries of a client's modules in memory of the client: the method `code`, on a daemon without a GPU."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support import backends, memfd, proc, raw
from support.daemon import Daemon
from support.users import OPEN, STRANGER, as_root
from test_code_policy import CLUB, HOST, as_user
from user_kernels import ADD, ARCH, compile_source, only_with_nvrtc

IMAGES = (
    "add", "square", "add_square", "sub_square", "copy", "gemm_f32", "gemm_f64", "gemm_f16", "gemm_bf16", "gemm_f8", "gemm_short",
    "gemm_hopper", "linear_short", "linear_hopper", "gelu",
)  # fmt: skip


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(config=HOST) as one:
        yield one


@pytest.fixture
def connection(daemon: Daemon) -> Iterator[raw.Connection]:
    with daemon.connect() as one:
        yield one


NewFile = Callable[..., int]
SEALED = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture
def file() -> Iterator[NewFile]:
    with ExitStack() as stack:

        def make(size: int, seals: tuple[str, ...] = ("shrink",), flags: int = 0, allocated: bool = True) -> int:
            fd = memfd.make(size, seals, flags, allocated)
            stack.callback(os.close, fd)
            return fd

        yield make


def ask(connection: raw.Connection, module: int, fd: int) -> Any:
    return connection.call("code", {"module": module, "fd": 0}, [fd])


@only_with_nvrtc
def test_the_binary_is_written_and_sealed(connection: raw.Connection, file: NewFile) -> None:
    assert "code" in connection.call("hello")["features"]
    compiled = compile_source(connection, arch=ARCH)
    size = compiled["image_bytes"]
    fd = file(size + 100)
    assert ask(connection, compiled["module"], fd) == {"bytes": size}
    image = os.pread(fd, size, 0)
    assert image[:4] == b"\x7fELF" and compiled["entries"][0]["lowered"].encode() in image
    assert os.pread(fd, 100, size) == bytes(100)
    for change in (
        lambda: os.pwrite(fd, b"x", 0),
        lambda: mmap.mmap(fd, size),
        lambda: os.ftruncate(fd, 0),
        lambda: os.ftruncate(fd, 1 << 20),
    ):
        with pytest.raises(PermissionError):
            change()
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALED == SEALED
    again = file(size)
    ask(connection, compiled["module"], again)
    assert os.pread(again, size, 0) == image


@only_with_nvrtc
def test_entries_tell_where_parameters_begin(connection: raw.Connection) -> None:
    source = 'extern "C" __global__ void mixed(char a, double *b, float c, char d, long long e) { b[0] = a + c + d + e; }'
    (entry,) = connection.call("compile", {"source": source, "entries": ["mixed"], "arch": ARCH})["entries"]
    assert entry["params"] == [1, 8, 4, 1, 8] and entry["offsets"] == [0, 8, 16, 20, 24]


def check_refused_files(refused: Callable[[int], raw.RpcError], file: NewFile, size: int) -> None:
    assert refused(file(size - 1)).code == "invalid_fd"
    hole = refused(file(size, allocated=False))
    assert hole.code == "invalid_fd" and hole.key == "fd" and "posix_fallocate" in hole.message
    assert "seal it" in refused(file(size, ())).message
    assert refused(file(size, ("shrink", "write"))).code == "read_only"
    assert "F_SEAL_SEAL" in refused(file(size, ("shrink", "seal"))).message
    mapped = file(size)
    with mmap.mmap(mapped, size):
        error = refused(mapped)
        assert error.code == "invalid_fd" and error.key == "fd" and "unmap" in error.message
    read, write = os.pipe()
    assert refused(read).code == "invalid_fd"
    os.close(read)
    os.close(write)


@only_with_nvrtc
def test_what_is_refused(daemon: Daemon, connection: raw.Connection, file: NewFile) -> None:
    compiled = compile_source(connection, arch=ARCH)
    size = compiled["image_bytes"]

    def refused(fd: int) -> raw.RpcError:
        return connection.error("code", {"module": compiled["module"], "fd": 0}, [fd])

    before = proc.fds(daemon.pid).get("memfd", 0)
    check_refused_files(refused, file, size)
    assert connection.error("code", {"module": compiled["module"], "fd": 0}).code == "invalid_fd"
    assert connection.error("code", {"module": compiled["module"], "fd": 1}, [file(size)]).code == "invalid_fd"
    error = connection.error("code", {"module": 77, "fd": 0}, [file(size)])
    assert error.code == "unknown_kernel" and error.key == "module"
    connection.call("release", {"module": compiled["module"]})
    assert refused(file(size)).code == "unknown_kernel"
    assert connection.error("code", {"module": compiled["module"]}).key == "fd"
    proc.eventually(lambda: proc.fds(daemon.pid).get("memfd", 0) == before, "no descriptor is kept")


@only_with_nvrtc
def test_a_client_that_ends_meanwhile(daemon: Daemon, file: NewFile) -> None:
    for _ in range(20):
        with daemon.connect() as connection:
            compiled = compile_source(connection, arch=ARCH)
            fd = file(compiled["image_bytes"])
            connection.request("code", {"module": compiled["module"], "fd": 0}, [fd])
    with daemon.connect() as connection:
        assert connection.call("ping") == {}


@only_with_nvrtc
@as_root
@pytest.mark.parametrize(
    ("policy", "groups", "allowed"),
    [("off", [], False), ("owner", [], False), (f"@{CLUB}", [], False), (f"@{CLUB}", [CLUB], True), ("all", [], True)],
)
def test_who_may_have_code(policy: str, groups: list[int], allowed: bool) -> None:
    more = f"[kernels]\nuser_kernels = all\nhand_out = {policy}\n"
    why = f"kernels.hand_out is {'group' if policy[0] == '@' else policy}"
    with Daemon(config=HOST + OPEN + more) as daemon:
        os.chmod(daemon.folder, 0o755)

        def look(expected: bool) -> None:
            with daemon.connect() as connection:
                assert ("code" in connection.call("hello")["features"]) == expected
                compiled = connection.call("compile", {"source": ADD, "entries": ["add2_kernel"], "arch": ARCH})
                fd = memfd.make(compiled["image_bytes"], allocated=True)
                if expected:
                    ask(connection, compiled["module"], fd)
                else:
                    error = connection.error("code", {"module": compiled["module"], "fd": 0}, [fd])
                    assert error.code == "permission_denied" and why in error.message
                os.close(fd)

        look(policy != "off")
        as_user(STRANGER, groups, lambda: look(allowed))


# The daemon's own kernels.


def need_standin() -> None:
    why = backends.missing(backends.STANDIN)
    if why is not None:
        pytest.skip(why)


@pytest.fixture(scope="module")
def standin() -> Iterator[Daemon]:
    need_standin()
    with Daemon(config=backends.config(backends.STANDIN)) as one:
        yield one


@pytest.fixture
def on_gpu(standin: Daemon) -> Iterator[raw.Connection]:
    with standin.connect() as one:
        yield one


def test_images_are_written_and_sealed(on_gpu: raw.Connection, file: NewFile) -> None:
    assert "images" in on_gpu.call("hello")["features"]
    layouts, found = set(), set()
    for name in IMAGES:
        told = on_gpu.call("code", {"image": name})
        layouts.add(told["layout"])
        fd = file(told["bytes"])
        assert on_gpu.call("code", {"image": name, "fd": 0}, [fd]) == told
        image = os.pread(fd, told["bytes"], 0)
        assert image[:4] == b"\x50\xed\x55\xba", "a fat binary"
        found.add(image)
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALED == SEALED
    assert len(layouts) == 1 and len(found) == len(IMAGES)


def test_which_images_are_refused(standin: Daemon, on_gpu: raw.Connection, file: NewFile) -> None:
    before = proc.fds(standin.pid).get("memfd", 0)
    size = on_gpu.call("code", {"image": "add"})["bytes"]
    assert on_gpu.error("code", {}).code == "missing_key"
    both = on_gpu.error("code", {"image": "add", "module": 1, "fd": 0}, [file(size)])
    assert both.code == "invalid_argument" and both.key == "image"
    for name in ("", "ad", "added", "add\0", "gemm_i32", "x" * 1000):
        error = on_gpu.error("code", {"image": name})
        assert error.code == "invalid_argument" and error.key == "image"
    assert on_gpu.error("code", {"image": 1}).code == "wrong_type"
    assert on_gpu.error("code", {"image": "add", "fd": 0}).code == "invalid_fd"
    check_refused_files(lambda fd: on_gpu.error("code", {"image": "add", "fd": 0}, [fd]), file, size)
    proc.eventually(lambda: proc.fds(standin.pid).get("memfd", 0) == before, "no descriptor is kept")


def test_pages_behind_the_end_do_not_hide_holes(on_gpu: raw.Connection, file: NewFile) -> None:
    size = on_gpu.call("code", {"image": "add"})["bytes"]
    fd = file(size)
    memfd.punch_hole(fd, 0, size)
    memfd.allocate_behind_end(fd, 2 * size)
    error = on_gpu.error("code", {"image": "add", "fd": 0}, [fd])
    assert error.code == "invalid_fd" and "posix_fallocate" in error.message


def test_no_page_is_taken_away_once_the_daemon_writes(on_gpu: raw.Connection, file: NewFile) -> None:
    """The daemon would make the page anew, and the kernel would charge it for the client's file."""
    size, name = max((on_gpu.call("code", {"image": name})["bytes"], name) for name in IMAGES)
    for _ in range(20):
        fd = file(size)
        msgid = on_gpu.request("code", {"image": name, "fd": 0}, [fd])
        while not os.pread(fd, 1, 0).strip(b"\0"):
            pass
        with pytest.raises(PermissionError):
            memfd.punch_hole(fd, size // 2, size)
        reply = on_gpu.reply(msgid)
        # The kernel does not seal a file whose pages are being read for long, as they may be just now on a busy machine.
        assert reply.error["code"] == "invalid_fd" if reply.error else reply.result["bytes"] == size


def test_who_has_images(connection: raw.Connection) -> None:
    """A daemon with a GPU, if the settings allow it; a compiler is not needed."""
    assert "images" not in connection.call("hello")["features"]
    error = connection.error("code", {"image": "add"})
    assert error.code == "unsupported" and error.key == "image"
    need_standin()
    for setting, wanted in (("user_kernels", {"images"}), ("hand_out", set())):
        config = backends.config(backends.STANDIN) + f"[kernels]\n{setting} = off\n"
        with Daemon(config=config) as daemon, daemon.connect() as on_gpu:
            assert {"images", "code"} & set(on_gpu.call("hello")["features"]) == wanted
            reply = on_gpu.reply(on_gpu.request("code", {"image": "add"}))
            assert reply.error["code"] == "permission_denied" if reply.error else wanted
