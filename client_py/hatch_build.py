"""Puts the compiled extension into the wheel when KOPS_NATIVE_FILE names it; without it the wheel is pure Python."""

from __future__ import annotations

import os
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        path = os.environ.get("KOPS_NATIVE_FILE")
        if not path:
            return
        if not os.path.isfile(path):
            raise FileNotFoundError(f"KOPS_NATIVE_FILE names no file: {path}")
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["force_include"][os.path.abspath(path)] = "kops/_native.abi3.so"
        build_data["pure_python"] = False
        build_data["tag"] = f"cp310-abi3-{platform}"
