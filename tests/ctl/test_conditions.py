"""Clocks and temperature in kopsctl run, info, top and clients: with a daemon whose NVML is a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Ctl
from fake import FakeDaemon
from support.nvml import GPU, Nvml

CALM = "1980 of 1980 MHz, memory 3201 of 3201 MHz, 36 C, 79 of 700 W"
SQUARE = ("run", "square", "--shape", "8x8", "--repeat", "5")


@pytest.fixture
def nvml(tmp_path: Path) -> Nvml:
    return Nvml(tmp_path)


@pytest.fixture
def gpu(nvml: Nvml) -> Iterator[Ctl]:
    with nvml.daemon() as daemon:
        yield Ctl(daemon.socket_path)


def test_run(gpu: Ctl, nvml: Nvml) -> None:
    assert gpu(*SQUARE).stdout.splitlines()[-1] == CALM
    nvml.answer(reasons=0x4 | 0x40 | 0x1, clock=1590)
    line = gpu(*SQUARE).stdout.splitlines()[-1]
    assert line.startswith("1590 of 1980 MHz") and line.endswith("; WARNING: the clocks were kept down by power_cap, hw_thermal")
    told = json.loads(gpu(*SQUARE, "--json").stdout)["conditions"]
    assert told["before"] == told["after"] and told["after"]["clock_mhz"] == 1590
    assert told["after"]["reasons"] == ["idle", "power_cap", "hw_thermal"]
    nvml.answer(gpu="GPU-another")
    host = gpu(*SQUARE, "--device", "host").stdout.splitlines()[-1]
    assert "NVML" not in host and ("cpufreq" in host or "MHz" in host)
    read = nvml.readings
    gpu(*SQUARE[:-1], "1")
    assert nvml.readings == read, "one execution is no measurement"


def test_what_is_missing(nvml: Nvml, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()
    with nvml.daemon(LD_LIBRARY_PATH=str(tmp_path)) as daemon:
        ctl = Ctl(daemon.socket_path)
        assert ctl(*SQUARE).stdout.splitlines()[-1] == "clocks and temperature are not known: no libnvidia-ml.so.1"
        assert "device 0: clocks and temperature are not known: no libnvidia-ml.so.1" in ctl("info").stdout
        assert json.loads(ctl("info", "--json").stdout)["devices"][0]["conditions"] == {"missing": "no libnvidia-ml.so.1"}


def test_info_and_top(gpu: Ctl, nvml: Nvml) -> None:
    nvml.answer(reasons=0x20)
    warned = f"{CALM}; WARNING: the clocks were kept down by thermal"
    assert f"device 0: {warned}" in gpu("info").stdout.splitlines()
    devices = json.loads(gpu("info", "--json").stdout)["devices"]
    assert {d["uuid"]: d["conditions"].get("reasons") for d in devices}[GPU] == ["thermal"]

    def looks(*more: str) -> str:
        return gpu("top", "--batch", "--iterations", "2", "--delay", "0.1", *more).stdout

    assert warned in looks()
    rows: list[dict[str, Any]] = json.loads(looks("--json").splitlines()[-1])["devices"]
    assert rows[0]["conditions"]["temperature_c"] == 36


def test_a_daemon_that_is_older(ctl: Ctl, fake: FakeDaemon) -> None:
    assert "conditions" not in json.loads(ctl("info", "--json").stdout)["devices"][0]
    assert "clocks" not in ctl("info").stdout
