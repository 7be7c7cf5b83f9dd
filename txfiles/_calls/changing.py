"""The calls of a transaction that change its staged view, and nothing on disk but what is staged."""

from __future__ import annotations

import errno
from itertools import chain
from typing import TYPE_CHECKING, Any

from txfiles._calls.content import chunks_of
from txfiles._calls.opening import Opening, check_mode
from txfiles._calls.plan import Plan, change_of
from txfiles._calls.savepoint import Part, Savepoint
from txfiles._calls.settings import UNSET, Unset
from txfiles._format import json, paths
from txfiles._tree import subtrees
from txfiles._tree.staging import ABSENT, Staging, require_version
from txfiles._tree.view import must_be_file
from txfiles.errors import InvalidPathError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from txfiles._calls.content import Data
    from txfiles._format.paths import AnyPath
    from txfiles._tree.tree import Node


class Changing(Opening):
    """Changes, each of which is staged as a whole or not at all."""

    def write(
        self, path: AnyPath, data: Data, *, mode: int | None = None, if_version: str | Unset | None = UNSET
    ) -> None:
        """Stage the whole content of a file; missing parents are made.

        Args:
            data: bytes-like, `str` (as UTF-8, newlines as they are), a binary file object (read from its position
                to its end) or an iterable of bytes. It is taken now: a later change of it changes nothing.
            mode: the permission bits of the file, new or replaced, exactly these whatever the umask; by default those
                of the file that is replaced, or what `open` would give a new one. There is never a temporary file that
                more can read.
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
            self._stage(staging, place, chunks_of(data), mode)

    def write_text(
        self,
        path: AnyPath,
        text: str,
        encoding: str = "utf-8",
        errors: str = "strict",
        newline: str | None = None,
        *,
        mode: int | None = None,
        if_version: str | Unset | None = UNSET,
    ) -> None:
        """The same for text; `newline` is written for every line feed, which else stays as it is."""
        if not isinstance(text, str):
            raise TypeError(f"text must be str, not {type(text).__name__}")
        if newline not in (None, "", "\n", "\r", "\r\n"):
            raise ValueError(f"newline is None, '', a line feed, a carriage return, or both; not {newline!r}")
        data = (text.replace("\n", newline) if newline else text).encode(encoding, errors)
        self.write(path, data, mode=mode, if_version=if_version)

    def append(self, path: AnyPath, data: Data, *, mode: int | None = None) -> None:
        """Stage a file with its content and `data` after it; a missing one is made. What is there is copied.

        Data, mode and errors as for `write`.
        """
        with self._call() as staging, staging.step():
            place = self._target(staging, path)
            there = staging.chunks(place.path) if staging.look(place.path) is not None else ()
            self._stage(staging, place, chain(there, chunks_of(data)), mode)

    def write_json(
        self,
        path: AnyPath,
        value: Any,
        *,
        indent: int | str | None = 2,
        default: Callable[[Any], Any] | None = None,
        option: int | None = None,
        mode: int | None = None,
        if_version: str | Unset | None = UNSET,
    ) -> None:
        """Stage a JSON document: UTF-8, with a final newline.

        Args:
            indent: spaces for each level, or the white space itself; `None` for one line.
            default: called with a value of a type that JSON has not; returns one to be written in its place.
            mode, if_version: as for `write`.
            option: of orjson, such as `orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY`.

        Dates, UUIDs, enums and dataclasses are written as orjson does. Raises `DocumentError` for NaN, infinities,
        integers beyond 64 bits, keys that are not strings, lone surrogates, and other types; nothing is staged then.
        """
        shown = paths.decode(paths.to_bytes(path))
        data = json.dumps(value, indent, shown, default=default, option=option)
        self.write(path, data, mode=mode, if_version=if_version)

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

    def move(self, source: AnyPath, target: AnyPath, *, overwrite: bool = True) -> None:
        """Stage a rename of a file, a symbolic link (itself) or a directory; missing parents are made.

        An existing file is replaced, a directory is not. A moved file keeps its inode, owner and times. Without
        `overwrite` an existing file raises `FileExistsError`, and one that is there at the commit `ConflictError`.

        Raises `OSError`, `InvalidPathError` for a special file or another root that would move, and
        `UnsupportedFilesystemError` where there are no hard links or the file is in another mount.
        """
        with self._call() as staging, staging.step():
            from_path = self._directory(staging, source)
            to_path = self._directory(staging, target)
            _refuse_slashes(staging.look(from_path), source, target)
            subtrees.move(staging, from_path, to_path, overwrite=overwrite)

    def copy(self, source: AnyPath, target: AnyPath, *, overwrite: bool = True) -> None:
        """Stage a copy of a file or directory: content, mode and extended attributes; missing parents are made.

        An existing file is replaced, a directory is not; `overwrite` as for `move`. Raises `OSError`, and
        `InvalidPathError` for a special file.
        """
        with self._call() as staging, staging.step():
            from_path, node = staging.find(paths.normalize(source, directory=True))
            to_path = staging.resolve(paths.normalize(target, directory=True))
            _refuse_slashes(node, source, target)
            subtrees.copy(staging, from_path, to_path, overwrite=overwrite)

    def symlink(self, text: AnyPath, path: AnyPath) -> None:
        """Stage a symbolic link at `path` that says `text`, as `os.symlink` has it; missing parents are made.

        Any text can be written; a link that leads out of the root is refused where it is followed. Raises
        `FileExistsError`, and the commit `ConflictError`, where there is something.
        """
        raw = paths.to_bytes(text)
        if not raw or b"\0" in raw:
            raise InvalidPathError(f"{paths.decode(raw)!r} cannot be the text of a link", path=paths.decode(raw))
        with self._call() as staging, staging.step():
            resolved, node = staging.find(paths.normalize(path), follow_last=False)
            if node is not None:
                raise FileExistsError(errno.EEXIST, "there is something already", paths.decode(resolved))
            with paths.Naming(resolved, always=True):
                staging.make_parents(resolved)
                staging.expect_nothing(resolved)
                staging.put(resolved, self._tokens.symlink(raw))

    def chmod(self, path: AnyPath, mode: int) -> None:
        """Stage other permission bits of a file, or of a directory that is new in this transaction.

        The file is written anew with the same content; a symbolic link is followed. Raises `OSError`:
        `IsADirectoryError` for a directory that is there already, `PermissionError` for a file of another user.
        """
        check_mode(mode)
        with self._call() as staging, staging.step():
            resolved, node = staging.find(paths.normalize(path, directory=True))
            if node is None or node.kind != "dir":
                node = must_be_file(resolved, node)
                if self._fs.ids()[0] not in (0, staging.meta_of(resolved).uid):
                    raise PermissionError(errno.EPERM, "only the owner changes the mode", paths.decode(resolved))
            with paths.Naming(resolved):
                subtrees.change_mode(staging, resolved, node, mode)

    def mkdir(self, path: AnyPath, *, exist_ok: bool = True) -> None:
        """Stage a directory and its missing parents; one that exists is left as it is.

        Raises `FileExistsError` for anything else, and without `exist_ok` for a directory, too; then the commit raises
        `ConflictError` for one that somebody else has made meanwhile.
        """
        with self._call() as staging, staging.step():
            resolved, node = staging.peek(paths.normalize(path, directory=True))
            if node is not None and not (exist_ok and node.kind == "dir"):
                what = "the directory exists" if node.kind == "dir" else "not a directory"
                raise FileExistsError(errno.EEXIST, what, paths.decode(resolved))
            if not exist_ok:
                staging.expect_nothing(resolved)
            staging.make_parents(resolved)
            staging.make_directory(resolved)

    def savepoint(self) -> AbstractContextManager[None]:
        """A part of the transaction: an exception inside undoes what was staged inside, and propagates."""
        return Savepoint(self)

    def _part(self) -> AbstractContextManager[None]:
        return Part(self)

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

    def _directory(self, staging: Staging, path: AnyPath) -> bytes:
        """The resolved path of an entry that is itself moved or removed, not followed."""
        resolved = staging.resolve(paths.normalize(path, directory=True), follow_last=False)
        if not resolved:
            raise OSError(errno.EBUSY, "the root itself cannot be moved or removed", paths.decode(self._root))
        return resolved


def _refuse_slashes(source: Node | None, *given: AnyPath) -> None:
    """A slash at the end says that a directory is meant: of a file neither the old name nor the new one has it."""
    if source is not None and source.kind != "dir":
        for path in given:
            paths.normalize(path)
