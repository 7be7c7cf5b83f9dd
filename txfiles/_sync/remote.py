"""A state of a root on object storage as a side of a sync; files are compared by size and digest."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

from txfiles._format import paths
from txfiles._sync.sides import Entry, Listing

if TYPE_CHECKING:
    from txfiles._sync.excludes import Excludes

_FILE, _DIRECTORY = 0o644, 0o755  # where no mode was ever given


class Remote:
    """`view` is what a snapshot or a transaction sees; its methods are those of a `Source`."""

    def __init__(self, view: Any, excludes: Excludes) -> None:
        self._view = view
        self._excludes = excludes

    def list(self) -> Listing:
        """Everything that is not excluded. Directories that are excluded are not entered."""
        found: dict[str, Entry] = {}
        kept: set[str] = set()
        todo = [b""]
        while todo:
            folder = todo.pop()
            for last in self._view.listdir(folder):
                path = paths.join(folder, last)
                name, node = paths.decode(path), self._view.listed(path)
                if self._excludes.match(name, is_dir=node.kind == "dir"):
                    kept.update(paths.decode(above) for above in paths.ancestors(path)[1:])
                    continue
                found[name] = self._entry(path, node.kind)
                if node.kind == "dir":
                    todo.append(path)
        return Listing({name: found[name] for name in sorted(found)}, kept)

    def look(self, names: Iterable[str]) -> Listing:
        """Those of the names that are there; parents come before children."""
        found: dict[str, Entry] = {}
        for name in names:
            path = paths.encode(name)
            node = self._view.look(path)
            if node is not None:
                found[name] = self._entry(path, node.kind)
        return Listing(found, set())

    def _entry(self, path: bytes, kind: str) -> Entry:
        if kind == "dir":
            return Entry("dir", _DIRECTORY, 0, 0)
        entry = self._view.names.reading.find(path).entry
        return Entry("file", _FILE if entry.mode is None else entry.mode, entry.size, 0)

    def read(self, name: str, entry: Entry) -> Generator[bytes]:
        """The content of a file; a state does not change."""
        path = paths.encode(name)
        yield from self._view.names.reading.chunks(path, self._view.file_entry(path))

    def digest(self, name: str) -> str:
        """BLAKE2b-256 of the content, as it was written."""
        digest: str = self._view.file_entry(paths.encode(name)).digest
        return digest

    def require_unchanged(self, listing: Listing) -> None:
        """A state does not change."""
