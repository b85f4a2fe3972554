"""What a solution's code cannot do in the interpreter, where it is machine code; and the module state that its kernels share."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from kops import judge
from kops.judge import _draws, _host, _verdict, _worker
from material import SIGNATURE, add, confined, task

CALLS = [
    'open("/etc/passwd", O_RDONLY)', 'open("/tmp/judge-was-here", O_CREAT | O_WRONLY, 0600)', "socket(AF_UNIX, SOCK_STREAM, 0)",
    "socket(AF_INET, SOCK_STREAM, 0)", "fork()", "kill(getppid(), 0)", 'open("/proc/self/mem", O_RDWR)',
    'execl("/bin/true", "true", nullptr)', 'mkdir("/tmp/judge-was-here", 0700)',
]  # fmt: skip
ESCAPE = f"""
#ifdef KOPS_INTERPRET
#include <fcntl.h>
#include <unistd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <signal.h>
static int tried() {{ return {" + ".join(f"(({call}) >= 0 ? {1 << at} : 0)" for at, call in enumerate(CALLS))}; }}
static int at_load = tried();
#endif
"""


@confined
def test_calls_that_fail() -> None:
    """When the code is loaded, and when it runs. The result says which have not."""
    verdict = judge.judge(task(small={"n": 100}), add("c[i] = a[i] + b[i] + 1000 * (at_load + tried());", ESCAPE), how="interpreter")
    assert verdict.kind in ("right", "unproven"), verdict
    assert not Path("/tmp/judge-was-here").exists() and not verdict.warnings


@confined
@pytest.mark.parametrize("folder", ["", "below"])
def test_files_that_a_source_cannot_include(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """Nor those below the judge's working directory, which may be somebody's home."""
    secret = tmp_path / folder / "id_key"
    secret.parent.mkdir(exist_ok=True)
    secret.write_text("the secret is open sesame\n")
    if folder:
        monkeypatch.chdir(tmp_path)
    verdict = judge.judge(task(), add(prelude=f'#include "{secret}"'), how="interpreter")
    assert verdict.kind == "not_compiled" and "sesame" not in verdict.log and "ermission denied" in verdict.log


TELLS = """
#include <string.h>
#include <unistd.h>
extern char **environ;
static int tell() { for (char **e = environ; *e; e++) if (strstr(*e, "SESAME")) _exit(7); return 0; }
static int told = tell();
"""


def test_the_judge_s_environment_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESAME_KEY", "SESAME")
    assert judge.judge(task(), add(prelude=TELLS), how="interpreter").right


@pytest.mark.parametrize(
    "begins",
    [
        "for (int i = 3; i < 1024; i++) close(i); for (;;);",
        "for (;;);",
        r'const char t[] = "\x0d\0\0\0\0\0\0\0{\"arrays\":{}}"; for (int i = 3; i < 1024; i++) (void)!write(i, t, 21); for (;;);',
    ],
)
def test_code_that_holds_up_its_process_when_it_is_loaded(begins: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kops.judge._host.SLACK", 0.3)
    prelude = f"#include <unistd.h>\nstatic int hold() {{ {begins} return 0; }}\nstatic int held = hold();"
    verdict = judge.judge(task(small={"n": 20_000}), add(prelude=prelude), how="interpreter", interpreted_deadline=0.3)
    assert verdict.kind in ("faulted", "hangs"), verdict


DRAWN = _draws.draw(task(), task().all_cases[0], 1)
NONSENSE = [
    "3", '{"block": 3}', '{"block": [{}]}', '{"line": "x", "kind": 5}', "[" * 20000, '{"block": [Infinity, 0, 0]}', '{"thread": {"0": 1}}',
    '{"block": [1e999, 1, 1]}', '{"thread": ["1", "1", "1"]}', '{"message": [1]}', '{"block": [true, true, true]}',
    '{"log": 7, "kind": "compile"}',
]  # fmt: skip


@pytest.mark.parametrize("answer", NONSENSE, ids=range(len(NONSENSE)))
def test_an_answer_that_a_stranger_made_up(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it says, there is a verdict."""
    monkeypatch.setattr(_host, "_readable", lambda *_: True)
    monkeypatch.setattr(_host, "receive", lambda file, most: (json.loads(f'{{"error": {answer}}}'), {}))
    runner = object.__new__(_host.HostRunner)
    runner._from = io.BytesIO()
    with pytest.raises(_verdict.Stop) as caught:
        runner._check(runner._answer(0.0, 0)[0], DRAWN)
    assert caught.value.kind == "faulted"


def test_what_a_stranger_says_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"message": "\x1b[2J" + "x" * 4_000_000, "kernel": "k" * 4_000_000, "line": -5, "kind": "trap", "block": [1, 2, 3]}
    monkeypatch.setattr(_host, "receive", lambda file, most: ({"error": said}, {}))
    verdict = judge.judge(task(), add(), how="interpreter")
    assert verdict.kind == "faulted" and len(verdict.json()) < 1 << 16 and verdict.fault is not None
    assert verdict.fault.block == (1, 2, 3) and verdict.fault.line is None and "\x1b" not in str(verdict)


@pytest.mark.parametrize(
    "question",
    ["[0, 16]", "[1, 16]", "[-1, 16]", '["/etc/passwd", 16]', "[0, 1e3]", "[0, -1]", "[true, 1]", "{}", "[0", "", "[0, 1, 2]"],
)
def test_lines_are_told_of_the_solution_s_object_alone(monkeypatch: pytest.MonkeyPatch, question: str) -> None:
    """Whoever asks."""
    monkeypatch.setattr(_worker._report, "addresses", lambda path, offset: f"{path} {offset}" + " " * (1 << 20))
    told = _worker._told(["/cache/kernel.so"], question)
    assert told.strip() == ("/cache/kernel.so 16" if question == "[0, 16]" else "") and len(told) <= _worker.ANSWER_MAX


NOISE = "static int noise() { char t[4096] = {1}; for (int i = 3; i < 1024; i++) (void)!write(i, t, 4096); return 0; }"


@pytest.mark.parametrize(
    ("body", "prelude", "text"),
    [
        ("", "static int over = (_exit(0), 0);", "ended the process"),
        ("static int n = noise(); c[i] = a[i] + b[i] + n;", NOISE, ""),  # the code writes to the descriptors that it finds
    ],
)
def test_a_process_that_ends_or_answers_nonsense(interpreter: judge.Judge, body: str, prelude: str, text: str) -> None:
    verdict = interpreter.judge(task(), add(body, f"#include <unistd.h>\n{prelude}"))
    assert verdict.kind == "faulted" and text in verdict.text, verdict
    assert interpreter.judge(task(), add()).right


def test_without_a_sandbox_there_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kops.judge._host.missing", lambda: "none is here")
    verdict = judge.judge(task(), add(), how="interpreter")
    assert verdict.right and "without a sandbox" in verdict.warnings[0] and "none is here" in str(verdict)


TWO = """
__device__ float offset;
extern "C" __global__ void first(const float* a) { if (threadIdx.x == 0 && blockIdx.x == 0) offset = a[0] - a[0] + 1; }
extern "C" __global__ void second(float* c, const float* a, const float* b, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i] + offset - 1;
}
"""


def test_kernels_share_their_modules_variables(interpreter: judge.Judge) -> None:
    launches = [judge.Launch("first", "const float* a"), judge.Launch("second", SIGNATURE, grid="ceil_div(n, 256)")]
    assert interpreter.judge(task(), judge.Solution(TWO, launches)).right
    assert interpreter.judge(task(), judge.Solution(TWO, launches[1:])).kind == "wrong"  # nobody has set it: state is new each time
