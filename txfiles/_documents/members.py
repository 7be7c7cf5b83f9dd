"""What an edit has read, changed and deleted of an open set of documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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
