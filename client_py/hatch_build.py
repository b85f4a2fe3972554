"""Puts the compiled extension into the wheel when KOPS_NATIVE_FILE names it; without it the wheel is pure Python."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def find(name: str, source: str) -> str:
    """The absolute path of a file that whoever called pip named from the folder that they were in. pip builds in `source`, and
    only PWD still says where it was started; the top of the source tree is the other place that is meant."""
    folders = [os.environ.get("PWD", ""), str(Path(source).parent), os.getcwd()]
    for folder in folders:
        path = Path(folder, name)
        if path.is_file():
            return str(path.resolve())
    looked = ", ".join(dict.fromkeys(folder for folder in folders if folder))
    raise FileNotFoundError(f"KOPS_NATIVE_FILE={name}: no such file, seen from {looked}; give its absolute path")


class NativeHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        name = os.environ.get("KOPS_NATIVE_FILE")
        if not name:
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["force_include"][find(name, self.root)] = "kops/_native.abi3.so"
        build_data["pure_python"] = False
        build_data["tag"] = f"cp310-abi3-{platform}"
