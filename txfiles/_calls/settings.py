"""The settings that stores and transactions share."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from txfiles._disk.allowance import check_accept
from txfiles.errors import UnsupportedFilesystemError

if TYPE_CHECKING:
    from collections.abc import Collection

    from txfiles._format.paths import AnyPath

Links = Literal["refuse", "follow"]
_AGES = 1e12  # seconds; more than clocks can add


_URL = re.compile(r"(s3a?|gs|azure|az|adl|abfss?|memory|file|https?)://")


def is_far(root: object) -> bool:
    """Whether a root is on object storage: a URL, or a store that was made from one. Imports nothing of it."""
    if isinstance(root, str):
        return "://" in root and _URL.match(root) is not None
    return getattr(root, "_far", None) is not None


def root_of(root: AnyPath | HasRoot) -> AnyPath:
    """The path of a root, also of one that is given as its store."""
    return root if isinstance(root, (str, bytes)) or not isinstance(root, HasRoot) else root.root


@runtime_checkable
class HasRoot(Protocol):
    """A `FileStore`, given where a root is meant."""

    @property
    def root(self) -> str: ...
    def transaction(self) -> object: ...


class Unset:
    """An argument that was not given."""

    def __repr__(self) -> str:
        return "<not given>"


UNSET = Unset()


def check_links(links: str, root: object = None) -> bool:
    """Whether links out of the root are followed. Raises `ValueError`; `UnsupportedFilesystemError` for a store."""
    if links not in ("refuse", "follow"):
        raise ValueError(f'links is "refuse" or "follow", not {links!r}')
    if links == "follow" and is_far(root):
        raise UnsupportedFilesystemError("object storage has no links that could be followed")
    return links == "follow"


def check_settings(durability: str, timeout: float | None, accept: Collection[str] = ()) -> None:
    check_accept(accept)
    if durability not in ("full", "journal", "process"):
        raise ValueError(f'durability is "full", "journal" or "process", not {durability!r}')
    if timeout is not None and not (
        isinstance(timeout, (int, float)) and (0 <= timeout < _AGES or timeout == math.inf)
    ):
        raise ValueError(f"timeout is a number of seconds, 0 or more, or None; not {timeout!r}")
