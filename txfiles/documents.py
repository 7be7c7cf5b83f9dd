"""`JsonDocuments`: a fixed set of JSON documents that are loaded, saved and edited together."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from txfiles._format import json, paths
from txfiles.store import FileStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from txfiles._format.journal import Durability
    from txfiles._format.paths import AnyPath

__all__ = ["JsonDocuments"]


class JsonDocuments:
    """Named JSON documents below `root`, each in the file `<name>.json`; a name with a dot in it is the file name.

    Args:
        root: the directory; it must exist unless `create`.
        defaults: the names, and what a document is as long as its file is missing; copied now and at each use.
        indent: 2, or `None` for one line. Files are UTF-8 and end in a newline.
        durability, timeout, create: as for `FileTransaction`.

    Raises `DocumentError` for a default that is no JSON, `InvalidPathError` for a name that is no path, and
    `ValueError` for two names of one file. Cheap to make, safe to share between threads.

    >>> docs = JsonDocuments(root, {"messages": [], "state": {}}, create=True)
    >>> docs.save(messages=[{"role": "user", "text": "hello"}], state={"turn": 1})
    >>> docs.load()["state"]
    {'turn': 1}
    >>> with docs.edit() as d:
    ...     d["state"]["turn"] += 1
    """

    def __init__(
        self,
        root: AnyPath,
        defaults: Mapping[str, Any],
        *,
        indent: int | None = 2,
        durability: Durability = "full",
        timeout: float | None = 10.0,
        create: bool = False,
    ) -> None:
        self._store = FileStore(root, durability=durability, timeout=timeout, create=create)
        self._create = create
        self._indent = indent
        self._files = {name: _file_of(name) for name in defaults}
        if len(set(self._files.values())) != len(self._files):
            raise ValueError(f"two names lead to one file: {sorted(self._files.values())}")
        for name, default in defaults.items():
            json.dumps(default, indent, self._files[name])
        self._defaults = deepcopy(dict(defaults))

    def __repr__(self) -> str:
        return f"<JsonDocuments {self._store.root!r} {', '.join(self._files)}>"

    @property
    def store(self) -> FileStore:
        """The root and its settings, to recover at start-up, to wait for changes, to change other files."""
        return self._store

    def load(self) -> dict[str, Any]:
        """All documents, of one committed state. Those without a file are their defaults.

        Raises `DocumentError` with the path of a file that is no JSON, and what entering a `Snapshot` raises.
        """
        with ExitStack() as stack:
            try:
                snapshot = stack.enter_context(self._store.snapshot(*self._files.values()))
            except FileNotFoundError:  # the root
                if not self._create:
                    raise
                return deepcopy(self._defaults)
            return {
                name: snapshot.read_json(file) if snapshot.exists(file) else deepcopy(self._defaults[name])
                for name, file in self._files.items()
            }

    def save(self, /, **documents: Any) -> None:
        """Replace the named documents, all at once or none, whatever is in their files; the others stay.

        Raises `ValueError` for a name that is none of the documents, `DocumentError` for a value that is no JSON, both
        with nothing changed, and what `FileTransaction.begin` and `commit` raise.
        """
        self._require_known(documents)
        with self._store.transaction() as tx:
            for name, value in documents.items():
                tx.write_json(self._files[name], value, indent=self._indent)

    @contextmanager
    def edit(self) -> Iterator[dict[str, Any]]:
        """Read, change and write under the lock: no change of another writer is lost.

        Gives all documents, as `load` does; at the end of the block those that are no longer equal to what was read
        are replaced, all at once. An exception in the block changes nothing, nor does a damaged file: it raises
        `DocumentError` at the beginning.
        """
        with self._store.transaction() as tx:
            raw = {name: tx.read(file) if tx.exists(file) else None for name, file in self._files.items()}
            documents = {name: self._parse(name, data) for name, data in raw.items()}
            yield documents
            self._require_known(documents)
            if missing := self._files.keys() - documents.keys():
                raise ValueError(f"documents cannot be removed: {', '.join(sorted(missing))}")
            for name, value in documents.items():
                if not _equal(value, self._parse(name, raw[name])):
                    tx.write_json(self._files[name], value, indent=self._indent)

    def _parse(self, name: str, data: bytes | None) -> Any:
        return deepcopy(self._defaults[name]) if data is None else json.loads(data, self._files[name])

    def _require_known(self, documents: Mapping[str, Any]) -> None:
        if unknown := documents.keys() - self._files.keys():
            raise ValueError(f"no such document: {', '.join(sorted(map(str, unknown)))}")


def _file_of(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of a document is a str, not {type(name).__name__}")
    return paths.decode(paths.normalize(name if "." in name or not name else f"{name}.json"))


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are one JSON document: for Python 1, 1.0 and True are equal. Of any depth."""
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
        elif a != b or (isinstance(a, float) and str(a) != str(b)):
            return False
    return True
