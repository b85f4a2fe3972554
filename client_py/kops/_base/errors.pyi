# Written by client_py/stubs.py from the declarations; run that to change it.
import concurrent.futures
from collections.abc import Mapping
from typing import Any

__all__ = [
    "KopsError",
    "ProtocolError",
    "ProtocolMismatch",
    "UnknownMethod",
    "UnknownKey",
    "MissingKey",
    "WrongType",
    "InvalidArgument",
    "OutOfRange",
    "UnknownOp",
    "UnknownDtype",
    "DtypeMismatch",
    "ShapeMismatch",
    "OutOfBounds",
    "Misaligned",
    "Overlap",
    "UnknownDevice",
    "DeviceMismatch",
    "UnknownBuffer",
    "StaleBuffer",
    "InvalidHandle",
    "InvalidFd",
    "ReadOnly",
    "LimitExceeded",
    "QuotaExceeded",
    "Unsupported",
    "OutOfMemory",
    "DeadlineExceeded",
    "Cancelled",
    "MemoryFault",
    "DeviceError",
    "DeviceLost",
    "PermissionDenied",
    "ShuttingDown",
    "Internal",
    "UnknownProgram",
    "Stalled",
    "CompileFailed",
    "UnknownKernel",
    "SignatureMismatch",
    "JobTimeout",
    "DeviceFault",
    "ConnectFailed",
    "ConnectionLost",
    "Timeout",
    "NotExportable",
    "BadReply",
    "BadArgument",
    "NoMemory",
    "OsError",
    "NoCuda",
    "Capturing",
    "BufferLost",
]

class KopsError(Exception):
    """Base of every error of this package."""

    code: str
    value: int
    message: str
    detail: dict[str, Any]
    def __init__(
        self, message: str = ..., detail: Mapping[str, Any] | None = ..., code: str | None = ...
    ) -> None: ...

class ProtocolError(KopsError, ConnectionError):
    """The bytes were no valid request; the connection is closed."""

class ProtocolMismatch(KopsError):
    """The daemon does not speak this protocol; `detail` has `protocol_min` and `protocol`."""

class UnknownMethod(KopsError, AttributeError):
    """No such method."""

class UnknownKey(KopsError, TypeError):
    """A map of the request has an unknown key, or one key twice."""

class MissingKey(KopsError, TypeError):
    """A required key is absent."""

class WrongType(KopsError, TypeError):
    """A value has the wrong MessagePack type."""

class InvalidArgument(KopsError, ValueError):
    """A value has the right type but makes no sense here."""

class OutOfRange(KopsError, ValueError):
    """A number lies outside its range; `detail` has `min` and `max`."""

class UnknownOp(KopsError, ValueError):
    """No op of that name; `hello` lists them."""

class UnknownDtype(KopsError, TypeError):
    """No dtype of that name, or the op does not take it."""

class DtypeMismatch(KopsError, TypeError):
    """The dtypes of the tensors do not go together."""

class ShapeMismatch(KopsError, ValueError):
    """Ranks or shapes do not fit the op's shape rule."""

class OutOfBounds(KopsError, IndexError):
    """A tensor's furthest element lies outside its buffer; `detail` has `needed` and `size` in bytes."""

class Misaligned(KopsError, ValueError):
    """A tensor's byte offset is no multiple of its element size."""

class Overlap(KopsError, ValueError):
    """An output overlaps itself or another operand, and is not exactly an input."""

class UnknownDevice(KopsError, ValueError):
    """The daemon has no device of that index or UUID."""

class DeviceMismatch(KopsError, ValueError):
    """The tensors are on devices that cannot access each other's memory."""

class UnknownBuffer(KopsError, LookupError):
    """The connection has no buffer of that id."""

class StaleBuffer(KopsError, LookupError):
    """The owner freed or replaced the memory; register it anew."""

class InvalidHandle(KopsError, ValueError):
    """The driver could not open the handle: bogus, freed, of another GPU, or exported by the daemon itself."""

class InvalidFd(KopsError, ValueError):
    """The descriptor is no sealed memfd of the declared size; the message says why."""

class ReadOnly(KopsError, PermissionError):
    """An output lies in memory that was registered read-only or is sealed against writing."""

class LimitExceeded(KopsError, ValueError):
    """The request has too much of something; `detail` has `limit` and `value`."""

class QuotaExceeded(KopsError, ResourceWarning):
    """The connection or the user has used up a quota; `detail` has `quota`, `limit`, `current` and, where time
    helps, `retry_after_ms`. `quota` is `descriptors` when the daemon or the machine has no descriptors left.
    """

class Unsupported(KopsError, NotImplementedError):
    """The daemon, device or build cannot do this; the message names another way."""

class OutOfMemory(KopsError, MemoryError):
    """The device or host has too little free memory."""

class DeadlineExceeded(KopsError, TimeoutError):
    """`deadline_ms` passed before the job ended. `detail.ended` is false while the job still uses its memory."""

    @property
    def ended(self) -> bool:
        """False while the daemon still works on it: until then the outputs may be written, and the client keeps
        the memory that it made. `k.trim()` waits for the end.
        """

class Cancelled(KopsError, concurrent.futures.CancelledError):
    """The job was cancelled. `detail.ended` is false while the job still uses its memory."""

    @property
    def ended(self) -> bool:
        """False while the daemon still works on it: until then the outputs may be written, and the client keeps
        the memory that it made. `k.trim()` waits for the end.
        """

class MemoryFault(KopsError, OSError):
    """Shared memory behind a tensor could not be accessed while the job ran."""

class DeviceError(KopsError, RuntimeError):
    """The driver refused or failed the work (`detail.driver`); the device goes on."""

class DeviceLost(KopsError, RuntimeError):
    """The process with the device's context was lost; outputs are undefined. With `detail.daemon` = `goes_on`
    the connection and its ids stay valid, else the daemon ends and is started anew.
    """

class PermissionDenied(KopsError, PermissionError):
    """The user may not connect, call this method or bring kernels, or the memory belongs to another user."""

class ShuttingDown(KopsError, ConnectionError):
    """The daemon ends or drains (`detail.draining`); the request has not run."""

class Internal(KopsError, RuntimeError):
    """A fault inside the daemon; its log has more."""

class UnknownProgram(KopsError, LookupError):
    """The connection has no program of that id."""

class Stalled(KopsError, ConnectionError):
    """The stream did not reach an ordered call within `server.stall_timeout_ms`. The call is dropped and the
    connection closed.
    """

class CompileFailed(KopsError, ValueError):
    """The source was not compiled; `detail.reason` is `source`, `entry`, `time`, `memory` or `crash`,
    `detail.log` the compiler's log.
    """

    @property
    def log(self) -> str:
        """All that the compiler said."""

    @property
    def reason(self) -> str:
        """`source`, `entry`, `time`, `memory` or `crash`."""

    @property
    def file(self) -> str | None:
        """Of the first error."""

    @property
    def line(self) -> int | None:
        """Of the first error."""

class UnknownKernel(KopsError, LookupError):
    """The connection has no kernel or module of that id."""

class SignatureMismatch(KopsError, TypeError):
    """The declared parameters are not those of the compiled kernel; `detail.key` names the first that differs."""

class JobTimeout(KopsError, TimeoutError):
    """A job ran longer than `detail.timeout_s`. With `detail.daemon` = `goes_on` the job alone was ended, else
    the daemon ends and is started anew.
    """

class DeviceFault(KopsError, RuntimeError):
    """A kernel broke the GPU's context, such as by an illegal address; only its outputs are lost. `detail` has
    `kernel`, `driver`, `op_index` where they are known, and `suspects` where several kernels ran.
    """

    @property
    def kernel(self) -> str | None:
        """The kernel's name; None where it is not known."""

    @property
    def op_index(self) -> int | None:
        """Its place in a sequence or program."""

    @property
    def driver(self) -> str | None:
        """The driver's error, such as `CUDA_ERROR_ILLEGAL_ADDRESS`."""

class ConnectFailed(KopsError, ConnectionError):
    """No daemon answered on the socket paths that the message lists."""

class ConnectionLost(KopsError, ConnectionError):
    """The connection closed; requests without a reply may have run."""

class Timeout(KopsError, TimeoutError):
    """No reply within the client's timeout; the request was cancelled, the connection stays usable."""

class NotExportable(KopsError, ValueError):
    """No other process can open this memory; the message names the change to make."""

class BadReply(KopsError, ConnectionError):
    """The peer's bytes are no valid response."""

class BadArgument(KopsError, ValueError):
    """A client function refused an argument; nothing was sent."""

class NoMemory(KopsError, MemoryError):
    """The client process has too little memory."""

class OsError(KopsError, OSError):
    """A system call of the client failed; the message has its name and errno."""

class NoCuda(KopsError, RuntimeError):
    """The client process has no usable CUDA driver or no current context."""

class Capturing(KopsError, RuntimeError):
    """The CUDA stream is being captured into a graph. Call outside the capture, or define a program."""

class BufferLost(KopsError, LookupError):
    """This buffer could not be registered with the new daemon: its contents are lost. Make it anew."""

BY_CODE: dict[str, type[KopsError]]

def class_name(code: str) -> str: ...
def from_reply(error: Any) -> KopsError: ...
def from_os(call: str, error: OSError) -> KopsError: ...
