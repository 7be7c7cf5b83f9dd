"""`FileTransaction`: its beginning and its end. The calls between them are in `_calls`, the protocol in `_commit`."""

from __future__ import annotations

import time
import warnings
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Self

from txfiles._calls.changing import Changing
from txfiles._calls.settings import HasRoot, check_links, check_settings, is_far, root_of
from txfiles._commit import idle, levels, two_phase
from txfiles._commit.home import Home, locate
from txfiles._commit.protocol import run_to_end
from txfiles._disk import system
from txfiles._disk.allowance import Allowance
from txfiles._disk.interrupts import GivingWay, HeldBack
from txfiles._disk.leaving import Exit
from txfiles._disk.lock import here
from txfiles._format import paths
from txfiles._tree.staging import Staging
from txfiles._tree.tokens import Tokens
from txfiles.errors import (
    LockTimeoutError,
    SettleError,
    TransactionClosedError,
    TxFilesError,
    UnsupportedFilesystemError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from txfiles._calls.settings import Links
    from txfiles._disk.allowance import Accept, GivenUp
    from txfiles._format.journal import Durability, Journal
    from txfiles._format.paths import AnyPath
    from txfiles._tree.tree import Tree
    from txfiles.errors import Outcome
    from txfiles.objects.engine import Engine
    from txfiles.objects.far import Far

__all__ = ["FileTransaction"]

_WAIT_FOR_DECISION = 0.05  # seconds between two looks at a prepared transaction
_EMPTY = ".empty"  # ends the id of a prepared transaction that changes nothing


class FileTransaction(Changing):
    """A change of several files below `root` that happens as a whole or not at all.

    As a context manager it begins on entering, commits at the end of the block, and rolls back when the block raises.

    Paths are relative to the root, `str`, `bytes` or `os.PathLike`. Before the commit nothing of the root changes; what
    is staged lies in its private directory `.txfiles`. A transaction may be handed from thread to thread, and its
    calls are serialised; it belongs to the process that began it.

    >>> with FileTransaction(root) as tx:
    ...     tx.write("a.txt", "one")
    ...     tx.write_json("b.json", {"two": 2})
    """

    _engine: Engine  # of a root on a store

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
        """Nothing is opened, locked or made before `begin`. Raises `ValueError` for a setting that is none.

        Args:
            root: the directory; it must exist unless `create`. It is fixed here: a later `chdir` changes nothing. Or a
                URL, such as `"s3://bucket/prefix"`, see docs/object-storage.md; or a `FileStore`, for its root alone.
            durability: `"full"`, safe against power loss once the commit returned; `"journal"`, the same with one sync
                for a commit of small files, where other programs may see old, mixed or empty files after a power loss
                until the next recovery; `"process"`, no fsync at all, safe against the death of the process only.
            timeout: seconds to wait for other writers of the root; `None` for ever, `0` not at all.
            create: make the root when it is missing.
            links: with `"follow"` symbolic links that lead out of the root are followed, to files of the same mount,
                where nobody else may write the private directory, see docs/links.md; with `"refuse"` they raise
                `InvalidPathError`.
            accept: what the place may fail to give, else an error: `"unsynced-directories"`, a file system that cannot
                sync directories; `"narrowed-modes"`, replaced files that lose permissions because chown is refused.
        """
        check_settings(durability, timeout, accept)
        self._links_out = check_links(links, root)
        self._far: Far | None = None
        if is_far(root):
            from txfiles.objects.far import far_of

            self._far = far_of(root)
            super().__init__(paths.encode(self._far.shown))
        else:
            super().__init__(locate(system.current(), root_of(root)))
        self._durability: Durability = durability
        self._timeout = timeout
        self._create = create
        self._allowance = Allowance(self._root, accept)
        self._owner: object = None
        self._journal: Journal | None = None  # of a prepared transaction that changes anything
        self._checks: list[Callable[[Tree], None]] = []  # of what has to hold still when it commits

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {paths.decode(self._root)!r} {self._state}>"

    # -- begin and end ------------------------------------------------------------------------------------------

    def begin(self) -> Self:
        """Take the lock, recover what a crash left, and begin. Returns the transaction.

        Raises `LockTimeoutError`, `NestedTransactionError`, `RecoveryError` and its kinds,
        `UnsupportedFilesystemError`, and `OSError` where the root cannot be opened or written.
        """
        if self._state != "new":
            raise TransactionClosedError("the transaction has begun already; make a new one")
        if self._far is not None:
            with GivingWay():
                return self._begin_far(self._far)
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        try:
            with HeldBack():
                while (waiting := self._open(deadline)) is not None:
                    if deadline is not None and time.monotonic() >= deadline:
                        raise LockTimeoutError(waiting, path=paths.decode(self._root))
                    with GivingWay():
                        time.sleep(_WAIT_FOR_DECISION)
        except BaseException:
            self._roll_back_late()
            raise
        return self

    def _open(self, deadline: float | None) -> str | None:
        with paths.Naming(self._root), paths.Below(self._root):
            home = Home.open(self._fs, self._root, create=self._create, follow=self._links_out)
            home.allowance = self._allowance
            try:
                waiting = self._enter(home, deadline)
                if waiting is None:
                    return None
            except BaseException:
                run_to_end(home.close)
                raise
            home.close()
        return waiting

    def _begin_far(self, far: Far) -> Self:
        from txfiles.objects.engine import Engine

        self._engine = Engine(far, self._timeout, create=self._create)
        self._staging = self._engine.staged
        self._tokens = self._staging.tokens
        self._pid = self._fs.pid()
        self._state = "open"
        return self

    def _enter(self, home: Home, deadline: float | None) -> str | None:
        """Lock and recover; what to wait for, or `None` when the transaction is open."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        home.lock.acquire(left, here() if self._owner is None else self._owner)
        if not home.is_in_place():
            return f"the private directory of {paths.decode(self._root)!r} keeps being replaced"
        report = levels.enter(home, self._durability)
        if report is not None and report.waiting:
            prepared = report.waiting[0].transaction_id
            return f"transaction {prepared} of {paths.decode(self._root)!r} is prepared and waits for a decision"
        self._tokens = Tokens(
            self._fs,
            home.private_fd,
            self._fs.random_id(),
            durable=self._durability != "process",
            inline=levels.inline(self._durability),
            allowance=self._allowance,
        )
        self._staging = Staging(self._fs, home.tree, self._tokens)
        self._staging.checks.extend(self._checks)
        self._home = home
        self._pid = self._fs.pid()
        self._state = "open"
        return None

    def commit(self) -> None:
        """Make the change, whole and (with `durability="full"`) safe against power loss when this returns.

        Raises `CommitError`, `ConflictError`, `UnsupportedFilesystemError` or `InvalidPathError` when nothing has
        changed, `SettleError` when all has, `CommitOutcomeUnknownError` when recovery has to decide. Whatever
        happens, the transaction has ended and the lock is free. After `prepare` see there.
        """
        self._finish(self._commit)

    def _commit(self) -> None:
        if self._state == "prepared":
            self._decide(two_phase.commit, "after")
            return
        self._require_open()
        self._refuse_end_for_others()
        self._refuse_open_savepoint()
        try:
            self._outcome = "unknown"
            self._refuse_open_files()
            if self._far is None:
                self._home.progress = self._progress
            if self._far is not None:
                self._engine.commit(self._checks)
                if self._progress is not None:
                    self._progress.begin(1)
                    self._progress.step()
            elif logged := levels.commit(self._home, self._staging, self._durability):
                idle.expect(self._fs, self._root, logged)
            self._outcome = "after"
        except BaseException as failure:
            self._end_interrupted(failure)
            raise
        self._end(discard=False)

    def rollback(self) -> None:
        """Forget everything that was staged, or prepared. Nothing on disk has changed; the lock is free."""
        self._finish(self._roll_back)

    def _roll_back(self) -> None:
        if self._state == "prepared":
            self._decide(two_phase.roll_back, "before")
            return
        self._require_open()
        self._refuse_end_for_others()
        self._end(discard=True)

    def _finish(self, end: Callable[[], None], why: BaseException | None = None) -> None:
        """End it; then, without the lock, tell those who asked to be told."""
        self._require_mine()
        try:
            with self._mutex, self._held_back(self._tell), paths.Below(self._root):
                end()
        except BaseException as failure:
            self._call_back(failure)
            raise
        self._call_back(why)

    def _held_back(self, note: Callable[[], str] | None = None) -> AbstractContextManager[None]:
        """Where an interrupt waits: on a disk. On object storage it ends what would last, and the engine knows how."""
        return super()._held_back(note) if self._far is None else GivingWay()

    def _all_held_back(self) -> AbstractContextManager[None]:
        return super()._all_held_back() if self._far is None else GivingWay()

    def _tell(self) -> str:
        return f"txfiles: it waited for the end of {self!r}; the state on disk: {self._outcome!r}"

    @property
    def transaction_id(self) -> str:
        """The id under which recovery, `status` and log records name the transaction, 32 hex digits.

        Raises `TransactionClosedError` before `begin`.
        """
        if self._state == "new":
            raise TransactionClosedError("the transaction has not begun")
        return self._tokens.tid

    @property
    def given_up(self) -> tuple[GivenUp, ...]:
        """What the place did not give so far, and was accepted or is none to accept: see docs/limits.md."""
        return self._allowance.given_up

    def prepare(self) -> str:
        """Make the change durable without making it, and return an id: the first phase of two.

        Then somebody else decides, say a database of which the same transaction is a part, and the second phase is
        `commit` or `rollback`, or, from any process that knows the id, `commit_prepared` or `rollback_prepared`. Until
        then no other transaction of the root can begin: it waits, at most for its timeout. Neither a crash nor
        recovery decides (after a power loss that holds with `durability="full"` only): `recover` reports the
        transaction as `waiting`. Leaving the `with` block without a decision, also by an exception, frees the lock and
        leaves the transaction prepared.

        The second phase can fail where files were changed by other programs since, with `RecoveryConflictError`: the
        transaction still waits, and `commit_prepared` can be told what to do. Otherwise only where the disk fails:
        with `CommitOutcomeUnknownError` it still waits, or the next recovery finishes it.

        A transaction that changes nothing leaves nothing to wait. It has an id, too, which `commit_prepared` and
        `rollback_prepared` accept.

        Raises what `commit` raises; the transaction has ended then, and nothing is prepared.

        >>> with FileTransaction(root) as tx:
        ...     tx.write("photo.jpg", data)
        ...     with database:
        ...         database.insert("photo.jpg", decided=tx.prepare())
        ...     tx.commit()
        """
        self._require_mine()
        with self._mutex, self._held_back(self._tell):
            self._require_open()
            if self._far is not None:
                message = "object storage has no prepared transactions; record transaction_id, and ask recover() for it"
                raise UnsupportedFilesystemError(message, path=paths.decode(self._root))
            self._refuse_end_for_others()
            self._refuse_open_savepoint()
            try:
                self._refuse_open_files()
                self._journal = levels.make_ready(self._home, self._staging, self._durability, two_phase=True)
                self._state = "prepared"
                if self._journal is not None:
                    two_phase.make_prepared(self._home, self._journal)
            except BaseException:
                self._end(discard=False)
                raise
            return self._tokens.tid if self._journal is not None else self._tokens.tid + _EMPTY

    def _decide(self, end: Callable[[Home, Journal], None], outcome: Outcome) -> None:
        self._outcome = "unknown"
        try:
            if self._journal is not None:
                self._home.require_in_place()
                end(self._home, self._journal)
            self._outcome = outcome
        except SettleError:
            self._outcome = "after"
            raise
        finally:
            self._end(discard=False)

    def _end_interrupted(self, failure: BaseException) -> None:
        """End after a failure. An interrupt can come between two steps, too: there recovery goes on."""
        cause = failure if isinstance(failure, Exception) else failure.__cause__
        try:
            if cause is not None:
                self._outcome = getattr(cause, "outcome", "before")
            if self._far is not None:
                self._engine.failed(failure)
            elif cause is None and self._outcome == "unknown":
                with suppress(OSError, TxFilesError):  # then the next transaction does it
                    run_to_end(self._bring_to_rest)
        finally:
            self._end(discard=False)

    def _bring_to_rest(self) -> None:
        self._tokens.drop()
        committed = levels.bring_to_rest(self._home, self._tokens.tid, self._durability)
        self._outcome = "after" if committed else "before"

    def _end(self, *, discard: bool) -> None:
        def end() -> None:
            self._state = "ended"
            failed: Exception | None = None
            try:
                if discard:
                    self._tokens.remove_all()
            except Exception as error:
                failed = error
            self._tokens.forget()
            self._close()
            if failed is not None:
                raise failed

        with self._held_back(self._tell):
            try:
                run_to_end(end)
            except BaseException:  # whatever was raised in the midst of it, or before
                try:
                    run_to_end(end)
                finally:
                    self._close()
                raise

    def _close(self) -> None:
        if self._far is None:
            self._home.close()

    def __enter__(self) -> Self:
        return self.begin()

    def _leave(self, error: BaseException | None) -> None:
        """The end of a `with` block."""
        if self._state == "open":
            self._refuse_end_for_others()
        mine = self._pid == self._fs.pid()
        if self._far is not None and self._state == "open":
            self._engine.failed(error)
        try:
            if self._state == "prepared" and mine:
                self._end(discard=False)
            if self._state != "open" or not mine:
                return
            if error is None:
                self.commit()
            else:
                self._finish(lambda: self._roll_back_for(error), error)
        finally:  # an interrupt may have come before any of it
            if self._state == "open" and mine:
                self._end(discard=True)

    def _roll_back_late(self) -> None:
        """Roll back if it is open, after an interrupt that came where nothing could wait for it."""
        if self._state == "open" and self._pid == self._fs.pid():
            self._finish(self._roll_back)

    def _roll_back_for(self, error: BaseException) -> None:
        try:
            self._roll_back()
        except OSError as failed:
            error.add_note(f"txfiles: rolled back, but staged files could not be removed: {failed}")

    __exit__: Exit = Exit()

    def __del__(self) -> None:
        if self._state == "prepared" and self._pid == self._fs.pid():
            self._end(discard=False)
        if self._state == "open" and self._pid == self._fs.pid():
            message = f"{self!r} was dropped while open; it is rolled back"
            try:
                warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            finally:  # also where warnings are errors
                self._end(discard=True)


def is_empty_id(transaction_id: str) -> bool:
    """Whether it is what `prepare` returned for a transaction that changes nothing."""
    return transaction_id.endswith(_EMPTY)
