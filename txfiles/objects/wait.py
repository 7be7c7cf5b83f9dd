"""Time, as far as the engine needs it; and how it repeats what a store failed."""

from __future__ import annotations

import errno
import math
import random
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from txfiles.objects.requests import Failed, Missing, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

FIRST = 0.005  # seconds
LONGEST = 0.5
_TRIES = 8


class Clock:
    """The time of this process, and pauses; tests put their own in its place."""

    def now(self) -> float:
        return time.monotonic()

    def pause(self, at_most: float) -> None:
        """Full jitter."""
        self.sleep(random.uniform(0, at_most))

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, at_most: float) -> None:
        event.wait(None if at_most == math.inf else max(0.0, at_most))


class Backoff:
    """Growing pauses between tries."""

    def __init__(self, clock: Clock, until: float = math.inf) -> None:
        self._clock = clock
        self._until = until
        self._next = FIRST

    def pause(self, *, throttled: bool = False, at_most: float = LONGEST) -> None:
        left = max(0.0, self._until - self._clock.now())
        self._clock.pause(min(self._next * (2 if throttled else 1), at_most, left))
        self._next = min(self._next * 2, LONGEST)


def reading(clock: Clock, shown: str, call: Callable[[], T]) -> T:
    """The answer of a request that changes nothing, tried again for about two seconds. Raises `OSError`, `Missing`."""
    backoff = Backoff(clock)
    for left in reversed(range(_TRIES)):
        try:
            return call()
        except Failed as error:
            if not left:
                raise os_error(shown, error) from error.cause
            backoff.pause(throttled=error.throttled)
        except Missing:
            raise
        except RequestError as error:
            raise os_error(shown, error) from error.cause
    raise AssertionError


def os_error(shown: str, error: RequestError) -> OSError:
    """What a user is told about a request that failed; nothing was committed by it."""
    kind = PermissionError if type(error).__name__ == "Denied" else OSError
    number = errno.EACCES if kind is PermissionError else errno.EIO
    return kind(number, f"the store failed: {error}", shown)
