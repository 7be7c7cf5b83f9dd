"""Fairness among processes that know of each other by `HEAD` alone: who has waited longest comes first.

Who has just won knows the new `HEAD` before all others, and would win for ever. So `HEAD` says how long its writer had
to wait, `waited`, and about so long everybody waits for a turn. Who has not yet holds back, and looks again now and
then: where nothing is committed meanwhile, nobody else waits. Losers leave no trace in `HEAD`; for those, a writer that
meets nobody leaves a moment now and then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles.objects.state import State
    from txfiles.objects.wait import Clock

CYCLE = 0.05  # seconds that a commit takes, about
WINDOW = 0.4  # seconds before its turn a writer may try: some have to, or the time between two commits is lost
EARLY = 0.6  # part of its turn that it waits at least
FADING = 0.9  # part of what others have waited that goes on to the next commit: one in luck is not the end of a queue
LOOK = 0.2  # seconds at most between two looks
LEAST = 0.001  # seconds at least
QUIET = 0.15  # seconds without a commit after which nobody else waits
ALONE = 1.0  # seconds after which a writer that meets nobody leaves a moment
MOMENT = 0.06  # seconds: time for a look and a commit by another
LONGEST = 60.0  # seconds of a turn


class Turn:
    """The turns of one process on one root."""

    def __init__(self, clock: Clock, look: Callable[[], State]) -> None:
        self._clock = clock
        self._look = look
        self._since: float | None = None  # when it began to wait for others
        self._waited = 0.0  # by those before
        self._seen: tuple[int, float] = 0, 0.0  # the newest sequence number, and when it was seen first
        self._won_at: float = clock.now()
        self._apart_at: float = clock.now()  # when there was last time for others

    def lost(self) -> None:
        """Somebody else was faster."""
        if self._since is None:
            self._since = self._clock.now()

    def won(self) -> None:
        self._since, self._won_at = None, self._clock.now()

    def waited(self) -> int:
        """What the next `HEAD` says, in milliseconds."""
        return int(1000 * min(LONGEST, max(self._age(), self._waited * FADING)))

    def wait(self, state: State, until: float) -> None:
        """Let those come first who have waited longer than this process; `state` is the newest that it knows.

        Raises what `look` raises, which asks for the newest there is.
        """
        clock = self._clock
        if state.waited:
            self.lost()
        elif clock.now() - self._won_at > CYCLE:
            self._apart_at = clock.now()
        elif clock.now() - self._apart_at > ALONE:
            clock.sleep(min(MOMENT, max(0.0, until - clock.now())))
            self._apart_at = clock.now()
        self._note(state)
        while (left := min(self._share() - self._age(), until - clock.now())) > 0:
            clock.sleep(min(left + LEAST, LOOK))
            self._note(self._look())

    def _age(self) -> float:
        return 0.0 if self._since is None else self._clock.now() - self._since

    def _share(self) -> float:
        """Seconds that it has to wait before it may try."""
        return max(self._waited * EARLY, self._waited - WINDOW)

    def _note(self, state: State) -> None:
        now = self._clock.now()
        if state.seq != self._seen[0]:
            self._seen, self._waited = (state.seq, now), state.waited / 1000
        elif now - self._seen[1] > QUIET:
            self._waited = 0.0
