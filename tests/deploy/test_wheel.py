"""The wheel that brings everything: installed by pip where nothing else of kops is, its first client starts its own daemon."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from support import wheel as wheels  # noqa: E402
from support.daemon import build_folder  # noqa: E402

pytest.importorskip("setuptools", minversion="64")
pytest.importorskip("wheel")
pytest.importorskip("pip")
pytestmark = [
    pytest.mark.skipif(not (build_folder() / "python/kops/_native.abi3.so").exists(), reason="the build has no compiled part for Python"),
    pytest.mark.skipif(Path("/run/kopsd/kopsd.sock").exists(), reason="a daemon of the system comes first"),
]

PROGRAM = """
import kops, os
assert kops.compiled, kops.why_not_compiled
with kops.connect() as k:
    a = k.array([1.0, 2.0])
    result, timing = k.add(a, a, timing=True)
    print(*result)
    print(timing.variant)
    print(os.readlink(f"/proc/{k.info.pid}/exe"))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel") / "dist"
    subprocess.run([sys.executable, str(ROOT / "tools/make-wheel"), str(build_folder()), str(folder)], check=True, capture_output=True)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("installed") / "venv"
    pip = wheels.empty_venv(made)
    wheels.bring_msgpack(made)
    wheels.install(pip, wheel)
    return made


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    yield {**wheels.environment(tmp_path), "KOPSD_EXECUTORS_SPARES": "0", "KOPSD_SERVER_BACKEND": "host"}
    wheels.await_end(tmp_path)


def test_the_tag_says_what_it_needs(wheel: Path) -> None:
    static = "KOPS_STATIC_DEPS:BOOL=ON" in (build_folder() / "CMakeCache.txt").read_text(encoding="utf-8")
    tag = r"manylinux_2_\d+" if static else "linux"
    assert re.fullmatch(rf"kops-[\d.]+-cp310-abi3-{tag}_\w+\.whl", wheel.name)


def test_it_brings_the_licences_of_what_is_linked_in(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        text = file.read("kops/bin/LICENSES").decode()
    assert "Apache License" in text
    if "manylinux" in wheel.name and shutil.which("dpkg"):
        for name in ("libuv", "libsodium-dev", "libseccomp-dev", "libinih-dev", "libmsgpack-dev"):
            assert f"\n== {name}" in text


def test_what_pip_shows_of_it(wheel: Path) -> None:
    """Its description is read where the source is not: no link leads there, and no note of the tests is left."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = (n for n in file.namelist() if n.endswith(".dist-info/METADATA"))
        text = file.read(name).decode()
        assert [n for n in file.namelist() if n.endswith("LICENSE") and ".dist-info/" in n]
    header, _, body = text.partition("\n\n")
    assert re.search(r"^License(-Expression)?: Apache-2.0$", header, re.M)
    assert re.search(r"^Requires-Python: >=3.10$", header, re.M) and re.search(r"^Requires-Dist: msgpack\b", header, re.M)
    assert {"nvrtc", "cupti", "cublas", "torch"} <= set(re.findall(r"^Provides-Extra: (\w+)$", header, re.M))
    assert body.startswith("# kops\n") and "(`docs/profiling.md` of the source)" in body
    assert "](../" not in body and "<!--" not in body


def test_an_installation_is_complete(venv: Path, environment: dict[str, str]) -> None:
    done = subprocess.run([str(venv / "bin/python"), "-c", PROGRAM], env=environment, cwd="/", text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    result, variant, program = done.stdout.splitlines()
    assert result == "2.0 4.0"
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    assert variant != "generic" or " avx2 " not in flags, "some compilers' libraries know no instruction set"
    assert Path(program).is_relative_to(venv.resolve()) and program.endswith("/kops/bin/kopsd")


def test_the_first_program_of_the_readme(venv: Path, environment: dict[str, str]) -> None:
    """The second of its two commands; the first is the fixture's."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^<!-- doctest: file first.py -->\n```python\n(.*?)^```", text, re.M | re.S)
    done = subprocess.run([str(venv / "bin/python"), "-c", program], env=environment, cwd="/", text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[1. 2. 3. 4.] computed by")


def test_its_programs(venv: Path, environment: dict[str, str]) -> None:
    def run(*command: str) -> str:
        program = [str(venv / "bin" / command[0]), *command[1:]]
        return subprocess.run(program, env=environment, check=True, text=True, capture_output=True).stdout

    assert run("kopsd", "--version") == run("kopsctl", "--version").replace("kopsctl", "kopsd")
    assert "GB/s" in run("kopsctl", "run", "add", "--check")
    assert str(environment["XDG_RUNTIME_DIR"]) in run("kopsctl", "info")


def test_libraries_of_packages_beside_it_come_first(venv: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """NVRTC as pip installs it, where the daemon looks before any toolkit: here a file of that name, which it reports."""
    site = wheels.site_packages(venv)
    library = site / "nvidia/cu13/lib/libnvrtc.so.13"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    (library.parent / "libnvrtc-builtins.so.13.99").write_bytes(b"")
    try:
        done = subprocess.run([str(venv / "bin/kopsctl"), "info"], env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        assert f'name="NVRTC 13.99" path={library.resolve()}' in wheels.log(tmp_path)
    finally:
        shutil.rmtree(site / "nvidia")
