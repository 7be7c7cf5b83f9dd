"""New values written over those of a parsed file whose comments are to stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge(into: Any, value: Any) -> Any:
    """`into` with the values of `value`: what is the same in both is not touched, and so keeps its comments."""
    if isinstance(into, dict) and isinstance(value, Mapping):
        for key in [key for key in into if key not in value]:
            del into[key]
        for key, item in value.items():
            _put(into, key, merge(into[key], item) if key in into else item)
        return into
    if isinstance(into, list) and isinstance(value, (list, tuple)):
        del into[len(value) :]
        for at, item in enumerate(value):
            if at < len(into):
                _put(into, at, merge(into[at], item))
            else:
                into.append(item)
        return into
    return into if _kind(into) is _kind(value) and into == value else value


def _put(into: Any, key: Any, value: Any) -> None:
    if not (key in into if isinstance(into, dict) else key < len(into)) or into[key] is not value:
        into[key] = value


def _kind(value: Any) -> type:
    """The plain type of a value: libraries that keep how a number was written have types of their own."""
    return next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), type(value))
