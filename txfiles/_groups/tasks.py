"""`FileStore.async_update(group=True)`: tasks of an event loop that wait for one another.

Each runs its function itself, in its own context; a task that does nothing else begins the transaction, gives them
their turns, and commits. Who is cancelled leaves alone.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from txfiles._asyncio.tasks import this_task
from txfiles._calls.session import call_back
from txfiles._disk import system
from txfiles._disk.lock import here, refuse_nested
from txfiles._format import paths
from txfiles._groups.update import AT_MOST, Update
from txfiles.errors import LockTimeoutError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from txfiles.aio import AsyncFileTransaction, AsyncSavepoint

T = TypeVar("T")


class _Task(Update):
    """The update of one task."""

    def __init__(self, root: str, timeout: float | None) -> None:
        super().__init__(root, timeout)
        loop = asyncio.get_running_loop()
        self.turn: asyncio.Future[AsyncFileTransaction] = loop.create_future()
        self.part_ended: asyncio.Future[None] = loop.create_future()
        self.finished: asyncio.Future[None] = loop.create_future()
        self.kept = False  # its part is committed though it was cancelled


class Gathering:
    """The tasks of one event loop that update one root with the same settings."""

    def __init__(self, make: Callable[[float | None], AsyncFileTransaction], root: str, timeout: float | None) -> None:
        self._make = make
        self._root = root
        self._timeout = timeout
        self._waiting: deque[_Task] = deque()
        self._driver: asyncio.Task[None] | None = None

    async def run(self, change: Callable[[AsyncFileTransaction], Awaitable[T]]) -> T:
        refuse_nested(system.current(), paths.encode(self._root), here())
        me = _Task(self._root, self._timeout)
        self._waiting.append(me)
        if self._driver is None:
            self._driver = asyncio.get_running_loop().create_task(self._drive(), name="txfiles updates")
        tx = await self._turn(me)
        part: AsyncSavepoint | None = None
        try:
            async with (part := tx._part()):
                tx._owner.become(this_task())
                value = await change(tx)
        except GeneratorExit as error:  # whoever closes a coroutine cannot wait
            me.error = error
            raise
        except BaseException as error:
            me.error, me.kept = error, part is not None and part.kept
        finally:
            me.callbacks = tx._take_callbacks()
            _tell(me.part_ended)
        await self._end(me)
        return value

    async def _turn(self, me: _Task) -> AsyncFileTransaction:
        try:
            async with asyncio.timeout(me.left()):
                return await me.turn
        except BaseException as error:
            me.turn.cancel()
            me.error = error
            _tell(me.part_ended)  # the turn may have come in the same moment
            if isinstance(error, TimeoutError) and not isinstance(error, LockTimeoutError):
                raise me.timed_out() from None
            raise

    async def _end(self, me: _Task) -> None:
        """Wait for the outcome, also when cancelled, and raise what there is to raise."""
        cancelled: asyncio.CancelledError | None = None
        while not me.finished.done():
            try:
                await asyncio.shield(me.finished)
            except asyncio.CancelledError as caught:
                cancelled = caught
        error, me.error = me.error, None
        try:
            if me.callbacks:
                failed = await asyncio.to_thread(_failure_of, call_back, me.callbacks, me.outcome, error)
                error = error or failed
            if cancelled is not None:
                raise cancelled from error
            if error is not None:
                raise error
        finally:
            del error, cancelled

    # -- in the task that drives --------------------------------------------------------------------------------

    async def _drive(self) -> None:
        try:
            while (first := self._first()) is not None:
                await self._commit_group(first)
        finally:
            self._driver = None
            while (one := self._first()) is not None:
                one.turn.cancel()

    def _first(self) -> _Task | None:
        while self._waiting:
            if not self._waiting[0].turn.done():
                return self._waiting[0]
            self._waiting.popleft()
        return None

    async def _commit_group(self, first: _Task) -> None:
        group: list[_Task] = []
        tx = self._make(first.left())
        failure: BaseException | None = None
        try:
            async with tx:
                while len(group) < AT_MOST and (one := self._first()) is not None:
                    group.append(self._waiting.popleft())
                    one.turn.set_result(tx)
                    await one.part_ended
        except Exception as error:
            failure = error
            if not group and not first.turn.done():
                first.turn.set_exception(error)
        except BaseException as error:
            failure = error
            raise
        finally:
            for one in group:
                if one.error is None:
                    one.settle(tx.outcome, failure)
                elif one.kept:
                    one.outcome = tx.outcome
                _tell(one.finished)
            del failure, group


def _failure_of(call: Callable[..., object], *args: object) -> BaseException | None:
    """No future takes a `StopIteration`."""
    try:
        call(*args)
    except BaseException as error:
        return error
    return None


def _tell(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_gatherings: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.WeakValueDictionary[tuple[object, ...], Gathering]
]
_gatherings = weakref.WeakKeyDictionary()


def gathering_of(
    key: tuple[object, ...], make: Callable[[float | None], AsyncFileTransaction], root: str, timeout: float | None
) -> Gathering:
    """The one of these settings in this event loop."""
    of_loop = _gatherings.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    return of_loop.setdefault(key, Gathering(make, root, timeout))
