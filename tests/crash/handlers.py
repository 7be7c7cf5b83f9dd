"""Signals whose handlers raise, of every kind, at every line of the package."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any


class Deadline(Exception):
    """What the deadline of a job queue raises."""


class Stop(BaseException):
    """No `Exception`, and not one that the library knows."""


KINDS: dict[str, Callable[[], BaseException]] = {
    "BaseException": lambda: Stop("now"),
    "Exception": lambda: Deadline("now"),
    "TimeoutError": lambda: TimeoutError("now"),
    "FileNotFoundError": lambda: FileNotFoundError(errno.ENOENT, "a handler misses a file", "/etc/none"),
    "OSError": lambda: OSError(errno.EIO, "a handler's own disk"),
    "Ctrl-C": KeyboardInterrupt,  # of Python's own handler
}


class Raising:
    """Lets a signal raise a kind of exception; `raised` is what it has raised so far. In a process of its own."""

    def __init__(self, kind: str) -> None:
        self.raised: list[BaseException] = []
        self.ignored: list[BaseException | None] = []  # by Python, in a `__del__`
        sys.unraisablehook = lambda what: self.ignored.append(what.exc_value)
        self.make = KINDS[kind]
        self.number = signal.SIGINT if kind == "Ctrl-C" else signal.SIGALRM
        signal.signal(self.number, signal.default_int_handler if kind == "Ctrl-C" else self._handle)

    def _handle(self, *_: object) -> None:
        self.raised.append(self.make())
        raise self.raised[-1]

    def at(self, number: int) -> Tracer:
        """To be given to `sys.settrace`: the signal comes at the `number`-th event from then on."""
        return Tracer(self.number, number)

    def require_same(self, seen: BaseException | None, where: str) -> None:
        """What was raised has come out, unchanged."""
        if self.number == signal.SIGALRM and self.ignored != self.raised:
            assert self.raised == ([] if seen is None else [seen]), where
        if seen is not None:
            assert (seen.__class__, str(seen)) == (self.make().__class__, str(self.make())), where


class Tracer:
    """Sends a signal at one event in the package and contextlib: a line, a call or a return."""

    def __init__(self, signal_number: int, number: int) -> None:
        self._signal = signal_number
        self.left = number
        self.came = ""  # where the signal did

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if not ("/txfiles/" in code.co_filename or code.co_filename.endswith("/contextlib.py")):
            return None
        if code.co_name == "__del__":
            return None
        self.left -= 1
        if self.left == 0:
            sys.settrace(None)
            self.came = f"at a {event} in {code.co_filename}:{frame.f_lineno}"
            signal.raise_signal(self._signal)
        return self


def in_child(work: Callable[[], object], where: str) -> bool:
    """Whether it returned something true, in a process of its own."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if work() else 1
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1), where
    return code == 0
