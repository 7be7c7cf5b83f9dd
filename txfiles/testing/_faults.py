"""A boundary object that counts the calls to the one below it and lets the k-th of them go wrong."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from txfiles._disk import system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from txfiles._disk.system import FileSystem

NOT_SYSTEM_CALLS = frozenset(
    ("run_all", "random_id", "boot_id", "now", "booted", "pid", "ids", "umask", "on_fork", "absolute")
)


class FaultyFS:
    """The calls of `inner`, counted from 1; `plan(number, name)` runs before each of them and may raise or kill.

    `trace` has the name of every call. `after` runs after a call that succeeded.
    """

    def __init__(
        self,
        inner: FileSystem,
        plan: Callable[[int, str], None] | None = None,
        after: Callable[[int, str], None] | None = None,
    ) -> None:
        self._inner = inner
        self._plan = plan
        self._after = after
        self.trace: list[str] = []

    @property
    def calls(self) -> int:
        return len(self.trace)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name in NOT_SYSTEM_CALLS or not callable(call):
            return call

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.trace.append(name)
            number = len(self.trace)
            try:
                if self._plan is not None:
                    self._plan(number, name)
            except OSError:
                if name == "close":
                    call(*args, **kwargs)  # a close that fails has closed (close(2))
                raise
            result = call(*args, **kwargs)
            if self._after is not None:
                self._after(number, name)
            return result

        return counted


def kill_at(number: int) -> Callable[[int, str], None]:
    """A plan: the process kills itself (SIGKILL) before call `number`."""

    def plan(now: int, _: str) -> None:
        if now == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return plan


@contextmanager
def killed_at_call(number: int) -> Iterator[None]:
    """The process kills itself (SIGKILL) before system call `number` that txfiles makes in the block.

    For a forked child: what it leaves is what a real kill at that step leaves.
    """
    with system.use(FaultyFS(system.KernelFS(), kill_at(number))):
        yield


def fail_at(number: int, error: int, *, forever: bool = False, only: str | None = None) -> Callable[[int, str], None]:
    """A plan: call `number` (and with `forever` every later one, with `only` those of one name) raises `OSError`."""

    def plan(now: int, name: str) -> None:
        if (now == number or (forever and now > number)) and only in (None, name):
            raise OSError(error, os.strerror(error))

    return plan


def interrupt_at(*numbers: int) -> Callable[[int, str], None]:
    """A plan: the process gets SIGINT before each of these calls."""

    def plan(now: int, _: str) -> None:
        if now in numbers:
            os.kill(os.getpid(), signal.SIGINT)

    return plan
