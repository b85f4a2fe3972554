"""`kops.ray.map` on a cluster of three nodes: what can be mapped, what a block is, order, errors, the end, the statistics."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import kops
import kops.ray
import numpy as np
import pytest
import ray
from machines import Machines, meet, wait_for
from support.daemon import ROOT

SCALE = """
__global__ void scale(float *y, const float *x, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
"""
SIGNATURE = "out float* y[n], const float* x[n], float a, int n"
N = 24


def test_each_result_is_there_once_and_all_nodes_work(machines: Machines, pool: kops.ray.Pool, tmp_path: Path) -> None:
    """A worker waits until all three have an item, so that no node can do all of them."""
    results = list(kops.ray.map(lambda k, i: (i * i, k.info.pid), [(i,) for i in range(N)], pool=pool))
    assert sorted(index for index, _ in results) == list(range(N))
    assert all(value[0] == index * index for index, value in results)
    wait_for(pool, 3)
    assert len({worker.node for worker in pool.workers}) == 3 and len({worker.daemon for worker in pool.workers}) == 3

    def where(k: kops.Client, i: int) -> int:
        meet(tmp_path / "met", 3, i)
        return k.info.pid

    assert len({pid for _, pid in kops.ray.map(where, range(3), pool=pool, in_flight=1)}) == 3


def test_an_op_by_name(pool: kops.ray.Pool) -> None:
    blocks = [(np.full((3, 4), i, "f4"), np.ones((4, 2), "f4")) for i in range(N)]
    results = dict(kops.ray.map("gemm", blocks, pool=pool))
    for i in range(N):
        np.testing.assert_array_equal(results[i], np.full((3, 2), 4.0 * i, "f4"))
    turned = kops.ray.map("gemm", [(np.ones((4, 3), "f4"), np.ones((4, 2), "f4"))], shared={"trans_a": True}, pool=pool)
    assert next(turned)[1].shape == (3, 2) and not list(turned)


def test_ordered_is_the_order_of_the_blocks(pool: kops.ray.Pool) -> None:
    """The first is the last to end."""
    def slow_first(k: kops.Client, i: int) -> int:
        if i == 0:
            import time

            time.sleep(0.5)
        return i

    run = kops.ray.map(slow_first, range(100), ordered=True, pool=pool)
    assert list(run) == [(i, i) for i in range(100)]
    wait_for(pool, 3)
    unordered = list(kops.ray.map(slow_first, range(100), pool=pool))
    assert sorted(unordered) == [(i, i) for i in range(100)] and unordered[0] != (0, 0)


def test_results_that_wait_for_an_earlier_one_are_bounded(pool: kops.ray.Pool) -> None:
    taken = []

    def blocks() -> Any:
        for i in range(2000):
            taken.append(i)
            yield i

    def gate(k: kops.Client, i: int) -> int:
        if i == 0:
            import time

            time.sleep(1.5)
        return i

    run = kops.ray.map(gate, blocks(), ordered=True, in_flight=1, pool=pool)
    assert next(run) == (0, 0)
    assert len(taken) < 100
    run.close()


def test_a_kernel_makes_its_results(pool: kops.ray.Pool) -> None:
    """By the sizes in its signature, in the interpreter, as no node has a GPU."""
    kern = kops.kernel(SCALE, "scale", SIGNATURE, grid="ceil_div(n, 32)", block=32, fallback="interpret")
    blocks: list[Any] = [(np.arange(40, dtype="f4"), 2.0, 40), {"x": np.ones(7, "f4"), "a": 3.0, "n": 7}]
    blocks.append((np.empty(5, "f4"), np.ones(5, "f4"), -1.0, 5))  # with what it writes
    results = dict(kops.ray.map(kern, blocks, pool=pool))
    np.testing.assert_array_equal(results[0], 2 * np.arange(40, dtype="f4"))
    np.testing.assert_array_equal(results[1], np.full(7, 3, "f4"))
    np.testing.assert_array_equal(results[2], np.full(5, -1, "f4"))
    bound = dict(kops.ray.map(kern[2, 16], [(np.ones(20, "f4"), 5.0, 20)], pool=pool))
    np.testing.assert_array_equal(bound[0], np.full(20, 5, "f4"))


def test_what_a_kernel_reads_and_writes_is_returned(pool: kops.ray.Pool) -> None:
    source = "__global__ void add_to(float *y, const float *x, int n) { int i = threadIdx.x; if (i < n) y[i] += x[i]; }"
    kern = kops.kernel(source, "add_to", grid=1, block=32, fallback="interpret")
    given = np.full(8, 10, "f4")
    ((_, result),) = kops.ray.map(kern, [(given, np.ones(8, "f4"), 8)], pool=pool)
    np.testing.assert_array_equal(result, np.full(8, 11, "f4"))
    np.testing.assert_array_equal(given, np.full(8, 10, "f4"))


def test_formulas(pool: kops.ray.Pool) -> None:
    axpy = kops.elementwise("a * x + y", fallback="interpret")
    total = kops.reduce("x", "a + b", identity=0, axis=1, fallback="interpret")
    assert list(dict(kops.ray.map(axpy, [(2.0, np.ones(3, "f4"), np.arange(3, dtype="f4"))], pool=pool))[0]) == [2, 3, 4]
    assert list(dict(kops.ray.map(total, [np.ones((2, 5), "f4")], pool=pool))[0]) == [5, 5]


UNSIZED = kops.kernel(SCALE, "scale", "out float* y, const float* x, float a, int n", grid=1, block=32, fallback="interpret")
X = np.ones(4, "f4")
REFUSED = [
    (kops.Unsupported, "fallback", kops.kernel(SCALE, "scale", SIGNATURE, grid=1, block=32), (X, 1.0, 4)),
    (kops.BadArgument, "declare its size", UNSIZED, (X, 1.0, 4)),
    (kops.BadArgument, "takes 3 or", UNSIZED, (X, 1.0)),
    (kops.BadArgument, "no parameter z", UNSIZED, {"y": X, "x": X, "a": 1.0, "n": 4, "z": 0}),
]


@pytest.mark.parametrize(("error", "match", "kern", "block"), REFUSED, ids=[match for _, match, _, _ in REFUSED])
def test_what_a_kernel_cannot_be_given(pool: kops.ray.Pool, error: type[Exception], match: str, kern: Any, block: Any) -> None:
    with pytest.raises(error, match=match):
        list(kops.ray.map(kern, [block], pool=pool))


def test_what_is_shared_and_what_is_in_rays_memory_already(pool: kops.ray.Pool) -> None:
    weights = np.arange(40_000, dtype="f4")
    reference = ray.put(np.ones(40_000, "f4"))
    results = kops.ray.map(lambda k, x, w: k.add(x, w), [(reference,)] * 3, shared={"w": weights}, pool=pool)
    for _, y in results:
        np.testing.assert_array_equal(y, weights + 1)


def test_clients_and_kernels_that_a_function_refers_to_are_the_workers(pool: kops.ray.Pool) -> None:
    kern = kops.kernel(SCALE, "scale", SIGNATURE, grid=1, block=32, fallback="interpret")
    other = kops.Client.unconnected("/nowhere/kopsd.sock")

    def both(k: kops.Client, x: Any) -> Any:
        y = kern(np.empty_like(x), x, 2.0, x.size)
        return other.add(y, x), other is k, kops.default_client() is k

    ((_, result),) = kops.ray.map(both, [np.ones(4, "f4")], pool=pool)
    np.testing.assert_array_equal(result[0], np.full(4, 3, "f4"))
    assert result[1:] == (True, True)


def test_an_items_own_error_is_raised_and_says_whose_it_is(pool: kops.ray.Pool) -> None:
    with pytest.raises(kops.ShapeMismatch) as raised:
        list(kops.ray.map("add", [(np.ones(3, "f4"), np.ones(n, "f4")) for n in (3, 4)], pool=pool))
    assert raised.value.kops_item == 1
    if sys.version_info >= (3, 11):
        assert "item 1, on " in raised.value.__notes__[0]

    def odd(k: kops.Client, i: int) -> int:
        if i % 2:
            raise ValueError(f"{i} is odd")
        return i

    results = dict(kops.ray.map(odd, range(10), errors="return", pool=pool))
    assert len(results) == 10
    for i, result in results.items():
        assert (isinstance(result, ValueError) and str(i) in str(result)) if i % 2 else result == i


def test_an_error_that_cannot_travel_is_told(pool: kops.ray.Pool) -> None:
    def raises(k: kops.Client, i: int) -> None:
        class Own(Exception):
            def __init__(self, a: int, b: int) -> None:
                super().__init__("what happened")

        raise Own(1, 2)

    with pytest.raises(kops.KopsError, match="what happened"):
        list(kops.ray.map(raises, [0], pool=pool))

    def leaves(k: kops.Client, i: int) -> None:
        sys.exit(3)

    with pytest.raises(SystemExit):
        list(kops.ray.map(leaves, [0], pool=pool))


def test_what_cannot_be_mapped_is_refused_at_once() -> None:
    other = kops.AsyncClient.__new__(kops.AsyncClient)
    wrong: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
        (kops.WrongType, "a kernel", 3, {}), (kops.BadArgument, "errors", "add", {"errors": "ignore"}),
        (kops.BadArgument, "tries", "add", {"tries": 0}), (kops.BadArgument, "asyncio", lambda k, x: (other, x), {}),
    ]  # fmt: skip
    for error, match, what, how in wrong:
        with pytest.raises(error, match=match):
            kops.ray.map(what, [], **how)


def test_no_blocks_no_results(pool: kops.ray.Pool) -> None:
    assert list(kops.ray.map("add", [], pool=pool)) == []


def test_one_piece_of_work_at_a_time(pool: kops.ray.Pool) -> None:
    run = kops.ray.map(lambda k, i: i, range(9), pool=pool)
    next(run)
    with pytest.raises(kops.BadArgument, match="busy"):
        next(kops.ray.map(lambda k, i: i, range(9), pool=pool))
    run.close()
    with pytest.raises(kops.BadArgument, match="is the pool's"):
        kops.ray.map(lambda k, i: i, range(9), pool=pool, workers=2)


def test_the_statistics_of_all_nodes_are_added_up(pool: kops.ray.Pool) -> None:
    """And what the daemons did before is not among them."""
    list(kops.ray.map("square", [np.ones(16, "f4")] * 7, pool=pool))
    run = kops.ray.map("square", [np.ones(16, "f4")] * 30, pool=pool)
    list(run)
    stats = run.stats()
    rows = [row for row in stats["ops"] if row["op"] == "square"]
    assert sum(row["count"] for row in rows) == 30 and all(row["exec_us"]["mean"] > 0 for row in rows)
    assert sum(node["items"] for node in stats["nodes"]) == 30 and not any(node["lost"] for node in stats["nodes"])
    assert {row["node"] for row in rows} <= {worker.node for worker in pool.workers}
    lines = stats.table().splitlines()
    assert lines[0].split()[0] == "op" and lines[1].startswith("square") and " 30 " in lines[1]
    assert "node" in stats.table(group_by=("op", "node")).splitlines()[0]
    with pytest.raises(kops.BadArgument):
        stats.table(sort_by="nothing")


def _free(machines: Machines, pool: kops.ray.Pool) -> None:
    """The tests that follow have workers of their own."""
    pool.close()
    machines.wait_free()


def test_the_end_of_a_map_of_its_own_frees_the_cluster(machines: Machines, pool: kops.ray.Pool) -> None:
    _free(machines, pool)
    run = kops.ray.map(lambda k, i: i, range(1000), workers=1)
    for _ in range(5):
        next(run)
    run.close()
    machines.wait_free()
    with kops.ray.map(lambda k, i: i, range(1000), workers=1) as run:
        next(run)
    machines.wait_free()
    for _ in kops.ray.map(lambda k, i: i, range(1000), workers=1):
        break
    machines.wait_free()
    with pytest.raises(kops.BadArgument, match="closed"):
        next(kops.ray.map(lambda k, i: i, range(3), pool=pool))


INTERRUPTED = """
import ray, sys, time
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
import kops.ray
def slow(k, i):
    time.sleep(0.05)
    return i
try:
    for index, value in kops.ray.map(slow, range(100000)):
        print("one", flush=True)
except KeyboardInterrupt:
    print("interrupted", ray.available_resources().get("CPU") is not None, flush=True)
"""


def test_ctrl_c_ends_the_work(machines: Machines, pool: kops.ray.Pool) -> None:
    _free(machines, pool)
    program = subprocess.Popen([sys.executable, "-c", INTERRUPTED, machines.cluster.address], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert program.stdout and program.stdout.readline() == "one\n"
    program.send_signal(signal.SIGINT)
    printed = program.communicate(timeout=120)[0]
    assert "interrupted" in printed and program.returncode == 0
    machines.wait_free()


def test_another_version_of_the_package_is_an_error(
    machines: Machines, pool: kops.ray.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kops.ray import _pool

    _free(machines, pool)
    monkeypatch.setattr(_pool, "VERSION", "0.0.1")
    with pytest.raises(kops.Unsupported, match=r"0\.0\.1 here: install the same version"):
        list(kops.ray.map(lambda k, i: i, range(3)))
    machines.wait_free()


def test_a_cluster_without_room_says_what_it_has(machines: Machines) -> None:
    with pytest.raises(kops.BadArgument, match="no room for a worker with 0 GPU, 64 CPU"):
        list(kops.ray.map("add", [1], cpus=64))
    with pytest.raises(kops.BadArgument, match="a worker has one GPU"):
        list(kops.ray.map("add", [1], gpus=2))
    with pytest.raises(kops.ray.WorkersFailed, match="within .* each needs .* 1 nothing_like_it"):
        list(kops.ray.map("add", [1], workers=1, resources={"nothing_like_it": 1}, start_timeout=1.0))


def test_without_ray_the_import_names_the_extra() -> None:
    blocked = "import sys; sys.modules['ray'] = None; import kops; assert 'add' not in dir(kops); import kops.ray"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
    assert done.returncode and 'pip install "ray>=2.9"' in done.stderr.splitlines()[-1]
