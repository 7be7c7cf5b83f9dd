"""What the commit asks of whoever keeps a root: `root.Root`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles.objects.read import Source
    from txfiles.objects.requests import RequestError, Token
    from txfiles.objects.state import State

T = TypeVar("T")


class Known(NamedTuple):
    """A state and the token of the `HEAD` that has it."""

    state: State
    token: Token


class Keeper(Protocol):
    """What a process knows of a root, and asks of its store: `root.Root`."""

    shown: str
    source: Source

    def known(self) -> Known | None: ...
    def learn(self, found: Known) -> Known: ...
    def refresh(self) -> Known: ...
    def newest(self) -> State: ...
    def sent(self, base: Known) -> Token: ...
    def note(self, error: RequestError) -> None: ...
    def within(self, until: float, call: Callable[[], T]) -> T: ...
