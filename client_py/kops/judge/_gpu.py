"""Running a solution on a GPU: on a connection of its own, whose kernels have a process of their own (an executor), which is given up
after a fault and after so many solutions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from .._base.errors import BY_CODE, KopsError
from .._base.needs_numpy import numpy
from .._base.results import Device, Timings
from .._calls.plans import truest
from .._clients.client import Client
from ._bind import Bound, Plan
from ._device import Block, alone
from ._draws import Draw
from ._errors import Refused
from ._poison import poisons_of
from ._runner import Ran, Runner
from ._solution import Solution
from ._stop import Busy, Gone, HeldBack, Stop
from ._values import Tensor
from ._verdict import Fault

__all__ = ["Executor", "GpuRunner", "compiled", "errors"]

PER_EXECUTOR = 16
Memory: TypeAlias = dict[str, Block]
_LOST = tuple(BY_CODE[code] for code in ("connection_lost", "connect_failed", "shutting_down", "device_lost", "timeout", "buffer_lost",
                                         "bad_reply", "stale_buffer", "internal"))  # fmt: skip
_SPENT = tuple(BY_CODE[code] for code in ("out_of_memory", "no_memory"))


@contextlib.contextmanager
def errors(kernel: str = "") -> Iterator[None]:
    """What a client raises, as what it means for a judgement."""
    try:
        yield
    except BY_CODE["compile_failed"] as error:
        raise Stop("not_compiled", error.message, log=str(getattr(error, "log", "")) or error.message) from None
    except BY_CODE["device_fault"] as error:
        found = getattr(error, "kernel", None) or kernel
        driver = str(getattr(error, "driver", None) or "")
        raise Stop("faulted", f"{found}: {error.message}", True, fault=Fault(found, error.message, driver=driver)) from None
    except BY_CODE["job_timeout"] as error:
        raise Stop("hangs", f"{kernel} did not end: {error.message}", True, fault=Fault(kernel, error.message)) from None
    except BY_CODE["deadline_exceeded"] as error:
        if "not started" in error.message:
            raise Busy(f"the GPU had other work until the deadline: {error.message}") from None
        raise Stop("hangs", f"{kernel} did not end within its deadline", True, fault=Fault(kernel, error.message)) from None
    except _LOST as error:
        raise Gone(f"{error.message} [{error.code}]") from None
    except BY_CODE["quota_exceeded"] as error:
        if error.detail.get("quota") == "faults":
            raise HeldBack(error.message, float(error.detail.get("retry_after_ms", 60_000)) / 1e3) from None
        raise Stop("no_verdict", f"a quota of the daemon's is used up: {error.message}", True) from None
    except _SPENT as error:
        raise Stop("no_verdict", f"there is no memory for it: {error.message}", True) from None
    except BY_CODE["permission_denied"] as error:
        raise Stop("no_verdict", error.message) from None
    except (Refused, Stop):
        raise
    except KopsError as error:
        raise Stop("refused", f"{kernel}: {error.message}" if kernel else error.message) from None


def compiled(client: Client, solution: Solution, device: Device) -> Any:
    """The solution's module on a connection. Raises Stop, Gone."""
    with errors():
        return client.compile(solution.source, solution.entries, options=solution.options, name="solution.cu", device=device)


class Executor:
    """A connection whose kernels have a process of their own."""

    def __init__(self, path: Any, timeout: float) -> None:
        self.client = Client(path, timeout=timeout, reconnect_timeout=0, isolate="connection", autostart=False)
        self.solutions = 0
        self.seen: set[str] = set()  # what it has run: module state may stay loaded

    def takes(self, solution: Solution) -> bool:
        return self.solutions < PER_EXECUTOR and solution.key not in self.seen

    def close(self) -> None:
        with contextlib.suppress(KopsError):
            self.client.close()


class GpuRunner(Runner):
    how = "gpu"

    def __init__(self, executor: Executor, solution: Solution, device: Device, deadline: float) -> None:
        self.executor, self.client, self.gpu, self.deadline = executor, executor.client, device, deadline
        self.device = device.name
        self.multiprocessors = device.compute_units or None
        executor.solutions += 1
        executor.seen.add(solution.key)
        self._module = compiled(self.client, solution, device)
        self._kernels: dict[tuple[Any, ...], Any] = {}
        self._buffers: dict[str, tuple[Any, Memory]] = {}

    def kernel(self, one: Bound) -> Any:
        how = {"cooperative": one.launch.cooperative, "pdl": one.launch.pdl}
        key = (one.launch.entry, one.launch.signature, *how.values())
        if key not in self._kernels:
            with errors(one.launch.entry):
                self._kernels[key] = self._module.kernel(one.launch.entry, one.launch.params, grid=1, block=1, **how)
        return self._kernels[key]

    def memory(self, plan: Plan, side: str) -> Memory:
        """Memory for all areas of a plan."""
        with errors():
            return {area.name: Block(self.client, area.shape, area.dtype, self.gpu, side) for area in plan.areas.values()}

    def fill(self, memory: Memory, draw: Draw, poisons: dict[str, Any], seed: int) -> None:
        rng = numpy.random.default_rng(seed)
        with errors():
            for name, block in memory.items():
                block.set(draw.tensors[name].data if name in draw.tensors else poisons[name], rng)

    def arguments(self, one: Bound, memory: Memory) -> list[Any]:
        return [memory[a].tensor if isinstance(a, str) else a for a in one.arguments]

    @staticmethod
    def geometry(one: Bound) -> dict[str, Any]:
        made: dict[str, Any] = {"grid": one.grid, "block": one.block}
        made |= {"shared": one.shared} if one.shared else {}
        return made | ({"cluster": one.cluster} if one.cluster else {})

    def launched(self, plan: Plan, memory: Memory, timed: bool = False) -> Timings | None:
        """All launches, once."""
        end = time.monotonic() + self.deadline
        if timed and len(plan.launches) > 1:
            return self._sequence(plan, [memory])
        for one in plan.launches:
            kernel = self.kernel(one)
            left = max(int((end - time.monotonic()) * 1e3), 1)
            with self._waited(left), errors(one.launch.entry):
                arguments = self.arguments(one, memory)
                if timed:
                    how = {**alone(self.client, kernel), "timing": truest(self.client._live())}
                    made: Timings = kernel(*arguments, **self.geometry(one), deadline_ms=left, **how)
                    return made
                kernel(*arguments, **self.geometry(one), deadline_ms=left, blocking=True)
        return None

    @contextlib.contextmanager
    def _waited(self, left_ms: int) -> Iterator[None]:
        """Where the launches before it took most of the deadline, it is not known to have waited for others alone."""
        try:
            yield
        except Busy as error:
            if left_ms < self.deadline * 500:
                raise Gone(str(error)) from None
            raise

    def _sequence(self, plan: Plan, memories: Sequence[Memory]) -> Timings:
        steps = [
            (self.kernel(one), *self.arguments(one, memory), self.geometry(one)) for memory in memories for one in plan.launches
        ]
        with errors("one of " + ", ".join(dict.fromkeys(one.launch.entry for one in plan.launches))):
            how = {**alone(self.client, self.client.sequence), "timing": truest(self.client._live())}
            answer = self.client.sequence(steps, deadline_ms=max(int(self.deadline * len(memories) * 1e3), 1), **how)
            made: Timings = answer[1]
            return made

    def together(self, plan: Plan, memories: Sequence[Memory]) -> Timings:
        """The launches on several draws, one behind the other, timed as a whole."""
        return self._sequence(plan, memories)

    def read(self, plan: Plan, memory: Memory, draw: Draw) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Outputs, and inputs as they are now. Raises Stop where something was written outside of them."""
        found: dict[str, Any] = {}
        with errors():
            for name, block in memory.items():
                found[name], at = block.get()
                if at is not None:
                    kernels = ", ".join(dict.fromkeys(one.launch.entry for one in plan.launches))
                    text = f"a write outside of {name}, which has {block.size} bytes, at its byte {at}, in the case {draw.case}"
                    raise Stop("faulted", f"{kernels}: {text}", True, fault=Fault(kernels, text, "out_of_bounds"))
        outputs = {area.name: Tensor(area.dtype, found[area.name]) for area in plan.of("output")}
        return outputs, {name: found[name] for name in draw.tensors}

    def run(self, plan: Plan, draw: Draw, buffers: str, side: str, seed: int) -> Ran:
        known = self._buffers.get(buffers)
        if known is None or known[0] != (plan.areas, side):
            self._buffers.pop(buffers, None)
            known = self._buffers[buffers] = ((plan.areas, side), self.memory(plan, side))
        memory = known[1]
        poisons = poisons_of(plan, seed)
        self.fill(memory, draw, poisons, seed)
        self.launched(plan, memory)
        outputs, inputs = self.read(plan, memory, draw)
        return Ran(outputs, inputs, poisons)

    def close(self) -> None:
        self._buffers.clear()
        self._kernels.clear()
        self._module = None
