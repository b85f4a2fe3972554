"""A profiler with the names of `torch.profiler`: what this process asks of kopsd, and what the daemon and its devices make of it.

    from kops.profiler import profile, record_function, schedule, tensorboard_trace_handler

    with profile() as p:
        with record_function("step"):
            k.add(a, b)
    print(p.key_averages().table(sort_by="total"))
    p.export_chrome_trace("trace.json")  # for ui.perfetto.dev or chrome://tracing

With `torch_profiler=` the trace is one with torch's: its ops and kernels, ours, and the daemon's, on one clock. All times are of
CLOCK_MONOTONIC, which the daemon and its clients share.
"""

from ._profile import (
    Average,
    Averages,
    ProfilerAction,
    ProfilerActivity,
    profile,
    schedule,
    supported_activities,
    tensorboard_trace_handler,
)
from ._recorder import Event, Span, record_function
from ._report import Peaks, report

__all__ = [
    "Average", "Averages", "Event", "Peaks", "ProfilerAction", "ProfilerActivity", "Span", "profile", "record_function", "report",
    "schedule", "supported_activities", "tensorboard_trace_handler",
]  # fmt: skip
