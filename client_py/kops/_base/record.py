"""Results of the daemon as frozen dataclasses; records.py has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, ClassVar, TypeAlias, TypeVar

Converters: TypeAlias = Mapping[str, Callable[[Any], Any]]
_R = TypeVar("_R", bound="Record")


def known(cls: Any, reply: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a reply that a dataclass has; those of a newer daemon are left out."""
    names = {f.name for f in fields(cls)}
    return {key: value for key, value in reply.items() if key in names}


def _same(value: Any) -> Any:
    return value


def several(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda values: tuple(map(read, values))


def named(lists: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(values) for name, values in lists.items()}


class Record:
    _converted: ClassVar[Converters] = {}

    @classmethod
    def read(cls: type[_R], reply: Mapping[str, Any]) -> _R:
        """From the wire; keys that are not known here are left out."""
        return cls(**{key: cls._converted.get(key, _same)(value) for key, value in known(cls, reply).items()})
