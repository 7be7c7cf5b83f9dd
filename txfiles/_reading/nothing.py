"""The state of a root that is still to be made."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from txfiles._reading.lookout import NEVER
from txfiles._reading.overlay import Held
from txfiles._tree.tree import Tree
from txfiles._tree.view import View, must_be_file

if TYPE_CHECKING:
    from txfiles._disk.system import FileSystem, Stat
    from txfiles._reading.question import Question

T = TypeVar("T")


class _NoTree(Tree):
    def stat(self, path: bytes) -> Stat | None:
        return None

    def listdir(self, path: bytes) -> list[bytes]:
        return []


class _Empty(View[Held]):
    def file(self, path: bytes) -> tuple[int, bytes, Stat]:
        must_be_file(path, None)
        raise AssertionError


class Nothing:
    """As `Reader`, of a root that is not there: the state is empty, known, and never expires."""

    version = NEVER

    def __init__(self, fs: FileSystem, root: bytes) -> None:
        self._view = _Empty(fs, _NoTree(fs, -1, root), lambda held: (-1, held.name))

    def begin(self, first: Question[T], *, follow: bool) -> T:
        return self.ask(first)

    def ask(self, question: Question[T]) -> T:
        return question.ask(self._view)

    def close(self) -> None:
        pass
