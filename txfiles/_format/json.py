"""JSON documents as people expect them in a file: UTF-8, indented by 2, a final newline; nothing lost in silence."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from typing import Any

from txfiles.errors import DocumentError

_LONG_NUMBER = re.compile(rb"[0-9]{19}")


def dumps(value: Any, indent: int | None, shown: str) -> bytes:
    """Serialise. Raises `DocumentError` for what JSON cannot hold or would hold as something else."""
    if indent not in (None, 2):
        raise ValueError(f"indent is 2 or None, not {indent!r}")
    import orjson

    option = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if indent else 0)
    try:
        data = orjson.dumps(value, option=option)
    except (TypeError, ValueError, RecursionError) as error:
        raise DocumentError(f"{shown!r} cannot be written as JSON: {error}", path=shown) from None
    if b"null" in data and (bad := _not_finite(value)) is not None:  # orjson writes NaN and infinities as null
        raise DocumentError(f"{shown!r} cannot be written as JSON: {bad!r} is not a JSON number", path=shown)
    return data


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
    return None


def loads(data: bytes, shown: str) -> Any:
    """Parse. Raises `DocumentError` with the path. Integers of any size stay exact integers."""
    import orjson

    try:
        if _LONG_NUMBER.search(data):
            return _loads_exactly(data)
        return orjson.loads(data)
    except (ValueError, RecursionError) as error:
        what = "is empty" if not data.strip() else f"is not valid JSON: {error}"
        raise DocumentError(f"{shown!r} {what}", path=shown) from None


def _loads_exactly(data: bytes) -> Any:
    """With the standard library: orjson reads an integer beyond 64 bits as a float."""
    import json

    import orjson

    orjson.loads(data)  # the stricter parser judges, this one only keeps the digits

    return json.loads(data)
