"""The units load, confine what they start, and an instance is confined as the machine's daemon is."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from deployed import DEPLOY, SERVICES, SOCKETS, needs, run, with_paths_of_this_build
from support.daemon import build_folder

# The highest exposure that systemd-analyze may find, in tenths; 0 is none and 100 all.
EXPOSURE = {"kopsd.service": 25, "kopsd@.service": 25, "kopsd-metrics.service": 20, "kopsd-mps.service": 80, "kopsd-cache@.service": 22}


def unit(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def settings(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit(name).splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def test_the_drop_in_for_counters_gives_one_capability() -> None:
    assert settings("kopsd-counters.conf") == {"CapabilityBoundingSet": ["CAP_PERFMON"], "AmbientCapabilities": ["CAP_PERFMON"]}
    assert settings("kopsd.service")["CapabilityBoundingSet"] == settings("kopsd.service")["AmbientCapabilities"] == [""]


def test_units_load(tmp_path: Path) -> None:
    analyze = needs("systemd-analyze")
    for name in SERVICES + SOCKETS:
        (tmp_path / name).write_text(with_paths_of_this_build(unit(name)), encoding="utf-8")
    # A template is checked as one of its instances.
    names = [name.replace("@.", "@root.") for name in SERVICES + SOCKETS]
    done = run(analyze, "verify", "--man=no", *(str(tmp_path / name) for name in names))
    complaints = [line for line in done.stderr.splitlines() if "kopsd" in line]
    assert done.returncode == 0 and not complaints, done.stderr


@pytest.mark.parametrize("name", sorted(EXPOSURE))
def test_exposure(name: str, tmp_path: Path) -> None:
    analyze = needs("systemd-analyze")
    path = tmp_path / name.replace("@.", "@root.")
    path.write_text(unit(name), encoding="utf-8")
    done = run(analyze, "security", "--offline=true", f"--threshold={EXPOSURE[name]}", str(path))
    if "offline" in done.stderr:
        pytest.skip("systemd-analyze is older than offline checks")
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_instance_is_confined_as_the_daemon_is() -> None:
    """What differs between the two is who runs, where its files are, and its settings."""
    machine, instance = settings("kopsd.service"), settings("kopsd@.service")
    own = {"Description", "Requires", "After", "ExecStart", "User", "Group", "Also", "Environment", "SupplementaryGroups"}
    own |= {f"{kind}Directory" for kind in ("Cache", "State", "Runtime")}
    own.add("RemoveIPC")  # would remove what else its user shares
    assert {k: v for k, v in machine.items() if k not in own} == {k: v for k, v in instance.items() if k not in own}
    for key in own & set(instance) - {"Description", "SupplementaryGroups"}:
        assert any("%i" in value for value in instance[key]), key


def test_the_daemons_exit_statuses() -> None:
    """As `kopsd --help` tells them: 2 asks for a human, 70 and 75 for another start."""
    found = settings("kopsd.service")
    assert found["Restart"] == ["on-failure"]
    assert found["RestartPreventExitStatus"] == ["2"]
    assert found["RestartForceExitStatus"] == ["70 75"]
    assert found["StartLimitIntervalSec"] == ["0"]  # else a burst of faults would close the socket for good


def test_memory_has_an_end_and_the_daemon_goes_last() -> None:
    found = settings("kopsd.service")
    high, most = (int(found[key][0].removesuffix("%")) for key in ("MemoryHigh", "MemoryMax"))
    # All that users may have mapped is three quarters of MemoryMax.
    assert 3 * most / 4 < high < most < 100
    assert found["OOMPolicy"] == ["continue"] and int(found["OOMScoreAdjust"][0]) < -500
    assert int(found["CPUWeight"][0]) > 100


def test_the_gpus_stay_visible() -> None:
    found = settings("kopsd.service")
    assert found["DeviceAllow"] == ["char-nvidia* rw"]
    for hides in ("PrivateDevices", "PrivateUsers", "PrivateIPC", "MemoryDenyWriteExecute", "ProcSubset"):
        assert hides not in found
    # And what compilers of users' sources confine themselves with stays possible.
    allowed = found["SystemCallFilter"][-1]
    assert {"seccomp", "landlock_restrict_self", "capset"} <= set(allowed.split())


def test_users_and_directories(tmp_path: Path) -> None:
    sysusers, tmpfiles = needs("systemd-sysusers"), needs("systemd-tmpfiles")
    (tmp_path / "etc").mkdir()
    made = run(sysusers, f"--root={tmp_path}", str(DEPLOY / "kops.sysusers"))
    assert made.returncode == 0, made.stderr
    assert "kops:x:" in (tmp_path / "etc/passwd").read_text(encoding="utf-8")
    groups = (tmp_path / "etc/group").read_text(encoding="utf-8")
    assert re.search(r"^video:.*:kops$", groups, re.M) and re.search(r"^kops:", groups, re.M)
    done = run(tmpfiles, "--create", "--dry-run", str(DEPLOY / "kops.tmpfiles"))
    if "unrecognized" not in done.stderr:
        assert done.returncode == 0, done.stderr
    for line in (DEPLOY / "kops.tmpfiles").read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or re.fullmatch(r"d /\S+ 0[0-7]{3} (root root|kops kops) -", line), line


def test_an_installation_elsewhere_starts_its_own_programs(tmp_path: Path) -> None:
    """Below any prefix; DESTDIR is where a packager collects the files, and no part of their paths."""
    cmake = needs("cmake")
    destination = {"DESTDIR": str(tmp_path), "PATH": os.environ["PATH"]}
    done = run(cmake, "--install", str(build_folder()), "--component", "service", "--prefix", "/opt/k", env=destination)
    assert done.returncode == 0, done.stderr
    installed = tmp_path / "opt/k"
    starts = [
        line.split("=", 1)[1].lstrip("-").split()[0]
        for unit_file in sorted((installed / "lib/systemd/system").iterdir())
        for line in unit_file.read_text(encoding="utf-8").splitlines()
        if re.match(r"Exec(Start|StartPre|StopPost)=.*(kopsd|kopsctl)", line)
    ]
    assert len(starts) >= 7
    for program in starts:
        assert program.startswith("/opt/k/"), program
        assert os.access(f"{tmp_path}{program}", os.X_OK), program
    for page in ("man1/kopsctl.1", "man5/kopsd.conf.5", "man8/kopsd.8"):
        assert (installed / "share/man" / page).is_file()
    assert not (tmp_path / "etc").exists()  # an administrator's settings are left alone
