"""Exceptions out of signal handlers, held back while something must not end half-way.

Python calls a signal's handler between two lines of the main thread, whichever they are, and what the handler raises
comes out there: in the middle of a step; or, being an `OSError`, where the disk's answer is expected. Inside a block
of `HeldBack` handlers run as ever, at once; what they raise waits for the end of the block. Where nothing is half done
`give_way`, and a wait in a block of `GivingWay`, end it early. So what is caught inside was raised there, and an
`OSError` is the kernel's. Only in code of the caller's, called by `let_through`, they come out at once.

Only the main thread runs handlers: in any other a block does nothing. It holds nothing back in a forked child either,
nor what C handles; and Ctrl-C, where it is a `KeyboardInterrupt`, only if it is `AllHeldBack`: elsewhere it is for
`run_to_end` of the protocol.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes an enum of each answer: ten times as slow
import ctypes
import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    Handler = Callable[[int, FrameType | None], object]

T = TypeVar("T")

_ENDS = KeyboardInterrupt, SystemExit
_POINTER = ctypes.sizeof(ctypes.c_void_p)

_sigaction: Any = getattr(ctypes.CDLL(None), "sigaction", None) if os.name == "posix" else None
_action = ctypes.create_string_buffer(256)  # struct sigaction, of at most 152 bytes; what is called comes first
_numbers = sorted(map(int, _signal.valid_signals()))
_known: tuple[tuple[object, ...], dict[bool, list[tuple[int, Handler]]]] = (), {}
_current: HeldBack | None = None
_pythons: bytes | None = None  # what the kernel calls for a signal that Python handles


class Interrupted(BaseException):
    """Goes through a block to its end, where what was held back takes its place."""


class HeldBack:
    """A block out of which the exceptions of signal handlers come at its end. A block inside another is part of it.

    The first is raised, and the error of the block, if there is one, is its cause. `note` tells what to add to it.
    Where the other one waits, or lets through, it is a block of its own.
    """

    __slots__ = ("_around", "_note", "_replaced", "ended_early", "over", "passes", "raised", "waits")

    _ctrl_c: ClassVar[bool] = False

    def __init__(self, note: Callable[[], str] | None = None) -> None:
        self._note = note
        self._replaced: list[_Replaced] = []
        self._around: HeldBack | None = None
        self.raised: list[BaseException] = []
        self.over = True
        self.waits = False
        self.passes = False
        self.ended_early = False  # the one around

    def __enter__(self) -> None:
        global _current
        around = _current
        if around is not None and not (around.waits or around.passes):
            return
        if threading.get_ident() != threading.main_thread().ident or not (handlers := _handlers(self._ctrl_c)):
            return
        try:
            self._around, _current, self.over = around, self, False
            for number, handler in handlers:
                self._replace(number, handler)
        except BaseException:  # of a handler that was not replaced yet
            _current, self.over = around, True  # before any call, in which another one may raise
            self._end()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.over:
            return
        self._end()
        raised, self.raised = self.raised, []
        if not raised:
            if self.ended_early:
                raise Interrupted
            return
        if isinstance(error, _ENDS):
            raised.append(error)
        interrupt = next((one for one in raised if not isinstance(one, Exception)), raised[0])
        for other in raised:
            if other is not interrupt:
                interrupt.add_note(f"txfiles: so did {other!r}, which came out of a signal handler meanwhile")
        if self._note is not None:
            interrupt.add_note(self._note())
        before = interrupt.__context__
        try:
            if error is interrupt or isinstance(error, Interrupted):
                raise interrupt
            raise interrupt from error
        finally:
            interrupt.__context__ = before
            del interrupt, raised  # which are in its traceback

    def _replace(self, number: int, handler: Handler) -> None:
        global _pythons
        action = _action_of(number)
        if _pythons is not None and action is not None and action[:_POINTER] != _pythons:
            return  # a library in C has taken it over, and Python does not know
        while isinstance(handler, _StandIn) and handler.is_over:
            handler = handler.handler
        stand_in = _StandIn(self, handler)
        self._replaced.append(_Replaced(number, handler, stand_in, action))
        _signal.signal(number, stand_in)
        if _pythons is None and (action := _action_of(number)) is not None:
            _pythons = action[:_POINTER]
            if self._replaced[-1].action[:_POINTER] != _pythons:  # type: ignore[index]
                self._put_back(self._replaced.pop())

    def _end(self) -> None:
        """What handlers raise meanwhile is kept without a call, in which the next exception would come.

        Where they raise faster than this can go on, stand-ins are left, and the next block puts those back.
        """
        global _current
        while True:
            try:
                _current, self.over = self._around, True
                while self._replaced:
                    self._put_back(self._replaced[-1])
                    self._replaced.pop()
                return
            except BaseException as error:  # of a handler that is back already
                self.raised = [*self.raised, error]

    @staticmethod
    def _put_back(one: _Replaced) -> None:
        if _signal.getsignal(one.number) is not one.stand_in:
            return  # a handler has put another one in its place
        _signal.signal(one.number, one.handler)
        if one.action is not None:  # with its flags: siginterrupt(3)
            _sigaction(one.number, one.action, None)


class AllHeldBack(HeldBack):
    """The same, and what Ctrl-C raises waits, too."""

    __slots__ = ()

    _ctrl_c = True


class _StandIn:
    """Calls a handler; what that raises is kept until the block is over."""

    __slots__ = ("_block", "handler")

    def __init__(self, block: HeldBack, handler: Handler) -> None:
        self._block = block
        self.handler = handler

    @property
    def is_over(self) -> bool:
        return self._block.over

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.handler(number, frame)
        except BaseException as error:
            block = self._block
            if block.over:
                raise
            if block.passes:
                block.passes = False  # what it ends is not to be interrupted again
                raise
            if isinstance(error, Interrupted):
                block.ended_early = True
            else:
                block.raised.append(error)
            if block.waits:
                block.waits = False
                raise Interrupted from None


class _Replaced(NamedTuple):
    number: int
    handler: Handler
    stand_in: _StandIn
    action: bytes | None


def give_way() -> None:
    """A point at which the block can end at once and leave nothing half done: raise, if something is held back."""
    if _current is not None and _current.raised and threading.get_ident() == threading.main_thread().ident:
        _current.waits = False
        raise Interrupted


def let_through(call: Callable[[], T]) -> T:
    """Call what is the caller's own: what a handler raises meanwhile comes out of that, as itself."""
    block = _current
    if block is None or threading.get_ident() != threading.main_thread().ident:
        return call()
    give_way()
    try:
        block.passes = True
        return call()
    finally:
        block.passes = False


class GivingWay:
    """A block that waits: what a handler raises ends it at once, and what was held back before keeps it from it."""

    __slots__ = ("_before", "_of")

    def __enter__(self) -> None:
        self._of = _current if threading.get_ident() == threading.main_thread().ident else None
        if self._of is not None:
            self._before, self._of.waits = self._of.waits, True
            give_way()

    def __exit__(self, *_: object) -> None:
        if self._of is not None:
            self._of.waits = self._before


def _handlers(ctrl_c: bool) -> list[tuple[int, Handler]]:
    """Of all signals; with what makes Ctrl-C a `KeyboardInterrupt`, which is no error and so taken for none, or not."""
    global _known
    found = tuple(map(_signal.getsignal, _numbers))
    if found != _known[0]:
        every = [(number, handler) for number, handler in zip(_numbers, found, strict=True) if callable(handler)]
        _known = found, {True: every, False: [one for one in every if one[1] is not _signal.default_int_handler]}
    return _known[1][ctrl_c]


def _action_of(number: int) -> bytes | None:
    if _sigaction is None:
        return None
    return _action.raw if _sigaction(number, None, _action) == 0 else None


def _forget() -> None:
    """In a forked child: what was under way is not its business, and its handlers raise again."""
    global _current
    while _current is not None:
        _current.over = True
        _current = _current._around


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
