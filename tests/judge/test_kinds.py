"""Each kind of verdict, in the interpreter and on a daemon."""

from __future__ import annotations

import json
import re
from typing import Any

import kops
import pytest
from conftest import soon
from kops import judge
from material import ADD, FAULTY, HANGS, SIGNATURE, VECTOR, add, inputs, task


@pytest.fixture(autouse=True)
def as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each verdict here is the same behind JSON, without what is none."""
    decide = judge.Judge.judge

    def spy(self: judge.Judge, *given: Any) -> judge.Verdict:
        verdict = decide(self, *given)
        again = judge.Verdict.of(verdict.json())
        assert again.json() == verdict.json() and again.kind == verdict.kind and str(again) == str(verdict)
        json.loads(verdict.json(), parse_constant=pytest.fail)
        return verdict

    monkeypatch.setattr(judge.Judge, "judge", spy)


def test_right_in_the_interpreter(interpreter: judge.Judge) -> None:
    verdict = interpreter.judge(task(), add())
    assert verdict.right and verdict.how == "interpreter" and verdict.time is None
    assert verdict.cases == ("n=1000", "n=3001") and verdict.launches == 18
    assert "right" in str(verdict) and "without times" in str(verdict)


def test_small_cases_prove_nothing_of_others(interpreter: judge.Judge, gpu: judge.Judge) -> None:
    """A solution that knows the small ones is right in them."""
    one = task(small=[{"n": 7}, {"n": 1000}])
    verdict = interpreter.judge(one, add("c[i] = n > 1000 ? 0 : a[i] + b[i];"))
    assert verdict.kind == "unproven" and not verdict.right and verdict.cases == ("n=7", "n=1000") and verdict.time is None
    assert "n=3001 of the task does not run here" in verdict.text and "unproven" in str(verdict) and "a GPU" in verdict.text
    assert judge.Verdict.of(verdict.json()) == verdict
    assert gpu.judge(one, add()).right, "all of them run there"
    with pytest.raises(kops.BadArgument, match="small"):
        task(small=[])


def test_right_on_a_gpu(gpu: judge.Judge) -> None:
    verdict = gpu.judge(task(), add())
    assert verdict.right and verdict.how == "gpu" and "Stand-in" in verdict.device
    assert verdict.cases == ("n=1000", "n=3001")


@pytest.mark.parametrize("which", ["interpreter", "gpu"])
def test_what_is_not_compiled(which: str, request: pytest.FixtureRequest) -> None:
    verdict = request.getfixturevalue(which).judge(task(), add("c[i] = a[i] +;"))
    assert verdict.kind == "not_compiled" and "error" in verdict.log and "solution.cu" in verdict.log


REFUSED = {
    "dtype": (judge.Launch("add2_kernel", SIGNATURE.replace("out float", "out double"), grid=4), "of f64, and c of f32"),
    "no such memory": (judge.Launch("add2_kernel", SIGNATURE.replace("* b[", "* d["), grid=4), "no memory of that name"),
    "no such number": (judge.Launch("add2_kernel", SIGNATURE.replace("int n", "int k"), grid=4), "the case has none"),
    "not understood": (judge.Launch("add2_kernel", "float** c", grid=4), "pointer to a pointer"),
    "grid": (judge.Launch("add2_kernel", SIGNATURE, grid="n - 5000"), "grid"),
    "block": (judge.Launch("add2_kernel", SIGNATURE, grid=4, block=2000), "block"),
    "shared": (judge.Launch("add2_kernel", SIGNATURE, grid=4, shared=1 << 30), "shared memory"),
    "expression": (judge.Launch("add2_kernel", SIGNATURE, grid="ceil_div(m, 256)"), "character 10: unknown name; there are n,"),
    "too few": (judge.Launch("add2_kernel", "out float* c, const float* a, int n", grid=4), "4 parameters"),
    "nothing is written": (judge.Launch("add2_kernel", SIGNATURE.replace("out float", "const float"), grid=4), "no launch writes c"),
    "too small": (judge.Launch("add2_kernel", SIGNATURE.replace("c[n]", "c[n + 1]"), grid=4), "c has 1000 elements, at least 1001"),
    "too many dimensions": (judge.Launch("add2_kernel", SIGNATURE.replace("c[n]", "c[1][n]"), grid=4), "c has shape (1000,)"),
    "a structure": (judge.Launch("add2_kernel", SIGNATURE.replace("int n", "int2 n"), grid=4), "n is a structure by value"),
    "a name of nothing": (judge.Launch("add2_kernel", SIGNATURE.replace("c[n]", "c[m]"), grid=4), "c.elements: `m`: character 1: unknown"),
}


@pytest.mark.parametrize(("which", "what"), [*(("gpu", what) for what in REFUSED), ("interpreter", "dtype"), ("interpreter", "grid")])
def test_what_is_refused(which: str, what: str, request: pytest.FixtureRequest) -> None:
    launch, text = REFUSED[what]
    verdict = request.getfixturevalue(which).judge(task(), add(launch=launch))
    assert verdict.kind == "refused" and text in verdict.text, verdict


@pytest.mark.parametrize("which", ["interpreter", "gpu"])
def test_names_of_the_case(which: str, request: pytest.FixtureRequest) -> None:
    """One rule for shapes, scratch, grid, block, shared and cluster: `m` and `half` are no parameters of the kernel."""
    signature = SIGNATURE.replace("c[n]", "c[tmp.numel - m]").replace("a[n]", "a[c.numel]").replace("b[n]", "b[half * 2]")
    geometry = {"grid": "ceil_div(m, 16)", "block": "min(32, half)", "shared": "4 * m + tmp.numel", "cluster": "m / half"}
    drawn = {"reference": lambda a, b, n, half: a + b, "inputs": lambda rng, m: {**inputs(rng, 2 * m), "n": 2 * m, "half": m}}
    one = task(cases=[{"m": 500}], **drawn)
    given = add(launch=judge.Launch("add2_kernel", signature, **geometry), scratch={"tmp": judge.Scratch("a.numel + m")})
    verdict = request.getfixturevalue(which).judge(one, given)
    assert verdict.right, verdict


def test_an_element_that_is_not_written(gpu: judge.Judge) -> None:
    short = judge.Solution(VECTOR, [judge.Launch("vector_add", SIGNATURE, grid="n / 256", block=256)])
    verdict = gpu.judge(task(), short)
    assert (verdict.kind, verdict.why) == ("wrong", "untouched") and verdict.worst is not None
    assert verdict.worst.wrong == 1000 - 3 * 256


def test_a_fault_with_its_place(interpreter: judge.Judge, gpu: judge.Judge) -> None:
    verdict = interpreter.judge(task(), add("c[i + 1] = a[i] + b[i];"))
    assert verdict.kind == "faulted" and verdict.fault is not None
    assert (verdict.fault.what, verdict.fault.kernel, verdict.fault.line) == ("out_of_bounds", "add2_kernel", 5)
    assert verdict.fault.block is not None and verdict.fault.thread is not None
    verdict = gpu.judge(task(), FAULTY)
    assert verdict.kind == "faulted" and verdict.fault is not None
    assert verdict.fault.driver == "CUDA_ERROR_ILLEGAL_ADDRESS" and verdict.fault.line == 1 and verdict.fault.block == (0, 0, 0)
    assert gpu.judge(task(), add()).right  # by another executor


def test_a_kernel_that_never_ends(gpu: judge.Judge) -> None:
    with soon(gpu):
        verdict = gpu.judge(task(), HANGS)
    assert verdict.kind == "hangs" and "spin_forever" in verdict.text
    assert gpu.judge(task(), add()).right


def test_solutions_as_json() -> None:
    coop = judge.Launch("add2_kernel", SIGNATURE, grid=(1, 2), block="n", shared=8, cluster=2, cooperative=True, pdl=True)
    for launch in (ADD, coop):
        solution = add(launch=launch, scratch={"tmp": judge.Scratch("2 * n", "f64")}, options=("-DN=3",), name="mine")
        again = judge.Solution.of(json.loads(solution.json()))
        assert again.json() == solution.json() and again.key == solution.key and tuple(again.launches) == (launch,)


def test_checks_that_a_source_switches_off(interpreter: judge.Judge) -> None:
    body = "if (i == 999) put(c, 1000); c[i] = a[i] + b[i];"
    quiet = add(body, '__attribute__((no_sanitize("thread"), noinline)) __device__ void put(float* c, int at) { c[at] = 1; }')
    verdict = interpreter.judge(task(), quiet)
    assert verdict.kind == "not_compiled" and "no_sanitize" in verdict.text and "line 1" in verdict.text, verdict


def test_cooperative_kernels(interpreter: judge.Judge) -> None:
    one = judge.Launch("add2_kernel", SIGNATURE, grid=1, block=1000, cooperative=True)
    assert interpreter.judge(task(cases=[{"n": 1000}]), add(launch=one)).right
    several = judge.Launch("add2_kernel", SIGNATURE, grid=4, block=256, cooperative=True)
    verdict = interpreter.judge(task(), add(launch=several))
    assert verdict.kind == "no_verdict" and "a GPU could" in verdict.text, verdict


def test_tensor_maps(interpreter: judge.Judge) -> None:
    """What the interpreter lacks is no fault of the solution, whatever else its source has that only a GPU's compiler takes."""
    source = add().source.replace("const float* a", "const __grid_constant__ CUtensorMap a")
    for given in (f"#include <cuda.h>\n{source}", "it does not compile here"):
        signature = SIGNATURE.replace("const float* a[n]", "tma const float* a[n] box[n / 8]")
        launch = judge.Launch("add2_kernel", signature, grid=4, block=256)
        verdict = interpreter.judge(task(), judge.Solution(given, [launch]))
        assert verdict.kind == "no_verdict" and "a is a tensor map" in verdict.text and "a GPU could" in verdict.text, verdict


def test_an_input_that_is_changed(interpreter: judge.Judge) -> None:
    const = add("c[i] = a[i] + b[i]; ((float*)b)[7] = 3;")
    writes = judge.Launch("add2_kernel", SIGNATURE.replace("const float* b", "float* b"), grid="ceil_div(n, 256)")
    for solution in (const, judge.Solution(const.source.replace("const float* b", "float* b"), [writes])):
        verdict = interpreter.judge(task(), solution)
        assert (verdict.kind, verdict.why) == ("wrong", "input_changed") and verdict.worst is not None
        assert (verdict.worst.output, verdict.worst.index) == ("b", (7,))


def test_what_is_right_once(interpreter: judge.Judge) -> None:
    """The second launch has the inputs of the first."""
    verdict = interpreter.judge(task(), add("if (i == 0) count++; c[i] = a[i] + b[i] + (count > 1);", "__device__ int count;"))
    assert (verdict.kind, verdict.why) == ("wrong", "unstable") and verdict.launches == 1 and "earlier launch" in verdict.text


def test_a_write_beside_a_tensor_on_a_gpu(gpu: judge.Judge) -> None:
    """The stand-in's vector_add takes one element more than there are: its read is not found, its write is."""
    beside = SIGNATURE.replace("c[n]", "c").replace("int n", "int m").replace("[n]", "")
    solution = judge.Solution(VECTOR, [judge.Launch("vector_add", beside, grid=8, block=256)])
    verdict = gpu.judge(task(cases=[{"n": 1001, "m": 1002}], inputs=lambda rng, n, m: inputs(rng, n)), solution)
    assert verdict.kind == "faulted" and verdict.fault is not None, verdict
    assert verdict.fault.what == "out_of_bounds" and verdict.fault.line == 5, verdict
    at = re.search(r"at its byte (\d+),", verdict.text)  # the first that differs from the rubbish there
    assert at is not None and 4004 <= int(at[1]) < 4008, verdict
