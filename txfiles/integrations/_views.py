"""What the fsspec file system asks of a view of the tree: that of a transaction, or the last committed state."""

from __future__ import annotations

import errno
import io
import stat
from typing import IO, TYPE_CHECKING, Any, TypeVar

from txfiles._disk import system
from txfiles._format import paths
from txfiles._reading.question import Question
from txfiles._reading.reader import Reader as StateReader
from txfiles._tree import streams
from txfiles._tree.view import Directory
from txfiles.errors import InvalidPathError
from txfiles.snapshot import _Files

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles._disk.system import Stat
    from txfiles._tree.view import View
    from txfiles.objects.reader import FarReader
    from txfiles.store import FileStore

T = TypeVar("T")
Info = dict[str, Any]
_TYPES = {"dir": "directory", "file": "file"}
BELOW_NOTHING = (FileNotFoundError, NotADirectoryError, InvalidPathError)


def info(view: View[Any], path: bytes, name: str) -> Info:
    """What fsspec's local file system tells of a file or directory; a link is what it leads to. Raises `OSError`."""
    resolved, node = view.find(path, follow_last=False)
    found: Info = {"name": name, "islink": node is not None and node.kind == "link"}
    if node is not None and node.kind == "link":
        found["destination"] = paths.decode(node.link)
        resolved, node = view.find(path)
    if node is None:
        raise FileNotFoundError(errno.ENOENT, "no such file or directory", name)
    return found | {"type": _TYPES.get(node.kind, "other")} | _numbers(view, resolved, node.stat)


def _numbers(view: View[Any], resolved: bytes, there: Stat | None = None) -> Info:
    there = there or view.stat(resolved)
    if there is None:
        return _numbers_of_new_directory(view, resolved)
    modified = there.st_mtime_ns / 1e9
    return {
        "size": there.st_size,
        "created": getattr(there, "st_ctime", modified),
        "mtime": modified,
        "mode": there.st_mode,
        "uid": there.st_uid,
        "gid": there.st_gid,
        "ino": there.st_ino,
        "nlink": there.st_nlink,
    }


def _numbers_of_new_directory(view: View[Any], resolved: bytes) -> Info:
    """Of a directory that is not on disk yet: as it will be, with the times of the root."""
    entry = view.entries[resolved]
    assert isinstance(entry, Directory)
    meta = entry.meta
    return _numbers(view, b"") | {"size": 0, "mode": stat.S_IFDIR | meta.mode, "uid": meta.uid, "gid": meta.gid}


def is_link(view: View[Any], path: bytes, _: str) -> bool:
    node = view.find(path, follow_last=False)[1]
    return node is not None and node.kind == "link"


def listing(view: View[Any], path: bytes, name: str) -> list[Info]:
    """What is in a directory, or the file itself."""
    found = info(view, path, name)
    if found["type"] != "directory":
        return [found]
    resolved = view.resolve(path)
    return [
        _entry(view, paths.join(resolved, child), f"{name.rstrip('/')}/{paths.decode(child)}")
        for child in view.listdir(resolved)
    ]


def _entry(view: View[Any], path: bytes, name: str) -> Info:
    """Links to directories, and those that lead nowhere or out of the root, are `other`: nobody walks into them."""
    try:
        found = info(view, path, name)
    except BELOW_NOTHING:
        node = view.look(path)
        if node is None or node.kind != "link":
            raise
        return {"name": name, "type": "other", "size": 0, "islink": True, "destination": paths.decode(node.link)}
    if found["islink"] and found["type"] == "directory":
        found["type"] = "other"
    return found


class _Asked(Question[T]):
    def __init__(self, query: Callable[[View[Any]], T]) -> None:
        self._query = query

    def ask(self, view: View[Any]) -> T:
        return self._query(view)


class Committed:
    """The last committed state of `root`, found anew for each question, without the lock."""

    def __init__(self, store: FileStore, timeout: float | None, *, durable: bool) -> None:
        self._store = store
        self._timeout = timeout
        self._durable = durable

    def ask(self, query: Callable[[View[Any]], T]) -> T:
        return self._begin(_Asked(query))

    def open(self, path: bytes) -> IO[bytes]:
        """A file of that state; it stays as it is, whatever is committed later."""
        (file,) = self._begin(_Files(system.current(), [path]))
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", paths.decode(path))
        if file.data is not None:
            return io.BytesIO(file.data)
        raw = streams.RawReader(system.current(), file.fd)
        return streams.reader(raw, streams.form_of("rb"), paths.decode(path))

    def _begin(self, question: Question[T]) -> T:
        far = self._store._far
        reader: StateReader | FarReader
        if far is None:
            root = paths.encode(self._store.root)
            out = self._store._links == "follow"
            reader = StateReader(system.current(), root, self._timeout, durable=self._durable, links_out=out)
        else:
            reader = self._store._far_reader(far, None)
        try:
            return reader.begin(question, follow=False)
        finally:
            reader.close()
