"""`python3 -m kops.judge TASK SOLUTION…`, which `kopsctl judge` runs: verdicts of files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from .. import BadArgument, ConnectFailed, KopsError
from ._judge import Judge
from ._solution import Solution, load_solution
from ._task import load_task
from ._verdict import Verdict, leaderboard, load_verdicts, summary, text

DONE, FAILED, USAGE, NO_DAEMON = 0, 1, 2, 3  # exit statuses, as kopsctl's
UNPROVEN = 5  # nothing is wrong, and not all cases have run


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m kops.judge", description="Judges CUDA kernels: right or not, and how fast.")
    parser.add_argument("task", metavar="TASK", help="a Python file with a `task`, or FILE:NAME of its `tasks`; it is run, so trust it")
    parser.add_argument("solutions", metavar="SOLUTION", nargs="+", help=".json, or .cu with a comment /* kops.solution {…} */")
    parser.add_argument("--socket", metavar="PATH", help="the daemon's")
    parser.add_argument("--device", metavar="UUID", help="the GPU, an index will do; the first one")
    parser.add_argument("--interpret", action="store_true", help="in the interpreter: small cases, without a daemon and times")
    parser.add_argument("--strict", action="store_true", help="a process of its own on the GPU for each solution")
    parser.add_argument("--no-time", action="store_true", help="only whether they are right")
    parser.add_argument("--deadline", metavar="SECONDS", type=float, default=1.0, help="for a solution's launches, together (1)")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=120.0, help="for each request of the judge's own")
    parser.add_argument("--page", metavar="FILE", help="write the verdicts as a page of HTML")
    parser.add_argument("--kept", metavar="FILE", help="add the verdicts to a file, a line of JSON each")
    parser.add_argument("--board", metavar="FILE", help="write a leaderboard of them, and of all in --kept, as a page of HTML")
    parser.add_argument("--json", action="store_true", help="a verdict a line, as JSON, as they end")
    return parser.parse_args(arguments)


def _judged(wanted: argparse.Namespace) -> list[Verdict]:
    task = load_task(wanted.task)
    verdicts: dict[int, Verdict] = {}
    solutions: list[tuple[int, Solution]] = []
    for number, path in enumerate(wanted.solutions):
        try:
            solutions.append((number, load_solution(path)))
        except BadArgument as error:
            verdicts[number] = Verdict("refused", error.message, task.name, path)
    for verdict in verdicts.values():
        _tell(wanted, verdict)
    device: Any = int(wanted.device) if wanted.device and wanted.device.isdecimal() else wanted.device
    how = "interpreter" if wanted.interpret else None
    if solutions:
        with Judge(
            wanted.socket, device=device, strict=wanted.strict, deadline=wanted.deadline, time=not wanted.no_time, how=how,
            timeout=wanted.timeout,
        ) as judge:
            for index, verdict in judge.judge_many((task, solution) for _, solution in solutions):
                verdicts[solutions[index][0]] = verdict
                _tell(wanted, verdict)
    return [verdicts[number] for number in sorted(verdicts)]


def _write(wanted: argparse.Namespace, verdicts: Sequence[Verdict]) -> None:
    if wanted.page:
        from ._verdict import write

        write(verdicts, wanted.page)
    if wanted.kept:
        with open(wanted.kept, "a", encoding="utf-8") as file:
            file.writelines(f"{verdict.json()}\n" for verdict in verdicts)
    if wanted.board:
        leaderboard(load_verdicts(wanted.kept) if wanted.kept else verdicts, wanted.board)


def _tell(wanted: argparse.Namespace, verdict: Verdict) -> None:
    print(verdict.json() if wanted.json else text(verdict), flush=True)


def _complain(wanted: argparse.Namespace, code: str, message: str) -> None:
    error = {"error": {"code": code, "message": message, "what": "judge"}}
    print(json.dumps(error) if wanted.json else f"kopsctl: judge: {message} [{code}]", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all solutions are right; 5: nothing is wrong with any, and for some not all cases have run; 1: else."""
    wanted = _arguments(arguments)
    try:
        verdicts = _judged(wanted)
        if not wanted.json and len(verdicts) > 1:
            print("\n" + summary(verdicts))
        _write(wanted, verdicts)
    except KopsError as error:
        _complain(wanted, error.code, str(error))
        return NO_DAEMON if isinstance(error, ConnectFailed) else FAILED
    except OSError as error:
        _complain(wanted, "os_error", str(error))
        return FAILED
    except KeyboardInterrupt:
        return 130
    if not all(verdict.right or verdict.kind == "unproven" for verdict in verdicts):
        return FAILED
    return DONE if all(verdict.right for verdict in verdicts) else UNPROVEN


if __name__ == "__main__":
    sys.exit(main())
