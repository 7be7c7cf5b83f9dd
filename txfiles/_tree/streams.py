"""File objects for `tx.open`: streamed, never whole in memory, and with the calls that those of `open()` have."""

from __future__ import annotations

import io
import warnings
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

from txfiles._disk.interrupts import AllHeldBack, Interrupted
from txfiles._disk.leaving import Exit
from txfiles._disk.system import release
from txfiles.errors import TransactionClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles._disk.system import FileSystem
    from txfiles._tree.tokens import Writer

_BUFFER = 1 << 18


class Form(NamedTuple):
    """How a file object looks to who opened it: the arguments of `open()`, checked. `how` is r, w, a or x."""

    mode: str
    how: str
    both: bool  # reads and writes
    text: bool
    buffering: int
    encoding: str | None
    errors: str | None
    newline: str | None

    @property
    def writes(self) -> bool:
        return self.both or self.how != "r"

    @property
    def raw_mode(self) -> str:
        """As `io.FileIO` tells it."""
        return f"{'r' if self.both and self.how == 'w' else self.how}b{'+' * self.both}"


def form_of(
    mode: str, buffering: int = -1, encoding: str | None = None, errors: str | None = None, newline: str | None = ""
) -> Form:
    """Raises `ValueError` for what cannot be, in the words of `open()`."""
    found = set(mode)
    kinds = found & set("rwax")
    if found - set("rwaxbt+") or len(found) < len(mode) or len(kinds) != 1 or {"b", "t"} <= found:
        raise ValueError(f"invalid mode: {mode!r}")
    text = "b" not in found
    encoding = (encoding or "utf-8") if text else encoding
    if not text:
        for name, value in (("encoding", encoding), ("errors", errors), ("newline", newline or None)):
            if value is not None:
                raise ValueError(f"binary mode doesn't take an {name} argument")
    if buffering == 0 and text:
        raise ValueError("can't have unbuffered text I/O")
    if text:
        io.TextIOWrapper(io.BytesIO(), encoding, errors, newline)  # before there is a file that could be left open
    if buffering == 1 and not text:
        warnings.warn("line buffering (buffering=1) isn't supported in binary mode", RuntimeWarning, stacklevel=3)
        buffering = -1
    return Form(mode, kinds.pop(), "+" in found, text, buffering, encoding, errors, newline)


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

    def fileno(self) -> int:
        self.require_open()
        return self._fs.fileno(self._fd)

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


class Ends(NamedTuple):
    """What becomes of a file that was written: staged, or forgotten. `is_mine`: this is no forked child."""

    finish: Callable[[], None]
    discard: Callable[[], None]
    is_mine: Callable[[], bool]


class _Spoiled:
    """Its `with` block stages the file at its end; after an exception the file is as it was before."""

    _state = "new"

    def spoil(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._state = "open"
        return super().__enter__()  # type: ignore[misc, no-any-return]

    def _leave(self, error: BaseException | None) -> None:
        if error is not None:
            self.spoil()
        self.close()

    def _roll_back_late(self) -> None:
        if self._state == "open":
            self._leave(Interrupted())

    __exit__ = Exit()


class _RawWriter(_Spoiled, Strict, io.RawIOBase):
    """Ends in `finish`, or in `discard` after an error, without a change, or for a transaction of another process.

    The descriptor of a forked child is the parent's, too: nothing is written there, and what the parent had not yet
    flushed at the fork goes in silence.
    """

    def __init__(self, writer: Writer, form: Form, ends: Ends) -> None:
        self._writer = writer
        self._form = form
        self._ends = ends
        self._changed = form.how != "r"
        self.spoiled = False
        self.closing = False

    def readable(self) -> bool:
        self.require_open()
        return self._form.both

    def writable(self) -> bool:
        self.require_open()
        return True

    def seekable(self) -> bool:
        self.require_open()
        return True

    def fileno(self) -> int:
        """The staged file itself: what is written to it is staged at the close."""
        self._require_mine()
        self._changed = True
        return self._writer.lend()

    def readinto(self, buffer: Any) -> int:
        self._require_mine()
        if not self._form.both:
            raise io.UnsupportedOperation("not readable")
        data = self._writer.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        self.require_open()
        if self.closing and not self._ends.is_mine():
            return len(data)
        self._require_mine()
        try:
            with AllHeldBack():
                if self._form.how == "a":
                    self._writer.seek(0, 2)
                self._changed = True
                return self._writer.write(data)
        except BaseException:
            self.spoiled = True
            raise

    def seek(self, offset: int, whence: int = 0) -> int:
        self._require_mine()
        return self._writer.seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        self._require_mine()
        self._changed = True
        return self._writer.truncate(self.tell() if size is None else size)

    def spoil(self) -> None:
        self.spoiled = True

    def close(self) -> None:
        with AllHeldBack():
            if not self.closed:
                io.RawIOBase.close(self)
                if self.spoiled or not self._changed:
                    self._ends.discard()
                else:
                    self._ends.finish()

    def _require_mine(self) -> None:
        self.require_open()
        if not self._ends.is_mine():
            raise TransactionClosedError("the file belongs to a transaction of another process")


class _Writer(_Spoiled, Strict, io.BufferedWriter):
    def __init__(self, raw: _RawWriter, size: int) -> None:
        super().__init__(raw, size)
        self._raw = raw

    def spoil(self) -> None:
        self._raw.spoil()

    def close(self) -> None:
        self._raw.closing = True
        io.BufferedWriter.close(self)


class _Both(_Spoiled, Strict, io.BufferedRandom):
    def __init__(self, raw: _RawWriter, size: int) -> None:
        super().__init__(raw, size)
        self._raw = raw

    def spoil(self) -> None:
        self._raw.spoil()

    def close(self) -> None:
        self._raw.closing = True
        io.BufferedRandom.close(self)


class _Text(_Spoiled, Strict, io.TextIOWrapper):
    mode: str  # that it was opened with

    def spoil(self) -> None:
        if isinstance(self.buffer, _Spoiled):
            self.buffer.spoil()

    def close(self) -> None:
        if isinstance(self.buffer, (_Writer, _Both)):
            self.buffer._raw.closing = True
        io.TextIOWrapper.close(self)


def drop(file: IO[Any]) -> None:
    """Close a file object of which nothing is to be staged."""
    if isinstance(file, _Spoiled):
        file.spoil()
    file.close()


def reader(raw: io.RawIOBase, form: Form, name: object) -> IO[Any]:
    """A file object that owns `raw`."""
    _describe(raw, form, name)
    if form.buffering == 0:
        return raw  # type: ignore[return-value]
    return _texted(_Reader(raw, _size(form)), form)


def writer(to: Writer, form: Form, name: object, ends: Ends) -> IO[Any]:
    """A file object on a staged file."""
    raw = _RawWriter(to, form, ends)
    _describe(raw, form, name)
    if form.buffering == 0:
        return raw  # type: ignore[return-value]
    return _texted((_Both if form.both else _Writer)(raw, _size(form)), form)


def _describe(raw: Any, form: Form, name: object) -> None:
    raw.name, raw.mode = name, form.raw_mode


def _size(form: Form) -> int:
    return form.buffering if form.buffering > 1 else _BUFFER


def _texted(buffered: Any, form: Form) -> IO[Any]:
    if not form.text:
        return buffered  # type: ignore[no-any-return]
    text = _Text(buffered, form.encoding, form.errors, form.newline, line_buffering=form.buffering == 1)
    text.mode = form.mode
    return text
