"""Compiling: the runtime once, each kernel once for every content.

Objects are kept in a directory that only the user can write, under names that are hashes of all that goes into them. An
object is made in a directory of its own and linked, so that what is found is whole; what fails leaves nothing.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from .._companions import KERNEL_STANDARDS, blank, cache_directory, is_mine, macros, standard, surplus
from ._conversions import FLAGS_OF_CLANG, FLAGS_OF_GCC, in_assembly, in_intermediate_code
from ._elf import dynamic_names
from ._errors import InterpretError
from ._refusals import SAVED, explained, refuse_switches
from ._source import HOST_HEADERS, for_compiler, mark, translation_unit

HERE = Path(__file__).resolve().parent
INCLUDE = HERE / "include"
RUNTIME = HERE / "runtime"
SOURCE_ROOT = "/kernel/"  # replaces, in the debug information, the directory that a kernel was compiled in
KEEP = {"kernel": 512, "runtime": 8}  # objects in the cache
COMPILE_SECONDS = 300

_COMMON = ["-fPIC", "-gdwarf-4", "-w", "-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-fwrapv", "-ffp-contract=off",
           "-fno-delete-null-pointer-checks", "-fno-finite-loops", "-fno-stack-protector", "-U_FORTIFY_SOURCE", "-pthread"]  # fmt: skip
_COPIES = ["memcpy", "memmove", "memset"]
_HEAP = ["malloc", "calloc", "free"]
_NEW = [f"_Zn{what}m{how}" for what in "wa" for how in ("", "RKSt9nothrow_t", "St11align_val_t")]  # the operators, by their symbols
_DELETE = [f"_Zd{what}Pv{how}" for what in "la" for how in ("", "m", "St11align_val_t", "mSt11align_val_t")]
_WRAPPED = ["printf", "vprintf", "puts", "putchar", "__assert_fail", "abort", "clock", *_HEAP, *_NEW, *_DELETE]
# Optimizations to switch off: they move accesses to where the source has none, or join them.
_GCC_PLAIN = ["-fno-gnu-unique", "-fno-tree-loop-im", "-fno-tree-pre", "-fno-code-hoisting", "-fno-tree-vectorize",
              "-fno-tree-slp-vectorize", "-fno-store-merging", "-fstack-clash-protection", "-fcheck-new"]  # fmt: skip
_CLANG_PLAIN = ["-fno-vectorize", "-fno-slp-vectorize"]
_OF_IR = ["-w", "-O1", "-fPIC", "-Xclang", "-disable-llvm-passes"]  # for intermediate code that the passes have been over


@cache
def compiler() -> tuple[tuple[str, ...], str]:
    """The C++ compiler's command, and what it says of itself."""
    command = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    if not os.environ.get("CXX") and not shutil.which("c++"):
        command = [next((name for name in ("g++", "clang++") if shutil.which(name)), "c++")]
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise InterpretError(
            f"there is no C++ compiler {command[0]!r}: install g++ or set CXX to one that knows C++17", "compile"
        ) from None
    return tuple(command), done.stdout


def _is_clang() -> bool:
    return "clang" in compiler()[1]


@cache
def _pattern() -> list[str]:
    """Options that fill local variables, so that a variable that is read before it is written is not 0 by chance."""
    option = "-ftrivial-auto-var-init=pattern"
    known = subprocess.run([*compiler()[0], option, "-x", "c++", "-E", os.devnull], capture_output=True, check=False)
    # GCC's value numbering (-ftree-fre) may assume any value for an uninitialised variable, and so undo the pattern.
    return [] if known.returncode else [option] if _is_clang() else [option, "-fno-tree-fre"]


def directory() -> Path:
    return cache_directory("interpret")


@cache
def _headers() -> bytes:
    """A hash of all that is compiled with a kernel."""
    digest = hashlib.blake2b(repr(HOST_HEADERS).encode(), digest_size=16)
    for folder in (INCLUDE, RUNTIME):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                digest.update(str(path.relative_to(HERE)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.digest()


def _key(*parts: str) -> str:
    digest = hashlib.blake2b(_headers(), digest_size=20)
    for part in (compiler()[1], *compiler()[0], *parts):
        digest.update(str(len(part)).encode() + b":" + part.encode())
    return digest.hexdigest()


def _call(command: Sequence[str], folder: str, what: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise InterpretError(f"{what}: the compiler took longer than {COMPILE_SECONDS} s", "compile") from None
    except OSError as error:
        raise InterpretError(f"{what}: cannot run the compiler: {error}", "compile") from None
    if done.returncode:
        log = done.stderr + done.stdout
        first = next((line for line in log.splitlines() if "error:" in line or "undefined" in line), "see the log")
        raise InterpretError(f"{what} does not compile: {first.strip()}", "compile", log=log)


def _keep(made: str, path: Path) -> None:
    """An object that another process has made meanwhile stays: it may be all that a confined process can read."""
    os.chmod(made, 0o700)
    try:
        os.link(made, path)
    except OSError:
        if not is_mine(path):
            os.rename(made, path)
    sort = path.name.partition("-")[0]
    for old in surplus(path.parent.glob(f"{sort}-*.so"), KEEP[sort]):
        old.unlink(missing_ok=True)


def compile_runtime() -> Path:
    """The library that kernels run in."""
    flags = [*_COMMON, "-std=c++17", "-O2", "-shared", "-Wl,-z,now"]
    path = directory() / f"runtime-{_key(*flags)}.so"
    if is_mine(path):
        os.utime(path)
        return path
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = os.path.join(folder, "runtime.so")
        sources = sorted(str(p) for p in RUNTIME.glob("*.cpp"))
        _call([*compiler()[0], *flags, *sources, "-o", made], folder, "the interpreter's runtime")
        _keep(made, path)
    return path


def _translate(options: Sequence[str]) -> list[str]:
    """Options of the device's compiler as ones of the host's; what means nothing here is left out."""
    wanted = standard(options)
    if wanted and wanted not in KERNEL_STANDARDS:
        raise InterpretError(f"-std={wanted}: it is one of {', '.join(KERNEL_STANDARDS)}", "compile")
    made = macros(options)
    own = next((macro.name for macro in made if macro.name.startswith("KOPS_HOST")), None)
    if own is not None:
        raise InterpretError(f"the macro {own}: names that begin with KOPS_HOST are the interpreter's own, take another one", "compile")
    return [f"-std={max(wanted, 'c++17')}", *(macro.option for macro in made)]


def _instrumentation(accesses: bool) -> list[str]:
    """Calls at each basic block, for the clock; and before each access."""
    clock = ["-fsanitize-coverage=bb,trace-pc"] if _is_clang() else ["-fsanitize-coverage=trace-pc"]
    bounds = "-fsanitize=alignment,array-bounds" if _is_clang() else "-fsanitize=alignment,bounds"
    noted = "signed-integer-overflow,integer-divide-by-zero"
    clock += ["-fno-wrapv", f"-fsanitize={noted}", f"-fsanitize-recover={noted}"]
    return [*clock, "-fsanitize=thread", bounds, *(f"-fno-builtin-{name}" for name in _COPIES)] if accesses else clock


def _write(root: str, folder: str, files: Mapping[str, str]) -> None:
    base = os.path.join(root, folder, "")
    os.makedirs(base)
    for file, text in files.items():
        place = os.path.normpath(os.path.join(base, file))
        if not place.startswith(base):
            raise InterpretError(f"the name of a file must be relative and stay inside: {file!r}", "compile")
        os.makedirs(os.path.dirname(place), exist_ok=True)
        Path(place).write_text(text, encoding="utf-8")


def _compile(
    folder: str, name: str, source: str, entries: Sequence[str], files: Mapping[str, str], flags: Sequence[str], plain: bool
) -> str:
    """Makes the object in an empty folder. Returns its path."""
    os.makedirs(folder)
    _write(folder, "files", {file: for_compiler(text, not plain) for file, text in files.items()})
    _write(folder, "host", HOST_HEADERS)
    _write(folder, "unit", {"unit.cpp": translation_unit(source, name, entries, files, plain)})
    includes = ["-iquote", "files", "-I", "files", "-I", str(INCLUDE), "-I", "host", "-include", "cuda_on_host.h"]
    mapped = [f"-fdebug-prefix-map={folder}/files={SOURCE_ROOT[:-1]}", f"-fdebug-prefix-map={folder}={SOURCE_ROOT[:-1]}"]
    first, second, corrected = (["-emit-llvm"], _OF_IR, in_intermediate_code) if _is_clang() else ([], [], in_assembly)
    made, text = os.path.join(folder, "unit.o"), os.path.join(folder, "unit.ll" if _is_clang() else "unit.s")
    _call([*compiler()[0], *flags, *includes, *mapped, "-S", *first, "unit/unit.cpp", "-o", text], folder, name)
    written = Path(text).read_bytes().decode(errors="surrogateescape")
    Path(text).write_bytes(corrected(written).encode(errors="surrogateescape"))
    _call([*compiler()[0], *second, "-c", text, "-o", made], folder, name)
    return made


def _objects(
    folder: str, source: str, name: str, entries: Sequence[str], files: Mapping[str, str], options: Sequence[str], flags: Sequence[str]
) -> str:
    """As it is; or else, if there is host code in it that could be why it does not compile, without that. What is no shift may have been
    taken for one: so the last attempt is plain, and its error is the one to show."""
    texts = [source, *files.values()]
    try:
        return _compile(os.path.join(folder, "whole"), name, source, entries, files, flags, False)
    except InterpretError as error:
        last, blanked = error, blank(texts)
    rest = dict(zip(files, blanked[1:]))
    is_plain = not any(mark(text) != text or "__launch_bounds__" in text for text in blanked)
    for plain in [*([False] if blanked != texts else []), *([] if is_plain else [True])]:
        try:
            return _compile(os.path.join(folder, f"device-{plain}"), name, blanked[0], entries, rest, flags, plain)
        except InterpretError as error:
            last = error
    raise explained(last, source, name, entries, files, options) from None


def compile_kernel(
    source: str, name: str, entries: Sequence[str], files: Mapping[str, str], options: Sequence[str], instrumented: bool
) -> Path:
    """The shared object of kernels of a source, made now or before."""
    runtime = compile_runtime()
    flags = [*_COMMON, *_translate(options), "-O1", "-fvisibility=hidden", "-fvisibility-inlines-hidden"]
    flags += [*_CLANG_PLAIN, *FLAGS_OF_CLANG] if _is_clang() else [*_GCC_PLAIN, *FLAGS_OF_GCC]
    flags += [*_pattern(), *(f"-fno-builtin-{name}" for name in _HEAP)]
    flags += _instrumentation(instrumented)
    flags.append(SAVED)  # also so that no object is found that was kept without being looked at
    texts = [translation_unit(source, name, entries, files), *(t for item in sorted(files.items()) for t in item)]
    path = directory() / f"kernel-{_key(str(runtime), *flags, *texts)}.so"
    if is_mine(path):
        os.utime(path)
        return path
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        thing = _objects(folder, source, name, entries, files, options, flags)
        refuse_switches(Path(thing), runtime, name)
        made = os.path.join(folder, "kernel.so")
        dynamic = [f"-Wl,--defsym={symbol}=kops_host_dynamic" for symbol in dynamic_names(Path(thing).read_bytes())]
        wrapped = [f"-Wl,--wrap={symbol}" for symbol in (*_WRAPPED, *(_COPIES if instrumented else ()))]
        link = ["-shared", "-Wl,-z,now", "-Wl,-z,defs", "-Wl,-Bsymbolic", thing, str(runtime), *dynamic, *wrapped]
        _call([*compiler()[0], *link, "-o", made], folder, name)
        _keep(made, path)
    return path
