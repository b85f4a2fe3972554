"""Writes deploy/kopsd.conf anew from what a built kopsd prints: tools/example_config.py build/dev/bin/kopsd

Its head and the values of settings that are found at start stay as they are there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "deploy" / "kopsd.conf"
MACHINES_OWN = {"server.socket", "server.spin_us", "kernels.helpers", "cache.directory", "quota.fds"}
MACHINES_OWN |= {"quota.host_mib", "quota.host_all_mib"}


def values(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            section = heading[1]
        elif entry := re.fullmatch(r";(\w+) =\s*(.*)", line):
            found[f"{section}.{entry[1]}"] = entry[2]
    return found


def example(old: str, printed: str) -> str:
    kept = values(old)
    lines = [old[: old.index("\n[")].rstrip("\n"), ""]
    section = ""
    for line in printed.splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            section = heading[1]
        if entry := re.fullmatch(r";?(\w+) =\s*(.*)", line):
            name = f"{section}.{entry[1]}"
            value = kept.get(name, entry[2]) if name in MACHINES_OWN or not entry[2] else entry[2]
            lines.append(f";{entry[1]} = {value}".rstrip())
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    command = [sys.argv[1], "--config", "/dev/null", "--print-config"]
    printed = subprocess.run(command, env={}, check=True, capture_output=True, text=True).stdout
    EXAMPLE.write_text(example(EXAMPLE.read_text(encoding="utf-8"), printed), encoding="utf-8")


if __name__ == "__main__":
    main()
