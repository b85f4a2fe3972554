"""Running a solution on a GPU: on a connection of its own, whose kernels have a process of their own (an executor), which is given up
after a fault and after so many solutions."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from .. import Client, Device, KopsError, Timings
from .._companions import BY_CODE, DTYPES, numpy
from ._carrier import Block, Carrier, Copies, Key, Memory, Room, Staged, allocates, timed_alone
from ._draws import Draw, changed_input, check_outputs, new_seed
from ._runner import Runner, Step
from ._shelf import Held, Looked, Shelf
from ._solution import Bound, Plan, Solution
from ._task import Case, Task
from ._values import Tensor, bits_dtype
from ._verdict import LOST, Busy, Fault, Gone, HeldBack, Refused, Stop, TaskFault, Worst

PER_EXECUTOR = 100
# Launches to prepare, and as many to look at, beside the one that runs: more where they are small.
AHEAD, AHEAD_MOST, AHEAD_BYTES = 3, 8, 256 << 20
VARIETY = 4  # pieces of memory of one size, from which each launch gets one
VARIED_BYTES = 1 << 30  # a solution with more memory gets fewer pieces
MEMORIES = 3  # sets of memory that the steps of a case use
NAME = "solution.cu"  # in messages of the compiler
BEGIN = 'extern "C" __global__ void begin(int* p) {}'
_SPENT = tuple(BY_CODE[code] for code in ("out_of_memory", "no_memory"))


@contextlib.contextmanager
def errors(kernel: str = "") -> Iterator[None]:
    """Turns an error of a client into its meaning for a judgement."""
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
    except LOST as error:
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


def ahead_of(nbytes: int) -> int:
    """How many launches are prepared and looked at beside the one that runs, where each has so many bytes."""
    return max(AHEAD, min(AHEAD_MOST, AHEAD_BYTES // max(nbytes, 1)))


def compiled(client: Client, solution: Solution, device: Device) -> Any:
    """The solution's module on a connection. Raises Stop, Gone."""
    with errors():
        return client.compile(solution.source, solution.entries, options=solution.options, name=NAME, device=device)


def compile_ahead(client: Client, solution: Solution, device: Device) -> bool:
    """Has the daemon compile it, for `compiled` on another connection. Nothing is loaded, which would take the GPU's time in one more
    process: the module is the host's, where there is one. Answers whether its kernels may allocate memory. Raises Stop, Gone."""
    host = next((one for one in client.devices if one.backend == "host"), None)
    arch = client.info.kernels.get("arch", ())[device.index :][:1]
    if host is None or not any(arch):
        return allocates(client, compiled(client, solution, device))
    with errors():
        module = client.compile(solution.source, solution.entries, options=solution.options, name=NAME, arch=arch[0], device=host)
    return allocates(client, module)


class Executor:
    """A connection whose kernels have a process of their own."""

    def __init__(self, path: Any, timeout: float) -> None:
        self.client = Client(path, timeout=timeout, reconnect_timeout=0, isolate="connection", autostart=False, where="daemon")
        self.solutions = 0
        self.seen: set[str] = set()  # keys of solutions that have run: module state may stay loaded

    def begin(self, device: Device) -> None:
        """Has its process be there before it is needed, if that can be."""
        with contextlib.suppress(KopsError):
            module = self.client.compile(BEGIN, "begin", name="begin.cu", device=device)
            module.kernel("begin", "int* p[1]", grid=1, block=1)(self.client.guarded((1,), "i32", device=device))

    def takes(self, solution: Solution, alone: bool) -> bool:
        """`alone`: the solution's kernels have a heap, which is the process's. It is as the driver made it, and no other solution's."""
        return self.solutions < (1 if alone else PER_EXECUTOR) and solution.key not in self.seen

    def close(self) -> None:
        with contextlib.suppress(KopsError):
            self.client.close()


class GpuRunner(Runner):
    how = "gpu"

    def __init__(
        self, executor: Executor, carrier: Carrier, solution: Solution, device: Device, deadline: float, shelf: Shelf | None = None
    ) -> None:
        super().__init__(solution)
        self.shelf = shelf
        if shelf is not None:
            shelf.begin()
        self.executor, self.client, self.gpu, self.deadline = executor, executor.client, device, deadline
        self.carrier, self.crew = carrier, carrier.crew
        self.device = device.name
        self.multiprocessors = device.compute_units or None
        executor.solutions += 1
        executor.seen.add(solution.key)
        self._kernels: dict[tuple[Any, ...], Any] = {}
        self._buffers: dict[str, tuple[Any, Memory]] = {}
        self._rooms: list[Room] = []  # rooms of this solution
        self._bytes = 0
        self.seconds: dict[Case, float] = {}  # time of the shortest launch of the check
        self.unseen: Any = None  # inputs of the timed launches, where they are prepared beside the check
        self.fill_at_last: Callable[[], list[Held]] = list  # memory that is filled where the check looks at its last launches
        self._free: dict[Key, list[Room]] = {}  # rooms of this solution that no launch uses
        self._random = random.SystemRandom()
        self._module = compiled(self.client, solution, device)

    def kernel(self, one: Bound) -> Any:
        how = {"cooperative": one.launch.cooperative, "pdl": one.launch.pdl}
        key = (one.launch.entry, one.params, *how.values())
        if key not in self._kernels:
            with errors(one.launch.entry):
                self._kernels[key] = self._module.kernel(one.launch.entry, one.params, grid=1, block=1, **how)
        return self._kernels[key]

    # Memory. A launch's memory may be used again once it is done, but not at once.

    def block(self, shape: tuple[int, ...], dtype: str, side: str) -> Block:
        size = math.prod(shape) * DTYPES[dtype]
        with errors():
            return self.carrier.block(shape, dtype, self._room(self.carrier.key_of(size, side)) if size else None)

    def _room(self, key: Key) -> Room:
        free = self._free.setdefault(key, [])
        if not free or (len(free) < VARIETY and self._bytes < VARIED_BYTES):
            room = self.carrier.take(key)
            self._rooms.append(room)
            self._bytes += room.nbytes
            return room
        return free.pop(self._random.randrange(len(free)))

    def memory(self, plan: Plan, side: str) -> Memory:
        return {area.name: self.block(area.shape, area.dtype, side) for area in plan.areas.values()}

    def release(self, memory: Memory) -> None:
        """Lets other launches have the memory."""
        for block in memory.values():
            if block.room is not None:
                self._free.setdefault(block.room.key, []).append(block.room)

    def fill(self, memory: Memory, images: Mapping[str, Any]) -> Copies:
        with errors():
            return self.carrier.up(memory, images)

    def read(self, memory: Memory) -> Copies:
        with errors():
            return self.carrier.down(memory)

    @staticmethod
    def ended(copies: Copies) -> Mapping[str, Any]:
        """Waits for copies. Returns the images that they have read."""
        with errors():
            copies.wait()
            return copies.images

    # Launches

    def arguments(self, one: Bound, memory: Memory) -> list[Any]:
        return [memory[a].tensor if isinstance(a, str) else a for a in one.arguments]

    @staticmethod
    def geometry(one: Bound) -> dict[str, Any]:
        made: dict[str, Any] = {"grid": one.grid, "block": one.block}
        made |= {"shared": one.shared} if one.shared else {}
        return made | ({"cluster": one.cluster} if one.cluster else {})

    def launched(self, plan: Plan, memory: Memory, timed: bool = False) -> Timings | None:
        """Runs all launches of a plan, once."""
        end = time.monotonic() + self.deadline
        if timed and len(plan.launches) > 1:
            return self.together([(plan, memory)])
        for one in plan.launches:
            kernel = self.kernel(one)
            left = max(int((end - time.monotonic()) * 1e3), 1)
            with self._waited(left), errors(one.launch.entry):
                arguments = self.arguments(one, memory)
                if timed:
                    how = timed_alone(self.client)
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

    def together(self, runs: Sequence[tuple[Plan, Memory]]) -> Timings:
        """The launches on several draws, one behind the other, timed as a whole."""
        steps = [
            (self.kernel(one), *self.arguments(one, memory), self.geometry(one)) for plan, memory in runs for one in plan.launches
        ]
        with errors("one of " + ", ".join(dict.fromkeys(one.launch.entry for plan, _ in runs for one in plan.launches))):
            how = timed_alone(self.client)
            answer = self.client.sequence(steps, deadline_ms=max(int(self.deadline * len(runs) * 1e3), 1), **how)
            made: Timings = answer[1]
            return made

    def steps(self, task: Task, steps: Sequence[Step]) -> Iterator[Callable[[], Worst | None]]:
        """Copies for a step are prepared during the steps before it, and looked at during the steps behind it."""
        if self.shelf is not None and self.in_rounds([step.draw for step in steps]):
            yield from self._held_steps(self.shelf, task, steps)
            return
        ahead: deque[Future[Staged]] = deque()
        behind: deque[Callable[[], Worst | None]] = deque()
        reading: tuple[Staged, Copies] | None = None
        rest = iter(steps)
        beside = ahead_of(max((step.draw.nbytes for step in steps), default=0))

        def looked_at(staged: Staged, copies: Copies) -> None:
            behind.append(self.crew.submit(wrong_in, task, staged, self.ended(copies)).result)

        for step in steps:
            for later in itertools.islice(rest, 1 + beside - len(ahead)):
                ahead.append(self.crew.submit(self._stage, task, later.draw))
            try:
                staged = ahead.popleft().result()
                memory = self._memory_of(staged.plan, step)
                filling = self.fill(memory, staged.images)
                if reading is not None:
                    last, reading = reading, None
                    looked_at(*last)
                self.ended(filling)
                self.launched(staged.plan, memory)
                reading = staged, self.read(memory)
            except BaseException:
                if reading is not None:
                    looked_at(*reading)
                yield from behind
                raise
            if len(behind) > beside:
                yield behind.popleft()
        if reading is not None:
            looked_at(*reading)
        yield from behind

    def in_rounds(self, draws: Sequence[Draw]) -> bool:
        return self.shelf is not None and all(map(self.shelf.takes, draws))

    def at_once(self, task: Task, draws: Mapping[Case, Sequence[Draw]]) -> list[list[Case]]:
        if not self.in_rounds([draw for some in draws.values() for draw in some]):
            return super().at_once(task, draws)
        groups: list[list[Case]] = [[]]
        nbytes = 0
        for case, some in draws.items():
            size = MEMORIES * self.plan(task, some[0]).nbytes
            if groups[-1] and nbytes + size > VARIED_BYTES:
                groups.append([])
                nbytes = 0
            groups[-1].append(case)
            nbytes += size
        return groups

    def _held_steps(self, shelf: Shelf, task: Task, steps: Sequence[Step]) -> Iterator[Callable[[], Worst | None]]:
        """In rounds, in which each memory is used once: to let another process work on the GPU in between takes longer than most
        launches."""
        # Somewhere a round ends early, so a launch that defers its work to the next one cannot know that there is a
        # next one.
        end_behind = steps[self._random.randrange(len(steps))] if steps else None
        rounds: list[list[Step]] = [[]]
        for step in steps:
            if any(other.buffers == step.buffers or other is end_behind for other in rounds[-1]):
                rounds.append([])
            rounds[-1].append(step)
        several = self._hold(shelf, task, rounds[0])
        shelf.fill(several)
        for later in [*rounds[1:], None]:
            launched, stop = self._launched_in_turn(several)
            then: list[Held] = []
            try:
                if stop is None:
                    then = self.fill_at_last() if later is None else self._hold(shelf, task, later)
            except (Stop, Refused, TaskFault, Gone) as error:  # told behind what the launches before have left
                stop = error
            looked = Looked([], False)
            try:
                if launched:
                    looked = shelf.look(task, several[:launched], then)
            except Gone:
                if stop is None:
                    raise
            for held, right in zip(several, looked.right):
                yield partial(self._worst_of, task, held, right)
            if stop is not None:
                raise stop
            if not looked.filled:
                shelf.fill(then)
            several = then

    def _hold(self, shelf: Shelf, task: Task, steps: Sequence[Step]) -> list[Held]:
        return [shelf.hold(plan := self.plan(task, step.draw), step.draw, self._memory_of(plan, step)) for step in steps]

    def _launched_in_turn(self, several: Sequence[Held]) -> tuple[int, Exception | None]:
        """How many were launched, and why no more. Each is waited for: others that were asked for behind one that faults or hangs would run
        once more in a new process, and fault there again."""
        for i, held in enumerate(several):
            begun = time.monotonic()
            try:
                self.launched(held.plan, held.memory)
            except (Stop, Refused, Gone) as error:
                return i, error
            took, case = time.monotonic() - begun, held.draw.case
            self.seconds[case] = min(self.seconds.get(case, took), took)
        return len(several), None

    def worst_of(self, task: Task, several: Sequence[Held], then: Sequence[Held] = ()) -> Worst | None:
        """The error of the first launch that has left something wrong. Memory is filled for the launches `then`, unless something
        is wrong. Raises Stop, Gone."""
        assert self.shelf is not None
        looked = self.shelf.look(task, several, then)
        for held, right in zip(several, looked.right):
            worst = self._worst_of(task, held, right)
            if worst is not None:
                return worst
        if then and not looked.filled:
            self.shelf.fill(then)
        return None

    def _worst_of(self, task: Task, held: Held, right: bool | Worst) -> Worst | None:
        assert self.shelf is not None
        if isinstance(right, Worst):
            return right
        return None if right else wrong_in(task, *self.shelf.staged(held))

    def pipelined(self, runs: Sequence[tuple[Plan, Memory]], before: Callable[[Memory], Sequence[Any]]) -> list[Timings]:
        """The launches on several draws, each timed, behind what `before` asks for. All are asked for at once, so each has until all of
        them have to end."""
        if any(len(plan.launches) > 1 for plan, _ in runs):
            return [self._behind(plan, memory, before) for plan, memory in runs]
        one = runs[0][0].launches[0]
        self.kernel(one)  # compile it before anything is asked for
        left = max(int(self.deadline * len(runs) * 1e3), 1)
        asked: list[Any] = []
        with errors(one.launch.entry):
            how = {**timed_alone(self.client), "deadline_ms": left}
            try:
                for plan, memory in runs:
                    one = plan.launches[0]
                    asked.append((before(memory), self.kernel(one).submit(*self.arguments(one, memory), **self.geometry(one), **how)))
            except BaseException:
                with contextlib.suppress(KopsError):
                    _results(asked)  # the submitted runs use memory
                raise
            return _results(asked)

    def _behind(self, plan: Plan, memory: Memory, before: Callable[[Memory], Sequence[Any]]) -> Timings:
        with errors():
            Copies({}, before(memory)).wait()
        timings = self.launched(plan, memory, timed=True)
        assert timings is not None
        return timings

    def _stage(self, task: Task, draw: Draw) -> Staged:
        return self.carrier.stage(self.plan(task, draw), draw, new_seed())

    def _memory_of(self, plan: Plan, step: Step) -> Memory:
        known = self._buffers.get(step.buffers)
        if known is None or known[0] != (plan.areas, step.side):
            if known is not None:
                self.release(known[1])
            known = self._buffers[step.buffers] = ((plan.areas, step.side), self.memory(plan, step.side))
        return known[1]

    def close(self, lost: bool = False) -> None:
        unseen, self.unseen, self.fill_at_last = self.unseen, None, list  # drop all that refers to this runner
        if unseen is not None:
            unseen.close()
        self._buffers.clear()
        self._kernels.clear()
        self._free.clear()
        self._module = None
        rooms, self._rooms = self._rooms, []
        if lost:
            self.carrier.lose(rooms)
        else:
            self.carrier.give(rooms)


def _results(asked: Sequence[tuple[Sequence[Any], Any]]) -> list[Timings]:
    """Waits for launches, and for the requests before each. Returns the launches' timings. Raises the first error."""
    found: list[Timings] = []
    failed: BaseException | None = None
    for before, launch in asked:
        for one in (*before, launch):
            try:
                answer = one.result()
            except KopsError as error:
                failed = failed or error
        if failed is None:
            found.append(answer)
    if failed is not None:
        raise failed
    return found


def wrong_in(task: Task, staged: Staged, images: Mapping[str, Any]) -> Worst | None:
    """The error in the memory that a launch has left. Raises Stop where something was written outside of the tensors. Any thread's."""
    plan, draw = staged.plan, staged.draw
    found: dict[str, Any] = {}
    poisons: dict[str, Any] = {}
    for name, area in plan.areas.items():
        dtype = bits_dtype(area.dtype)
        if name not in images:
            found[name] = poisons[name] = numpy.empty(area.shape, dtype)
            continue
        at = staged.changed_margin(name, images[name])
        if at is not None:
            kernels = ", ".join(dict.fromkeys(one.launch.entry for one in plan.launches))
            text = f"a write outside of {name}, which has {area.nbytes} bytes, at its byte {at}, in the case {draw.case}"
            raise Stop("faulted", f"{kernels}: {text}", True, fault=Fault(kernels, text, "out_of_bounds"))
        found[name] = staged.part(name, images[name]).view(dtype).reshape(area.shape)
        if area.role == "output":
            poisons[name] = staged.part(name, staged.images[name]).view(dtype).reshape(area.shape)
    outputs = {area.name: Tensor(area.dtype, found[area.name]) for area in plan.of("output")}
    return changed_input(draw, found) or check_outputs(task, draw, outputs, poisons)
