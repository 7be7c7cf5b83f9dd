"""`AsyncFileTransaction`: the calls of `FileTransaction` as coroutines.

A transaction that has its turn has a thread of its own, which makes all its calls in their order and ends with it: no
pool is held up by those that wait for a lock or a disk, a savepoint stays in one thread, and what was started comes to
its end whoever stops waiting for it. The tasks of one event loop wait for their turn at a root in the loop, not in
threads; only the first of them asks for the lock.
"""

from __future__ import annotations

import asyncio
import math
import time
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, cast, overload

from txfiles._asyncio.file import AsyncFile
from txfiles._asyncio.snapshot import AsyncSnapshot
from txfiles._asyncio.tasks import Turn, run, this_task, turn_at
from txfiles._asyncio.worker import Job, Worker
from txfiles._calls.settings import UNSET, HasRoot, check_links, check_settings, is_far
from txfiles._disk import system
from txfiles._format import json, paths
from txfiles.errors import ConflictError, LockTimeoutError, Outcome, TransactionClosedError
from txfiles.transaction import FileTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from types import TracebackType

    from txfiles._calls.content import Data
    from txfiles._calls.opening import BinaryMode, TextMode
    from txfiles._calls.plan import Plan
    from txfiles._calls.session import Callback
    from txfiles._calls.settings import Links, Unset
    from txfiles._commit.home import Home
    from txfiles._disk.allowance import Accept, GivenUp
    from txfiles._disk.lock import Lock, Owner
    from txfiles._format.journal import Durability
    from txfiles._format.paths import AnyPath
    from txfiles._tree.facts import FileStat
    from txfiles._tree.tree import Tree

__all__ = ["AsyncFile", "AsyncFileTransaction", "AsyncSnapshot"]

P = ParamSpec("P")
T = TypeVar("T")


class ServedTransaction(FileTransaction):
    """A transaction whose `begin` another thread can stop."""

    id_is_known = False  # outside, where `prepare` was called

    def __init__(
        self,
        root: AnyPath | HasRoot,
        owner: object,
        checks: Iterable[Callable[[Tree], None]],
        *,
        durability: Durability,
        timeout: float | None,
        create: bool,
        links: Links = "refuse",
        accept: Collection[Accept] = (),
    ) -> None:
        super().__init__(root, durability=durability, timeout=timeout, create=create, links=links, accept=accept)
        self._owner = owner
        self._checks.extend(checks)
        self._stopped = False
        self._entering: Lock | None = None

    @property
    def ended(self) -> bool:
        return self._state not in ("open", "prepared")

    @property
    def is_prepared(self) -> bool:
        return self._state == "prepared"

    def stop_waiting(self) -> None:
        """`begin`, now or later, ends with `LockTimeoutError` unless it is about to succeed."""
        self._stopped = True
        if (lock := self._entering) is not None:
            lock.stop_waiting()

    def _enter(self, home: Home, deadline: float | None) -> str | None:
        self._entering = home.lock
        try:
            if self._stopped:
                raise LockTimeoutError("nobody waits for the lock any more", path=paths.decode(self._root))
            return super()._enter(home, deadline)
        finally:
            self._entering = None

    def leave(self) -> None:
        """End without a decision: what is open is rolled back; what is prepared stays so, if anybody can decide it."""
        if self._state == "open" or (self._state == "prepared" and not self.id_is_known):
            self.rollback()
        elif self._state == "prepared":
            self._end(discard=False)


class AsyncFileTransaction:
    """`FileTransaction` for asyncio: the same arguments, the same methods as coroutines, no file work in the loop.

    A call that is cancelled comes to its end before `CancelledError` goes on; after that nothing of it runs any more.
    Leaving the block by an exception, also by `CancelledError`, rolls back. A commit that has begun is finished, and
    only then the cancellation goes on: the state is that before or that after, `outcome` says which, and the lock is
    free. Who is cancelled while it waits for the lock stops waiting at once.

    The calls of several tasks on one transaction are made one after another. Work that a generator or file object
    given to `write` does is done in the thread of the transaction.

    >>> async def save():
    ...     async with AsyncFileTransaction(root) as tx:
    ...         await tx.write("a.txt", "one")
    ...         await tx.write_json("b.json", {"two": 2})
    >>> asyncio.run(save())
    """

    def __init__(
        self,
        root: AnyPath | HasRoot,
        *,
        durability: Durability = "full",
        timeout: float | None = 10.0,
        create: bool = False,
        links: Links = "refuse",
        accept: Collection[Accept] = (),
    ) -> None:
        """The arguments are those of `FileTransaction`. Nothing is opened, locked or made before `begin`."""
        self._worker: Worker[ServedTransaction] | None = None  # first, for __del__
        check_settings(durability, timeout, accept)
        check_links(links, root)
        place: str | HasRoot
        if is_far(root):
            self._root, place = str(root.root if isinstance(root, HasRoot) else root).partition("?")[0], cast(Any, root)
            self._turn_at = f"{self._root}?{id(self)}"  # nobody waits for anybody there
        else:
            given = paths.decode(paths.to_bytes(root.root if isinstance(root, HasRoot) else root))
            self._root = place = str(Path(given).absolute()) if given else given  # links are resolved in the thread
            self._turn_at = self._root
        self._timeout = timeout
        self._checks: list[Callable[[Tree], None]] = []  # as in `FileTransaction`
        self._make = partial(ServedTransaction, place, durability=durability, create=create, links=links, accept=accept)
        self._turn: Turn | None = None
        self._tx: ServedTransaction | None = None
        self._savepoints: list[Owner] = []  # the tasks that are in them

    def __repr__(self) -> str:
        state = "open" if self._worker is not None else "new" if self._tx is None else "ended"
        return f"<{type(self).__name__} {self._root!r} {state}>"

    @property
    def outcome(self) -> Outcome:
        """The state on disk: `"before"` the commit or `"after"` it, `"unknown"` while it runs or until recovery."""
        return "before" if self._tx is None else self._tx.outcome

    @property
    def transaction_id(self) -> str:
        """As `FileTransaction.transaction_id`."""
        if self._tx is None:
            raise TransactionClosedError("the transaction has not begun")
        return self._tx.transaction_id

    @property
    def given_up(self) -> tuple[GivenUp, ...]:
        """As `FileTransaction.given_up`."""
        return () if self._tx is None else self._tx.given_up

    # -- begin and end ------------------------------------------------------------------------------------------

    async def begin(self) -> Self:
        """As `FileTransaction.begin`. The tasks of one event loop have their turns in the order in which they came."""
        if self._turn is not None or self._tx is not None:
            raise TransactionClosedError("the transaction has begun already; make a new one")
        until = None if self._timeout is None else time.monotonic() + self._timeout
        owner = self._owner = this_task()
        turn = self._turn = turn_at(self._turn_at)
        try:
            await turn.take(owner, self._timeout)
        except BaseException:
            self._turn = None
            raise
        try:
            left = None if until is None else max(0.0, until - time.monotonic())
            make = partial(self._make, owner=owner, checks=self._checks, timeout=left)
            worker = self._worker = Worker(make, system.current().pid())
            try:
                self._tx = await run(worker, Job(worker.begin), worker.stop_waiting)
            except asyncio.CancelledError:
                await run(worker, Job(worker.leave))
                raise
        except BaseException:
            self._let_go()
            raise
        return self

    async def commit(self) -> None:
        """As `FileTransaction.commit`. Once it has begun it comes to its end, also when it is cancelled."""
        await self._end(ServedTransaction.commit)

    async def rollback(self) -> None:
        """As `FileTransaction.rollback`."""
        await self._end(ServedTransaction.rollback)

    async def prepare(self) -> str:
        """As `FileTransaction.prepare`. It is undone when it is cancelled: nobody has got the id."""
        _, tx = self._serving()
        try:
            transaction_id = await self._end(ServedTransaction.prepare)
        except asyncio.CancelledError:
            if tx.is_prepared:
                await self._end(ServedTransaction.leave)
            raise
        tx.id_is_known = True
        return transaction_id

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._worker is None or self._worker.pid != system.current().pid():
            return
        if isinstance(error, GeneratorExit):  # whoever closes a coroutine cannot wait
            self._let_go()
            return
        await self._end(lambda tx: tx.__exit__(kind, error, traceback))

    def __del__(self) -> None:
        worker = self._worker
        if worker is not None and worker.pid == system.current().pid():
            message = f"{self!r} was dropped while open; it is rolled back"
            self._let_go()
            if not worker.ended:
                warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    async def _end(self, call: Callable[[ServedTransaction], T]) -> T:
        """Make a call with which the transaction may end. A cancellation that came before it rolls back.

        Who is cancelled sees `CancelledError`, and that may go unheard: a failed commit is told to the loop as well.
        """
        worker, tx = self._serving()
        try:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                await run(worker, Job(worker.leave))
                raise
            return await run(worker, Job(partial(worker.finish, partial(call, tx))))
        except asyncio.CancelledError as cancelled:
            if cancelled.__cause__ is not None:
                message = f"the end of {self!r} failed while its task was cancelled"
                context = {"message": message, "exception": cancelled.__cause__}
                asyncio.get_running_loop().call_exception_handler(context)
            raise
        except GeneratorExit:
            self._let_go()
            raise
        finally:
            if tx.ended:
                self._let_go()

    def _let_go(self) -> None:
        """The thread ends, and what is still open is rolled back there."""
        worker, self._worker = self._worker, None
        turn, self._turn = self._turn, None
        if worker is not None:
            worker.end()
        if turn is not None:
            turn.leave()

    def _serving(self) -> tuple[Worker[ServedTransaction], ServedTransaction]:
        worker, tx = self._worker, self._tx
        if worker is None or tx is None:
            raise TransactionClosedError(f"the transaction has {'not begun' if tx is None else 'ended'}")
        return worker, tx

    async def _call(
        self, function: Callable[Concatenate[FileTransaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        worker, tx = self._serving()
        job = Job(partial(function, tx, *args, **kwargs))
        return await run(worker, job, job.skip)

    # -- reading ------------------------------------------------------------------------------------------------

    async def read(self, path: AnyPath) -> bytes:
        """As `FileTransaction.read`."""
        return await self._call(FileTransaction.read, path)

    async def read_text(self, path: AnyPath, encoding: str = "utf-8", errors: str = "strict") -> str:
        """As `FileTransaction.read_text`."""
        return await self._call(FileTransaction.read_text, path, encoding, errors)

    async def read_json(self, path: AnyPath) -> Any:
        """As `FileTransaction.read_json`."""
        return await self._call(FileTransaction.read_json, path)

    async def exists(self, path: AnyPath) -> bool:
        """As `FileTransaction.exists`."""
        return await self._call(FileTransaction.exists, path)

    async def listdir(self, path: AnyPath = ".") -> list[str]:
        """As `FileTransaction.listdir`."""
        return await self._call(FileTransaction.listdir, path)

    async def glob(self, pattern: str | bytes, *, exclude: Iterable[str | bytes] = ()) -> list[str]:
        """As `FileTransaction.glob`."""
        return await self._call(FileTransaction.glob, pattern, exclude=exclude)

    async def is_dir(self, path: AnyPath) -> bool:
        """As `FileTransaction.is_dir`."""
        return await self._call(FileTransaction.is_dir, path)

    async def is_file(self, path: AnyPath) -> bool:
        """As `FileTransaction.is_file`."""
        return await self._call(FileTransaction.is_file, path)

    async def stat(self, path: AnyPath, *, follow_symlinks: bool = True) -> FileStat:
        """As `FileTransaction.stat`."""
        return await self._call(FileTransaction.stat, path, follow_symlinks=follow_symlinks)

    async def readlink(self, path: AnyPath) -> str:
        """As `FileTransaction.readlink`."""
        return await self._call(FileTransaction.readlink, path)

    async def iterdir(self, path: AnyPath = ".") -> list[str]:
        """As `FileTransaction.iterdir`."""
        return await self._call(FileTransaction.iterdir, path)

    async def walk(
        self, path: AnyPath = ".", *, exclude: Iterable[str | bytes] = ()
    ) -> list[tuple[str, list[str], list[str]]]:
        """As `FileTransaction.walk`."""
        return await self._call(FileTransaction.walk, path, exclude=exclude)

    async def version(self, path: AnyPath) -> str | None:
        """As `FileTransaction.version`."""
        return await self._call(FileTransaction.version, path)

    # -- changing -----------------------------------------------------------------------------------------------

    async def write(
        self, path: AnyPath, data: Data, *, mode: int | None = None, if_version: str | Unset | None = UNSET
    ) -> None:
        """As `FileTransaction.write`. A file object or iterable is read in the thread of the transaction."""
        if isinstance(data, (bytearray, memoryview)):
            data = bytes(data)  # other tasks may change it meanwhile
        await self._call(FileTransaction.write, path, data, mode=mode, if_version=if_version)

    async def write_text(
        self,
        path: AnyPath,
        text: str,
        encoding: str = "utf-8",
        errors: str = "strict",
        newline: str | None = None,
        *,
        mode: int | None = None,
        if_version: str | Unset | None = UNSET,
    ) -> None:
        """As `FileTransaction.write_text`."""
        call = partial(FileTransaction.write_text, mode=mode, if_version=if_version)
        await self._call(call, path, text, encoding, errors, newline)

    async def append(self, path: AnyPath, data: Data, *, mode: int | None = None) -> None:
        """As `FileTransaction.append`; the data as for `write`."""
        if isinstance(data, (bytearray, memoryview)):
            data = bytes(data)
        await self._call(FileTransaction.append, path, data, mode=mode)

    async def write_json(
        self,
        path: AnyPath,
        value: Any,
        *,
        indent: int | str | None = 2,
        default: Callable[[Any], Any] | None = None,
        option: int | None = None,
        mode: int | None = None,
        if_version: str | Unset | None = UNSET,
    ) -> None:
        """As `FileTransaction.write_json`. The value is serialised at once: other tasks may change it meanwhile."""
        shown = paths.decode(paths.to_bytes(path))
        data = json.dumps(value, indent, shown, default=default, option=option)
        await self._call(FileTransaction.write, path, data, mode=mode, if_version=if_version)

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
    ) -> AsyncFile[str]: ...
    @overload
    def open(
        self, path: AnyPath, mode: BinaryMode, buffering: int = -1, *, permissions: int | None = None
    ) -> AsyncFile[bytes]: ...
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
    ) -> AsyncFile[Any]: ...
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
    ) -> AsyncFile[Any]:
        """As `FileTransaction.open`: `async with tx.open(...) as file`, or `file = await tx.open(...)`.

        The file is closed with the transaction at the latest.
        """
        return AsyncFile(
            self._serving()[0],
            lambda tx: tx.open(path, mode, buffering, encoding, errors, newline, permissions=permissions),
        )

    async def delete(self, path: AnyPath, *, missing_ok: bool = False) -> None:
        """As `FileTransaction.delete`."""
        await self._call(FileTransaction.delete, path, missing_ok=missing_ok)

    async def delete_tree(self, path: AnyPath) -> None:
        """As `FileTransaction.delete_tree`."""
        await self._call(FileTransaction.delete_tree, path)

    async def move(self, source: AnyPath, target: AnyPath, *, overwrite: bool = True) -> None:
        """As `FileTransaction.move`."""
        await self._call(FileTransaction.move, source, target, overwrite=overwrite)

    async def copy(self, source: AnyPath, target: AnyPath, *, overwrite: bool = True) -> None:
        """As `FileTransaction.copy`."""
        await self._call(FileTransaction.copy, source, target, overwrite=overwrite)

    async def symlink(self, text: AnyPath, path: AnyPath) -> None:
        """As `FileTransaction.symlink`."""
        await self._call(FileTransaction.symlink, text, path)

    async def chmod(self, path: AnyPath, mode: int) -> None:
        """As `FileTransaction.chmod`."""
        await self._call(FileTransaction.chmod, path, mode)

    async def mkdir(self, path: AnyPath, *, exist_ok: bool = True) -> None:
        """As `FileTransaction.mkdir`."""
        await self._call(FileTransaction.mkdir, path, exist_ok=exist_ok)

    async def plan(self) -> Plan:
        """As `FileTransaction.plan`."""
        return await self._call(FileTransaction.plan)

    async def on_commit(self, call: Callable[[], object]) -> None:
        """As `FileTransaction.on_commit`; it is called in the thread of the transaction."""
        await self._call(FileTransaction.on_commit, call)

    async def on_rollback(self, call: Callable[[], object]) -> None:
        """As `FileTransaction.on_rollback`; it is called in the thread of the transaction."""
        await self._call(FileTransaction.on_rollback, call)

    async def on_progress(self, call: Callable[[int, int], object]) -> None:
        """As `FileTransaction.on_progress`; it is called in the thread of the transaction, or in one of its helpers."""
        await self._call(FileTransaction.on_progress, call)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """As `FileTransaction.savepoint`. What other tasks stage meanwhile in the same transaction belongs to it.

        Raises `TransactionClosedError` while another task is in a savepoint of the transaction.
        """
        return AsyncSavepoint(self._serving()[0], self._savepoints, ServedTransaction.savepoint)

    def _take_callbacks(self) -> list[Callback]:
        return [] if self._tx is None else self._tx._take_callbacks()

    def _part(self) -> AsyncSavepoint:
        """As in `FileTransaction`."""
        return AsyncSavepoint(self._serving()[0], self._savepoints, ServedTransaction._part)


class AsyncSavepoint:  # no generator: the finalizer of one needs the event loop
    """What `AsyncFileTransaction.savepoint` returns, for `async with`."""

    kept: bool = False  # what was staged inside is, also where its task was cancelled while it was being left

    def __init__(
        self,
        worker: Worker[ServedTransaction],
        stack: list[Owner],
        make: Callable[[ServedTransaction], AbstractContextManager[None]],
    ) -> None:
        self._worker = worker
        self._stack = stack
        self._make = make

    async def __aenter__(self) -> None:
        owner = this_task()
        if self._stack and self._stack[-1] != owner:
            raise TransactionClosedError("another task is in a savepoint of this transaction")
        self._stack.append(owner)
        entering = Job(partial(self._worker.enter_savepoint, self._make))
        try:
            await run(self._worker, entering)
        except BaseException as error:
            if entering.error is None:
                await self._leave(error)
            else:
                self._stack.pop()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        self._stack.pop()
        if self._worker.tx is None or self._worker.tx.ended:
            return
        job = Job(partial(self._worker.leave_savepoint, error))
        if isinstance(error, GeneratorExit):
            self._worker.post(job)
            return
        try:
            await run(self._worker, job)
        finally:
            self.kept = error is None and job.error is None


async def update(once: Callable[[], Awaitable[T]], pauses: Iterable[float]) -> T:
    """`FileStore.async_update`, trying again after each of the pauses."""
    for pause in pauses:
        try:
            return await once()
        except ConflictError as error:
            if error.outcome != "before":  # of a callback
                raise
            await asyncio.sleep(pause)
    return await once()


async def update_once(
    begin: Callable[[], AsyncFileTransaction], change: Callable[[AsyncFileTransaction], Awaitable[T]]
) -> T:
    """A transaction for the one change."""
    async with begin() as tx:
        return await change(tx)


async def wait_for_change(look: Callable[[], str], since: str, timeout: float | None, pauses: Iterable[float]) -> str:
    """`FileStore.async_wait_for_change`, looking again after each of the pauses."""
    loop = asyncio.get_running_loop()
    until = math.inf if timeout is None else loop.time() + timeout
    for pause in pauses:
        version = await loop.run_in_executor(None, look)
        left = until - loop.time()
        if version != since or left <= 0:
            break
        await asyncio.sleep(min(pause, left))
    return version


async def in_thread(call: Callable[[], T]) -> T:
    """What it returns, from a thread of the event loop's pool."""
    return await asyncio.get_running_loop().run_in_executor(None, call)
