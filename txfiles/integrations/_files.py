"""File objects for the fsspec file system."""

from __future__ import annotations

import io
import warnings
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Any

from txfiles._tree.streams import Strict

if TYPE_CHECKING:
    from collections.abc import Callable

_IN_MEMORY = 1 << 20  # bytes


class Reader(Strict, io.BufferedReader):
    """A file to be read; `size` is its size in bytes. Its pickle opens `path` of `fs` anew, at the same position."""

    def __init__(self, file: IO[bytes], fs: Any, path: Any) -> None:
        raw: Any = file.detach() if isinstance(file, io.BufferedReader) else file
        super().__init__(raw)
        self.size = self.seek(0, 2)
        self.seek(0)
        self._fs = fs
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (self._fs, self._path, self.tell())


def _open_again(fs: Any, path: Any, position: int) -> Any:
    file = fs.open(path, "rb")
    file.seek(position)
    return file


class Deferred(Strict, io.BufferedIOBase):
    """A file to be written without a transaction: what is written waits in a temporary file for the `commit`.

    So nothing is locked while it is written. With `autocommit` it commits at its close, but not when its `with` block
    raises, nor when it is dropped unclosed.
    """

    def __init__(self, store: Callable[[IO[bytes]], None], *, autocommit: bool) -> None:
        self._content: IO[bytes] = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed by commit and discard
        self._store = store
        self._autocommit = autocommit
        self._spoiled = False

    def writable(self) -> bool:
        self.require_open()
        return True

    def write(self, data: Any) -> int:
        return self._content.write(data)

    def tell(self) -> int:
        return self._content.tell()

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._spoiled:
                self.discard()
            elif self._autocommit:
                self.commit()

    def commit(self) -> None:
        """Put the file in its place."""
        try:
            self._content.seek(0)
            self._store(self._content)
        finally:
            self._content.close()

    def discard(self) -> None:
        """Forget what was written."""
        self._content.close()

    def spoil(self) -> None:
        """Let the close forget it."""
        self._spoiled = True

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is not None:
            self.spoil()
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            warnings.warn("a file was dropped while open; it is not written", ResourceWarning, stacklevel=2)
            self.spoil()
            self.close()


class Compressed(Strict, io.BufferedIOBase):
    """Writes through `compressor` to `file`, and closes both: compressors leave the file below open."""

    def __init__(self, compressor: Any, file: Any) -> None:
        self._compressor = compressor
        self._file = file

    def writable(self) -> bool:
        self.require_open()
        return True

    def write(self, data: Any) -> int:
        self._compressor.write(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            try:
                self._compressor.close()
            except BaseException:
                self.spoil()
                raise
            finally:
                self._file.close()

    def spoil(self) -> None:
        """Let the close forget what was written."""
        self._file.spoil()

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is not None:
            self.spoil()
        self.close()


class Text(Strict, io.TextIOWrapper):
    """Text over a file to be written, here or of a transaction: nothing is written when its `with` block raises."""

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is not None and hasattr(self.buffer, "spoil"):
            self.buffer.spoil()
        self.close()
