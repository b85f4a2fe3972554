"""Judging CUDA kernels of strangers: whether a solution of a task is right, how fast it is, and what it did wrong.

    import kops.judge as judge

    task = judge.Task("double", reference=lambda x: 2 * x, inputs=lambda rng, n: {"x": rng.standard_normal(n, dtype="f4")},
                      cases=[{"n": 1000}, {"n": 1 << 20}])
    solution = judge.Solution(source, [judge.Launch("double_kernel", "out float* out[n], const float* x[n], int n",
                                                    grid="ceil_div(n, 256)", block=256)])
    print(judge.judge(task, solution))

A task is Python, and trusted; a solution is CUDA C++, and not. On a daemon with a GPU it runs there, in a process that nothing else is
in; elsewhere in the interpreter, with checks and without times. Needs NumPy.
"""

from ._judge import Judge, judge
from ._solution import Launch, Scratch, Solution, load_solution
from ._task import Case, Task, Tolerance, load_task, load_tasks
from ._timed import Limits
from ._verdict import KINDS, REASONS, Fault, Measured, Time, Verdict, Worst, leaderboard, load_verdicts, ranked

__all__ = [
    "KINDS", "REASONS", "Case", "Fault", "Judge", "Launch", "Limits", "Measured", "Scratch", "Solution", "Task", "Time", "Tolerance",
    "Verdict", "Worst", "judge", "leaderboard", "load_solution", "load_task", "load_tasks", "load_verdicts", "ranked",
]  # fmt: skip
