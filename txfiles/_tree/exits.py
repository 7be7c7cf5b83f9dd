"""Links that lead out of the root: which were followed, and by which paths below the root."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txfiles._format import paths
from txfiles._format.journal import Exit, exit_of
from txfiles.errors import InvalidPathError

if TYPE_CHECKING:
    from txfiles._disk.system import Stat


class Exits:
    """Those of one tree, as far as they were met. `uid`: whose links are followed, besides the superuser's."""

    def __init__(self, uid: int, root: bytes) -> None:
        self.uid = uid
        self.root: list[bytes] = [part for part in root.split(b"/") if part]
        self._found: dict[bytes, Exit] = {}

    def note(self, found: Exit) -> None:
        self._found.setdefault(found.to, found)

    def of(self, path: bytes) -> Exit:
        """The one by which a path out of the root was reached."""
        found = exit_of(self._found.values(), path)
        assert found is not None
        return found

    def name_of(self, path: bytes) -> bytes:
        """A resolved path as one below the root."""
        if not paths.is_outside(path):
            return path
        found = self.of(path)
        return found.path + path[len(found.to) :]


class Trail:
    """How one path comes to lead out of the root: its own components, and the links that they are."""

    def __init__(self, exits: Exits, shown: str) -> None:
        self._exits = exits
        self._shown = shown
        self._name: list[bytes] | None = None
        self._links: list[tuple[bytes, Stat | None]] = []
        self._to: Exit | None = None

    def step(self, part: bytes) -> None:
        """A component of the path itself comes next."""
        if self._name is not None:
            self._name.append(part)

    def follow(self, done: list[bytes], part: bytes, found: Stat | None) -> None:
        """It is a link, or one on the way of a link."""
        if self._name is None:
            self._name = [*done, part]
        self._links.append((b"/".join([*done, part]), found))
        self._to = None

    def arrive(self, done: list[bytes]) -> None:
        """All links so far are followed. Raises `InvalidPathError` for a link of somebody else that has led out."""
        if done[:1] != [paths.OUTSIDE]:
            self._name, self._links, self._to = None, [], None
        elif self._to is None and self._name is not None:
            for _, found in self._links:
                if found is not None and found.st_uid not in (self._exits.uid, 0):
                    message = f"{self._shown!r} leaves the root through a link of user {found.st_uid}, not of your own"
                    raise InvalidPathError(message, path=self._shown)
            links = tuple(path for path, _ in self._links)
            self._to = Exit(b"/".join(self._name), b"/".join(done), links=links)
            self._exits.note(self._to)
