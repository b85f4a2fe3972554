"""Bad input: an error reply that names the key, the connection lives, nothing is leaked; and what closes a connection: a notification,
end of file, and nothing else in the daemon changes. Short frames: test_golden.py."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from arrays import LongRun, Vectors
from support import memfd, raw
from support.raw import tensor

N = 256  # elements of each of the two vectors in a buffer of SIZE bytes
SIZE = 2 * 4 * N
MAX_INT = 2**63 - 1
U64 = 2**64 - 1


def case(name: str, code: str, key: str | None, **params: Any) -> Any:
    """Params are for `square`, with B for the buffer's id; a test of the key takes its longer forms too."""
    return pytest.param(params, code, key, id=name)


def t(shape: list[Any], dtype: Any = "f32", **more: Any) -> dict[str, Any]:
    return tensor("B", shape, dtype, **more)


OUT = [t([N], offset=4 * N)]
IN = [t([N])]
GEMM = {"op": "gemm", "in": [t([4, 4]), t([4, 4])], "out": [t([4, 4], offset=1024)]}

# What needs memory that is really there. proto/golden/request_errors.json has the other errors, of the same checks.
RUNS = [
    case("inner_dimensions", "shape_mismatch", "in[1]", **{**GEMM, "in": [t([4, 3]), t([4, 4])]}),
    case("out_broadcast", "shape_mismatch", "out[0]", **{"in": [t([1])], "out": [t([N])]}),
    case("add_shapes", "shape_mismatch", "in[1]", **{"op": "add", "in": [t([3]), t([4])], "out": [t([4], offset=4 * N)]}),
    case("shape_bytes_overflow", "out_of_range", "in[0]", **{"in": [t([2**62])]}),
    case("stride_uint64", "out_of_range", "in[0].strides", **{"in": [t([2], strides=[U64])]}),
    case("stride_max", "out_of_range", "in[0]", **{"in": [t([2], strides=[MAX_INT])]}),
    case("offset_overflow", "out_of_range", "in[0]", **{"in": [t([N], offset=MAX_INT - 3)]}),
    case("offset_uint64", "out_of_range", "in[0]", **{"in": [t([N], offset=U64 - 3)]}),
    case("outside_by_one_element", "out_of_bounds", "out[0]", **{"in": [t([1])], "out": [t([1], offset=8 * N)]}),
    case("outside_by_stride", "out_of_bounds", "in[0]", **{"in": [t([N], strides=[3])]}),
    case("offset_beyond", "out_of_bounds", "in[0]", **{"in": [t([N], offset=1 << 40)]}),
    case("negative_stride", "out_of_range", "in[0].strides", **{"in": [t([N], strides=[-1])]}),
    case("misaligned_f64", "misaligned", "out[0]", **{"in": [t([1], "f64")], "out": [t([1], "f64", offset=12)]}),
    case("out_overlaps_in", "overlap", "out", out=[t([N], offset=4)]),
    case("out_same_other_strides", "overlap", "out", **{"in": [t([4, 4])], "out": [t([4, 4], strides=[1, 4])]}),
    case("out_overlaps_itself", "overlap", "out[0]", **{"in": [t([4, 4])], "out": [t([4, 4], strides=[0, 1], offset=1024)]}),
    case("out_windows", "overlap", "out", **{"in": [t([4, 4])], "out": [t([4, 4], strides=[2, 1], offset=1024)]}),
    case("gemm_in_place", "overlap", "out", **{**GEMM, "out": [t([4, 4])]}),
    case("repeat_in_place", "invalid_argument", "repeat", repeat=2, out=[t([N])]),
    case("warmup_in_place", "invalid_argument", "", warmup=1, out=[t([N])]),
    case("repeat_beta", "invalid_argument", "repeat", **{**GEMM, "attrs": {"beta": 0.5}, "repeat": 2}),
    case("ipc_and_buffer", "invalid_argument", "in[0].ipc", **{"in": [t([N], ipc=b"x" * 64, size=SIZE, alloc_id=1, device=0)]}),
]


def with_buffer(value: Any, buffer: int) -> Any:
    if isinstance(value, dict):
        return {k: buffer if v == "B" and k == "buffer" else with_buffer(v, buffer) for k, v in value.items()}
    return [with_buffer(v, buffer) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("params", "code", "key"), RUNS)
def test_run_is_refused(params: dict[str, Any], code: str, key: str | None, connection: raw.Connection) -> None:
    vectors = Vectors(connection, 2, N)
    vectors.arrays[1][:] = 7
    before = vectors.shared.bytes.copy()
    request = {"op": "square", "in": IN, "out": OUT, **params}
    error = connection.error("run", with_buffer(request, vectors.buffer))
    assert error.code == code, error
    assert isinstance(error.key, str) and error.key.startswith(key or ""), error
    assert error.message
    assert np.array_equal(before, vectors.shared.bytes), "a refused run wrote something"
    # The same connection and buffer serve a good request.
    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
    assert np.array_equal(vectors[1], vectors[0] * vectors[0])


def test_details(connection: raw.Connection) -> None:
    """`detail` has numbers that a program can use."""
    vectors = Vectors(connection, 2, N)
    error = connection.run_error("square", [tensor(vectors.buffer, [2 * N + 1])], [vectors.tensor(1)])
    assert (error.detail["needed"], error.detail["size"]) == (SIZE + 4, SIZE)
    error = connection.error("run", {"op": "square", "in": [], "out": [], "repeat": 10**9})
    assert (error.detail["min"], error.detail["max"]) == (1, 10000)
    error = connection.run_error("square", [tensor(vectors.buffer, [1] * 9)], [vectors.tensor(1)])
    assert error.detail["limit"] == 8 and error.detail["value"] == 9


@pytest.mark.parametrize("missing", [1, 2, 3, 4])
def test_bounds_to_the_last_byte(missing: int, connection: raw.Connection) -> None:
    """The last element may end where the buffer does, and not a byte beyond; the declared size counts."""
    shared = memfd.Shared(8192)
    exact, short = connection.register(shared, size=4096), connection.register(shared, size=4096 - missing)
    assert connection.run("square", [tensor(exact, [1], offset=4092)], [tensor(exact, [1])])
    error = connection.run_error("square", [tensor(short, [1], offset=4092)], [tensor(short, [1])])
    assert error.code == "out_of_bounds"
    assert (error.detail["needed"], error.detail["size"]) == (4096, 4096 - missing)


@pytest.mark.parametrize("offset", [2**40, 2**63, 2**64 - 4])
def test_empty_tensors_lie_anywhere(offset: int, connection: raw.Connection) -> None:
    """Nobody computes with where they lie; a sanitizer would tell."""
    shared = memfd.Shared(4096)
    buffer, out = connection.register(shared), shared.view(np.float32, 16)
    out[:] = 7
    at = {"offset": offset}
    connection.run("gemm", [tensor(buffer, [4, 0], **at), tensor(buffer, [0, 4], **at)], [tensor(buffer, [4, 4])])
    assert (out == 0).all()
    connection.run("square", [tensor(buffer, [0], **at)], [tensor(buffer, [0], **at)])


def test_foreign_buffer(connect: Callable[..., raw.Connection]) -> None:
    """Ids of one connection mean nothing on another."""
    one, other = connect(), connect()
    vectors = Vectors(one, 2, N)
    error = other.run_error("square", [vectors.tensor(0)], [vectors.tensor(1)])
    assert error.code == "unknown_buffer"
    assert other.error("release", {"buffer": vectors.buffer}).code == "unknown_buffer"
    one.run("square", [vectors.tensor(0)], [vectors.tensor(1)])


# ---- descriptors that are refused. proto/golden/request_errors.json and tests/unit/backend/test_memfd.c have more ----


def file(folder: str) -> int:
    """One of /dev/shm, too, cannot be sealed, so it could shrink under the daemon."""
    path = f"{folder}/kops-test-{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.unlink(path)
    os.ftruncate(fd, 4096)
    return fd


def reopened() -> int:
    """Sealed well, but the descriptor itself cannot write."""
    fd = memfd.make(4096)
    read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.close(fd)
    return read_only


@pytest.mark.parametrize(
    ("make", "size", "code"),
    [
        pytest.param(lambda: memfd.make(4096, ("grow",)), 4096, "invalid_fd", id="sealed_against_growing_only"),
        pytest.param(lambda: memfd.make(0), 1, "invalid_fd", id="of_no_size"),
        pytest.param(lambda: memfd.make(4096), 2**63, "invalid_fd invalid_argument", id="size_overflow"),
        pytest.param(lambda: memfd.make(4096), 2**64 - 1, "invalid_fd invalid_argument", id="size_uint64"),
        pytest.param(memfd.make_hugetlb, 4096, "invalid_fd", id="on_hugetlbfs"),
        pytest.param(reopened, 4096, "invalid_fd read_only", id="opened_read_only"),
        pytest.param(lambda: file("/dev/shm"), 4096, "invalid_fd", id="file_of_tmpfs"),
        pytest.param(lambda: os.open("/dev/zero", os.O_RDWR), 4096, "invalid_fd", id="zero"),
        pytest.param(lambda: os.open("/dev/shm", os.O_RDONLY | os.O_DIRECTORY), 4096, "invalid_fd", id="folder"),
    ],
)
def test_descriptor_is_refused(make: Callable[[], int | None], size: int, code: str, connection: raw.Connection) -> None:
    fd = make()
    if fd is None:
        pytest.skip("this kernel makes no hugetlb memfd")
    error = connection.error("register", {"kind": "memfd", "size": size, "fd": 0}, [fd])
    os.close(fd)
    assert error.code in code.split() and error.key in ("fd", "size", "access") and error.message, error


def test_more_memory_than_a_file_can_have(connection: raw.Connection) -> None:
    error = connection.error("alloc", {"size": 2**63})
    assert (error.code, error.key) == ("invalid_argument", "size") and connection.alive()


@pytest.mark.parametrize("seals", [("shrink", "write"), ("shrink",)])
def test_registered_read_only_as_output(connection: raw.Connection, seals: tuple[str, ...]) -> None:
    fd = memfd.make(4096, seals)
    buffer = connection.call("register", {"kind": "memfd", "size": 4096, "fd": 0, "access": "r"}, [fd])["buffer"]
    os.close(fd)
    vectors = Vectors(connection, 1, 16)
    error = connection.run_error("square", [vectors.tensor(0)], [tensor(buffer, [16])])
    assert (error.code, error.key) == ("read_only", "out[0].buffer")
    connection.run("square", [tensor(buffer, [16])], [vectors.tensor(0)])


# ---- what closes a connection ----


def expect_closed(connection: raw.Connection) -> None:
    notification = connection.wait_closed()
    assert notification is not None and notification["code"] == "protocol_error", notification
    assert notification["message"]


def send_regardless(connection: raw.Connection, data: bytes, fds: tuple[int, ...] = ()) -> None:
    """Sends to a peer that may close at any byte."""
    try:
        connection.send(data, fds)
    except (BrokenPipeError, ConnectionResetError):
        pass


def test_longest_message(connection: raw.Connection, limits: dict[str, int]) -> None:
    """Exactly the limit is served. One byte more, really sent, is a violation."""
    shell = len(raw.pack_request(1, "ping", {"x": bytes(70000)})) - 70000
    params = {"x": bytes(limits["message_bytes"] - shell)}
    assert len(raw.pack_request(1, "ping", params)) == limits["message_bytes"]
    assert connection.call("ping", params) == params
    send_regardless(connection, raw.pack_request(1, "ping", {"x": params["x"] + b"x"}))
    expect_closed(connection)


@pytest.mark.parametrize("method, params", [("run", {"op": "square", "in": [], "out": []}), ("ping", {})])
def test_duplicate_msgid(method: str, params: dict[str, object], connection: raw.Connection) -> None:
    """Two unanswered requests of one msgid, whatever the method is."""
    work = LongRun(connection)
    connection.request(method, params, msgid=work.msgid)
    expect_closed(connection)


# ---- descriptors ----


@pytest.fixture
def fd() -> int:
    made = memfd.make(4096)
    yield made
    os.close(made)


REGISTER = {"kind": "memfd", "size": 4096, "fd": 0}


@pytest.mark.parametrize("method, params, count", [
    ("register", {**REGISTER, "nfds": 1}, 2),  # too many
    ("register", {**REGISTER, "nfds": 16}, 17),
    ("register", {**REGISTER, "nfds": 1}, 0),
    ("ping", {}, 1),  # that nothing claims
    ("ping", {"nfds": 200}, 200),
])  # fmt: skip
def test_other_descriptors_than_it_says(method: str, params: dict[str, object], count: int, connection: raw.Connection, fd: int) -> None:
    connection.send(raw.pack_request(1, method, params), [fd] * count)
    expect_closed(connection)


def test_descriptors_that_are_taken(connection: raw.Connection, fd: int) -> None:
    """Sixteen are the most that one message may bring. Two messages in one send, the descriptor meant for the second: the daemon
    may take it, since it cannot tell this from two sends that the kernel glued."""
    assert connection.call("register", {**REGISTER, "fd": 15}, [fd] * 16)["size"] == 4096
    data = raw.pack_request(101, "ping", {}) + raw.pack_request(102, "register", {**REGISTER, "nfds": 1})
    connection.send(data, [fd])
    assert connection.reply(101).result == {}
    assert connection.reply(102).result["size"] == 4096


def test_descriptor_flood(connect: Callable[..., raw.Connection], fd: int) -> None:
    """Unfinished messages with descriptors in every piece: refused before they pile up."""
    connection = connect()
    data = raw.pack_request(1, "ping", {"x": bytes(1000), "nfds": 16})
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd] * 16))]
    try:
        for i in range(100):
            connection.socket.sendmsg([data[i : i + 1]], ancillary)
    except (BrokenPipeError, ConnectionResetError):
        pass
    expect_closed(connection)


def test_the_connection_to_the_daemon_itself(connection: raw.Connection) -> None:
    """A socket passed over itself, as garbage would do: a cycle that must not outlive the connection."""
    error = connection.error("register", REGISTER, [connection.socket.fileno()])
    assert error.code == "invalid_fd"


# ---- what a violation takes with it ----


def test_error_of_a_full_reader(connect: Callable[..., raw.Connection]) -> None:
    """One that reads nothing and sends garbage is closed all the same."""
    connection = connect(receive_buffer=4096)
    try:
        connection.socket.setblocking(False)
        for i in range(20):
            connection.socket.send(raw.pack_request(i, "ping", {"x": bytes(1000)}))
        connection.socket.send(b"\xc1" * 100)
    except (BlockingIOError, BrokenPipeError, ConnectionResetError):
        pass
    connection.socket.setblocking(True)
    connection.socket.settimeout(raw.PATIENCE)
    connection.wait_closed()
