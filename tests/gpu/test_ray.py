"""`kops.ray` on all GPUs of this machine: the workers' GPUs are Ray's, the daemon is started by one of them and serves all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import proc
from support.daemon import ROOT, binary

pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture(scope="module")
def gpus(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The number of GPUs in a cluster of this machine, whose user's folders are the test's."""
    import ray

    if Path("/run/kopsd/kopsd.sock").exists():
        pytest.skip("a daemon of the system comes first")
    place = tmp_path_factory.mktemp("node")
    place.chmod(0o700)
    kept = dict(os.environ)
    os.environ.pop("KOPS_SOCKET", None)
    os.environ.update({name: str(place) for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "CACHE_DIRECTORY")})
    path = os.pathsep.join(filter(None, [str(ROOT / "client_py"), str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    os.environ.update(KOPSD=str(binary()), PYTHONPATH=path, RAY_USAGE_STATS_ENABLED="0")
    os.environ["KOPSD_SERVER_IDLE_EXIT_S"] = "10"
    count = torch.cuda.device_count()
    ray.init("local", num_cpus=2 * count, num_gpus=count, object_store_memory=256 << 20, include_dashboard=False, log_to_driver=False)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield count
    ray.shutdown()
    os.environ.clear()
    os.environ.update(kept)


def meet(k: Any, folder: str, count: int, i: int) -> tuple[Any, ...]:
    """Where a worker is, once all of them run at one time; by torch, too, which sees the GPU that Ray gave."""
    import torch

    os.makedirs(folder, exist_ok=True)
    open(os.path.join(folder, str(i)), "w").close()
    proc.eventually(lambda: len(os.listdir(folder)) == count, "all run at one time")
    x = torch.full((1000,), float(i), device="cuda")
    y, timings = k.square(x, timing=True)
    on_host, of_host = k.square(np.full(1000, i, np.float32), timing=True)
    assert bool((y == i * i).all()) and bool((on_host == i * i).all())
    return timings.device, of_host.device, k.own_device.uuid, f"GPU-{torch.cuda.get_device_properties(0).uuid}", k.info.pid


def test_each_worker_works_on_the_gpu_that_ray_gave_it(gpus: int, tmp_path: Path) -> None:
    import kops.ray

    found = [value for _, value in kops.ray.map(meet, [(str(tmp_path / "met"), gpus, i) for i in range(gpus)], in_flight=1)]
    assert all(len(set(one[:4])) == 1 for one in found), found
    assert len({one[0] for one in found}) == gpus and len({one[4] for one in found}) == 1
