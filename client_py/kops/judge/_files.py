"""Tasks and solutions as files. A task's file is Python and is run: it is trusted. A solution's is read only."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from .. import BadArgument
from ._solution import Solution
from ._task import Task

FILE_MAX = 2 * Solution.SOURCE_MAX + (1 << 20)  # JSON writes some characters as several
_FRONT = re.compile(r"\s*/\*\s*kops\.solution\b(.*?)\*/", re.S)


def load_tasks(path: str | os.PathLike[str]) -> dict[str, Task]:
    """The tasks of a Python file by name: its `task`, or its `tasks`, which are several; or the problem of a file in
    KernelBench's form. Runs the file."""
    file = Path(path)
    if not file.is_file():
        raise BadArgument(f"{file}: there is no such file; a task is a .py that has a `task`")
    if _is_problem(file):
        from .kernelbench import load

        problem = load(file)
        return {problem.name: problem}
    name = f"kops_judge_task_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise BadArgument(f"{file}: a task is a .py that has a `task`")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadArgument(f"{file}: {type(error).__name__}: {error}") from error
    found: Any = getattr(module, "tasks", None)
    if found is None:
        found = getattr(module, "task", None)
    items = [found] if isinstance(found, Task) else list(found.values() if isinstance(found, dict) else found or ())
    if not items or not all(isinstance(one, Task) for one in items):
        raise BadArgument(f"{file}: it has no `task`, a kops.judge.Task, and no `tasks`, a list of them")
    return {one.name: one for one in items}


def _is_problem(file: Path) -> bool:
    from .kernelbench import is_problem

    try:
        return is_problem(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        return False


def load_task(path: str | os.PathLike[str]) -> Task:
    """The task of a file, which may say one of several by `FILE:NAME`."""
    text = os.fspath(path)
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py"):
        file, name = text, ""
    tasks = load_tasks(file)
    if name:
        if name not in tasks:
            raise BadArgument(f"{file} has no task {name!r}; it has {', '.join(tasks)}")
        return tasks[name]
    if len(tasks) > 1:
        raise BadArgument(f"{file} has several tasks, say which: {file}:{next(iter(tasks))} ({', '.join(tasks)})")
    return next(iter(tasks.values()))


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_MAX + 1)
    except OSError as error:
        raise BadArgument(f"{path}: {error.strerror}") from None
    if len(data) > FILE_MAX:
        raise BadArgument(f"{path} has more than {FILE_MAX} bytes: a source has at most {Solution.SOURCE_MAX}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadArgument(f"{path} is no text in UTF-8") from None


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"{path}: this is no JSON: {error}") from None


def load_solution(path: str | os.PathLike[str]) -> Solution:
    """The solution of a `.json`, or of a source that begins with the
    comment `/* kops.solution {"launches": [...]} */`."""
    file = Path(path)
    text = _read(file)
    if file.suffix == ".json":
        plain = _json(file, text)
        return Solution.of(plain, name=file.stem)
    front = _FRONT.match(text)
    if front is None:
        raise BadArgument(f"{file} does not begin with a comment /* kops.solution {{…}} */, which has its launches as JSON")
    plain = _json(file, front[1])
    if isinstance(plain, dict) and "source" in plain:
        raise BadArgument(f"{file}: the comment's JSON has a source, and the file is one")
    return Solution.of(plain, source=text, name=file.stem)
