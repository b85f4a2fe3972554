"""What a solution's code cannot do in the interpreter, where it is machine code; and the module state that its kernels share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kops import judge
from material import SIGNATURE, add, confined, task

ESCAPE = """
#ifdef KOPS_INTERPRET
#include <fcntl.h>
#include <unistd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <signal.h>
#include <cstdlib>
#include <cerrno>
static int tried() {{ return {call}; }}
static int at_load = tried(), failure = errno;
#endif
"""


def asked(call: str) -> judge.Verdict:
    """A solution that is right if the call fails when its code is loaded, and when it runs."""
    body = "c[i] = a[i] + b[i] + (at_load >= 0 || tried() >= 0 ? 100 : 0);"
    return judge.judge(task(), add(body, ESCAPE.format(call=call)), how="interpreter")


@confined
@pytest.mark.parametrize(
    "call",
    [
        'open("/etc/passwd", O_RDONLY)', 'open("/tmp/judge-was-here", O_CREAT | O_WRONLY, 0600)', "socket(AF_UNIX, SOCK_STREAM, 0)",
        "socket(AF_INET, SOCK_STREAM, 0)", "fork()", "kill(getppid(), 0)", 'open("/proc/self/mem", O_RDWR)',
        'execl("/bin/true", "true", nullptr)', 'mkdir("/tmp/judge-was-here", 0700)',
    ],
)  # fmt: skip
def test_calls_that_fail(call: str) -> None:
    verdict = asked(call)
    assert verdict.right, verdict
    assert not Path("/tmp/judge-was-here").exists() and not verdict.warnings


@confined
def test_files_that_a_source_cannot_include(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("#define SECRET 1\nthe secret is open sesame\n")
    verdict = judge.judge(task(), add(prelude=f'#include "{secret}"'), how="interpreter")
    assert verdict.kind == "not_compiled" and "sesame" not in verdict.log and "ermission denied" in verdict.log


@confined
def test_files_beside_the_judge_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge's working directory may be somebody's home."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "id_key").write_text("open sesame\n")
    monkeypatch.chdir(tmp_path)
    verdict = judge.judge(task(), add(prelude=f'#include "{tmp_path}/sub/id_key"'), how="interpreter")
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
    monkeypatch.setattr("kops.judge._host.SLACK", 1.0)
    prelude = f"#include <unistd.h>\nstatic int hold() {{ {begins} return 0; }}\nstatic int held = hold();"
    verdict = judge.judge(task(small={"n": 40_000}), add(prelude=prelude), how="interpreter", interpreted_deadline=1.0)
    assert verdict.kind in ("faulted", "hangs"), verdict


NONSENSE = [
    "3", '{"block": 3}', '{"block": [{}]}', '{"line": "x", "kind": 5}', "[" * 20000, '{"block": [Infinity, 0, 0]}', '{"thread": {"0": 1}}',
    '{"block": [1e999, 1, 1]}', '{"thread": ["1", "1", "1"]}', '{"message": [1]}', '{"block": [true, true, true]}',
    '{"log": 7, "kind": "compile"}',
]  # fmt: skip


@pytest.mark.parametrize("answer", NONSENSE)
def test_an_answer_that_a_stranger_made_up(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it says, there is a verdict."""
    from kops.judge import _host

    monkeypatch.setattr(_host, "receive", lambda file, most: (json.loads(f'{{"error": {answer}}}'), {}))
    assert judge.judge(task(), add(), how="interpreter").kind == "faulted"


def test_what_a_stranger_says_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from kops.judge import _host

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
    from kops.judge import _worker

    monkeypatch.setattr(_worker._report, "addresses", lambda path, offset: f"{path} {offset}" + " " * (1 << 20))
    told = _worker._told(["/cache/kernel.so"], question)
    assert told.strip() == ("/cache/kernel.so 16" if question == "[0, 16]" else "") and len(told) <= _worker.ANSWER_MAX


def test_a_process_that_ends(interpreter: judge.Judge) -> None:
    verdict = interpreter.judge(task(), add("c[i] = a[i] + b[i];", "#include <unistd.h>\nstatic int over = (_exit(0), 0);"))
    assert verdict.kind == "faulted" and "ended the process" in verdict.text
    assert interpreter.judge(task(), add()).right


def test_an_answer_that_is_none(interpreter: judge.Judge) -> None:
    """The code writes to the descriptors that it finds."""
    noise = "static int noise() { char t[4096] = {1}; for (int i = 3; i < 1024; i++) (void)!write(i, t, 4096); return 0; }"
    verdict = interpreter.judge(task(), add("static int n = noise(); c[i] = a[i] + b[i] + n;", f"#include <unistd.h>\n{noise}"))
    assert verdict.kind == "faulted", verdict
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


@pytest.mark.parametrize("right", [1, 3, 7])
def test_launches_that_are_counted(interpreter: judge.Judge, right: int) -> None:
    body = f"if (i == 0) launches++; c[i] = a[i] + b[i] + (launches > {right} ? 1 : 0);"
    verdict = interpreter.judge(task(cases=[{"n": 200}]), add(body, "__device__ int launches;"))
    assert verdict.kind == "wrong" and verdict.launches == right


def test_results_that_are_kept_by_address(interpreter: judge.Judge) -> None:
    prelude = "__device__ const float* seen; __device__ float kept[200];"
    body = "if (seen == a) c[i] = kept[i]; else c[i] = kept[i] = a[i] + b[i]; if (i == n - 1) seen = a;"
    verdict = interpreter.judge(task(cases=[{"n": 200}]), add(body, prelude))
    assert verdict.kind == "wrong" and verdict.launches >= 1
