"""What a new user's machine lacks must not look like a failure, and what the pages tell them to type must work as written."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def module(path: Path) -> ModuleType:
    loader = SourceFileLoader(path.stem.replace("-", "_"), str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = made
    loader.exec_module(made)
    return made


# ---- tools/run-tests: what can only be skipped here is no failure ----

ALL_SKIPPED = """\
[==========] Running 2 test(s).
[ RUN      ] test_time
not possible here: there is no NVRTC
[  SKIPPED ] test_time
[ RUN      ] test_memory
not possible here: there is no NVRTC
[  SKIPPED ] test_memory
[==========] 2 test(s) run.
[  PASSED  ] 0 test(s).
[  SKIPPED ] 2 test(s), listed below:
[  SKIPPED ] test_time
[  SKIPPED ] test_memory

 2 SKIPPED TEST(S)
"""


def entry(output: str, status: str) -> Any:
    from xml.etree import ElementTree

    case = ElementTree.Element("testcase", name="test_helper_hostile", status=status)
    ElementTree.SubElement(case, "system-out").text = output
    return case


def test_a_program_that_skips_all_its_tests_has_not_failed() -> None:
    run_tests = module(ROOT / "tools" / "run-tests")
    count = run_tests.count_entry(entry(ALL_SKIPPED, "run"))
    assert (count.passed, count.failed, count.skipped) == (0, 0, 2)
    assert count.reasons == ["there is no NVRTC"]


def test_a_program_without_a_test_has_failed() -> None:
    run_tests = module(ROOT / "tools" / "run-tests")
    assert run_tests.count_entry(entry("[==========] 0 test(s) run.\n[  PASSED  ] 0 test(s).\n", "run")).failed == 1


# ---- who has neither root nor sudo is told what to install ----


def test_without_root_or_sudo_the_packages_are_named(tmp_path: Path) -> None:
    """On a Debian that has nothing of it."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("bash", "dirname", "env", "cat", "rm", "sh"):
        (bin_folder / name).symlink_to(f"/bin/{name}")
    for name, text in {"dpkg-query": "exit 1", "apt-get": "echo changed; exit 0"}.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (bin_folder / name).chmod(0o755)
    done = subprocess.run(
        [str(ROOT / "tools" / "install-dependencies"), "build", "test"],
        env={"PATH": str(bin_folder), "KOPS_NO_INSTALL": "1", "PYTHON": "/nonexistent"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "changed" not in done.stdout
    assert "apt-get install gcc" in done.stderr and "g++" in done.stderr, done.stderr
