"""`FileTransaction`: the calls that a user makes, and nothing of the protocol."""

from __future__ import annotations

import errno
import math
import stat
import threading
import time
import warnings
from collections.abc import Iterable
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, Self, overload

from txfiles._commit import two_phase
from txfiles._commit.home import Home, locate
from txfiles._commit.protocol import Commit, prepare, run_to_end
from txfiles._commit.recover import ensure_format, recover_locked, rests
from txfiles._disk import system
from txfiles._disk.lock import here
from txfiles._disk.system import release
from txfiles._format import json, paths
from txfiles._tree import streams, subtrees
from txfiles._tree.staging import ABSENT, Place, Staging, refuse_special, require_version
from txfiles._tree.tokens import Tokens, Writer
from txfiles.errors import (
    CommitError,
    LockTimeoutError,
    TransactionClosedError,
    TxFilesError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from txfiles._format.journal import Durability, Journal
    from txfiles._format.paths import AnyPath
    from txfiles._tree.tree import Node

__all__ = ["FileTransaction"]

_CHUNK = 1 << 20
_AGES = 1e12  # seconds; more than clocks can add
_WAIT_FOR_DECISION = 0.05  # seconds between two looks at a prepared transaction
_EMPTY = ".empty"  # ends the id of a prepared transaction that changes nothing
_MODES = ("r", "rb", "w", "wb", "a", "ab", "x", "xb")


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


Data = bytes | bytearray | memoryview | str | _Readable | Iterable[bytes]


class _Unset:
    pass


_UNSET = _Unset()


class FileTransaction:
    """A change of several files below `root` that happens as a whole or not at all.

    As a context manager it begins on entering, commits at the end of the block, and rolls back when the block raises.

    Args:
        root: the directory; it must exist unless `create`. It is fixed here: a later `chdir` changes nothing.
        durability: `"full"`, safe against power loss once the commit returned; `"process"`, no fsync at all, safe
            against the death of the process only.
        timeout: seconds to wait for other writers of the root; `None` for ever, `0` not at all.
        create: make the root when it is missing.

    Paths are relative to the root, `str`, `bytes` or `os.PathLike`. Before the commit nothing of the root changes; what
    is staged lies in its private directory `.txfiles`. A transaction may be handed from thread to thread, and its
    calls are serialised; it belongs to the process that began it.

    >>> with FileTransaction(root) as tx:
    ...     tx.write("a.txt", "one")
    ...     tx.write_json("b.json", {"two": 2})
    """

    _state: Literal["new", "open", "prepared", "ended"] = "new"  # also where `__init__` was never entered

    def __init__(
        self,
        root: AnyPath,
        *,
        durability: Durability = "full",
        timeout: float | None = 10.0,
        create: bool = False,
    ) -> None:
        check_settings(durability, timeout)
        self._fs = system.current()
        self._root = locate(self._fs, root)
        self._durability: Durability = durability
        self._timeout = timeout
        self._create = create
        self._owner: object = None
        self._journal: Journal | None = None  # of a prepared transaction that changes anything
        self._mutex = threading.RLock()
        self._writing: set[str] = set()
        self._pid = -1

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {paths.decode(self._root)!r} {self._state}>"

    # -- begin and end ------------------------------------------------------------------------------------------

    def begin(self) -> Self:
        """Take the lock, recover what a crash left, and begin. Returns the transaction.

        Raises `LockTimeoutError`, `NestedTransactionError`, `RecoveryError` and its kinds,
        `UnsupportedFilesystemError`, and `OSError` where the root cannot be opened or written.
        """
        if self._state != "new":
            raise TransactionClosedError("the transaction has begun already; make a new one")
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            with paths.Naming(self._root):
                home = Home.open(self._fs, self._root, create=self._create)
                try:
                    waiting = self._enter(home, deadline)
                    if waiting is None:
                        return self
                except BaseException:
                    run_to_end(home.close)
                    raise
                home.close()
            if deadline is not None and time.monotonic() >= deadline:
                raise LockTimeoutError(waiting, path=paths.decode(self._root))
            time.sleep(_WAIT_FOR_DECISION)

    def _enter(self, home: Home, deadline: float | None) -> str | None:
        """Lock and recover; what to wait for, or `None` when the transaction is open."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        home.lock.acquire(left, here() if self._owner is None else self._owner)
        if not home.is_in_place():
            return f"the private directory of {paths.decode(self._root)!r} keeps being replaced"
        if not rests(home):
            report = recover_locked(home, durable=self._durability == "full")
            if report.waiting:
                prepared = report.waiting[0].transaction_id
                return f"transaction {prepared} of {paths.decode(self._root)!r} is prepared and waits for a decision"
            ensure_format(home)
        self._tokens = Tokens(self._fs, home.private_fd, self._fs.random_id(), durable=self._durability == "full")
        self._staging = Staging(self._fs, home.tree, self._tokens)
        self._home = home
        self._pid = self._fs.pid()
        self._state = "open"
        return None

    def commit(self) -> None:
        """Make the change, whole and (with `durability="full"`) safe against power loss when this returns.

        Raises `CommitError`, `ConflictError`, `UnsupportedFilesystemError` or `InvalidPathError` when nothing has
        changed, `SettleError` when all has, `CommitOutcomeUnknownError` when recovery has to decide. Whatever
        happens, the transaction has ended and the lock is free. After `prepare` see there.
        """
        self._require_mine()
        with self._mutex:
            if self._state == "prepared":
                self._decide(two_phase.commit)
                return
            self._require_open()
            self._refuse_open_savepoint()
            try:
                self._refuse_open_files()
                journal = prepare(self._home, self._staging, self._durability)
                if journal is not None:
                    Commit(self._home, journal)()
            except BaseException as failure:
                self._end_interrupted(failure)
                raise
            self._end(discard=False)

    def rollback(self) -> None:
        """Forget everything that was staged, or prepared. Nothing on disk has changed; the lock is free."""
        self._require_mine()
        with self._mutex:
            if self._state == "prepared":
                self._decide(two_phase.roll_back)
                return
            self._require_open()
            self._end(discard=True)

    @property
    def transaction_id(self) -> str:
        """The id under which recovery, `status` and log records name the transaction, 32 hex digits.

        Raises `TransactionClosedError` before `begin`.
        """
        if self._state == "new":
            raise TransactionClosedError("the transaction has not begun")
        return self._tokens.tid

    def prepare(self) -> str:
        """Make the change durable without making it, and return an id: the first phase of two.

        Then somebody else decides, say a database of which the same transaction is a part, and the second phase is
        `commit` or `rollback`, or, from any process that knows the id, `commit_prepared` or `rollback_prepared`. Until
        then no other transaction of the root can begin: it waits, at most for its timeout. Neither a crash nor
        recovery decides (after a power loss that holds with `durability="full"` only): `recover` reports the
        transaction as `waiting`. Leaving the `with` block without a decision, also by an exception, frees the lock and
        leaves the transaction prepared.

        The second phase can fail where files were changed by other programs since, with `RecoveryConflictError`: the
        transaction still waits, and `commit_prepared` can be told what to do. Otherwise only where the disk fails:
        with `CommitOutcomeUnknownError` it still waits, or the next recovery finishes it.

        A transaction that changes nothing leaves nothing to wait. It has an id, too, which `commit_prepared` and
        `rollback_prepared` accept.

        Raises what `commit` raises; the transaction has ended then, and nothing is prepared.

        >>> with FileTransaction(root) as tx:
        ...     tx.write("photo.jpg", data)
        ...     with database:
        ...         database.insert("photo.jpg", decided=tx.prepare())
        ...     tx.commit()
        """
        self._require_mine()
        with self._mutex:
            self._require_open()
            self._refuse_open_savepoint()
            try:
                self._refuse_open_files()
                self._journal = prepare(self._home, self._staging, self._durability, two_phase=True)
                self._state = "prepared"
                if self._journal is not None:
                    two_phase.make_prepared(self._home, self._journal)
            except BaseException:
                self._end(discard=False)
                raise
            return self._tokens.tid if self._journal is not None else self._tokens.tid + _EMPTY

    def _decide(self, end: Callable[[Home, Journal], None]) -> None:
        try:
            if self._journal is not None:
                self._home.require_in_place()
                end(self._home, self._journal)
        finally:
            self._end(discard=False)

    def _end_interrupted(self, failure: BaseException) -> None:
        """End after a failure. An interrupt can come between two steps, too: there recovery goes on."""
        try:
            if not isinstance(failure, Exception) and failure.__cause__ is None:
                with suppress(OSError, TxFilesError):  # then the next transaction does it
                    run_to_end(self._bring_to_rest)
        finally:
            self._end(discard=False)

    def _bring_to_rest(self) -> None:
        self._tokens.drop()
        if not rests(self._home):
            recover_locked(self._home, durable=self._durability == "full")

    def _end(self, *, discard: bool) -> None:
        def end() -> None:
            self._state = "ended"
            failed: Exception | None = None
            try:
                if discard:
                    self._tokens.remove_all()
            except Exception as error:
                failed = error
            self._tokens.forget()
            self._home.close()
            if failed is not None:
                raise failed

        try:
            run_to_end(end)
        except BaseException:  # whatever a signal handler raised in the midst of it, or before
            try:
                run_to_end(end)
            finally:
                self._home.close()
            raise

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._state == "prepared" and self._pid == self._fs.pid():
                self._end(discard=False)
            if self._state != "open" or self._pid != self._fs.pid():
                return
            if error is None:
                self.commit()
                return
            try:
                self.rollback()
            except OSError as failed:
                error.add_note(f"txfiles: rolled back, but staged files could not be removed: {failed}")
        finally:  # an interrupt may have come before any of it
            if self._state == "open" and self._pid == self._fs.pid():
                self._end(discard=True)

    def __del__(self) -> None:
        if self._state == "prepared" and self._pid == self._fs.pid():
            self._end(discard=False)
        if self._state == "open" and self._pid == self._fs.pid():
            message = f"{self!r} was dropped while open; it is rolled back"
            try:
                warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            finally:  # also where warnings are errors
                self._end(discard=True)

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, path: AnyPath) -> bytes:
        """The content of a file, as staged or else as on disk. Raises `OSError` and `InvalidPathError`."""
        with self._call() as staging, paths.Naming(paths.to_bytes(path)):
            fd = self._open_to_read(staging, path)
            try:
                chunks = []
                while chunk := self._fs.read(fd, _CHUNK):
                    chunks.append(chunk)
                return b"".join(chunks)
            finally:
                release(self._fs, fd)

    def read_text(self, path: AnyPath) -> str:
        """The same, decoded from UTF-8; newlines as they are. Raises `UnicodeDecodeError`."""
        return self.read(path).decode()

    def read_json(self, path: AnyPath) -> Any:
        """The same, parsed as JSON. Raises `DocumentError` with the path; integers of any size stay exact."""
        return json.loads(self.read(path), paths.decode(paths.to_bytes(path)))

    def exists(self, path: AnyPath) -> bool:
        """Whether there is a file or directory; a symbolic link counts as what it leads to."""
        with self._call() as staging:
            return staging.exists(paths.normalize(path, directory=True))

    def listdir(self, path: AnyPath = ".") -> list[str]:
        """The names in a directory, sorted, without the private directory. Raises `OSError`."""
        with self._call() as staging:
            resolved = staging.resolve(paths.normalize(path, directory=True))
            return [paths.decode(name) for name in staging.listdir(resolved)]

    def glob(self, pattern: str | bytes) -> list[str]:
        """The files (not directories) whose relative path matches, sorted.

        `*`, `?` and `[...]` stay within one component, `**` spans any number of them; a leading dot is nothing
        special. Symbolic links to directories are not entered.
        """
        with self._call() as staging:
            return subtrees.glob(staging, pattern)

    def version(self, path: AnyPath) -> str | None:
        """The version of a file: an opaque string that changes with every replacement; `None` for a missing file."""
        with self._call() as staging:
            return staging.version(staging.resolve(paths.normalize(path)))

    # -- changing -----------------------------------------------------------------------------------------------

    def write(self, path: AnyPath, data: Data, *, if_version: str | _Unset | None = _UNSET) -> None:
        """Stage the whole content of a file; missing parents are made.

        Args:
            data: bytes-like, `str` (as UTF-8, newlines as they are), a binary file object (read from its position
                to its end) or an iterable of bytes. It is taken now: a later change of it changes nothing.
            if_version: replace only this version of the file (`None`: only if there is none), or `ConflictError`.

        Raises `InvalidPathError`, `ConflictError`, `TypeError`, and `OSError` while staging; nothing of this call is
        staged then, and the transaction can go on.
        """
        with self._call() as staging, staging.step():
            place = self._target(staging, path)
            if not isinstance(if_version, _Unset):
                require_version(place.path, staging.version(place.path), if_version)
                if place.path not in staging.entries:
                    staging.expect(place.path, if_version)
            self._stage(staging, place, _chunks(data))

    def write_json(
        self,
        path: AnyPath,
        value: Any,
        *,
        indent: int | None = 2,
        if_version: str | _Unset | None = _UNSET,
    ) -> None:
        """Stage a JSON document: UTF-8, indented by 2 (or compact with `indent=None`), with a final newline.

        Dates, UUIDs, enums and dataclasses are written as orjson does. Raises `DocumentError` for NaN, infinities,
        integers beyond 64 bits, keys that are not strings, lone surrogates, and other types; nothing is staged then.
        """
        self.write(path, json.dumps(value, indent, paths.decode(paths.to_bytes(path))), if_version=if_version)

    @overload
    def open(self, path: AnyPath, mode: Literal["r", "w", "a", "x"] = "r") -> IO[str]: ...
    @overload
    def open(self, path: AnyPath, mode: Literal["rb", "wb", "ab", "xb"]) -> IO[bytes]: ...
    @overload
    def open(self, path: AnyPath, mode: str) -> IO[Any]: ...
    def open(self, path: AnyPath, mode: str = "r") -> IO[Any]:
        """A file object on a file of the transaction; modes r, rb, w, wb, a, ab, x, xb. Text is UTF-8.

        Written content is staged when the file object is closed, or not at all when its `with` block raises. It is
        streamed and cannot seek. Raises as `open` does, and `ValueError` for other modes.
        """
        if mode not in _MODES:
            raise ValueError(f"mode {mode!r} is not one of {', '.join(_MODES)}")
        text = not mode.endswith("b")
        with self._call() as staging:
            if mode[0] == "r":
                return streams.reader(self._fs, self._open_to_read(staging, path), text=text)
            return self._open_to_write(staging, path, mode[0], text=text)

    def _open_to_write(self, staging: Staging, path: AnyPath, how: str, *, text: bool) -> IO[Any]:
        place = self._target(staging, path)
        shown = paths.decode(place.path)
        exists = place.identity is not None
        if how == "x" and exists:
            raise FileExistsError(errno.EEXIST, "the file exists", shown)
        if shown in self._writing:
            raise OSError(errno.EBUSY, "the file is open for writing already", shown)
        writer = self._tokens.new(place.path)
        try:
            if how == "a" and exists:
                for chunk in self._read_chunks(staging, place.path):
                    writer.write(chunk)
        except BaseException:
            writer.discard()
            raise
        self._writing.add(shown)

        def is_mine() -> bool:
            return self._pid == self._fs.pid()

        def finish() -> None:
            if not is_mine():
                writer.close()
                return
            with self._mutex:
                self._writing.discard(shown)
                try:
                    if self._state == "open":
                        with staging.step():
                            self._put(staging, staging.place(place.path), writer)
                finally:
                    writer.discard()

        def discard() -> None:
            if not is_mine():
                writer.close()
                return
            with self._mutex:
                self._writing.discard(shown)
                writer.discard()

        return streams.writer(writer, finish, discard, is_mine, text=text)

    def delete(self, path: AnyPath, *, missing_ok: bool = False) -> None:
        """Stage the removal of a file or of a symbolic link. Raises `FileNotFoundError`, `IsADirectoryError`."""
        with self._call() as staging, staging.step():
            try:
                resolved = staging.resolve(paths.normalize(path), follow_last=False)
                staging.require_file(resolved, links=True)
            except FileNotFoundError:
                if missing_ok:
                    return
                raise
            staging.put(resolved, ABSENT)

    def delete_tree(self, path: AnyPath) -> None:
        """Stage the removal of a directory with all that is in it; links in it are removed, not followed.

        Raises `OSError`, and `InvalidPathError` for a special file or another root in it.
        """
        with self._call() as staging, staging.step():
            resolved = self._directory(staging, path)
            staging.require_directory(resolved)
            subtrees.delete_tree(staging, resolved)

    def move(self, source: AnyPath, target: AnyPath) -> None:
        """Stage a rename of a file, a symbolic link (itself) or a directory; missing parents are made.

        An existing file is replaced, a directory is not. A moved file keeps its inode, owner and times.

        Raises `OSError`, `InvalidPathError` for a special file or another root that would move, and
        `UnsupportedFilesystemError` where there are no hard links or the file is in another mount.
        """
        with self._call() as staging, staging.step():
            from_path = self._directory(staging, source)
            to_path = self._directory(staging, target)
            _refuse_slashes(staging.look(from_path), source, target)
            subtrees.move(staging, from_path, to_path)

    def copy(self, source: AnyPath, target: AnyPath) -> None:
        """Stage a copy of a file or directory: content, mode and extended attributes; missing parents are made.

        An existing file is replaced, a directory is not. Raises `OSError`, and `InvalidPathError` for a special file.
        """
        with self._call() as staging, staging.step():
            from_path, node = staging.find(paths.normalize(source, directory=True))
            to_path = staging.resolve(paths.normalize(target, directory=True))
            _refuse_slashes(node, source, target)
            subtrees.copy(staging, from_path, to_path)

    def mkdir(self, path: AnyPath) -> None:
        """Stage a directory and its missing parents; one that exists is left as it is. Raises `FileExistsError`."""
        with self._call() as staging, staging.step():
            resolved, node = staging.find(paths.normalize(path, directory=True))
            if node is not None and node.kind != "dir":
                raise FileExistsError(errno.EEXIST, "not a directory", paths.decode(resolved))
            staging.make_parents(resolved)
            staging.make_directory(resolved)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of the transaction: an exception inside undoes what was staged inside, and propagates."""
        with self._call() as staging, staging.step():
            yield

    # -- inside -------------------------------------------------------------------------------------------------

    def _call(self) -> _Call:
        return _Call(self)

    def _require_mine(self) -> None:
        if self._pid not in (-1, self._fs.pid()):
            raise TransactionClosedError("the transaction belongs to the process that began it")

    def _require_open(self) -> None:
        if self._state != "open":
            what = {"new": "has not begun", "prepared": "is prepared", "ended": "has ended"}
            raise TransactionClosedError(f"the transaction {what[self._state]}")

    def _refuse_open_savepoint(self) -> None:
        if self._staging.in_step:
            raise TransactionClosedError("a savepoint is still open")

    def _refuse_open_files(self) -> None:
        if self._writing:
            path = min(self._writing)
            self._tokens.remove_all()
            raise CommitError(f"nothing was changed: {path!r} is still open for writing", path=path)

    def _target(self, staging: Staging, path: AnyPath) -> Place:
        """Where a file is to be written: absent, or regular and not write-protected."""
        normal = paths.normalize(path)
        try:
            place = staging.place(normal)
        except OSError as error:
            paths.give_name(error, normal)
            raise
        if place.meta is not None and not place.meta.mode & 0o222 and self._fs.ids()[0] != 0:
            raise PermissionError(errno.EACCES, "the file is write-protected", paths.decode(place.path))
        return place

    def _directory(self, staging: Staging, path: AnyPath) -> bytes:
        """The resolved path of an entry that is itself moved or removed, not followed."""
        resolved = staging.resolve(paths.normalize(path, directory=True), follow_last=False)
        if not resolved:
            raise OSError(errno.EBUSY, "the root itself cannot be moved or removed", paths.decode(self._root))
        return resolved

    def _stage(self, staging: Staging, place: Place, chunks: Iterable[bytes | memoryview]) -> None:
        writer = self._tokens.new(place.path)
        try:
            for chunk in chunks:  # whose own errors are not about this file
                self._require_open()  # a generator may have ended the transaction
                writer.write(chunk)
            self._put(staging, place, writer)
        finally:
            writer.discard()

    def _put(self, staging: Staging, place: Place, writer: Writer) -> None:
        meta = place.meta
        if meta is None:
            with paths.Naming(place.path):
                staging.make_parents(place.path)
                meta = staging.meta_for_new(place.path)
        staging.put(place.path, writer.finish(meta, place.identity))

    def _open_to_read(self, staging: Staging, path: AnyPath) -> int:
        resolved = staging.resolve(paths.normalize(path))
        staging.require_file(resolved)
        at, name = staging.where(resolved)
        try:
            fd = self._fs.open_read(at, name)
        except OSError as error:
            error.filename = paths.decode(resolved)
            raise
        try:
            if not stat.S_ISREG(self._fs.fstat(fd).st_mode):
                raise refuse_special(resolved)
        except BaseException:
            release(self._fs, fd)
            raise
        return fd

    def _read_chunks(self, staging: Staging, resolved: bytes) -> Iterator[bytes]:
        fd = self._fs.open_read(*staging.where(resolved))
        try:
            while chunk := self._fs.read(fd, _CHUNK):
                yield chunk
        finally:
            release(self._fs, fd)


class _Call:
    """One call of an open transaction, beside which no other runs."""

    __slots__ = ("_tx",)

    def __init__(self, tx: FileTransaction) -> None:
        self._tx = tx

    def __enter__(self) -> Staging:
        tx = self._tx
        tx._require_mine()
        tx._mutex.acquire()
        try:
            tx._require_open()
            return tx._staging
        except BaseException:
            tx._mutex.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._tx._mutex.release()


def check_settings(durability: str, timeout: float | None) -> None:
    if durability not in ("full", "process"):
        raise ValueError(f'durability is "full" or "process", not {durability!r}')
    if timeout is not None and not (
        isinstance(timeout, (int, float)) and (0 <= timeout < _AGES or timeout == math.inf)
    ):
        raise ValueError(f"timeout is a number of seconds, 0 or more, or None; not {timeout!r}")


def is_empty_id(transaction_id: str) -> bool:
    """Whether it is what `prepare` returned for a transaction that changes nothing."""
    return transaction_id.endswith(_EMPTY)


def _refuse_slashes(source: Node | None, *given: AnyPath) -> None:
    """A slash at the end says that a directory is meant: of a file neither the old name nor the new one has it."""
    if source is not None and source.kind != "dir":
        for path in given:
            paths.normalize(path)


def _chunks(data: Data) -> Iterable[bytes | memoryview]:
    if type(data) is bytes:
        return (data,)
    if isinstance(data, str):
        return (data.encode(),)
    view = _view(data)
    return (view,) if view is not None else _read_on(data)


def _read_on(data: object) -> Iterator[bytes | memoryview]:
    read: Callable[[int], bytes] | None = getattr(data, "read", None)
    if read is not None:
        while chunk := _binary(read(_CHUNK)):  # an empty text is none either, nor is nothing yet an end
            yield chunk
        return
    if not isinstance(data, Iterable):
        raise TypeError(f"bytes, str, a binary file object or an iterable of bytes expected, not {type(data).__name__}")
    for part in data:
        yield _binary(part)


def _view(data: object) -> memoryview | bytes | None:
    try:
        view = memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        return None
    try:
        return view.cast("B")
    except (TypeError, ValueError, NotImplementedError):  # with gaps, or of items that are not plain numbers
        return view.tobytes()


def _binary(chunk: object) -> memoryview | bytes:
    view = _view(chunk)
    if view is None:
        raise TypeError(f"bytes expected, not {type(chunk).__name__} (open text files in binary mode)")
    return view
