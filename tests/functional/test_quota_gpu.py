"""What one user may have of a GPU's memory, with a driver that stands in for one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from gpu_machine import Machine, N, only_with_the_standin, square, vector
from quotas import check, eventually_accepted, register, register_error
from support import users
from support.users import as_root
from user_kernels import ADD, ADD_PARAMS, compile_source, only_with_nvrtc

ALICE, BOB = 54001, 54002
MIB = 1 << 20


@pytest.fixture
def gpu() -> Iterator[Callable[[str], Machine]]:
    machines: list[Machine] = []

    def new(config: str) -> Machine:
        machines.append(Machine(users.OPEN + config))
        return machines[-1]

    yield new
    for machine in machines:
        with machine.daemon:
            pass


@only_with_the_standin
def test_a_mapping_is_counted_once_and_by_its_true_size(
    gpu: Callable[[str], Machine],
) -> None:
    machine = gpu("[quota]\nmapped_mib = 5\n")
    exporter = machine.exporter()
    large, small, rest = (
        exporter.alloc(3 * MIB),
        exporter.alloc(MIB),
        exporter.alloc(2 * MIB),
    )
    with machine.daemon.connect() as one, machine.daemon.connect() as other:
        buffers = [one.call("register", {**large.register_params(), "size": 4096})["buffer"] for _ in range(3)]
        kept = other.call("register", large.register_params())["buffer"]
        one.call("register", small.register_params())
        check(
            one.error("register", rest.register_params()),
            "mapped_bytes",
            4 * MIB,
            5 * MIB,
        )
        # Less is declared than there is, which is known once it is open.
        check(
            one.error("register", {**rest.register_params(), "size": 4096}),
            "mapped_bytes",
            4 * MIB,
            5 * MIB,
        )
        for buffer in buffers:
            one.call("release", {"buffer": buffer})
        check(
            one.error("register", rest.register_params()),
            "mapped_bytes",
            4 * MIB,
            5 * MIB,
        )
        other.call("release", {"buffer": kept})
        one.call("register", rest.register_params())
        check(
            other.error("register", large.register_params()),
            "mapped_bytes",
            3 * MIB,
            5 * MIB,
        )
    exporter.close()


@only_with_the_standin
@as_root
def test_a_mapping_that_users_share_is_charged_to_each(
    gpu: Callable[[str], Machine],
) -> None:
    machine = gpu("[quota]\nmapped_mib = 2\n")
    exporter = machine.exporter()
    shared = exporter.alloc(2 * MIB)
    with (
        users.connect(machine.daemon, ALICE) as alice,
        users.connect(machine.daemon, BOB) as bob,
    ):
        hers = alice.call("register", shared.register_params())["buffer"]
        opened = machine.row.live_ipc_mappings
        his = bob.call("register", shared.register_params())["buffer"]
        assert machine.row.live_ipc_mappings == opened
        for connection in (alice, bob):
            check(register_error(connection, 1), "mapped_bytes", 2 * MIB, 2 * MIB)
        alice.call("release", {"buffer": hers})
        register(alice, 2 * MIB)
        check(register_error(bob, 1), "mapped_bytes", 2 * MIB, 2 * MIB)
        bob.call("release", {"buffer": his})
        register(bob, 2 * MIB)
    exporter.close()


@only_with_the_standin
def test_inline_references_are_counted(gpu: Callable[[str], Machine]) -> None:
    machine = gpu("[quota]\nmapped_mib = 2\n")
    exporter = machine.exporter()
    a, b, large = (
        vector(exporter.alloc(MIB)),
        exporter.alloc(MIB),
        exporter.alloc(2 * MIB),
    )
    with machine.daemon.connect() as connection, machine.daemon.connect() as other:
        connection.call("run", square(a, b))
        error = connection.error("run", square(a, large))
        assert error.code == "quota_exceeded" and error.detail["quota"] == "mapped_bytes" and error.key == "out[0]"
        one = {**large.inline([N]), "size": 4 * N}  # declared smaller than it is
        connection.call("release", {"ipc": b.handle})
        error = connection.error("run", {"op": "square", "in": [a.inline([N])], "out": [one]})
        assert error.code == "quota_exceeded" and error.detail["quota"] == "mapped_bytes"
        machine.wait(lambda: machine.row.live_ipc_mappings == 1)  # it is not left open
        other.call("trim")  # nothing of hers, but it waits until the daemon, too, knows what is closed
        # A program's, which nobody waits for before it runs, is counted as what it is and not left open either.
        params = {
            "tensors": [a.inline([N]), one],
            "ops": [{"op": "square", "in": [0], "out": [1]}],
        }
        program = connection.call("program", params)["program"]
        machine.wait(lambda: machine.row.live_ipc_mappings == 2)
        for _ in range(2):
            error = connection.error("run_program", {"program": program})
            check(error, "mapped_bytes", MIB, 2 * MIB)
            machine.wait(lambda: machine.row.live_ipc_mappings == 1)
        connection.call("release", {"program": program})
        program = connection.call(
            "program",
            {
                "tensors": [a.inline([N]), b.inline([N])],
                "ops": [{"op": "square", "in": [0], "out": [1]}],
            },
        )["program"]
        for memory in (a, b):
            connection.call("release", {"ipc": memory.handle})
        check(
            connection.error("register", large.register_params()),
            "mapped_bytes",
            2 * MIB,
            2 * MIB,
        )
        connection.call("run_program", {"program": program})
        connection.call("release", {"program": program})
        connection.call("register", large.register_params())
    exporter.close()


@only_with_the_standin
def test_inline_references_are_mappings(gpu: Callable[[str], Machine]) -> None:
    machine = gpu("[quota]\nmappings = 2\n")
    exporter = machine.exporter()
    a, b, c = (vector(exporter.alloc(MIB)) for _ in range(3))
    with machine.daemon.connect() as connection, machine.daemon.connect() as other:
        connection.call("run", square(a, b))
        error = connection.error("run", square(a, c))
        assert error.code == "quota_exceeded" and error.detail["quota"] == "mappings"
        check(other.error("register", c.register_params()), "mappings", 2, 2)
        connection.call("run", square(b, a))  # which it has
        connection.call("release", {"ipc": b.handle})
        eventually_accepted(lambda: other.call("run", square(a, c)))
    exporter.close()


@only_with_the_standin
@as_root
def test_who_allocated_pays_until_the_daemon_lets_go(
    gpu: Callable[[str], Machine],
) -> None:
    machine = gpu("[quota]\nallocated_mib = 3\nmapped_mib = 2\n")
    with (
        users.connect(machine.daemon, ALICE) as alice,
        users.connect(machine.daemon, BOB) as bob,
    ):
        params = {"size": 2 * MIB, "device": machine.gpu}
        reply = alice.reply(alice.request("alloc", params))
        assert reply.get()["kind"] == "cuda_vmm" and reply.get()["size"] == 2 * MIB
        shared = {"kind": "cuda_vmm", "size": 2 * MIB, "device": machine.gpu, "fd": 0}
        # Her own memory is not mapped for her in addition.
        again = alice.call("register", shared, [reply.fds[0]])["buffer"]
        register(alice, 2 * MIB)
        his = bob.call("register", shared, [reply.fds[0]])["buffer"]
        check(register_error(bob, 1), "mapped_bytes", 2 * MIB, 2 * MIB)
        alice.call("release", {"buffer": again})
        alice.call("release", {"buffer": reply.get()["buffer"]})
        small = {**params, "size": MIB}  # which the device rounds up
        check(alice.error("alloc", small), "allocated_bytes", 2 * MIB, 3 * MIB)
        bob.call("alloc", params)
        bob.call("release", {"buffer": his})
        register(bob, 2 * MIB)
        eventually_accepted(lambda: alice.call("alloc", params))
        os.close(reply.fds[0])


@only_with_the_standin
def test_descriptors_of_allocated_memory(gpu: Callable[[str], Machine]) -> None:
    most = 2 + 2 * 2  # of each its own, and one more to open it in the next executor
    machine = gpu(f"[quota]\nfds = {most}\n")
    with machine.daemon.connect() as connection:
        params = {"size": 1, "device": machine.gpu}
        one = connection.call("alloc", params)
        connection.call("alloc", params)
        check(connection.error("alloc", params), "fds", most, most)
        live = machine.row.live_allocations
        check(connection.error("alloc", params), "fds", most, most)
        machine.wait(lambda: machine.row.live_allocations == live)
        connection.call("release", {"buffer": one["buffer"]})
        eventually_accepted(lambda: connection.call("alloc", params))


@only_with_nvrtc
@only_with_the_standin
def test_a_kernel_keeps_its_code(gpu: Callable[[str], Machine]) -> None:
    """Also when its module has been released."""
    machine = gpu("[quota]\nkernel_mib = 1\n")

    def source(i: int) -> str:
        return f"__device__ unsigned char table[700000] = {{{i}}};\n" + ADD

    with machine.daemon.connect() as connection:
        made = compile_source(connection, source(1))
        params = {
            "module": made["module"],
            "entry": "add2_kernel",
            "params": ADD_PARAMS,
        }
        kernel = connection.call("kernel", {**params, "grid": [1], "block": [32]})["kernel"]
        connection.call("release", {"module": made["module"]})
        another = {"source": source(2), "entries": ["add2_kernel"]}
        check(
            connection.error("compile", another),
            "kernel_bytes",
            made["image_bytes"],
            MIB,
        )
        connection.call("release", {"kernel": kernel})
        connection.call("compile", another)
