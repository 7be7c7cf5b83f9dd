"""Values of a declared type from plain ones (dict, list, str, numbers, dates) and back, each error with its place.

Dataclasses and attrs classes are walked here, by what their fields are declared as; classes of pydantic and msgspec are
left to their libraries, see `foreign`.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import datetime
import decimal
import enum
import math
import types
import typing
import uuid
from functools import partial
from pathlib import Path, PosixPath, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any

from txfiles._documents import foreign
from txfiles._documents.places import Misfit, below

if TYPE_CHECKING:
    from collections.abc import Callable

    Load = Callable[[Any, str], Any]  # a plain value and its place; raises `Misfit`

_LISTS: dict[Any, Any] = {list: list, tuple: tuple, set: set, frozenset: frozenset}
_LISTS |= {abc.Sequence: list, abc.MutableSequence: list, abc.Iterable: list, abc.Collection: list}
_LISTS |= {abc.Set: frozenset, abc.MutableSet: set}
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
_PARSED: dict[Any, Callable[[Any], Any]] = {
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    uuid.UUID: uuid.UUID,
    decimal.Decimal: decimal.Decimal,
    **{kind: kind for kind in (Path, PosixPath, PurePath, PurePosixPath)},
}


def loader(declared: Any) -> Load:
    """What makes a value of the type of a plain one. Raises `TypeError` for a type that a document cannot have."""
    return _Loaders().of(declared)


def dump(value: Any) -> Any:
    """The plain value: dicts, lists, strings, numbers, bools, dates, `None`; what cannot be made one of these stays."""
    if isinstance(value, enum.Enum):
        return dump(value.value)
    if foreign.dumps(value):
        return foreign.dump(value)
    if (fields := _fields(type(value))) is not None:
        return {field.name: dump(getattr(value, field.name)) for field in fields}
    if isinstance(value, abc.Mapping):
        return {_dump_key(key): dump(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [dump(item) for item in value]
    if isinstance(value, (uuid.UUID, decimal.Decimal, PurePath)):
        return str(value)
    return value


def has_type(value: Any) -> bool:
    """Whether it is of a class that can be the type of a document."""
    return foreign.dumps(value) or _fields(type(value)) is not None


def _dump_key(key: Any) -> Any:
    plain = dump(key)
    return str(plain) if type(plain) is int else plain


@dataclasses.dataclass(frozen=True)
class _Field:
    name: str  # in the document
    argument: str
    required: bool
    converts: bool = False  # whatever it is given


def _fields(cls: type) -> list[_Field] | None:
    """What a dataclass or an attrs class is made from; `None` for any other class."""
    if dataclasses.is_dataclass(cls):
        none = dataclasses.MISSING
        return [
            _Field(field.name, field.name, field.default is none and field.default_factory is none)
            for field in dataclasses.fields(cls)
            if field.init
        ]
    if (attributes := getattr(cls, "__attrs_attrs__", None)) is not None:
        return [
            _Field(each.name, each.alias, foreign.is_nothing(each.default), each.converter is not None)
            for each in attributes
            if each.init
        ]
    return None


def _keys(cls: Any) -> list[_Field]:
    """Those of a `TypedDict`. It does not itself see `Required[]` in annotations that are strings."""
    found = []
    for name, declared in typing.get_type_hints(cls, include_extras=True).items():
        said = typing.get_origin(declared)
        required = name in cls.__required_keys__ if said is not typing.NotRequired else False
        found.append(_Field(name, name, required or said is typing.Required))
    return found


class _Loaders:
    """Makes the loaders of a type and of all that it is made of; a class may be declared in terms of itself."""

    def __init__(self) -> None:
        self._made: dict[Any, Load] = {}

    def of(self, declared: Any) -> Load:
        if isinstance(declared, (typing.NewType, type(typing.TypeVar("T")))):
            return self.of(getattr(declared, "__supertype__", Any))
        if hasattr(declared, "__value__"):  # type X = ...
            return self.of(declared.__value__)
        if declared is Any or declared is object:
            return lambda value, place: value
        if declared is None or declared is type(None):
            return partial(_load_exact, type(None))
        origin, arguments = typing.get_origin(declared), typing.get_args(declared)
        if origin is typing.Annotated or origin in (typing.Required, typing.NotRequired):
            return self.of(arguments[0])
        if origin is typing.Union or origin is types.UnionType:
            return partial(_load_union, [self.of(argument) for argument in arguments], _shown(declared))
        if origin is typing.Literal:
            return partial(_load_literal, arguments)
        kind = origin or declared
        if kind in _LISTS:
            return self._of_list(kind, arguments)
        if kind in _DICTS:
            key, item = arguments or (Any, Any)
            return partial(_load_dict, self._of_key(key), self.of(item))
        if isinstance(kind, type):
            return self._of_class(kind, arguments)
        raise TypeError(f"{_shown(declared)} cannot be the type of a document, or of a part of one")

    def _of_list(self, kind: Any, arguments: tuple[Any, ...]) -> Load:
        if kind is tuple and arguments and arguments[-1] is not Ellipsis:
            return partial(_load_tuple, [self.of(argument) for argument in arguments if argument != ()])
        return partial(_load_list, _LISTS[kind], self.of(arguments[0] if arguments else Any))

    def _of_key(self, declared: Any) -> Load:
        if declared is int:
            return lambda key, place: _call(int, key, place, "a key that is an integer")
        return self.of(declared)

    def _of_class(self, cls: Any, arguments: tuple[Any, ...]) -> Load:
        if cls in (bool, int, str, bytes):
            return partial(_load_exact, cls)
        if cls is float:
            return _load_float
        if cls in _PARSED:
            return partial(_load_parsed, cls)
        if issubclass(cls, enum.Enum):
            return lambda value, place: _call(cls, value, place, f"one of {[dump(each) for each in cls]}")
        if (known := foreign.loader(cls, arguments)) is not None:
            return known
        if typing.is_typeddict(cls):
            return self._of_object(cls, arguments, _keys(cls))
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            return self._of_named_tuple(cls)
        if (fields := _fields(cls)) is not None:
            return self._of_object(cls, arguments, fields)
        raise TypeError(f"{cls.__qualname__} cannot be the type of a document, or of a part of one")

    def _of_named_tuple(self, cls: Any) -> Load:
        hints = _hints(cls)
        load = partial(_load_tuple, [self.of(hints.get(name, Any)) for name in cls._fields])
        return lambda value, place: cls(*load(value, place))

    def _of_object(self, cls: Any, arguments: tuple[Any, ...], fields: list[_Field]) -> Load:
        key = (cls, arguments)
        if key in self._made:
            return self._made[key]
        loads: dict[str, Load] = {}
        self._made[key] = partial(_load_object, cls, fields, loads)
        hints = _hints(cls)
        bound = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
        for field in fields:
            declared: Any = Any if field.converts else hints.get(field.name, Any)
            if open_ := getattr(declared, "__parameters__", ()):
                declared = declared[tuple(bound.get(each, Any) for each in open_)]
            loads[field.name] = self.of(bound.get(declared, declared))
        return self._made[key]


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except NameError as error:
        raise TypeError(f"the fields of {cls.__qualname__} cannot be resolved: {error}") from error


def _load_exact(cls: type, value: Any, place: str) -> Any:
    if isinstance(value, cls) and not (cls is int and isinstance(value, bool)):
        return value
    raise _expected(_shown(cls), value, place)


def _load_float(value: Any, place: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _call(float, value, place, "a number")  # type: ignore[no-any-return]
    raise _expected("float", value, place)


def _load_parsed(cls: type, value: Any, place: str) -> Any:
    if type(value) is cls or (cls is not datetime.date and isinstance(value, cls)):  # a datetime is no date
        return value
    if isinstance(value, str) or (cls is decimal.Decimal and type(value) in (int, float)):
        return _call(_PARSED[cls], str(value), place, f"a {cls.__name__}")
    raise _expected(_shown(cls), value, place)


def _call(make: Callable[[Any], Any], value: Any, place: str, what: str) -> Any:
    try:
        return make(value)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise Misfit(place, f"{value!r} is not {what}") from error


def _load_union(loads: list[Load], shown: str, value: Any, place: str) -> Any:
    """The first that fits without a change, or else the first that fits."""
    fitting = []
    deepest = _expected(shown, value, place)
    for load in loads:
        try:
            fitting.append(load(value, place))
        except Misfit as error:
            deepest = max(deepest, error, key=lambda misfit: len(misfit.place))
            continue
        if type(fitting[-1]) is type(value):
            return fitting[-1]
    if fitting:
        return fitting[0]
    raise deepest


def _load_literal(allowed: tuple[Any, ...], value: Any, place: str) -> Any:
    for each in allowed:
        plain = dump(each)
        if type(plain) is type(value) and plain == value:
            return each
    raise Misfit(place, f"{value!r} is none of {', '.join(map(repr, allowed))}")


def _load_list(make: Any, load: Load, value: Any, place: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _expected("list", value, place)
    items = [load(item, below(place, number)) for number, item in enumerate(value)]
    return items if make is list else _call(make, items, place, f"a {make.__name__}")


def _load_tuple(loads: list[Load], value: Any, place: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _expected("list", value, place)
    if len(value) != len(loads):
        raise Misfit(place, f"a list of {len(value)} where {len(loads)} were expected")
    return tuple(load(item, below(place, at)) for at, (load, item) in enumerate(zip(loads, value, strict=True)))


def _load_dict(load_key: Load, load: Load, value: Any, place: str) -> dict[Any, Any]:
    if not isinstance(value, abc.Mapping):
        raise _expected("dict", value, place)
    return {load_key(key, below(place, key)): load(item, below(place, key)) for key, item in value.items()}


def _load_object(make: Any, fields: list[_Field], loads: dict[str, Load], value: Any, place: str) -> Any:
    if not isinstance(value, abc.Mapping):
        raise _expected(make.__name__, value, place)
    arguments = {}
    for field in fields:
        if field.name in value:
            at = below(place, field.name)
            arguments[field.argument] = loads[field.name](value[field.name], at)
        elif field.required:
            raise Misfit(below(place, field.name), "is missing")
    if unknown := [key for key in value if key not in loads]:
        raise Misfit(below(place, unknown[0]), "is no field that is known")
    try:
        return make(**arguments)
    except (ValueError, TypeError, AssertionError) as error:  # of its own validation
        raise Misfit(place, str(error)) from error


def _expected(shown: str, value: Any, place: str) -> Misfit:
    found = repr(value) if isinstance(value, (float, int, str)) and len(repr(value)) < 60 else type(value).__name__
    if isinstance(value, float) and not math.isfinite(value):
        found = str(value)
    return Misfit(place, f"expected {shown}, found {'null' if value is None else found}")


def _shown(declared: Any) -> str:
    if declared is type(None):
        return "null"
    if isinstance(declared, type) and typing.get_origin(declared) is None:
        return declared.__qualname__
    return str(declared).replace("typing.", "")
