"""What a transaction has staged: contents in memory or in one spool file, with size and digest."""

from __future__ import annotations

import errno
import hashlib
import io
import tempfile
import threading
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_IN_MEMORY = 32 << 20  # bytes of a transaction
_CHUNK = 1 << 20


class Spool:
    """Bytes that are appended and read again. Safe to share between threads."""

    def __init__(self) -> None:
        self._file: IO[bytes] = io.BytesIO()
        self._size = 0
        self._mutex = threading.Lock()

    def append(self, data: bytes | memoryview) -> tuple[int, int]:
        with self._mutex:
            if self._size + len(data) > _IN_MEMORY and isinstance(self._file, io.BytesIO):
                held, self._file = self._file, tempfile.TemporaryFile()  # noqa: SIM115
                self._file.write(held.getbuffer())
            self._file.seek(self._size)
            self._file.write(data)
            start, self._size = self._size, self._size + len(data)
            return start, len(data)

    def read(self, start: int, length: int) -> bytes:
        with self._mutex:
            self._file.seek(start)
            return self._file.read(length)

    def close(self) -> None:
        self._file.close()


class RawReader(io.RawIOBase):
    """A spool as it is read from its beginning; owns it."""

    def __init__(self, spool: Spool, size: int) -> None:
        self._spool = spool
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._spool.read(self._at, min(len(buffer), max(0, self._size - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self._at, self._size)[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "a negative position")
        self._at = at
        return at

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._spool.close()


class Content:
    """The staged bytes of one file. `place` is where they were uploaded to: pack and offset."""

    __slots__ = ("_extents", "_spool", "digest", "place", "size")

    def __init__(self, spool: Spool, extents: list[tuple[int, int]], size: int, digest: str) -> None:
        self._spool = spool
        self._extents = extents
        self.size: int = size
        self.digest: str = digest
        self.place: tuple[str, int] | None = None

    def read(self) -> bytes:
        return b"".join(self.chunks())

    def chunks(self) -> Iterator[bytes]:
        for start, length in self._extents:
            for offset in range(0, length, _CHUNK):
                yield self._spool.read(start + offset, min(_CHUNK, length - offset))


class Writer:
    """Takes the bytes of one file as they come."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._extents: list[tuple[int, int]] = []
        self._hash = hashlib.blake2b(digest_size=32)
        self.size: int = 0

    def write(self, data: bytes | memoryview) -> int:
        if len(data):
            start, length = self._spool.append(data)
            if self._extents and sum(self._extents[-1]) == start:
                start, length = self._extents[-1][0], self._extents.pop()[1] + length
            self._extents.append((start, length))
            self._hash.update(data)
            self.size += len(data)
        return len(data)

    def finish(self) -> Content:
        return Content(self._spool, self._extents, self.size, self._hash.hexdigest())
