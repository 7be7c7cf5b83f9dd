"""How a document is written: JSON, YAML, TOML, text, bytes, or a pair of functions."""

from __future__ import annotations

import importlib
import io
import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txfiles._documents.merging import merge
from txfiles._format import json
from txfiles.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable

_BOM = b"\xef\xbb\xbf"


class CommentsLostWarning(UserWarning):
    """A document was written without the comments of the file that it replaces: the new value has no place for them."""


class Codec:
    """A pair of functions: `loads` makes a value of the bytes of a file, `dumps` makes bytes (or a `str`) of a value.

    What the functions raise becomes a `DocumentError`, but for `OSError` and `MemoryError`.

    >>> rows = Codec(lambda data: data.decode().split(), " ".join, suffix=".txt")
    """

    has_null: bool = True

    def __init__(self, loads: Callable[[bytes], Any], dumps: Callable[[Any], bytes | str], *, suffix: str = "") -> None:
        """The functions are called when a document is read or written.

        Args:
            suffix: what the name of a document without a dot gets, `".dat"` or nothing.
        """
        self._loads = loads
        self._dumps = dumps
        self.suffix: str = suffix

    def read(self, data: bytes, shown: str) -> Any:
        """The value. Raises `DocumentError`."""
        try:
            return self._loads(data)
        except Exception as error:
            raise _failed(error, f"{shown!r} cannot be read", shown) from error

    def read_plain(self, data: bytes, shown: str) -> Any:
        """The value in types of Python alone."""
        return self.read(data, shown)

    def write(self, value: Any, shown: str, over: bytes | None = None) -> bytes:
        """The bytes of a file with the value; written over another file, its comments stay. Raises `DocumentError`."""
        try:
            data = self._dumps(value)
            return data.encode() if isinstance(data, str) else bytes(data)
        except Exception as error:
            raise _failed(error, f"{shown!r} cannot be written", shown) from error

    def same(self, one: Any, other: Any, shown: str) -> bool:
        """Whether two values are one document."""
        return self.write(one, shown) == self.write(other, shown)


def _failed(error: Exception, what: str, shown: str) -> Exception:
    if isinstance(error, (OSError, MemoryError, DocumentError)):
        return error
    why = " ".join(str(error).split()) or type(error).__name__
    return DocumentError(f"{what}: {why}", path=shown)


class Json(Codec):
    """JSON in UTF-8, with a final newline."""

    def __init__(
        self,
        *,
        indent: int | str | None = 2,
        default: Callable[[Any], Any] | None = None,
        option: int | None = None,
    ) -> None:
        """The arguments are those of `FileTransaction.write_json`. Raises `ValueError` for what is no indent."""
        json.check_indent(indent)
        self._how: Any = {"default": default, "option": option}
        self._indent = indent
        self.suffix: str = ".json"

    def read(self, data: bytes, shown: str) -> Any:
        return json.loads(data, shown)

    def write(self, value: Any, shown: str, over: bytes | None = None) -> bytes:
        return json.dumps(value, self._indent, shown, **self._how)

    def same(self, one: Any, other: Any, shown: str) -> bool:
        """For Python 1, 1.0 and True are equal. Of any depth, and with numbers that could not be written."""
        todo = [(one, other)]
        while todo:
            a, b = todo.pop()
            if type(a) is not type(b):
                return False
            if isinstance(a, dict):
                if list(a) != list(b):
                    return False
                todo.extend(zip(a.values(), b.values(), strict=True))
            elif isinstance(a, list):
                if len(a) != len(b):
                    return False
                todo.extend(zip(a, b, strict=True))
            elif isinstance(a, float):
                if a != b or math.copysign(1, a) != math.copysign(1, b):
                    return False
            elif isinstance(a, (str, int, type(None))):
                if a != b:
                    return False
            elif self.write(a, shown) != self.write(b, shown):
                return False
        return True


class Yaml(Codec):
    """YAML 1.2 in UTF-8, with the extra `yaml`. A value that was loaded keeps its comments and quotes."""

    def __init__(self) -> None:
        """Raises `ImportError` without the extra."""
        self._ruamel = _library("ruamel.yaml", "yaml")
        self.suffix: str = ".yaml"

    def _parser(self, kind: str) -> Any:
        parser = self._ruamel.YAML(typ=kind, pure=True)
        parser.preserve_quotes = True
        parser.width = 1 << 20  # no line is folded
        return parser

    def read(self, data: bytes, shown: str) -> Any:
        return self._read(data, shown, "rt")

    def read_plain(self, data: bytes, shown: str) -> Any:
        return self._read(data, shown, "safe")

    def _read(self, data: bytes, shown: str, kind: str) -> Any:
        try:
            documents = list(self._parser(kind).load_all(data.decode("utf-8-sig")))
        except Exception as error:
            raise _failed(error, f"{shown!r} is not valid YAML", shown) from error
        if len(documents) != 1:
            raise DocumentError(f"{shown!r} holds {len(documents) or 'no'} documents, not one", path=shown)
        return documents[0]

    def write(self, value: Any, shown: str, over: bytes | None = None) -> bytes:
        return _with_comments(
            over, lambda over: self._over(over, value, shown), lambda: self._anew(value, shown), shown
        )

    def _anew(self, value: Any, shown: str) -> bytes:
        try:
            _require_characters(value)
            return self._written(value)
        except Exception as error:
            raise _failed(error, f"{shown!r} cannot be written as YAML", shown) from error

    def _over(self, over: bytes, value: Any, shown: str) -> bytes:
        data = self._written(merge(self.read(over, shown), value))
        if self.read_plain(data, shown) != value:  # a part that is there twice by an alias changes in both places
            raise ValueError("it would be read as another value")
        return data

    def _written(self, value: Any) -> bytes:
        out = io.BytesIO()
        self._parser("rt").dump(value, out)
        return out.getvalue()


class Toml(Codec):
    """TOML 1.0, with the extra `toml`. A value that was loaded keeps its comments. There is no null."""

    has_null: bool = False

    def __init__(self) -> None:
        """Raises `ImportError` without the extra."""
        self._tomlkit = _library("tomlkit", "toml")
        self.suffix: str = ".toml"

    def read(self, data: bytes, shown: str) -> Any:
        self.read_plain(data, shown)  # the parser of the standard library judges, this one keeps the comments
        return self._tomlkit.parse(data.decode("utf-8-sig"))

    def read_plain(self, data: bytes, shown: str) -> Any:
        import tomllib

        try:
            return tomllib.loads(data.decode("utf-8-sig"))
        except Exception as error:
            raise _failed(error, f"{shown!r} is not valid TOML", shown) from error

    def write(self, value: Any, shown: str, over: bytes | None = None) -> bytes:
        if not isinstance(value, Mapping):
            raise DocumentError(f"{shown!r} cannot be written as TOML: it is no table", path=shown)
        return _with_comments(
            over, lambda over: self._over(over, value, shown), lambda: self._anew(value, shown), shown
        )

    def _anew(self, value: Any, shown: str) -> bytes:
        try:
            return self._written(value, value, shown)
        except Exception as error:
            raise _failed(error, f"{shown!r} cannot be written as TOML", shown) from error

    def _over(self, over: bytes, value: Any, shown: str) -> bytes:
        return self._written(merge(self.read(over, shown), value), value, shown)

    def _written(self, table: Any, value: Any, shown: str) -> bytes:
        data: bytes = self._tomlkit.dumps(table).encode()
        if _canonical(self.read_plain(data, shown)) != _canonical(value):
            raise ValueError("it would be read as another value")
        return data


class Text(Codec):
    """A `str` in UTF-8; newlines as they are."""

    def __init__(self) -> None:
        super().__init__(lambda data: data.decode("utf-8-sig"), _encode, suffix=".txt")


class Bytes(Codec):
    """Bytes as they are."""

    def __init__(self) -> None:
        super().__init__(bytes, _bytes)


def _with_comments(
    over: bytes | None, merged: Callable[[bytes], bytes], anew: Callable[[], bytes], shown: str
) -> bytes:
    """What `merged` makes; where it fails, `anew`, and a warning if there may have been comments to lose."""
    if over is None:
        return anew()
    try:
        return merged(over)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # of any kind: the libraries have kinds of their own
        failure = error
    data = anew()
    if b"#" in over:
        why = " ".join(str(failure).split()) or type(failure).__name__
        message = f"{shown!r} is written without the comments that it had, they cannot be kept: {why}"
        warnings.warn(CommentsLostWarning(message), stacklevel=2)
    return data


def _require_characters(value: Any) -> None:
    """Raise `UnicodeEncodeError` for half of a character, which YAML would write as an escape that nobody may read."""
    todo, seen = [value], set()
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            item.encode()
        elif isinstance(item, (Mapping, list, tuple)) and id(item) not in seen:
            seen.add(id(item))
            todo.extend(item)
            todo.extend(item.values() if isinstance(item, Mapping) else ())


def _canonical(value: Any) -> str:
    """Equal for equal tables, whatever their order and whatever types a library has for what is in them."""

    def plain(item: Any) -> Any:
        if hasattr(item, "unwrap"):
            item = item.unwrap()
        if isinstance(item, Mapping):
            return {str(key): plain(each) for key, each in item.items()}
        return [plain(each) for each in item] if isinstance(item, (list, tuple)) else item

    import json

    return json.dumps(plain(value), sort_keys=True, default=repr)


def _encode(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"a text is a str, not {type(value).__name__}")
    return value.encode()


def _bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"bytes are expected, not {type(value).__name__}")
    return bytes(value)


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} is not installed: pip install 'txfiles[{extra}]'", name=name) from error


_NAMED: dict[str, Callable[[], Codec]] = {"json": Json, "yaml": Yaml, "toml": Toml, "text": Text, "bytes": Bytes}
_BY_SUFFIX = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".txt": "text", ".md": "text"}


def codec_of(given: object) -> Codec:
    """The codec of that name, of that pair of functions, or itself. Raises `ValueError` and `TypeError`."""
    if isinstance(given, Codec):
        return given
    if isinstance(given, tuple) and len(given) == 2 and all(map(callable, given)):
        return Codec(*given)
    if isinstance(given, str):
        if given not in _NAMED:
            raise ValueError(f"codec {given!r} is none of {', '.join(_NAMED)}")
        return _NAMED[given]()
    raise TypeError(f"a codec is a name, a Codec or a pair of functions, not {given!r}")


def codec_for(name: str) -> Codec:
    """What the suffix of a file's name stands for; JSON for any other name."""
    return _NAMED[next((named for suffix, named in _BY_SUFFIX.items() if name.endswith(suffix)), "json")]()
