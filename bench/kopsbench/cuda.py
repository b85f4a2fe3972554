"""GPU time of torch calls, measured as the daemon measures its own: by events, or of the kernels alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

L2_BYTES = 60 << 20  # the largest second-level cache of a GPU of today: what does not fit there twice is cold
MOST_SETS = 64

DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}


def sets_for(bytes_of_one: int) -> int:
    """How many sets of operands to rotate so that none is still in the cache when its turn comes."""
    if bytes_of_one >= 2 * L2_BYTES:
        return 1
    return min(MOST_SETS, -(-2 * L2_BYTES // bytes_of_one))


def cache_note(bytes_of_one: int, n_sets: int) -> str:
    if bytes_of_one * n_sets >= 2 * L2_BYTES:
        return f"cold: {n_sets} sets of operands in rotation"
    return f"partly warm: {n_sets} sets of operands, {bytes_of_one * n_sets >> 10} KiB together"


def event_times(torch: Any, calls: Sequence[Callable[[], None]]) -> list[float]:
    """Microseconds of calls that run back to back, each between two events. The GPU is first kept busy until all are
    queued, so that no launch overhead of the CPU lies between the events."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in calls]
    torch.cuda._sleep(2_000_000)  # about a millisecond
    for (before, after), call in zip(events, calls, strict=True):
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) * 1e3 for before, after in events]


def kernel_times(torch: Any, calls: Sequence[Callable[[], Any]], each: int | None = 1) -> list[float]:
    """Microseconds of calls of `each` kernels, by CUPTI's records; None: of as many kernels each as all of them have together. A call
    lasts from the begin of its first kernel to the end of its last one, as the daemon counts a product. The daemon's own kernels of
    elementwise ops tell the same time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for call in calls:
            call()
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    n = max(1, len(kernels) // len(calls)) if each is None else each
    if len(kernels) != len(calls) * n:
        raise RuntimeError(f"{len(calls)} calls ran {len(kernels)} kernels: {sorted({event.name for event in kernels})}")
    ranges = [event.time_range for event in sorted(kernels, key=lambda event: event.time_range.start)]
    of_calls = [ranges[first : first + n] for first in range(0, len(ranges), n)]
    return [float(call[-1].end - call[0].start) for call in of_calls]
