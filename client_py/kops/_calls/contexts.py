"""What launches in a CUDA context of this process have in common: the keyword `where`, where their arrays lie, and where a launch or an op
runs when the caller leaves that to the client: in the daemon or here, by what both were measured to take."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .._base.compiled import fast_types, native, why_not
from .._base.errors import BadArgument, Capturing, KopsError, Timeout, Unsupported
from .._base.results import Timing, Timings
from .._memory.exports import allocations
from .._session.link import Link

PLACES = ("daemon", "here", "auto")
DAEMON_BY_AUTO: Any = object()  # the `where` of a call that "auto" gave to the daemon
LEGACY_STREAM = 0


def checked_place(where: str) -> str:
    if where not in PLACES:
        raise BadArgument(f"where must be one of {', '.join(PLACES)}, not {where!r}", {"key": "where"})
    return where


def place_of_connection(given: str | None, blocking: bool) -> tuple[str, bool]:
    """Where a connection's calls run, and whether its user chose that: `given`, KOPS_WHERE, or the daemon."""
    if given is not None:
        if blocking and checked_place(given) != "daemon":
            raise BadArgument(
                f"blocking=True waits for the daemon's results, and a launch here is put on the caller's stream: leave out where={given!r}",
                {"key": "where"},
            )
        return checked_place(given), True
    named = os.environ.get("KOPS_WHERE", "")
    if named and named not in PLACES:
        raise BadArgument(f"KOPS_WHERE must be one of {', '.join(PLACES)}, not {named!r:.40}", {"key": "KOPS_WHERE"})
    return ("daemon" if blocking or not named else named), bool(named)


def check_options(name: str, **options: Any) -> None:
    """Raises BadArgument for options of a launch that only the daemon knows."""
    given = next((key for key, value in options.items() if value), None)
    if given is not None:
        raise BadArgument(
            f"{name}: {given} is for launches in the daemon: one here is put on the caller's CUDA stream, as torch's are", {"key": given}
        )


def exact_is_not_here(timing: Timing) -> None:
    if timing == "exact":
        raise BadArgument('timing="exact" is for launches in the daemon: here events tell, timing=True', {"key": "timing"})


def offered(connection: Link, feature: str) -> bool:
    """Whether what the feature hands out can be launched in this process."""
    return native is not None and connection.info is not None and feature in connection.info.features


def need(connection: Link, name: str, feature: str) -> None:
    """Raises Unsupported where it cannot."""
    if native is None:
        raise Unsupported(f"{name} cannot be launched here without the compiled part of the package: {why_not}")
    info = connection.info
    if info is not None and feature not in info.features:
        raise Unsupported(
            f"{name} cannot be launched here: this daemon hands out no code to this user (kernels.hand_out in its settings), or is "
            "older than that. Leave out where=, and the daemon launches it",
            {"feature": feature},
        )


def on_device(value: Any) -> bool:
    """Whether an array lies in device memory of this process."""
    device = getattr(value, "device", None)
    kind = getattr(device, "type", None)
    if kind is not None and "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        return bool(kind == "cuda")
    return hasattr(value, "__cuda_array_interface__")


def settled(name: str, value: Any, written: bool = False) -> Any:
    """The array whose memory has its values: torch may keep a tensor as the negative of what lies there. The caller keeps it until
    the launch. Raises BadArgument for one that is `written`."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or not value.is_neg():
        return value
    if written:
        raise BadArgument(f"{name} is a negated view, whose memory has other values than the tensor: give a copy, resolve_neg()")
    return value.resolve_neg()


def stream_of(arrays: Iterable[Any]) -> int:
    """The stream that the arrays' framework works on."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    for value in arrays:
        if torch is not None and isinstance(value, torch.Tensor):
            from .._tensors.torch import current_stream

            return current_stream(value.get_device())
        if cupy is not None and isinstance(value, cupy.ndarray):
            return int(cupy.cuda.get_current_stream().ptr)
    return LEGACY_STREAM


def refuse_capture(arrays: Iterable[Any]) -> None:
    """Raises Capturing where torch's current stream is under capture, before anything is asked that would spoil the graph."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for value in arrays:
        if isinstance(value, torch.Tensor) and value.device.type == "cuda":
            from .._tensors.torch import current_stream

            if allocations.driver.capturing(current_stream(value.get_device())):
                raise Capturing(
                    "the current CUDA stream is being captured, and the daemon's work cannot be part of a graph: launch here, make the "
                    "call outside the capture, or record a program with k.program()"
                )
            return


def timings(arrays: Iterable[Any], us: float, variant: str, sent: int | None) -> Timings:
    """What is known of a launch here: the time between two events around it."""
    device = next((value.get_device() for value in arrays if hasattr(value, "get_device")), None)
    uuid = "" if device is None else allocations.driver.uuid(device)
    return Timings(gpu_us=us, device=uuid, variant=variant, timer="events", sent_ns=sent)


NO_ARRAYS = frozenset((int, float, bool, type(None)))
CHAIN = 16  # launches in a measurement
AGAIN_S = 10.0  # seconds until a failed measurement is repeated


@dataclass(frozen=True)
class Place:
    """Where `where="auto"` launches a kernel, and why.

    `here_us` and `daemon_us`: what a tiny launch took in a chain of them on one stream, in this process's context and in the
    daemon; None where it was not measured, because only one of both is possible, or torch is not there to measure with.
    """

    where: str
    why: str
    here_us: float | None = None
    daemon_us: float | None = None

    @property
    def stays(self) -> bool:
        """Whether it is so as long as the connection is: nothing is to be measured."""
        return self.here_us is not None or self.where == "daemon"


def torch_device_of(arguments: Sequence[Any]) -> int | None:
    """The device of the first torch CUDA tensor."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    found = (v for v in arguments if isinstance(v, torch.Tensor) and v.device.type == "cuda")
    first = next(found, None)
    return None if first is None else int(first.get_device())


def _copied(arguments: tuple[Any, ...]) -> bool:
    """Whether an array among them is in host memory."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    return any(
        (numpy is not None and isinstance(value, numpy.ndarray))
        or (torch is not None and isinstance(value, torch.Tensor) and value.device.type == "cpu")
        for value in arguments
    )


def _chain(torch: Any, stream: Any, step: Callable[[], Any]) -> float:
    """Microseconds a link of a chain on a stream that has nothing else to do; the best of three."""
    best = float("inf")
    for _ in range(3):
        stream.synchronize()
        began = time.perf_counter()
        for _ in range(CHAIN):
            step()
        stream.synchronize()
        best = min(best, (time.perf_counter() - began) / CHAIN * 1e6)
    return best


def measure(client: Any, device: int) -> tuple[float, float]:
    """What a launch takes in a chain, here and in the daemon, on a stream of its own."""
    torch = sys.modules["torch"]
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = torch.zeros(1, device="cuda")
            y = torch.zeros(1, device="cuda")
            here_us = _chain(torch, stream, lambda: torch.add(x, x, out=y))
            daemon_us = _chain(torch, stream, lambda: client.add(x, x, out=y, where="daemon"))
    client.synchronize()
    return here_us, daemon_us


def place(client: Any, connection: Link, arguments: tuple[Any, ...], feature: str) -> Place:
    """Where a launch with these arguments runs; `feature` hands out what is launched. Measures once a connection and device. The
    measurement waits for the client's earlier ordered calls, and raises the error of one of them, as any call to the daemon does."""
    if native is None:
        return Place("daemon", f"the package has no compiled part, which launches here need: {why_not}")
    if not offered(connection, feature):
        return Place("daemon", "this daemon hands out no code to this user (kernels.hand_out)")
    if _copied(arguments):
        return Place("daemon", "an argument is an array in host memory, which the daemon copies")
    device = torch_device_of(arguments)
    if device is None:
        on_device = any(hasattr(value, "__cuda_array_interface__") for value in arguments)
        if not on_device:
            return Place("daemon", "no argument is in device memory of this process: the daemon copies arrays to its GPU")
        return Place("here", "the arrays are in device memory of this process; without torch nothing was measured")
    found: tuple[Place, float] | None = client._places.get((connection.key, device))
    if found is None or found[1] < time.monotonic():
        found = client._places[connection.key, device] = _measured(client, device)
    return found[0]


def is_here(client: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether "auto" was found before to launch kernels with such arguments here: torch CUDA tensors and numbers."""
    decided, found = client._here_devices, False
    if not decided:
        return False
    for value in arguments:
        if type(value) in fast_types:
            if value.get_device() not in decided:  # -1: on the CPU
                return False
            found = True
        elif type(value) not in NO_ARRAYS:
            return False
    return found


def remember(client: Any, arguments: tuple[Any, ...], made: Place) -> None:
    """Has `is_here` answer, until the client connects anew."""
    device = torch_device_of(arguments)
    if device is not None and made.stays and made.where == "here":
        client._here_devices.add(device)


def _measured(client: Any, device: int) -> tuple[Place, float]:
    """Where launches run, and until when that holds."""
    try:
        client.synchronize()
    except Timeout as error:
        return _unmeasured(f"the client's earlier calls have not ended: {error}")
    try:
        here_us, daemon_us = measure(client, device)
    except KopsError as error:
        return _unmeasured(f"the daemon could not be measured: {error}")
    where = "here" if here_us <= daemon_us else "daemon"
    why = f"a tiny launch in a chain took {here_us:.1f} us here and {daemon_us:.1f} us in the daemon"
    return Place(where, why, here_us, daemon_us), float("inf")


def _unmeasured(why: str) -> tuple[Place, float]:
    return Place("here", why), time.monotonic() + AGAIN_S
