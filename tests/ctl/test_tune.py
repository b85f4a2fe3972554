"""kopsctl tune and tuning: with a daemon whose cuBLASLt is a stand-in, and with one in miniature."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from conftest import Ctl
from fake import HELLO, FakeDaemon, Refused

GEMM = {
    "name": "gemm", "summary": "s", "doc": "d", "inputs": ["a", "b"], "outputs": ["out"], "dtypes": ["f32"], "variants": {},
    "attrs": [{"name": "alpha", "type": "float", "default": 1.0, "doc": "d"}],
}  # fmt: skip
TUNE = ("tune", "gemm", "--shape", "16x40,40x24")


def candidate(what: str, us: float | None = None, state: str = "measured") -> dict[str, Any]:
    variant = what.split()[0]
    return {"variant": variant, "what": what, "state": state, **({} if us is None else {"us": us})}


def tuned(best: int = 2, before: int = 1, **more: Any) -> dict[str, Any]:
    """What `tune` answers."""
    candidates = [
        candidate("cublaslt 1", 30.0),
        candidate("cublaslt 2", 20.0),
        candidate("cublaslt 3", 12.34),
        candidate("cublaslt 4", None, "left_out"),
        candidate("tiled", 30.0, "slower"),
        candidate("simt", None, "unfit"),
    ]
    return {
        "device": "GPU-1", "machine": "Example GPU; driver 580.1", "problem": "gemm f32 16x24x40", "candidates": candidates,
        "best": best, "before": before, "usual": 0, "noise": 0.012, "took_us": 2500.0,
        "tried": 6, "goes_on": False, **more,
    }  # fmt: skip


def choice(number: int, **more: Any) -> dict[str, Any]:
    """One of `tuning`."""
    return {
        "machine": "Example GPU; driver 580.1", "problem": f"gemm f32 {number}", "variant": "tiled", "what": "tiled", "us": 20.0,
        "usual": "cublaslt 1", "usual_us": 30.0, "noise": 0.01, "at": time.time() - 3700,
        "tried": 6, "candidates": 8, **more,
    }  # fmt: skip


def cells(line: str) -> list[str]:
    """Of a table, whose columns are two spaces apart."""
    return re.split(r"  +", line.strip())


@pytest.fixture
def tunes(fake: FakeDaemon) -> FakeDaemon:
    fake.answers["hello"] = {**HELLO, "ops": [GEMM], "features": ["memfd", "tune"]}
    fake.answers["tune"] = tuned()
    return fake


def test_what_is_asked(ctl: Ctl, tunes: FakeDaemon) -> None:
    ctl(*TUNE, "--dtype", "f16", "--attr", "alpha=2", "--device", "GPU-1")
    (asked,) = (params for method, params in tunes.requests if method == "tune")
    assert asked == {
        "op": "gemm", "in": [{"shape": [16, 40], "dtype": "f16"}, {"shape": [40, 24], "dtype": "f16"}],
        "out": [{"shape": [16, 24], "dtype": "f16"}], "attrs": {"alpha": 2.0}, "device": "GPU-1",
    }  # fmt: skip
    assert "register" not in [method for method, _ in tunes.requests]


def test_the_fastest_comes_first(ctl: Ctl, tunes: FakeDaemon) -> None:
    lines = ctl(*TUNE).stdout.splitlines()
    assert lines[0] == "gemm f32 16x24x40 on Example GPU; driver 580.1"
    assert cells(lines[1]) == ["candidate", "variant", "us", "gain", "state", "runs"]
    assert [cells(line) for line in lines[2:-1]] == [
        ["cublaslt 3", "cublaslt", "12.3", "2.43x", "measured", "now"],
        ["cublaslt 2", "cublaslt", "20.0", "1.50x", "measured", "before"],
        ["cublaslt 1", "cublaslt", "30.0", "1.00x", "measured", "usual"],
        ["tiled", "tiled", "30.0", "1.00x", "slower", "-"],
        ["cublaslt 4", "cublaslt", "-", "-", "left_out", "-"],
        ["simt", "simt", "-", "-", "unfit", "-"],
    ]
    assert lines[-1] == "cublaslt 3 runs from now on: 12.3 us, 1.62x faster than before"


def test_what_ran_before_goes_on(ctl: Ctl, tunes: FakeDaemon) -> None:
    tunes.answers["tune"] = tuned(best=0, before=0)
    lines = ctl(*TUNE).stdout.splitlines()
    assert lines[-1] == "nothing is faster beyond noise (1.2 %)"
    assert [cells(line)[-1] for line in lines if line.startswith("cublaslt 1")] == ["usual, before, now"]


def test_what_ran_before_has_no_time(ctl: Ctl, tunes: FakeDaemon) -> None:
    tunes.answers["tune"] = tuned(best=0, before=5, usual=5)
    lines = ctl(*TUNE).stdout.splitlines()
    assert lines[-1] == "cublaslt 1 runs from now on: 30.0 us; simt, which ran before, was not measured"
    assert {cells(line)[3] for line in lines[2:-1]} == {"-"}


def test_what_there_was_no_time_for(ctl: Ctl, tunes: FakeDaemon) -> None:
    tunes.answers["tune"] = tuned(tried=4)
    assert ctl(*TUNE).stdout.splitlines()[-1] == "tried so far: 4 of 6 candidates; the next tuning goes on with the others"
    nothing = [candidate("cublaslt 1", None, "left_out")]
    tunes.answers["tune"] = tuned(best=0, before=0, tried=0, goes_on=True, candidates=nothing)
    lines = ctl(*TUNE).stdout.splitlines()
    assert cells(lines[2]) == ["cublaslt 1", "cublaslt", "-", "-", "left_out", "usual, before, now"]
    assert lines[3] == "the time was over before all was measured: it is gone on with, ask again" and len(lines) == 4
    unknown = tuned()
    del unknown["tried"], unknown["goes_on"]  # an older daemon
    tunes.answers["tune"] = unknown
    assert "tried" not in ctl(*TUNE).stdout


def test_json(ctl: Ctl, tunes: FakeDaemon) -> None:
    tunes.answers["tuning"] = {"total": 1, "choices": [choice(0, at=1.5)]}
    assert json.loads(ctl(*TUNE, "--json").stdout) == tuned()
    assert json.loads(ctl("tuning", "--json").stdout) == tunes.answers["tuning"]


def test_wrong_usage(ctl: Ctl, tunes: FakeDaemon) -> None:
    """As that of run, with the same words."""
    wrong = {
        (): "takes an op",
        ("gemm", "add"): "takes one op; `add` is too much",
        ("twist",): "no op `twist`",
        ("gemm", "--shape", "16xx40"): "is no shape",
        ("gemm", "--shape", "16x40,41x24"): "--shape 16x40,41x24: ",
        ("gemm", "--dtype", "f128"): "no dtype `f128`",
        ("gemm", "--attr", "alpha"): "NAME=VALUE",
        ("gemm", "--attr", "beat=1"): "no attribute `beat`",
        ("gemm", "--attr", "alpha=x"): "no such value",
    }
    for args, words in wrong.items():
        said = [ctl(command, *args, status=2).stderr.replace(command, "*") for command in ("tune", "run")]
        assert words in said[0] and said[0] == said[1], args
    assert "--check" in ctl("tune", "gemm", "--check", status=2).stderr
    assert "tuning takes no `x`" in ctl("tuning", "x", status=2).stderr
    assert not [method for method, _ in tunes.requests if method == "tune"]


def test_a_daemon_that_does_not_tune(ctl: Ctl, fake: FakeDaemon) -> None:
    fake.answers["hello"] = {**HELLO, "ops": [GEMM]}
    assert "no feature `tune`" in ctl(*TUNE, status=1).stderr
    error = json.loads(ctl("tuning", "--json", status=1).stderr)["error"]
    assert error["code"] == "unsupported" and "no feature `tune`" in error["message"]


def test_errors_are_the_daemons(ctl: Ctl, tunes: FakeDaemon) -> None:
    def refuse(_: dict[str, Any]) -> Any:
        raise Refused("unsupported", "there is nothing to tune: one kernel serves gemm on host", key="op")

    tunes.answers["tune"] = refuse
    assert "there is nothing to tune" in ctl(*TUNE, status=1).stderr
    tunes.answers["tune"] = tuned(best=6)
    assert "bad_reply" in ctl(*TUNE, "--json", status=1).stderr


def test_all_choices_are_listed(ctl: Ctl, tunes: FakeDaemon) -> None:
    """Also those behind the first reply."""
    rows = [choice(i) for i in range(600)]
    rows[1].pop("usual_us")
    tunes.answers["tuning"] = lambda params: {"total": 600, "choices": rows[params.get("from", 0) :][:256]}
    lines = ctl("tuning").stdout.splitlines()
    assert cells(lines[0]) == ["problem", "runs", "us", "usual", "usual us", "gain", "age", "tried", "machine", "software"]
    row = ["gemm f32 0", "tiled", "20.0", "cublaslt 1", "30.0", "1.50x", "1 h 1 min", "6 of 8", "Example GPU", "driver 580.1"]
    assert cells(lines[1]) == row
    assert cells(lines[2])[4:6] == ["-", "-"]
    assert [cells(line)[0] for line in lines[1:]] == [row["problem"] for row in rows]
    assert [params for method, params in tunes.requests if method == "tuning"] == [{}, {"from": 256}, {"from": 512}]
    answer = json.loads(ctl("tuning", "--json").stdout)
    assert answer["total"] == 600 and [c["problem"] for c in answer["choices"]] == [row["problem"] for row in rows]
    for key in ("tried", "candidates"):  # an older daemon has chosen
        rows[0].pop(key)
    assert cells(ctl("tuning").stdout.splitlines()[1])[7] == "-"


def test_choices_that_go_meanwhile(ctl: Ctl, tunes: FakeDaemon) -> None:
    tunes.answers["tuning"] = lambda params: {"total": 300, "choices": [] if params else [choice(0)]}
    assert len(ctl("tuning").stdout.splitlines()) == 2


def test_forgetting(ctl: Ctl, tunes: FakeDaemon) -> None:
    tunes.answers["tuning"] = {"total": 0, "choices": []}
    assert ctl("tuning").stdout == "nothing has been tuned; `kopsctl tune` does it\n"
    assert ctl("tuning", "--clear").stdout == "all choices are forgotten\n"
    assert [params for method, params in tunes.requests if method == "tuning"] == [{}, {"clear": True}]
    assert json.loads(ctl("tuning", "--clear", "--json").stdout) == {"total": 0, "choices": []}

    def refuse(_: dict[str, Any]) -> Any:
        raise Refused("permission_denied", "the method is for administrators", **{"method": "tuning", "class": "administer"})

    tunes.answers["tuning"] = refuse
    assert "for administrators" in ctl("tuning", "--clear", status=1).stderr
