#!/usr/bin/env python3
"""No large circles: `cycles.py BUILD [--print FOLDER]`.

Files that use each other's functions and variables in a circle cannot be understood, tested or moved one by one. This
finds the circles of the product's C files, by the symbols of their objects in BUILD, and of the Python package's modules,
by their imports, those within functions included. A circle of more than MOST files is a finding.

--print FOLDER prints who uses what of whom below it, and the size of its largest circle.

Exit status: 0 clean, 1 findings, 77 nm is missing.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = 4
NO_PRODUCT = re.compile(r"(tests|bench|proto/golden)/|/(examples|lab)/")
Graph = dict[str, dict[str, set[str]]]  # file → the files that it uses → what it uses of them


def objects(build: Path) -> dict[str, Path]:
    """Objects of product files, by source; one of those that were compiled more than once."""
    found: dict[str, Path] = {}
    for path in sorted(build.rglob("*.c.o")):
        inside = re.search(r"^(.*?)/?CMakeFiles/[^/]+\.dir/(.*)\.o$", str(path.relative_to(build)))
        if not inside:
            continue
        source = os.path.normpath(os.path.join(inside.group(1), inside.group(2).replace("__", "..")))
        if (ROOT / source).exists() and not NO_PRODUCT.search(source):
            found.setdefault(source, path)
    return found


def symbols_of(objects: dict[str, Path]) -> dict[str, list[tuple[str, str]]]:
    """Name and kind of each symbol, by source: one nm for all objects, which puts `path: ` before each line."""
    found: dict[str, list[tuple[str, str]]] = {source: [] for source in objects}
    sources = {str(path): source for source, path in objects.items()}
    done = subprocess.run(["nm", "-P", "-A", *sources], text=True, capture_output=True, check=True)
    for line in done.stdout.splitlines():
        path, _, symbol = line.partition(": ")
        name, kind = symbol.split()[:2]
        found[sources[path]].append((name, kind))
    return found


def uses_of_objects(build: Path) -> Graph:
    """The graph of C files. A name that several files define is that of the same folder, or nobody's."""
    defined: dict[str, set[str]] = {}
    wanted: dict[str, set[str]] = {}
    for source, symbols in symbols_of(objects(build)).items():
        wanted[source] = set()
        for name, kind in symbols:
            if kind == "U":
                wanted[source].add(name)
            elif kind in "TDBRC":
                defined.setdefault(name, set()).add(source)
    graph: Graph = {source: {} for source in wanted}
    for source, names in wanted.items():
        for name in names:
            owners = defined.get(name, set())
            near = {o for o in owners if os.path.dirname(o) == os.path.dirname(source)} or owners
            if len(near) == 1 and source not in near:
                graph[source].setdefault(next(iter(near)), set()).add(name)
    return graph


def uses_of_modules(package: Path) -> Graph:
    """The graph of the package's modules. A package's __init__ that only hands names on is none of them."""
    modules: dict[str, str] = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = str(path.relative_to(ROOT))
    graph: Graph = {path: {} for path in modules.values()}
    for module, path in modules.items():
        inside = module if path.endswith("__init__.py") else module.rpartition(".")[0]
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            for target in imported(node, inside):
                while target and target not in modules:
                    target = target.rpartition(".")[0]
                other = modules.get(target)
                if other and other != path and not other.endswith("/__init__.py"):
                    graph[path].setdefault(other, set()).add(target)
    return graph


def imported(node: ast.AST, inside: str) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = ".".join(inside.split(".")[: len(inside.split(".")) - node.level + 1]) if node.level else ""
    start = ".".join(part for part in (base, node.module) if part)
    return [f"{start}.{alias.name}" for alias in node.names]


def circles(graph: Graph) -> list[list[str]]:
    """Strongly connected components of more than one file, the largest first (R. Tarjan, Depth-first search and linear
    graph algorithms, 1972; here without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(graph[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            node, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    work.append((other, iter(graph[other])))
                    break
                if other in stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    found.append(stack[at:])
                    del stack[at:]
    return sorted((circle for circle in found if len(circle) > 1), key=len, reverse=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Finds circles of files that use each other.")
    parser.add_argument("build", type=Path)
    parser.add_argument("--print", metavar="FOLDER", default=None)
    args = parser.parse_args()
    if not shutil.which("nm"):
        print("skipped: nm is missing")
        return 77
    graph = uses_of_objects(args.build.resolve()) | uses_of_modules(ROOT / "client_py" / "kops")
    if args.print is not None:
        inside = {f: {o: n for o, n in g.items() if o.startswith(args.print)} for f, g in graph.items()}
        inside = {f: g for f, g in inside.items() if f.startswith(args.print)}
        for source, uses in sorted(inside.items()):
            print(source, *(f"\n    {other}: {', '.join(sorted(names))}" for other, names in sorted(uses.items())))
        print("largest circle:", max((len(c) for c in circles(inside)), default=1), "of", len(inside))
        return 0
    large = [circle for circle in circles(graph) if len(circle) > MOST]
    for circle in large:
        print(f"{len(circle)} files use each other in a circle, more than {MOST}:", *sorted(circle))
    print(f"lint cycles: {len(large)} findings in {len(graph)} files")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
