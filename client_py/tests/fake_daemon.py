"""A daemon in miniature for the client's tests: a thread that speaks the protocol, computes with NumPy, and obeys the
test.

It shares no code with the client. `requests` has every message received; `gate` holds back the answers of `run` while
cleared; `script` may answer a method in its own way.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import msgpack
import numpy
from fake_kernels import KERNELS, KernelMethods

DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "i32": "int32", "i64": "int64", "u8": "uint8", "bool": "bool"}
HELLO = {
    "server": "kopsd 0.0 (fake)",
    "protocol": 1,
    "protocol_min": 1,
    "pid": 1,
    "devices": [
        {
            "index": 0,
            "name": "fake",
            "uuid": "host",
            "backend": "host",
            "memory_bytes": 1,
            "compute_units": 1,
            "arch": "x",
            "default": True,
        }
    ],
    "ops": [
        {
            "name": name,
            "inputs": inputs,
            "outputs": ["out"],
            "dtypes": ["f32"],
            "attrs": [],
            "variants": {"host": ["v"]},
        }
        for name, inputs in (("add", ["a", "b"]), ("square", ["a"]), ("gemm", ["a", "b"]))
    ],
    "limits": {"message_bytes": 65536, "depth": 32, "nfds": 16, "inflight": 8, "rank": 16},
    "features": ["memfd", "sequence", "program", "priority", "cuda_ipc", "cuda_vmm", "cuda_pool", "compile", "kernels"],
    "kernels": KERNELS,
    "of_a_later_version": [1, 2, 3],
}


RUNS = ("run", "launch", "sequence", "run_program")


class Refused(Exception):
    def __init__(self, code: str, message: str = "refused", **detail: Any) -> None:
        super().__init__(code)
        self.error = {"code": code, "message": message, "detail": detail}


class Buffer:
    def __init__(self, fd: int | None, size: int, params: dict[str, Any]) -> None:
        self.params = params
        self.size = size
        self.data = mmap.mmap(fd, size) if fd is not None else None
        if fd is not None:
            os.close(fd)


class Peer(KernelMethods):
    """One connection."""

    def __init__(self, daemon: FakeDaemon, sock: socket.socket) -> None:
        super().__init__()
        self.daemon = daemon
        self.socket = sock
        self.buffers: dict[int, Buffer] = {}
        self.ended = threading.Event()
        self.leaves = False  # it hangs up a moment after its next answer
        self.ends = False  # it hangs up behind its next answer, before another request is read
        self.write_lock = threading.Lock()
        self.msgid: int | None = None  # the last request's
        self.running: dict[int, threading.Event] = {}  # msgid -> set when cancelled
        self.runners: dict[int, threading.Thread] = {}  # by stream
        self.queues: dict[int, list[tuple[int, str, dict[str, Any]]]] = {}
        self.queued = threading.Condition()
        self.programs: dict[int, dict[str, Any]] = {}
        self.page: Any = None  # words of ready, then of done
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def hang_up(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def serve(self) -> None:
        # No limits here: what the client sends is the test's business.
        unpacker = msgpack.Unpacker(raw=False)
        fds: list[int] = []
        while True:
            try:
                data, control, flags, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC)
            except OSError:
                break
            assert not flags & socket.MSG_CTRUNC
            for _, _, payload in control:
                got = array.array("i")
                got.frombytes(payload)
                fds.extend(got)
            if not data:
                break
            unpacker.feed(data)
            for message in unpacker:
                self.handle(message, fds)
        self.ended.set()
        self.buffers.clear()
        with self.queued:
            self.queued.notify_all()

    def handle(self, message: list[Any], fds: list[int]) -> None:
        params = message[-1][0]
        own = [fds.pop(0) for _ in range(params.get("nfds", 0))]
        method = message[1] if message[0] == 2 else message[2]
        msgid = self.msgid = None if message[0] == 2 else message[1]
        self.daemon.requests.append((method, params))
        if method in RUNS and (method not in self.daemon.script or "done" in params or "ready" in params):
            self.running[msgid] = threading.Event()
            stream = params.get("stream", 0)
            with self.queued:
                self.queues.setdefault(stream, []).append((msgid, method, params))
                if stream not in self.runners:
                    self.runners[stream] = threading.Thread(target=self.run_queue, args=(stream,), daemon=True)
                    self.runners[stream].start()
                self.queued.notify_all()
            return
        self.answer(msgid, method, params, own)

    def run_queue(self, stream: int) -> None:
        queue = self.queues[stream]
        while True:
            with self.queued:
                self.queued.wait_for(lambda: queue or self.ended.is_set())
                if self.ended.is_set():
                    return
                msgid, method, params = queue.pop(0)
            cancelled = self.running[msgid]

            def ready() -> bool:
                return "ready" not in params or self.page[stream] >= params["ready"]  # noqa: B023

            while not (ready() and self.daemon.gate.wait(0.005)) and not cancelled.is_set() and not self.ended.wait(0.001):
                pass
            if self.ended.is_set():
                return
            self.running.pop(msgid)
            if cancelled.is_set():
                self.send([1, msgid, {"code": "cancelled", "message": "it was cancelled", "detail": {}}, None])
            else:
                self.answer(msgid, method, params, [])

    def answer(self, msgid: int | None, method: str, params: dict[str, Any], fds: list[int]) -> None:
        error = result = None
        try:
            script = self.daemon.script.get(method)
            result = script(self, params, fds) if script is not None else getattr(self, "do_" + method)(params, fds)
        except Refused as refused:
            error = refused.error
        if "done" in params:
            self.page[256 + params["stream"]] = params["done"]
        if msgid is not None and result is not NotImplemented:
            fds = [result.pop("_fd")] if isinstance(result, dict) and "_fd" in result else []
            self.send([1, msgid, error, result], fds)
        if self.ends:
            self.hang_up()
        elif self.leaves:
            threading.Timer(0.05, self.hang_up).start()

    def send(self, message: Any, fds: list[int] | None = None) -> None:
        with self.write_lock:
            try:
                data = message if isinstance(message, bytes) else msgpack.packb(message)
                if fds:
                    socket.send_fds(self.socket, [data], fds)
                    for fd in fds:
                        os.close(fd)
                else:
                    self.socket.sendall(data)
            except OSError:
                pass

    def do_hello(self, params: dict[str, Any], fds: list[int]) -> Any:
        return self.daemon.hello

    def do_ping(self, params: dict[str, Any], fds: list[int]) -> Any:
        return params

    def do_register(self, params: dict[str, Any], fds: list[int]) -> Any:
        if params["kind"] != "memfd":
            for fd in fds:
                os.close(fd)
        if "extend" in params:
            return {"buffer": params["extend"], "size": params["size"]}
        fd = fds[params["fd"]] if params["kind"] == "memfd" else None
        buffer = self.daemon.next_buffer()
        self.buffers[buffer] = Buffer(fd, params["size"], params)
        return {"buffer": buffer, "size": params["size"]}

    def do_timelines(self, params: dict[str, Any], fds: list[int]) -> Any:
        fd = os.memfd_create("timelines", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 4096)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.page = memoryview(mmap.mmap(fd, 4096)).cast("q")
        return {"nfds": 1, "fd": 0, "size": 4096, "streams": 256, "_fd": fd}

    def do_release(self, params: dict[str, Any], fds: list[int]) -> Any:
        if self.release_kernel(params):
            return {}
        if "program" in params:
            if self.programs.pop(params["program"], None) is None:
                raise Refused("unknown_program")
            return {}
        if params["buffer"] not in self.buffers:
            raise Refused("unknown_buffer")
        del self.buffers[params["buffer"]]
        return {}

    def do_cancel(self, params: dict[str, Any], fds: list[int]) -> Any:
        cancelled = self.running.get(params["msgid"])
        if cancelled is not None:
            cancelled.set()
        return {"cancelled": cancelled is not None}

    def do_trim(self, params: dict[str, Any], fds: list[int]) -> Any:
        return {"unpinned": 0, "mappings": 0}

    def do_stats(self, params: dict[str, Any], fds: list[int]) -> Any:
        return {"uptime_s": 1.0, "counters": {}, "ops": [], "mappings": [], "asked": params}

    def view(self, tensor: dict[str, Any]) -> Any:
        if 0 in tensor["shape"]:
            return numpy.empty(tensor["shape"], DTYPES[tensor["dtype"]])
        buffer = self.buffers.get(tensor["buffer"])
        if buffer is None:
            raise Refused("unknown_buffer")
        dtype = numpy.dtype(DTYPES[tensor["dtype"]])
        strides = tensor.get("strides")
        if strides is not None:
            strides = [s * dtype.itemsize for s in strides]
        return numpy.ndarray(tensor["shape"], dtype, buffer.data, tensor.get("offset", 0), strides)

    def do_run(self, params: dict[str, Any], fds: list[int]) -> Any:
        inputs = [self.view(t) for t in params["in"]]
        (out,) = [self.view(t) for t in params["out"]]
        attrs = params.get("attrs", {})
        if params["op"] == "add":
            out[...] = inputs[0] + inputs[1]
        elif params["op"] == "square":
            out[...] = inputs[0] * inputs[0]
        elif params["op"] == "gemm":
            a, b = (x.swapaxes(-1, -2) if attrs.get(t) else x for x, t in zip(inputs, ("trans_a", "trans_b"), strict=False))
            product = attrs.get("alpha", 1.0) * (a @ b)
            out[...] = product + attrs["beta"] * out if attrs.get("beta", 0.0) else product
        else:
            raise Refused("unknown_op")
        return {**self.measured(params), "variant": attrs.get("variant", "fake")}

    def measured(self, params: dict[str, Any]) -> dict[str, Any]:
        timings = {"host_us": 10.0, "total_us": 12.0, "from_the_future": 1}
        if params.get("repeat", 1) > 1:
            samples = [float(i + 1) for i in range(params["repeat"])]
            timings |= {"min": 1.0, "median": 4.0, "p90": 8.0, "max": samples[-1], "samples": samples}
        return {"timings": timings, "device": "host"}

    def do_sequence(self, params: dict[str, Any], fds: list[int]) -> Any:
        tensors = params["tensors"]
        for i, step in enumerate(params["ops"]):
            try:
                if "kernel" in step:
                    self.step(step, tensors)
                    continue
                run = {"in": [tensors[t] for t in step["in"]], "out": [tensors[t] for t in step["out"]]}
                self.do_run({"op": step["op"], "attrs": step.get("attrs", {}), **run}, fds)
            except Refused as refused:
                raise Refused(refused.error["code"], key=f"ops[{i}]") from refused
        return {**self.measured(params), "variants": ["fake"] * len(params["ops"])}

    def do_program(self, params: dict[str, Any], fds: list[int]) -> Any:
        program = self.daemon.next_buffer()
        self.programs[program] = params
        return {"program": program, "device": "host", "variants": ["fake"] * len(params["ops"])}

    def do_run_program(self, params: dict[str, Any], fds: list[int]) -> Any:
        kept = self.programs.get(params["program"])
        if kept is None:
            raise Refused("unknown_program")
        tensors = [dict(t) for t in kept["tensors"]]
        for bound in params.get("bind", ()):
            tensors[bound["index"]] |= {"buffer": bound["buffer"], "offset": bound["offset"]}
        return self.do_sequence({**kept, **params, "tensors": tensors}, fds)


class FakeDaemon:
    refused = Refused

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="kops-fake-")
        self.path = os.path.join(self.folder.name, "kopsd.sock")
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.script: dict[str, Callable[[Peer, dict[str, Any], list[int]], Any]] = {}
        self.hello = dict(HELLO)
        self.gate = threading.Event()
        self.gate.set()
        self.peers: list[Peer] = []
        self._buffers = 0
        self._lock = threading.Lock()
        self.start()

    def start(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """As if it had died, and its socket with it. start() is a new one."""
        os.unlink(self.path)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.hang_up()

    def hang_up(self) -> None:
        """Ends the connections; what they had asked is not answered."""
        for peer in list(self.peers):
            peer.hang_up()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            peer = Peer(self, sock)
            self.peers.append(peer)
            peer.thread.start()

    def next_buffer(self) -> int:
        with self._lock:
            self._buffers += 1
            return self._buffers

    def methods(self) -> list[str]:
        return [method for method, _ in list(self.requests)]

    def count(self, method: str) -> int:
        return self.methods().count(method)

    def runs(self) -> list[dict[str, Any]]:
        return [params for method, params in list(self.requests) if method == "run"]

    def close(self) -> None:
        self.gate.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for peer in self.peers:
            peer.hang_up()
            peer.thread.join()
            for runner in list(peer.runners.values()):
                runner.join()
            peer.socket.close()
        self.folder.cleanup()
