"""`open`, and how what is written gets into the staged view."""

from __future__ import annotations

import errno
from typing import IO, TYPE_CHECKING, Any, Literal, overload

from txfiles._calls.reading import Reading
from txfiles._disk import metadata
from txfiles._format import paths
from txfiles._tree import streams
from txfiles._tree.tokens import Kept, Token

if TYPE_CHECKING:
    from collections.abc import Iterable

    from txfiles._format.paths import AnyPath
    from txfiles._tree.staging import Place, Staging
    from txfiles._tree.streams import Form
    from txfiles._tree.tokens import Writer

TextMode = Literal["r", "w", "a", "x", "rt", "wt", "at", "xt", "r+", "w+", "a+", "x+", "r+t", "w+t", "a+t", "x+t"]
BinaryMode = Literal["rb", "wb", "ab", "xb", "r+b", "w+b", "a+b", "x+b", "rb+", "wb+", "ab+", "xb+"]


class Opening(Reading):
    """File objects."""

    @overload
    def open(
        self,
        path: AnyPath,
        mode: TextMode = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = "",
        *,
        permissions: int | None = None,
    ) -> IO[str]: ...
    @overload
    def open(
        self, path: AnyPath, mode: BinaryMode, buffering: int = -1, *, permissions: int | None = None
    ) -> IO[bytes]: ...
    @overload
    def open(
        self,
        path: AnyPath,
        mode: str,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = "",
        *,
        permissions: int | None = None,
    ) -> IO[Any]: ...
    def open(
        self,
        path: AnyPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = "",
        *,
        permissions: int | None = None,
    ) -> IO[Any]:
        """A file object on a file of the transaction, with the arguments and errors of the built-in `open`.

        Text is UTF-8 unless `encoding` says otherwise, and newlines are as they are unless `newline` does.

        What is written is staged when the file object is closed, or not at all when its `with` block raises; until then
        the transaction reads the file as it was. It goes to the staged file at once, never whole into memory: with
        "r+" and "a" that begins as a copy of what is there. `fileno()` is the staged file, for `mmap`,
        `ndarray.tofile` or a child process; they have to be through with it at the close.

        Args:
            permissions: the permission bits, as `mode` of `write`.

        A file opened with "x" has to be new at the commit, too, or that raises `ConflictError`. `name` is the path.
        """
        form = streams.form_of(mode, buffering, encoding, errors, newline)
        check_mode(permissions)
        name = path if isinstance(path, (str, bytes)) else paths.decode(paths.to_bytes(path))
        file: IO[Any] | None = None
        try:
            with self._call() as staging:
                if form.writes:
                    file = self._open_to_write(staging, path, form, name, permissions)
                else:
                    file = streams.reader(staging.raw(staging.resolve(paths.normalize(path))), form, name)
            return file
        except BaseException:
            if file is not None:  # an interrupt has waited for it, and nobody gets it
                streams.drop(file)
            raise

    def _open_to_write(
        self, staging: Staging, path: AnyPath, form: Form, name: object, permissions: int | None
    ) -> IO[Any]:
        place = self._target(staging, path)
        shown = paths.decode(place.path)
        exists = place.identity is not None
        if form.how == "x" and exists:
            raise FileExistsError(errno.EEXIST, "the file exists", shown)
        if form.how == "r" and not exists:
            raise FileNotFoundError(errno.ENOENT, "no such file", shown)
        if shown in self._writing:
            raise OSError(errno.EBUSY, "the file is open for writing already", shown)
        writer = self._tokens.new(place.path)

        def is_mine() -> bool:
            return self._pid == self._fs.pid()

        def finish() -> None:
            if not is_mine():
                writer.close()
                return
            with self._all_held_back(), self._mutex:
                is_open = self._writing.get(shown) is discard
                try:
                    if is_open and self._state == "open":
                        with staging.step():
                            if form.how == "x":
                                staging.expect_nothing(place.path)
                            self._put(staging, staging.place(place.path), writer, permissions)
                finally:
                    discard()

        def discard() -> None:
            if not is_mine():
                writer.close()
                return
            with self._all_held_back(), self._mutex:
                if self._writing.get(shown) is discard:
                    del self._writing[shown]
                writer.discard()

        try:
            if form.how == "a" and not exists:
                staging.look(place.path)  # that there is none is what this depends on
            if form.how in "ra" and exists:
                for chunk in staging.chunks(place.path):
                    writer.write(chunk)
                if form.how == "r":
                    writer.seek(0, 0)
            file = streams.writer(writer, form, name, streams.Ends(finish, discard, is_mine))
        except BaseException:
            writer.discard()
            raise
        self._writing[shown] = discard
        return file

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

    def _stage(
        self, staging: Staging, place: Place, chunks: Iterable[bytes | memoryview], mode: int | None = None
    ) -> None:
        if mode is not None:
            check_mode(mode)
        writer = self._tokens.new(place.path)
        try:
            for chunk in chunks:  # whose own errors are not about this file
                self._require_open()  # a generator may have ended the transaction
                writer.write(chunk)
            self._put(staging, place, writer, mode)
        finally:
            writer.discard()

    def _put(self, staging: Staging, place: Place, writer: Writer, mode: int | None = None) -> None:
        meta = place.meta
        if meta is None:
            with paths.Naming(place.path):
                staging.make_parents(place.path)
                meta = staging.meta_for_new(place.path)
        before = staging.entries.get(place.path)
        kept = before.kept if isinstance(before, Token) else place.meta and Kept(place.path, place.meta, None)
        if mode is not None:
            meta = metadata.with_mode(meta, mode)
            kept = kept and kept._replace(mode=mode)
        staging.put(place.path, writer.finish(meta, place.identity, kept=kept))


def check_mode(mode: int | None) -> None:
    """Permission bits that a caller gives."""
    if mode is not None and not (isinstance(mode, int) and 0 <= mode <= 0o7777):
        raise ValueError(f"mode is a number such as 0o640, not {mode!r}")
