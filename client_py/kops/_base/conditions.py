"""What a device's speed depends on, read before and after a measurement: clocks, temperature, power, what keeps clocks down.

The line that is printed is also kopsctl's (daemon/ctl/view/measure.c); tests/vectors/conditions.json holds both to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

SLOWING = ("power_cap", "hw_slowdown", "thermal", "hw_thermal", "power_brake")  # reasons that a measurement is not to have
SAME = 0.02  # clocks that differ by less are the same


@dataclass(frozen=True)
class Reading:
    """A device at one time. None: the device does not tell; `missing` says why nothing is known, else it is empty.

    `clock_mhz` is of a GPU's multiprocessors, or of the host's fastest processor. `power_slowed_us` and `thermal_slowed_us`
    are how long power and heat have kept the clocks down since the driver began. `reasons` says why clocks are not higher: `idle`,
    `clocks_setting`, `power_cap`, `hw_slowdown`, `sync_boost`, `thermal`, `hw_thermal`, `power_brake`, `display`, `other`.
    """

    device: str = ""
    missing: str = ""
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    memory_clock_mhz: float | None = None
    memory_clock_max_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_slowed_us: float | None = None
    thermal_slowed_us: float | None = None
    reasons: tuple[str, ...] = ()

    @classmethod
    def of(cls, map_: Mapping[str, Any], device: str = "") -> Reading:
        """From the conditions map of the wire; keys that are not known here are left out."""
        known = {key: value for key, value in map_.items() if key in _MEMBERS}
        return cls(**{**known, "device": device, "reasons": tuple(known.get("reasons", ()))})

    def __str__(self) -> str:
        return str(Conditions(self, self))


_MEMBERS = {f.name for f in fields(Reading)}


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _part(before: float | None, after: float | None, most: float | None, unit: str) -> str:
    """`1980 → 1590 of 1980 MHz`; nothing where nothing is known."""
    known = [_whole(value) for value in (before, after) if value is not None]
    if not known:
        return ""
    moved = known[0] if len(set(known)) == 1 else " → ".join(known)
    return f"{moved}{'' if most is None else f' of {_whole(most)}'} {unit}"


def _differs(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and abs(after - before) > SAME * max(before, after)


@dataclass(frozen=True)
class Conditions:
    """A device before and after a measurement. `print()` makes one line of it, with a warning where the device was slowed."""

    before: Reading
    after: Reading

    @property
    def missing(self) -> str:
        """Why nothing is known of one of the two readings, such as "no libnvidia-ml.so.1"; else empty."""
        return self.after.missing or self.before.missing

    @property
    def changed(self) -> bool:
        """The clocks were not the same before and after: by more than 2 %."""
        memory = _differs(self.before.memory_clock_mhz, self.after.memory_clock_mhz)
        return memory or _differs(self.before.clock_mhz, self.after.clock_mhz)

    @property
    def power_slowed_us(self) -> float | None:
        """How long power kept the clocks down between the readings."""
        return self._between("power_slowed_us")

    @property
    def thermal_slowed_us(self) -> float | None:
        """How long heat kept the clocks down between the readings."""
        return self._between("thermal_slowed_us")

    @property
    def throttled(self) -> tuple[str, ...]:
        """What kept the clocks down before, after or between: `power_cap`, `hw_slowdown`, `thermal`, `hw_thermal`, `power_brake`."""
        seen = {*self.before.reasons, *self.after.reasons}
        if (self.power_slowed_us or 0) > 0:
            seen.add("power_cap")
        if (self.thermal_slowed_us or 0) > 0 and not seen & {"thermal", "hw_thermal"}:
            seen.add("thermal")
        return tuple(reason for reason in SLOWING if reason in seen)

    @property
    def slowed(self) -> bool:
        """The times are longer than they need be: clocks were kept down, or fell."""
        fell = any(
            _differs(before, after) and after < before
            for before, after in (
                (self.before.clock_mhz, self.after.clock_mhz), (self.before.memory_clock_mhz, self.after.memory_clock_mhz),
            )
            if before is not None and after is not None
        )  # fmt: skip
        return bool(self.throttled) or fell

    @property
    def warning(self) -> str:
        """What to know before the times are believed; else empty."""
        if self.throttled:
            long = sum(us for us in (self.power_slowed_us, self.thermal_slowed_us) if us is not None and us > 0)
            return f"the clocks were kept down by {', '.join(self.throttled)}" + (f" (for {long / 1e3:.1f} ms)" if long else "")
        if self.slowed:
            return "the clocks fell while it was measured"
        if self.changed:
            return "the clocks rose while it was measured: more warmup makes the times alike"
        return ""

    def _between(self, name: str) -> float | None:
        before, after = getattr(self.before, name), getattr(self.after, name)
        return None if before is None or after is None else after - before

    def __str__(self) -> str:
        if self.after.missing:
            return f"clocks and temperature are not known: {self.after.missing}"
        a, b = self.before, self.after
        parts = [_part(a.clock_mhz, b.clock_mhz, b.clock_max_mhz, "MHz")]
        memory = _part(a.memory_clock_mhz, b.memory_clock_mhz, b.memory_clock_max_mhz, "MHz")
        parts += [memory and f"memory {memory}"]
        parts += [_part(a.temperature_c, b.temperature_c, None, "°C"), _part(a.power_w, b.power_w, b.power_limit_w, "W")]
        line = ", ".join(filter(None, parts))
        return f"{line}; WARNING: {self.warning}" if self.warning else line
