"""Every op on fresh random data, in every declared shape, dtype and layout, by every client and kernel.

The inputs depend on KOPS_SEED and the case alone; the seed is printed at the start.
"""

from __future__ import annotations

import zlib
from typing import Any

import conftest
import dtypes
import numpy as np
import pytest
import reference
import runners
from cases import POISON, Case, declared_cases, load_ops, random_cases

OPS = load_ops()
DECLARED = declared_cases()
RANDOM = random_cases(np.random.default_rng(conftest.seed()), 60)


def fill(case: Case, memory: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Random inputs and a poisoned output; returns float64 copies of inputs and of what out holds."""
    rng = np.random.default_rng([conftest.seed(), zlib.crc32(str(case).encode())])
    operands, end = case.place()
    assert end <= memory.size
    memory[:end] = POISON
    inputs = []
    for i, (operand, dtype) in enumerate(zip(operands[:-1], case.dtypes_of_inputs, strict=True)):
        view = operand.view(memory, dtype)
        if case.values:
            values = np.reshape(case.values[i], operand.shape)
        elif dtype in dtypes.FLOATS:
            values = rng.normal(size=operand.shape)
        elif dtype in dtypes.INTEGERS:
            limits = np.iinfo(view.dtype)
            values = rng.integers(limits.min, limits.max, operand.shape, view.dtype, endpoint=True)
        else:
            values = rng.integers(0, 2, operand.shape)
        if dtype in dtypes.INTEGERS:
            view[...] = values
        else:
            view[...] = dtypes.encode(np.asarray(values, dtype=np.float64), dtype)
        inputs.append(dtypes.decode(view, dtype).copy())
    out = operands[-1].view(memory, case.dtype_of_out)
    if case.attrs.get("beta"):
        out[...] = dtypes.encode(rng.normal(size=out.shape), case.dtype_of_out)
    return inputs, dtypes.decode(out, case.dtype_of_out).copy()


def run_case(case: Case, runner: runners.Runner, device: dict[str, Any], **attrs: str) -> dict[str, Any]:
    """Runs it, checks the result and that nothing else was written."""
    memory = runner.memory
    inputs, before = fill(case, memory)
    operands, end = case.place()
    untouched = memory[:end].copy()
    given = ",".join(case.dtypes_of_inputs)
    result = runner.run(case.op, given, operands[:-1], operands[-1], {**case.attrs, **attrs}, device["uuid"], case.dtype_of_out)
    assert result["device"] == device["uuid"]
    got = operands[-1].view(memory, case.dtype_of_out)
    with np.errstate(invalid="ignore", over="ignore"):
        ref, scale = reference.REFERENCES[case.op](inputs, before, case.attrs)
        reference.check(
            dtypes.decode(got, case.dtype_of_out), ref, scale, reference.tolerance(OPS[case.op], case.dtype_of_out, case.attrs)
        )
    # Everything that is not the output is as it was: put the output into the copy, and they are equal.
    operands[-1].view(untouched, case.dtype_of_out)[...] = got
    changed = np.flatnonzero(untouched != memory[:end])
    assert not changed.size, f"{changed.size} bytes outside the output changed, the first at {changed[0]}"
    return result


@pytest.mark.parametrize("case", DECLARED, ids=str)
def test_declared(case: Case, runner: runners.Runner, device: dict[str, Any]) -> None:
    result = run_case(case, runner, device)
    assert result["variant"] in device["variants"][case.op] or not np.prod(case.out_shape)


@pytest.mark.parametrize("case", RANDOM, ids=lambda c: f"random-{c}")
def test_random(case: Case, runner: runners.Runner, device: dict[str, Any]) -> None:
    run_case(case, runner, device)


@pytest.mark.parametrize("case", DECLARED, ids=str)
def test_every_variant(case: Case, daemon: Any, device: dict[str, Any], raw_runner: runners.Runner) -> None:
    """Each kernel that hello offers, forced: it gives the right result, or says that it cannot."""
    ran = 0
    for variant in device["variants"][case.op]:
        try:
            result = run_case(case, raw_runner, device, variant=variant)
        except runners.Refused as refused:
            assert refused.code in ("unsupported", "invalid_argument"), refused
            continue
        ran += 1
        assert result["variant"] == variant or not np.prod(case.out_shape)
    assert ran, "no variant takes this case"


@pytest.fixture(scope="session")
def raw_runner(daemon: Any) -> Any:
    made = runners.RawRunner(daemon, conftest.MEMORY)
    yield made
    made.close()
