"""Every code block of every page is tested, and every link leads somewhere: pages.py says how a block is marked."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import names  # noqa: E402
import pages  # noqa: E402
from pages import ROOT, Block  # noqa: E402
from standin_cuda import Control  # noqa: E402
from support import backends  # noqa: E402
from support.daemon import Daemon, build_folder, sanitized  # noqa: E402

BLOCKS = pages.all_blocks()
SECONDS = 120
WARNINGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]


class Folder:
    """Where the blocks of one page run, one after the other: it looks like the tree, with this build in its build folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for entry in ROOT.iterdir():
            if entry.name not in ("build", ".git"):
                (path / entry.name).symlink_to(entry)
        (path / "bin").mkdir()
        for name in ("python", "python3"):
            (path / "bin" / name).symlink_to(sys.executable)
        (path / "build").mkdir()
        for name in ("demo", "release"):
            (path / "build" / name).symlink_to(build_folder())

    def environment(self, daemon: Daemon | None) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("KOPS_SOCKET", "KOPSD_", "KOPS_CUDA"))}
        return {
            **kept,
            **({k: v for k, v in daemon.env.items() if k.startswith(("KOPS_STANDIN", "KOPS_CUDA"))} if daemon else {}),
            "KOPS_SOCKET": daemon.socket_path if daemon else str(self.path / "kopsd.sock"),
            "KOPSD_CACHE_DIRECTORY": str(self.path / "cache"),
            "HOME": str(self.path),
            "PYTHONPATH": str(ROOT / "client_py"),
            "PATH": f"{self.path}/bin:{build_folder()}/bin:{os.environ['PATH']}",
        }

    def run(self, command: list[str], daemon: Daemon | None) -> str:
        """What the block printed. What it started and left running is ended with it."""
        process = subprocess.Popen(
            command,
            cwd=self.path,
            env=self.environment(daemon),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            printed = process.communicate(timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed = process.communicate()[0]
            raise AssertionError(f"it does not end:\n{printed}") from None
        assert process.returncode == 0, printed
        return printed


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Folder]]:
    yield {page: Folder(tmp_path_factory.mktemp("page")) for page in {block.page for block in BLOCKS}}


@pytest.fixture(scope="module")
def host() -> Iterator[Daemon]:
    with Daemon(config=backends.config(backends.HOST)) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon | None]:
    """A daemon with the stand-in for a GPU that compiles; None where there is none."""
    if backends.missing(backends.STANDIN) or not backends.nvrtc():
        yield None
        return
    env = {**Control().env, "KOPS_CUDA_DRIVER": str(backends.standin_driver())}
    with Daemon(config=backends.config(backends.STANDIN), env=env) as daemon:
        yield daemon


def setup_text(name: str, suffix: str) -> str:
    return (HERE / "setups" / f"{name}{suffix}").read_text(encoding="utf-8")


# ---- one language each: what a block becomes, and whether it is right without being run ----


def check_python(block: Block) -> None:
    wrong = list(names.wrong_in_python(block.text))
    assert not wrong, wrong


def run_python(block: Block, folder: Folder, daemon: Daemon) -> None:
    kind = block.kind
    program = (setup_text(kind["setup"], ".py") if "setup" in kind else "") + block.text
    path = folder.path / kind.get("file", f"line_{block.line}.py")
    path.write_text(program, encoding="utf-8")
    folder.run([sys.executable, path.name], daemon)


def c_program(block: Block) -> str:
    if "int main(" in block.text:
        return block.text
    before, after = setup_text(block.kind.get("setup", "parts"), ".c").split("    /* the block */\n")
    includes = "".join(re.findall(r"^#include.*\n", block.text, re.MULTILINE))
    return includes + before + re.sub(r"^#include.*\n", "", block.text, flags=re.MULTILINE) + after


def compiler() -> str:
    return os.environ.get("CC", "cc")


def check_c(block: Block) -> None:
    """With what the block leaves out (declarations of the variables that it uses) it is a program that compiles."""
    done = subprocess.run(
        [compiler(), *WARNINGS, "-fsyntax-only", f"-I{ROOT}/client_c/include", "-x", "c", "-"],
        input=c_program(block),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def build_c(text: str, path: Path) -> list[str]:
    library = build_folder() / "client_c"
    path.with_suffix(".c").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [compiler(), *WARNINGS, f"-I{ROOT}/client_c/include", str(path.with_suffix(".c")), "-o", str(path), f"-L{library}",
         f"-Wl,-rpath,{library}", "-lkops", "-lm"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [str(path)]


def run_c(block: Block, folder: Folder, daemon: Daemon) -> None:
    if sanitized():
        pytest.skip("a program without the sanitizer cannot load this libkops")
    folder.run(build_c(c_program(block), folder.path / f"line_{block.line}"), daemon)


def check_sh(block: Block) -> None:
    wrong = list(names.wrong_in_shell(block.text))
    assert not wrong, wrong


# What a block may start when it runs here: nothing that changes the machine, whatever a page says.
HARMLESS = {"kopsd", "kopsctl", "python", "python3", "cc", "cd", "export", "echo"}
# Whoever types these waits for the daemon's first line before the next command.
WAIT = 'until [ -S "$KOPS_SOCKET" ]; do kill -0 $! && sleep 0.02; done'


def run_sh(block: Block, folder: Folder, daemon: Daemon) -> None:
    check_sh(block)
    others = {words[0] for words in names.commands(block.text) if words[0].rsplit("/", 1)[-1] not in HARMLESS}
    assert not others, f"not run here: {', '.join(sorted(others))}; mark the block with `doctest: check, REASON`"
    own = bool(re.search(r"\bkopsd\b.* &", block.text))
    script = re.sub(r"^(.*\bkopsd\b.*) &(\s*(#.*)?)$", rf"\1 &\n{WAIT}", block.text, flags=re.MULTILINE)
    script = "set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || :; wait' EXIT\n" + script
    folder.run(["bash", "-c", script], None if own else daemon)


def check_json(block: Block) -> None:
    json.loads(block.text)


def check_ini(block: Block) -> None:
    for line in block.text.splitlines():
        assert re.fullmatch(r"\s*|[#;].*|\[\w+( [\w.*-]+)?\]|\w+ ?= ?.*", line), line


def check_text(block: Block) -> None:
    """Drawings and lists: nothing that could be run."""


def run_cuda(block: Block, folder: Folder, daemon: Daemon) -> None:
    """A file for the blocks that follow, which run it."""
    (folder.path / block.kind["file"]).write_text(block.text, encoding="utf-8")


PACKAGES = {"torch": "PyTorch", "ray": "Ray"}
CHECKS = {
    "python": check_python, "c": check_c, "sh": check_sh, "json": check_json, "ini": check_ini, "text": check_text, "cuda": check_text,
}  # fmt: skip
RUNS = {"python": run_python, "c": run_c, "sh": run_sh, "cuda": run_cuda}


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_block(block: Block, folders: dict[str, Folder], host: Daemon, gpu: Daemon | None) -> None:
    assert block.problem is None, block.problem
    if block.language in ("python", "c"):
        CHECKS[block.language](block)
    if "reason" in block.kind or block.language not in RUNS:
        CHECKS[block.language](block)
    elif lacking := [name for name in PACKAGES if name in block.kind and importlib.util.find_spec(name) is None]:
        pytest.skip(f"{PACKAGES[lacking[0]]} is not installed: the block was checked, and not run")
    elif "connect_async" in block.text and "KOPS_NATIVE" not in os.environ:
        pytest.skip("asyncio needs the package's compiled part, which this build has not: the block was checked, and not run")
    elif "gpu" not in block.kind:
        RUNS[block.language](block, folders[block.page], host)
    elif gpu is not None:
        RUNS[block.language](block, folders[block.page], gpu)


@pytest.mark.parametrize("page", pages.pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links(page: Path) -> None:
    dead = list(names.missing_files(page.read_text(encoding="utf-8"), page))
    assert not dead, dead


# ---- the runner itself: what is wrong is found ----


def problems(page: str) -> list[str | None]:
    return [block.problem for block in pages.blocks_of(page, "page")]


def test_a_block_without_a_language_is_refused() -> None:
    assert problems("```\nmake\n```\n")[0] and not problems("```sh\nmake\n```\n")[0]
    assert problems("<!-- doctest: perhaps -->\n```sh\nmake\n```\n")[0]


@pytest.mark.parametrize(
    "text",
    ["k.ad(a, b)", "kops.Nothing", "k.add(a, b, timeing=True)", "kops.connect(sokcet=1)"],
)
def test_names_that_are_not_there_are_found_in_python(text: str) -> None:
    assert list(names.wrong_in_python(text))
    assert not list(names.wrong_in_python("c = k.add(a, b, timing=True)\nprint(k.info.devices[0], kops.connect(timeout=3))"))


@pytest.mark.parametrize(
    "text",
    ["kopsctl nonsense", "kopsctl run add --shap 3", "kopsd --dameon &", "make tests", "bench/nothing", "if x", "frobnicate -x"],
)
def test_names_that_are_not_there_are_found_in_shells(text: str) -> None:
    assert list(names.wrong_in_shell(text))
    assert not list(names.wrong_in_shell("kopsctl run add --shape 3 --check   # is there\nmake demo && kopsd --supervise &"))


def test_a_wrong_program_fails(tmp_path: Path, host: Daemon) -> None:
    block = Block("page", 1, "python", "import kops\nwith kops.connect() as k:\n    assert k.add([1.0], [2.0])[0] == 4\n", "")
    with pytest.raises(AssertionError):
        run_python(block, Folder(tmp_path), host)


def test_dead_links_are_found() -> None:
    page = ROOT / "README.md"
    assert list(names.missing_files("[x](nowhere.md), [y](README.md#no-such-heading)", page))
    assert not list(names.missing_files("[x](README.md#two-commands), `[0](x)`", page))


def test_there_are_blocks_and_they_run() -> None:
    """Were the pages not found, every other test would pass."""
    assert shutil.which("bash")
    running = [b for b in BLOCKS if b.language in RUNS and "reason" not in b.kind]
    assert len(BLOCKS) > 30 and len(running) > 10


def test_each_page_that_an_installed_page_links_is_installed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "deploy/pages"), str(tmp_path)], check=True)
    for page in tmp_path.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert ".md` in the source" not in text, page
        assert not list(names.missing_files(text, page)), page
