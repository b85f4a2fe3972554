"""Launches in clients' own contexts, of which clients tell the daemon: the method `launched`, on a daemon without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support import raw, users
from support.daemon import Daemon
from support.users import OPEN, STRANGER, as_root
from test_code_policy import HOST
from user_kernels import ARCH, compile_source, only_with_nvrtc

F32 = ["f32", "f32", "f32"]
ROW = {"shapes": [[8], [8], [8]], "count": 3, "us": [2.0, 4.0]}


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon(config=HOST) as one:
        yield one


@pytest.fixture
def connection(daemon: Daemon) -> Iterator[raw.Connection]:
    with daemon.connect() as one:
        yield one


EVERYBODY = HOST + OPEN + "[kernels]\nuser_kernels = all\nhand_out = all\n"


def rows(connection: raw.Connection) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = connection.call("stats")["ops"]
    return found


def here(connection: raw.Connection) -> int:
    count: int = connection.call("clients")["clients"][0]["here"]
    return count


@only_with_nvrtc
def test_a_kernel_has_rows_by_shapes(connection: raw.Connection) -> None:
    module = compile_source(connection, arch=ARCH)["module"]
    told = {"module": module, "entry": "add2_kernel", "dtypes": F32}
    large = {"shapes": [[4, 1 << 20], [1 << 20], [4, 1 << 20]], "count": 1 << 40}
    assert connection.call("launched", {**told, "rows": [ROW, large]}) == {}
    connection.call("launched", {**told, "rows": [{"shapes": ROW["shapes"], "count": 0, "us": [9.0]}]})
    second, first = sorted(rows(connection), key=lambda row: -row["count"])
    assert (first["op"], first["variant"], first["dtype"], first["count"]) == ("add2_kernel", "here", "f32", 3)
    assert first["shapes"] == ROW["shapes"] and first["bytes"] == 3 * 8 * 4 and "operations" not in first and "total_us" not in first
    assert (first["exec_us"]["min"], first["exec_us"]["mean"], first["exec_us"]["max"]) == (2.0, 5.0, 9.0)
    assert second["count"] == 1 << 40 and second["shapes"] == large["shapes"] and "exec_us" not in second
    assert here(connection) == (1 << 40) + 3


def test_an_op_has_rows_with_its_arithmetic(connection: raw.Connection) -> None:
    """Its shapes are those of its attributes."""
    gemm = {"op": "gemm", "dtypes": ["bf16"] * 3, "device": 0, "rows": [{"shapes": [[4, 8], [8, 16], [4, 16]], "count": 2}]}
    connection.send(raw.pack([2, "launched", [gemm]]))
    row = {"shapes": [[8, 4], [16, 8], [4, 16]], "count": 3, "attrs": {"trans_a": True, "trans_b": True}}
    connection.call("launched", {"op": "gemm", "dtypes": F32, "rows": [row]})
    one, other = sorted(rows(connection), key=lambda found: found["count"])
    assert (one["op"], one["variant"], one["dtype"], one["count"]) == ("gemm", "here", "bf16", 2)
    assert one["operations"] == 2 * 4 * 8 * 16 and one["bytes"] == 2 * (32 + 128 + 64)
    assert other["count"] == 3 and other["operations"] == 2 * 4 * 8 * 16
    for attrs, code in (({}, "shape_mismatch"), ({"trans": True}, "unknown_key")):
        assert connection.error("launched", {"op": "gemm", "dtypes": F32, "rows": [{**row, "attrs": attrs}]}).code == code


def test_what_is_refused_is_not_counted(connection: raw.Connection) -> None:
    def refused(row: Any = ROW, **changed: Any) -> tuple[str, str | None]:
        params = {"op": "add", "dtypes": F32, "rows": [ROW, {**ROW, **row}], **changed}
        error = connection.error("launched", {key: value for key, value in params.items() if value is not None})
        return error.code, error.key

    assert refused(op=None) == ("invalid_argument", "op")
    assert refused(module=1) == ("invalid_argument", "op")
    assert refused(op="nonesuch") == ("unknown_op", "op")
    assert refused(op=None, module=77) == ("missing_key", "entry")
    assert refused(op=None, module=77, entry="k") == ("unknown_kernel", "module")
    assert refused(device="GPU-none") == ("unknown_device", "device")
    assert refused(dtypes=["f32"]) == ("invalid_argument", "dtypes")
    assert refused(dtypes=["f32"] * 17) == ("limit_exceeded", "dtypes")
    assert refused(dtypes=["f32", "f32", "f31"])[0] == "unknown_dtype"
    assert refused(dtypes=["f32", "f32", 5]) == ("wrong_type", "dtypes[2]")
    assert refused(rows=[ROW] * 65) == ("limit_exceeded", "rows")
    assert refused({"shapes": [[8], [8]]}) == ("invalid_argument", "rows[1].shapes")
    assert refused({"shapes": [[8], [8], [7]]})[0] == "shape_mismatch"
    assert refused({"shapes": [[8], [8], [-1]]}) == ("out_of_range", "rows[1].shapes[2]")
    assert refused({"shapes": [[1] * 9, [8], [8]]}) == ("limit_exceeded", "rows[1].shapes[0]")
    assert refused({"shapes": [[1 << 40, 1 << 40], [8], [8]]})[0] == "out_of_range"
    assert refused({"shapes": [8, [8], [8]]}) == ("wrong_type", "rows[1].shapes[0]")
    assert refused({"count": -1})[0] in ("wrong_type", "out_of_range")
    assert refused({"count": 1 << 60}) == ("out_of_range", "rows[1].count")
    assert refused({"us": [1.0] * 65}) == ("limit_exceeded", "rows[1].us")
    for us in (-1.0, float("nan"), float("inf"), 1e12):
        assert refused({"us": [1.0, us]}) == ("out_of_range", "rows[1].us[1]")
    assert refused({"more": 1}) == ("unknown_key", "rows[1].more")
    assert rows(connection) == [] and here(connection) == 0


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
