"""Questions to a view of the tree, and on which paths their answers depend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from txfiles._format import paths
from txfiles._reading.overlay import Held, Logged
from txfiles._tree import view
from txfiles._tree.view import View, version_of
from txfiles.errors import SnapshotExpiredError, TxFilesError

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles._disk.system import Stat
    from txfiles._tree.tree import Node

T = TypeVar("T")


class Question(Generic[T]):
    """Something to ask a view."""

    by_name = True
    """The answers tell names only, no inodes."""

    def ask(self, view: View[Any]) -> T:
        """May raise `OSError` and `TxFilesError`: that is an answer, too."""
        raise NotImplementedError

    def again(self, view: View[Any]) -> object:
        """The same, for a comparison."""
        return self.ask(view)

    def drop(self, answer: T) -> None:
        """Free an answer that does not count."""


def attempt(ask: Callable[[View[Any]], T], view: View[Any]) -> tuple[T | None, OSError | TxFilesError | None]:
    """The answer, or the error that is one."""
    try:
        return ask(view), None
    except (OSError, TxFilesError) as error:
        return None, error


class Traced(View[Held | Logged]):
    """A view that remembers on which paths an answer depends. What the log has is in no file system."""

    def forget(self) -> None:
        self._looked: set[bytes] = set()
        self._listed: set[bytes] = set()

    def look(self, path: bytes) -> Node | None:
        self._looked.add(path)
        return super().look(path)

    def file(self, path: bytes) -> tuple[int, bytes, Stat]:
        self._looked.add(path)
        return View.file(self, path)

    def held(self, path: bytes) -> view.Held | None:
        if not self.entries:
            return None
        self._looked.add(path)
        entry = self.entries.get(self.find(path)[0])
        if not isinstance(entry, Logged):
            return None
        return view.Held(version_of(entry.stat), entry.stat, lambda: entry.content)

    def stat(self, path: bytes) -> Stat | None:
        entry = self.entries.get(path)
        return entry.stat if isinstance(entry, Logged) else super().stat(path)

    def listdir(self, path: bytes) -> list[bytes]:
        self._listed.add(path)
        return super().listdir(path)

    def require_none_of(self, changed: set[bytes]) -> None:
        for path in changed:
            if path in self._looked or paths.split(path)[0] in self._listed:
                raise expired(path, "the file")


def expired(path: bytes, what: str) -> SnapshotExpiredError:
    shown = paths.decode(path)
    message = f"a later commit changed {what} {shown!r}; take a new snapshot, or name the files that it is for"
    return SnapshotExpiredError(message, path=shown)
