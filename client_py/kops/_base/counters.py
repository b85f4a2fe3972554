"""What the GPU's counters say of one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import table

CACHES = ("cold", "warm")  # the L2 cache is flushed before the execution that is read, or keeps what the one before has left


@dataclass(frozen=True)
class Launch:
    """How a kernel was launched, and what that costs."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    registers: int  # of a thread
    static_shared: int  # bytes of a block
    dynamic_shared: int
    local_bytes: int  # of a thread: registers that were spilled, and arrays
    limiter: str  # what keeps more warps from a multiprocessor: "warps", "blocks", "registers" or "shared_memory"
    occupancy_pct: float | None = None  # that the launch allows

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Launch:
        known = {key: value for key, value in reply.items() if key in cls.__dataclass_fields__}
        return cls(**{**known, "grid": tuple(reply["grid"]), "block": tuple(reply["block"])})


@dataclass(frozen=True)
class Counters:
    """One execution of a kernel by the GPU's counters; `print` shows all of it.

    `verdict` is "memory", "compute" or "latency", and `why` the reason. `values` has the figures by name (PROTOCOL.md, Counters),
    `counters["dram_pct"]` is one of them, None where the device does not count it. `stalls`: what warps wait for, in percent of
    their time."""

    verdict: str
    why: str
    kernel: str  # the name that the driver knows; empty where it tells none
    values: Mapping[str, float]
    stalls: Mapping[str, float]
    kernels: int = 1  # that one execution launches; the figures are of the longest
    passes: int = 0
    copied_bytes: int = 0
    device: str = ""
    variant: str = ""
    launch: Launch | None = None
    others: int | None = None  # processes of others that have a context on the device; None: not known
    cache: str = CACHES[0]

    @classmethod
    def of(cls, reply: Mapping[str, Any], cache: str) -> Counters:
        known = {key: value for key, value in reply.items() if key in cls.__dataclass_fields__}
        launch = reply.get("launch")
        return cls(**{**known, "launch": Launch.of(launch) if launch else None, "cache": cache})

    def __getitem__(self, name: str) -> float | None:
        return self.values.get(name)

    def top_stalls(self, count: int = 3) -> list[tuple[str, float]]:
        """The reasons for which warps wait most."""
        waits = ((name, pct) for name, pct in self.stalls.items() if name not in _NO_WAITS and pct > 0)
        return sorted(waits, key=lambda one: -one[1])[:count]

    def _percent(self, name: str) -> str:
        value = self[name]
        return table.NONE if value is None else f"{value:.1f} %"

    def _lines(self) -> list[tuple[str, str]]:
        """What is printed, a name and a text a line."""
        lines = [("duration", f"{table.number(self['duration_us'])} us, caches {self.cache}, {self.passes} passes")]
        lines += [(title, ", ".join(f"{what} {self._percent(name)}" for what, name in parts)) for title, parts in _LINES]
        conflicts, wavefronts = self["bank_conflicts"], self["shared_wavefronts"]
        if conflicts is not None and wavefronts:
            lines.append(("bank conflicts", f"{conflicts:.0f} of {wavefronts:.0f} accesses of shared memory"))
        if self.launch is not None:
            launch = self.launch
            limited = launch.occupancy_pct is not None and launch.occupancy_pct < 100
            allowed = f", allowed {launch.occupancy_pct:.1f} % (limit: {_LIMITERS[launch.limiter]})" if limited else ""
            spilled = f", {launch.local_bytes} bytes of local memory (spills)" if launch.local_bytes else ", no spills"
            lines.append(("occupancy", f"achieved {self._percent('occupancy_pct')}{allowed}"))
            lines.append(("launch", f"grid {_by(launch.grid)}, block {_by(launch.block)}, {launch.registers} registers{spilled}"))
        else:
            lines.append(("occupancy", f"achieved {self._percent('occupancy_pct')}"))
        stalls = ", ".join(f"{name} {pct:.0f} %" for name, pct in self.top_stalls())
        lines.append(("warps wait for", stalls or table.NONE))
        if self.others:
            lines.append(("beware", f"{self.others} other processes have the GPU: figures of L2 and DRAM may be theirs, too"))
        return lines

    def __str__(self) -> str:
        of = f", the longest of {self.kernels} kernels" if self.kernels > 1 else ""
        lines = self._lines()
        width = max(len(title) for title, _ in lines)
        head = f"{self.kernel or 'the kernel'} is bound by {self.verdict}{of}: {self.why}"
        return "\n".join([head, *(f"  {title:<{width}}  {text}" for title, text in lines)])


def _by(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))


_NO_WAITS = ("selected", "not_selected")
_LIMITERS = {"warps": "block size", "blocks": "blocks", "registers": "registers", "shared_memory": "shared memory"}
_LINES = (
    ("of peak", (("DRAM", "dram_pct"), ("L2", "l2_pct"), ("L1", "l1_pct"), ("SM", "sm_pct"))),
    ("in use", (("tensor cores", "tensor_pct"), ("issue slots", "issue_pct"))),
    ("cache hits", (("L2", "l2_hit_pct"), ("L1", "l1_hit_pct"))),
)
