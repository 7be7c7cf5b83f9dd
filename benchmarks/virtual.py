"""Time that passes by requests and pauses alone, so that a model's figures do not depend on the machine that runs it.

The real code runs in threads, one at a time: who sleeps or waits hands over to whoever is due next.
"""

from __future__ import annotations

import heapq
import math
import random
import threading
import time
from collections.abc import Callable, Sequence

from txfiles.objects.wait import Clock


class _Turn:
    """What a thread waits for: a time, or an event before it."""

    def __init__(self, event: threading.Event | None = None) -> None:
        self.event = event
        self.go = threading.Semaphore(0)
        self.over = False


class VirtualClock(Clock):
    """The time of a simulation; pauses are drawn from `seed`. With `cpu` threads take the time that they compute, too,
    one after the other as those of one process do."""

    def __init__(self, seed: int = 0, *, cpu: bool = False) -> None:
        self.time = 0.0
        self.rng = random.Random(seed)
        self._cpu = cpu
        self._resumed = 0.0
        self._due: list[tuple[float, int, _Turn]] = []
        self._waiting: list[_Turn] = []
        self._number = 0

    def now(self) -> float:
        return self.time + (time.thread_time() - self._resumed if self._cpu else 0.0)

    def pause(self, at_most: float) -> None:
        self.sleep(self.rng.uniform(0, at_most))

    def sleep(self, seconds: float) -> None:
        self._hand_over(_Turn(), seconds)

    def wait(self, event: threading.Event, at_most: float) -> None:
        if not event.is_set():
            self._hand_over(_Turn(event), at_most)

    def run(self, acts: Sequence[Callable[[], object]]) -> None:
        """Let all of them act from now on, each in a thread of its own; raises what the first of them raised."""
        failures: list[BaseException] = []

        def main(act: Callable[[], object], turn: _Turn) -> None:
            turn.go.acquire()
            self._resumed = time.thread_time()
            try:
                act()
            except BaseException as error:
                failures.append(error)
            self.time = self.now()
            self._next()

        threads = []
        for act in acts:
            self._push(turn := _Turn(), 0.0)
            threads.append(threading.Thread(target=main, args=(act, turn)))
        for thread in threads:
            thread.start()
        self._next()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def _push(self, turn: _Turn, seconds: float) -> None:
        self._number += 1
        heapq.heappush(self._due, (self.time + seconds, self._number, turn))

    def _hand_over(self, turn: _Turn, seconds: float) -> None:
        self.time = self.now()
        if turn.event is not None:
            self._waiting.append(turn)
        if seconds < math.inf:
            self._push(turn, seconds)
        self._next()
        turn.go.acquire()
        self._resumed = time.thread_time()

    def _next(self) -> None:
        turn = next((one for one in self._waiting if one.event is not None and one.event.is_set()), None)
        while turn is None and self._due:
            at, _, found = heapq.heappop(self._due)
            if not found.over:
                turn, self.time = found, max(self.time, at)
        if turn is not None:
            turn.over = True
            if turn in self._waiting:
                self._waiting.remove(turn)
            turn.go.release()
