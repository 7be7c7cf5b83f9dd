"""How far a commit has come, for who asked."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Progress:
    """Counts the steps of one commit, from any thread. What `call` raises keeps no step; it is raised at the end."""

    def __init__(self, call: Callable[[int, int], object]) -> None:
        self._call = call
        self._mutex = threading.Lock()
        self._done = self._total = 0
        self.failure: Exception | None = None

    def begin(self, total: int) -> None:
        self._total = total

    def step(self) -> None:
        with self._mutex:
            if self._done < self._total and self.failure is None:
                self._done += 1
                try:
                    self._call(self._done, self._total)
                except Exception as error:
                    self.failure = error

    def tell(self) -> None:
        """Raise what the call raised."""
        if self.failure is not None:
            raise self.failure
