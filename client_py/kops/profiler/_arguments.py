"""The arguments of `torch.profiler.profile`: which of them mean something here, and what is said of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from .._base.errors import BadArgument
from .._base.log import warn


class ProfilerActivity(Enum):
    """What a profile records. torch's values are taken too."""

    CPU = 0  # this process's calls, and work on the host device
    CUDA = 2  # work on GPUs


BOTH = frozenset(ProfilerActivity)
OWN = ("activities", "schedule", "on_trace_ready", "record_shapes", "with_stack", "acc_events", "socket", "processes", "torch_profiler")
IGNORED = {
    "profile_memory": "kopsd allocates nothing for torch; give torch_profiler= a torch.profiler.profile with profile_memory=True",
    "with_flops": "the daemon's events have no operations; kops.report() has GFLOP/s",
    "with_modules": "the daemon sees no modules; give torch_profiler= a torch.profiler.profile with with_modules=True",
    "experimental_config": "it configures Kineto, which records nothing here; k.profile(..., counters=True) reads a GPU's counters",
    "execution_trace_observer": "it observes torch's operators; give it to the torch.profiler.profile of torch_profiler=",
    "custom_trace_id_callback": "traces have no identifiers here",
    "post_processing_timeout_s": "nothing is processed when a profile ends",
}
_said: set[str] = set()


def supported_activities() -> set[ProfilerActivity]:
    return set(BOTH)


def activities_of(wanted: Iterable[Any] | None, use_cuda: Any) -> frozenset[ProfilerActivity]:
    """As torch does: none named are all, and `use_cuda`, which is older, adds or removes CUDA."""
    names = []
    if isinstance(wanted, str) or not isinstance(wanted, (Iterable, type(None))):
        raise BadArgument(f"activities={wanted!r}: a list, such as [ProfilerActivity.CPU, ProfilerActivity.CUDA]")
    for one in wanted or ():
        name = getattr(one, "name", "")
        if name not in ProfilerActivity.__members__:
            raise BadArgument(f"activities has {one!r}: kopsd has ProfilerActivity.CPU and ProfilerActivity.CUDA")
        names.append(name)
    made = frozenset(ProfilerActivity[name] for name in names) or BOTH
    if flag("use_cuda", use_cuda, none=True) is None:
        return made
    cuda = frozenset({ProfilerActivity.CUDA})
    made = made | cuda if use_cuda else made - cuda
    if not made:
        raise BadArgument("use_cuda=False leaves nothing of activities=[ProfilerActivity.CUDA]: name ProfilerActivity.CPU")
    return made


def flag(name: str, value: Any, none: bool = False) -> Any:
    if not isinstance(value, bool) and not (none and value is None):
        raise BadArgument(f"{name}={value!r}: True or False")
    return value


def function(name: str, value: Any, what: str) -> Any:
    if value is not None and not callable(value):
        raise BadArgument(f"{name}={value!r}: a function, {what}, or None")
    return value


def ignore(rest: Mapping[str, Any]) -> None:
    """Says once a process of each argument why it is ignored; False and None ask for nothing."""
    unknown = [name for name in rest if name not in IGNORED]
    if unknown:
        known = ", ".join((*OWN, "use_cuda", *IGNORED))
        raise TypeError(f"profile() has no argument {', '.join(map(repr, unknown))}; it has {known}")
    for name, value in rest.items():
        if value is not None and value is not False and name not in _said:
            _said.add(name)
            warn(f"{name} is ignored: {IGNORED[name]}", UserWarning)
