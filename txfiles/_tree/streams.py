"""File objects for `tx.open`: streamed, never whole in memory."""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING, Any

from txfiles._disk.system import release
from txfiles.errors import TransactionClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles._disk.system import FileSystem
    from txfiles._tree.tokens import Writer

_BUFFER = 1 << 18


class Strict:
    """Once closed it answers nothing: the number of its descriptor may be another file's by then.

    Of the layers of `open()` some still say what a closed file can do.
    """

    closed: bool

    def require_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def readable(self) -> bool:
        self.require_open()
        return super().readable()  # type: ignore[misc, no-any-return]

    def writable(self) -> bool:
        self.require_open()
        return super().writable()  # type: ignore[misc, no-any-return]

    def seekable(self) -> bool:
        self.require_open()
        return super().seekable()  # type: ignore[misc, no-any-return]


class RawReader(Strict, io.RawIOBase):
    def __init__(self, fs: FileSystem, fd: int) -> None:
        self._fs = fs
        self._fd = fd

    def readable(self) -> bool:
        self.require_open()
        return True

    def seekable(self) -> bool:
        self.require_open()
        return True

    def readinto(self, buffer: Any) -> int:
        self.require_open()
        data = self._fs.read(self._fd, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        self.require_open()
        raise io.UnsupportedOperation("not writable")

    def seek(self, offset: int, whence: int = 0) -> int:
        self.require_open()
        return self._fs.seek(self._fd, offset, whence)

    def close(self) -> None:
        if not self.closed:
            super().close()
            release(self._fs, self._fd)


class _Reader(Strict, io.BufferedReader):
    pass


class _RawWriter(Strict, io.RawIOBase):
    """Ends in `finish`, or in `discard` after an error or for a transaction that is no longer the caller's.

    The descriptor of a forked child is the parent's, too: nothing is written there, and what the parent had not yet
    flushed at the fork goes in silence.
    """

    def __init__(
        self, writer: Writer, finish: Callable[[], None], discard: Callable[[], None], is_mine: Callable[[], bool]
    ) -> None:
        self._writer = writer
        self._finish = finish
        self._discard = discard
        self._is_mine = is_mine
        self.spoiled = False
        self.closing = False

    def readinto(self, buffer: Any) -> int:
        self.require_open()
        raise io.UnsupportedOperation("not readable")

    def writable(self) -> bool:
        self.require_open()
        return True

    def write(self, data: Any) -> int:
        self.require_open()
        if not self._is_mine():
            if self.closing:
                return len(data)
            raise TransactionClosedError("the file belongs to a transaction of another process")
        try:
            return self._writer.write(data)
        except BaseException:
            self.spoiled = True
            raise

    def tell(self) -> int:
        self.require_open()
        return self._writer.size

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self.spoiled:
                self._discard()
            else:
                self._finish()


class _Buffered(Strict, io.BufferedWriter):
    """A writer whose `with` block stages the file at its end; after an exception the file is as it was before."""

    def __init__(self, raw: _RawWriter) -> None:
        super().__init__(raw, _BUFFER)
        self._raw = raw

    def spoil(self) -> None:
        self._raw.spoiled = True

    def close(self) -> None:
        self._raw.closing = True
        super().close()

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is not None:
            self.spoil()
        self.close()


class _Text(Strict, io.TextIOWrapper):
    def close(self) -> None:
        if isinstance(self.buffer, _Buffered):
            self.buffer._raw.closing = True
        super().close()

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is not None and isinstance(self.buffer, _Buffered):
            self.buffer.spoil()
        self.close()


def reader(raw: io.RawIOBase, *, text: bool) -> IO[Any]:
    """A file object that owns `raw`. Text is UTF-8 without newline translation."""
    buffered = _Reader(raw, _BUFFER)
    return _Text(buffered, "utf-8", newline="") if text else buffered


def writer(
    to: Writer, finish: Callable[[], None], discard: Callable[[], None], is_mine: Callable[[], bool], *, text: bool
) -> IO[Any]:
    buffered = _Buffered(_RawWriter(to, finish, discard, is_mine))
    return _Text(buffered, "utf-8", newline="") if text else buffered
