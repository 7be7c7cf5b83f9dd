"""As `_reading.reader.Reader`, of a root on a store: one GET of `HEAD` is one committed state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from txfiles.objects.view import FarView

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles._reading.question import Question
    from txfiles.objects.root import Root
    from txfiles.objects.state import State

T = TypeVar("T")


class FarReader:
    """`state`: the one to read, else the newest is asked for."""

    def __init__(self, root: Callable[[], Root], state: Callable[[Root], State]) -> None:
        self._root = root
        self._state = state

    def begin(self, first: Question[T], *, follow: bool) -> T:
        root = self._root()
        self.state: State = self._state(root)
        self.version: str = self.state.version
        self._view: FarView[Any] = FarView(root.reading(self.state))
        self._view.fetch(getattr(first, "names", ()))
        return self.ask(first)

    def ask(self, question: Question[T]) -> T:
        return question.ask(self._view)

    def close(self) -> None:
        pass
