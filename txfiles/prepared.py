"""`commit_prepared` and `rollback_prepared`: the decision on a transaction that was prepared, by whoever has its id."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from txfiles._calls.settings import check_links, check_settings
from txfiles._commit import inventory, two_phase
from txfiles._commit.home import Home, locate
from txfiles._commit.recover import recover_locked
from txfiles._disk import system
from txfiles._disk.allowance import Allowance
from txfiles._disk.interrupts import AllHeldBack
from txfiles._disk.lock import here
from txfiles._format import paths
from txfiles.errors import TransactionClosedError
from txfiles.transaction import is_empty_id

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from txfiles._calls.settings import Links
    from txfiles._commit.inventory import Pending
    from txfiles._commit.recover import OnConflict
    from txfiles._disk.allowance import Accept
    from txfiles._format.paths import AnyPath

__all__ = ["commit_prepared", "rollback_prepared"]

_DECISIONS = ("raise", "keep-theirs", "roll-forward")


def commit_prepared(
    root: AnyPath,
    transaction_id: str,
    *,
    timeout: float | None = 10.0,
    on_conflict: Literal["raise", "keep-theirs", "roll-forward"] = "raise",
    links: Links = "refuse",
    accept: Collection[Accept] = (),
) -> None:
    """Commit what `FileTransaction.prepare` prepared in `root`, in this process or in one that has died since.

    May be called again after a crash, or by several processes: for the last transaction that was committed in `root`
    it does nothing. Whatever else a crash left is recovered first.

    Args:
        transaction_id: what `prepare` returned.
        timeout: seconds to wait for a writer that is at work, such as the transaction that has just prepared.
        on_conflict: what to do about files that somebody else changed since: `"raise"`, `"keep-theirs"` (commit the
            rest), `"roll-forward"` (overwrite theirs).
        links: `"follow"` where it was prepared with that.
        accept: as for `FileTransaction`.

    Raises `TransactionClosedError` when no such transaction is prepared: it was rolled back, committed before others,
    or never prepared. `RecoveryConflictError`, `RecoveryError` and `LockTimeoutError`: it still waits.
    `CommitOutcomeUnknownError`: it still waits, or the next recovery finishes it. `SettleError`: it is committed.

    >>> for waiting in recover(root).waiting:
    ...     if database.has(waiting.transaction_id):
    ...         commit_prepared(root, waiting.transaction_id)
    ...     else:
    ...         rollback_prepared(root, waiting.transaction_id)
    """
    if on_conflict not in _DECISIONS:
        raise ValueError(f"on_conflict is one of {', '.join(_DECISIONS)}, not {on_conflict!r}")
    with AllHeldBack(), _opened(root, transaction_id, timeout, check_links(links), accept) as home:
        if home is None:
            return
        waiting = _find(home, transaction_id, on_conflict)
        if waiting is not None:
            assert waiting.journal is not None
            two_phase.commit(home, waiting.journal, on_conflict, same_tree=waiting.same_tree)
        elif not _was_last(home, transaction_id):
            raise _unknown(root, transaction_id)


def rollback_prepared(
    root: AnyPath,
    transaction_id: str,
    *,
    timeout: float | None = 10.0,
    links: Links = "refuse",
    accept: Collection[Accept] = (),
) -> None:
    """Forget what `FileTransaction.prepare` prepared in `root`; its files are as they were.

    The arguments are those of `commit_prepared`. Raises `TransactionClosedError` when no such transaction is prepared,
    also when it was rolled back before; `LockTimeoutError`, `RecoveryError` and its kinds: it still waits.
    `CommitOutcomeUnknownError`: nothing was changed, but after a power loss it may wait again.
    """
    with AllHeldBack(), _opened(root, transaction_id, timeout, check_links(links), accept) as home:
        if home is None:
            return
        waiting = _find(home, transaction_id, "raise")
        if waiting is not None:
            assert waiting.journal is not None
            two_phase.roll_back(home, waiting.journal)
        elif _was_last(home, transaction_id):
            shown = paths.decode(home.root)
            raise TransactionClosedError(f"transaction {transaction_id} of {shown!r} was committed", path=shown)
        else:
            raise _unknown(root, transaction_id)


@contextmanager
def _opened(
    root: AnyPath, transaction_id: str, timeout: float | None, follow: bool, accept: Collection[Accept]
) -> Iterator[Home | None]:
    """The root, locked; `None` for the id of a transaction that changed nothing, of which there is nothing to find."""
    check_settings("full", timeout, accept)
    if not isinstance(transaction_id, str):
        raise TypeError(f"the id of a transaction is a str, not {type(transaction_id).__name__}")
    fs = system.current()
    located = locate(fs, root)
    if is_empty_id(transaction_id):
        yield None
        return
    home = Home.find(fs, located, follow=follow)
    if home is None:
        raise _unknown(root, transaction_id)
    with home:
        home.lock.acquire(timeout, here())
        home.allowance = Allowance(home.root, accept)
        home.require_in_place()
        yield home


def _find(home: Home, transaction_id: str, on_conflict: OnConflict) -> Pending | None:
    """The transaction that waits for a decision, after everything else was brought to its end."""
    report = recover_locked(home, on_conflict=on_conflict)
    if all(waiting.transaction_id != transaction_id for waiting in report.waiting):
        return None
    return next(pending for pending in inventory.take(home).pending if pending.tid == transaction_id)


def _was_last(home: Home, transaction_id: str) -> bool:
    head = inventory.read_head(home)
    return head is not None and head.tid == transaction_id


def _unknown(root: AnyPath, transaction_id: str) -> TransactionClosedError:
    shown = paths.decode(paths.to_bytes(root))
    message = f"no transaction {transaction_id} is prepared in {shown!r}: it was decided long ago, or never prepared"
    return TransactionClosedError(message, path=shown)
