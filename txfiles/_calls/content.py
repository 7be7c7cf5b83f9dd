"""What a caller may give as the content of a file, in pieces of bytes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from txfiles._disk.interrupts import let_through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CHUNK = 1 << 20
_END = object()


class Readable(Protocol):
    """A binary file object."""

    def read(self, size: int, /) -> bytes: ...


Data = bytes | bytearray | memoryview | str | Readable | Iterable[bytes]


def chunks_of(data: Data) -> Iterable[bytes | memoryview]:
    if type(data) is bytes:
        return (data,)
    if isinstance(data, str):
        return (data.encode(),)
    view = _view(data)
    return (view,) if view is not None else _read_on(data)


def _read_on(data: object) -> Iterator[bytes | memoryview]:
    read: Callable[[int], bytes] | None = getattr(data, "read", None)
    if read is not None:
        more = partial(read, _CHUNK)
        while chunk := _binary(let_through(more)):  # an empty text is none either, nor is nothing yet an end
            yield chunk
        return
    if not isinstance(data, Iterable):
        raise TypeError(f"bytes, str, a binary file object or an iterable of bytes expected, not {type(data).__name__}")
    more = partial(next, let_through(partial(iter, data)), _END)
    while (part := let_through(more)) is not _END:
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
