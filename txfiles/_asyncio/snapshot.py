"""`AsyncSnapshot`: what `FileStore.async_snapshot` returns."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from txfiles._format.paths import AnyPath
    from txfiles._tree.facts import FileStat
    from txfiles._tree.tree import Tree

P = ParamSpec("P")
T = TypeVar("T")


class Reads(Protocol):
    """A snapshot, as far as its twin has to know it."""

    @property
    def root(self) -> str: ...
    @property
    def state_version(self) -> str: ...
    @property
    def _of_nothing(self) -> bool: ...
    @property
    def _far_state(self) -> Any: ...
    def __enter__(self) -> object: ...
    def close(self) -> None: ...
    def read(self, path: AnyPath) -> bytes: ...
    def read_text(self, path: AnyPath, encoding: str = "utf-8", errors: str = "strict") -> str: ...
    def read_json(self, path: AnyPath) -> Any: ...
    def exists(self, path: AnyPath) -> bool: ...
    def listdir(self, path: AnyPath = ".") -> list[str]: ...
    def glob(self, pattern: str | bytes, *, exclude: Iterable[str | bytes] = ()) -> list[str]: ...
    def is_dir(self, path: AnyPath) -> bool: ...
    def is_file(self, path: AnyPath) -> bool: ...
    def stat(self, path: AnyPath, *, follow_symlinks: bool = True) -> FileStat: ...
    def readlink(self, path: AnyPath) -> str: ...
    def iterdir(self, path: AnyPath = ".") -> list[str]: ...
    def walk(
        self, path: AnyPath = ".", *, exclude: Iterable[str | bytes] = ()
    ) -> list[tuple[str, list[str], list[str]]]: ...
    def version(self, path: AnyPath) -> str | None: ...
    def _require_unchanged(self, tree: Tree) -> None: ...


class AsyncSnapshot:
    """`Snapshot` for asyncio, made by `FileStore.async_snapshot`: its reads as coroutines, for `async with`.

    The work is done in the default executor of the event loop. Who is cancelled goes on at once.

    >>> async def load():
    ...     async with store.async_snapshot("a.json", "b.json") as snap:
    ...         return await snap.read_json("a.json"), await snap.read_json("b.json")
    >>> asyncio.run(load())
    ({'generation': 1, 'parts': [1, 2]}, {'generation': 1})
    """

    def __init__(self, snapshot: Reads) -> None:
        self._snapshot = snapshot
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left = False

    def __repr__(self) -> str:
        return f"<Async{repr(self._snapshot)[1:]}"

    @property
    def root(self) -> str:
        """As `Snapshot.root`."""
        return self._snapshot.root

    @property
    def state_version(self) -> str:
        """As `Snapshot.state_version`."""
        return self._snapshot.state_version

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            await asyncio.shield(self._loop.run_in_executor(None, self._enter))
        except (asyncio.CancelledError, GeneratorExit):
            self._leave()
            raise
        return self

    def _enter(self) -> None:
        self._snapshot.__enter__()
        if self._left:
            self._snapshot.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit):
            self._leave()
        else:
            await self.close()

    async def close(self) -> None:
        """As `Snapshot.close`."""
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._snapshot.close))

    def _leave(self) -> None:
        """Close it when the call that runs has come to its end, and do not wait."""
        self._left = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.run_in_executor(None, self._snapshot.close)
        else:
            self._snapshot.close()

    async def _call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        call = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(None, call)

    async def read(self, path: AnyPath) -> bytes:
        """As `Snapshot.read`."""
        return await self._call(self._snapshot.read, path)

    async def read_text(self, path: AnyPath, encoding: str = "utf-8", errors: str = "strict") -> str:
        """As `Snapshot.read_text`."""
        return await self._call(self._snapshot.read_text, path, encoding, errors)

    async def read_json(self, path: AnyPath) -> Any:
        """As `Snapshot.read_json`."""
        return await self._call(self._snapshot.read_json, path)

    async def exists(self, path: AnyPath) -> bool:
        """As `Snapshot.exists`."""
        return await self._call(self._snapshot.exists, path)

    async def listdir(self, path: AnyPath = ".") -> list[str]:
        """As `Snapshot.listdir`."""
        return await self._call(self._snapshot.listdir, path)

    async def glob(self, pattern: str | bytes, *, exclude: Iterable[str | bytes] = ()) -> list[str]:
        """As `Snapshot.glob`."""
        return await self._call(self._snapshot.glob, pattern, exclude=exclude)

    async def is_dir(self, path: AnyPath) -> bool:
        """As `Snapshot.is_dir`."""
        return await self._call(self._snapshot.is_dir, path)

    async def is_file(self, path: AnyPath) -> bool:
        """As `Snapshot.is_file`."""
        return await self._call(self._snapshot.is_file, path)

    async def stat(self, path: AnyPath, *, follow_symlinks: bool = True) -> FileStat:
        """As `Snapshot.stat`."""
        return await self._call(self._snapshot.stat, path, follow_symlinks=follow_symlinks)

    async def readlink(self, path: AnyPath) -> str:
        """As `Snapshot.readlink`."""
        return await self._call(self._snapshot.readlink, path)

    async def iterdir(self, path: AnyPath = ".") -> list[str]:
        """As `Snapshot.iterdir`."""
        return await self._call(self._snapshot.iterdir, path)

    async def walk(
        self, path: AnyPath = ".", *, exclude: Iterable[str | bytes] = ()
    ) -> list[tuple[str, list[str], list[str]]]:
        """As `Snapshot.walk`."""
        return await self._call(self._snapshot.walk, path, exclude=exclude)

    async def version(self, path: AnyPath) -> str | None:
        """As `Snapshot.version`."""
        return await self._call(self._snapshot.version, path)
