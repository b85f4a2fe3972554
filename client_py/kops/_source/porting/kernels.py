"""The kernels that a function of the host launches, and how they are declared in Python."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ..._base.errors import BadArgument
from ..signature import spelled
from ..source import Scan, signature
from ..tokens import Token
from ..types import C_NAMES
from .expressions import Names
from .words import C_TYPES, NotTranslated, Value


class _Use(NamedTuple):
    """A variable of the replacement, which is a kernel or kernels by dtype."""

    entry: str
    dtypes: tuple[str, ...]  # none: it is one kernel


class Kernels:
    """The kernels of one source. `how` is what all their declarations end with, `dtypes` those of the dispatch that is being translated."""

    def __init__(self, made: Scan, taken: Collection[str], how: str) -> None:
        self.made, self.taken, self.how = made, set(taken), how
        self.dtypes: list[str] = []
        self.uses: dict[_Use, str] = {}
        self._aliased: set[_Use] = set()
        self._templates = {kernel.name.rpartition("::")[2]: kernel.template is not None for kernel in made.kernels}

    def use(self, name: str, given: list[list[Token]], names: Names, arguments: list[Value], line: int) -> str:
        """What to call for a launch. Raises NotTranslated."""
        template = self._templates.get(name)
        if template is None:
            raise NotTranslated(line, f"`{name}` is no kernel of the source")
        if template and not given:
            raise NotTranslated(line, f"`{name}` is a template: write its arguments, `{name}<float><<<…>>>`")
        dtype, words = None, []
        for part in given:
            shown = spelled(part)
            if shown in names.types:
                dtype, shown = names.types[shown], "{type}"
            elif len(part) == 1 and (value := names.of_file(part[0])) is not None and value.kind == "int":
                shown = part[0].text  # a constant that the source has, too
            words.append({"at::Half": "__half", "c10::Half": "__half", "at::BFloat16": "__nv_bfloat16"}.get(shown, shown))
        use = _Use(f"{name}<{', '.join(words)}>" if given else name, tuple(self.dtypes) if dtype else ())
        variable = self.uses.get(use) or self._named(name, use)
        pointers = [value.text for value in arguments if value.kind in ("pointer", "tensor")]
        if len(set(pointers)) < len(pointers):
            self._aliased.add(use)
        return f"{variable}[{dtype}]" if dtype else variable

    def _named(self, name: str, use: _Use) -> str:
        variable = name
        while variable in self.taken:
            variable += "_kernel"
        self.taken.add(variable)
        self.uses[use] = variable
        return variable

    @property
    def entries(self) -> list[str]:
        """The entries of one kernel each; not those of a dispatch, of which a program may use one."""
        return [use.entry for use in self.uses if not use.dtypes]

    @property
    def halves(self) -> list[str]:
        """The headers that the kernels need for their types."""
        used = {dtype for use in self.uses for dtype in use.dtypes}
        return [header for dtype, header in (("float16", "cuda_fp16.h"), ("bfloat16", "cuda_bf16.h")) if dtype in used]

    def declarations(self, missing: list[tuple[int, str]]) -> list[str]:
        """Lines of Python that declare them."""
        lines = []
        for use, variable in self.uses.items():
            more = (", alias=True" if use in self._aliased else "") + self.how
            if use.dtypes:
                lines.append(f"{variable} = {{")
                for dtype in use.dtypes:
                    entry = use.entry.replace("{type}", C_TYPES[dtype])
                    lines.append(f"    torch.{dtype}: kops.kernel(source, {entry!r}{more}),")
                lines.append("}")
            else:
                lines.append(f"{variable} = kops.kernel(source, {use.entry!r}{self._signature(use.entry, missing)}{more})")
        return lines

    def _signature(self, entry: str, missing: list[tuple[int, str]]) -> str:
        try:
            params = signature(self.made, entry)
        except BadArgument as error:
            line = next((k.line for k in self.made.kernels if k.name.rpartition("::")[2] == entry.partition("<")[0]), 0)
            missing.append((line, f"{error.message}"))
            return ""
        if "<" in entry or any(param.align or param.lanes > 1 for param in params):
            return ""
        shown = []
        for param in params:
            const = "const " if param.kind == "in" else ""
            shown.append(f"{const}{C_NAMES[param.dtype]}{'*' if param.is_tensor else ''} {param.name}")
        return f", {', '.join(shown)!r}"
