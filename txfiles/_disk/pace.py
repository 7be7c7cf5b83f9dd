"""How a process waits for the lock of a root among others, and lets them come first.

flock has no queue among processes, and no wait with a timeout: whoever asks at the right moment gets it. So who waits
sleeps until a bell rings (`bell`). Whoever frees the lock wakes the one that has slept longest, who is the next from
there on and asks every moment. A process goes on for a short turn, and then goes to the end of the row before it asks
again. A turn is a series of acquisitions with no pause between them. Nobody sleeps for longer than twice as long as he
has waited already, because a holder that was killed rings no bell.

Where there is no bell, all ask at random moments and at the same rate (waits that slow down early starve those who
waited longest), and a process that has had its turn pauses for as long as the others need to ask once. A turn is short
while others are known to wait, longer while nobody is.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from txfiles._disk import bell
from txfiles._disk.interrupts import GivingWay
from txfiles.errors import LockTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    Sleep = Callable[[float], bool | None]

_POLL = 0.001  # seconds between two attempts
_POLL_MAX = 0.005  # the same, for who waits so long that a moment more is nothing
_ASLEEP = 0.005, 1.0  # seconds of sleep between two attempts where there is a bell: at least, at most
_NEXT = 0.01  # seconds that who was woken asks every moment; longer than a turn, after which another is woken
_AT_ONCE = 0.003  # seconds that even a timeout of 0 waits: a reader in `is_locked` has the lock for a moment
_TURN = 0.002  # seconds that a process may go on without a pause while others wait
_LONE_TURN = 0.05  # the same, while nobody is known to wait: the longest that a newcomer stands before a busy lock
_POLITE = 8  # pauses without meeting anybody after which a process believes that it is alone


class Wait:
    """A wait of at most `timeout` seconds for the lock file `path`."""

    def __init__(self, timeout: float | None, path: str) -> None:
        self._began = time.monotonic()
        self._until = None if timeout is None else self._began + max(timeout, _AT_ONCE)
        self._slept = False
        self._next_until = 0.0
        self._path = path

    def left(self) -> float:
        if self._until is None:
            return threading.TIMEOUT_MAX
        return min(max(0.0, self._until - time.monotonic()), threading.TIMEOUT_MAX)

    def make_way(self, listen: Sleep) -> bool:
        """Let whoever was woken have the lock first, and those who wait already; false where no bell can tell."""
        return self._hear(listen, self.left())

    def sleep(self, listen: Sleep) -> None:
        """Sleep until the next attempt; the last one is at the end of the timeout, after it `LockTimeoutError`.

        There is a second one however busy the machine is: at the first a reader may just have looked.
        """
        left = self.left()
        if not left and self._slept:
            raise self.timed_out()
        self._slept = True
        left = left or _POLL
        if time.monotonic() < self._next_until or not self._hear(listen, left):
            with GivingWay():
                time.sleep(min(left, _interval(time.monotonic() - self._began) * _about_one()))

    def _hear(self, listen: Sleep, left: float) -> bool:
        with GivingWay():
            woken = listen(min(left, self._until_awake()))
        if woken:
            self._next_until = time.monotonic() + _NEXT
        return woken is not None

    def _until_awake(self) -> float:
        least, most = _ASLEEP
        return min(max(least, 2 * (time.monotonic() - self._began)), most) * _about_one()

    def timed_out(self) -> LockTimeoutError:
        waited = time.monotonic() - self._began
        return LockTimeoutError(f"{self._path!r} is locked by another writer; waited {waited:.3f} s", path=self._path)


def _interval(seconds: float) -> float:
    """Seconds between attempts after a wait, or to pause after a turn, of `seconds`."""
    return min(max(_POLL, seconds / 1000), _POLL_MAX)


def _chance() -> float:
    """From 0 to 1, different in every process, also in forked ones."""
    return time.monotonic_ns() % 1000 / 1000


def _about_one() -> float:
    return 0.6 + 0.4 * _chance()


class Pace:
    """The pace of one process at the lock of one root."""

    def __init__(self) -> None:
        self._next_is_awake = False
        self._nobody_at = float("-inf")
        self.released = self._turn_began = float("-inf")
        self._pauses_due = 0

    def begin(self, wait: Wait, listen: Sleep) -> None:
        """Go on with a turn, or let the writers of other processes come first."""
        if self._next_is_awake:
            if time.monotonic() - self._turn_began < _TURN:
                return
            self._next_is_awake = False
            if wait.make_way(listen):
                self._turn_began = time.monotonic()
                return
        self.pause(wait)

    def freed(self, private_fd: int) -> None:
        """Wake the next one, unless that was done in this turn: he still asks.

        Where there was none a moment ago, who has come since sleeps for a moment only: nobody is looked for.
        """
        now = time.monotonic()
        if now - (self._turn_began if self._next_is_awake else self._nobody_at) >= _TURN:
            self._next_is_awake = bell.ring(private_fd) > 0
            self._nobody_at = float("-inf") if self._next_is_awake else now

    def pause(self, wait: Wait) -> None:
        """After a turn, let the writers of other processes come first."""
        now = time.monotonic()
        turn = now - self._turn_began
        left = self.released + _interval(turn) * (1 + 0.4 * _chance()) - now
        if left > 0:
            if turn < (_TURN if self._pauses_due else _LONE_TURN) or wait.left() <= left:
                return
            with GivingWay():
                time.sleep(left)
            self._pauses_due = max(0, self._pauses_due - 1)
        self._turn_began = time.monotonic()

    def met_others(self) -> None:
        """Another process had the lock a moment ago: our turn begins now at the earliest, and will be a short one."""
        self._pauses_due = _POLITE
        self._nobody_at = float("-inf")
        self._turn_began = time.monotonic()
