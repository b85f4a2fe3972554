"""Clocks, temperature and power around a profile: with a real daemon whose GPU computes nothing, and whose NVML is a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from built import Daemon
from kops._base.results import Conditions, Reading

from support import raw  # isort: skip
from support.nvml import GPU, Nvml  # isort: skip


@pytest.fixture
def nvml(tmp_path: Path) -> Nvml:
    return Nvml(tmp_path)


@pytest.fixture
def real(nvml: Nvml) -> Iterator[Daemon]:
    with nvml.daemon() as running:
        yield running


@pytest.fixture
def k(real: Daemon) -> Iterator[kops.Client]:
    with kops.connect(real.socket_path, timeout=raw.PATIENCE) as client:
        yield client


CALM = Reading(GPU, "", 1980, 1980, 3201, 3201, 36, 79.2, 700, 0, 0)


def told(**after: Any) -> Conditions:
    return Conditions(CALM, Reading.of({**vars(CALM), **after}, GPU))


VECTORS = json.loads((Path(__file__).resolve().parents[2] / "tests/vectors/conditions.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_the_same_line_as_kopsctl_prints(vector: dict[str, Any]) -> None:
    before, after = (Reading.of(vector[when], GPU) for when in ("before", "after"))
    assert str(Conditions(before, after)) == vector["line"]


@pytest.mark.parametrize(
    ("after", "changed", "slowed", "throttled"),
    [
        ({}, False, False, ()),
        ({"clock_mhz": 1590, "reasons": ["power_cap"], "power_slowed_us": 3500}, True, True, ("power_cap",)),
        ({"thermal_slowed_us": 10}, False, True, ("thermal",)),  # only between the readings
        ({"reasons": ["hw_thermal"], "thermal_slowed_us": 10}, False, True, ("hw_thermal",)),
        ({"clock_mhz": 1000}, True, True, ()),
        ({"clock_mhz": 1965, "reasons": ["idle", "clocks_setting"]}, False, False, ()),  # less than 2 % is the same clock
    ],
)
def test_what_a_device_did(after: dict[str, Any], changed: bool, slowed: bool, throttled: tuple[str, ...]) -> None:
    made = told(**after)
    assert (made.changed, made.slowed, made.throttled) == (changed, slowed, throttled)
    rose = Conditions(Reading(GPU, clock_mhz=345), Reading(GPU, clock_mhz=1980))
    assert rose.changed and not rose.slowed
    unknown = Conditions(CALM, Reading(missing="no libnvidia-ml.so.1"))
    assert str(unknown) == "clocks and temperature are not known: no libnvidia-ml.so.1"
    assert unknown.missing == "no libnvidia-ml.so.1" and not unknown.changed and not unknown.slowed
    half = Conditions(Reading(missing="it ran elsewhere"), CALM)
    assert half.missing == "it ran elsewhere" and str(half) == str(told())


def test_profiles(k: kops.Client, nvml: Nvml) -> None:
    a = numpy.ones(8, "float32")
    calm = k.profile("square", a).conditions
    assert calm == Conditions(calm.before, calm.after) and calm.after.device == GPU and calm.after.clock_mhz == 1980
    assert nvml.readings == 2, "one before, one after"
    assert str(k.profile("square", a)).splitlines()[-1] == str(calm)
    read = nvml.readings
    assert k.profile("square", a, conditions=False).conditions is None and nvml.readings == read
    host = k.profile("square", a, device="host").conditions
    assert host.before.device == host.after.device == "host"
    nvml.answer(reasons=0x4)
    assert str(k.profile("square", a)).endswith("WARNING: the clocks were kept down by power_cap")
    assert k.conditions().reasons == ("power_cap",) and k.conditions("host").device == "host"
    assert "power_cap" not in str(k.conditions("host"))
    assert all(device.conditions is not None for device in k.clients().devices)
    nvml.answer(block=1)
    assert k.profile("square", a).conditions.missing == "the driver does not answer"
    nvml.answer()


def test_the_reading_before_comes_before(k: kops.Client, nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes while it runs is seen."""
    from kops._calls import measure

    execute = measure.execute

    def slowing(*arguments: Any) -> Any:
        answer = yield from execute(*arguments)
        nvml.answer(clock=1590, power_slowed_ns=3_500_000)
        return answer

    monkeypatch.setattr(measure, "execute", slowing)
    found = k.profile("square", numpy.ones(8, "float32")).conditions
    assert (found.before.clock_mhz, found.after.clock_mhz, found.power_slowed_us, found.throttled) == (1980, 1590, 3500, ("power_cap",))


async def test_the_asynchronous_client(real: Daemon) -> None:
    async with await kops.connect_async(real.socket_path, timeout=raw.PATIENCE) as k:
        profile = await k.profile("square", numpy.ones(8, "float32"))
        assert profile.conditions.after.clock_mhz == 1980 and (await k.conditions()).temperature_c == 36


def test_comparisons_read_once(k: kops.Client, nvml: Nvml) -> None:
    found = k.compare("square", "square", numpy.ones(8, "float32"), rounds=6)
    assert nvml.readings == 2 and found.conditions.after.clock_mhz == 1980 and "1980 of 1980 MHz" in str(found)
