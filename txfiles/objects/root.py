"""A root on a store, as this process knows it: its newest state, its cache, and what waits for a commit.

The transactions, snapshots and stores of one URL share one.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, TypeVar

from txfiles.errors import RecoveryError, UnsupportedFilesystemError
from txfiles.objects import settle
from txfiles.objects import state as _state
from txfiles.objects.change import Change
from txfiles.objects.commit import Committer
from txfiles.objects.keeper import Known
from txfiles.objects.probe import formed, probe
from txfiles.objects.read import Reading, Source
from txfiles.objects.requests import Failed, Missing, Raced, RequestError, Unchanged
from txfiles.objects.state import HEAD, State
from txfiles.objects.wait import Backoff, Clock, os_error, reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles.objects.requests import Requests, Token

T = TypeVar("T")

_LATEST = 40.0  # seconds until a request is given up where nothing sooner is asked for
_OURS = ("pack/", "hist/", "snap/", "gc/")


class Root:
    """`shown` is what messages call it. `remote`: a request may hang, so that a deadline needs a thread."""

    def __init__(self, requests: Requests, shown: str, *, clock: Clock | None = None, remote: bool = False) -> None:
        self.shown = shown
        self.source: Source = Source(requests, clock or Clock(), shown)
        self.committer: Committer = Committer(self)
        self.stale: bool = False  # the next transaction asks for the newest state first
        self._remote = remote
        self._known: Known | None = None
        self._mutex = threading.Lock()

    # -- the newest state ---------------------------------------------------------------------------------------

    def known(self) -> Known | None:
        return self._known

    def learn(self, found: Known, since: int = 0) -> Known:
        """Remember a state that is newer; returns the newest. A root never goes back: `since` was there before."""
        with self._mutex:
            now = self._known
            if found.state.seq < since or (
                now is not None and now.state.seq == found.state.seq and now.state.id != found.state.id
            ):
                raise RecoveryError(
                    f"{self.shown} went back to the state {found.state.seq}: it was replaced, say by a backup; "
                    "processes that knew a later one have to be started anew",
                    path=self.shown,
                )
            if now is None or now.state.seq < found.state.seq:
                self._known = now = found
            return now

    def refresh(self) -> Known:
        """Ask the store. Raises `RequestError`, and `RecoveryError` where there is no `HEAD` or none that is whole."""
        now = self._known
        try:
            got = self.source.requests.get(HEAD, None if now is None else now.token)
        except Unchanged:
            assert now is not None
            return now
        except Missing as error:
            raise self._no_head() from error.cause
        found = Known(_state.decode(got.data, f"{self.shown}: {HEAD}"), got.token)
        return self.learn(found, 0 if now is None else now.state.seq)

    def _no_head(self) -> Exception:
        if self._known is None:
            return FileNotFoundError(2, f"there is no txfiles root here: no {HEAD}; create=True makes one", self.shown)
        return RecoveryError(
            f"{self.shown}: {HEAD} is gone; something else deleted it. Nothing else is lost: restore {HEAD}",
            path=self.shown,
        )

    def newest(self) -> State:
        """The state that is current now. Raises `OSError`, `RecoveryError`."""
        return reading(self.source.clock, self.shown, self.refresh).state

    def state(self) -> State:
        """The newest state that this process knows; asks only if it knows none."""
        known = self._known
        return self.newest() if known is None else known.state

    def reading(self, state: State) -> Reading:
        return Reading(self.source, state, self.newest)

    # -- committing ---------------------------------------------------------------------------------------------

    def commit(self, change: Change, timeout: float | None = 10.0) -> State:
        """Commit a change; returns a state that has it."""
        self.committer.commit(change, timeout)
        return self.state()

    def alter(self, alter: Callable[[State], State], timeout: float | None = 10.0) -> State:
        """Commit an administrative change."""
        return self.commit(Change(_state.new_id(), alter=alter), timeout)

    def is_committed(self, tid: str, timeout: float | None = 10.0) -> bool:
        """The final answer. After the empty transaction a PUT of `tid` that is still under way has a dead token."""
        if settle.is_committed(self.source, self.newest(), tid):
            return True
        self._fence(timeout)
        return settle.is_committed(self.source, self.newest(), tid)

    def _fence(self, timeout: float | None) -> None:
        self.alter(lambda state: state, timeout)

    def sent(self, base: Known) -> Token:
        """The token of a state as the store wants it back."""
        return formed(base.token, base.state.form)

    def note(self, error: RequestError) -> None:
        """Fewer requests at once for a store that asks for it."""
        if getattr(error, "throttled", False):
            self.source.width = max(1, self.source.width // 2)

    def within(self, until: float, call: Callable[[], T]) -> T:
        """The answer of requests, or `Failed` once it is too late: they may still take effect then."""
        left = min(until - self.source.clock.now(), _LATEST)
        if not self._remote or left == math.inf:
            return call()
        done = threading.Event()
        answer: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                answer.append(call())
            except BaseException as error:
                failed.append(error)
            finally:
                done.set()

        threading.Thread(target=run, name="txfiles-request", daemon=True).start()
        if not done.wait(max(0.05, left)):
            raise Failed("no answer in time")
        if failed:
            raise failed[0]
        return answer[0]

    # -- making one ---------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make the root if it is missing, on a store that keeps its conditions. Raises what `probe` raises."""
        if self._known is not None:
            return
        backoff = Backoff(self.source.clock)
        form: _state.Form | None = None
        for left in reversed(range(8)):
            try:
                self.newest()
                return
            except FileNotFoundError:
                pass
            if form is None:
                self._require_empty()
                form = probe(self.source)
            first = State(seq=0, id=_state.new_id(), form=form)
            try:
                self.source.requests.put(HEAD, _state.encode(first), "create")
            except Raced:
                pass  # somebody else's, or our own success: the next look tells
            except RequestError as error:
                if not left:
                    raise os_error(self.shown, error) from error.cause
                backoff.pause()
        self.newest()

    def _require_empty(self) -> None:
        found = reading(self.source.clock, self.shown, lambda: self.source.requests.list("", 1000))
        names = [one.key for one in found if not one.key.startswith("probe/") and one.key != HEAD]
        if any(name.startswith(_OURS) for name in names):
            raise RecoveryError(
                f"{self.shown} has objects of a txfiles root but no {HEAD}: something else deleted it. Restore {HEAD}",
                path=self.shown,
            )
        if names:
            raise UnsupportedFilesystemError(
                f"{self.shown} is used by something else: {names[0]!r} is there; a root needs a prefix of its own",
                path=self.shown,
            )
