"""KernelBench's problems as tasks: a Python file with a `Model`, `get_inputs()` and `get_init_inputs()`, taken as it is.

The reference is the model's `forward`. Its inputs are the forward's parameters, by their names, and the model's own parameters and
buffers, whose names have underscores for dots: `conv.weight` is `conv_weight`. Each draw makes a new model, so weights are hidden, too.
The numbers of a solution are the file's (`batch_size`), those that `Model` is made with (`in_features`), and each input's sizes
(`x_0`, `x_1`); of a tuple `kernel_size` they are `kernel_size_0`, `kernel_size_1`.

The format is that of KernelBench (Ouyang et al. 2025, arXiv:2502.10517). A problem file is Python, and trusted.
"""

from __future__ import annotations

import ast
import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import BadArgument
from ._task import NAME, Case, Task, Tolerance
from ._verdict import TaskFault

__all__ = ["is_problem", "load"]

MEMBERS = ("Model", "get_inputs", "get_init_inputs")
CASE = "kernelbench_case"  # an input that tells the reference which case it is
_drawing = threading.Lock()  # all threads share torch's generator


class _Problem(NamedTuple):
    """A problem's file after it was run."""

    model: Any  # makes the model
    inputs: Callable[[], Any]
    init: Callable[[], Any]
    numbers: dict[str, Any]  # the file's


def is_problem(text: str) -> bool:
    """Whether a Python source is a problem of KernelBench."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return False
    return set(MEMBERS) <= {node.name for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement assigns to."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}


def _resized(tree: ast.Module, sizes: Mapping[str, Any], path: str) -> ast.Module:
    """The file with other sizes: each is assigned anew where the file has assigned it, so that what follows from it does so again."""
    body: list[ast.stmt] = []
    missing = set(sizes)
    for node in tree.body:
        body.append(node)
        for name in sorted(_bound(node) & sizes.keys()):
            missing.discard(name)
            line = ast.parse(f"{name} = {sizes[name]!r}").body[0]
            body.append(ast.copy_location(line, node))
    if missing:
        there = sorted(name for node in tree.body for name in _bound(node))
        raise BadArgument(f"{path} assigns no {', '.join(sorted(missing))}; its sizes are {', '.join(there)}")
    return ast.fix_missing_locations(ast.Module(body, []))


def _flat(name: str, value: Any) -> dict[str, Any]:
    """The numbers of one value by name: of a tuple one for each element. Nothing of anything else."""
    if isinstance(value, (bool, int, float)):
        return {name: value}
    if isinstance(value, (tuple, list)) and len(value) <= 8 and all(isinstance(one, (bool, int, float)) for one in value):
        return {f"{name}_{i}": one for i, one in enumerate(value)}
    return {}


def _run(tree: ast.Module, sizes: Mapping[str, Any], path: str) -> _Problem:
    scope: dict[str, Any] = {"__name__": "kernelbench_problem", "__file__": path}
    exec(compile(_resized(tree, sizes, path), path, "exec"), scope)
    lacking = [name for name in MEMBERS if not callable(scope.get(name))]
    if lacking:
        raise BadArgument(f"{path} is no problem of KernelBench: it has no {', '.join(lacking)}")
    numbers: dict[str, Any] = {}
    for name, value in scope.items():
        if not name.startswith("_"):
            numbers |= _flat(name, value)
    return _Problem(scope["Model"], scope["get_inputs"], scope["get_init_inputs"], numbers)


def _made_with(problem: _Problem) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """The model's arguments by position and by name, and their numbers by parameter."""
    given = problem.init()
    # A pair of a list and a dict is positions and names; a list is positions alone.
    pair = len(given) == 2 and isinstance(given[0], (list, tuple)) and isinstance(given[1], dict)
    positions, names = (tuple(given[0]), dict(given[1])) if pair else (tuple(given), {})
    bound = inspect.signature(problem.model).bind(*positions, **names)
    bound.apply_defaults()
    numbers: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        numbers |= _flat(name, value)
    return positions, names, numbers


def _seeded(rng: Any, call: Callable[[], Any]) -> Any:
    """The result of `call` with torch's generator begun anew from `rng`, which is as before afterwards."""
    import torch

    with _drawing, torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        return call()


def _plain(name: str) -> str:
    return name.replace(".", "_")


def _state(model: Any) -> dict[str, Any]:
    """Parameters and buffers by name, but for counters that nothing computes with."""
    state = {name: value for name, value in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    if len({_plain(name) for name in state}) != len(state):
        raise TaskFault("the model has parameters whose names are equal with underscores for dots")
    return {name: value.detach() for name, value in state.items()}


class _Draws:
    """Inputs and reference of the cases of one file."""

    def __init__(self, problems: Sequence[_Problem], device: Any) -> None:
        self.problems, self.device = problems, device
        self.made = [_made_with(problem) for problem in problems]
        self.cases = [Case({**numbers, **problem.numbers}) for problem, (_, _, numbers) in zip(problems, self.made)]
        self.forward = list(inspect.signature(problems[0].model.forward).parameters)[1:]
        self._models: dict[int, Any] = {}
        self._flops: dict[int, float | None] = {}
        self._computing = threading.Lock()  # a model has one state at a time

    def _model(self, index: int) -> Any:
        positions, names, _ = self.made[index]
        return self.problems[index].model(*positions, **names)

    def inputs(self, rng: Any, **case: Any) -> dict[str, Any]:
        index = self.cases.index(Case(case))
        model, given = _seeded(rng, lambda: (self._model(index), list(self.problems[index].inputs())))
        if len(given) > len(self.forward):
            raise TaskFault(f"get_inputs() returns {len(given)} values, and forward takes {len(self.forward)}")
        made: dict[str, Any] = {CASE: index}
        state = {_plain(name): value for name, value in _state(model).items()}
        for name, value in [*zip(self.forward, given), *state.items()]:
            if name in made:
                raise TaskFault(f"two inputs have the name {name}: the model's parameters, and what forward takes")
            made[name] = value.to(self.device) if hasattr(value, "to") else value
        for name, value in zip(self.forward, given):
            sizes = _flat(name, tuple(value.shape)) if hasattr(value, "shape") else {}
            made |= {size: sizes[size] for size in sizes.keys() - made.keys() - self.cases[index].keys()}
        return made

    def flops(self, **case: Any) -> float | None:
        """Torch's count of the model's products of matrices and convolutions, on tensors without memory. None: it has none, or not
        everything of it works without memory."""
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        index = self.cases.index(Case(case))
        if index not in self._flops:
            counter = FlopCounterMode(display=False)
            try:
                with _drawing, torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("meta"):
                    model, given = self._model(index), list(self.problems[index].inputs())
                    with counter:
                        model(*given)
                self._flops[index] = float(counter.get_total_flops()) or None
            except Exception:
                self._flops[index] = None
        return self._flops[index]

    def reference(self, **values: Any) -> Any:
        import torch

        index = values[CASE]
        with self._computing, torch.no_grad():
            model = self._models.get(index)
            if model is None:
                model = self._models[index] = self._model(index).to(self.device)
            # Copies: some models write to their buffers.
            state = {name: values[_plain(name)].clone() for name in _state(model)}
            return torch.func.functional_call(model, state, tuple(values[name] for name in self.forward if name in values))


def load(
    path: str | os.PathLike[str], sizes: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (), *, small: Mapping[str, Any] | None = None,
    own: bool = True, outputs: Sequence[str] = ("out",), tolerance: Tolerance | Mapping[str, Tolerance] | None = None, device: Any = "cpu",
    **how: Any,
) -> Task:  # fmt: skip
    """The task of a problem's file, whose sizes are the case that is timed.

    `sizes`: more cases, each a dict of the numbers and tuples that the file assigns, with other values; a solution has to be right
    for these, too. `small` is one for the interpreter. Without any the file's own sizes are the only case, and what only
    knows these is not found out. `own=False` leaves the file's own sizes out, whose draws may take more memory than there is: the last of
    `sizes` is timed then.
    `flops` are torch's count of products of matrices and convolutions, where there are some, unless they are given.
    `device`: where the reference is computed; most problems are too large for "cpu". `how`: what else `Task` takes.

    Raises BadArgument for a file of another kind, and what running it raises."""
    text = Path(path).read_text(encoding="utf-8")
    tree = ast.parse(text, str(path))
    more = [sizes] if isinstance(sizes, Mapping) else list(sizes)
    if not own and not more:
        raise BadArgument("own=False leaves no case: give sizes")
    cases = [*more, {}] if own else more
    given: list[Mapping[str, Any]] = [*cases, *([small] if small is not None else [])]
    for one in given:
        if not isinstance(one, Mapping) or not all(isinstance(name, str) and NAME.fullmatch(name) for name in one):
            raise BadArgument("sizes are dicts of the numbers that the problem's file assigns")
    draws = _Draws([_run(tree, one, str(path)) for one in given], device)
    if len(set(draws.cases)) != len(draws.cases):
        raise BadArgument(f"{path}: two cases have the same sizes")
    text = inspect.getdoc(draws.problems[0].model) or ""
    return Task(
        Path(path).stem, draws.reference, draws.inputs, draws.cases[: len(cases)], outputs, tolerance,
        small=draws.cases[-1] if small is not None else None, text=text, **{"flops": draws.flops, **how},
    )  # fmt: skip
