"""What the tasks of an event loop have to do with each other and with the threads of their transactions."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from txfiles._disk import lock, system
from txfiles._disk.lock import Owner
from txfiles.errors import LockTimeoutError, NestedTransactionError, TransactionClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles._asyncio.worker import Job, Worker

T = TypeVar("T")


def _current_task() -> object:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return None
    return None if task is None else weakref.ref(task)


lock.task_of_this_thread = _current_task


def this_task() -> Owner:
    """The current task as the owner of a transaction, until it has left it."""
    return Owner(None, _current_task() or object())


class Turn:
    """The tasks of one event loop that want one root, in the order in which they came; one of them has its turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, root: str) -> None:
        self._loop = loop
        self._root = root
        self._taken = False
        self._owner: Owner | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, owner: Owner, timeout: float | None) -> None:
        if self._owner == owner:
            message = f"this task already has a transaction on {self._root!r}"
            raise NestedTransactionError(message, path=self._root)
        if self._taken:
            await self._wait(timeout)
        self._taken = True
        self._owner = owner

    async def _wait(self, timeout: float | None) -> None:
        mine = self._loop.create_future()
        self._waiting.append(mine)
        try:
            async with asyncio.timeout(timeout):
                await mine
        except BaseException as error:
            if mine in self._waiting:
                self._waiting.remove(mine)
            elif not mine.cancelled():
                self._pass_on()  # the turn came in the same moment
            if isinstance(error, TimeoutError):
                message = f"{self._root!r} is locked by another task; waited {timeout} s"
                raise LockTimeoutError(message, path=self._root) from None
            raise

    def leave(self) -> None:
        """From any thread."""
        if self._owner is not None:
            self._owner.leave()
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            self._pass_on()
        else:
            _in_loop(self._loop, self._pass_on)

    def _pass_on(self) -> None:
        while self._waiting and not self._loop.is_closed():
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                return
        self._taken = False


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakValueDictionary[str, Turn]]
_turns = weakref.WeakKeyDictionary()


def turn_at(root: str) -> Turn:
    loop = asyncio.get_running_loop()
    turns = _turns.setdefault(loop, weakref.WeakValueDictionary())
    return turns.setdefault(root, Turn(loop, root))


async def run(worker: Worker[Any], job: Job[T], stop: Callable[[], None] = lambda: None) -> T:
    """Have the worker do a job. Who is cancelled meanwhile calls `stop`, and goes on when the job is finished."""
    if worker.pid != system.current().pid():
        raise TransactionClosedError("the transaction belongs to the process that began it")
    loop = asyncio.get_running_loop()
    finished = loop.create_future()
    job.tell = partial(_tell, loop, finished)
    worker.post(job)
    cancelled: asyncio.CancelledError | None = None
    while not finished.done():
        try:
            await asyncio.shield(finished)
        except asyncio.CancelledError as error:
            cancelled = error
            stop()
    if cancelled is None:
        return job.result()
    try:
        if job.error is not None:
            raise cancelled from job.error
        raise cancelled
    finally:
        del cancelled


def _tell(loop: asyncio.AbstractEventLoop, finished: asyncio.Future[None]) -> bool:
    """False when nobody hears it: a loop that is closed in this moment takes a call and never makes it."""
    return _in_loop(loop, finished.set_result, None) and (not loop.is_closed() or finished.done())


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> bool:
    """False when the loop is closed."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        return False
    return True
