"""`kops.ray.judge_many` while nodes and daemons are lost: every solution has one verdict all the same."""

from __future__ import annotations

import os
import signal
from typing import Any

import kops.ray
import pytest
from judging import TASK, solution
from kops import judge
from machines import Machines, standin, wait_for
from support import backends


@pytest.mark.skipif(backends.missing(backends.STANDIN) is not None, reason="there is no stand-in driver")
@pytest.mark.skipif(backends.nvrtc() is None, reason="there is no NVRTC here")
def test_on_gpus_and_a_daemon_that_is_lost(cluster: Machines) -> None:
    """Two GPUs of the stand-in, whose daemon is killed half-way."""
    limits = judge.Limits(at_most=0.2, launches=8, flush_bytes=1 << 16, slack_us=1e9)
    env = standin(2, KOPSD_EXECUTORS_ISOLATE="connection", KOPSD_EXECUTORS_FAULTS="0")
    with cluster.gpus(env, num_cpus=4, num_gpus=2), kops.ray.Pool() as pool:
        wait_for(pool, 2)
        run = kops.ray.judge_many(TASK, [solution("2 * in[i]", f"{i}") for i in range(12)], pool=pool, limits=limits, peak_gb_s=100.0)
        verdicts: dict[int, Any] = {}
        for index, verdict in run:
            assert index not in verdicts
            verdicts[index] = verdict
            if len(verdicts) == 4:
                os.kill(pool.workers[0].daemon, signal.SIGKILL)
    assert sorted(verdicts) == list(range(12))
    assert [v.kind for v in verdicts.values()] == ["right"] * 12, [v.text for v in verdicts.values()]
    assert {v.how for v in verdicts.values()} == {"gpu"} and all(v.time is not None for v in verdicts.values())
