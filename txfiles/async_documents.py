"""`AsyncDocuments`: the calls of `Documents` as coroutines."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from txfiles._documents.members import Staged
from txfiles._documents.patterns import asides
from txfiles.documents import Documents, tell_moved

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from collections.abc import Collection as AnyOf

    from txfiles._calls.settings import HasRoot, Links
    from txfiles._disk.allowance import Accept
    from txfiles._documents.document import AnyCodec
    from txfiles._format.journal import Durability
    from txfiles._format.paths import AnyPath
    from txfiles.aio import AsyncFileTransaction
    from txfiles.errors import DocumentError
    from txfiles.store import FileStore

__all__ = ["AsyncCollection", "AsyncDocuments", "AsyncMembers"]

T = TypeVar("T")


class AsyncDocuments:
    """`Documents` for asyncio: the same arguments, the same methods as coroutines, no file work in the event loop.

    Values are made bytes in the event loop, at once, because other tasks may change them meanwhile; bytes are made
    values in a thread.

    >>> async def count():
    ...     docs = AsyncDocuments(root, {"state": {"turn": 0}}, create=True)
    ...     async with docs.edit() as d:
    ...         d["state"]["turn"] += 1
    ...     return await docs.load()
    >>> asyncio.run(count())
    {'state': {'turn': 1}}
    """

    def __init__(
        self,
        root: AnyPath | HasRoot,
        documents: Mapping[str, Any],
        *,
        codec: AnyCodec | None = None,
        durability: Durability = "full",
        timeout: float | None = 10.0,
        create: bool = False,
        links: Links = "refuse",
        accept: AnyOf[Accept] = (),
    ) -> None:
        """The arguments are those of `Documents`."""
        self._documents = Documents(
            root,
            documents,
            codec=codec,
            durability=durability,
            timeout=timeout,
            create=create,
            links=links,
            accept=accept,
        )
        self._family = self._documents._family

    def __repr__(self) -> str:
        return f"<Async{repr(self._documents)[1:]}"

    @property
    def store(self) -> FileStore:
        """As `Documents.store`."""
        return self._documents.store

    async def load(self) -> dict[str, Any]:
        """As `Documents.load`. Who is cancelled goes on at once."""
        return await asyncio.to_thread(self._documents.load)

    async def save(self, /, **documents: Any) -> None:
        """As `Documents.save`."""
        await self._write(self._family.writes(documents))

    async def _write(self, writes: Mapping[str, bytes], *, group: bool = False) -> None:
        async def change(tx: AsyncFileTransaction) -> None:
            for path, data in writes.items():
                await tx.write(path, data)

        await self.store.async_update(change, group=group)

    @asynccontextmanager
    async def edit(self) -> AsyncIterator[dict[str, Any]]:
        """As `Documents.edit`, for `async with`; an open set of documents is an `AsyncMembers`."""
        async with self.store.async_transaction() as tx, self._edited(tx) as given:
            yield given

    async def update(
        self, change: Callable[[dict[str, Any]], Awaitable[T]], *, retries: int = 10, group: bool = False
    ) -> T:
        """As `Documents.update`, with a coroutine function."""

        async def run(tx: AsyncFileTransaction) -> T:
            async with self._edited(tx) as given:
                return await change(given)

        return await self.store.async_update(run, retries=retries, group=group)

    @asynccontextmanager
    async def _edited(self, tx: AsyncFileTransaction) -> AsyncIterator[dict[str, Any]]:
        files = {name: await _read(tx, kind.file) for name, kind in self._family.single.items()}
        documents, _ = await asyncio.to_thread(self._family.read, files)
        sets = {name: AsyncMembers(tx, staged) for name, staged in self._family.staged().items()}
        given = self._family.ordered({**documents, **sets})
        yield given
        for path, data in list(self._family.changes(given, files, sets)):
            await tx.write(path, data)
        for members in sets.values():
            await members._stage()

    def collection(self, name: str) -> AsyncCollection:
        """As `Documents.collection`."""
        self._documents.collection(name)
        return AsyncCollection(self, name)

    async def set_aside(self, *names: str) -> dict[str, str]:
        """As `Documents.set_aside`."""
        self._family.require_known(names)

        async def change(tx: AsyncFileTransaction) -> list[tuple[str, str, DocumentError]]:
            moved = []
            for name in names or self._family.names:
                for path in await self._paths(tx, name):
                    data = await tx.read(path)
                    damage = await asyncio.to_thread(self._family.damage, name, path, data)
                    if damage is not None:
                        for target in asides(path):
                            if not await tx.exists(target):
                                break
                        await tx.move(path, target)
                        moved.append((path, target, damage))
            return moved

        return tell_moved(self.store.root, await self.store.async_update(change))

    async def _paths(self, tx: AsyncFileTransaction, name: str) -> list[str]:
        if name in self._family.sets:
            _, pattern = self._family.sets[name]
            return [path for path in await tx.glob(pattern.text) if pattern.key_of(path) is not None]
        path = self._family.single[name].file
        return [path] if await tx.exists(path) else []


class AsyncMembers:
    """An open set of documents in an edit: `Members`, its calls as coroutines."""

    def __init__(self, tx: AsyncFileTransaction, staged: Staged) -> None:
        self._tx = tx
        self._staged = staged

    async def keys(self) -> list[str]:
        """The keys of all documents, sorted."""
        return self._staged.keys(await self._tx.glob(self._staged.pattern.text))

    async def get(self, key: str, default: Any = None) -> Any:
        """The document of a key; what is changed in it is committed. Raises `DocumentError`."""
        path = self._staged.pattern.path_of(key)
        if key in self._staged:
            return self._staged[key]
        if self._staged.is_deleted(key) or (data := await _read(self._tx, path)) is None:
            return default
        return self._staged.read(key, data)

    async def set(self, key: str, value: Any) -> None:
        """Make or replace one document. Raises `ValueError` for what is no key."""
        self._staged.put(key, value)

    async def update(self, documents: Mapping[str, Any]) -> None:
        """Make or replace several documents."""
        for key, value in documents.items():
            self._staged.put(key, value)

    async def delete(self, key: str) -> None:
        """Delete one document. Raises `KeyError`."""
        path = self._staged.pattern.path_of(key)
        if self._staged.is_deleted(key) or not (key in self._staged or await self._tx.exists(path)):
            raise KeyError(key)
        self._staged.drop(key)

    async def _stage(self) -> None:
        for path, data in list(self._staged.changes()):
            if data is None:
                await self._tx.delete(path, missing_ok=True)
            else:
                await self._tx.write(path, data)


class AsyncCollection:
    """An open set of documents outside an edit: `Collection`, its calls as coroutines."""

    def __init__(self, documents: AsyncDocuments, name: str) -> None:
        self._documents = documents
        self._collection = documents._documents.collection(name)

    def __repr__(self) -> str:
        return f"<Async{repr(self._collection)[1:]}"

    async def keys(self) -> list[str]:
        """As `Collection.keys`."""
        return await asyncio.to_thread(self._collection.keys)

    async def get(self, key: str, default: Any = None) -> Any:
        """As `Collection.get`."""
        return await asyncio.to_thread(self._collection.get, key, default)

    async def load(self) -> dict[str, Any]:
        """As `Collection.load`."""
        return await asyncio.to_thread(self._collection.load)

    async def set(self, key: str, value: Any, *, group: bool = False) -> None:
        """As `Collection.set`."""
        await self.update({key: value}, group=group)

    async def update(self, documents: Mapping[str, Any], *, group: bool = False) -> None:
        """As `Collection.update`."""
        await self._documents._write(self._collection._staged().writes(documents), group=group)

    async def delete(self, *keys: str, group: bool = False) -> None:
        """As `Collection.delete`."""

        async def change(tx: AsyncFileTransaction) -> None:
            members = AsyncMembers(tx, self._collection._staged())
            for key in keys:
                await members.delete(key)
            await members._stage()

        await self._documents.store.async_update(change, group=group)


async def _read(tx: AsyncFileTransaction, path: str) -> bytes | None:
    return await tx.read(path) if await tx.exists(path) else None
