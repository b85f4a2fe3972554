"""Counters: how many figures are ncu's, of the same kernels, and what a report takes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import backends, raw
from support.beside_ncu import Cell, Counting, Ncu, NoGpu, NoNcu, ask_both, cells_of

from ..context import Context, Skipped
from ..record import Record, Summary, summarise
from . import add

ROUNDS, REPORTS = 3, 20
TARGET_S, TARGET_CELLS = 1.0, 0.97  # of ncu's own other mode


@contextmanager
def counting(context: Context) -> Iterator[Counting]:
    """After the first report, which makes what is made once."""
    options = ["--set", "executors.isolate=user"]
    if context.smoke:
        options += ["--set", f"executors.cupti={backends.standin_cupti()}"]
    with context.daemon(*options, cuda=True) as daemon:
        try:
            one = Counting(daemon)
            one.op(1 << 20)
        except NoGpu as error:
            raise Skipped(str(error)) from None
        except raw.RpcError as error:
            if error.code in ("unsupported", "permission_denied", "device_error"):
                raise Skipped(error.message) from None
            raise
        with one.connection:
            yield one


def run_report(context: Context) -> Record:
    with counting(context) as one:
        took: list[float] = []
        for _ in range(2 if context.smoke else REPORTS):
            began = time.perf_counter()
            report = one.op(1 << 20)
            took.append((time.perf_counter() - began) * 1e6)
    return Record(
        "counters_ncu_report",
        "us",
        "lower",
        summarise(took),
        None,
        {"measured": "counters of a square of 1 Mi f32, one request after the other, after the first", "passes": report["passes"]},
        target=TARGET_S * 1e6,
        absolute=True,
    )


def run_cells(context: Context) -> Record:
    """Ours, and ncu's own other way of making passes, beside ncu's default."""
    if context.smoke:
        raise Skipped("ncu needs a GPU")
    with tempfile.TemporaryDirectory(prefix="kops-ncu-") as folder, counting(context) as one:
        try:
            ncu = Ncu(Path(folder))
            one.compile()
            ours, theirs = ask_both(one, ncu, ROUNDS)
            other = ncu.run(1, "--replay-mode", "application")
        except NoNcu as error:
            raise Skipped(str(error)) from None
    return of_cells(cells_of(ours, theirs), cells_of(other, theirs))


def of_cells(cells: list[Cell], other: list[Cell]) -> Record:
    share, theirs = (sum(cell.good for cell in some) / len(some) for some in (cells, other))
    return Record(
        "counters_ncu_cells",
        "share",
        "higher",
        Summary(share, share, len(cells)),
        Summary(theirs, theirs, len(other), "ncu --replay-mode application"),
        {
            "measured": "figures of ten kernels whose medians are within 2 % of ncu's, or within what the runs of both are apart",
            "n": "figures",
            "apart": [str(cell) for cell in cells if not cell.good],
        },
        target=TARGET_CELLS,
    )


add("counters_ncu_report", run_report, on_gpu=True, seconds=90)
add("counters_ncu_cells", run_cells, on_gpu=True, seconds=240)
