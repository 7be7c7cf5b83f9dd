"""`FileStore.update(group=True)`: threads that wait for one another; the first of them leads.

The leader takes the lock, and then, in its own thread, runs the functions of all who are there by then, its own first.
Those who come while it commits are the next group, which the first of them leads.

What a signal handler raises is the main thread's alone (`_disk/interrupts`). It comes out of the main thread's own
function as ever; in that of another caller, which it runs as the leader, `Interrupted` takes its place, and another
leader runs that function again.
"""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from txfiles._calls.session import call_back
from txfiles._commit.protocol import run_to_end
from txfiles._disk import system
from txfiles._disk.interrupts import AllHeldBack, GivingWay, Interrupted, let_through
from txfiles._disk.lock import here, nested, refuse_nested
from txfiles._format import paths
from txfiles._groups.update import AT_MOST, Update

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles.errors import Outcome
    from txfiles.transaction import FileTransaction

T = TypeVar("T")


class _Call(Update, Generic[T]):
    """The update of one thread."""

    def __init__(self, change: Callable[[FileTransaction], T], root: str, timeout: float | None) -> None:
        super().__init__(root, timeout)
        self._change = change
        self._context = contextvars.copy_context()
        self._value: T | None = None
        self.woken = threading.Event()  # it is to lead, or finished
        self.finished = False
        self.gone = False  # nobody wants to have it tried again

    def run(self, tx: FileTransaction, runs: Callable[[Callable[[], T]], T]) -> None:
        """REQUIRES: the transaction is open. In the leader's thread, in the caller's context."""
        self.error = None
        try:
            with tx._part():
                self._value = runs(partial(self._context.run, self._change, tx))
        except BaseException as error:  # raised where the caller waits
            self.error = error
        self.callbacks = tx._take_callbacks()

    def tell(self) -> str:
        return f"txfiles: it waited for the end of an update in {self.root!r}; the state on disk: {self.outcome!r}"

    def finish(self) -> None:
        self.finished = True
        self.woken.set()

    def result(self) -> T:
        """REQUIRES: it is finished."""
        error, self.error = self.error, None
        try:
            call_back(self.callbacks, self.outcome, error)
            if error is not None:
                raise error
        finally:
            del error
        return cast("T", self._value)


class Gathering:
    """The threads of this process that update one root with the same settings."""

    def __init__(self, make: Callable[[float | None], FileTransaction], root: str, timeout: float | None) -> None:
        self._make = make
        self._root = root
        self._timeout = timeout
        self._mutex = threading.Lock()
        self._waiting: deque[_Call[Any]] = deque()
        self._callers: set[int] = set()  # a signal handler may call where its thread waits
        self._leader: _Call[Any] | None = None  # the first of those who wait, until it has taken its group

    def run(self, change: Callable[[FileTransaction], T]) -> T:
        refuse_nested(system.current(), paths.encode(self._root), here())
        caller = threading.get_ident()
        if caller in self._callers:
            raise nested(self._root)
        me = _Call(change, self._root, self._timeout)
        try:
            with AllHeldBack(me.tell):
                self._callers.add(caller)
                try:
                    self._take_part(me)
                finally:
                    self._callers.discard(caller)
        except BaseException as error:
            if me.error is not None and me.error is not error:
                error.__cause__ = me.error
            call_back(me.callbacks, me.outcome, error)
            raise
        return me.result()

    def _take_part(self, me: _Call[Any]) -> None:
        try:
            self._wait(me)
            if self._leader is me:
                self._lead(me)
        finally:
            run_to_end(partial(self._leave, me))

    def _wait(self, me: _Call[Any]) -> None:
        with self._mutex:
            self._waiting.append(me)
            if self._leader is None:
                self._leader = me
                return
        with GivingWay():
            if me.woken.wait(me.left()):
                return
        with self._mutex:
            if me in self._waiting and self._leader is not me:
                raise me.timed_out()
        with GivingWay():
            me.woken.wait()

    def _leave(self, me: _Call[Any]) -> None:
        """Whatever stopped it: another leads, and what somebody does for it comes to its end."""
        with self._mutex:
            me.gone = True
            if me in self._waiting:
                self._waiting.remove(me)
                me.finish()
            if self._leader is me:
                self._leader = self._waiting[0] if self._waiting else None
                if self._leader is not None:
                    self._leader.woken.set()
                return
        if not me.finished:
            me.woken.wait()

    def _lead(self, me: _Call[Any]) -> None:
        """Raises where its own turn did not come to be, and an interrupt; what else there is, everybody has."""
        group: list[_Call[Any]] = []
        tx = self._make(me.left())
        failure: BaseException | None = None
        try:
            with tx:
                while len(group) < AT_MOST and (one := self._take(group)) is not None:
                    one.run(tx, let_through if one is me else _giving_way)
                    if one.error is not None and _is_interrupt(one.error, mine=one is me):
                        raise one.error
        except Exception as error:
            failure = error
            if me not in group:
                raise
        except BaseException as error:
            failure = error
            raise
        finally:
            run_to_end(partial(self._conclude, group, me, tx.outcome, failure))
            del failure, group

    def _take(self, group: list[_Call[Any]]) -> _Call[Any] | None:
        with self._mutex:
            if not self._waiting:
                return None
            group.append(self._waiting.popleft())
            return group[-1]

    def _conclude(
        self, group: list[_Call[Any]], me: _Call[Any], outcome: Outcome, failure: BaseException | None
    ) -> None:
        """Tell everybody. Whom only an interrupt of the leader has undone goes to the front again. Can be repeated."""
        cause = failure if failure is None or isinstance(failure, Exception) else failure.__cause__
        with self._mutex:
            for one in reversed(group):
                if one.finished or one in self._waiting:
                    continue
                if one.error is failure and one is not me:
                    one.error = cause = None  # the leader was interrupted in it
                if one.error is None:
                    if outcome == "before" and cause is None and one is not me and not one.gone:
                        self._waiting.appendleft(one)
                        continue
                    one.settle(outcome, cause)
                one.finish()


def _giving_way(call: Callable[[], T]) -> T:
    with GivingWay():
        return call()


def _is_interrupt(error: BaseException, *, mine: bool) -> bool:
    """Whether a function was stopped by what concerns the leader: signal handlers run in the main thread."""
    if not mine:
        return isinstance(error, Interrupted)
    return not isinstance(error, Exception) and threading.current_thread() is threading.main_thread()


_gatherings: weakref.WeakValueDictionary[tuple[object, ...], Gathering] = weakref.WeakValueDictionary()


def gathering_of(
    key: tuple[object, ...], make: Callable[[float | None], FileTransaction], root: str, timeout: float | None
) -> Gathering:
    """The one of these settings in this process, not of the process that it was forked from."""
    return _gatherings.setdefault((system.current().pid(), *key), Gathering(make, root, timeout))
