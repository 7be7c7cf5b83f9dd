"""`Snapshot`: reads of one committed state."""

from __future__ import annotations

import errno
import math
import stat
import threading
import warnings
from typing import TYPE_CHECKING, Any, Self, TypeVar

from txfiles._commit.home import is_missing
from txfiles._disk.interrupts import HeldBack
from txfiles._disk.system import KernelFS, release
from txfiles._format import json, paths
from txfiles._reading.nothing import Nothing
from txfiles._reading.question import Question, expired
from txfiles._reading.reader import Reader
from txfiles._reading.resting import read_at_rest
from txfiles._tree import facts, subtrees
from txfiles._tree.view import C, View, refuse_special, version_of
from txfiles.errors import ConflictError, TransactionClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from txfiles._disk.system import FileSystem, Stat
    from txfiles._format.paths import AnyPath
    from txfiles._reading.resting import Resting
    from txfiles._tree.facts import FileStat
    from txfiles._tree.tree import Tree
    from txfiles.objects.reader import FarReader
    from txfiles.objects.state import State

__all__ = ["Snapshot"]

T = TypeVar("T")

_CHUNK = 1 << 20
_SMALL = 1 << 16  # bytes up to which a pinned file is kept in memory
_KEEP_OPEN = 64  # descriptors that a snapshot holds for its larger pinned files; the rest are kept in memory, too

_forks = 0  # between the process that imported this module and the one that runs
_mutex_after_fork = threading.RLock()


def _note_fork() -> None:
    global _forks, _mutex_after_fork
    _forks += 1
    _mutex_after_fork = threading.RLock()


KernelFS().on_fork(_note_fork)


class Snapshot:
    """Reads of one committed state of a root, made by `FileStore.snapshot`; a context manager.

    The state is the last committed one at the moment of entering. Files named to `FileStore.snapshot` are opened at
    once and stay readable as they are then, whatever is committed later. Any other file is opened when it is read: if
    a later commit has replaced it, `SnapshotExpiredError` is raised; never is one file of one state and another of
    another. Up to 64 descriptors are held; pinned files of up to 64 KiB, and those beyond 64, are kept in memory.

    Nothing is locked, no writer is held up, and no commit under way is waited for: the state is the one before it.
    Where a writer has died, it is recovered. If that may not be, as on a read-only mount, the state is read through
    the journal; and so it is, after the store's `timeout`, where a writer cannot be seen to live. Without a dead writer
    nothing is written, and no write permission is needed.

    Entering raises `LockTimeoutError` when the root is not at rest for a moment in all of `timeout`,
    `PermissionError` when its private directory cannot be read, `RecoveryError` and its kinds when nobody can tell the
    state before recovery is given a decision, and `OSError`. Paths are those of `FileTransaction`.

    A snapshot may be used by several threads; it belongs to the process that entered it. A forked child can read what
    is in memory, and close its descriptors; everything else raises `TransactionClosedError` there.

    Programs that do not use txfiles are not seen: a file that one of them changes changes in the snapshot, too, unless
    it was replaced by a rename and is pinned.

    >>> with store.snapshot("a.json", "b.json") as snap:
    ...     a, b = snap.read_json("a.json"), snap.read_json("b.json")
    """

    _open = _ended = False
    _of_nothing = False  # the root is still to be made
    _resting: Resting | None = None  # while nothing but this was asked, there is no reader
    _reader: Reader | Nothing | FarReader | None = None
    _state_on_store: State | None = None
    _state_version: str | None = None

    def __init__(
        self,
        fs: FileSystem,
        root: bytes,
        names: Sequence[AnyPath],
        timeout: float | None,
        *,
        durable: bool,
        create: bool,
        links_out: bool = False,
        far: Callable[[], FarReader] | None = None,
    ) -> None:
        """For `FileStore.snapshot`. Nothing is read before it is entered. Raises `InvalidPathError`."""
        self._far = far
        self._fs = fs
        self._root = root
        self._names = paths.normalize_all(names)
        self._timeout = timeout
        self._durable = durable
        self._create = create
        self._links_out = links_out
        self._contents: dict[bytes, bytes] = {}  # of those pinned files that are in memory
        self._contents_read: set[bytes] = set()
        self._pinned: dict[bytes, _File | None] = {}
        self._answers: dict[tuple[str, bytes], object] = {}
        self._mutex = threading.RLock()
        self._forks = _forks

    def __repr__(self) -> str:
        state = "open" if self._open else "ended" if self._ended else "new"
        return f"<Snapshot {paths.decode(self._root)!r} {state}>"

    @property
    def root(self) -> str:
        """The absolute path of the root."""
        return paths.decode(self._root)

    @property
    def state_version(self) -> str:
        """The version of the state, as `FileStore.state_version` tells it; also when the snapshot has ended."""
        if self._state_version is None:
            raise TransactionClosedError("the snapshot was not entered")
        return self._state_version

    @property
    def _far_state(self) -> State | None:
        """The state on object storage that is read; `None` before it is entered."""
        return self._state_on_store

    @property
    def _far_view(self) -> Any:
        """The view of the state on object storage. REQUIRES: it is open."""
        return getattr(self._open_reader(), "_view")  # noqa: B009

    # -- begin and end ------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._open or self._ended:
            raise TransactionClosedError("the snapshot was entered already; make a new one")
        self._forks = _forks
        try:
            if not self._begin_at_rest():
                with HeldBack():
                    try:
                        self._begin()
                    except OSError as error:
                        paths.give_name(error, self._root)
                        raise
            return self
        except BaseException:
            self._free()
            raise

    def _begin_at_rest(self) -> bool:
        """Whether the pinned files could be read without more ado, and be all that is needed so far."""
        self._open = True
        if not self._names or self._far is not None or self._links_out:
            return False
        self._resting = resting = read_at_rest(self._fs, self._root, self._names, _SMALL)
        if resting is None:
            return False
        self._state_version = resting.version
        self._contents = dict(zip(self._names, resting.contents, strict=True))
        return True

    def _begin(self) -> None:
        """REQUIRES: in `HeldBack`: an `OSError` of a handler is not taken for a missing root."""
        self._of_nothing = self._far is None and self._create and is_missing(self._fs, self._root)
        if self._far is not None:
            reader: Reader | Nothing | FarReader = self._far()
        elif self._of_nothing:
            reader = Nothing(self._fs, self._root)
        else:
            reader = self._make_reader()
        self._reader = reader
        files = reader.begin(_Files(self._fs, self._names), follow=not self._names)
        self._pinned = dict(zip(self._names, files, strict=True))
        self._contents = {name: file.data for name, file in self._pinned.items() if file and file.data is not None}
        self._state_version = reader.version
        self._state_on_store = getattr(reader, "state", None)

    def _make_reader(self) -> Reader:
        return Reader(self._fs, self._root, self._timeout, durable=self._durable, links_out=self._links_out)

    def close(self) -> None:
        """End the snapshot and free its descriptors, of this process only; may be called again."""
        with self._serially():
            self._ended = True
            if self._reader is None:
                self._open = False
                return
            with HeldBack():
                self._free()

    def _free(self) -> None:
        self._open = False
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
            _drop(self._fs, self._pinned.values())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._open:
            try:
                if self._forks == _forks:
                    warnings.warn(f"{self!r} was dropped while open", ResourceWarning, stacklevel=2, source=self)
            finally:  # also where warnings are errors
                self.close()

    def _require_open(self) -> None:
        if not self._open:
            raise TransactionClosedError(f"the snapshot {'has ended' if self._ended else 'was not entered'}")

    def _open_reader(self) -> Reader | Nothing | FarReader:
        self._require_open()
        self._require_mine()
        if self._reader is None:
            assert self._resting is not None
            try:
                reader = self._make_reader()
            except FileNotFoundError as error:
                raise expired(self._root, "the directory") from error
            self._reader = reader
            reader.begin_from(self._resting.version, self._resting.mark)
        return self._reader

    def _serially(self) -> threading.RLock:
        """What serialises the calls; in a forked child another one, for a thread that is not there may have the own."""
        return self._mutex if self._forks == _forks else _mutex_after_fork

    def _require_mine(self) -> None:
        """A descriptor and its copy in a forked child have one offset: both would read half of a file or directory."""
        if self._forks != _forks:
            raise TransactionClosedError("the snapshot belongs to the process that entered it")

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, path: AnyPath) -> bytes:
        """The content of a file. Raises `SnapshotExpiredError`, `OSError` and `InvalidPathError`."""
        name = paths.normalize(path)
        content = self._contents.get(name)
        if content is not None and self._open:
            self._contents_read.add(name)
            return content
        with self._serially(), HeldBack():
            self._require_open()
            pins = self._pins()
            if name in pins:
                return self._content(name, pins[name])
            reader, question = self._open_reader(), _Files(self._fs, (name,))
            try:
                with paths.Naming(name):
                    files = reader.ask(question)
            except OSError as error:
                self._answers["file", name] = type(error)
                raise
            try:
                return self._content(name, files[0])
            finally:
                question.drop(files)

    def _content(self, name: bytes, file: _File | None) -> bytes:
        self._answers["file", name] = FileNotFoundError if file is None else file
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", paths.decode(name))
        if file.data is not None:
            return file.data
        self._require_mine()
        with paths.Naming(name):
            return file.content(self._fs)

    def _pins(self) -> dict[bytes, _File | None]:
        """The pinned files, of which not even these objects are made while nothing but their contents is read."""
        if not self._pinned and self._resting is not None:
            files = zip(self._names, self._resting.found, self._resting.contents, strict=True)
            self._pinned = {name: _File(found, -1, data) for name, found, data in files}
        return self._pinned

    def read_text(self, path: AnyPath, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The same, decoded; newlines as they are. Raises `UnicodeDecodeError`."""
        return self.read(path).decode(encoding, errors)

    def read_json(self, path: AnyPath) -> Any:
        """The same, parsed as JSON. Raises `DocumentError` with the path; integers of any size stay exact."""
        return json.loads(self.read(path), paths.decode(paths.to_bytes(path)))

    def exists(self, path: AnyPath) -> bool:
        """Whether there is a file or directory; a symbolic link counts as what it leads to."""
        name = paths.normalize(path, directory=True)
        return self._ask("exists", name, _exists, lambda file: file is not None)

    def listdir(self, path: AnyPath = ".") -> list[str]:
        """The names in a directory, sorted, without the private directory. Raises `OSError`."""
        return list(self._ask("listdir", paths.normalize(path, directory=True), _listdir))

    def glob(self, pattern: str | bytes, *, exclude: Iterable[str | bytes] = ()) -> list[str]:
        """The files (not directories) whose relative path matches, sorted; patterns as in `FileTransaction.glob`."""
        if isinstance(exclude, (str, bytes)):
            raise paths.one_pattern(exclude)
        return list(self._ask("glob", _packed([pattern, *exclude]), _glob))

    def is_dir(self, path: AnyPath) -> bool:
        """Whether there is a directory, or a symbolic link to one. What cannot be seen raises `OSError`."""
        return self._ask("kind", paths.normalize(path, directory=True), facts.kind, _kind_of_pinned) == "dir"

    def is_file(self, path: AnyPath) -> bool:
        """Whether there is a regular file, or a symbolic link to one. What cannot be seen raises `OSError`."""
        return self._ask("kind", paths.normalize(path, directory=True), facts.kind, _kind_of_pinned) == "file"

    def stat(self, path: AnyPath, *, follow_symlinks: bool = True) -> FileStat:
        """Mode, size, time and owner of a file or directory, or of a link itself. Raises `OSError`."""
        name = paths.normalize(path, directory=True)
        if not follow_symlinks:
            return self._ask("lstat", name, _lstat)
        return self._ask("stat", name, facts.stat, lambda file: _stat_of_pinned(name, file))

    def readlink(self, path: AnyPath) -> str:
        """The text of a symbolic link. Raises `OSError`, with EINVAL for anything else."""
        return self._ask("readlink", paths.normalize(path), facts.readlink)

    def iterdir(self, path: AnyPath = ".") -> list[str]:
        """As `listdir`, the paths instead of the names."""
        return list(self._ask("iterdir", paths.normalize(path, directory=True), facts.iterdir))

    def walk(
        self, path: AnyPath = ".", *, exclude: Iterable[str | bytes] = ()
    ) -> list[tuple[str, list[str], list[str]]]:
        """Every directory from `path` down, as `FileTransaction.walk` has it."""
        if isinstance(exclude, (str, bytes)):
            raise paths.one_pattern(exclude)
        what = b"\0".join([paths.normalize(path, directory=True), _packed(exclude)])
        return [(where, [*dirs], [*files]) for where, dirs, files in self._ask("walk", what, _walk)]

    def version(self, path: AnyPath) -> str | None:
        """The version of a file, as `FileTransaction.version` tells it; `None` for a missing file."""
        return self._ask(
            "version", paths.normalize(path), _version, lambda file: None if file is None else file.version
        )

    def _ask(
        self,
        kind: str,
        what: bytes,
        query: Callable[[View[Any], bytes], T],
        pinned: Callable[[_File | None], T] | None = None,
    ) -> T:
        with self._serially(), HeldBack():
            self._require_open()
            try:
                if pinned is not None and what in self._pins():
                    answer = pinned(self._pins()[what])
                else:
                    answer = self._open_reader().ask(_Names(query, what))
            except OSError as error:
                self._answers[kind, what] = type(error)
                raise
            self._answers[kind, what] = answer
            return answer

    # -- optimistic transactions --------------------------------------------------------------------------------

    def _require_unchanged(self, tree: Tree) -> None:
        """Raise `ConflictError` if anything that was read, listed or looked up is otherwise in `tree` now."""
        view: View[Any] = tree.own_view() or View(tree.fs, tree, tree.at)
        with self._serially():
            pins = self._pins()
            answers = self._answers | {("file", name): pins[name] for name in self._contents_read.copy()}
            for (kind, what), answer in answers.items():
                expected = answer.version if isinstance(answer, _File) else answer
                now: object
                try:
                    now = _QUERIES[kind](view, what)
                except OSError as error:
                    now = type(error)
                if now != expected:
                    shown = paths.decode(what)
                    raise ConflictError(f"{shown!r} was changed since it was read through the snapshot", path=shown)


def _exists(view: View[C], path: bytes) -> bool:
    return view.exists(path)


def _listdir(view: View[C], path: bytes) -> list[str]:
    return [paths.decode(name) for name in view.listdir(view.resolve(path))]


def _glob(view: View[C], patterns: bytes) -> list[str]:
    pattern, *exclude = patterns.split(b"\0")
    return subtrees.glob(view, pattern, exclude)


def _packed(patterns: Iterable[str | bytes]) -> bytes:
    found = list(patterns)
    paths.compile_globs(found)  # so there is no NUL byte in any of them
    return b"\0".join(map(paths.to_bytes, found))


def _lstat(view: View[C], path: bytes) -> FileStat:
    return facts.stat(view, path, follow=False)


def _walk(view: View[C], what: bytes) -> list[tuple[str, list[str], list[str]]]:
    path, *exclude = what.split(b"\0")
    return facts.walk(view, path, [pattern for pattern in exclude if pattern])


def _kind_of_pinned(file: _File | None) -> str | None:
    return None if file is None else "file"


def _stat_of_pinned(name: bytes, file: _File | None) -> FileStat:
    if file is None:
        raise FileNotFoundError(errno.ENOENT, "no such file", paths.decode(name))
    return facts.stat_of(file.stat)


def _version(view: View[C], path: bytes) -> str | None:
    return view.version(view.resolve(path))


_QUERIES: dict[str, Callable[[View[Any], bytes], object]] = {
    "exists": _exists,
    "listdir": _listdir,
    "glob": _glob,
    "version": _version,
    "kind": facts.kind,
    "stat": facts.stat,
    "lstat": _lstat,
    "readlink": facts.readlink,
    "iterdir": facts.iterdir,
    "walk": _walk,
    "file": lambda view, path: _identify(view, path).version,
}


class _File:
    """An open file, or the content of one, or only what is known of one. Two are equal when they are one inode."""

    __slots__ = ("_version", "data", "fd", "stat")

    def __init__(self, found: Stat, fd: int = -1, data: bytes | None = None, version: str = "") -> None:
        self.stat = found
        self.fd = fd
        self.data = data
        self._version = version  # of a file that is in no file system

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _File):
            return NotImplemented
        if self._version:
            return self._version == other._version
        return self.stat.st_ino == other.stat.st_ino and self.stat.st_dev == other.stat.st_dev

    @property
    def version(self) -> str:
        return self._version or version_of(self.stat)

    def content(self, fs: FileSystem) -> bytes:
        """REQUIRES: it is open."""
        fs.seek(self.fd, 0, 0)
        return _read(fs, self.fd, self.stat.st_size, b"")


def _read(fs: FileSystem, fd: int, size: int, path: bytes) -> bytes:
    """All of a file that had `size` bytes."""
    data = fs.read(fd, size + 1)
    if len(data) == size:
        return data
    if not stat.S_ISREG(fs.fstat(fd).st_mode):
        raise refuse_special(path)
    chunks = [data]
    while chunk := fs.read(fd, _CHUNK):
        chunks.append(chunk)
    return b"".join(chunks)


def _open(fs: FileSystem, view: View[C], path: bytes, in_memory: float) -> _File:
    """Open a file, or read it if it has at most so many bytes."""
    held = view.held(path)
    if held is not None:
        return _File(held.stat, -1, held.content(), held.version)
    try:
        at, name, found = view.file(path)
        fd = fs.open_read(at, name)
    except OSError as error:
        paths.give_name(error, path)
        raise
    try:
        if not view.is_still or found.st_size > in_memory:
            found = fs.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise refuse_special(path)
        if found.st_size > in_memory:
            file, fd = _File(found, fd), -1
        else:
            file = _File(found, -1, _read(fs, fd, found.st_size, path))
    finally:
        if fd >= 0:
            release(fs, fd)
    return file


def _identify(view: View[C], path: bytes) -> _File:
    held = view.held(path)
    return _File(view.file(path)[2]) if held is None else _File(held.stat, version=held.version)


class _Files(Question[list[_File | None]]):
    """Opens files; `None` is a missing one. Raises for what is there and no file."""

    by_name = False

    def __init__(self, fs: FileSystem, names: Sequence[bytes]) -> None:
        self._fs = fs
        self.names = names

    def ask(self, view: View[Any]) -> list[_File | None]:
        files: list[_File | None] = []
        kept = 0
        try:
            for name in self.names:
                try:
                    file = _open(self._fs, view, name, _SMALL if kept < _KEEP_OPEN else math.inf)
                except FileNotFoundError:
                    files.append(None)
                    continue
                files.append(file)
                if file.data is None:
                    kept += 1
        except BaseException:
            self.drop(files)
            raise
        return files

    def again(self, view: View[Any]) -> list[_File | None]:
        files: list[_File | None] = []
        for name in self.names:
            try:
                files.append(_identify(view, name))
            except FileNotFoundError:
                files.append(None)
        return files

    def drop(self, files: Iterable[_File | None]) -> None:
        _drop(self._fs, files)


def _drop(fs: FileSystem, files: Iterable[_File | None]) -> None:
    for file in files:
        if file is not None and file.fd >= 0:
            fd, file.fd = file.fd, -1
            release(fs, fd)


class _Names(Question[T]):
    """Asks about names: whether, which, in what version."""

    def __init__(self, query: Callable[[View[Any], bytes], T], what: bytes) -> None:
        self._query = query
        self._what = what

    def ask(self, view: View[Any]) -> T:
        return self._query(view, self._what)
