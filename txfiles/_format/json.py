"""JSON documents as people expect them in a file: UTF-8, indented by 2, a final newline; nothing lost in silence."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from typing import TYPE_CHECKING, Any

import orjson

from txfiles.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    Default = Callable[[Any], Any] | None
    Indent = int | str | None

_BOM = b"\xef\xbb\xbf"
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_MARGIN = re.compile(rb"^(?:  )+", re.MULTILINE)


def dumps(value: Any, indent: Indent, shown: str, *, default: Default = None, option: int | None = None) -> bytes:
    """Serialise. Raises `DocumentError` for what JSON cannot hold or would hold as something else.

    `indent` is that of the standard library's `json.dumps`, `default` and `option` are those of `orjson.dumps`.
    """
    unit = check_indent(indent)
    option = option or 0
    made: list[Any] = []

    def hook(item: Any) -> Any:
        assert default is not None
        made.append(default(item))
        return made[-1]

    flags = option | orjson.OPT_APPEND_NEWLINE | (0 if unit is None else orjson.OPT_INDENT_2)
    try:
        data = orjson.dumps(value, None if default is None else hook, flags)
    except (TypeError, ValueError, RecursionError) as error:
        why = f"{error}" if default is None or error.__cause__ is None else f"{error}: {error.__cause__}"
        raise DocumentError(f"{shown!r} cannot be written as JSON: {why}", path=shown) from None
    if b"null" in data and (bad := _not_finite([value, made])) is not None:  # orjson writes NaN and infinities as null
        raise DocumentError(f"{shown!r} cannot be written as JSON: {bad!r} is not a JSON number", path=shown)
    if option & orjson.OPT_NON_STR_KEYS and (twice := _key_twice(data)) is not None:
        raise DocumentError(f"{shown!r} cannot be written as JSON: {twice!r} would be a key twice", path=shown)
    if unit is None or unit == b"  ":
        return data
    return _MARGIN.sub(lambda margin: unit * (len(margin[0]) // 2), data)


def check_indent(indent: Indent) -> bytes | None:
    """What a line is indented by for each level; `None` for one line. Raises `ValueError`."""
    if indent is None:
        return None
    if isinstance(indent, str) and not indent.strip(" \t"):
        return indent.encode()
    if isinstance(indent, int) and not isinstance(indent, bool) and indent >= 0:
        return b" " * indent
    raise ValueError(f"indent is a number of spaces, a str of blanks and tabs, or None; not {indent!r}")


def _not_finite(value: Any) -> float | None:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                return item
        elif isinstance(item, dict):
            todo.extend(item.values())
        elif isinstance(item, (list, tuple)):
            todo.extend(item)
        elif isinstance(item, enum.Enum):
            todo.append(item.value)
        elif dataclasses.is_dataclass(item) and not isinstance(item, type):
            todo.extend(getattr(item, f.name) for f in dataclasses.fields(item))
        elif type(item).__module__ == "numpy":  # arrays and numbers, with OPT_SERIALIZE_NUMPY
            todo.append(item.tolist())
    return None


def _key_twice(data: bytes) -> str | None:
    """A key that one object has twice: 1 and "1" become the same."""
    found: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found.append(key)
            seen.add(key)

    json.loads(data, object_pairs_hook=look)
    return found[0] if found else None


def loads(data: bytes, shown: str) -> Any:
    """Parse. Raises `DocumentError` with the path. Integers of any size stay exact; a byte order mark is no content."""
    data = data.removeprefix(_BOM)
    try:
        if _LONG_NUMBER.search(data):
            return _loads_exactly(data)
        return orjson.loads(data)
    except (ValueError, RecursionError) as error:
        what = "is empty" if not data.strip() else f"is not valid JSON: {error}"
        raise DocumentError(f"{shown!r} {what}", path=shown) from None


def _loads_exactly(data: bytes) -> Any:
    """With the standard library: orjson reads an integer beyond 64 bits as a float."""
    orjson.loads(data)  # the stricter parser judges, this one only keeps the digits

    return json.loads(data)
