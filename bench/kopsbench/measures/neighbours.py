"""What one user's calls take while another does its worst: two processors for the daemon and both users, all defaults.

The worker makes blocking adds and checks each. The other is one busy thread of another uid. The peer is the same worker
of the same daemon before the other begins."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from support import backends

from ..context import Context, Skipped
from ..neighbour.attacks import ATTACKS, Attack, adds, on_each
from ..neighbour.flood import Flood
from ..neighbour.scene import A, B, Scene, as_attacker
from ..neighbour.users import Gone
from ..neighbour.worker import Adder, Compiler, Found
from ..record import Record, Summary, summarise
from . import add

TARGET_US = 3000.0
BACKLOG = 2048  # requests on a connection: more than the daemon takes at once, so that it always finds some
FAIR_SHARE = 0.45  # half is fair; a tenth of it is left for the spread of the measurement
PATIENCE_S = 10.0  # for one call, which is then given up
IDLE_S, ATTACK_S, READY_S = 0.5, 2.0, 40.0
COMPILE_RATIO, COMPILE_MORE_US = 3.0, 1e6  # of a compile alone; a turn of the compiler's, and a process
NOTHING = Attack("nothing", "nothing")


def as_worker(path: str, device: str | None, attack: Attack, link: Connection) -> None:
    worker = Compiler(path, PATIENCE_S) if attack.compiles else Adder(path, PATIENCE_S, device, attack.elements)
    worker.work(0.1)
    link.send("ready")
    while (seconds := link.recv()) is not None:
        link.send(worker.work(seconds))


def one(context: Context, attack: Attack) -> tuple[Found, Found, dict[str, Any]]:
    """The worker's calls with the attack and without, and details."""
    seconds = 0.3 if context.smoke else attack.seconds
    with Scene(binary(context), cuda=attack.cuda) as scene:
        worker = scene.user(A, "a", partial(as_worker, scene.daemon.socket_path, scene.device, attack))
        worker.hear(READY_S)
        worker.tell(4 * IDLE_S if attack.compiles else IDLE_S)
        peer: Found = worker.hear(READY_S)
        attacker = scene.user(B, "b", partial(as_attacker, scene.daemon.socket_path, attack)) if attack is not NOTHING else None
        detail: dict[str, Any] = {**scene.groups.detail()}
        if attacker:
            try:
                attacker.hear(READY_S)
                attacker.tell(seconds + 0.2)
            except Gone as gone:
                detail["attacker"] = f"could not begin: {gone}"[-300:]
                attacker = None
            time.sleep(0.1)  # the attack is under way when the measuring begins
        start, cpu = time.monotonic(), scene.cpu_us()
        worker.tell(seconds)
        found: Found = worker.hear(seconds + 2 * PATIENCE_S)
        detail["daemon_cpu_share"] = (scene.cpu_us() - cpu) / ((time.monotonic() - start) * 1e6)
        if attacker:
            with suppress(Gone, OSError):
                detail["attacker"] = attacker.hear(0.5)
        detail |= {"longest_us": max(found.samples), "wrong": found.wrong, "failures": found.failures[:3]}
        detail |= {"daemon_peak_rss_mib": scene.peak_rss_mib(), "daemon_ended": scene.ended()}
        return found, peer, detail


def summary(found: Found, name: str | None = None) -> Summary:
    its = summarise(found.samples, name)
    if found.failures or found.wrong:
        its.p99 = max(its.p99, PATIENCE_S * 1e6)  # a call without its answer never ended
    return its


def binary(context: Context) -> Path:
    given = os.environ.get("KOPSD")
    return Path(given) if given else context.program("kopsd")


def run_row(context: Context, attack: Attack) -> Record:
    if attack.cuda and (lacking := backends.missing(backends.STANDIN)) and backends.missing(backends.CUDA):
        raise Skipped(lacking)
    if attack.compiles and backends.nvrtc() is None:
        raise Skipped("there is no NVRTC here")
    found, alone, more = one(context, attack)
    peer = summary(alone, "the same before the other user began")
    calls = "compiles of new sources" if attack.compiles else "adds"
    measured = f"blocking {calls} of {A}, each checked, while {B}: {attack.title}"
    detail = {"measured": measured, "transport": "socket", "processors": 2, **more}
    target = COMPILE_RATIO * peer.p50 + COMPILE_MORE_US if attack.compiles else TARGET_US
    return Record(f"neighbours_{attack.name}", "us", "lower", summary(found), peer, detail, target, absolute=True, statistic="p99")


# ---- shares ----


def as_adder(path: str, connections: int, link: Connection) -> None:
    """Adds as many as the daemon takes."""
    flood = Flood(path)
    on_each(flood, connections, adds(), BACKLOG)
    link.send("ready")
    seconds = link.recv()
    flood.run(time.monotonic() + 0.3)
    begun, at = time.monotonic(), flood.answered
    flood.run(begun + seconds)
    link.send((flood.answered - at) / (time.monotonic() - begun))


def run_share(context: Context) -> Record:
    with Scene(binary(context), cuda=False) as scene:

        def rates(seconds: float, *users: tuple[int, str, int]) -> list[float]:
            """Answered adds a second of users with so many connections each, all at once."""
            made = [scene.user(uid, name, partial(as_adder, scene.daemon.socket_path, count)) for uid, name, count in users]
            for user in made:
                user.hear(READY_S)
            for user in made:
                user.tell(seconds)
            return [user.hear(READY_S) for user in made]

        (alone,) = rates(ATTACK_S / 2, (A, "a", 1))
        a, b = rates(ATTACK_S, (A, "a", 1), (B, "b", 64))  # in less a busy machine may keep one of them from its work
        detail = {
            "measured": f"share of {A} with 1 connection in the answered adds, while {B} has 64; the sockets of both always hold more than"
            " the daemon takes",
            "a_alone_per_s": alone,
            "a_per_s": a,
            "b_per_s": b,
            **scene.groups.detail(),
        }
    share = a / max(a + b, 1e-9)
    return Record("neighbours_share", "share", "higher", Summary(share, share, 1), None, detail, FAIR_SHARE, absolute=True)


ROW_S = 150.0  # the most that a row may take; it takes some seconds
for _attack in (NOTHING, *ATTACKS.values()):
    add(f"neighbours_{_attack.name}", run_row, _attack, on_gpu=False, seconds=ROW_S)
add("neighbours_share", run_share, on_gpu=False, seconds=ROW_S)
