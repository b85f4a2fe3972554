"""A daemon in miniature for the client's tests: a thread that speaks the protocol, computes with NumPy, and obeys the
test.

It shares no code with the client. `requests` has every message received; `gate` holds back the answers of `run` while
cleared; `script` may answer a method in its own way. Kernels that it does not know by name it runs in the interpreter.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import queue
import socket
import tempfile
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy

DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "i32": "int32", "i64": "int64", "u8": "uint8", "bool": "bool"}
HELLO = {
    "server": "kopsd 0.0 (fake)",
    "protocol": 1,
    "protocol_min": 1,
    "pid": 1,
    "devices": [
        {"index": 0, "name": "fake", "uuid": "host", "backend": "host", "memory_bytes": 1, "compute_units": 1, "arch": "x", "default": True}
    ],
    "ops": [
        {"name": name, "inputs": inputs, "outputs": ["out"], "dtypes": ["f32"], "attrs": [], "variants": {"host": ["v"]}}
        for name, inputs in (("add", ["a", "b"]), ("square", ["a"]), ("gemm", ["a", "b"]))
    ],
    "limits": {"message_bytes": 65536, "depth": 32, "nfds": 16, "inflight": 8, "rank": 16},
    "features": ["memfd", "sequence", "program", "priority", "cuda_ipc", "cuda_vmm", "cuda_pool", "compile", "kernels"],
    "kernels": {"compiler": "NVRTC 0.0", "arch": ["sm_90a"], "policy": "owner", "allowed": True, "multiprocessors": [4]},
    "of_a_later_version": [1, 2, 3],
}
RUNS = ("run", "launch", "sequence", "run_program")


def add2(c: Any, a: Any, b: Any, n: int) -> None:
    c.reshape(-1)[:n] = a.reshape(-1)[:n] + b.reshape(-1)[:n]


def scale(y: Any, x: Any, a: float, n: int) -> None:
    if y is not None:
        y[:n] = a * x[:n]


KERNELS = {"add2_kernel": add2, "scale": scale, "scale<float>": scale, "ns::scale": scale}


class Refused(Exception):
    def __init__(self, code: str, message: str = "refused", **detail: Any) -> None:
        super().__init__(code)
        self.error = {"code": code, "message": message, "detail": detail}


def refuser(code: str, message: str = "refused", **detail: Any) -> Callable[..., Any]:
    """A script that refuses."""

    def refuse(*_: Any) -> Any:
        raise Refused(code, message, **detail)

    return refuse


class Peer:
    """One connection."""

    def __init__(self, daemon: FakeDaemon, sock: socket.socket) -> None:
        self.daemon = daemon
        self.socket = sock
        self.buffers: dict[int, SimpleNamespace] = {}
        self.modules: dict[int, dict[str, Any]] = {}
        self.kernels: dict[int, dict[str, Any]] = {}
        self.programs: dict[int, dict[str, Any]] = {}
        self.ended = threading.Event()
        self.leaves = False  # it hangs up a moment after its next answer
        self.ends = False  # it hangs up behind its next answer, before another request is read
        self.write_lock = threading.Lock()
        self.msgid: int | None = None  # the last request's
        self.running: dict[int, threading.Event] = {}  # msgid -> set when cancelled
        self.streams: dict[int, tuple[queue.SimpleQueue[Any], threading.Thread]] = {}
        self.page: Any = None  # words of ready, then of done
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def hang_up(self) -> Any:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        return NotImplemented

    def serve(self) -> None:
        unpacker = msgpack.Unpacker(raw=False)  # no limits: what the client sends is the test's business
        fds: list[int] = []
        while True:
            try:
                data, got, flags, _ = socket.recv_fds(self.socket, 65536, 16, socket.MSG_CMSG_CLOEXEC)
            except OSError:
                break
            assert not flags & socket.MSG_CTRUNC
            fds.extend(got)
            if not data:
                break
            unpacker.feed(data)
            for message in unpacker:
                self.handle(message, fds)
        self.ended.set()
        self.buffers.clear()
        for waiting, _ in self.streams.values():
            waiting.put(None)

    def handle(self, message: list[Any], fds: list[int]) -> None:
        params = message[-1][0]
        own = [fds.pop(0) for _ in range(params.get("nfds", 0))]
        method = message[1] if message[0] == 2 else message[2]
        msgid = self.msgid = None if message[0] == 2 else message[1]
        self.daemon.requests.append((method, params))
        if method not in RUNS or (method in self.daemon.script and not {"done", "ready"} & params.keys()):
            self.answer(msgid, method, params, own)
            return
        self.running[msgid] = threading.Event()
        stream = params.get("stream", 0)
        if stream not in self.streams:
            waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self.streams[stream] = waiting, threading.Thread(target=self.run_stream, args=(waiting, stream), daemon=True)
            self.streams[stream][1].start()
        self.streams[stream][0].put((msgid, method, params))

    def run_stream(self, waiting: queue.SimpleQueue[Any], stream: int) -> None:
        while (request := waiting.get()) is not None:
            msgid, method, params = request
            cancelled = self.running[msgid]
            while ("ready" in params and self.page[stream] < params["ready"]) or not self.daemon.gate.wait(0.005):
                if cancelled.is_set() or self.ended.wait(0.001):
                    break
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
        data = mmap.mmap(fds[params["fd"]], params["size"]) if params["kind"] == "memfd" else None
        for fd in fds:
            os.close(fd)
        buffer = params.get("extend") or next(self.daemon.ids)
        self.buffers.setdefault(buffer, SimpleNamespace(data=data, params=params))
        return {"buffer": buffer, "size": params["size"]}

    def do_timelines(self, params: dict[str, Any], fds: list[int]) -> Any:
        fd = os.memfd_create("timelines", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 4096)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.page = memoryview(mmap.mmap(fd, 4096)).cast("q")
        return {"nfds": 1, "fd": 0, "size": 4096, "streams": 256, "_fd": fd}

    def do_release(self, params: dict[str, Any], fds: list[int]) -> Any:
        ((kind, number),) = params.items()
        if getattr(self, kind + "s").pop(number, None) is None:
            raise Refused("unknown_kernel" if kind == "module" else "unknown_" + kind)
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
        for step in params["ops"]:
            if "kernel" in step:
                kinds = [param["kind"] for param in self.kernels[step["kernel"]]["params"]]
                places = zip(kinds, step["args"], strict=True)
                self.compute(step, [arg if kind == "scalar" or arg is None else tensors[arg] for kind, arg in places])
                continue
            run = {"in": [tensors[t] for t in step["in"]], "out": [tensors[t] for t in step["out"]]}
            self.do_run({"op": step["op"], "attrs": step.get("attrs", {}), **run}, fds)
        return {**self.measured(params), "variants": ["fake"] * len(params["ops"])}

    def do_program(self, params: dict[str, Any], fds: list[int]) -> Any:
        program = next(self.daemon.ids)
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

    def do_compile(self, params: dict[str, Any], fds: list[int]) -> Any:
        module = next(self.daemon.ids)
        self.modules[module] = params
        entries = [
            {"name": name, "lowered": f"_Z{name}", "registers": 16, "shared_bytes": 0, "local_bytes": 0, "const_bytes": 0,
             "max_threads": 1024, "params": [8, 8, 8, 4], "of_a_later_version": 1}
            for name in params["entries"]
        ]  # fmt: skip
        return {
            "module": module, "key": "ab" * 32, "arch": params.get("arch", "sm_90a"), "compiler": "NVRTC 0.0", "cached": "memory",
            "compile_us": 25000.0, "log": "a warning", "image_bytes": 5000, "entries": entries,
        }  # fmt: skip

    def do_kernel(self, params: dict[str, Any], fds: list[int]) -> Any:
        if params["module"] not in self.modules:
            raise Refused("unknown_kernel")
        kernel = next(self.daemon.ids)
        self.kernels[kernel] = params
        return {"kernel": kernel}

    def do_launch(self, params: dict[str, Any], fds: list[int]) -> Any:
        self.compute(params, params["args"])
        return {**self.measured(params), "variant": "user"}

    def compute(self, step: dict[str, Any], args: list[Any]) -> None:
        declared = self.kernels.get(step["kernel"])
        if declared is None:
            raise Refused("unknown_kernel")
        assert len(args) == len(declared["params"])
        values = [self.view(arg) if isinstance(arg, dict) else arg for arg in args]
        if declared["entry"] in KERNELS:
            KERNELS[declared["entry"]](*values)
            return
        from kops import interpret

        module = self.modules[declared["module"]]
        sizes = {name: step.get(name, declared.get(name)) for name in ("grid", "block")}
        interpret.run(module["source"], declared["entry"], declared["params"], values, **sizes, check=())


class FakeDaemon:
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="kops-fake-")
        self.path = os.path.join(self.folder.name, "kopsd.sock")
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.script: dict[str, Callable[[Peer, dict[str, Any], list[int]], Any]] = {}
        self.hello = dict(HELLO)
        self.gate = threading.Event()
        self.gate.set()
        self.peers: list[Peer] = []
        self.ids = itertools.count(1)
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
        self._listen_no_more()
        self.hang_up()

    def _listen_no_more(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

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

    def sent(self, *methods: str) -> list[dict[str, Any]]:
        """The params of the requests of those methods."""
        return [params for method, params in list(self.requests) if method in methods]

    def count(self, method: str) -> int:
        return len(self.sent(method))

    def runs(self) -> list[dict[str, Any]]:
        return self.sent("run")

    def close(self) -> None:
        self.gate.set()
        self._listen_no_more()
        for peer in self.peers:
            peer.hang_up()
            peer.thread.join()
            for _, runner in list(peer.streams.values()):
                runner.join()
            peer.socket.close()
        self.folder.cleanup()
