"""Extensions of setup.py: `CUDAExtension` and `BuildExtension` in place of torch's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import Extension as _Extension
from setuptools.command.build_ext import build_ext

from .._companions import checked_fallback, inline
from . import compile as _compile

__all__ = ["CUDA_HOME", "BuildExtension", "CUDAExtension", "CppExtension", "opened"]

_MODULE = '''"""Functions of C++, which kops.BuildExtension has put here as source: an import compiles it where it was not compiled yet."""

from kops.extension.building import opened as _opened

globals().update(_opened({arguments!r}))
'''


def CUDAExtension(name: str, sources: Any, *arguments: Any, **how: Any) -> Any:
    """As torch.utils.cpp_extension.CUDAExtension; `extra_compile_args` may have "cxx" and "nvcc"."""
    how.pop("dlink", None), how.pop("dlink_libraries", None)
    return _Extension(name, [os.fspath(source) for source in sources], *arguments, **how)


CppExtension = CUDAExtension
CUDA_HOME = os.environ.get("CUDA_HOME", "/usr/local/cuda")  # there may be none: only programs ask


class BuildExtension(build_ext):  # type: ignore[misc]
    """As torch's, the `build_ext` of a setup.py. It makes a module of Python with the sources in it, after they compiled."""

    @classmethod
    def with_options(cls, **options: Any) -> type[BuildExtension]:
        """torch's options, such as use_ninja, have no meaning here."""
        return cls

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".py"

    def build_extension(self, ext: Any) -> None:
        made = inline.gathered_setup(
            ext.name, ext.sources, ext.extra_compile_args, ext.define_macros, ext.include_dirs, ext.undef_macros
        )  # fmt: skip
        _compile(inline.default_client(), **made)
        path = Path(self.get_ext_fullpath(ext.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_MODULE.format(arguments=made), encoding="utf-8", errors="surrogatepass")


def opened(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The functions of such a module."""
    made = _compile(inline.default_client(), **arguments, fallback=checked_fallback(None))
    return {name: getattr(made, name) for name in made}
