"""`AsyncFile`: what `open` of an `AsyncFileTransaction` returns."""

from __future__ import annotations

from asyncio import CancelledError
from functools import partial
from typing import IO, TYPE_CHECKING, Any, AnyStr, Generic, ParamSpec, Self, TypeVar

from txfiles._asyncio.tasks import run
from txfiles._asyncio.worker import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from types import TracebackType

    from txfiles._asyncio.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")


class AsyncFile(Generic[AnyStr]):
    """A file of an `AsyncFileTransaction`, opened by `async with` or `await`; the modes and rules of its `open`."""

    def __init__(self, worker: Worker[Any], call: Callable[[Any], IO[Any]]) -> None:
        self._worker = worker
        self._opening = call
        self._file: IO[Any] | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close(error)

    async def _open(self) -> Self:
        if self._file is not None:
            raise ValueError("the file was opened already")
        job = Job(partial(self._worker.open, self._opening))
        try:
            self._file = await run(self._worker, job, job.skip)
        except (CancelledError, GeneratorExit):
            self._worker.post(Job(partial(self._worker.undo_open, job)))
            raise
        return self

    async def _close(self, error: BaseException | None) -> None:
        if self._file is None or self._file.closed:
            return
        job = Job(partial(self._worker.close, self._file, error))
        if isinstance(error, GeneratorExit):
            self._worker.post(job)
        else:
            await run(self._worker, job)

    async def _call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        job = Job(partial(function, *args, **kwargs))
        return await run(self._worker, job, job.skip)

    @property
    def _opened(self) -> IO[Any]:
        if self._file is None:
            raise ValueError("the file was not opened: use async with, or await")
        return self._file

    async def read(self, size: int = -1) -> AnyStr:
        """Up to `size` bytes or characters, by default all that are left."""
        content: AnyStr = await self._call(self._opened.read, size)
        return content

    async def readline(self) -> AnyStr:
        """The next line with its end, or nothing at the end of the file."""
        line: AnyStr = await self._call(self._opened.readline)
        return line

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyStr:
        if line := await self.readline():
            return line
        raise StopAsyncIteration

    async def write(self, data: AnyStr) -> int:
        """Append; the number of bytes or characters."""
        return await self._call(self._opened.write, data)

    async def writelines(self, lines: Iterable[AnyStr]) -> None:
        """Append all of them; they are generated in the thread of the transaction."""
        await self._call(self._opened.writelines, lines)

    @property
    def name(self) -> Any:
        """The path that it was opened with."""
        return self._opened.name

    @property
    def mode(self) -> str:
        """As that of the built-in file objects."""
        return self._opened.mode

    def fileno(self) -> int:
        """The descriptor, of the staged file for a writer; call `flush` before it is used."""
        return self._opened.fileno()

    async def flush(self) -> None:
        """Give what is in buffers to the system."""
        await self._call(self._opened.flush)

    async def truncate(self, size: int | None = None) -> int:
        """Cut the file, or lengthen it with zeros; by default at the position."""
        return await self._call(self._opened.truncate, size)

    async def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a position; the new one."""
        return await self._call(self._opened.seek, offset, whence)

    async def tell(self) -> int:
        """The position."""
        return await self._call(self._opened.tell)

    async def close(self) -> None:
        """Close it, and stage what was written. May be called again."""
        await self._close(None)
