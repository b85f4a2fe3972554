"""The Debian packages: where things are, what leads where, and what lintian says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from deployed import DEPLOY, ROOT, needs, run
from support.daemon import Daemon, build_folder, sanitized

sys.path.insert(0, str(ROOT / "tests" / "docs"))
import names  # noqa: E402


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By name, as cpack makes them of this build."""
    needs("dpkg-shlibdeps")
    if sanitized():
        pytest.skip("nobody packs a build with a sanitizer")
    if (build_folder() / "python/kops/_native.abi3.so").exists():
        done = run(str(ROOT / "tools/find-python"), env={**os.environ, "KOPS_PYTHON_MODULES": "setuptools, wheel"})
        if done.returncode:
            pytest.skip(done.stderr)
    folder = tmp_path_factory.mktemp("packages")
    # As for Ninja: before make's "install", cpack has it look at every target of the build.
    done = run("cpack", "-G", "DEB", "-D", "CPACK_CMAKE_GENERATOR=Ninja", "-B", str(folder), cwd=build_folder())
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name.split("_")[0]: path for path in folder.glob("*.deb")}


def contents(package: Path) -> list[str]:
    return [line.split()[5] for line in run("dpkg-deb", "-c", str(package)).stdout.splitlines()]


def field(package: Path, name: str) -> str:
    return run("dpkg-deb", "-f", str(package), name).stdout.strip()


def test_lintian_finds_nothing(packages: dict[str, Path]) -> None:
    """Neither an error nor a warning; what is overridden has its reason beside it."""
    needs("lintian")
    assert set(packages) - {"python3-kops"} == {"kopsd", "libkops0", "libkops-dev"}
    done = run("lintian", "--allow-root", "--fail-on", "error,warning", *map(str, packages.values()))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_library_is_where_debian_looks_for_its_architecture(packages: dict[str, Path]) -> None:
    triplet = run(needs("dpkg-architecture"), "-qDEB_HOST_MULTIARCH").stdout.strip()
    assert f"./usr/lib/{triplet}/libkops.so.0" in contents(packages["libkops0"])
    assert f"./usr/lib/{triplet}/pkgconfig/kops.pc" in contents(packages["libkops-dev"])
    assert field(packages["libkops0"], "Multi-Arch") == field(packages["libkops-dev"], "Multi-Arch") == "same"


def test_there_is_a_maintainer(packages: dict[str, Path]) -> None:
    for package in packages.values():
        assert re.fullmatch(r"\S.* <\S+@\S+>", field(package, "Maintainer"))


def test_links_of_what_is_installed_lead_to_what_is_installed(packages: dict[str, Path], tmp_path: Path) -> None:
    """Of pages, and symbolic ones, of which a library's development link leads into the other package."""
    for name in packages:
        subprocess.run(["dpkg-deb", "-x", str(packages[name]), str(tmp_path)], check=True)
    doc = tmp_path / "usr/share/doc/kopsd"
    assert {"README.md", "proto/PROTOCOL.md", "deploy/THREATS.md"} <= {str(p.relative_to(doc)) for p in doc.rglob("*.md")}
    for page in doc.rglob("*.md"):
        dead = list(names.missing_files(page.read_text(encoding="utf-8"), page))
        assert not dead, (page, dead)
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink() and not path.resolve().exists()]


def test_manual_pages_name_files_that_are_installed(packages: dict[str, Path]) -> None:
    files = contents(packages["kopsd"])
    for page in (DEPLOY / "man").glob("*.tail"):
        for path in re.findall(r"^\.Pa (/usr/\S+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert f".{path}" in files, (page.name, path)


PROGRAM = """
import importlib.metadata, sys, kops
assert kops.compiled, kops.why_not_compiled
assert kops.__file__.startswith(sys.argv[2]), kops.__file__
assert importlib.metadata.version("kops") == kops.__version__
with kops.connect(sys.argv[1]) as k:
    a = k.array([1.0, 2.0])
    print(*k.add(a, a))
"""


def test_the_python_client_is_where_debians_python_looks(packages: dict[str, Path], tmp_path: Path) -> None:
    """One file for all of its versions, with what it needs; no file of another package, no compiled Python."""
    if "python3-kops" not in packages:
        pytest.skip("the build has no compiled part for Python")
    files = [name for name in contents(packages["python3-kops"]) if not name.endswith("/")]
    folder = "./usr/lib/python3/dist-packages"
    assert {f"{folder}/kops/__init__.py", f"{folder}/kops/_native.abi3.so", f"{folder}/kops/py.typed"} <= set(files)
    assert all(name.startswith((f"{folder}/kops/", f"{folder}/kops-", "./usr/share/doc/", "./usr/share/lintian/")) for name in files)
    assert not [name for name in files if name.endswith(".pyc") or "/bin/" in name]
    needed = field(packages["python3-kops"], "Depends")
    assert "python3 (>= 3.10)" in needed and "python3-msgpack" in needed and "kopsd" in field(packages["python3-kops"], "Recommends")
    python = Path("/usr/bin/python3")
    if not python.exists() or run(str(python), "-c", "import msgpack").returncode:
        pytest.skip("Debian's own Python has no msgpack here")
    subprocess.run(["dpkg-deb", "-x", str(packages["python3-kops"]), str(tmp_path)], check=True)
    place = str(tmp_path / folder)
    with Daemon("--backend", "host") as daemon:
        done = run(str(python), "-c", PROGRAM, daemon.socket_path, place, env={"PYTHONPATH": place})
    assert done.stdout == "2.0 4.0\n", done.stderr
