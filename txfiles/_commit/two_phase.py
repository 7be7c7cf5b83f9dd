"""Two-phase use: a transaction that waits for a decision, and what becomes of it. REQUIRES everywhere: the lock.

W1  `prepare` of a transaction returns only when T.prepared is durable; until then nobody knows of it.
W2  While T.prepared is there, no target was touched, and no other writer begins.
W3  The decision to commit is durable before the first target is touched. It is never taken back: what cannot be
    done at once is left to recovery, which rolls T.committed forward.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from txfiles._commit.durable import sync_private
from txfiles._commit.evidence import Evidence
from txfiles._commit.protocol import Commit, apply, path_of, retire, run_to_end, taint
from txfiles._commit.recover import decide
from txfiles._format import layout, paths
from txfiles.errors import CommitError, CommitOutcomeUnknownError, TxFilesError

if TYPE_CHECKING:
    from txfiles._commit.home import Home
    from txfiles._commit.recover import OnConflict
    from txfiles._format.journal import Journal


def make_prepared(home: Home, journal: Journal) -> None:
    """Let a durable intent wait for a decision, across crashes, too (W1). After an error or interrupt it is gone.

    Raises `CommitError`, or `CommitOutcomeUnknownError` when it is gone or waiting.
    """
    before, after = layout.journal(journal.tid, "intent"), layout.journal(journal.tid, "prepared")

    def rename() -> None:
        with suppress(FileNotFoundError):  # an interrupt hit between the rename and its return
            home.fs.rename(home.private_fd, before, home.private_fd, after)
        home.fs.stat(home.private_fd, after)
        if journal.durability == "full":
            sync_private(home)

    try:
        run_to_end(rename)
    except BaseException as cause:
        _take_back(home, journal, cause)
        raise


def _take_back(home: Home, journal: Journal, cause: BaseException) -> None:
    shown = paths.decode(home.root)

    def remove() -> None:
        home.remove(layout.journal(journal.tid, "prepared"))
        retire(home, journal, "intent")

    try:
        run_to_end(remove)
    except OSError as error:
        message = f"preparing in {shown!r} failed ({paths.told(cause, home.root)}), and so did its cleanup"
        message += f" ({paths.told(error, home.root)}); it is gone or waits"
        raise CommitOutcomeUnknownError(message, path=shown) from cause
    if isinstance(cause, OSError):
        message = f"nothing was changed in {shown!r}: {paths.told(cause, home.root)}"
        raise CommitError(message, path=path_of(cause, shown)) from cause


def commit(home: Home, journal: Journal, on_conflict: OnConflict = "raise", *, same_tree: bool = True) -> None:
    """Commit a prepared transaction.

    Raises `RecoveryConflictError` or `RecoveryError`, and it still waits; `CommitOutcomeUnknownError`, and it waits or
    recovery goes on with it; `SettleError`. An interrupt, when all is done.
    """
    home.require_followed(journal)
    home.tree.close()  # look afresh: other programs may have moved directories since
    skip, force = decide(home, Evidence(home, journal, same_tree=same_tree), on_conflict)
    _Decided(home, journal, skip, force, same_tree=same_tree)()


class _Decided(Commit):
    """From T.prepared to the end; without a way back (W3)."""

    def __init__(
        self, home: Home, journal: Journal, skip: frozenset[int], force: frozenset[int], *, same_tree: bool
    ) -> None:
        super().__init__(home, journal, "prepared")
        self._skip = skip
        self._force = force
        self._same_tree = same_tree

    def _pass_commit_point(self) -> None:
        super()._pass_commit_point()
        if self.failure is not None:
            taint(self.home, self.journal, "committed")  # or recovery would go on from a decision that can be lost

    def _apply(self) -> None:
        try:
            evidence = Evidence(self.home, self.journal, same_tree=self._same_tree)
            apply(self.home, self.journal, self._skip, self._force, evidence=evidence)
        except (OSError, TxFilesError) as cause:
            taint(self.home, self.journal, "committed")
            message = f"the commit in {self.shown!r} was decided but not finished ({self._told(cause)})"
            self._fail(CommitOutcomeUnknownError(f"{message}; recovery goes on with it", path=self.shown), cause)
            return
        self._next = self._sync


def roll_back(home: Home, journal: Journal) -> None:
    """Forget a prepared transaction: nothing was touched (W2), so nothing has to be put right.

    Raises `CommitOutcomeUnknownError` when it is gone or waits still.
    """
    try:
        run_to_end(lambda: retire(home, journal, "prepared"))
    except OSError as error:
        shown = paths.decode(home.root)
        message = f"rolling back in {shown!r} failed: {paths.told(error, home.root)}"
        raise CommitOutcomeUnknownError(f"{message}; nothing was changed, but it may wait still", path=shown) from error
