"""The end of a `with` block that is not missed, also where a signal handler raises before it has begun."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, overload
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable


class Left(Protocol):
    """A context manager whose `__exit__` is an `Exit`."""

    @property
    def _state(self) -> str: ...  # "new" before it was entered
    def _leave(self, error: BaseException | None) -> None: ...
    def _roll_back_late(self) -> None: ...  # if it is open


class Exit:
    """`__exit__`, as a `with` statement finds it."""

    @overload
    def __get__(self, left: None, owner: type[Left]) -> Callable[..., None]: ...
    @overload
    def __get__(self, left: Left, owner: type[Left]) -> Leaving: ...
    def __get__(self, left: Left | None, owner: type[Left]) -> Callable[..., None]:
        return _leave_at_once if left is None else Leaving(left)


class Leaving(partial[None]):
    """What is called at the end of a `with` block: the statement looks it up at its beginning, and alone holds it.

    An exception of a signal handler may come before the first line of that call. Then this goes with the block, whoever
    keeps the exception, and all is rolled back: the frame in the traceback only has a weak reference to it.
    """

    _left: Left
    _entered: bool = False  # also where an exception keeps it from being asked

    def __new__(cls, left: Left) -> Self:
        self = super().__new__(cls, _leave, ref(left))
        self._left = left
        self._entered = left._state == "new"
        return self

    def __del__(self) -> None:
        if self._entered:
            self._left._roll_back_late()


def _leave(left: ref[Left], kind: object, error: BaseException | None, traceback: object) -> None:
    if (mine := left()) is not None:
        mine._leave(error)


def _leave_at_once(left: Left, kind: object, error: BaseException | None, traceback: object) -> None:
    left._leave(error)
