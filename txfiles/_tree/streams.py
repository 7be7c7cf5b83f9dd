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


class _RawReader(io.RawIOBase):
    def __init__(self, fs: FileSystem, fd: int) -> None:
        self._fs = fs
        self._fd = fd

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._fs.read(self._fd, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._fs.seek(self._fd, offset, whence)

    def close(self) -> None:
        if not self.closed:
            super().close()
            release(self._fs, self._fd)


class _RawWriter(io.RawIOBase):
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

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
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
        return self._writer.size

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self.spoiled:
                self._discard()
            else:
                self._finish()


class _Buffered(io.BufferedWriter):
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


class _Text(io.TextIOWrapper):
    def close(self) -> None:
        if isinstance(self.buffer, _Buffered):
            self.buffer._raw.closing = True
        super().close()

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is not None and isinstance(self.buffer, _Buffered):
            self.buffer.spoil()
        self.close()


def reader(fs: FileSystem, fd: int, *, text: bool) -> IO[Any]:
    """A file object that owns `fd`. Text is UTF-8 without newline translation."""
    buffered = io.BufferedReader(_RawReader(fs, fd), _BUFFER)
    return _Text(buffered, "utf-8", newline="") if text else buffered


def writer(
    to: Writer, finish: Callable[[], None], discard: Callable[[], None], is_mine: Callable[[], bool], *, text: bool
) -> IO[Any]:
    buffered = _Buffered(_RawWriter(to, finish, discard, is_mine))
    return _Text(buffered, "utf-8", newline="") if text else buffered
