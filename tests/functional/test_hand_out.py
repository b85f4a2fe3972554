"""Code that runs in clients' own contexts: binaries in memory of the client (`code`), and launches of which clients tell (`launched`)."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from gpu_machine import only_with_nvrtc
from support import backends, memfd, proc, raw, users
from support.daemon import Daemon
from support.kernels import ADD, ARCH, compile_source
from support.users import OPEN, STRANGER, as_root
from test_code_policy import CLUB, HOST, as_user

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


F32 = ["f32", "f32", "f32"]
ROW = {"shapes": [[8], [8], [8]], "count": 3, "us": [2.0, 4.0]}


@pytest.fixture
def fresh() -> Iterator[raw.Connection]:
    """A client of a daemon whose statistics are empty."""
    with Daemon(config=HOST) as daemon, daemon.connect() as one:
        yield one


EVERYBODY = HOST + OPEN + "[kernels]\nuser_kernels = all\nhand_out = all\n"


def rows(connection: raw.Connection) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = connection.call("stats")["ops"]
    return found


def here(connection: raw.Connection) -> int:
    count: int = connection.call("clients")["clients"][0]["here"]
    return count


@only_with_nvrtc
def test_a_kernel_has_rows_by_shapes(fresh: raw.Connection) -> None:
    module = compile_source(fresh, arch=ARCH)["module"]
    told = {"module": module, "entry": "add2_kernel", "dtypes": F32}
    large = {"shapes": [[4, 1 << 20], [1 << 20], [4, 1 << 20]], "count": 1 << 40}
    assert fresh.call("launched", {**told, "rows": [ROW, large]}) == {}
    fresh.call("launched", {**told, "rows": [{"shapes": ROW["shapes"], "count": 0, "us": [9.0]}]})
    second, first = sorted(rows(fresh), key=lambda row: -row["count"])
    assert (first["op"], first["variant"], first["dtype"], first["count"]) == ("add2_kernel", "here", "f32", 3)
    assert first["shapes"] == ROW["shapes"] and first["bytes"] == 3 * 8 * 4 and "operations" not in first and "total_us" not in first
    assert (first["exec_us"]["min"], first["exec_us"]["mean"], first["exec_us"]["max"]) == (2.0, 5.0, 9.0)
    assert second["count"] == 1 << 40 and second["shapes"] == large["shapes"] and "exec_us" not in second
    assert here(fresh) == (1 << 40) + 3


def test_an_op_has_rows_with_its_arithmetic(fresh: raw.Connection) -> None:
    """Its shapes are those of its attributes."""
    gemm = {"op": "gemm", "dtypes": ["bf16"] * 3, "device": 0, "rows": [{"shapes": [[4, 8], [8, 16], [4, 16]], "count": 2}]}
    fresh.send(raw.pack([2, "launched", [gemm]]))
    row = {"shapes": [[8, 4], [16, 8], [4, 16]], "count": 3, "attrs": {"trans_a": True, "trans_b": True}}
    fresh.call("launched", {"op": "gemm", "dtypes": F32, "rows": [row]})
    one, other = sorted(rows(fresh), key=lambda found: found["count"])
    assert (one["op"], one["variant"], one["dtype"], one["count"]) == ("gemm", "here", "bf16", 2)
    assert one["operations"] == 2 * 4 * 8 * 16 and one["bytes"] == 2 * (32 + 128 + 64)
    assert other["count"] == 3 and other["operations"] == 2 * 4 * 8 * 16
    for attrs, code in (({}, "shape_mismatch"), ({"trans": True}, "unknown_key")):
        assert fresh.error("launched", {"op": "gemm", "dtypes": F32, "rows": [{**row, "attrs": attrs}]}).code == code


def test_what_is_refused_is_not_counted(fresh: raw.Connection) -> None:
    def refused(row: Any = ROW, **changed: Any) -> tuple[str, str | None]:
        params = {"op": "add", "dtypes": F32, "rows": [ROW, {**ROW, **row}], **changed}
        error = fresh.error("launched", {key: value for key, value in params.items() if value is not None})
        return error.code, error.key

    assert refused(op=None) == ("invalid_argument", "op")
    assert refused(module=1) == ("invalid_argument", "op")
    assert refused(op=None, module=77) == ("missing_key", "entry")
    assert refused(op=None, module=77, entry="k") == ("unknown_kernel", "module")
    assert refused(device="GPU-none") == ("unknown_device", "device")
    assert refused(dtypes=["f32"]) == ("invalid_argument", "dtypes")
    assert refused(dtypes=["f32"] * 17) == ("limit_exceeded", "dtypes")
    assert refused(dtypes=["f32", "f32", 5]) == ("wrong_type", "dtypes[2]")
    assert refused(rows=[ROW] * 65) == ("limit_exceeded", "rows")
    assert refused({"shapes": [[8], [8]]}) == ("invalid_argument", "rows[1].shapes")
    assert refused({"shapes": [[8], [8], [-1]]}) == ("out_of_range", "rows[1].shapes[2]")
    assert refused({"shapes": [[1] * 9, [8], [8]]}) == ("limit_exceeded", "rows[1].shapes[0]")
    assert refused({"shapes": [[1 << 40, 1 << 40], [8], [8]]})[0] == "out_of_range"
    assert refused({"shapes": [8, [8], [8]]}) == ("wrong_type", "rows[1].shapes[0]")
    assert refused({"count": 1 << 60}) == ("out_of_range", "rows[1].count")
    assert refused({"us": [1.0] * 65}) == ("limit_exceeded", "rows[1].us")
    for us in (-1.0, float("nan"), float("inf"), 1e12):
        assert refused({"us": [1.0, us]}) == ("out_of_range", "rows[1].us[1]")
    assert refused({"more": 1}) == ("unknown_key", "rows[1].more")
    assert rows(fresh) == [] and here(fresh) == 0


@as_root
def test_rows_are_the_user_s_own() -> None:
    """Who tells of many shapes loses its own."""
    told = {"op": "add", "dtypes": F32, "rows": [ROW]}
    with Daemon(config=EVERYBODY) as daemon, daemon.connect() as mine, users.connect(daemon, STRANGER) as theirs:
        mine.call("launched", told)
        theirs.call("launched", {**told, "rows": [{**ROW, "count": 5}]})
        assert [(row["uid"], row["count"]) for row in rows(theirs)] == [(STRANGER, 5)]
        assert sorted((row["uid"], row["count"]) for row in rows(mine)) == [(0, 3), (STRANGER, 5)]
        for first in range(1, 1400, 64):
            many = [{"shapes": [[n], [n]], "count": 1} for n in range(first, first + 64)]
            theirs.call("launched", {"op": "square", "dtypes": F32[:2], "rows": many})
        assert len(rows(theirs)) == 1023
        assert [row["count"] for row in rows(mine) if row["uid"] == 0] == [3]


def test_who_gets_no_code_tells_nothing() -> None:
    with Daemon(config=HOST + "[kernels]\nhand_out = off\n") as daemon, daemon.connect() as connection:
        error = connection.error("launched", {"op": "add", "dtypes": F32, "rows": [ROW]})
        assert error.code == "permission_denied"
