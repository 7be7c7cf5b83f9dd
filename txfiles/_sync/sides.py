"""What a sync needs to know of the two places, whatever they are. Names are relative, with `/` between the parts."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import NamedTuple, Protocol


class Entry(NamedTuple):
    """One name of a listing. `kind` is file, dir, link or special, `link` the text of a link.

    `changed_ns` is when the entry last changed in any way, by a clock that nobody can set; `identity` tells it from
    another one that takes its name. They are 0 and empty where there is no such thing.
    """

    kind: str
    mode: int
    size: int
    mtime_ns: int
    changed_ns: int = 0
    identity: tuple[int, ...] = ()
    link: str = ""


class Listing(NamedTuple):
    """The names of a place, parents before children; `kept` are directories in which something is excluded."""

    entries: dict[str, Entry]
    kept: set[str]


class Source(Protocol):
    """Where files are read. Whatever cannot be seen or read is an error, never taken as absent."""

    def list(self) -> Listing:
        """Everything that is not excluded."""

    def look(self, names: Iterable[str]) -> Listing:
        """Those of the names that are there; parents come before children. Nothing is below a link."""

    def read(self, name: str, entry: Entry) -> Generator[bytes]:
        """The content of a file; an error if it is not, or does not stay, the one that was listed."""

    def require_unchanged(self, listing: Listing) -> None:
        """An error if `list` would have another answer now."""


class Target(Protocol):
    """Where changes are staged: one open transaction."""

    def write(self, name: str, chunks: Iterable[bytes], mode: int | None, mtime_ns: int | None) -> None:
        """Stage a file with this modification time (`None`: now). A new one gets the mode less the umask.

        One that is replaced gets exactly the mode, or with `None` keeps its own.
        """

    def make_directory(self, name: str, mode: int | None) -> None:
        """Stage a directory, with the mode less the umask."""

    def make_link(self, name: str, text: str) -> None:
        """Stage a symbolic link, in the place of a file or a link if there is one."""

    def delete(self, name: str) -> None:
        """Stage the removal of a file or link."""

    def remove_directory(self, name: str) -> None:
        """Stage the removal of a directory in which nothing is left."""
