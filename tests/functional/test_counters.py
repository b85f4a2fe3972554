"""Counters: an op or a kernel alone in a process of its own, on copies, on the stand-in driver and CUPTI."""

from __future__ import annotations

import ctypes.util
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from domains import FIXTURES, Client, Domains
from gpu_machine import N, only_with_nvrtc, only_with_the_standin, values
from support import backends, nvml, proc, raw
from support.daemon import Daemon, binary
from support.kernels import OTHERS, compile_source, declare, pointer, scalar
from support.memfd import Shared

sys.path.insert(0, str(Path(__file__).parents[2] / "client_py"))

import kops  # noqa: E402

pytestmark = only_with_the_standin
start, client = FIXTURES

FIGURES = {
    "gpu__time_duration.sum": 7000,
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 91,
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 87.5,
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": 12,
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 62,
    "l1tex__t_sector_hit_rate.pct": "-",
}


def counting(figures: dict[str, Any] | None = None, **more: str) -> dict[str, str]:
    named = ",".join(f"{name}={value}" for name, value in {**FIGURES, **(figures or {})}.items())
    return {"KOPSD_EXECUTORS_CUPTI": str(backends.standin_cupti()), "KOPS_STANDIN_CUPTI": named, **more}


def square(client: Client, **more: Any) -> dict[str, Any]:
    return {"op": "square", "in": [client.tensors[0]], "out": [client.tensors[2]], **more}


def pair(start: Callable[..., Domains], client: Callable[..., Client]) -> tuple[Domains, Client, Client, int]:
    """A machine, two of its clients, and the executor that they have in common."""
    machine = start(env=counting())
    own, other = client(machine), client(machine)
    other.square()
    (common,) = machine.executors()
    return machine, own, other, common


def wait_until_it_counts(machine: Domains, common: int) -> None:
    proc.eventually(lambda: any(row.waiting("kernel") for row in machine.control.rows() if row.pid != common), "it counts")


def count(client: Client, **more: Any) -> dict[str, Any]:
    result: dict[str, Any] = client.connection.call("counters", square(client, **more))
    return result


def refusal(client: Client, **more: Any) -> raw.RpcError:
    return client.connection.error("counters", square(client, **more))


# ---- what is read ----


def test_an_op(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    own = client(start(env=counting()))
    own.memory[2].write(bytes(4 * N))
    result = count(own)
    assert result["verdict"] == "memory" and "87.5" in result["why"], result
    assert result["values"]["duration_us"] == 7 and result["values"]["dram_pct"] == 87.5
    assert "l1_hit_pct" not in result["values"], "the device does not count it"
    assert (result["kernels"], result["passes"]) == (1, 3)
    assert ("others" in result) == (ctypes.util.find_library("nvidia-ml") is not None)
    assert math.isclose(sum(result["stalls"].values()), 100)
    assert max(result["stalls"], key=lambda name: result["stalls"][name]) == "long_scoreboard"
    assert result["copied_bytes"] == 2 * 4 * N, "the input and the output"
    launch = result["launch"]
    assert launch["grid"][0] * launch["block"][0] >= N // 8 and 0 < launch["occupancy_pct"] <= 100
    assert not values(own.memory[2]).any(), "the client's output is not written"
    own.square()


@only_with_nvrtc
def test_a_kernel(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    own = client(start(env=counting()))
    own.own()
    own.memory[1].write(bytes(4 * N))
    result = own.connection.call("counters", {"kernel": own.custom, "args": [own.tensors[1], own.tensors[0], N]})
    assert result["variant"] == "user" and result["launch"]["registers"] > 0
    assert not values(own.memory[1]).any()
    own.launch_own()


@only_with_nvrtc
def test_what_each_pass_finds(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """What an execution may read and has written is restored before each of the two in the three passes, and the cache
    flushed before the one that is read."""
    machine = start(env=counting())
    own = client(machine)
    own.own()
    before = machine.executors()
    count(own)
    (profiling,) = machine.executors() - before

    def copies(ask: Callable[[], Any]) -> int:
        row = machine.control.row(profiling)
        before = row.copies_d2d
        ask()
        return row.copies_d2d - before

    def launch(kernel: int, **more: Any) -> int:
        return copies(lambda: own.connection.call("counters", {"kernel": kernel, "args": [own.tensors[1], own.tensors[0], N], **more}))

    warm = copies(lambda: count(own, cache="warm"))
    assert warm == 2, "the input and the output: an op that only writes its output needs no restoring"
    flushes = copies(lambda: count(own)) - warm
    assert flushes and flushes % 3 == 0
    assert copies(lambda: count(own, out=[own.tensors[0]])) == 2 + 2 * 3 + flushes, "in place: one piece, restored before each"
    assert launch(own.custom) == 2 + flushes
    assert launch(own.custom, cache="warm") == 2
    module = compile_source(own.connection, OTHERS, "custom_kernel")["module"]
    params = [pointer("out", "inout"), pointer("in", "in"), scalar("n", "i32")]
    kernel = declare(own.connection, module, entry="custom_kernel", params=params, grid=[4], block=[256])
    assert launch(kernel) == 3 + 2 * 3 + flushes, "what it is restored from, too"
    assert launch(kernel, cache="warm") == 3 + 2 * 3


def test_operands_that_overlap(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    own = client(start(env=counting()))
    assert count(own, out=[own.tensors[0]])["copied_bytes"] == 2 * 4 * N, "in place: one piece, which is written"
    view = {**own.tensors[0], "shape": [N // 2]}
    assert count(own, **{"in": [view], "out": [{**view, "offset": 2 * N}]})["copied_bytes"] == 2 * 2 * N, "side by side"


@pytest.mark.parametrize("kernels", [3, 16])
def test_the_longest_of_several_kernels(start: Callable[..., Domains], client: Callable[..., Client], kernels: int) -> None:
    result = count(client(start(env=counting(KOPS_STANDIN_CUPTI_RANGES=str(2 * kernels)))))
    assert result["kernels"] == kernels and result["values"]["duration_us"] == 7 * kernels, "of the second execution"


@pytest.mark.parametrize(("ranges", "says"), [(0, "this has 0"), (5, "2 executions of this launched 5"), (2 * 17, "this has 17")])
def test_kernels_that_cannot_be_told(start: Callable[..., Domains], client: Callable[..., Client], ranges: int, says: str) -> None:
    error = refusal(client(start(env=counting(KOPS_STANDIN_CUPTI_RANGES=str(ranges)))))
    assert error.code == "unsupported" and says in error.message, error


def test_other_processes(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """Those of the daemon, the common executor and the one that counts, are no others."""
    more = {"LD_LIBRARY_PATH": str(nvml.FOLDER), "KOPS_STANDIN_PROCESSES": "5"}
    own = client(start(env=counting(**more)))
    own.square()
    assert count(own)["others"] == 3


# ---- what is in the way ----


@pytest.mark.parametrize(
    ("env", "code", "says"),
    [
        (counting(KOPS_STANDIN_CUPTI_FAIL="start:35"), "permission_denied", "NVreg_RestrictProfilingToAdminUsers=0"),
        (counting(KOPS_STANDIN_CUPTI_FAIL="enable:26"), "device_error", "another profiler"),
        (counting(KOPS_STANDIN_CUPTI_FAIL="initialize:39"), "unsupported", "another tool"),
        (counting(KOPS_STANDIN_CUPTI_FAIL="stop:999"), "device_error", "999"),
        (counting(KOPSD_EXECUTORS_CUPTI="/nowhere/libcupti.so"), "unsupported", "/nowhere/libcupti.so"),
        (counting(KOPSD_EXECUTORS_CUPTI="off"), "unsupported", "switched off"),
    ],
    ids=["admins", "profiler", "tool", "error", "library", "off"],
)
def test_what_is_in_the_way(
    start: Callable[..., Domains], client: Callable[..., Client], env: dict[str, str], code: str, says: str
) -> None:
    own = client(start(env=env))
    for _ in range(2):  # the next one is refused for the same reason, and not for an earlier one's traces
        error = refusal(own)
        assert error.code == code and says in error.message, error
        own.square()


def test_the_host_has_none() -> None:
    with Daemon() as daemon, daemon.connect() as connection:
        view = raw.tensor(connection.register(Shared(4 * N)), [N])
        error = connection.error("counters", {"op": "square", "in": [view], "out": [view]})
        assert error.code == "unsupported" and "GPU" in error.message


def test_bad_requests(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    own = client(start(env=counting()))
    for params, code in (
        ({"kernel": 1}, "invalid_argument"),
        ({"cache": "hot"}, "invalid_argument"),
        ({"grid": [1]}, "invalid_argument"),
        ({"deadline_ms": 0}, "out_of_range"),
        ({"repeat": 2}, "unknown_key"),
    ):
        assert refusal(own, **params).code == code, params


# ---- what users see ----


def test_python(start: Callable[..., Domains]) -> None:
    machine = start(env=counting())
    with kops.connect(machine.daemon.socket_path) as k:
        given = np.ones(1000, np.float32)
        profile = k.profile("square", given, device=machine.gpu, repeat=4, counters=True)
        assert len(profile.samples) == 4 and profile.counters is not None
        counters = profile.counters
        assert (counters.verdict, counters["dram_pct"], counters["no such"]) == ("memory", 87.5, None)
        assert counters.top_stalls(1)[0][0] == "long_scoreboard" and counters.launch is not None
        for text in ("bound by memory: DRAM is at 87.5 %", "caches cold, 3 passes", "DRAM 87.5 %", "L1 -", "no spills"):
            assert text in str(profile), str(profile)
        assert k.profile("square", given, device=machine.gpu).counters is None
        warm = k.profile("square", given, device=machine.gpu, counters="warm").counters
        assert warm is not None and warm.cache == "warm"
        if backends.nvrtc():
            kernel = k.kernel(OTHERS, "custom_kernel", "out float* out[n], const float* in_[n], int n", grid="ceil_div(n, 256)", block=256)
            profile = kernel.profile(np.zeros(N, np.float32), np.ones(N, np.float32), N, repeat=2, counters=True)
            assert profile.counters is not None and profile.counters.variant == "user"
        with pytest.raises(kops.BadArgument, match="hot"):
            k.profile("square", given, counters="hot")
        with pytest.raises(kops.Unsupported, match="GPU"):
            k.profile("square", given, device="host", counters=True)


def kopsctl(machine: Domains, *arguments: str) -> str:
    command = [str(binary("kopsctl")), *arguments, "--socket", machine.daemon.socket_path]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_kopsctl(start: Callable[..., Domains], tmp_path: Path) -> None:
    machine = start(env=counting())
    text = kopsctl(machine, "run", "square", "--counters", "-d", machine.gpu)
    for part in ("bound by memory: DRAM is at 87.5 %", "L1 -", "no spills", "long_scoreboard 78 %"):
        assert part in text, text
    found = json.loads(kopsctl(machine, "run", "square", "--counters", "--cache", "warm", "-d", machine.gpu, "--json"))
    assert found["verdict"] == "memory" and found["values"]["dram_pct"] == 87.5
    if backends.nvrtc():
        source = tmp_path / "others.cu"
        source.write_text(OTHERS)
        params = ["-p", "float* out[n]", "-p", "const float* in_[n]", "-p", "int n=1000"]
        geometry = ["--grid", "4", "--block", "256", "--counters"]
        assert "bound by memory" in kopsctl(machine, "launch", str(source), "custom_kernel", *params, *geometry)


# ---- alone ----


@pytest.mark.parametrize("waits", [True, False])
def test_the_next_waits_as_long_as_others_did(start: Callable[..., Domains], client: Callable[..., Client], waits: bool) -> None:
    machine, own, other, common = pair(start, client)
    seconds = 1 if waits else 2  # to count takes less; what takes 5 is ended
    with machine.control.gate("kernel"):
        counted = own.connection.request("counters", square(own))
        wait_until_it_counts(machine, common)
        held = other.connection.request("run", square(other)) if waits else None
        assert not other.connection.readable(seconds)
    own.connection.reply(counted).get()
    if held is not None:
        other.connection.reply(held).get()
    began = time.monotonic()
    count(own)
    assert (time.monotonic() > began + seconds) == waits


def test_one_at_a_time(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    machine, one, two, common = pair(start, client)
    with machine.control.gate("kernel"):
        counted = one.connection.request("counters", square(one))
        wait_until_it_counts(machine, common)
        error = refusal(two)
    assert error.code == "limit_exceeded" and "one is read at a time" in error.message
    one.connection.reply(counted).get()
    count(two)


def test_a_deadline_ends_the_process(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    machine, own, other, common = pair(start, client)
    with machine.control.gate("kernel"):
        error = refusal(own, deadline_ms=2000)
        assert error.code == "deadline_exceeded", error
        proc.eventually(lambda: machine.executors() == {common}, "its process is gone")
    other.square()
    count(own)


def test_its_process_ends_with_the_connection(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    machine, own, _, common = pair(start, client)
    count(own)
    count(own)
    assert len(machine.executors()) == 2
    own.connection.close()
    closed = time.monotonic()
    proc.eventually(lambda: machine.executors() == {common}, "nobody can use it")
    assert time.monotonic() - closed < 5


def test_others_do_not_wait_for_ever(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """What counts is ended after some seconds, long before its deadline, and others go on."""
    machine, own, other, common = pair(start, client)
    with machine.control.gate("kernel"):
        counted = own.connection.request("counters", square(own, deadline_ms=300_000))
        wait_until_it_counts(machine, common)
        held = other.connection.request("run", square(other))
        assert own.connection.reply_error(counted).code == "job_timeout"
        machine.wait(lambda: machine.control.row(common).waiting("kernel") == 1)
    other.connection.reply(held).get()
