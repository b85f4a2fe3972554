"""Whether what a block that is not run names is there: attributes and keywords of the Python client, commands and options."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client_py"), str(ROOT / "tests")]

import kops  # noqa: E402
from support.daemon import binary  # noqa: E402

# Programs of the system that the pages tell people to run: those who write another down here have looked at its manual.
OF_THE_SYSTEM = {
    "apt", "cc", "cd", "cp", "curl", "docker", "echo", "export", "install", "kubectl", "ln", "man",
    "nvidia-cuda-mps-control", "pip", "podman", "pytest", "python", "python3", "sudo", "systemctl", "systemd-sysusers",
    "systemd-tmpfiles", "usermod",
}  # fmt: skip
# Names that the pages use for a client.
CLIENTS = {"k": kops.Client}


# ---- Python ----


def chain(node: ast.AST) -> list[str] | None:
    """["k", "ops"] of `k.ops`; None for what begins otherwise than with a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := chain(node.value)):
        return [*before, node.attr]
    return None


def look_up(names: list[str]) -> tuple[Any, str | None]:
    """What a chain of names stands for, as far as can be known, or the name that is missing."""
    if names[0] == "kops":
        found: Any = kops
    elif names[0] in CLIENTS:
        found = CLIENTS[names[0]]
    else:
        return None, None
    for name in names[1:]:
        if found is kops and name in ("ray", "torch") and importlib.util.find_spec(name) is None:
            return None, None  # it cannot be imported
        if isinstance(found, property) or not (inspect.ismodule(found) or inspect.isclass(found)):
            return None, None  # of an instance
        if not hasattr(found, name):
            known = getattr(found, "__annotations__", {})
            return None, None if name in known else ".".join(names)
        found = inspect.getattr_static(found, name) if inspect.isclass(found) else getattr(found, name)
    return found, None


def wrong_in_python(text: str) -> Iterator[str]:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (names := chain(node)):
            missing = look_up(names)[1]
            if missing:
                yield f"there is no {missing}"
        if isinstance(node, ast.Call) and (names := chain(node.func)):
            found = look_up(names)[0]
            if not callable(found):
                continue
            parameters = inspect.signature(found).parameters.values()
            if any(p.kind is p.VAR_KEYWORD for p in parameters):
                continue
            known = {p.name for p in parameters}
            yield from (f"{'.'.join(names)}() has no {k.arg}=" for k in node.keywords if k.arg and k.arg not in known)


# ---- shells ----


@cache
def help_of(*command: str) -> str:
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return done.stdout + done.stderr


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a script, without assignments before them."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&<>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        for token in [*lexer, ";"]:
            if set(token) <= set(";|&"):
                if words:
                    yield words
                words = []
            elif (words or not re.match(r"^\w+=", token)) and not set(token) <= set("<>"):
                words.append(token)


def options_of(words: list[str]) -> list[str]:
    return [m[0] for word in words if (m := re.match(r"--?[A-Za-z][\w-]*", word))]


def unknown_options(words: list[str], known: str) -> Iterator[str]:
    for option in options_of(words):
        if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", known):
            yield f"{' '.join(words)}: there is no {option}"


def make_targets() -> str:
    return " ".join(re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def wrong_in_command(words: list[str]) -> Iterator[str]:
    name, rest = words[0], words[1:]
    base = name.rsplit("/", 1)[-1]
    if base == "kopsctl":
        sub = next((word for word in rest if not word.startswith("-") and word.isalpha()), None)
        known = help_of(str(binary("kopsctl")), *([sub] if sub else []))
        if known.startswith("kopsctl: ") or (sub and f"kopsctl {sub}" not in known):
            yield f"{' '.join(words)}: kopsctl has no such command"
        else:
            yield from unknown_options(words, known + help_of(str(binary("kopsctl"))))
    elif base == "kopsd":
        yield from unknown_options(words, help_of(str(binary("kopsd"))))
    elif base == "make":
        for word in rest:
            if "=" not in word and not word.startswith("-") and word not in make_targets().split():
                yield f"make has no target {word}"
    elif (ROOT / name).is_file():
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
        yield from unknown_options(words, help_of(sys.executable, str(ROOT / name)) if "argparse" in text else text)
    elif base not in OF_THE_SYSTEM:
        yield f"{name}: neither of this tree nor a known program of the system"


def wrong_in_shell(text: str) -> Iterator[str]:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        yield done.stderr
        return
    for words in commands(text):
        yield from wrong_in_command(words)


def missing_files(text: str, page: Path) -> Iterator[str]:
    """Links of a page to what is not there, and to headings that are not there."""
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            yield f"link to {target}: no such file"
        elif anchor and anchor not in headings(path):
            yield f"link to {target}: no such heading"


def headings(path: Path) -> set[str]:
    found = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in found}
