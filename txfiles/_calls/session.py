"""What every call of a transaction stands on: whose it is, whether it is open, and that no other runs beside it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from txfiles._calls.progress import Progress
from txfiles._disk import system
from txfiles._disk.interrupts import AllHeldBack, HeldBack, give_way
from txfiles._format import paths
from txfiles.errors import CommitError, TransactionClosedError, TxFilesError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from txfiles._disk.leaving import Left
    from txfiles._tree.staging import Staging
    from txfiles._tree.tokens import Tokens
    from txfiles.errors import Outcome


_PATIENCE = 0.05  # seconds in which a signal is not noticed where another thread's call runs


class Callback(NamedTuple):
    """What is called when the outcome is known, if it is `when`."""

    call: Callable[[], object]
    when: Literal["after", "before", "any"]


class Session:
    """The state of a transaction, without a beginning or an end."""

    _state: Literal["new", "open", "prepared", "ended"] = "new"  # also where `__init__` was never entered
    _staging: Staging
    _tokens: Tokens
    _outcome: Outcome = "before"
    _in_part = False
    _shared_in: int | None = None  # the thread of those who share it, and end it

    def __init__(self, root: bytes) -> None:
        self._fs = system.current()
        self._root = root
        self._mutex = threading.RLock()
        self._savepoints: list[Left] = []  # that are open
        self._writing: dict[str, Callable[[], None]] = {}  # how to discard what is open for writing
        self._pid = -1
        self._callbacks: list[Callback] = []
        self._progress: Progress | None = None

    @property
    def outcome(self) -> Outcome:
        """The state on disk: `"before"` the transaction, `"after"` it, or `"unknown"`.

        It is unknown while the commit runs, and after an error that says so, until the next recovery. While a prepared
        transaction waits it is that before; what somebody else decides about it is not seen here.
        """
        return self._outcome

    def on_commit(self, call: Callable[[], object]) -> None:
        """Call this when the transaction was committed, when the lock is free; in the order in which they were named.

        A call that was named inside a savepoint that is undone is forgotten. After a commit whose outcome is unknown
        none is called, nor after a `prepare` that is decided somewhere else.

        An exception in one of them keeps none of the others, and is raised by `commit`; `outcome` is `"after"`. Beside
        another error it is a note on that.
        """
        with self._call():
            self._callbacks.append(Callback(call, "after"))

    def on_rollback(self, call: Callable[[], object]) -> None:
        """Call this when what was staged so far was not committed: after a rollback or a failed commit.

        If it was named inside a savepoint that is undone, it is called at the end of the transaction, whatever that is.
        Otherwise as `on_commit`. A transaction that is dropped while open calls nothing.
        """
        with self._call():
            self._callbacks.append(Callback(call, "before"))

    def on_progress(self, call: Callable[[int, int], object]) -> None:
        """Call this with (done, total) while the commit runs, from the thread of the commit or one of its helpers.

        A staged file is a step when it is durable, and each change is one when it is made. It holds the commit up, so
        it should be quick. After an exception it is called no more, and `commit` raises that when all is done. Only
        the last one that was named is called.
        """
        with self._call():
            self._progress = Progress(call)
            self._callbacks.append(Callback(self._progress.tell, "any"))

    def _undo_callbacks(self, mark: int) -> None:
        """What was named since then belongs to a savepoint that was undone."""
        self._callbacks[mark:] = [Callback(one.call, "any") for one in self._callbacks[mark:] if one.when != "after"]

    def _call_back(self, failure: BaseException | None) -> None:
        """REQUIRES: the transaction has ended; otherwise nothing is called."""
        if self._state != "ended":
            return
        call_back(self._take_callbacks(), self._outcome, failure)

    def _take_callbacks(self) -> list[Callback]:
        callbacks, self._callbacks = self._callbacks, []
        return callbacks

    def _call(self) -> Call:
        return Call(self)

    def _held_back(self, note: Callable[[], str] | None = None) -> AbstractContextManager[None]:
        """Where an interrupt waits."""
        return HeldBack(note)

    def _all_held_back(self) -> AbstractContextManager[None]:
        """Where Ctrl-C waits, too: a call is made as a whole or not at all."""
        return AllHeldBack()

    def _require_mine(self) -> None:
        if self._pid not in (-1, self._fs.pid()):
            raise TransactionClosedError("the transaction belongs to the process that began it")

    def _require_open(self) -> None:
        if self._state != "open":
            what = {"new": "has not begun", "prepared": "is prepared", "ended": "has ended"}
            raise TransactionClosedError(f"the transaction {what[self._state]}")

    def _refuse_end_for_others(self) -> None:
        if self._in_part or self._shared_in not in (None, threading.get_ident()):
            raise TransactionClosedError("others share the transaction: an exception undoes what is yours")

    def _refuse_open_savepoint(self) -> None:
        if self._staging.in_step:
            raise TransactionClosedError("a savepoint is still open")

    def _refuse_open_files(self) -> None:
        if self._writing:
            self._tokens.remove_all()
            raise still_open(min(self._writing))


def call_back(callbacks: list[Callback], outcome: Outcome, failure: BaseException | None) -> None:
    """Call those that wait for this outcome; raises what the first raised, if nothing else is raised anyway."""
    raised: BaseException | None = failure
    for call, when in callbacks:
        if outcome == "unknown" or when not in (outcome, "any"):
            continue
        try:
            call()
        except Exception as error:
            if raised is not None:
                raised.add_note(f"txfiles: a callback raised {error!r}")
            else:
                raised = error
                if isinstance(error, TxFilesError):
                    error.outcome = outcome
                error.add_note(f"txfiles: raised by a callback of a transaction whose outcome is {outcome!r}")
    if failure is None and raised is not None:
        raise raised


def still_open(path: str) -> CommitError:
    return CommitError(f"nothing was changed: {path!r} is still open for writing", path=path)


class Turn:
    """A block of an open transaction, beside which no call of another thread runs."""

    __slots__ = ("_tx",)

    def __init__(self, tx: Session) -> None:
        self._tx = tx

    def __enter__(self) -> Staging:
        tx = self._tx
        tx._require_mine()
        while not tx._mutex.acquire(timeout=_PATIENCE):
            give_way()
        try:
            tx._require_open()
            return tx._staging
        except BaseException:
            tx._mutex.release()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        if error is not None:
            paths.name_below(error, self._tx._root)
        self._tx._mutex.release()


class Call(Turn):
    """One call. What a signal handler raises waits for its end; but not in code of the caller's (`let_through`)."""

    __slots__ = ("_held",)

    def __init__(self, tx: Session) -> None:
        super().__init__(tx)
        self._held = tx._all_held_back()

    def __enter__(self) -> Staging:
        self._held.__enter__()
        try:
            return super().__enter__()
        except BaseException as error:
            self._held.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        self._held.__exit__(kind, error, traceback)
