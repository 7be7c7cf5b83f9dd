"""`Documents`: a set of documents that are loaded, saved and edited together; `JsonDocuments`, those of JSON."""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from txfiles._disk.leaving import Exit
from txfiles._documents.codecs import Bytes, Codec, CommentsLostWarning, Json, Text, Toml, Yaml, codec_of
from txfiles._documents.document import Document
from txfiles._documents.family import Family
from txfiles._documents.members import Members, Staged
from txfiles._documents.patterns import asides
from txfiles.errors import SnapshotExpiredError
from txfiles.store import FileStore, called

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Collection as AnyOf
    from contextlib import AbstractContextManager

    from txfiles._calls.settings import HasRoot, Links
    from txfiles._disk.allowance import Accept
    from txfiles._documents.document import AnyCodec
    from txfiles._format.journal import Durability
    from txfiles._format.paths import AnyPath
    from txfiles.errors import DocumentError
    from txfiles.transaction import FileTransaction

__all__ = [
    "Bytes",
    "Codec",
    "Collection",
    "CommentsLostWarning",
    "Document",
    "Documents",
    "Json",
    "JsonDocuments",
    "Members",
    "Text",
    "Toml",
    "Yaml",
]

T = TypeVar("T")

_TRIES = 3  # to read files of an open set without the lock
_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)
_log = logging.getLogger("txfiles")


class Reads(Protocol):
    def read(self, path: AnyPath) -> bytes: ...
    def exists(self, path: AnyPath) -> bool: ...
    def glob(self, pattern: str | bytes) -> list[str]: ...


class Documents:
    """Named documents below `root` that are loaded, saved and edited together.

    Cheap to make, safe to share between threads.

    >>> docs = Documents(root, {"settings.toml": {"depth": 1}, "notes.txt": "", "tasks/*.json": {}}, create=True)
    >>> with docs.edit() as d:
    ...     d["settings.toml"]["depth"] = 2
    ...     d["tasks/*.json"]["7"] = {"title": "sweep"}
    >>> docs.load()["tasks/*.json"]
    {'7': {'title': 'sweep'}}
    """

    def __init__(
        self,
        root: AnyPath | HasRoot,
        documents: Mapping[str, Any],
        *,
        codec: AnyCodec | None = None,
        durability: Durability = "full",
        timeout: float | None = 10.0,
        create: bool = False,
        links: Links = "refuse",
        accept: AnyOf[Accept] = (),
    ) -> None:
        """Nothing is read or made yet, but the defaults are tried.

        Args:
            root: the directory; it must exist unless `create`.
            documents: the names, and for each a `Document`, a type, or a value: what the document is as long as its
                file is missing. It is copied now and at each use. A document is in the file `<name>.json`, or whatever
                suffix its codec has; a name with a dot in it is the file name. A name with a `*` in it, such as
                `tasks/*.json`, is an open set of documents: all files that match, by what the `*` stands for.
            codec: how documents are written that do not say it themselves: `"json"`, `"yaml"`, `"toml"`, `"text"`,
                `"bytes"`, a `Codec`, or a pair of functions `(loads, dumps)`. Without it the suffix of the file tells,
                and it is JSON for any other.
            durability, timeout, create, links, accept: as for `FileTransaction`.

        Raises `DocumentError` for a default that cannot be written, `InvalidPathError` for a name that is no path,
        `TypeError` for a type that no document can have, and `ValueError` for two names of one file.
        """
        self._store = FileStore(root, durability=durability, timeout=timeout, create=create, links=links, accept=accept)
        self._family = Family(documents, None if codec is None else codec_of(codec))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store.root!r} {', '.join(self._family.names)}>"

    @property
    def store(self) -> FileStore:
        """The root and its settings, to recover at start-up, to wait for changes, to change other files."""
        return self._store

    def load(self) -> dict[str, Any]:
        """All documents, of one committed state. Those without a file are their defaults; a set is a dict by key.

        Documents of an older version are upgraded, all in one transaction; where nothing may be written they are
        only given so.

        Raises `DocumentError` with the path, and the place in it, of a file that is no such document, and what
        entering a `Snapshot` raises.
        """
        files = [] if self._family.sets else self._family.files()
        documents, is_old = self._read(self._load, files)
        return _upgraded(self._upgrade, documents) if is_old else documents

    def save(self, /, **documents: Any) -> None:
        """Replace the named documents, all at once or none, whatever is in their files; the others stay.

        Raises `ValueError` for a name that is none of the documents, `DocumentError` for a value that cannot be
        written, both with nothing changed, and what `FileTransaction.begin` and `commit` raise.
        """
        writes = self._family.writes(documents)
        with self._store.transaction() as tx:
            for path, data in writes.items():
                tx.write(path, data)

    def edit(self) -> AbstractContextManager[dict[str, Any]]:
        """Read, change and write under the lock: no change of another writer is lost.

        Gives all documents, as `load` does, and for an open set its `Members`; at the end of the block those that are
        no longer equal to what was read are replaced, all at once. An exception in the block changes nothing, nor does
        a damaged file: it raises `DocumentError` at the beginning, or where it is read from a set.
        """
        return _Edit(self)

    def update(self, change: Callable[[dict[str, Any]], T], *, retries: int = 10, group: bool = False) -> T:
        """`edit` around `change(documents)`, with the arguments and errors of `FileStore.update`; its value.

        >>> def hear(d):
        ...     d["messages"].append("hello")
        ...     return len(d["messages"])
        >>> JsonDocuments(root, {"messages": []}).update(hear, group=True)
        1
        """

        def run(tx: FileTransaction) -> T:
            edited = _Edited(self, tx)
            value = called(change, edited.given)
            edited.stage()
            return value

        return self._store.update(run, retries=retries, group=group)

    def collection(self, name: str) -> Collection:
        """The open set of documents of that name. Raises `ValueError`."""
        if name not in self._family.sets:
            raise ValueError(f"no such set of documents: {name}")
        return Collection(self, name)

    def set_aside(self, *names: str) -> dict[str, str]:
        """Move damaged documents away, so that their defaults are what is loaded; the others stay as they are.

        Args:
            names: the documents to look at, all without any. Of an open set each document is looked at.

        Returns the paths of the files that were damaged, and for each where it is now, `state.json.damaged-1`. Each is
        told to the logger `txfiles`, too, as a warning. A document of a newer version is not damaged.

        Raises `ValueError` for a name that is none of the documents, `DocumentVersionError`, and what
        `FileTransaction.begin` and `commit` raise; nothing was moved then.
        """
        self._family.require_known(names)

        def change(tx: FileTransaction) -> list[tuple[str, str, DocumentError]]:
            moved = []
            for name in names or self._family.names:
                for path in self._paths(tx, name):
                    if (damage := self._family.damage(name, path, tx.read(path))) is not None:
                        target = next(free for free in asides(path) if not tx.exists(free))
                        tx.move(path, target)
                        moved.append((path, target, damage))
            return moved

        return tell_moved(self._store.root, self._store.update(change))

    # -- inside -------------------------------------------------------------------------------------------------

    def _read(self, read: Callable[[Reads], T], files: Iterable[str]) -> T:
        """Read one committed state, without the lock if it holds still for that."""
        for _ in range(_TRIES):
            with self._store.snapshot(*files) as snapshot, suppress(SnapshotExpiredError):
                return read(snapshot)
        with self._store.transaction() as tx:
            return read(tx)

    def _load(self, view: Reads) -> tuple[dict[str, Any], bool]:
        documents, is_old = self._family.read(self._files(view))
        for name in self._family.sets:
            documents[name], is_old_set = self._load_set(view, name)
            is_old |= is_old_set
        return self._family.ordered(documents), is_old

    def _load_set(self, view: Reads, name: str) -> tuple[dict[str, Any], bool]:
        return self._family.read_set(name, {path: view.read(path) for path in self._paths(view, name)})

    def _files(self, view: Reads) -> dict[str, bytes | None]:
        """The content of the file of each document that is no set."""
        kinds = self._family.single.items()
        return {name: view.read(kind.file) if view.exists(kind.file) else None for name, kind in kinds}

    def _paths(self, view: Reads, name: str) -> list[str]:
        """The files of a document or of a set that are there."""
        if name in self._family.sets:
            _, pattern = self._family.sets[name]
            return [path for path in view.glob(pattern.text) if pattern.key_of(path) is not None]
        path = self._family.single[name].file
        return [path] if view.exists(path) else []

    def _upgrade(self) -> dict[str, Any]:
        return self.update(lambda d: {name: dict(v) if isinstance(v, Members) else v for name, v in d.items()})


class _Edited:
    """The documents in a transaction, to be changed."""

    def __init__(self, documents: Documents, tx: FileTransaction) -> None:
        self._family, self._tx = documents._family, tx
        with tx._all_held_back():
            self._files = documents._files(tx)
            found, _ = self._family.read(self._files)
        self._sets = {name: Members(tx, staged) for name, staged in self._family.staged().items()}
        self.given = self._family.ordered({**found, **self._sets})

    def stage(self) -> None:
        """Write what is no longer equal to what was read."""
        with self._tx._all_held_back():
            for path, data in self._family.changes(self.given, self._files, self._sets):
                self._tx.write(path, data)
            for members in self._sets.values():
                members._stage()


class _Edit:
    """`Documents.edit`. Whatever comes out of a signal handler, and wherever: at the end the transaction has ended."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._tx = documents.store.transaction()

    def __enter__(self) -> dict[str, Any]:
        try:
            self._edited = _Edited(self._documents, self._tx.begin())
            return self._edited.given
        except BaseException as error:
            self._tx._leave(error)
            raise

    def _leave(self, error: BaseException | None) -> None:
        try:
            if error is None:
                self._edited.stage()
        except BaseException as failed:
            self._tx._leave(failed)
            raise
        self._tx._leave(error)

    @property
    def _state(self) -> str:
        return self._tx._state

    def _roll_back_late(self) -> None:
        self._tx._roll_back_late()

    __exit__: Exit = Exit()


class JsonDocuments(Documents):
    """Named JSON documents below `root`, each in the file `<name>.json`; a name with a dot in it is the file name.

    Cheap to make, safe to share between threads.

    >>> docs = JsonDocuments(root, {"messages": [], "state": {}}, create=True)
    >>> docs.save(messages=[{"role": "user", "text": "hello"}], state={"turn": 1})
    >>> docs.load()["state"]
    {'turn': 1}
    >>> with docs.edit() as d:
    ...     d["state"]["turn"] += 1
    """

    def __init__(
        self,
        root: AnyPath | HasRoot,
        defaults: Mapping[str, Any],
        *,
        indent: int | str | None = 2,
        default: Callable[[Any], Any] | None = None,
        option: int | None = None,
        durability: Durability = "full",
        timeout: float | None = 10.0,
        create: bool = False,
        links: Links = "refuse",
        accept: AnyOf[Accept] = (),
    ) -> None:
        """Nothing is read or made yet, but the defaults are tried.

        Args:
            root: the directory; it must exist unless `create`.
            defaults: the names, and what a document is as long as its file is missing; copied now and at each use.
                Also a `Document`, a type, or a name with a `*`, as for `Documents`.
            indent: spaces for each level, or the white space itself; `None` for one line. Files end in a newline.
            default, option: as for `FileTransaction.write_json`.
            durability, timeout, create, links, accept: as for `FileTransaction`.

        Raises `DocumentError` for a default that is no JSON, `InvalidPathError` for a name that is no path, and
        `ValueError` for two names of one file.
        """
        codec = Json(indent=indent, default=default, option=option)
        super().__init__(
            root,
            defaults,
            codec=codec,
            durability=durability,
            timeout=timeout,
            create=create,
            links=links,
            accept=accept,
        )


class Collection:
    """An open set of documents outside an edit, made by `Documents.collection`: each call is one commit, or reads one
    committed state.

    >>> tasks = JsonDocuments(root, {"tasks/*.json": {}}).collection("tasks/*.json")
    >>> tasks.set("8", {"title": "mop"})
    >>> tasks.get("8")
    {'title': 'mop'}
    >>> tasks.delete("8")
    """

    def __init__(self, documents: Documents, name: str) -> None:
        self._documents = documents
        self._name = name
        self._kind, self._pattern = documents._family.sets[name]

    def __repr__(self) -> str:
        return f"<Collection {self._name!r} of {self._documents!r}>"

    def keys(self) -> list[str]:
        """The keys of all documents, sorted."""
        paths = self._documents._read(lambda view: self._documents._paths(view, self._name), ())
        return sorted(str(self._pattern.key_of(path)) for path in paths)

    def get(self, key: str, default: Any = None) -> Any:
        """The document of a key. Raises `DocumentError`, and `ValueError` for what is no key."""
        path = self._pattern.path_of(key)
        data = self._documents._read(lambda view: view.read(path) if view.exists(path) else None, [path])
        if data is None:
            return default
        value, is_old = self._kind.read(data, path)
        return _upgraded(lambda: self._upgrade().get(key, default), value) if is_old else value

    def load(self) -> dict[str, Any]:
        """All documents by key, of one committed state. Raises `DocumentError`."""
        documents, is_old = self._documents._read(lambda view: self._documents._load_set(view, self._name), ())
        return _upgraded(self._upgrade, documents) if is_old else documents

    def set(self, key: str, value: Any, *, group: bool = False) -> None:
        """Make or replace one document. Raises `DocumentError`, and `ValueError` for what is no key.

        With `group` threads that wait for one another share a commit, as in `FileStore.update`.
        """
        self.update({key: value}, group=group)

    def update(self, documents: Mapping[str, Any], *, group: bool = False) -> None:
        """Make or replace several documents in one commit; the others stay."""
        writes = self._staged().writes(documents)

        def change(tx: FileTransaction) -> None:
            for path, data in writes.items():
                tx.write(path, data)

        self._documents.store.update(change, group=group)

    def delete(self, *keys: str, group: bool = False) -> None:
        """Delete documents in one commit. Raises `KeyError`, with nothing deleted, if one of them is not there."""

        def change(tx: FileTransaction) -> None:
            members = Members(tx, self._staged())
            for key in keys:
                members.delete(key)
            members._stage()

        self._documents.store.update(change, group=group)

    def _upgrade(self) -> dict[str, Any]:
        def change(tx: FileTransaction) -> dict[str, Any]:
            members = Members(tx, self._staged())
            documents = dict(members)
            members._stage()
            return documents

        return self._documents.store.update(change)

    def _staged(self) -> Staged:
        return Staged(self._kind, self._pattern)


def _upgraded(upgrade: Callable[[], T], otherwise: T) -> T:
    """What an upgrade returns, or `otherwise` where nothing may be written."""
    try:
        return upgrade()
    except OSError as error:
        if error.errno not in _NO_RIGHT:
            raise
        return otherwise


def tell_moved(root: str, moved: Iterable[tuple[str, str, DocumentError]]) -> dict[str, str]:
    """Tell the logger which files were set aside, and return where each of them is."""
    for path, target, damage in moved:
        extra = {"root": root, "path": path, "set_aside_as": target}
        _log.warning("%s: set aside %r as %r: %s", root, path, target, damage, extra=extra)
    return {path: target for path, target, _ in moved}
