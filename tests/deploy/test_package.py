"""The Debian packages: where things are, what leads where, and what lintian says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from deployed import DEPLOY, ROOT, needs, run
from support.daemon import build_folder, sanitized

sys.path.insert(0, str(ROOT / "tests" / "docs"))
import names  # noqa: E402


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By name, as cpack makes them of this build."""
    needs("dpkg-shlibdeps")
    if sanitized():
        pytest.skip("nobody packs a build with a sanitizer")
    folder = tmp_path_factory.mktemp("packages")
    done = run("cpack", "-G", "DEB", "-B", str(folder), cwd=build_folder())
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name.split("_")[0]: path for path in folder.glob("*.deb")}


def contents(package: Path) -> list[str]:
    return [line.split()[5] for line in run("dpkg-deb", "-c", str(package)).stdout.splitlines()]


def field(package: Path, name: str) -> str:
    return run("dpkg-deb", "-f", str(package), name).stdout.strip()


def test_lintian_finds_nothing(packages: dict[str, Path]) -> None:
    """Neither an error nor a warning; what is overridden has its reason beside it."""
    needs("lintian")
    assert set(packages) == {"kopsd", "libkops0", "libkops-dev"}
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
    for name in ("kopsd", "libkops0", "libkops-dev"):
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
