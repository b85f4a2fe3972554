"""Kernels of the user's own that fault and hang, on the stand-in GPU with executors: what the client raises, and that it goes on."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import kops
import pytest
from built import Daemon, backends

from support.kernels import HOSTILE, OTHERS  # isort: skip

if backends.nvrtc() is None:
    pytest.skip("there is no NVRTC here", allow_module_level=True)
if (why := backends.missing(backends.STANDIN)) is not None:
    pytest.skip(why, allow_module_level=True)


def standin(config: str) -> Daemon:
    return Daemon(config=backends.config(backends.STANDIN) + config)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with standin("[server]\njob_timeout_s = 1\n[executors]\nisolate = user\n") as running:
        yield running


def kernel(k: kops.Client, entry: str) -> kops.Kernel:
    return k.kernel(OTHERS, entry, "float* p[1]", grid=1, block=1)


def good(k: kops.Client) -> None:
    """A kernel that ends."""
    k.kernel(HOSTILE, "run_for", "unsigned* runs[1], int us", grid=1, block=1)(k.zeros(1, "u32"), 1)


def test_what_a_kernel_does_is_told_and_the_client_goes_on(daemon: Daemon) -> None:
    with kops.connect(daemon.socket_path, timeout=60) as k:
        p, before = k.zeros(1), k.info
        bad, spin = (kernel(k, entry) for entry in ("fault_kernel", "spin_forever"))
        with k.program() as program:
            k.square(p)
            bad(p)
        for call, index in ((lambda: bad(p), None), (program.run, 1)):
            with pytest.raises(kops.DeviceFault) as caught:
                call()
            assert (caught.value.kernel, caught.value.op_index) == ("fault_kernel", index)
            assert caught.value.driver == "CUDA_ERROR_ILLEGAL_ADDRESS" and isinstance(caught.value, RuntimeError)
        with pytest.raises(kops.JobTimeout) as hung:
            spin(p)
        assert hung.value.detail == {"timeout_s": 1, "daemon": "goes_on"}
        with pytest.raises(kops.QuotaExceeded, match="faulted or hung 3 times") as refused:
            good(k)
        assert refused.value.detail["quota"] == "faults" and refused.value.detail["retry_after_ms"] <= 60000
        k.square(p)
        assert k.info is before  # it is the same connection


async def test_isolation_is_asked_for(daemon: Daemon) -> None:
    with kops.connect(daemon.socket_path) as k, kops.connect(daemon.socket_path, isolate="connection") as apart:
        assert (k.info.isolation, apart.info.isolation) == ("user", "connection")
        with pickle.loads(pickle.dumps(apart)) as again:
            assert again.info.isolation == "connection"
    async with kops.connect_async(daemon.socket_path, isolate="connection") as k:
        assert k.info.isolation == "connection"
    with pytest.raises(kops.InvalidArgument, match="isolate"):
        kops.connect(daemon.socket_path, isolate="none")


def test_a_daemon_without_executors_for_users() -> None:
    with standin("[executors]\nisolate = none\n") as daemon:
        with kops.connect(daemon.socket_path) as k:
            assert k.info.isolation == "none" and "isolation: none" in str(k.info)
        with pytest.raises(kops.Unsupported, match="executors.isolate is none"):
            kops.connect(daemon.socket_path, isolate="connection")
