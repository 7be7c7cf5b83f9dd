"""`Document`: what a document is, and `Kind`: its bytes made a value and back."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from txfiles._documents import codecs, typed
from txfiles._documents.places import Misfit, below
from txfiles._format import paths
from txfiles.errors import DocumentError, DocumentVersionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles._documents.codecs import Codec

    AnyCodec = str | Codec | tuple[Callable[[bytes], Any], Callable[[Any], bytes | str]]
    Migrate = Callable[[Any, int], Any]

_MISSING: Any = object()


class Document:
    """What one of several `Documents` is."""

    def __init__(
        self,
        default: Any = _MISSING,
        *,
        type: Any = None,
        codec: AnyCodec | None = None,
        file: str | None = None,
        version: int | None = None,
        migrate: Migrate | None = None,
        version_key: str = "version",
    ) -> None:
        """Raises `ValueError` for a version that is none; the rest is looked at where `Documents` are made.

        Args:
            default: the value as long as the file is missing; that of `type()` if there is a type.
            type: what values are made of: a dataclass, an attrs class, a model of pydantic, a `msgspec.Struct`, or a
                type of these and of those of Python, such as `dict[str, Task]`. Checked on load and on save. Not needed
                where the default is of such a class.
            codec: how it is written: `"json"`, `"yaml"`, `"toml"`, `"text"`, `"bytes"`, a `Codec`, or a pair of
                functions `(loads, dumps)`; otherwise as all documents are.
            file: the path below the root, if it is not made of the name.
            version: of what the program writes, 1 or more. It is in the file, under `version_key`, and not in the
                value. A file of a later version raises `DocumentVersionError`.
            migrate: called with what an older file has, and its version (0 if it has none); returns what this version
                has.
        """
        if version is not None and (not isinstance(version, int) or isinstance(version, bool) or version < 1):
            raise ValueError(f"version is a number, 1 or more; not {version!r}")
        if migrate is not None and version is None:
            raise ValueError("migrate needs the version that it leads to")
        self.default: Any = default
        self.type: Any = default.__class__ if type is None and typed.has_type(default) else type
        self.codec = codec
        self.file = file
        self.version = version
        self.migrate = migrate
        self.version_key = version_key

    @classmethod
    def of(cls, given: Any) -> Document:
        """A document as given; one with that type, if it is a type; otherwise one with that default."""
        if isinstance(given, Document):
            return given
        if isinstance(given, type) or typing.get_origin(given) is not None:
            return cls(type=given)
        return cls(given)


class Kind:
    """A document, or those of a pattern: where it is and how it is read and written."""

    def __init__(self, name: str, document: Document, codec: Codec | None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a document is a str, not {type(name).__name__}")
        file = name if document.file is None else document.file
        chosen = codecs.codec_of(document.codec) if document.codec is not None else codec
        self.name = name
        self.codec: Codec = chosen or codecs.codec_for(file)
        if document.file is None and "." not in file and file:
            file += self.codec.suffix
        self.file: str = paths.decode(paths.normalize(file))
        self._document = document
        self._load = None if document.type is None else typed.loader(document.type)
        self._default: Any = None
        if self.is_pattern:
            if document.default is not _MISSING and document.default != {}:
                raise ValueError(f"{name!r} is a pattern, of which the default is {{}}: no files")
        else:
            self._default = deepcopy(self._make_default())
            self.write(self._default, self.file)

    @property
    def is_pattern(self) -> bool:
        return "*" in self.file

    def _make_default(self) -> Any:
        if self._document.default is not _MISSING:
            return self._document.default
        try:
            return (typing.get_origin(self._document.type) or self._document.type)()
        except Exception as error:
            raise ValueError(f"document {self.name!r} needs a default: {error}") from error

    def default(self) -> Any:
        """A copy of its own."""
        return deepcopy(self._default)

    # -- bytes to value -----------------------------------------------------------------------------------------

    def read(self, data: bytes | None, shown: str) -> tuple[Any, bool]:
        """The value, and whether the file is of an older version. Raises `DocumentError`."""
        if data is None:
            return self.default(), False
        value = self.codec.read(data, shown) if self._load is None else self.codec.read_plain(data, shown)
        is_old = False
        if self._document.version is not None:
            value, is_old = self._migrated(value, shown)
        return (value if self._load is None else self._loaded(value, shown, "does not fit")), is_old

    def _migrated(self, value: Any, shown: str) -> tuple[Any, bool]:
        version, key = self._document.version, self._document.version_key
        assert version is not None
        if not isinstance(value, Mapping):
            raise DocumentError(f"{shown!r} is no object that could have a version", path=shown, place="$")
        found = value.pop(key, 0)  # type: ignore[attr-defined]
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise DocumentError(f"{shown!r} has no version: {found!r}", path=shown, place=below("$", key))
        if found > version:
            message = f"{shown!r} is of version {found}, which is newer than this program: it knows {version}"
            raise DocumentVersionError(message, path=shown, place=below("$", key))
        if found == version:
            return value, False
        if self._document.migrate is None:
            message = f"{shown!r} is of version {found}, not {version}, and nothing leads from one to the other"
            raise DocumentVersionError(message, path=shown, place=below("$", key))
        try:
            return self._document.migrate(value, int(found)), True
        except Exception as error:
            error.add_note(f"txfiles: while {shown!r} was migrated from version {found} to {version}")
            raise

    def _loaded(self, value: Any, shown: str, what: str) -> Any:
        assert self._load is not None
        try:
            return self._load(value, "$")
        except Misfit as error:
            raise DocumentError(f"{shown!r} {what}: {error}", path=shown, place=error.place) from error
        except RecursionError:
            raise DocumentError(f"{shown!r} {what}: it is nested too deeply", path=shown) from None

    # -- value to bytes -----------------------------------------------------------------------------------------

    def write(self, value: Any, shown: str, over: bytes | None = None) -> bytes:
        """The bytes of a file; written over another, its comments stay. Raises `DocumentError`."""
        plain = self._plain(value, shown)
        if self._document.version is not None:
            plain = self._with_version(plain, shown)
        elif self._load is None:
            over = None  # the value has its comments
        return self.codec.write(plain, shown, over)

    def differs(self, value: Any, data: bytes | None, shown: str) -> bool:
        """Whether the value is another than that of a file, or of the default."""
        before, is_old = self.read(data, shown)
        return is_old or not self.codec.same(self._plain(value, shown), self._plain(before, shown), shown)

    def _plain(self, value: Any, shown: str) -> Any:
        if self._load is None:
            return value
        try:
            plain = typed.dump(value)
        except RecursionError:
            raise DocumentError(f"{shown!r} cannot be written: it is nested too deeply", path=shown) from None
        self._loaded(plain, shown, "cannot be written")  # what is written can be read
        if self.codec.has_null:
            return plain
        without = _without_null(plain)
        if without != plain and typed.dump(self._loaded(without, shown, "cannot be written without null")) != plain:
            raise DocumentError(f"{shown!r} cannot be written: there is no null in this format", path=shown)
        return without

    def _with_version(self, value: Any, shown: str) -> Any:
        version, key = self._document.version, self._document.version_key
        if not isinstance(value, Mapping):
            raise DocumentError(f"{shown!r} cannot be written: only an object has a version", path=shown, place="$")
        if key in value:
            message = f"{shown!r} cannot be written: {key!r} is where its version is"
            raise DocumentError(message, path=shown, place=below("$", key))
        if hasattr(value, "insert"):  # a mapping that has its comments
            value = deepcopy(value)
            value.insert(0, key, version)
            return value
        return {key: version, **value}


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value
