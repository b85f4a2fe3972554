"""Work on a Ray cluster by four GPUs of one machine, against the same work by one."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from support import backends

from ..context import Context, Skipped
from ..record import Record, Summary
from . import add

GPUS = 4
EFFICIENCY = 0.9  # of each of them
N, CALLS = 8192, 30  # an item: so many products of f16 matrices, some 50 ms of an H100
ITEMS, ROUNDS = 40, 3  # of each worker; of pools that take turns
STORE = 256 << 20
_kept: dict[str, Any] = {}  # of a worker


def products(k: Any, n: int, calls: int) -> float:
    """One item, on matrices that stay on the worker's GPU. Returns an element of the last product."""
    import numpy as np

    if _kept.get("client") is not k:
        ones = np.ones((n, n), np.float16)
        _kept.update(client=k, arrays=[k.array(ones, device=k.place) for _ in range(3)])
    a, b, c = _kept["arrays"]
    for _ in range(calls):
        k.gemm(a, b, out=c)
    return float(c[:1, :1].get()[0, 0])


@contextmanager
def cluster(context: Context) -> Iterator[str]:
    """A cluster of this machine alone, and a fresh daemon's socket."""
    if importlib.util.find_spec("ray") is None:
        raise Skipped('Ray is not installed: pip install "ray>=2.9" numpy')
    import ray
    from ray import cloudpickle

    env = {"KOPS_STANDIN_DEVICES": str(GPUS)} if context.smoke else {}
    with context.daemon(cuda=True, environment=env) as daemon:
        with context.connect(daemon.socket_path) as client:
            count = sum(device.backend != "host" for device in client.devices)
        if count < GPUS:
            raise Skipped(f"{count} GPUs here, and {GPUS} are needed")
        if context.smoke:
            os.environ.update({**env, "KOPS_CUDA_DRIVER": str(backends.standin_driver())})
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        ray.init(
            "local", num_cpus=2 * GPUS, num_gpus=count, object_store_memory=STORE, include_dashboard=False, log_to_driver=False,
            logging_level="ERROR",
        )  # fmt: skip
        try:
            yield daemon.socket_path
        finally:
            ray.shutdown()


def rate(socket: str, workers: int, smoke: bool) -> float:
    """Items a second of so many workers, all of which have begun and are warm."""
    import kops.ray

    n, calls, items = (16, 2, 10) if smoke else (N, CALLS, ITEMS)

    def blocks(count: int) -> list[tuple[int, int]]:
        return [(n, calls)] * count

    with kops.ray.Pool(workers, gpus=1, runtime_env={"env_vars": {"KOPS_SOCKET": socket}}) as pool:
        while len(pool.workers) < workers:
            list(kops.ray.map(products, blocks(1), pool=pool))
        list(kops.ray.map(products, blocks(4 * workers), pool=pool))
        began = time.perf_counter()
        results = list(kops.ray.map(products, blocks(items * workers), pool=pool))
        seconds = time.perf_counter() - began
    wrong = [value for _, value in results if value != n]
    if wrong or len({index for index, _ in results}) != items * workers:
        raise RuntimeError(f"{len(wrong)} of {len(results)} items are wrong")
    return items * workers / seconds


def run(context: Context) -> Record:
    with cluster(context) as socket:
        turns = [(rate(socket, GPUS, context.smoke), rate(socket, 1, context.smoke)) for _ in range(1 if context.smoke else ROUNDS)]
    ours, one = zip(*turns, strict=True)
    return Record(
        "ray_scaling",
        "calls/s",
        "higher",
        Summary(median(ours), min(ours), len(ours)),
        Summary(median(one), min(one), len(one), "one GPU"),
        {
            "measured": f"kops.ray.map of a function that has {CALLS} blocking gemms of {N}³ in f16 on its worker's GPU: items a second of"
            f" {GPUS} workers on one machine, which share its daemon, against one worker; {ITEMS} items of each worker",
            "n": "rounds",
            "p99": "the slowest round",
            "part_of_linear": median(a / b for a, b in turns) / GPUS,
        },
        target=EFFICIENCY * GPUS,
    )


add("ray_scaling", run, on_gpu=True, seconds=240)
