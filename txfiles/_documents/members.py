"""What an edit has read, changed and deleted of an open set of documents: `Members`, and `Staged` behind it."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from txfiles._documents.document import Kind
    from txfiles._documents.patterns import Pattern


class Staged:
    """The values of an edit by their keys; the files themselves are read by whoever has the transaction."""

    def __init__(self, kind: Kind, pattern: Pattern) -> None:
        self.kind = kind
        self.pattern = pattern
        self._values: dict[str, Any] = {}
        self._files: dict[str, bytes] = {}  # what was read
        self._deleted: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def is_deleted(self, key: str) -> bool:
        return key in self._deleted

    def read(self, key: str, data: bytes) -> Any:
        self._values[key], _ = self.kind.read(data, self.pattern.path_of(key))
        self._files[key] = data
        return self._values[key]

    def put(self, key: str, value: Any) -> None:
        self.pattern.path_of(key)
        self._values[key] = value
        self._deleted.discard(key)

    def drop(self, key: str) -> None:
        self._values.pop(key, None)
        self._deleted.add(key)

    def keys(self, files: Iterable[str]) -> list[str]:
        """All keys, sorted, where these files are in the directory."""
        found = {key for path in files if (key := self.pattern.key_of(path)) is not None}
        return sorted(found - self._deleted | self._values.keys())

    def writes(self, documents: Mapping[str, Any]) -> dict[str, bytes]:
        """The files for these documents by key, and what is to be in them."""
        values = {self.pattern.path_of(key): value for key, value in documents.items()}
        return {path: self.kind.write(value, path) for path, value in values.items()}

    def changes(self) -> Iterator[tuple[str, bytes | None]]:
        """Files and what is to be in them; `None` for those to be deleted."""
        for key in self._deleted:
            yield self.pattern.path_of(key), None
        for key, value in self._values.items():
            path, before = self.pattern.path_of(key), self._files.get(key)
            if before is None or self.kind.differs(value, before, path):
                yield path, self.kind.write(value, path, before)


class _Files(Protocol):
    """As much of a transaction as is needed here."""

    def read(self, path: str) -> bytes: ...
    def exists(self, path: str) -> bool: ...
    def glob(self, pattern: str) -> list[str]: ...
    def write(self, path: str, data: bytes) -> None: ...
    def delete(self, path: str, *, missing_ok: bool = False) -> None: ...


class Members(MutableMapping[str, Any]):
    """An open set of documents in an edit: a mapping whose values are read when they are asked for.

    What is set, deleted, or changed in a value is committed with all else at the end of the edit.
    """

    def __init__(self, tx: _Files, staged: Staged) -> None:
        self._tx = tx
        self._staged = staged

    def __getitem__(self, key: str) -> Any:
        path = self._staged.pattern.path_of(key)
        if key in self._staged:
            return self._staged[key]
        if self._staged.is_deleted(key) or not self._tx.exists(path):
            raise KeyError(key)
        return self._staged.read(key, self._tx.read(path))

    def __setitem__(self, key: str, value: Any) -> None:
        self._staged.put(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._staged.drop(key)

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str) or self._staged.is_deleted(key):
            return False
        return key in self._staged or self._tx.exists(self._staged.pattern.path_of(key))

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())

    def set(self, key: str, value: Any) -> None:
        """The same as `members[key] = value`. Raises `ValueError` for what is no key."""
        self[key] = value

    def delete(self, key: str) -> None:
        """The same as `del members[key]`. Raises `KeyError`."""
        del self[key]

    def _keys(self) -> list[str]:
        return self._staged.keys(self._tx.glob(self._staged.pattern.text))

    def _stage(self) -> None:
        for path, data in self._staged.changes():
            if data is None:
                self._tx.delete(path, missing_ok=True)
            else:
                self._tx.write(path, data)
