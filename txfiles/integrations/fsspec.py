"""A file system for fsspec whose transactions are atomic; needs the extra `fsspec`.

>>> fs = fsspec.filesystem("txfiles", root=root)
>>> with fs.transaction:
...     fs.pipe(f"{root}/a.json", b"{}")
...     table.to_csv(f"txfiles://{root}/b.csv")  # pandas
"""

from __future__ import annotations

import errno
import threading
from datetime import UTC, datetime
from glob import has_magic
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

try:
    from fsspec.compression import compr
    from fsspec.core import get_compression
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.utils import stringify_path

    if TYPE_CHECKING:  # fsspec has no types
        from txfiles.integrations._untyped import AbstractFileSystem, Transaction
    else:
        from fsspec import AbstractFileSystem
        from fsspec.transaction import Transaction
except ImportError as _error:
    raise ImportError("the package `fsspec` is missing: pip install 'txfiles[fsspec]'", name=_error.name) from _error

from txfiles._calls.settings import is_far
from txfiles._format import layout, paths
from txfiles._tree import subtrees
from txfiles.errors import InvalidPathError
from txfiles.integrations import _views
from txfiles.integrations._change import Change
from txfiles.integrations._files import Compressed, Deferred, Reader, Text
from txfiles.store import FileStore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import AbstractContextManager

    from txfiles._calls.settings import Links
    from txfiles._disk.allowance import Accept
    from txfiles._format.journal import Durability
    from txfiles._tree.view import View
    from txfiles.transaction import FileTransaction

__all__ = ["TxFilesFileSystem", "TxFilesTransaction"]

T = TypeVar("T")
_CHUNK = 1 << 20

# What a thread does below a root while it has a transaction there is part of it, through whatever instance.
_running: dict[tuple[threading.Thread, str], FileTransaction] = {}

# And so is what is done through an instance that comes from a URL and was made, or taken from fsspec's cache, while a
# block runs there: libraries open URLs in threads of their own.
_blocks: dict[str, FileTransaction] = {}


class TxFilesTransaction(Transaction):
    """`fs.transaction`: a `FileTransaction` from the start to the end of the block.

    Beginning and ending raise what `FileTransaction.begin` and `FileTransaction.commit` raise.
    """

    fs: Any  # the file system; `None` when it has ended

    def __init__(self, fs: TxFilesFileSystem, **options: Any) -> None:
        super().__init__(fs, **options)
        self.running: FileTransaction | None = None
        self._key = threading.current_thread(), fs.store.root

    def start(self) -> None:
        """Take the lock, recover what a crash left, and begin."""
        begun = self.fs.store.transaction().begin()
        self.running = begun
        self._key = threading.current_thread(), self.fs.store.root
        _running[self._key] = _blocks[self.fs.store.root] = begun
        TxFilesFileSystem._running_blocks = frozenset(map(id, _blocks.values()))
        super().start()

    def complete(self, commit: bool = True) -> None:
        """Commit everything, or nothing; the transaction has ended, also when that raises."""
        running, self.running = self.running, None
        try:
            if running is None:
                self._complete_deferred(commit)
            elif commit:
                running.commit()
            else:
                running.rollback()
        finally:
            if running is not None:
                _running.pop(self._key, None)
                self._forget(running)
            self.files.clear()
            self.fs._intrans = False
            self.fs._transaction = None
            self.fs = None

    def _forget(self, ended: FileTransaction) -> None:
        """The instances that were made in the block go with it: none of them is in the cache of fsspec any more."""
        _blocks.pop(self.fs.store.root, None)
        TxFilesFileSystem._running_blocks = frozenset(map(id, _blocks.values()))
        with TxFilesFileSystem._instantiation_lock:  # type: ignore[attr-defined]
            cache: dict[str, TxFilesFileSystem] = TxFilesFileSystem._cache  # type: ignore[attr-defined]
            for token in [token for token, made in cache.items() if made._made_in is ended]:
                del cache[token]

    def _complete_deferred(self, commit: bool) -> None:
        """Of files opened with `autocommit=False` and no transaction."""
        if not commit:
            for file in self.files:
                file.discard()
        elif self.files:
            with self.fs._changing():
                for file in self.files:
                    file.commit()


class TxFilesFileSystem(AbstractFileSystem):
    """Local files below `root`, changed all-or-nothing.

    Paths and URLs (`txfiles:///srv/data/a.csv`) are those of fsspec's local file system: absolute, or relative to the
    working directory. Missing parents are made by every write.

    All that a `with fs.transaction:` block does is one `FileTransaction`, with its guarantees: other writers of the
    root wait, reads in the block see what was written in it, and an exception undoes everything. A change outside of
    one is a transaction of its own, however many files a call changes. A file opened for writing then is stored when it
    is closed. A read outside sees the last committed state, each call for itself.

    Args:
        root: the absolute path of the directory, or a URL of object storage. Without it a path is in the nearest
            directory above that is a root already, or else in the directory that it names, or that of its file; an
            instance without a root, and not of a URL, finds that anew for each call and has no `transaction`.
        durability, timeout, create, links, accept: those of `FileTransaction`.
        url_root: what fsspec takes from a URL, for where there is no `root`.

    Raises what `FileTransaction` raises: `InvalidPathError` for a path that is not below the root.
    """

    protocol = "txfiles"
    root_marker = "/"
    transaction_type = TxFilesTransaction
    _extra_tokenize_attributes = ("_running_blocks",)  # what is made in a block is not what was made before it
    _running_blocks: frozenset[int] = frozenset()

    def __new__(cls, root: Any = None, *, url_root: str | None = None, **options: Any) -> Any:
        if cls is TxFilesFileSystem and root is None and url_root is None:
            from txfiles.integrations._anywhere import Anywhere

            return super().__new__(Anywhere)
        return super().__new__(cls)

    def __init__(
        self,
        root: Any = None,
        *,
        durability: Durability = "full",
        timeout: float | None = 10.0,
        create: bool = False,
        links: Links = "refuse",
        accept: Collection[Accept] = (),
        url_root: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        chosen: Any = url_root if root is None else stringify_path(root)
        if not is_far(chosen) and not Path(chosen).is_absolute():
            raise ValueError(f"the root must be an absolute path, not {chosen!r}: instances outlive a chdir")
        self.root: str = self._strip_protocol(chosen)
        self.store: FileStore = FileStore(
            self.root, durability=durability, timeout=timeout, create=create, links=links, accept=accept
        )
        self._made_in = _blocks.get(self.store.root) if root is None else None
        self._committed = _views.Committed(self.store, timeout, durable=durability != "process")

    @property
    def fsid(self) -> str:
        return f"txfiles:{self.store.root}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        stripped = stringify_path(path).removeprefix("txfiles://")
        return stripped.rstrip("/") if is_far(stripped) else LocalFileSystem._strip_protocol(stripped)

    @classmethod
    def _get_kwargs_from_urls(cls, path: str) -> dict[str, str]:
        """Not as `root`, which fsspec refuses to get twice."""
        stripped = cls._strip_protocol(path)
        if is_far(stripped):
            return {}  # the URL does not tell where the root ends
        here = Path(stripped)
        return {"url_root": cls._root_above(stripped) or str(here if here.is_dir() else here.parent)}

    @staticmethod
    def _root_above(path: str) -> str | None:
        """The nearest directory, `path` itself or above, that is a root already."""
        private = paths.decode(layout.PRIVATE)
        here = Path(path)
        return next((str(above) for above in (here, *here.parents) if (above / private).is_dir()), None)

    # -- transactions -------------------------------------------------------------------------------------------

    def start_transaction(self) -> Any:
        self.transaction.start()
        return self.transaction

    def _joined(self) -> FileTransaction | None:
        """The transaction of this instance, of this thread, or of the block that the instance was made in."""
        own = None if self._transaction is None else self._transaction.running
        return own or _running.get((threading.current_thread(), self.store.root)) or self._block()

    def _block(self) -> FileTransaction | None:
        """The block that the instance was made in, while it runs."""
        running = _blocks.get(self.store.root)
        return running if running is self._made_in else None

    def _changing(self) -> AbstractContextManager[FileTransaction]:
        """For the changes of one call, all or none: in a part of the running transaction, or in one of its own."""
        return Change(self._joined(), self.store, _running)

    def _relative(self, path: Any) -> str:
        stripped: str = self._strip_protocol(path)
        above = self.root.rstrip("/") + "/"
        if stripped != self.root and not stripped.startswith(above):
            raise InvalidPathError(f"{stripped!r} is not below the root {self.root!r}", path=stripped)
        return stripped[len(above) :].lstrip("/") or "."

    # -- reading ------------------------------------------------------------------------------------------------

    def _ask(self, query: Callable[[View[Any], bytes, str], T], path: Any) -> T:
        where = paths.normalize(self._relative(path), directory=True)
        name = self._strip_protocol(path)
        joined = self._joined()
        if joined is None:
            return self._committed.ask(lambda view: query(view, where, name))
        with joined._call() as view:
            return query(view, where, name)

    def info(self, path: Any, **_: Any) -> dict[str, Any]:
        return self._ask(_views.info, path)

    def ls(self, path: Any, detail: bool = True, **_: Any) -> list[Any]:
        found = self._ask(_views.listing, path)
        return found if detail else [entry["name"] for entry in found]

    def _type(self, path: Any) -> str | None:
        try:
            return str(self.info(path)["type"])
        except _views.BELOW_NOTHING:
            return None

    def exists(self, path: Any, **_: Any) -> bool:
        return self._type(path) is not None

    def isdir(self, path: Any) -> bool:
        return self._type(path) == "directory"

    def isfile(self, path: Any) -> bool:
        return self._type(path) == "file"

    def islink(self, path: Any) -> bool:
        return self._ask(_views.is_link, path)

    def lexists(self, path: Any, **_: Any) -> bool:
        return self.islink(path) or self.exists(path)

    def walk(self, path: Any, maxdepth: int | None = None, topdown: bool = True, **options: Any) -> Any:
        """See `AbstractFileSystem.walk`. Only what is not there is left out in silence; other errors are raised."""
        return super().walk(path, maxdepth, topdown, **{"on_error": _raise_unless_missing} | options)

    def created(self, path: Any) -> datetime:
        """When the file was last replaced; for one that was never replaced, when it or its attributes changed."""
        return datetime.fromtimestamp(self.info(path)["created"], UTC)

    def modified(self, path: Any) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    # -- files --------------------------------------------------------------------------------------------------

    def open(self, path: Any, mode: str = "rb", *, compression: str | None = None, **options: Any) -> Any:
        """A file object; in a transaction what is written is staged at its close. See `AbstractFileSystem.open`."""
        text = {name: options.pop(name) for name in ("encoding", "errors", "newline") if name in options}
        text["encoding"] = text.get("encoding") or "locale"  # as all of fsspec
        file = super().open(path, mode if "b" in mode else mode.replace("t", "") + "b", **options)
        chosen = get_compression(self._strip_protocol(path), compression)
        if chosen is not None:
            compressor = compr[chosen](file, mode=mode[0])
            file = compressor if "r" in mode else Compressed(compressor, file)
        return file if "b" in mode else Text(file, **text)

    def _open(self, path: Any, mode: str = "rb", *, autocommit: bool = True, **_: Any) -> Any:
        if mode not in ("rb", "wb", "ab", "xb"):
            raise ValueError(f"mode {mode!r} is not one of rb, wb, ab, xb")
        where = self._relative(path)
        joined = self._joined()
        if joined is not None:
            file = joined.open(where, mode)
            return Reader(file, self, path) if mode == "rb" else file
        if mode == "rb":
            return Reader(self._committed.open(paths.normalize(where)), self, path)
        paths.normalize(where)
        there = self._type(path)
        if there == "directory":
            raise IsADirectoryError(errno.EISDIR, "is a directory", where)
        if there is not None and mode == "xb":
            raise FileExistsError(errno.EEXIST, "the file exists", where)

        def store(content: IO[bytes]) -> None:
            with self._changing() as tx, tx.open(where, mode) as file:
                while chunk := content.read(_CHUNK):
                    file.write(chunk)

        return Deferred(store, autocommit=autocommit)

    def touch(self, path: Any, truncate: bool = True, **_: Any) -> None:
        """Make the file, or make it anew, empty or as it was: it has a new time then."""
        with self.open(path, "wb" if truncate else "ab"):
            pass

    def pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **options: Any) -> None:
        with self._changing():
            super().pipe_file(path, value, mode, **options)

    def pipe(self, path: Any, value: Any = None, **options: Any) -> None:
        """Several files at once, all or none."""
        with self._changing():
            super().pipe(path, value, **options)

    def put_file(self, lpath: Any, rpath: Any, *args: Any, **options: Any) -> None:
        with self._changing():
            super().put_file(lpath, rpath, *args, **options)

    def put(self, lpath: Any, rpath: Any, *args: Any, **options: Any) -> None:
        """All files or none."""
        with self._changing():
            super().put(lpath, rpath, *args, **options)

    # -- the tree -----------------------------------------------------------------------------------------------

    def mkdir(self, path: Any, create_parents: bool = True, **_: Any) -> None:
        """Raises `FileExistsError`, and `FileNotFoundError` without `create_parents`."""
        with self._changing() as tx:
            if self.exists(path):
                raise FileExistsError(errno.EEXIST, "is there", self._relative(path))
            if not create_parents and not self.isdir(self._parent(path)):
                raise FileNotFoundError(errno.ENOENT, "no such directory", self._relative(self._parent(path)))
            tx.mkdir(self._relative(path))

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        with self._changing() as tx:
            if not exist_ok and self.exists(path):
                raise FileExistsError(errno.EEXIST, "is there", self._relative(path))
            tx.mkdir(self._relative(path))

    def rmdir(self, path: Any) -> None:
        """Remove an empty directory."""
        where = self._relative(path)
        with self._changing() as tx:
            if tx.listdir(where):
                raise OSError(errno.ENOTEMPTY, "the directory is not empty", where)
            tx.delete_tree(where)

    def cp_file(self, path1: Any, path2: Any, **_: Any) -> None:
        """Copy a file with its mode and extended attributes, or make a directory."""
        with self._changing() as tx:
            if self.isdir(path1):
                tx.mkdir(self._relative(path2))
            else:
                tx.copy(self._relative(path1), self._relative(path2))

    def copy(self, path1: Any, path2: Any, *args: Any, **options: Any) -> None:
        """All files or none, but those that vanish where errors are to be ignored."""
        with self._changing():
            super().copy(path1, path2, *args, **options)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        """Rename a file or a whole directory; lists and patterns are copied and removed, all or nothing."""
        with self._changing() as tx:
            if isinstance(path1, list) or self._is_pattern(path1) or maxdepth is not None:
                super().mv(path1, path2, recursive, maxdepth, **options)
                return
            source, target = self._strip_protocol(path1), self._strip_protocol(path2)
            if source != target:
                if self.isdir(target):
                    target = f"{target}/{source.rpartition('/')[2]}"
                tx.move(self._relative(source), self._relative(target))

    def symlink(self, src: Any, dst: Any) -> None:
        """A symbolic link `dst` that says `src`, as fsspec's local file system makes one."""
        with self._changing() as tx:
            tx.symlink(self._strip_protocol(src), self._relative(dst))

    def link(self, src: Any, dst: Any) -> None:
        """A second name of a file: a hard link, until one of them is replaced."""
        source, target = (paths.normalize(self._relative(path)) for path in (src, dst))
        with self._changing() as tx, tx._call() as staging, staging.step():
            subtrees.link(staging, source, target)

    def chmod(self, path: Any, mode: int) -> None:
        """See `FileTransaction.chmod`."""
        with self._changing() as tx:
            tx.chmod(self._relative(path), mode)

    def rm_file(self, path: Any) -> None:
        with self._changing() as tx:
            tx.delete(self._relative(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, and with `recursive` directories; of links, the link. All or nothing."""
        with self._changing() as tx:
            found = path if isinstance(path, list) else [path]
            if maxdepth is not None or any(map(self._is_pattern, found)):
                found = self.expand_path(path, recursive=recursive and maxdepth is not None, maxdepth=maxdepth)
            for one in reversed(found):
                where = self._relative(one)
                if not recursive or not self.isdir(one) or self.islink(one):
                    tx.delete(where)
                elif maxdepth is None or not tx.listdir(where):
                    tx.delete_tree(where)

    def _is_pattern(self, path: Any) -> bool:
        return has_magic(stringify_path(path)) and not self.lexists(path)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
