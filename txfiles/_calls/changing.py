"""The calls of a transaction that change its staged view, and nothing on disk but what is staged."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Literal, overload

from txfiles._calls.content import chunks_of
from txfiles._calls.plan import Plan, change_of
from txfiles._calls.reading import Reading
from txfiles._calls.settings import UNSET, Unset
from txfiles._format import json, paths
from txfiles._tree import streams, subtrees
from txfiles._tree.staging import ABSENT, Place, Staging, require_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from txfiles._calls.content import Data
    from txfiles._format.paths import AnyPath
    from txfiles._tree.tokens import Writer
    from txfiles._tree.tree import Node

_MODES = ("r", "rb", "w", "wb", "a", "ab", "x", "xb")


class Changing(Reading):
    """Changes, each of which is staged as a whole or not at all."""

    def write(self, path: AnyPath, data: Data, *, if_version: str | Unset | None = UNSET) -> None:
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
            if not isinstance(if_version, Unset):
                require_version(place.path, staging.version(place.path), if_version)
                if place.path not in staging.entries:
                    staging.expect(place.path, if_version)
            self._stage(staging, place, chunks_of(data))

    def write_json(
        self,
        path: AnyPath,
        value: Any,
        *,
        indent: int | str | None = 2,
        default: Callable[[Any], Any] | None = None,
        option: int | None = None,
        if_version: str | Unset | None = UNSET,
    ) -> None:
        """Stage a JSON document: UTF-8, with a final newline.

        Args:
            indent: spaces for each level, or the white space itself; `None` for one line.
            default: called with a value of a type that JSON has not; returns one to be written in its place.
            option: of orjson, such as `orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY`.

        Dates, UUIDs, enums and dataclasses are written as orjson does. Raises `DocumentError` for NaN, infinities,
        integers beyond 64 bits, keys that are not strings, lone surrogates, and other types; nothing is staged then.
        """
        shown = paths.decode(paths.to_bytes(path))
        data = json.dumps(value, indent, shown, default=default, option=option)
        self.write(path, data, if_version=if_version)

    @overload
    def open(self, path: AnyPath, mode: Literal["r", "w", "a", "x"] = "r") -> IO[str]: ...
    @overload
    def open(self, path: AnyPath, mode: Literal["rb", "wb", "ab", "xb"]) -> IO[bytes]: ...
    @overload
    def open(self, path: AnyPath, mode: str) -> IO[Any]: ...
    def open(self, path: AnyPath, mode: str = "r") -> IO[Any]:
        """A file object on a file of the transaction; modes r, rb, w, wb, a, ab, x, xb. Text is UTF-8.

        Written content is staged when the file object is closed, or not at all when its `with` block raises. It is
        streamed and cannot seek. Raises as `open` does, and `ValueError` for other modes. A file opened with "x" has to
        be new at the commit, too, or that raises `ConflictError`.
        """
        if mode not in _MODES:
            raise ValueError(f"mode {mode!r} is not one of {', '.join(_MODES)}")
        text = not mode.endswith("b")
        with self._call() as staging:
            if mode[0] == "r":
                return streams.reader(staging.raw(staging.resolve(paths.normalize(path))), text=text)
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
                for chunk in staging.chunks(place.path):
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
                            if how == "x" and place.path not in staging.entries:
                                staging.expect(place.path, None)
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
            resolved, node = staging.peek(paths.normalize(path, directory=True))
            if node is not None and node.kind != "dir":
                raise FileExistsError(errno.EEXIST, "not a directory", paths.decode(resolved))
            staging.make_parents(resolved)
            staging.make_directory(resolved)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of the transaction: an exception inside undoes what was staged inside, and propagates."""
        with self._call() as staging, staging.step():
            mark = len(self._callbacks)
            try:
                yield
            except BaseException:
                self._undo_callbacks(mark)
                raise

    def plan(self) -> Plan:
        """What a commit would change now, and nothing else; nothing is changed by asking.

        Raises what `commit` raises where something that was staged cannot be done as things are. `str()` of it is a
        line for each change.

        >>> with FileTransaction(root) as tx:
        ...     tx.write("new.txt", "content")
        ...     print(tx.plan())
        create new.txt (7 bytes)
        """
        with self._call() as staging:
            return Plan(map(change_of, staging.plan()))

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


def _refuse_slashes(source: Node | None, *given: AnyPath) -> None:
    """A slash at the end says that a directory is meant: of a file neither the old name nor the new one has it."""
    if source is not None and source.kind != "dir":
        for path in given:
            paths.normalize(path)
