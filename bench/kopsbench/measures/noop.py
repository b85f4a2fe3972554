"""The no-op call against a raw ping-pong with messages of the same sizes."""

from __future__ import annotations

from ..context import Context
from ..record import Record
from . import add
from .common import beside, of_program

SPIN_US = 200


def run(context: Context, name: str, transport: str, *peer: str) -> Record:
    """`peer`: arguments that make every process poll before it sleeps; without them all sleep at once."""
    each = 20 if context.smoke else max(context.calls, 200) * 20 // context.blocks
    spin = SPIN_US if peer else "none"
    with context.daemon("--set", f"server.spin_us={SPIN_US if peer else 0}", cuda=False) as daemon:
        found = context.run_program(
            "bench_rpc", "--blocks", context.blocks, "--calls", each, "--warmup", each, "--transport", transport, "--spin", spin, *peer,
            socket=daemon.socket_path,
        )  # fmt: skip
    shm = transport == "shm"
    record = beside(
        name,
        of_program(found["kops_ping"]),
        of_program(found["raw"], "shared_memory_flag_ping_pong" if shm else "raw_unix_ping_pong"),
        "kops_ping() of libkops; beside it "
        + ("two processes that poll one word each in shared memory" if shm else "send/recv of the same number of bytes"),
        1.0 if shm else 1.2,
        transport="shared-memory rings" if shm else "AF_UNIX stream socket",
        spin=f"every process polls up to {SPIN_US} us before it sleeps" if peer else "every process sleeps at once",
    )
    record.absolute = shm
    return record


PEER_SPINS = ("--peer-spin-us", str(SPIN_US))
add("noop_rpc_socket_sleep", run, "noop_rpc_socket_sleep", "socket", on_gpu=False, table=True)
add("noop_rpc_socket_spin", run, "noop_rpc_socket_spin", "socket", *PEER_SPINS, on_gpu=False, table=True)
add("noop_rpc_shm", run, "noop_rpc_shm", "shm", "--peer", "words", on_gpu=False, table=True)
