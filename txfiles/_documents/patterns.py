"""An open set of documents: the files that match `tasks/*.json`, each by what the `*` stands for."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from txfiles._format import paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SET_ASIDE = re.compile(r"\.damaged-[0-9]+$")


class Pattern:
    """One `*` in a path, for a part of one component of it. `fixed` are files that are none of the set."""

    def __init__(self, pattern: str, fixed: Iterable[str]) -> None:
        self.before: str
        self.after: str
        self.before, _, self.after = pattern.partition("*")
        if set("*?[") & set(self.after + self.before):
            raise ValueError(f"{pattern!r} is no pattern for documents: it has one *, and no ? or [")
        self.text = pattern
        self._fixed = frozenset(fixed)

    def key_of(self, path: str) -> str | None:
        """What the `*` stands for in a path that matches; `None` for what is no document of the set."""
        if path in self._fixed or _SET_ASIDE.search(path):
            return None
        return path[len(self.before) : len(path) - len(self.after)] or None

    def path_of(self, key: str) -> str:
        """The file of a document of the set. Raises `InvalidPathError` and `ValueError` for what is no key."""
        if not isinstance(key, str):
            raise TypeError(f"the key of a document is a str, not {type(key).__name__}")
        path = f"{self.before}{key}{self.after}"
        if "/" in key or paths.decode(paths.normalize(path)) != path or self.key_of(path) != key:
            raise ValueError(f"{key!r} is no key of {self.text!r}")
        return path

    def overlaps(self, other: Pattern) -> bool:
        """Whether one file could be of both."""
        if self.text.count("/") != other.text.count("/"):
            return False
        ends = ((self.before, other.before), (self.after[::-1], other.after[::-1]))
        return all(one.startswith(two) or two.startswith(one) for one, two in ends)


def asides(path: str) -> Iterator[str]:
    """Where a damaged file may be moved, the first choice first."""
    return (f"{path}.damaged-{number}" for number in itertools.count(1))
