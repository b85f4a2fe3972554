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
    """The bytes were no valid request (garbage, too long, too deep, wrong file descriptors, a duplicate msgid).
    The connection is closed after it.
    """

class ProtocolMismatch(KopsError):
    """`hello` asked for a protocol that this daemon does not speak; `detail` has `protocol_min` and `protocol`."""

class UnknownMethod(KopsError, AttributeError):
    """No such method."""

class UnknownKey(KopsError, TypeError):
    """A request map holds a key that this method, tensor or op does not have, or holds one twice; `detail.key`
    names it.
    """

class MissingKey(KopsError, TypeError):
    """A required key is absent; `detail.key` names it."""

class WrongType(KopsError, TypeError):
    """A value has the wrong MessagePack type; `detail.key` names it."""

class InvalidArgument(KopsError, ValueError):
    """A value is of the right type but makes no sense here; `detail.key` names it."""

class OutOfRange(KopsError, ValueError):
    """A number lies outside its range; `detail` has `key`, `min` and `max`."""

class UnknownOp(KopsError, ValueError):
    """No op of that name; `hello` lists them."""

class UnknownDtype(KopsError, TypeError):
    """No dtype of that name, or the op does not take it."""

class DtypeMismatch(KopsError, TypeError):
    """The tensors of one request have dtypes that do not go together."""

class ShapeMismatch(KopsError, ValueError):
    """Ranks or shapes do not fit the op's shape rule."""

class OutOfBounds(KopsError, IndexError):
    """A tensor's furthest element lies outside its buffer; `detail` has `needed` and `size` in bytes."""

class Misaligned(KopsError, ValueError):
    """A tensor's byte offset is no multiple of its element size."""

class Overlap(KopsError, ValueError):
    """An output overlaps itself, another output, or an input that it is not exactly equal to."""

class UnknownDevice(KopsError, ValueError):
    """The daemon has no device of that index or UUID."""

class DeviceMismatch(KopsError, ValueError):
    """The tensors of one request are on devices that have no access to each other's memory."""

class UnknownBuffer(KopsError, LookupError):
    """This connection has no buffer of that id (never had, or released it)."""

class StaleBuffer(KopsError, LookupError):
    """The memory behind the reference was freed or replaced by its owner; register it anew."""

class InvalidHandle(KopsError, ValueError):
    """The driver could not open the IPC handle (bogus, freed, of another GPU, or exported by the daemon itself)."""

class InvalidFd(KopsError, ValueError):
    """The file descriptor is no sealed memfd of the declared size; the message says which check failed."""

class ReadOnly(KopsError, PermissionError):
    """An output lies in a buffer that was registered read-only or is sealed against writing."""

class LimitExceeded(KopsError, ValueError):
    """The request has more of something than it may have; `detail` has `limit` and `value`."""

class QuotaExceeded(KopsError, ResourceWarning):
    """The connection or user has used up a quota; `detail` has `quota` (its name), `limit` and `current`, and
    for rates and faults `retry_after_ms`. Also when the daemon or the machine has no descriptors left:
    `quota` is `descriptors`, without the numbers where it is the machine.
    """

class Unsupported(KopsError, NotImplementedError):
    """This daemon, device or build cannot do it; the message names another way."""

class OutOfMemory(KopsError, MemoryError):
    """The device or host has too little free memory."""

class DeadlineExceeded(KopsError, TimeoutError):
    """`deadline_ms` passed before the job ended. `detail.ended` is false while the job still uses its memory;
    outputs are undefined when it had started.
    """

    @property
    def ended(self) -> bool:
        """False while the daemon still works on it: until then the outputs may be written, and the client keeps
        the memory that it made. `k.trim()` waits for the end.
        """

class Cancelled(KopsError, concurrent.futures.CancelledError):
    """The job was cancelled. `detail.ended` is false while the job still uses its memory; outputs are undefined
    when it had started.
    """

    @property
    def ended(self) -> bool:
        """False while the daemon still works on it: until then the outputs may be written, and the client keeps
        the memory that it made. `k.trim()` waits for the end.
        """

class MemoryFault(KopsError, OSError):
    """Shared memory behind a tensor could not be accessed while the job ran (its pages are gone)."""

class DeviceError(KopsError, RuntimeError):
    """The driver refused or failed the work; the device goes on. `detail.driver` names the driver's error."""

class DeviceLost(KopsError, RuntimeError):
    """The process that has the device's context was lost under the request: by another kernel's fault or end, by
    a kill from outside, or of itself. Outputs are undefined. Where `detail.daemon` is `goes_on`, another
    process has taken its place: the connection, its buffers, kernels and programs go on. Otherwise the daemon
    ends with its own exit status, and a supervisor starts it anew.
    """

class PermissionDenied(KopsError, PermissionError):
    """The client's user may not connect (`detail.uid`), may not call this method (`detail.method` and `class`)
    or bring kernels, or the reference belongs to another user.
    """

class ShuttingDown(KopsError, ConnectionError):
    """The daemon is ending, or draining (`detail.draining` is true), and takes no new work; the request has not
    run.
    """

class Internal(KopsError, RuntimeError):
    """A fault inside the daemon; its log has more."""

class UnknownProgram(KopsError, LookupError):
    """This connection has no program of that id (never had, or released it)."""

class Stalled(KopsError, ConnectionError):
    """The client's stream did not reach an ordered call in time (`server.stall_timeout_ms`); the call was
    dropped and the connection is closed after it.
    """

class CompileFailed(KopsError, ValueError):
    """The source of a kernel was not compiled; `detail.reason` is `source`, `entry`, `time`, `memory` or
    `crash`, `detail.log` the compiler's log.
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
    """This connection has no kernel or module of that id (never had, or released it)."""

class SignatureMismatch(KopsError, TypeError):
    """The declared parameters are not those of the compiled kernel; `detail.key` names the first that differs."""

class JobTimeout(KopsError, TimeoutError):
    """A job ran longer than it may (`detail.timeout_s`): `server.job_timeout_s`, or less while kernels of others
    wait for the GPU. Where `detail.daemon` is `goes_on`, it alone was ended, and the connection, its buffers,
    kernels and programs go on. Otherwise the daemon ends, which frees the GPU, and a supervisor starts it
    anew.
    """

class DeviceFault(KopsError, RuntimeError):
    """A kernel broke the context of the GPU that it ran in (an illegal address, an illegal instruction, …). Its
    outputs are undefined. `detail.kernel` names the kernel, `detail.driver` the driver's error,
    `detail.op_index` the launch of a sequence or program, as far as they are known; `detail.suspects` counts
    the kernels that ran at the same time where there were several. Nothing else is lost: the connection, its
    buffers, kernels and programs go on.
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
    """No daemon answered on any of the socket paths tried; the message lists them."""

class ConnectionLost(KopsError, ConnectionError):
    """The daemon closed the connection or died; requests without a reply may or may not have run."""

class Timeout(KopsError, TimeoutError):
    """No reply within the client's timeout; the request was cancelled and the connection stays usable."""

class NotExportable(KopsError, ValueError):
    """The memory has no handle that another process could open (expandable segments, cudaMallocAsync, host
    memory that is not shared); the message names the change to make.
    """

class BadReply(KopsError, ConnectionError):
    """The peer's bytes are no valid response."""

class BadArgument(KopsError, ValueError):
    """A client function was called with an argument that it refuses before anything is sent."""

class NoMemory(KopsError, MemoryError):
    """The client process has too little memory."""

class OsError(KopsError, OSError):
    """A system call of the client failed; the message has its name and errno."""

class NoCuda(KopsError, RuntimeError):
    """The client process has no usable CUDA driver or no current context."""

class Capturing(KopsError, RuntimeError):
    """The CUDA stream is being captured into a graph. An ordered call cannot be part of a graph: make the call
    outside the capture, or define a program.
    """

class BufferLost(KopsError, LookupError):
    """The daemon was started anew and this buffer could not be registered again (only the old daemon had its
    memory, or its owner is gone). Its contents are lost. Make it anew.
    """

BY_CODE: dict[str, type[KopsError]]

def class_name(code: str) -> str: ...
def from_reply(error: Any) -> KopsError: ...
def from_os(call: str, error: OSError) -> KopsError: ...
