"""kops-slurm, as slurmd calls it: with the variables of a job, as root, in a pid namespace where nothing else is."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deployed import DEPLOY, binary, kopsd, needs, run
from support import users

PROGRAM = DEPLOY / "slurm" / "kops-slurm"
ALICE = 54001
JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_UID": str(ALICE), "SLURM_JOB_USER": "alice", "SLURM_JOB_GPUS": "1,3"}
Scenario = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
def test_the_shells_like_it(shell: str) -> None:
    done = run(needs("shellcheck"), "-s", shell, str(PROGRAM))
    assert done.returncode == 0, done.stdout


@pytest.fixture
def public() -> Iterator[Path]:
    with users.public_folder() as folder:
        yield folder


@pytest.fixture
def scenario(public: Path) -> Scenario:
    """Runs a script in a pid namespace of its own; `left` is a function that prints the other processes there. Those
    that are ending have no arguments any more, and stand in brackets.

    One that has ended, and waits for the namespace's first process to collect its status, is no longer a process here.
    """
    start = [needs("unshare"), *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--pid", "--fork", "--mount-proc"]
    if run(*start, "true").returncode:
        pytest.skip("there are no namespaces here")
    jobs = public / "jobs"
    left = public / "left"  # a file, as the filter of a pipe is a process, too

    def settings(**changes: str) -> None:
        given = {
            "kopsd": str(binary()), "kopsctl": str(binary("kopsctl")), "user": "", "folder": str(jobs), "start_s": "30",
            "options": "--backend host --config /dev/null --set cache.directory=none", **changes,
        }  # fmt: skip
        lines = [f"{key}={shlex.quote(value)}\n" for key, value in given.items()]
        (public / "slurm.conf").write_text("".join(lines), encoding="utf-8")

    def play(script: str, job: dict[str, str] = JOB, **changes: str) -> subprocess.CompletedProcess[str]:
        settings(**changes)
        begin = f"""set -u
        jobs={jobs}
        left() {{ ps -e -o pid=,stat=,args= >{left}; awk '$1 != 1 && $2 !~ /^Z/ && $3 !~ /^\\[/ && $3 != "ps"' {left}; }}
        slurm() {{ timeout 100 {PROGRAM} "$@"; }}
        kopsctl() {{ {binary("kopsctl")} --socket "$jobs/17/kopsd.sock" "$@"; }}
        """
        environment = {"PATH": os.environ["PATH"], "KOPS_SLURM_CONF": str(public / "slurm.conf"), **job}
        # The shell is the namespace's first process: it lives until the scenario's end.
        return run(*start, "--kill-child", "bash", "-c", begin + script, env=environment)

    return play


def test_a_job_has_a_daemon_from_prolog_to_epilog(scenario: Scenario) -> None:
    done = scenario("""
        slurm prolog || echo failed; echo "<$(slurm task-prolog)>"
        kopsctl ping --count 3 >/dev/null && echo answers
        tr '\\0' '\\n' <"/proc/$(cat "$jobs/17/pid")/environ" | sort | grep -v -e ^PATH= -e ^PWD=
        before=$(cat "$jobs/17/pid"); slurm prolog; [ "$before" = "$(cat "$jobs/17/pid")" ] && echo same
        slurm epilog || echo failed; left; ls "$jobs"; slurm epilog && echo again; echo "<$(slurm task-prolog)>"
    """)
    socket = next(word for word in done.stdout.split() if word.startswith("KOPS_SOCKET=")).split("=")[1].rstrip(">")
    assert socket.endswith("/jobs/17/kopsd.sock")
    assert done.stdout.splitlines() == [
        f"<export KOPS_SOCKET={socket}>", "answers", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=1,3", "same", "again", "<>",
    ], done.stdout + done.stderr  # fmt: skip
    assert not done.stderr


@users.as_root
def test_the_job_s_user_alone_is_served(scenario: Scenario) -> None:
    needs("setpriv")
    done = scenario(f"""
        as() {{ setpriv --reuid "$1" --regid "$1" --clear-groups {binary("kopsctl")} --socket "$jobs/17/kopsd.sock" ping --count 1; }}
        slurm prolog; as {ALICE} >/dev/null && echo served; as {ALICE + 1} >/dev/null || echo refused; slurm epilog; left
    """)
    if "Permission denied" in done.stderr and "refused" not in done.stdout.splitlines()[:1]:
        pytest.skip("other users cannot run the programs of this build folder")
    assert done.stdout.splitlines() == ["served", "refused"], done.stdout + done.stderr
    assert f"user {ALICE + 1} may not use this daemon" in done.stderr


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({"SLURM_JOB_GPUS": "", "CUDA_VISIBLE_DEVICES": "2"}, "2"),
        ({"SLURM_JOB_GPUS": "4", "CUDA_VISIBLE_DEVICES": "0"}, "4"),
        ({"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "MIG-1/2/3"}, "MIG-1/2/3"),
        ({"SLURM_JOB_GPUS": ""}, None),
    ],
)
def test_the_job_s_gpus(scenario: Scenario, variables: dict[str, str], gpus: str | None) -> None:
    done = scenario(
        """slurm prolog; [ ! -e "$jobs/17/pid" ] || tr '\\0' '\\n' <"/proc/$(cat "$jobs/17/pid")/environ" | grep ^CUDA_V; slurm epilog""",
        {**JOB, **variables},
    )
    assert done.stdout == ("" if gpus is None else f"CUDA_VISIBLE_DEVICES={gpus}\n"), done.stderr


@pytest.mark.parametrize(("required", "status"), [("no", 0), ("yes", 1)])
@pytest.mark.parametrize("options", ["--config /nonexistent", "--set nonsense=1"])
def test_a_daemon_that_does_not_start(scenario: Scenario, options: str, required: str, status: int) -> None:
    """The job goes on without it, unless the site wants it otherwise; the reason is in slurmd's log."""
    done = scenario('slurm prolog; echo $?; echo "<$(slurm task-prolog)>"; slurm epilog; left', options=options, required=required)
    assert done.stdout.splitlines() == [str(status), "<>"], done.stdout + done.stderr
    assert "kops-slurm: job 17: the daemon does not answer: kopsd:" in done.stderr


def test_a_daemon_that_does_not_answer_takes_bounded_time(scenario: Scenario, public: Path) -> None:
    silent = public / "silent"
    silent.write_text("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n", encoding="utf-8")
    silent.chmod(0o755)
    done = scenario("slurm prolog; echo $?; left", kopsd=str(silent), start_s="1", stop_s="1")
    assert done.stdout.splitlines()[0] == "0" and "does not answer" in done.stderr and "is killed" in done.stderr
    assert str(silent) not in done.stdout, done.stdout


def test_the_epilog_ends_a_daemon_that_hangs(scenario: Scenario) -> None:
    done = scenario('slurm prolog; kill -STOP "$(cat "$jobs/17/pid")"; slurm epilog; left; ls "$jobs"', stop_s="1")
    assert "is killed" in done.stderr and done.stdout == "", done.stdout


def test_another_process_with_the_number_lives(scenario: Scenario) -> None:
    done = scenario("""
        mkdir -p "$jobs/17"; sleep 1000 & echo $! >"$jobs/17/pid"
        slurm prolog; kopsctl ping --count 1 >/dev/null && echo answers; slurm epilog; kill -0 $! && echo lives
        mkdir -p "$jobs/17"; echo nonsense >"$jobs/17/pid"; slurm epilog && ls "$jobs"
    """)
    assert done.stdout.splitlines() == ["answers", "lives"], done.stdout + done.stderr


def test_a_killed_daemon_is_started_anew(scenario: Scenario) -> None:
    done = scenario("""
        slurm prolog; pkill -KILL -s "$(cat "$jobs/17/pid")"; slurm prolog; kopsctl ping --count 1 >/dev/null && echo answers
        slurm epilog; left
    """)
    assert done.stdout == "answers\n", done.stdout + done.stderr


@pytest.mark.parametrize("value", ["", "../17", "17 18", "x"])
def test_numbers_only(scenario: Scenario, value: str) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_UID"):
        done = scenario('slurm prolog; echo $?; ls "$jobs" 2>/dev/null; slurm epilog; echo $?', {**JOB, name: value})
        assert done.stdout.splitlines() == ["0", "0"], done.stdout
        assert f"{name} is no number" in done.stderr


def test_the_node_s_daemon_is_handed_out(scenario: Scenario, public: Path) -> None:
    node = f"{public}/node.sock"
    done = scenario(
        f"""
        slurm prolog; echo $?; echo "<$(slurm task-prolog)>"
        {binary()} --backend host --config /dev/null --socket {node} --set cache.directory=none 2>/dev/null &
        until {binary("kopsctl")} --socket {node} ping --count 1 >/dev/null 2>&1; do sleep 0.05; done
        slurm prolog; echo $?; slurm task-prolog; slurm epilog
        {binary("kopsctl")} --socket {node} ping --count 1 >/dev/null && echo lives; kill $!; wait
        """,
        mode="node", node_socket=node, start_s="3",
    )  # fmt: skip
    assert done.stdout.splitlines() == ["0", "<>", "0", f"export KOPS_SOCKET={node}", "lives"], done.stdout + done.stderr
    assert f"no daemon answers at {node}" in done.stderr


def test_its_name_says_what_to_do(scenario: Scenario, public: Path) -> None:
    for name in ("50-kops-prolog", "kops-task-prolog", "kops-epilog"):
        (public / name).symlink_to(PROGRAM)
    done = scenario(f"{public}/50-kops-prolog; {public}/kops-task-prolog; {public}/kops-epilog; left; {PROGRAM}; echo $?")
    assert done.stdout.splitlines()[0].startswith("export KOPS_SOCKET=") and done.stdout.splitlines()[1:] == ["2"]
    assert "usage" in done.stderr


def test_options_exist() -> None:
    text = PROGRAM.read_text(encoding="utf-8")
    printed = kopsd("--print-config", "--config", os.devnull, "--socket", "/tmp/x.sock").stdout
    for option in ("--supervise", "--socket", "--set"):
        assert option in text and option in kopsd("--help").stdout
    for name in ("socket_mode", "allow", "log_kib", "user"):
        assert f".{name}=" in text and f"\n{name} =" in printed.replace("\n;", "\n")
