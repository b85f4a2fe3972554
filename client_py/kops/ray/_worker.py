"""A worker: an actor of Ray's that has one GPU, or none, and talks to its node's daemon. Also where it is, its client, whose calls run on
its device unless they name another, and the recording of the daemon for the trace of all nodes.

Traffic between the driver and its workers, by Ray: kernels and functions travel whole, clients do not. Whatever refers to a client
of the driver's refers to the worker's own in the worker. Errors of single items come back with the item's number.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pickle
import socket
import threading
import time
import traceback
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any

from .. import (
    AsyncClient,
    BadArgument,
    Client,
    ConnectFailed,
    ConnectionLost,
    Device,
    DeviceFault,
    DeviceLost,
    KopsError,
    NoCuda,
    QuotaExceeded,
    ShuttingDown,
    UnknownDevice,
    default_client,
)
from .._companions import VERSION, Code, Stopwatch, allocations, inline, on_device
from ..profiler._recorder import Decoder, Event, Recorder
from ._stats import Snapshot

try:
    import ray as ray
    import ray.exceptions
    from ray import cloudpickle
except ImportError as error:
    raise ImportError(f'kops.ray needs Ray, which cannot be imported ({error}): pip install "ray>=2.9" numpy', name=error.name) from error

# Errors of a worker or node that has ended, or that Ray lost touch with: its item may or may not have been done.
_LOST = ("RayActorError", "WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError", "ObjectLostError", "OutOfMemoryError")
LOST: tuple[type[Exception], ...] = tuple(getattr(ray.exceptions, name) for name in _LOST if hasattr(ray.exceptions, name))


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc,unused-ignore]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Client):
            return default_client, ()  # a worker's own, see _worker.py
        if isinstance(obj, AsyncClient):
            raise BadArgument("a kernel of an asyncio client does not travel: declare it with kops.kernel or a client of kops.connect()")
        return super().reducer_override(obj)


def pack(what: Any) -> bytes:
    """Raises TypeError or pickle.PicklingError for what cannot travel."""
    with io.BytesIO() as file:
        _Pickler(file).dump(what)
        return file.getvalue()


def unpack(packed: bytes) -> Any:
    """The object of packed bytes, in a worker whose default client is connected."""
    return pickle.loads(packed)


class GivenUp(KopsError):
    """An item was given up: each worker that tried it was lost, or took longer than `timeout`.

    `detail` has the item's `index`, its `tries`, and the last one's `node` and `why`.
    """

    code = "given_up"


class WorkersFailed(KopsError):
    """No worker has started. `detail` has `reasons`, one for each that failed."""

    code = "workers_failed"


class Untold(KopsError):
    """An error of a worker that cannot be sent from process to process: its type and its text."""

    code = "untold"


def packed(error: BaseException) -> tuple[bytes | None, str]:
    """An error as bytes, None where it does not survive that, and as text."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        made = pickle.dumps(error)
        pickle.loads(made)
    except Exception:
        return None, text
    return made, text


def unpacked(made: bytes | None, text: str, index: int, node: str) -> BaseException:
    """The error in the driver. Its note says which item it belongs to, and shows the worker's traceback."""
    note = f"item {index}, on {node}:\n{text.rstrip()}"
    try:
        error: Any = pickle.loads(made) if made is not None else None
    except Exception:  # an error of a class that this process does not have
        error = None
    if error is None:
        error = Untold(text.strip().rpartition("\n")[2], {"index": index, "node": node, "traceback": text})
    if hasattr(error, "add_note"):
        error.add_note(note)
    error.kops_item, error.kops_node = index, node
    return error  # type: ignore[no-any-return]


# Workers


# The GPU

VISIBLE = "CUDA_VISIBLE_DEVICES"


def _of_the_raylet() -> str | None:
    """The GPUs that Ray's own process on this node sees; None: all of them."""
    parent = Path("/proc", str(os.getppid()))
    with contextlib.suppress(OSError):
        if (parent / "comm").read_text(encoding="ascii").strip() == "raylet":
            for entry in (parent / "environ").read_bytes().split(b"\0"):
                if entry.startswith(VISIBLE.encode() + b"="):
                    return os.fsdecode(entry).partition("=")[2]
    return None


@contextlib.contextmanager
def node_environment() -> Iterator[None]:
    """Meanwhile this process's environment shows all the node's GPUs: Ray hides from a worker those that are not its own, and a daemon
    that the worker starts serves the other workers of the node, too."""
    before = os.environ.pop(VISIBLE, None)
    whole = _of_the_raylet()
    if whole is not None:
        os.environ[VISIBLE] = whole
    try:
        yield
    finally:
        os.environ.pop(VISIBLE, None)
        if before is not None:
            os.environ[VISIBLE] = before


def own_uuid(given: str, gpus: Sequence[Device]) -> str:
    """The UUID of a GPU that Ray gave to this worker, as the driver says it: Ray's number is one of CUDA's, whose order of GPUs need not
    be the daemon's. Without a driver in this process the daemon's order is believed. Raises NoCuda where nothing tells."""
    if given.startswith(("GPU-", "MIG-")):
        return next((gpu.uuid for gpu in gpus if gpu.uuid.startswith(given)), given)
    visible = [one.strip() for one in os.environ.get(VISIBLE, "").split(",") if one.strip()]
    ordinal = visible.index(given) if given in visible else int(given)
    try:
        return allocations.driver.uuid(ordinal)
    except NoCuda as error:
        if int(given) < len(gpus):
            return gpus[int(given)].uuid
        raise NoCuda(f"Ray gave GPU {given} to this worker, whose UUID nothing tells: {error.message}") from None


def device_of(ids: Sequence[str], devices: Sequence[Device], where: str) -> Device | None:
    """The daemon's device for a worker with these GPUs of Ray's: its first, or the host where it has none. None: the daemon's default, as
    it has no other. `where` names the daemon in the error."""
    gpus = [device for device in devices if device.backend != "host"]
    if not ids:
        return next((device for device in devices if device.backend == "host"), None) if gpus else None
    if not gpus:
        raise UnknownDevice(
            f"Ray gave GPU {ids[0]} to this worker, and {where} has no GPU: start it where it finds the CUDA driver, or map with gpus=0"
        )
    try:
        wanted = own_uuid(ids[0], gpus)
    except ValueError:
        raise KopsError(f"Ray calls this worker's GPU {ids[0]!r}, which is neither a number nor a UUID") from None
    found = next((gpu for gpu in gpus if gpu.uuid == wanted), None)
    if found is None:
        raise UnknownDevice(
            f"{where} does not see {wanted}, which Ray gave to this worker; it sees {', '.join(gpu.uuid for gpu in gpus)}. Start it "
            f"without {VISIBLE}"
        )
    return found


# The client

class WorkerClient(Client):
    """`own_device` is the worker's; None: the daemon's default. Arrays that lie on a GPU are worked on there."""

    own_device: Device | None = None
    instance = ""  # the daemon's; known also when the client is closed

    @property
    def path(self) -> str | None:
        """Where the daemon has answered."""
        return self._found

    def _usually(self, device: Any, values: tuple[Any, ...]) -> Any:
        if device is not None or self.own_device is None or self._scopes or any(map(on_device, values)):
            return device
        return self.own_device.uuid

    def _op(self, op: str, values: tuple[Any, ...], out: Any, attrs: dict[str, Any], device: Any, *how: Any, **more: Any) -> Any:
        return super()._op(op, values, out, attrs, self._usually(device, values), *how, **more)


def _on_the_usual(name: str, begin: int) -> Any:
    """A method of a client's with `device=`, whose arrays are its arguments from `begin` on."""
    method = getattr(Client, name)

    @wraps(method)
    def wrapped(self: WorkerClient, *values: Any, device: Any = None, **how: Any) -> Any:
        return method(self, *values, device=self._usually(device, values[begin:]), **how)

    return wrapped


for _name, _begin in {"submit": 1, "profile": 1, "tune": 1, "sequence": 1, "program": 0}.items():
    setattr(WorkerClient, _name, _on_the_usual(_name, _begin))


def connect() -> WorkerClient:
    """A client of this node's daemon, started where there is none, as this process's own: kernels and functions that refer to
    `kops.default_client()`, or to a client of the driver's, go through it."""
    with node_environment():
        made = WorkerClient(reconnect_timeout=0)
    made.instance = made.info.instance
    inline._default = made
    return made


def use_device(client: WorkerClient, place: Device | None) -> None:
    """Lets the calls of the client, and this process's kernels that name no device, run there."""
    client.own_device = place
    Code.usual_device = None if place is None else place.uuid


# The recording of the daemon

EVENTS = 50_000  # events of a recording; later ones are counted as dropped
COLUMNS = 13  # columns of an event that are kept, in PROTOCOL.md's order


@dataclass(frozen=True)
class Part:
    """A part of a recording, from one reading to the next. `rows` are the events one behind the other, whose times count from
    `origin`. `until`: the daemon had told all that had ended then. `why`: it tells nothing any more."""

    origin: int = 0
    until: int = 0
    dropped: int = 0
    why: str = ""
    kinds: list[Mapping[str, Any]] = field(default_factory=list)
    clients: list[Mapping[str, Any]] = field(default_factory=list)
    rows: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def count(self) -> int:
        return len(self.rows) // COLUMNS


@dataclass(frozen=True)
class Begun:
    """A recording begins, at a time of the node's CLOCK_MONOTONIC in ns. `devices`: names by UUID."""

    instance: str
    daemon: int
    at: int
    devices: dict[str, str]


class Recording(Recorder):
    """Keeps events as numbers: of what a worker holds, and sends, they are the least."""

    def __init__(self, client: WorkerClient, most: int = EVENTS) -> None:
        super().__init__(client.path, False, most)
        self._client = Client.unconnected(client.path, blocking=True, reconnect_timeout=0, autostart=False)
        self._taking = threading.Lock()
        self._room = most
        self._part = Part()
        self.instance, self._daemon = client.info.instance, client.info.pid

    def start(self) -> None:
        """Raises what keeps the daemon from being recorded."""
        try:
            super().start()
        except BaseException:
            self._client.close()
            raise
        self.begun = Begun(self.instance, self._daemon, time.monotonic_ns(), self.devices)

    def _keep(self, reply: Mapping[str, Any]) -> None:
        rows = reply["events"][: self._room]
        self._room -= len(rows)
        self._lost += len(reply["events"]) - len(rows)
        with self._taking:
            part = self._part
            part.rows.extend(itertools.chain.from_iterable([*row, 0, 0][:COLUMNS] for row in rows))
            kinds, clients = [*part.kinds, *reply["kinds"]], [*part.clients, *reply["clients"]]
            origin: int = reply["origin_ns"]
            self._part = Part(origin, origin + reply["now_ns"], reply["dropped"] + self._lost, part.why, kinds, clients, part.rows)

    def _end(self, why: str) -> None:
        with self._taking:
            self._part = replace(self._part, why=why)

    def take(self) -> Part:
        """The part since the last call of this method."""
        with self._taking:
            part = self._part
            self._part = Part(part.origin, part.until, part.dropped, part.why)
        return part


def events(parts: list[Part]) -> Iterator[Event]:
    """The events of one recording. Called in the driver."""
    decoder = Decoder()
    for part in parts:
        rows = [part.rows[i : i + COLUMNS].tolist() for i in range(0, len(part.rows), COLUMNS)]
        yield from decoder.events({"origin_ns": part.origin, "kinds": part.kinds, "clients": part.clients, "events": rows})


# The actor

SNAPSHOT_S = 1.0  # least seconds between the statistics that go with results
PATIENCE_S = 15.0  # longest wait for a daemon that has gone
PAUSE_S = 0.1
HELD_BACK_MOST_S = 600.0  # longest wait of an item while the daemon refuses this user's kernels, because others faulted
THREADS = 16  # calls under way at one time in a worker
ASIDE = "aside"  # the concurrency group of messages while the worker has items: threads of its own
ASIDE_THREADS = 2
DAEMON_LOST = (ConnectionLost, ConnectFailed, ShuttingDown, DeviceLost)


@dataclass(frozen=True)
class WorkerInfo:
    """A worker of a pool.

    `node` is the name of its machine, `node_id` Ray's id of it; `device` and `uuid` are what its calls run on, `daemon` the process
    id of the daemon there, and `instance` tells that daemon from all others.
    """

    number: int
    node: str
    node_id: str
    pid: int
    device: str
    uuid: str
    on_gpu: bool
    daemon: int
    instance: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of an item: "done" with its value, "failed" with the item's own error, "beside" with one that may be due to another item
    whose kernel ran at the same time, or "lost" because the daemon went away. `held_s`: so long the daemon took no kernels of this user."""

    kind: str
    value: Any = None
    error: bytes | None = None
    text: str = ""
    held_s: float = 0.0
    seconds: float = 0.0
    span: tuple[int, int] = 0, 0  # begin and end of the work, ns of the node's CLOCK_MONOTONIC
    instance: str = ""  # the daemon's
    snapshots: tuple[Snapshot, ...] = ()


class Turn:
    """An item at a worker. `setup`: getting ready for the work, which the first item sees to, and the first after a daemon is lost."""

    def __init__(self) -> None:
        self.setup = Stopwatch()
        self.work = Stopwatch()
        self.began = time.monotonic_ns()

    @property
    def span(self) -> tuple[int, int]:
        return self.began, time.monotonic_ns()


class HeldBack:
    """The waits of an item whose kernels the daemon refuses for a while, since others of this user faulted."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wait(self, error: QuotaExceeded) -> None:
        """Raises the error where that is about another quota, or where the waits are too long."""
        seconds = float(error.detail.get("retry_after_ms", 0)) / 1e3
        if error.detail.get("quota") != "faults" or not seconds or self.seconds + seconds > HELD_BACK_MOST_S:
            raise error
        self.seconds += seconds
        time.sleep(seconds)


def _goes_on(error: BaseException) -> bool:
    """Whether only the process that has the GPU was lost."""
    return isinstance(error, KopsError) and error.detail.get("daemon") == "goes_on"


def _may_be_anothers(error: BaseException) -> bool:
    """All workers of a node are one user of its daemon, whose kernels share a process. Where one of them faults, the daemon says so to each
    that ran, and of how many it may be; what else was under way is lost."""
    return isinstance(error, DeviceFault) and int(error.detail.get("suspects", 1)) > 1 or isinstance(error, DeviceLost) and _goes_on(error)


class Worker:
    """Made by `Pool`, which makes it an actor with THREADS threads. Of most work one item is done at a time: its call sees to that."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lock = threading.RLock()  # guards the members below
        self._given: list[str] = []
        self._client: WorkerClient | None = None
        self._job: str | None = None
        self._call: Any = None  # the job's on this connection
        self._recordings: dict[str, Recording] = {}  # by the daemons' instances; without the lock
        self._turns: dict[str, Turn] = {}  # by their tokens; without the lock
        self._told = 0.0
        self._news: list[Snapshot] = []  # snapshots of daemons that the driver does not know yet

    def hello(self, version: str) -> tuple[str, str, WorkerInfo | None, tuple[Snapshot, ...]]:
        """Connects to the daemon; its errors tell why that is not possible. Nothing but its own version and the node's name, of a driver
        with another version."""
        node = socket.gethostname()
        if version != VERSION:
            return VERSION, node, None, ()
        context = ray.get_runtime_context()
        with self._lock:
            self._given = [str(one) for one in context.get_accelerator_ids().get("GPU", ())]
            client = self._connected(0)
            info, place = client.info, client.own_device
            if place is None:
                place = next((device for device in info.devices if device.default), info.devices[0])
            me = WorkerInfo(
                self._number, node, context.get_node_id(), os.getpid(), place.name, place.uuid, bool(self._given), info.pid, info.instance
            )
            return VERSION, node, me, self._word()

    @ray.method(concurrency_group=ASIDE)  # type: ignore[untyped-decorator,unused-ignore]
    def turns(self) -> dict[str, tuple[float, float]]:
        """For each item here the seconds of work on it, and the seconds of its setup. Answers while items hold all other
        threads."""
        return {token: (turn.work.seconds, turn.setup.seconds) for token, turn in self._turns.copy().items()}

    @ray.method(concurrency_group=ASIDE)  # type: ignore[untyped-decorator,unused-ignore]
    def clock(self) -> int:
        """CLOCK_MONOTONIC of this node, in ns."""
        return time.monotonic_ns()

    @ray.method(concurrency_group=ASIDE)  # type: ignore[untyped-decorator,unused-ignore]
    def record(self) -> Begun:
        """From now on the daemon's work is recorded, until `recorded` ends that."""
        with self._lock:
            made = Recording(self._connected(0))
        left = self._recordings.pop(made.instance, None)  # the recording of work that did not come to its end
        if left is not None:
            left.stop()
        made.start()
        self._recordings[made.instance] = made
        return made.begun

    @ray.method(concurrency_group=ASIDE)  # type: ignore[untyped-decorator,unused-ignore]
    def recorded(self, instance: str, end: bool) -> Part:
        """The recording of that daemon since the last call."""
        recording = self._recordings[instance]
        if end:
            del self._recordings[instance]
            recording.stop()
        return recording.take()

    def run(self, token: str, job: str, what: Sequence[Any], names: Sequence[str], *values: Any) -> Outcome:
        """One item. `what` is a list with a reference to what is called, which is fetched once a job; `names` are those of the last
        values."""
        turn = self._turns[token] = Turn()
        client: WorkerClient | None = None
        held = HeldBack()
        try:
            split = len(values) - len(names)
            arguments = values[:split], dict(zip(names, values[split:], strict=True))
            while True:
                client, call = self._ready(turn, job, what)
                with call.lock:
                    if client is self._client:  # else the daemon went while the item waited for its turn
                        turn.began = time.monotonic_ns()
                        try:
                            value = call(*arguments, turn.work)
                            break
                        except QuotaExceeded as error:
                            held.wait(error)
        except (Exception, SystemExit) as error:
            if isinstance(error, DAEMON_LOST) and not _goes_on(error):
                self._after(client, error)
                return Outcome("lost", text=f"{type(error).__name__}: {error}", span=turn.span)
            made, text = packed(error)
            return Outcome("beside" if _may_be_anothers(error) else "failed", error=made, text=text, held_s=held.seconds, span=turn.span)
        finally:
            del self._turns[token]
        span, due = turn.span, time.monotonic() - self._told >= SNAPSHOT_S
        return Outcome("done", value, None, "", held.seconds, turn.work.seconds, span, client.instance, self.stats() if due else ())

    def stats(self) -> tuple[Snapshot, ...]:
        """The daemons' statistics for the driver; nothing where the daemon has gone."""
        with self._lock:
            client = self._client
            try:
                return self._word()
            except KopsError as error:
                self._after(client, error)
                return ()

    def _after(self, client: WorkerClient | None, error: KopsError) -> None:
        """The daemon went away: the next item has a new client. Not where only the process that has the GPU was lost."""
        with self._lock:
            if client is None or client is not self._client or _goes_on(error):
                return
            self._client = None
            self._end_job()
            client.close()

    def _end_job(self) -> None:
        """A call with threads of its own ends beside the other work that it still has."""
        call, self._call, self._job = self._call, None, None
        if hasattr(call, "close"):
            threading.Thread(target=call.close, daemon=True).start()

    def _connected(self, patience_s: float = PATIENCE_S) -> WorkerClient:
        """The client; a new one where the daemon has gone, which is started anew where nothing else does that."""
        if self._client is None:
            until = time.monotonic() + patience_s
            while True:
                try:
                    made = connect()
                    break
                except DAEMON_LOST:
                    if time.monotonic() > until:
                        raise
                    time.sleep(PAUSE_S)
            try:
                use_device(made, device_of(self._given, made.devices, f"the daemon of {socket.gethostname()}"))
                self._news.append(self._snapshot(made))
            except BaseException:
                made.close()
                raise
            self._client = made
        return self._client

    def _ready(self, turn: Turn, job: str, what: Sequence[Any]) -> tuple[WorkerClient, Any]:
        """The client, and what is called, for this job and on this connection."""
        with self._lock, turn.setup:
            client = self._connected()
            if self._job != job:
                self._end_job()
                self._call, self._job = unpack(ray.get(what[0])).caller(client, bool(self._given)), job
            return client, self._call

    def _word(self) -> tuple[Snapshot, ...]:
        now = self._snapshot(self._connected())
        news, self._news = self._news, []
        return (*news, now)

    def _snapshot(self, client: WorkerClient) -> Snapshot:
        self._told = time.monotonic()
        return Snapshot(client.info.instance, self._told, [dict(row) for row in client.stats().get("ops", ())])
