"""Sizes are compared with the memory that there is before anything is allocated, and its pages are this process's."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon, refuser
from kops._base.compiled import native
from kops._memory.pool import pool
from which import compiled_only, plain_only

HERE = Path(__file__).resolve().parent
CASES = json.loads((HERE / "available.json").read_text())["cases"]
NONE = 2**64 - 1
HUGE = 1 << 40


def tree(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


@compiled_only
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_what_is_left(case: dict[str, Any], tmp_path: Path) -> None:
    root = tree(tmp_path, case["files"])
    size, of = native.available(root, case.get("address_space", NONE), case.get("file_size", NONE))
    assert (None if size == NONE else size) == case["size"] and of == case.get("of", "")


@plain_only
def test_in_plain_python_the_machine_is_the_limit(k: kops.Client) -> None:
    with pytest.raises(kops.OutOfMemory, match=r"were asked for, and this machine \(MemAvailable\) has .* MiB left") as caught:
        k.empty((HUGE,))
    assert isinstance(caught.value, MemoryError) and caught.value.detail["asked"] == 4 * HUGE > caught.value.detail["available"] > 0


@compiled_only
def test_what_there_is_not_is_a_memory_error(k: kops.Client, daemon: FakeDaemon) -> None:
    wide = numpy.broadcast_to(numpy.float32(1), (HUGE,))
    before = pool.usage()["segments"]
    with pytest.raises(kops.OutOfMemory, match=r"4\.0 TiB of shared memory were asked for, and .* has .* left for this process"):
        k.empty((HUGE,))
    for call in (
        lambda: k.add(wide, numpy.float32(1)), lambda: k.submit("add", wide, numpy.float32(1)), lambda: k.empty((HUGE, HUGE)),
        lambda: k.zeros(HUGE, "f64"), lambda: k.array(wide), lambda: k.array(numpy.broadcast_to(numpy.int16(1), (HUGE,)), "f64"),
    ):  # fmt: skip
        with pytest.raises(MemoryError, match=r"TiB|EiB") as caught:
            call()
        assert isinstance(caught.value, kops.OutOfMemory)
        assert caught.value.detail["asked"] > caught.value.detail["available"] > 0
    assert pool.usage()["segments"] <= before + 1 and not daemon.count("run")
    assert k.add(numpy.float32([1, 2]), 1.0).tolist() == [2, 3]


def test_what_is_kept_for_reuse_is_given_up_first(k: kops.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    k.empty(2 << 20)
    idle = pool.usage()["idle_bytes"]
    assert idle >= 8 << 20

    def check(size: int) -> None:
        if size > (70 << 20) - pool._idle:
            raise kops.OutOfMemory("more than this test has")

    monkeypatch.setattr("kops._memory.pool.check_available", check)
    made = k.empty((16 << 20) - 1024)  # more than is left beside what is idle
    assert made.nbytes and pool.usage()["idle_bytes"] < idle


def allocated(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


@pytest.mark.parametrize("populate", [True, False])
def test_pages_are_taken_by_this_process(k: kops.Client, monkeypatch: pytest.MonkeyPatch, populate: bool) -> None:
    if not populate:
        monkeypatch.setattr("kops._memory.pool.MADV_POPULATE_WRITE", 9999)  # as on a kernel that cannot
    pool.trim()
    big = k.empty(4 << 20)
    segment = pool.find(big.__array_interface__["data"][0])
    assert segment is not None and allocated(segment.fd) >= big.nbytes
    small = k.empty(1000)  # of a slab: only what was handed out
    slab = pool.find(small.__array_interface__["data"][0])
    assert slab is not None and 4096 <= allocated(slab.fd) <= 65536 + 4096
    many = [k.empty(1000) for _ in range(40)]
    places = [pool.find(one.__array_interface__["data"][0]) for one in many]
    assert all(place.touched >= place.size // 4 for place in places if place is not None)


ASK = """
from kops._tensors import adapters as _arrays
import kops
try:
    _arrays.empty({}, "f32")
except kops.OutOfMemory as error:
    print(error.detail["limit"])
"""


@compiled_only
@pytest.mark.parametrize("name, size, limit", [("RLIMIT_FSIZE", 1 << 26, 64 << 20), ("RLIMIT_AS", 1 << 29, 2 << 30)])
def test_limits_of_the_process(name: str, size: int, limit: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK.format(size)], preexec_fn=lambda: resource.setrlimit(getattr(resource, name), (limit, limit)),
        capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(HERE.parent)}, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == name


def test_what_failed_for_memory_is_not_asked_again(k: kops.Client, daemon: FakeDaemon) -> None:
    a = k.array([1.0])
    for method, call in (("run", lambda: k.add(a, 1.0)), ("register", lambda: k.add(k.empty((1 << 18,)), 1.0)), ("stats", k.stats)):
        daemon.script[method] = refuser("out_of_memory", "the device has too little")
        before = daemon.count(method)
        with pytest.raises(kops.OutOfMemory):
            call()
        assert daemon.count(method) == before + 1
        del daemon.script[method]
    assert k.square(a).tolist() == [1]


@compiled_only
def test_a_repeated_call_makes_no_memory(k: kops.Client, daemon: FakeDaemon) -> None:
    a = k.zeros(1 << 18)
    k.square(a)
    pool.trim()
    segments: list[int] = []

    def die_once(peer: Any, params: dict[str, Any], fds: list[int]) -> Any:
        segments.append(pool.usage()["bytes"])
        if len(segments) == 1:
            peer.hang_up()
            return NotImplemented
        return peer.do_run(params, fds)

    daemon.script["run"] = die_once
    assert k.square(a).sum() == 0
    assert len(segments) == 2 and segments[0] == segments[1]
