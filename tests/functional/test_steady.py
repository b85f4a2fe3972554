"""The steady path of a request, from bytes to bytes, takes no memory from the allocator."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from arrays import Vectors, run_params
from support import backends, raw
from support.daemon import Daemon, build_folder
from support.ring import Ring

LIBRARY = build_folder() / "lib" / "libcount_allocations.so"
CALLS = 300


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not LIBRARY.exists():
        pytest.skip("built with a sanitizer, which has an allocator of its own")
    path = tmp_path_factory.mktemp("count") / "count"
    path.write_bytes(bytes(8))
    return path


@pytest.mark.parametrize("spin_us", [0, 300])
@pytest.mark.parametrize("method", ["ping", "run", "run_wrong"])
@pytest.mark.parametrize("path", ["socket", "ring"])
def test_no_allocation_per_request(path: str, method: str, spin_us: int, counter: Path) -> None:
    def count() -> int:
        return int.from_bytes(counter.read_bytes(), "little")

    env = {"LD_PRELOAD": str(LIBRARY), "KOPS_TEST_COUNT": str(counter)}
    config = backends.config(backends.HOST)
    with Daemon("--spin-us", str(spin_us), config=config, env=env) as daemon, daemon.connect() as connection:
        ring = Ring(connection)
        vectors = Vectors(connection, 3, 1000)
        tensors = [vectors.tensor(i) for i in range(3)]
        params = {
            "ping": {"x": [1, 2.5, "three", b"four"]},
            "run": run_params("add", tensors[:2], tensors[2]),
            "run_wrong": run_params("add", tensors[:2], raw.tensor(12345, [1000])),
        }[method]
        name = method.split("_")[0]
        call: Callable[[], raw.Reply]
        if path == "ring":
            call = lambda: ring.reply(ring.request(name, params))  # noqa: E731
        else:
            call = lambda: connection.reply(connection.request(name, params))  # noqa: E731
        for _ in range(CALLS):
            call()
        assert (call().error is not None) == (method == "run_wrong")
        before = count()
        for _ in range(CALLS):
            call()
        assert count() == before
        with daemon.connect() as other:
            assert other.alive()
        assert count() > before, "nothing is counted"
        ring.close()
        for reply in connection.replies.values():
            for fd in reply.fds:
                os.close(fd)
