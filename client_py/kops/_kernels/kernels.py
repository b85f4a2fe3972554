"""Sources to be compiled, which become a module on each connection, and kernels of users: synchronous, asyncio, their common base."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from .._base.compiled import NUMBERS, keep_name, native, pack
from .._base.declarations import KERNEL_LIMITS
from .._base.errors import BadArgument, Capturing, ConnectionLost, InvalidArgument, KopsError, MissingKey, Unsupported, WrongType
from .._base.intervals import SECONDS_MOST, Goal
from .._base.records import Compiled, Entry
from .._base.results import Profile, Timing, Timings
from .._base.texts import counted
from .._base.twins import DEFAULT_TIMEOUT, Steps, awaited
from .._calls import contexts
from .._calls.contexts import Place, is_here, place, remember
from .._calls.launch import (
    CODE_FEATURE,
    Launch,
    Launchable,
    define_here,
    launch_here,
    leave_word,
    profile,
    run,
    scalar,
    tell_launched,
)
from .._calls.measure import caches_of, is_cold, profile_cold
from .._calls.pending import Pending
from .._calls.plans import Plan, blocking_of, device_ref, options_of, truest
from .._memory.pool import Remote, release
from .._session.link import Call, Link
from .._session.recovery import KERNEL_HAZARD, SHORT_LOSSES, Trial, short_call
from .._source.geometry import Geometry
from .._source.signature import Param, parse
from .._source.source import Scan, check, gather, names, scan
from .._source.source import signature as signature_of

DEFAULT_NAME = "kernel.cu"
_OPTION = re.compile(r"options\[(\d+)\]")  # the key of an error


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """One text, or several."""
    values = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(text, str) for text in values):
        raise WrongType(f"{name} must be texts, not {value!r:.80}", {"key": name})
    return values


WITHOUT_GPU = (
    "Without a GPU a kernel runs on the CPU, with checks, by kops.kernel(…).interpret(…), which takes the same arguments, or by each "
    'call of a kernel that is made with fallback="interpret"'
)


def interprets_all() -> bool:
    """Whether the environment, KOPS_INTERPRET=1, asks for the interpreter, which then needs no daemon."""
    return os.environ.get("KOPS_INTERPRET", "0") not in ("", "0")


def lacks_gpu(client: Any) -> bool:
    """Whether kernels with a fallback run in the interpreter."""
    return interprets_all() or launches_none(client._live())


def launches_none(connection: Link) -> bool:
    """Whether a daemon has no device that launches kernels."""
    info = connection.info
    return info is not None and "kernels" not in info.features and all(device.backend == "host" for device in info.devices)


def check_launches(connection: Link) -> None:
    """Raises Unsupported for a daemon that has no device which launches kernels, before anything is asked of it. One that
    knows of no kernels, or lets this user launch none, says so itself."""
    info = connection.info
    if info is not None and info.kernels.get("allowed") and launches_none(connection):
        raise Unsupported(
            f"this daemon has no GPU, so it launches no kernels. {WITHOUT_GPU}. To compile only: k.compile(source, arch=\"sm_90a\")",
            {"feature": "kernels"},
        )


class Code(Remote):
    """A source with all that its compilation depends on. A new connection gets a new module when a kernel is used on it."""

    what = "module"
    usual_device: ClassVar[str | int | None] = None  # device for this process's sources that name none; None: the daemon's first GPU

    def __init__(
        self,
        source: str | os.PathLike[str],
        entries: Any,
        options: Iterable[str],
        files: Mapping[str, str] | None,
        name: str | None,
        arch: str | None,
        device: Any,
    ) -> None:
        self.ids: dict[int, int] = {}
        self.compiled: Compiled | None = None
        if isinstance(source, os.PathLike):
            path = Path(source)
            self.source = path.read_text(encoding="utf-8")
            self.files = {**gather(self.source, path.parent), **(files or {})}
            self.name = name or path.name
        elif isinstance(source, str):
            self.source, self.files, self.name = source, dict(files or {}), name or DEFAULT_NAME
        else:
            raise WrongType(f"source must be CUDA C++ as a text, or a pathlib.Path, not {type(source).__name__}", {"key": "source"})
        self.options = _texts("options", options)
        self._scan: Scan | None = None
        self.entries = _texts("entries", entries if entries is not None else names(self.scan))
        if not self.entries:
            why = "no kernel to compile: the source shows no plain `__global__ void name(…)`; give entries="
            raise BadArgument(why, {"key": "entries"})
        self.arch = arch
        self.device = None if device is None else device_ref(device)

    @property
    def scan(self) -> Scan:
        """The contents of the source."""
        if self._scan is None:
            self._scan = scan(self.source, self.files, self.options)
        return self._scan

    def request(self) -> dict[str, Any]:
        params: dict[str, Any] = {"source": self.source, "name": self.name, "entries": self.entries}
        for key in ("files", "options", "arch", "device"):
            value = getattr(self, key)
            if value is not None and (value != () and value != {}):
                params[key] = value
        if self.device is None and self.usual_device is not None:
            params["device"] = self.usual_device
        return params

    def define(self, connection: Link) -> Plan:
        """Makes the module known to the daemon; its id."""
        known = self.ids.get(connection.key)
        if known is not None:
            return known
        if connection.info is None or not connection.info.kernels:
            connection.need("compile")
        try:
            reply = yield Call("compile", self.request(), (), None, "module")
        except MissingKey as error:
            if error.detail.get("key") != "arch":
                raise
            raise MissingKey(f"{error.message}. {WITHOUT_GPU}", error.detail) from None
        except InvalidArgument as error:
            found = _OPTION.fullmatch(str(error.detail.get("key", "")))
            if found is None or int(found[1]) >= len(self.options):
                raise
            raise InvalidArgument(f"{self.options[int(found[1])]!r}: {error.message}", error.detail) from None
        self.compiled = Compiled.read(reply)
        return self.know(connection, reply["module"])

    def only(self) -> str:
        """The only entry."""
        if len(self.entries) != 1:
            raise BadArgument(f"which kernel? There are {', '.join(self.entries)}", {"key": "entry"})
        return self.entries[0]

    def entry(self, name: str) -> Entry:
        """An entry's attributes, once compiled."""
        for entry in self.compiled.entries if self.compiled is not None else ():
            if entry.name == name:
                return entry
        raise BadArgument(f"no entry {name!r} was compiled; there are {', '.join(self.entries)}", {"key": "entry"})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "ids": {}, "_scan": None}

    def __del__(self) -> None:
        release(self)


class Bound:
    """A kernel with a geometry, `kernel[grid, block]`: call it as the kernel."""

    __slots__ = ("_kernel", "_sizes", "_packed")

    def __init__(self, kernel: Any, sizes: Mapping[str, Any], packed: bytes | None) -> None:
        self._kernel = kernel
        self._sizes = sizes
        self._packed = packed

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Launches the kernel, with the arguments of a call."""
        kernel = self._kernel
        if self._packed is not None and not keywords and len(arguments) == kernel._count:
            client = kernel._client
            if not client._scopes and client.where == "daemon":
                try:
                    made = kernel._fast(client._live(), arguments, self._packed, None, False, DEFAULT_TIMEOUT)
                except Capturing:
                    made = NotImplemented
                if made is not NotImplemented:
                    return made
        return kernel(*arguments, **{**self._sizes, **keywords})

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={size!r}" for name, size in self._sizes.items())
        return f"{repr(self._kernel)[:-1]}[{sizes}]>"

    def profile(self, *arguments: Any, **keywords: Any) -> Any:
        return self._kernel.profile(*arguments, **{**self._sizes, **keywords})

    def interpret(self, *arguments: Any, **keywords: Any) -> Any:
        return self._kernel.interpret(*arguments, **{**self._sizes, **keywords})


KEPT = 64  # geometries of kernel[…] that were looked at
LANES = ("grid", "block", "shared")  # kernel[grid, block, shared]


def native_kernel(name: str, params: Sequence[Param]) -> Any:
    """A kernel as the extension knows it; None without one."""
    if native is None or len(params) > KERNEL_LIMITS["params"]:
        return None
    return native.Kernel(keep_name(name), tuple(NUMBERS[param.dtype] * (param.is_tensor or -(not param.is_structure)) for param in params),
                         tuple(_plain_rank(param) for param in params))  # fmt: skip


def _plain_rank(param: Param) -> int:
    """The rank that the extension checks of a tensor; -1: any, -2: any layout as well."""
    rank = len(param.shape) if param.shape is not None else param.rank
    return -2 if param.strided else -1 if rank is None else rank


def checked_fallback(fallback: str | None) -> str | None:
    """What a kernel falls back on; without an argument the interpreter where the environment asks for it."""
    if fallback not in (None, "interpret"):
        raise BadArgument(f'fallback must be None or "interpret", not {fallback!r}', {"key": "fallback"})
    return fallback or ("interpret" if interprets_all() else None)


def refuse_interpreted(name: str, what: str) -> NoReturn:
    """Raises for what the interpreter cannot do in a call's place."""
    raise Unsupported(f"{name} runs in the interpreter, since this daemon has no GPU, and {what}: call it without")


class BaseKernel(Launchable):
    """An entry of a source with its parameter list and launch geometry, and its id on each connection."""

    _agrees_with_source = True  # check the declaration against the source

    def __init__(
        self, client: Any, code: Code, entry: str, signature: str | Iterable[Param] | None, geometry: Geometry, alias: bool = False,
        fallback: str | None = None,
    ) -> None:  # fmt: skip
        self.name = entry
        self.code = code
        self.ids: dict[int, int] = {}
        if signature is None:
            self.params = signature_of(code.scan, entry)
        else:
            self.params = parse(signature)
            if self._agrees_with_source:
                check(code.scan, entry, self.params)
        self._count = len(self.params)
        self._structures = tuple(i for i, param in enumerate(self.params) if param.is_structure)
        self._client = client
        self._geometry = geometry
        self._functions = geometry.functions
        self._alias = alias
        self.fallback = checked_fallback(fallback)
        self._outs = tuple(i for i, param in enumerate(self.params) if param.kind == "out")
        self._places = {param.name: i for i, param in enumerate(self.params)}
        self._native = native_kernel(entry, self.params)
        self._bound: dict[Any, tuple[dict[str, Any], bytes | None]] = {}
        self._here: Any = None  # the kernel's code in this process

    def interprets(self, connection: Link) -> bool:
        """Whether a call runs in the interpreter: the daemon has no GPU, and that was asked for."""
        return self.fallback is not None and (interprets_all() or launches_none(connection))

    def _check_launched(self, connection: Link, what: str) -> None:
        if self.interprets(connection):
            refuse_interpreted(self.name, f"{what} is by a GPU only")

    def define(self, connection: Link) -> Plan:
        """Makes the kernel known to the daemon; compiles its source where that connection has not."""
        check_launches(connection)
        module = yield from self.code.define(connection)
        if connection.info is None or not connection.info.kernels:
            connection.need("kernels")  # a daemon that knows of them says why it launches none
        if self._structures:
            connection.need("structures")
        reply = yield Call("kernel", self.declaration(module), (), None, "kernel")
        return self.know(connection, reply["kernel"])

    def _declare(self, timeout: Any) -> Any:
        """Has the kernel be known to the daemon that launches it; the kernel."""
        client = self._client

        def steps() -> Steps:
            if self.fallback is not None and interprets_all():
                return self
            link = yield client._live
            if link.key not in self.ids and not self.interprets(link):
                yield partial(client._drive, link, self.define, timeout)
            return self

        return client._take(steps())

    def declaration(self, module: int) -> dict[str, Any]:
        """The params of the request `kernel`."""
        params = {"module": module, "entry": self.name, "params": [param.wire() for param in self.params], **self._geometry.declared}
        if self._alias:
            params["alias"] = True
        return params

    @property
    def signature(self) -> tuple[Param, ...]:
        """The parameters."""
        return self.params

    @property
    def attributes(self) -> Entry:
        """Attributes of the compiled kernel: registers, shared memory, spills…"""
        return self.code.entry(self.name)

    def _positional(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments in order. Raises BadArgument, which names one that is missing."""
        if not named and len(arguments) == len(self.params):
            return arguments
        if len(arguments) > len(self.params):
            raise BadArgument(f"{self.name} takes {counted(len(self.params), 'argument')}, got {len(arguments)}")
        given = dict(zip(self._places, arguments))
        for name, value in named.items():
            if name not in self._places:
                raise BadArgument(f"{self.name} has no parameter {name!r}; it takes {', '.join(self._places)}", {"key": name})
            if name in given:
                raise BadArgument(f"{self.name} got two values for {name}", {"key": name})
            given[name] = value
        missing = [name for name in self._places if name not in given]
        if missing:
            raise BadArgument(f"{self.name} needs {', '.join(missing)}: it takes {', '.join(self._places)}", {"key": missing[0]})
        return tuple(given[name] for name in self._places)

    def _with_bytes(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments with structures as their bytes, which the extension takes."""
        made = list(arguments)
        for i in self._structures:
            made[i] = scalar(self.name, i, self.params[i], made[i])
        return tuple(made)

    def _result(self, arguments: tuple[Any, ...]) -> Any:
        """The result of a call: the `out` arguments."""
        outs = self._outs
        if not outs:
            return None
        return arguments[outs[0]] if len(outs) == 1 else tuple(arguments[i] for i in outs)

    def _measured(self, connection: Link, arguments: tuple[Any, ...], geometry: dict[str, Any], how: dict[str, Any]) -> Launch:
        several = how["warmup"] or how["repeat"] != 1
        both = next((param.name for param in self.params if param.kind == "inout"), None)
        if several and both is not None:
            raise BadArgument(
                f"{self.name} may read what it writes, {both}, so it is not repeated: where it does not, mark it `out` in the "
                f"signature (`out float* {both}`); or profile with warmup=0, repeat=1",
                {"key": both},
            )
        return Launch(self, arguments, geometry, options_of(connection, timing=truest(connection), **how))

    def _bind(self, sizes: Any) -> Bound:
        """The kernel with a geometry, which is looked at once."""
        try:
            found = self._bound.get(sizes)
        except TypeError:  # a list is among them
            return Bound(self, *self._looked_at(sizes))
        if found is None:
            if len(self._bound) >= KEPT:
                self._bound.clear()
            found = self._bound[sizes] = self._looked_at(sizes)
        return Bound(self, *found)

    def _looked_at(self, sizes: Any) -> tuple[dict[str, Any], bytes | None]:
        given = sizes if isinstance(sizes, tuple) else (sizes,)
        if not 1 <= len(given) <= len(LANES):
            raise BadArgument(f"kernel[{', '.join(LANES)}] takes one to three, not {len(given)}")
        named = {name: size for name, size in zip(LANES, given) if size is not None}
        return named, self._packed(named)

    def _packed(self, sizes: dict[str, Any]) -> bytes | None:
        """A geometry that is the same for all arguments, as the extension sends it; None where that is not used."""
        return None

    def interpret(
        self, *arguments: Any, grid: Any = None, block: Any = None, shared: Any = None, cluster: Any = None, check: Any = True,
        exited_threads: str = "error", timeout: float = 60.0, **named: Any,
    ) -> Any:  # fmt: skip
        """Runs the same source on the CPU, in this process, with checks that a GPU does not make, and without a daemon.
        Arrays are NumPy's or torch CPU tensors, and are written in place; returns the result of a launch. Raises
        `kops.interpret.InterpretError`. See `kops.interpret.run` for `check`, `exited_threads` and `timeout`."""
        from .. import interpret

        arguments = self._positional(arguments, named)
        given = {"grid": grid, "block": block, "shared": shared, "cluster": cluster}
        sizes = {**self._geometry.declared, **self._geometry.of_call(arguments, given)}
        interpret.run(
            self.code.source, self.name, self.params, arguments, **sizes, files=self.code.files, options=self.code.options,
            alias=self._alias, exited_threads=exited_threads, check=check, timeout=timeout, name=self.code.name,
        )  # fmt: skip
        return self._result(arguments)

    def __getstate__(self) -> dict[str, Any]:
        """For another process, where the kernel is compiled and declared at its first call."""
        return {**self.__dict__, "ids": {}, "_native": None, "_bound": {}, "_here": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._native = native_kernel(self.name, self.params)

    def __repr__(self) -> str:
        parameters = ", ".join(f"{param.kind} {param.dtype} {param.name}" for param in self.params)
        return f"<kops.{type(self).__name__} {self.name}({parameters})>"

    def __del__(self) -> None:
        if self.__dict__.get("_here") is not None:
            leave_word(self)
        release(self)


class Kernel(BaseKernel):
    """A kernel of your own. Made by `Client.kernel`; call it with its arguments.

    Belongs to its client, and is compiled and declared anew where that connects anew.
    """

    def __call__(
        self, *arguments: Any, grid: Any = None, block: Any = None, shared: Any = None, cluster: Any = None, stream: int = 0,
        timing: Timing = False, deadline_ms: int | None = None, priority: str | None = None, blocking: bool | None = None,
        exclusive: bool = False, timeout: float | None = DEFAULT_TIMEOUT, where: str | None = None, **named: Any,
    ) -> Any:  # fmt: skip
        """Launches the kernel, with arguments by position or by parameter name.

        A pointer takes a tensor of its dtype (torch, NumPy, whatever an op takes), or None for a null pointer; a scalar
        a number. On torch CUDA tensors the launch is put on torch's current stream and returns at once, as an op's;
        on other arrays it returns when it has ended. Returns the `out` arguments: None when there are none, the one,
        or a tuple; with `timing=True` or `"exact"` the Timings.

        `grid`, `block`, `shared` (bytes) and `cluster` override the declared ones: numbers, tuples, or functions of
        the arguments. The other options are those of an op. Inside `with k.sequence()` and `k.program()` it is recorded.

        `where="here"` launches the daemon's code in this process's own CUDA context, on its current stream, after the same
        checks: as fast as a kernel of its own, and what it does wrong takes this process alone. `timing=True` then waits, and
        its `gpu_us` is between two events. By default a launch is the daemon's, and on a stream that is captured into a graph
        it is here; "daemon" refuses captures. "auto" takes what was measured to be faster: `place` tells which, and why.

        `exclusive=True` waits for the result, and keeps all other work of the daemon's clients off its GPU while the launch is
        there, for a time that is bounded (`executors.exclusive_ms`, where others wait): `timings.exclusive` says whether it
        was alone all the time.
        """
        sent = time.monotonic_ns() if timing else None
        client = self._client
        if named or len(arguments) != self._count:
            arguments = self._positional(arguments, named)
        if self._structures:
            arguments = self._with_bytes(arguments)
        if self.fallback is not None and lacks_gpu(client):
            if timing or exclusive or client._recorder() is not None:
                refuse_interpreted(self.name, "the interpreter has no times, records nothing, and holds nobody back")
            if where is not None:
                contexts.checked_place(where)
            return self.interpret(*arguments, grid=grid, block=block, shared=shared, cluster=cluster)
        if grid is None and block is None and shared is None and cluster is None and not self._functions:
            geometry = None
        else:
            geometry = {"grid": grid, "block": block, "shared": shared, "cluster": cluster}
        if where is None and client.where != "daemon":
            if not (stream or exclusive or deadline_ms is not None or priority is not None or blocking is not None or timing == "exact"):
                where = client._usual_place(arguments)
        if where == "auto":
            where = self._chosen(arguments) if not client._scopes else None
        if where is not None and (where == "here" or contexts.checked_place(where) != "daemon"):
            if stream or exclusive or deadline_ms is not None or priority is not None or blocking is not None:
                contexts.check_options(
                    self.name, stream=stream, deadline_ms=deadline_ms, priority=priority, blocking=blocking, exclusive=exclusive
                )
            return self._launch_here(arguments, geometry, timing, timeout, sent)
        try:
            return self._in_daemon(arguments, geometry, stream, timing, deadline_ms, priority, blocking, exclusive, timeout, sent)
        except Capturing:
            if where is not None or stream or timing or exclusive or deadline_ms is not None or priority is not None:
                raise
            if not (self._here or contexts.offered(client._live(), CODE_FEATURE)):
                raise
        return self._launch_here(arguments, geometry, timing, timeout, sent)

    def _chosen(self, arguments: tuple[Any, ...]) -> str | None:
        """Where "auto" launches; None on a stream that is captured: there it is here if possible, without measuring."""
        if is_here(self._client, arguments):
            return "here"
        try:
            contexts.refuse_capture(arguments)
        except Capturing:
            return None
        return self.place(*arguments).where

    def place(self, *arguments: Any) -> Place:
        """Where `where="auto"` launches the kernel with such arguments, and why: a `Place`. The first such question of a
        connection and device measures a chain of tiny launches both ways, on a stream of its own: some milliseconds. Before that it
        waits for the client's earlier ordered calls, as `synchronize` does, and raises the error of one of them."""
        client = self._client
        made = place(client, client._live(), arguments, CODE_FEATURE)
        remember(client, arguments, made)
        return made

    def _launch_here(self, arguments: tuple[Any, ...], given: Any, timing: Timing, timeout: Any, sent: int | None) -> Any:
        """A launch in this process's context."""
        client = self._client
        if client._scopes and client._recorder() is not None:
            raise BadArgument(f"{self.name} is being recorded for the daemon, and a launch here is not part of that: leave out where=")
        code = self._here
        if code is None:
            code = self._here = client._drive(client._live(), lambda link: define_here(link, self), timeout)
            client._launched[id(self)] = self
        geometry = None if given is None else self._geometry.of_call(arguments, given)
        if client._batches:
            client._flush_batch()
        if not timing:
            if launch_here(code, self, arguments, geometry, False):
                tell_launched(client._connection, self)
            return self._result(arguments) if self._outs else None
        contexts.exact_is_not_here(timing)
        return contexts.timings(arguments, launch_here(code, self, arguments, geometry, True), "user", sent)

    def _in_daemon(
        self, arguments: tuple[Any, ...], geometry: Any, stream: int, timing: Timing, deadline_ms: int | None, priority: str | None,
        blocking: bool | None, exclusive: bool, timeout: Any, sent: int | None,
    ) -> Any:  # fmt: skip
        client = self._client
        plain = not (client._scopes or stream or timing == "exact" or exclusive)
        if native is not None and plain and deadline_ms is None and priority is None:
            made = self._fast(client._live(), arguments, geometry, blocking, timing, timeout, sent)
            if made is not NotImplemented:
                return made
        return self._slow(arguments, geometry, stream, timing, deadline_ms, priority, blocking, timeout, sent, exclusive)

    def _fast(
        self, link: Any, arguments: tuple[Any, ...], given: Any, blocking: bool | None, timing: Timing, timeout: Any,
        sent: int | None = None,
    ) -> Any:  # fmt: skip
        """The launch by the extension, from the tensors on; NotImplemented where these are no registered CUDA tensors."""
        known = self.ids.get(link.key)
        if known is None or link.garbage or self._native is None:
            return NotImplemented
        client = self._client
        waits = client.blocking if blocking is None else blocking
        if timing or not link.offers_ordered:
            waits = True
        if waits and client._batches:
            return NotImplemented
        sizes = given
        if given is not None and type(given) is not bytes:
            sizes = pack(self._geometry.of_call(arguments, given))
        seconds = client._timeout_of(timeout)
        try:
            made = link.launch(self._native, known, arguments, sizes, 2 if timing else waits, seconds)
        except SHORT_LOSSES as error:
            return self._failed(link, error, waits)
        if sent is not None and type(made) is tuple:
            return Timings.made(made, sent)
        if made is not None:
            return NotImplemented
        return self._result(arguments) if self._outs else None

    def _failed(self, link: Any, error: KopsError, waited: bool) -> Any:
        """The extension's launch has failed. A launch that did not run goes the long way, which waits for a daemon."""
        if isinstance(error, ConnectionLost):
            error = link.lost(error)
        if waited:
            trial = Trial(self._client.reconnect_timeout, None, lambda: KERNEL_HAZARD)
            trial.judge(error, short_call("launch", link, error))
            return NotImplemented
        raise error from None

    def _packed(self, sizes: dict[str, Any]) -> bytes | None:
        """A geometry that is the same for all arguments, as the extension sends it."""
        if self._native is None or self._structures or (self.fallback is not None and interprets_all()):
            return None
        if any(callable(size) for size in sizes.values()) or self._geometry.functions.keys() - sizes.keys():
            return None
        packed: bytes = pack(self._geometry.of_call((), sizes))
        return packed

    def _slow(
        self, arguments: tuple[Any, ...], given: Any, stream: int, timing: Timing, deadline_ms: int | None, priority: str | None,
        blocking: bool | None, timeout: Any, sent: int | None = None, exclusive: bool = False,
    ) -> Any:  # fmt: skip
        client = self._client
        recorder = client._recorder()
        if recorder is not None:
            if timing or stream or exclusive or deadline_ms is not None or priority is not None or blocking is not None:
                raise BadArgument(f"{self.name} is being recorded: timing, stream and the like belong to the whole {recorder.name}")
            return recorder.launch(self, *arguments, **(given or {}))
        contexts.refuse_capture(arguments)
        if client._may_tell_of_turns and not (timing or stream or exclusive or blocking):
            client._tell_of_turns(arguments)
        link = client._live()
        options = options_of(link, None, stream, timing, deadline_ms, priority, exclusive=exclusive)
        request = Launch(self, arguments, self._geometry.of_call(arguments, given or {}), options)
        answer = client._carry(link, request, timing, stream, blocking_of(exclusive, blocking), timeout, sent=sent)
        return answer[1] if timing else answer

    def __getitem__(self, sizes: Any) -> Bound:
        """`kernel[grid, block]` or `kernel[grid, block, shared]`: the kernel with that geometry."""
        return self._bind(sizes)

    def profile(
        self, /, *arguments: Any, warmup: int = 3, repeat: int = 50, until: float | None = None, at_most: float = SECONDS_MOST,
        cache: str = "warm", conditions: bool = True, counters: bool | str = False, grid: Any = None, block: Any = None,
        shared: Any = None, cluster: Any = None, stream: int = 0, deadline_ms: int | None = None, priority: str | None = None,
        exclusive: bool = False, timeout: float | None = DEFAULT_TIMEOUT, **named: Any,
    ) -> Profile:  # fmt: skip
        """Launches it `warmup` times untimed, then `repeat` times timed, inside the daemon: a `Profile`. More than one
        launch needs every pointer that is written to be marked `out` in the signature. `until`, `at_most`, `cache`,
        `conditions` and `counters`: as `Client.profile`. `exclusive`: as in a call; all launches of a round are exclusive work together,
        so few of them (`until=` makes several rounds) are likelier to stay alone."""
        client = self._client
        arguments = self._positional(arguments, named)
        sizes = {"grid": grid, "block": block, "shared": shared, "cluster": cluster}
        caches, goal = caches_of(counters, cache), Goal(until, at_most)
        how: dict[str, Any] = {"stream": stream, "deadline_ms": deadline_ms, "priority": priority, "exclusive": exclusive}
        cold = is_cold(cache)

        def again(n: int, g: Goal) -> Any:
            return self.profile(
                *arguments, warmup=warmup, repeat=n, until=g.until, at_most=g.at_most, conditions=conditions, timeout=timeout, **sizes,
                **how,
            )  # fmt: skip

        def steps() -> Steps:
            link = yield client._live
            if cold:
                start = partial(self._start, timing=truest(link), timeout=timeout, **sizes, **how)
                return (yield from profile_cold(client, again, start, arguments, repeat, goal))
            geometry = self._geometry.of_call(arguments, sizes)
            self._check_launched(link, "a profile")
            launch = self._measured(link, arguments, geometry, {**how, "warmup": warmup, "repeat": repeat})
            plan = partial(profile, request=launch, goal=goal, watch=conditions, counters=caches)
            return (yield partial(client._drive, link, plan, timeout, lambda: launch.hazard))

        answer: Profile = client._take(steps())
        return answer

    def _start(self, *arguments: Any, **how: Any) -> Any:
        """A launch that the client's `_end` waits for."""
        return self.submit(*arguments, **how)

    def submit(
        self, *arguments: Any, grid: Any = None, block: Any = None, shared: Any = None, cluster: Any = None, stream: int = 0,
        timing: Timing = False, deadline_ms: int | None = None, priority: str | None = None, exclusive: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT, **named: Any,
    ) -> Pending:  # fmt: skip
        """Launches it without waiting for the reply, as `Client.submit` does an op."""
        client = self._client
        self._check_launched(client._live(), "submit")
        arguments = self._positional(arguments, named)
        geometry = self._geometry.of_call(arguments, {"grid": grid, "block": block, "shared": shared, "cluster": cluster})
        link = client._live()
        options = options_of(link, None, stream, timing, deadline_ms, priority, exclusive=exclusive)
        made: Pending = client._submit(link, Launch(self, arguments, geometry, options), timing, timeout, run)
        return made

    @property
    def attributes(self) -> Entry:
        """Attributes of the compiled kernel: registers, shared memory, spills… Compiles it if needed."""
        if self.code.compiled is None:
            client = self._client
            link = client._live()
            client._drive(link, self.code.define, DEFAULT_TIMEOUT)
        return super().attributes


class AsyncKernel(BaseKernel):
    """As `Kernel`, with `await`: `await kern(c, a, b, n)`. Made by `AsyncClient.kernel`."""

    async def __call__(
        self, *arguments: Any, grid: Any = None, block: Any = None, shared: Any = None, cluster: Any = None, stream: int = 0,
        timing: Timing = False, deadline_ms: int | None = None, priority: str | None = None, exclusive: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT, **named: Any,
    ) -> Any:  # fmt: skip
        """As `Kernel`'s; returns when the launch has ended."""
        client = self._client
        arguments = self._positional(arguments, named)
        sizes = {"grid": grid, "block": block, "shared": shared, "cluster": cluster}
        connection = await client._live()
        if self.interprets(connection):
            if timing or exclusive:
                refuse_interpreted(self.name, "the interpreter has no times, and holds nobody back")
            return await asyncio.to_thread(self.interpret, *arguments, **sizes)
        geometry = self._geometry.of_call(arguments, sizes)
        options = options_of(connection, None, stream, timing, deadline_ms, priority, exclusive=exclusive)
        request = Launch(self, arguments, geometry, options)
        return await client._drive(connection, lambda link: run(link, request, timing), timeout, lambda: request.hazard)

    def __getitem__(self, sizes: Any) -> Bound:
        """`kernel[grid, block]`: the kernel with that geometry."""
        return self._bind(sizes)

    profile = awaited(Kernel.profile)

    def _start(self, *arguments: Any, **how: Any) -> Any:
        return asyncio.ensure_future(self(*arguments, **how))
