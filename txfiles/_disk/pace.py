"""How a process waits for the lock of a root among others, and lets them come first.

flock has no queue among processes, and no wait with a timeout: whoever asks at the right moment gets it. So who waits
sleeps until a bell rings (`bell`). Whoever frees the lock wakes one: the one at the door, if somebody is there, or the
one that has slept longest in the row. Should the lock be taken again when he comes, he stays at the door and asks every
moment. A process goes on for a short turn, a series of acquisitions with no pause between them (another has to find a
processor and its memory first), and then goes to the end of the row. If nobody has come a moment later it takes another
turn: who was woken may have been killed or stopped. Nobody sleeps for longer than twice as long as he has waited
already, because a holder that was killed rings no bell.

Where there is no bell, all ask at random moments and at the same rate (waits that slow down early starve those who
waited longest), and a process that has had its turn pauses for as long as the others need to ask once. A turn is short
while others are known to wait, longer while nobody is.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from txfiles._disk.bell import DOOR, ROW
from txfiles._disk.interrupts import GivingWay
from txfiles.errors import LockTimeoutError

if TYPE_CHECKING:
    from txfiles._disk.bell import Bell

_POLL = 0.001  # seconds between two attempts
_POLL_MAX = 0.005  # the same, for who waits so long that a moment more is nothing
_ASLEEP = 0.005, 1.0  # seconds of sleep between two attempts where there is a bell: at least, at most
_COMES = 0.002  # seconds after which who was woken should have come
_AT_ONCE = 0.003  # seconds that even a timeout of 0 waits: a reader in `is_locked` has the lock for a moment
_TURN = 0.004  # seconds that a process may go on without a pause while others sleep
_POLLED_TURN = 0.002  # the same, while others ask
_LONE_TURN = 0.05  # the same, while nobody is known to wait: the longest that a newcomer stands before a busy lock
_POLITE = 8  # pauses without meeting anybody after which a process believes that it is alone


class Wait:
    """A wait of at most `timeout` seconds for the lock file `path`."""

    def __init__(self, timeout: float | None, path: str) -> None:
        self._began = time.monotonic()
        self._until = None if timeout is None else self._began + max(timeout, _AT_ONCE)
        self._slept = False
        self._is_next = False
        self._path = path

    def left(self) -> float:
        if self._until is None:
            return threading.TIMEOUT_MAX
        return min(max(0.0, self._until - time.monotonic()), threading.TIMEOUT_MAX)

    def make_way(self, bell: Bell) -> bool | None:
        """Let whoever was woken have the lock first; whether others did, `None` where no bell can tell."""
        return self._hear(bell, min(self.left(), _COMES))

    def sleep(self, bell: Bell) -> None:
        """Sleep until the next attempt; the last one is at the end of the timeout, after it `LockTimeoutError`.

        There is a second one however busy the machine is: at the first a reader may just have looked.
        """
        left = self.left()
        if not left and self._slept:
            raise self.timed_out()
        self._slept = True
        left, moment = left or _POLL, _interval(time.monotonic() - self._began) * _about_one()
        if self._hear(bell, min(left, moment if self._is_next else self._until_awake())) is None:
            with GivingWay():
                time.sleep(min(left, moment))

    def _hear(self, bell: Bell, seconds: float) -> bool | None:
        with GivingWay():
            woken = bell.wait(DOOR if self._is_next else ROW, seconds)
        self._is_next = self._is_next or woken is True
        return woken

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
        self.released = self._turn_began = float("-inf")
        self._pauses_due = 0

    def begin(self, wait: Wait, bell: Bell) -> None:
        """Go on with a turn, or let the writers of other processes come first."""
        if self._next_is_awake:
            if time.monotonic() - self._turn_began < _TURN:
                return
            others_came = wait.make_way(bell)
            if others_came is not None:
                self._next_is_awake = not others_came
                self._turn_began = time.monotonic()
                return
            self._next_is_awake = False
        self.pause(wait)

    def freed(self, bell: Bell) -> None:
        """Wake the next one, unless that was done in this turn: he still asks."""
        if not self._next_is_awake or time.monotonic() - self._turn_began >= _TURN:
            self._next_is_awake = bell.is_heard() and (bell.ring(DOOR) or bell.ring(ROW))

    def pause(self, wait: Wait) -> None:
        """After a turn, let the writers of other processes come first."""
        now = time.monotonic()
        turn = now - self._turn_began
        left = self.released + _interval(turn) * (1 + 0.4 * _chance()) - now
        if left > 0:
            if turn < (_POLLED_TURN if self._pauses_due else _LONE_TURN) or wait.left() <= left:
                return
            with GivingWay():
                time.sleep(left)
            self._pauses_due = max(0, self._pauses_due - 1)
        self._turn_began = time.monotonic()

    def met_others(self) -> None:
        """Another process had the lock a moment ago: our turn begins now at the earliest, and will be a short one."""
        self._next_is_awake = False
        self._pauses_due = _POLITE
        self._turn_began = time.monotonic()
