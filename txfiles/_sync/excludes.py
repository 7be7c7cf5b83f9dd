"""What `--exclude` leaves alone, on both sides."""

from __future__ import annotations

from fnmatch import translate
from re import compile as compiled
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Excludes:
    """Patterns as of a shell, each for one part of a name or for the whole of it.

    One that begins with `/` is for the whole name only, one that ends with `/` for directories only.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._patterns = [
            (compiled(translate(pattern.strip("/"))).match, pattern.startswith("/"), pattern.endswith("/"))
            for pattern in patterns
        ]

    def match(self, name: str, is_dir: Callable[[], bool]) -> bool:
        """Whether a name is excluded whose parents are not. What it is is asked only where a pattern wants to know."""
        last = name.rpartition("/")[2]
        return any(
            (matches(name) or (not whole and matches(last))) and (not directories or is_dir())
            for matches, whole, directories in self._patterns
        )
