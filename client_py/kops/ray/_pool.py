"""The workers of a cluster: made as actors, greeted, and replaced where they are lost. Used by one thread of the driver."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import BadArgument, Unsupported
from .._companions import VERSION, counted, log
from ._stats import Gathered
from ._worker import ASIDE, ASIDE_THREADS, THREADS, Worker, WorkerInfo, WorkersFailed, ray

FAILURES_MOST = 3  # starts that fail one after the other, for a pool of few workers
SPREAD = "SPREAD"


class Member:
    """A worker as the driver sees it. `doing` has its items in the order in which they were given, by the references of their outcomes."""

    def __init__(self, actor: Any, number: int) -> None:
        self.actor = actor
        self.number = number
        self.greeting: Any = actor.hello.remote(VERSION)
        self.info: WorkerInfo | None = None
        self.doing: dict[Any, Any] = {}

    @property
    def name(self) -> str:
        return f"worker {self.number}" if self.info is None else f"worker {self.number} on {self.info.node}"


def _per_worker(gpus: float | None, total: Mapping[str, float]) -> float:
    if gpus is None:
        return 1.0 if total.get("GPU", 0) >= 1 else 0.0
    if not 0 <= gpus <= 1:
        raise BadArgument(f"gpus={gpus}: a worker has one GPU, a part of one, or 0: none", {"key": "gpus"})
    return float(gpus)


def _workers(gpus: float, cpus: float, resources: Mapping[str, float]) -> int:
    """As many as the cluster has room for now: one for each GPU or part, without GPUs one for each node."""
    total = ray.cluster_resources()
    if gpus:
        return int(total.get("GPU", 0) / gpus + 1e-6)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {"CPU": cpus, **resources}
    return sum(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes)


class Pool:
    """Workers of a Ray cluster that stay for several pieces of work: a context manager.

        with kops.ray.Pool() as pool:
            for index, y in kops.ray.map(kern, blocks, pool=pool):
                ...

    A worker is an actor with one GPU, or a part of one (`gpus`), and `cpus` processors, that talks to the daemon of its node. Where no
    daemon answers there, it starts one, as `kops.connect()` does: the package has to be installed on each node, in the driver's version.
    `gpus=None`: a GPU each where the cluster has some, else none. `gpus=0`: none; ops then run on the nodes' processors, kernels of your
    own in the interpreter where they are declared with `fallback="interpret"`.

    `workers`: how many; None: one for each GPU of the cluster (or part of one), without GPUs one for each node. `resources` are Ray's
    custom resources of each, `runtime_env` is Ray's. Those for which the cluster has no room begin when it has. A worker that is lost is
    replaced, wherever there is room. `start_timeout`: seconds after which it is an error that no worker has begun.

    One piece of work at a time. `close()` ends the workers, whatever they do; the daemons stay for the next ones.
    """

    def __init__(
        self, workers: int | None = None, *, gpus: float | None = None, cpus: float = 1, resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None, start_timeout: float = 60.0,
    ) -> None:  # fmt: skip
        self._members: list[Member] = []
        self._closed = False
        if not ray.is_initialized():
            ray.init()
        self._gpus = _per_worker(gpus, ray.cluster_resources())
        count = _workers(self._gpus, cpus, resources or {}) if workers is None else workers
        self._wanted = f"{self._gpus:g} GPU, {cpus:g} CPU" + "".join(f", {amount:g} {name}" for name, amount in (resources or {}).items())
        if count < 1:
            raise BadArgument(
                f"the cluster has no room for a worker with {self._wanted}; it has {_text(ray.cluster_resources())}" if workers is None
                else f"workers={workers}: at least one is needed", {"key": "workers"},
            )  # fmt: skip
        self._start_timeout = start_timeout
        self._limit = max(FAILURES_MOST, count)
        self._failures: list[str] = []  # reasons of failed starts, since the last that succeeded
        self._progress = time.monotonic()  # when the last worker began, or was lost
        self._numbers = 0
        self._names: dict[str, str] = {}  # nodes' names by their ids
        self.busy = False  # with a piece of work
        self.gathered = Gathered()
        options: dict[str, Any] = {"num_gpus": self._gpus, "num_cpus": cpus, "max_concurrency": THREADS}
        options |= {"max_restarts": 0, "max_task_retries": 0}  # lost items are given to others, see _work.py
        if resources:
            options["resources"] = dict(resources)
        if runtime_env:
            options["runtime_env"] = dict(runtime_env)
        if not self._gpus:
            options["scheduling_strategy"] = SPREAD
        self._actor = ray.remote(concurrency_groups={ASIDE: ASIDE_THREADS})(Worker).options(**options)
        for _ in range(count):
            self._add()

    def _add(self) -> None:
        self._members.append(Member(self._actor.remote(self._numbers), self._numbers))
        self._numbers += 1

    # For the work

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """Workers that have begun and are not lost."""
        return tuple(member.info for member in self._members if member.info is not None)

    @property
    def ready(self) -> list[Member]:
        return [member for member in self._members if member.info is not None]

    @property
    def capacity(self) -> int:
        return len(self._members)

    def starting(self) -> dict[Any, Member]:
        """Members that have not begun, by the references of their greetings."""
        return {member.greeting: member for member in self._members if member.info is None}

    def check_started(self) -> None:
        """Raises WorkersFailed where no worker has begun in time."""
        if self.ready:
            return
        seconds = time.monotonic() - self._progress
        if not self._members or seconds > self._start_timeout:
            raise WorkersFailed(self._why(seconds), {"reasons": list(self._failures)})

    def _why(self, seconds: float) -> str:
        if self._failures:
            return f"no worker could begin: {self._failures[-1]}"
        return (
            f"no worker has begun within {seconds:.0f} s: each needs {self._wanted}, and of {_text(ray.cluster_resources())} "
            f"{_text(ray.available_resources())} is free. Ask for less, or wait longer (start_timeout)"
        )

    def greet(self, member: Member) -> None:
        """A worker's greeting has ended. Raises Unsupported for another version of the package there."""
        try:
            version, node, info, words = ray.get(member.greeting)
        except Exception as error:
            self._fail(member, error)
            return
        if info is None:
            raise Unsupported(
                f"kops {version} is installed on {node}, and {VERSION} here: install the same version on all nodes, or have Ray do it: "
                f'runtime_env={{"pip": ["kops=={VERSION}"]}}',
                {"node": node, "version": version},
            )
        member.info = info = replace(info, node=self._name(info))
        self._failures.clear()
        self._progress = time.monotonic()
        for word in words:
            self.gathered.take(info.node, word)

    def _name(self, info: WorkerInfo) -> str:
        """A node's name, which no other node of the pool has: several may run on one machine."""
        taken = {name for node, name in self._names.items() if node != info.node_id}
        name, n = self._names.get(info.node_id, info.node), 1
        while name in taken:
            n += 1
            name = f"{info.node}#{n}"
        self._names[info.node_id] = name
        return name

    def _fail(self, member: Member, error: Exception) -> None:
        """Notes that a worker could not begin. Others may, on other nodes."""
        text = _reason(error)
        log.warning("a worker of the pool could not begin: %s", text)
        self._failures.append(text)
        self.remove(member)
        if len(self._failures) < self._limit:
            self._add()

    def remove(self, member: Member) -> None:
        self._members.remove(member)
        with contextlib.suppress(Exception):
            ray.kill(member.actor, no_restart=True)

    def lose(self, member: Member, why: str) -> None:
        """A worker is lost: another takes its place, where there is room for one."""
        log.warning("%s is lost: %s", member.name, why)
        self.remove(member)
        if member.info is not None and not any(m.info and m.info.instance == member.info.instance for m in self.ready):
            self.gathered.lose(member.info.instance)
        if not self.ready:
            self._progress = time.monotonic()
        self._add()

    def last_words(self, seconds: float = 10.0) -> None:
        """Asks each daemon for its statistics, through one of its workers that is idle."""
        asked: dict[str, Member] = {}
        for member in self.ready:
            if member.info is not None and not member.doing:
                asked.setdefault(member.info.instance, member)
        waiting = {member.actor.stats.remote(): member for member in asked.values()}
        ended, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=seconds) if waiting else ([], [])
        for one in ended:
            info = waiting[one].info
            with contextlib.suppress(Exception):
                for word in ray.get(one):
                    self.gathered.take(info.node if info is not None else "", word)

    # Opening and closing

    def close(self) -> None:
        """Ends the workers. Idempotent."""
        self._closed = True
        members, self._members = self._members, []
        for member in members:
            with contextlib.suppress(Exception):
                ray.kill(member.actor, no_restart=True)

    def check_open(self) -> None:
        if self._closed:
            raise BadArgument("this pool is closed")
        if self.busy:
            raise BadArgument("this pool is busy with a piece of work: exhaust or close() that first")

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self.__dict__.get("_members"):
            self.close()

    def __repr__(self) -> str:
        if self._closed:
            return "<kops.ray.Pool closed>"
        return f"<kops.ray.Pool of {counted(len(self._members), 'worker')} with {self._wanted}, {len(self.ready)} ready>"


def _text(resources: Mapping[str, float]) -> str:
    shown = {name: amount for name, amount in resources.items() if not name.startswith("node:") and "memory" not in name}
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(shown.items()) if amount) or "nothing"


def _reason(error: Exception) -> str:
    """Why a worker could not begin, in one or two lines."""
    cause = getattr(error, "cause", None)
    text = f"{type(cause).__name__}: {cause}" if cause is not None else f"{type(error).__name__}: {error}"
    if "No module named 'kops" in str(error):
        return f"kops {VERSION} is not installed on a node of the cluster: pip install there the wheel that is installed here"
    return text
