"""Builds the package, with its compiled part `kops._native` where that is possible.

The compiled part is libkops and the files of native/; the lists of sources are read from the CMake files. Where a compiler or a
header is missing, the package is installed without the compiled part, and one line says why: in pip's output, which pip shows with
-v, and as `kops.why_not_compiled`.

KOPS_NATIVE_FILE names a compiled part that exists already; nothing is compiled then. With it KOPS_PROGRAMS names the folder of kopsd,
kopsctl and their LICENSES, which then go into the package, with console scripts that run them, and KOPS_PLATFORM the wheel's platform tag:
`make wheel` does so.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import CCompilerError, ExecError, PlatformError

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
BUNDLED = HERE / "sources"  # in a source distribution: the project's folders that the compiled part is made of
TREE = BUNDLED if BUNDLED.is_dir() else HERE.parent
LIBRARY = TREE / "client_c"
REASON = "_not_compiled.txt"  # beside the package's modules
VERSION = re.search(r'^VERSION = "(.+)"', (HERE / "kops/_version.py").read_text(encoding="utf-8"), re.M)[1]  # type: ignore[index]
MSGPACK = ("msgpack-c", "msgpackc", "msgpack")  # the name changed with each major version
FAILURES = (CCompilerError, ExecError, PlatformError, OSError)


PROGRAMS = ("kopsd", "kopsctl")
SCRIPTS = "_kops_programs"  # module of the console scripts, apart from the package, which takes long to import


class Missing(Exception):
    """The compiled part cannot be built; the text says why."""


def listed(folder: Path, command: str) -> list[str]:
    """The files or folders that a command in a folder's CMakeLists.txt lists, as absolute paths."""
    text = (folder / "CMakeLists.txt").read_text(encoding="utf-8")
    found = re.search(re.escape(command) + r"\s([^)]*)\)", text)
    if found is None:
        raise Missing(f"{folder.name}/CMakeLists.txt has no {command}")
    names = [name.replace("${PROJECT_SOURCE_DIR}", str(TREE)) for name in found[1].split() if not name.startswith("$<")]
    return [os.path.join(folder, name) for name in names]


def sources() -> list[str]:
    return listed(LIBRARY, "add_library(kops_objects OBJECT") + listed(HERE, "add_library(kops_python MODULE")


def extension() -> Extension:
    """Its sources are not among its members: setuptools takes none from outside of this folder."""
    return Extension(
        "kops._native",
        [],
        define_macros=[("_GNU_SOURCE", None), ("KOPS_VERSION", f'"{VERSION}"')],
        extra_compile_args=["-std=gnu11", "-O2", "-fvisibility=hidden", "-fno-strict-aliasing", "-pthread"],
        extra_link_args=["-pthread", "-Wl,--as-needed"],
        libraries=["dl", "m"],
        py_limited_api=True,
    )


def named_file(name: str) -> str:
    """The absolute path of a file that pip's caller named, from the caller's folder. pip builds in the package's folder, and only
    PWD still has the caller's; the top of the source tree is tried next."""
    folders = [os.environ.get("PWD", ""), str(HERE.parent), os.getcwd()]
    for folder in folders:
        path = Path(folder, name)
        if path.is_file():
            return str(path.resolve())
    looked = ", ".join(dict.fromkeys(folder for folder in folders if folder))
    raise FileNotFoundError(f"KOPS_NATIVE_FILE={name}: no such file, seen from {looked}; give its absolute path")


def pkg_config(*arguments: str) -> list[str]:
    try:
        done = subprocess.run(["pkg-config", *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return []
    return shlex.split(done.stdout) if done.returncode == 0 else []


class BuildNative(build_ext):  # type: ignore[misc]
    """Builds the extension, or leaves it out and writes why."""

    def run(self) -> None:
        given = os.environ.get("KOPS_NATIVE_FILE")
        if given:
            self._place(named_file(given))
            if programs := os.environ.get("KOPS_PROGRAMS"):
                self._place_programs(Path(programs))
            return
        in_place = self.inplace
        try:
            super().run()
        except Missing as why:
            self.inplace = in_place
            self._leave_out(str(why))

    def build_extension(self, ext: Extension) -> None:
        if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
            raise Missing("it is for CPython with the GIL")
        self._check_requirements(ext)
        try:
            self._compile(ext)
        except FAILURES as error:
            raise Missing(f"its C sources were not compiled: {str(error).splitlines()[0]}") from error

    def _check_requirements(self, ext: Extension) -> None:
        """Raises Missing, which names the first tool or header that is not there; adds the flags for msgpack-c."""
        compiler = shlex.join(self.compiler.compiler_so[:1])
        if not self._builds("int main(void) { return 0; }"):
            raise Missing(f"no C compiler that works ({compiler}); on Debian: apt-get install gcc libc6-dev")
        if not self._builds("#include <Python.h>\nint main(void) { return 0; }"):
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise Missing(f"no header Python.h of Python {version}; on Debian: apt-get install python3-dev")
        program = "#include <msgpack.h>\nint main(void) { msgpack_unpacked u; msgpack_unpacked_init(&u); msgpack_zone_free(0); return 0; }"
        for name in MSGPACK:
            flags = [*pkg_config("--cflags", name)], [*pkg_config("--libs", name)] or [f"-l{name}"]
            if self._builds(program, *flags):
                ext.extra_compile_args += flags[0]
                ext.extra_link_args += flags[1]
                return
        raise Missing("no msgpack-c; on Debian: apt-get install libmsgpack-dev")

    def _builds(self, text: str, compile_args: list[str] | None = None, link_args: list[str] | None = None) -> bool:
        """Whether a program is compiled and linked."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text(text + "\n", encoding="utf-8")
            try:
                objects = self.compiler.compile([str(source)], output_dir="/", extra_preargs=["-w"], extra_postargs=compile_args)
                self.compiler.link_executable(objects, os.path.join(folder, "probe"), extra_postargs=link_args)
            except FAILURES:
                return False
        return True

    def _compile(self, ext: Extension) -> None:
        """The objects in parallel, since each install compiles all of them, and the library."""
        folders = [folder for how in ("PUBLIC", "PRIVATE") for folder in listed(LIBRARY, f"target_include_directories(kops_objects {how}")]

        def one(source: str) -> list[str]:
            made: list[str] = self.compiler.compile(
                [source], output_dir=self.build_temp, macros=ext.define_macros, include_dirs=folders,
                extra_postargs=ext.extra_compile_args,
            )  # fmt: skip
            return made

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [made for group in pool.map(one, sources()) for made in group]
        path = self.get_ext_fullpath(ext.name)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, path, libraries=ext.libraries, extra_postargs=ext.extra_link_args)

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".abi3.so"

    def _place(self, made: str) -> None:
        path = Path(self.get_ext_fullpath("kops._native"))
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, path)

    def _place_programs(self, folder: Path) -> None:
        there = Path(self.get_ext_fullpath("kops._native")).with_name("bin")
        there.mkdir(parents=True, exist_ok=True)
        for name in (*PROGRAMS, "LICENSES"):
            shutil.copy(folder / name, there / name)

    def _leave_out(self, why: str) -> None:
        self.distribution.ext_modules = self.extensions = []
        path = Path(self.get_ext_fullpath("kops._native")).with_name(REASON)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(why + "\n", encoding="utf-8")
        print(f"kops is installed without its compiled part: {why}", file=sys.stderr)


class Wheel(bdist_wheel):  # type: ignore[misc]
    """A wheel for every platform where nothing was compiled."""

    def run(self) -> None:
        self.run_command("build")
        self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()


class SourceDistribution(sdist):  # type: ignore[misc]
    """Takes along the C sources, which lie beside this folder."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        there = Path(base_dir, BUNDLED.name)
        skipped = shutil.ignore_patterns("*.md", "*.json", "*.py", "*.cu", "*.cuh", "golden", "ops", "__pycache__")
        shared = {os.path.relpath(os.path.dirname(source), TREE) for source in sources()}
        for name in ("client_c/src", "client_c/include", "proto", *(name for name in shared if not name.startswith("client_"))):
            shutil.copytree(TREE / name, there / name, ignore=skipped, dirs_exist_ok=True)
        shutil.copy(LIBRARY / "CMakeLists.txt", there / LIBRARY.name)


def description() -> str:
    """README.md for readers without the source: links to its other pages become their names, and notes for its tests are left out."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"^<!-- .* -->\n", "", text, flags=re.M)
    return re.sub(r"\[([^][]+)\]\(\.\./([^)#]+)[^)]*\)", r"\1 (`\2` of the source)", text)


def programs() -> dict[str, Any]:
    """The console scripts, where the programs that they run come along."""
    names = PROGRAMS if os.environ.get("KOPS_PROGRAMS") else ()
    return {
        "py_modules": [SCRIPTS] if names else [],
        "entry_points": {"console_scripts": [f"{name} = {SCRIPTS}:{name}" for name in names]},
    }


def platform() -> dict[str, str]:
    named = os.environ.get("KOPS_PLATFORM")
    return {"plat_name": named} if named else {}


def options() -> dict[str, Any]:
    """Wheels are built in a folder of their own: files that an earlier version left in ./build would go into them."""
    if not {"bdist_wheel", "dist_info"}.intersection(sys.argv):
        return {}
    folder = tempfile.mkdtemp(prefix="kops-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"build": {"build_base": folder}, "egg_info": {"egg_base": folder}}


setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    ext_modules=[extension()],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": Wheel, "sdist": SourceDistribution},
    options={"bdist_wheel": {"py_limited_api": "cp310", **platform()}, **options()},
    **programs(),
)
