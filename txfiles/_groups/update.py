"""What one caller of a group gets."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING

from txfiles.errors import CommitOutcomeUnknownError, LockTimeoutError

if TYPE_CHECKING:
    from txfiles._calls.session import Callback
    from txfiles.errors import Outcome

AT_MOST = 64  # updates in one commit (G1)


class Update:
    """One caller, as long as it waits; then what came of it."""

    def __init__(self, root: str, timeout: float | None) -> None:
        self.root = root
        self.timeout = timeout
        self.error: BaseException | None = None
        self.outcome: Outcome = "before"
        self.callbacks: list[Callback] = []
        self._until = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds until it has waited long enough."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def timed_out(self) -> LockTimeoutError:
        message = f"{self.root!r} is locked by other updates of this process; waited {self.timeout} s"
        return LockTimeoutError(message, path=self.root)

    def settle(self, outcome: Outcome, failure: BaseException | None) -> None:
        """The outcome of the commit, for one whose own function raised nothing. Each gets an error of its own."""
        self.outcome = outcome
        if failure is not None:
            self.error = own(failure)
        elif outcome == "unknown":
            message = f"the commit in {self.root!r} was interrupted; recovery decides"
            self.error = CommitOutcomeUnknownError(message, path=self.root)


def own(failure: BaseException) -> BaseException:
    """A copy to be raised in another thread or task: raising changes an exception."""
    try:
        mine = copy.copy(failure)
    except Exception:  # of a kind that cannot be copied
        return failure
    if type(mine) is not type(failure):
        return failure
    mine.__cause__ = failure.__cause__
    return mine
