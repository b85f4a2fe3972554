"""How the synchronous client carries a call out: recorded, by the extension, in a batch, on a CUDA stream, or waited for."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from .._base.compiled import FAST_RULES, fast_types, native, pack
from .._base.errors import BadArgument, Capturing, ConnectionLost, KopsError, UnknownOp
from .._base.results import Timing, Timings
from .._base.texts import TurnsWarning, log, warn
from .._base.twins import DefaultTimeout
from .._memory.exports import allocations
from .._memory.pool import Unknown
from .._session.link import Call
from .._session.native_link import NativeLink
from .._session.recovery import LOSSES, SHORT_LOSSES, Trial, no_hazard, short_call
from .._tensors.torch import current_stream
from . import contexts, ops_here, plans, rules
from .contexts import Place, torch_device_of
from .launch import Launch
from .ops import NUMBERS
from .pending import Link, Pending, Watcher
from .plans import Plan, Prepared
from .recording import BaseSequence, Recorder
from .rules import VECTORS


class Batch:
    """Ordered calls that libkops gathers into few requests, of which the stream waits only for the last. See `Client.batch`. Of one
    thread. Without the compiled part every call waits for its result, and a batch gathers nothing."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._link: NativeLink | None = None
        self._place = (0, 0)  # device and stream that libkops gathers for

    def __enter__(self) -> Batch:
        self._client._batch_begin(self)
        try:
            self._begin()
        except BaseException:
            self._client._batch_end(self)
            raise
        return self

    def __repr__(self) -> str:
        return "<kops.Batch>"

    def _begin(self) -> None:
        """On the stream that is current now."""
        link, torch = self._client._live(), sys.modules.get("torch")
        if not isinstance(link, NativeLink) or torch is None or not (link.offers_ordered and link.offers_sequences):
            return
        index = torch.cuda.current_device()
        self._place = (index, current_stream(index))
        link.batch(*self._place, True)
        self._link = link

    def __exit__(self, kind: Any, *_: object) -> None:
        self._client._batch_end(self)
        try:
            if self._link is not None:
                self._link.batch(*self._place, False)
        except Exception:
            if kind is None:  # otherwise the exception that ended the block says more
                raise

    def flush(self) -> None:
        """Sends the gathered ops. Later work on the stream waits for them."""
        if self._link is not None:
            self._link.batch(*self._place, False)
            self._link.batch(*self._place, True)


TURNS = (
    "the daemon and this process take turns on the GPU, so each change between torch's work and the daemon's on a stream costs about "
    '150 us. Start MPS (deploy/README.md), or connect with where="auto" (KOPS_WHERE=auto), which launches in this process where that '
    'is faster; where="daemon" (KOPS_WHERE=daemon) keeps the daemon and this warning away'
)
_told_of_turns = False


class Calls(DefaultTimeout):
    """The part of a client that calls go through. The rest of it is in `client`."""

    where = "daemon"

    def __init__(self, timeout: float | None, blocking: bool, reconnect_timeout: float, where: str | None = None) -> None:
        self.timeout = timeout
        self._watcher = Watcher()
        self._told_of_waiting = False
        self.reconnect_timeout = reconnect_timeout
        self.blocking = blocking
        self.where, self._place_chosen = contexts.place_of_connection(where, blocking)
        self._may_tell_of_turns = not self._place_chosen and not blocking
        self._connection: Link | None = None
        self._places: dict[tuple[int, int], Any] = {}  # decisions of "auto", and when they end, by connection and device
        # Kernels that were launched in this process, by id(): a set cannot be iterated while other threads add to it.
        self._launched: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._ops_here = None if native is None else native.Ops()
        self._scopes: dict[int, list[Recorder]] = {}  # open sequences and programs by thread
        self._batches: dict[int, Batch] = {}  # by thread
        self._submitted: dict[int, list[tuple[Link, Call]]] = {}  # requests that nobody waits for yet, by thread
        if self._ops_here is not None:
            self._ops_here.attach(self._scopes, self._batches, self._submitted, contexts.PLACES.index(self.where))
        self._here_devices: set[int] = set()  # devices on which "auto" launches kernels here

    def _live(self) -> Link:
        """The connection; a new one when there is none or it was lost."""
        raise NotImplementedError

    # Ops

    def _op(
        self, op: str, values: tuple[Any, ...], out: Any, attrs: dict[str, Any], device: Any, stream: int, timing: Timing,
        deadline_ms: int | None, priority: str | None, blocking: bool | None, timeout: Any, where: str | None = None,
    ) -> Any:  # fmt: skip
        if self._scopes:
            scopes = self._scopes.get(threading.get_ident())
            if scopes:
                return scopes[-1]._op(op, values, out, attrs, device, stream, timing, deadline_ms, priority, blocking, timeout, where)
        sent = time.monotonic_ns() if timing else None
        if where is contexts.DAEMON_BY_AUTO:
            where = None
        elif where is None and self.where != "daemon":
            others = device is not None or stream or deadline_ms is not None or priority is not None or blocking is not None
            if not others and timing != "exact" and op in NUMBERS:
                where = self._usual_place(values)
        if where is not None and where != "daemon" and self._is_here(where, op, values):
            given = {"device": device is not None, "stream": stream, "deadline_ms": deadline_ms, "priority": priority, "blocking": blocking}
            contexts.check_options(op, **given)
            return ops_here.launch(self, op, values, out, attrs, timing, timeout, sent)
        link, failed = self._live(), None
        short = device is None and priority is None and deadline_ms is None and not stream and (timing is False or timing is True)
        plain = short and not timing
        try:
            if short and values and type(values[0]) in fast_types and not link.garbage:
                waits = timing or (self.blocking if blocking is None else blocking) or not link.offers_ordered
                try:
                    made = self._fast(link, op, values, out, attrs, bool(waits), timing, timeout, sent)
                    if made is not NotImplemented:
                        return made
                except SHORT_LOSSES as error:
                    if not waits:
                        raise
                    failed = error
            contexts.refuse_capture(values)
            if self._may_tell_of_turns and plain and where is None and not blocking and values and type(values[0]) in fast_types:
                self._tell_of_turns(values)
            options = dict(plans.ORDERED) if plain else plans.options_of(link, device, stream, timing, deadline_ms, priority)
            request = plans.Request(op, values, out, attrs, options)
            return self._carry(link, request, timing, stream, blocking, timeout, failed, sent)
        except Capturing:
            if not plain or blocking or where is not None or not ops_here.offered(link):
                raise
        return ops_here.launch(self, op, values, out, attrs, False, timeout, None)

    def _is_here(self, where: str, op: str, values: tuple[Any, ...]) -> bool:
        """Whether an op runs in this process's context. "auto" on a stream that is captured: if that is possible."""
        if contexts.checked_place(where) == "here":
            return True
        link = self._live()
        try:
            contexts.refuse_capture(values)
        except Capturing:
            return ops_here.offered(link)
        return ops_here.chosen(self, link, op, values).where == "here"

    def _usual_place(self, values: tuple[Any, ...]) -> str | None:
        """The connection's place, for a call that names none and asks for nothing that the daemon alone has; None: the daemon, which
        has the calls that are recorded, and arrays in host memory."""
        if self.where == "daemon" or (self._scopes and self._recorder() is not None) or not any(map(contexts.on_device, values)):
            return None
        return self.where

    def _tell_of_turns(self, values: tuple[Any, ...]) -> None:
        """Warns once a process, where an ordered call makes two processes take turns on a GPU. Not on a stream under capture."""
        global _told_of_turns
        index = torch_device_of(values)
        if index is None:
            return
        link = self._live()
        if link.info is None or not link.offers_ordered:
            return
        uuid = allocations.driver.uuid(index)
        mps = next((device.mps for device in link.info.devices if device.uuid == uuid), True)
        self._may_tell_of_turns = False
        if mps or _told_of_turns:
            return
        _told_of_turns = True
        warn(TURNS, TurnsWarning)

    def _tell_ops(self) -> None:
        ops_here.tell(self)

    def _forget_places(self) -> None:
        """Another daemon may be slower, or hand out no code."""
        self._places.clear()
        self._here_devices.clear()
        if self._ops_here is not None:
            self._ops_here.forget()

    def place(self, op: str, *inputs: Any) -> Place:
        """Where `where="auto"` runs an op with such inputs, and why: a `Place`, as `kern.place(…)` tells of a kernel's launches. On a
        stream under capture "auto" is here, if that is possible. The first question of a connection and device measures. Thread-safe.
        Raises UnknownOp, and what `synchronize` does."""
        link = self._live()
        if link.info is not None and op not in link.info.ops:
            raise UnknownOp(f"the daemon has no op {op!r}; it has {', '.join(link.info.ops)}", {"op": op})
        return ops_here.chosen(self, link, op, inputs)

    def _at_once(self, op: str, values: tuple[Any, ...], rule: int) -> Any:
        """An op without attributes and options, on torch tensors, put on the current stream by the extension; NotImplemented where
        that is not the way of such a call now, which is `_op`'s to find out."""
        link: Any = self._connection
        if link is None or not link.offers_ordered or self.blocking or self._scopes or self._submitted:
            return NotImplemented
        if link.failure is not None or link.doomed or link.garbage:  # not `alive`
            return NotImplemented
        try:
            return link.run(op, values, None, None, rule, 0, self._timeout)
        except ConnectionLost as error:
            raise link.lost(error) from None

    def _fast(
        self, link: Any, op: str, values: tuple[Any, ...], out: Any, attrs: Mapping[str, Any], blocking: bool, timing: Timing, timeout: Any,
        sent: int | None = None,
    ) -> Any:  # fmt: skip
        """The op by the extension, from the tensors on; NotImplemented where these are no registered CUDA tensors."""
        if blocking and self._batches:
            return NotImplemented
        if op in VECTORS and any(len(getattr(value, "shape", ())) < 2 for value in values[:2]):
            return NotImplemented  # the daemon takes matrices only
        if (attrs and rules.OUT_DTYPE in attrs) or (out is None and op in rules.OTHER_DTYPES):
            if any(type(value) not in fast_types for value in values):
                return NotImplemented
            attrs, out = rules.out_for_tensors(op, values, attrs, out)
        packed, rule = (pack(attrs), 0) if attrs else (None, FAST_RULES.get(op, 0))
        try:
            made = link.run(op, values, out, packed, rule, 2 if timing else blocking, self._timeout_of(timeout))
        except ConnectionLost as error:
            raise link.lost(error) from None
        if sent is not None and made is not NotImplemented:
            return made[0], Timings.made(made[1], sent)
        return made

    def _carry(
        self, link: Link, request: Prepared, timing: Timing, stream: int, blocking: bool | None, timeout: Any,
        failed: KopsError | None = None, sent: int | None = None,
    ) -> Any:  # fmt: skip
        """Carries a request out: puts it on the current CUDA stream where that can be, else waits for its reply. `failed`
        is why the extension could not, which waited; `sent` when the caller's call began, if not now."""
        sent = sent or time.monotonic_ns()
        if request.operands.waits and not (timing or stream or (self.blocking if blocking is None else blocking)):
            index = request.operands.torch_device
            if index is not None and link.offers_ordered:
                return self._enqueue(link, request, index, timeout)
            if index is not None and native is not None and not self._told_of_waiting:
                self._told_of_waiting = True
                log.info("calls on torch CUDA tensors wait for their results: this daemon puts nothing on CUDA streams")
        self._flush_batch()
        reply = self._drive(link, partial(plans.execute, request=request), timeout, lambda: request.hazard, failed)
        return (request.result, Timings.of(reply, sent)) if timing else request.result

    def _enqueue(self, link: Any, request: Prepared, index: int, timeout: Any) -> Any:
        """Puts a request on torch's current stream of a device."""
        from .._tensors.torch import current_stream

        try:
            params = request.params(link.key)
        except Unknown:
            link, params = self._known(link, request, timeout)
        if not self._fast_now(link, request, timeout):
            link.enqueue(request.method, params, request.names, request.operands.keep, index, current_stream(index))
        return request.result

    def _known(self, link: Link, request: Prepared, timeout: Any) -> tuple[Link, dict[str, Any]]:
        """Makes new memory, programs and kernels known to the daemon. Returns the connection and the request's params."""

        def plan(link: Link) -> Plan:
            params = yield from plans.known(link, request.params)
            return link, params

        answer: tuple[Link, dict[str, Any]] = self._drive(link, plan, timeout)
        return answer

    def _submit(self, link: Link, request: Any, timing: Timing, timeout: Any, run: Callable[..., Plan] = plans.run) -> Pending:
        """Carries a request out, by the plan that `run` makes, up to its reply, which is not waited for."""
        link, _ = self._known(link, request, timeout)
        plan, method = run(link, request, timing, retry=False), request.method
        seconds = self._timeout_of(timeout)
        call = next(plan)
        while call.method != method:
            call = _next_call(link, plan, call, seconds)
        link.send(call, seconds)
        mine = self._submitted.setdefault(threading.get_ident(), [])
        mine[:] = [(on, one) for on, one in mine if not one.done or one.error is not None]
        mine.append((link, call))
        return Pending(self, link, plan, call, ", ".join(request.names))

    def _fast_now(self, link: Any, request: Prepared, timeout: Any) -> bool:
        """Now that their memory is known, as ops of the extension: only these are gathered in a batch."""
        if isinstance(request, plans.Request) and request.options == plans.ORDERED:
            values = tuple(operand.value for operand in request.inputs)
            made = self._fast(link, request.op, values, request.outputs[0].value, request.attrs, False, False, timeout)
        elif isinstance(request, Launch) and request.options == plans.ORDERED:
            made = request.kernel._fast(link, request.given, request.geometry or None, False, False, timeout)
        else:
            return False
        return made is not NotImplemented

    # Several at once

    def _recorder(self) -> Recorder | None:
        """The recorder of this thread's calls."""
        scopes = self._scopes.get(threading.get_ident()) if self._scopes else None
        return scopes[-1] if scopes else None

    def _run_sequence(self, sequence: BaseSequence) -> Any:
        options = sequence._run_options
        link = self._live()
        request = sequence.prepared(link)
        answer = self._carry(link, request, options["timing"], options["stream"], options["blocking"], options["timeout"])
        return sequence.took(answer)

    def _scope_begin(self, recorder: Recorder) -> None:
        self._scopes.setdefault(threading.get_ident(), []).append(recorder)

    def _scope_end(self, recorder: Recorder) -> None:
        here = threading.get_ident()
        scopes = self._scopes.get(here, [])
        if recorder in scopes:
            scopes.remove(recorder)
        if not scopes:
            self._scopes.pop(here, None)

    def _batch_begin(self, batch: Batch) -> None:
        if self._batches.setdefault(threading.get_ident(), batch) is not batch:
            raise BadArgument("a batch of this thread is open already")

    def _flush_batch(self) -> None:
        """What this thread has gathered in a batch goes before what is carried out otherwise."""
        batch = self._batches.get(threading.get_ident()) if self._batches else None
        if batch is not None:
            batch.flush()

    def _batch_end(self, batch: Batch) -> None:
        self._batches.pop(threading.get_ident(), None)

    # Waiting

    def _drive(
        self, link: Link, plan_of: Callable[[Link], Plan], timeout: Any, hazard: Callable[[], str | None] = no_hazard,
        failed: KopsError | None = None,
    ) -> Any:  # fmt: skip
        """Carries a plan out, and once more where its daemon goes away and that does no harm; see `recovery`."""
        seconds = self._timeout_of(timeout)
        trial: Trial | None = None
        if failed is not None:
            trial = Trial(self.reconnect_timeout, seconds, hazard)
            time.sleep(trial.judge(failed, short_call("run", link, failed)))
            link = self._live()
        while True:
            call, plan = None, plan_of(link)
            try:
                call = next(plan)
                while True:
                    call = _next_call(link, plan, call, seconds)
            except StopIteration as stop:
                return stop.value
            except LOSSES as error:
                trial = trial or Trial(self.reconnect_timeout, seconds, hazard)
                time.sleep(trial.judge(error, call))
                link = self._live()


def _next_call(link: Link, plan: Plan, call: Call, seconds: float | None) -> Call:
    """Waits for the reply to a plan's request and gives it to the plan, which has a next request or ends."""
    try:
        link.exchange(call, seconds)
    except BaseException as error:
        return plan.throw(error)
    return plan.send(call.result) if call.error is None else plan.throw(call.take_error())
