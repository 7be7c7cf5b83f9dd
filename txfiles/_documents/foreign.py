"""Classes of pydantic and msgspec: their own library validates and dumps them, as their own settings say.

The library is found among the modules that are loaded: whoever has a class of it has loaded it.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import sys
from typing import TYPE_CHECKING, Any

from txfiles._documents.places import Misfit, below

if TYPE_CHECKING:
    from collections.abc import Callable

_PLACE = re.compile(r"(.*) - at `(?:key` in `)?\$(.*)`", re.DOTALL)


def is_pydantic(cls: Any) -> bool:
    """A model or a dataclass of pydantic."""
    return "pydantic" in sys.modules and isinstance(cls, type) and hasattr(cls, "__pydantic_validator__")


def is_struct(cls: Any) -> bool:
    return "msgspec" in sys.modules and isinstance(cls, type) and issubclass(cls, sys.modules["msgspec"].Struct)


def is_nothing(default: object) -> bool:
    """Whether it is what attrs has where there is no default."""
    return default is sys.modules["attr"].NOTHING


def loader(cls: Any, arguments: tuple[Any, ...]) -> Callable[[Any, str], Any] | None:
    """What makes an instance of a plain value, or raises `Misfit`; `None` for a class of neither library."""
    declared = cls[arguments] if arguments else cls
    if is_pydantic(cls):
        return functools.partial(_load_pydantic, _adapter(declared))
    if is_struct(cls):
        return functools.partial(_load_struct, declared)
    return None


def dumps(value: Any) -> bool:
    """Whether `dump` knows the class of the value."""
    return is_pydantic(type(value)) or is_struct(type(value))


def dump(value: Any) -> Any:
    cls: Any = type(value)
    if is_struct(cls):
        return sys.modules["msgspec"].to_builtins(value, str_keys=True)
    return _adapter(cls).dump_python(value, mode="json", by_alias=True, round_trip=True, warnings="none")


@functools.lru_cache(maxsize=256)
def _adapter(cls: type) -> Any:
    return sys.modules["pydantic"].TypeAdapter(cls)


def _load_pydantic(adapter: Any, value: Any, place: str) -> Any:
    """From JSON, in which a strict model, too, takes a date from a string."""
    try:
        return adapter.validate_json(json.dumps(value, default=_to_json))
    except ValueError as error:
        if not hasattr(error, "errors"):
            raise Misfit(place, str(error)) from error
        first, *more = error.errors()
        at = functools.reduce(below, first["loc"], place)
        others = f" (and {len(more)} more)" if more else ""
        raise Misfit(at, f"{first['msg']}{others}") from error


def _load_struct(cls: type, value: Any, place: str) -> Any:
    msgspec = sys.modules["msgspec"]
    try:
        return msgspec.convert(value, cls, str_keys=True)
    except msgspec.ValidationError as error:
        found = _PLACE.fullmatch(str(error))
        raise Misfit(place + found[2] if found else place, found[1] if found else str(error)) from error


def _to_json(value: Any) -> Any:
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    raise ValueError(f"{value!r} is no value of JSON")
