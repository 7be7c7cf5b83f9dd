"""The file system of fsspec that was given no root: each call is one of that of the root that it is about."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txfiles.integrations.fsspec import _CHUNK, TxFilesFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles.integrations._untyped import AbstractFileSystem
else:
    from fsspec import AbstractFileSystem

# Which argument of a call tells the root.
_TOLD_BY = dict.fromkeys(
    ("chmod", "info", "islink", "ls", "makedirs", "mkdir", "open", "pipe", "pipe_file", "rm", "rm_file", "rmdir"),
    (0, "path"),
)
_TOLD_BY |= {"put": (1, "rpath"), "put_file": (1, "rpath"), "link": (1, "dst"), "symlink": (1, "dst")}


class Anywhere(TxFilesFileSystem):
    """`fsspec.filesystem("txfiles")`: without a root, and so without transactions of several calls.

    A path is in the nearest directory above that is a root already, or else in the first that was asked for of those
    above it. A call that changes several files changes all or none where they are in one root, and raises otherwise;
    `mv` to another root removes what it has copied.
    """

    def __init__(self, **options: Any) -> None:
        AbstractFileSystem.__init__(self)
        self._made_in = None
        self._options = options
        self._asked: list[str] = []

    def _at(self, path: Any) -> TxFilesFileSystem:
        while isinstance(path, (list, tuple, dict)) and path:
            path = next(iter(path))
        here = self._strip_protocol(path)
        root = self._root_above(here) or next((one for one in self._asked if Path(here).is_relative_to(one)), None)
        if root is None:
            root = self._get_kwargs_from_urls(here).get("url_root")
            if root is None:
                raise ValueError(f"where does the root of {here!r} end? root='s3://...' names it")
            self._asked.append(root)
        return TxFilesFileSystem(url_root=root, **self._options)

    @property
    def transaction(self) -> Any:
        raise ValueError("a transaction of which directory? root='/...' names it")

    def copy(self, path1: Any, path2: Any, *args: Any, **options: Any) -> None:
        """All files or none, from whatever root into one."""
        with self._at(path2)._changing():
            AbstractFileSystem.copy(self, path1, path2, *args, **options)

    def cp_file(self, path1: Any, path2: Any, **options: Any) -> None:
        source, target = self._at(path1), self._at(path2)
        if source.root == target.root:
            target.cp_file(path1, path2, **options)
        elif source.isdir(path1):
            target.makedirs(path2, exist_ok=True)
        else:
            with source.open(path1) as old, target.open(path2, "wb") as new:
                while chunk := old.read(_CHUNK):
                    new.write(chunk)

    def mv(self, path1: Any, path2: Any, *args: Any, **options: Any) -> None:
        target = self._at(path2)
        if self._at(path1).root == target.root:
            target.mv(path1, path2, *args, **options)
        else:
            AbstractFileSystem.mv(self, path1, path2, *args, **options)


def _passed_on(name: str, position: int, keyword: str) -> Callable[..., Any]:
    @wraps(getattr(TxFilesFileSystem, name))
    def call(self: Anywhere, *args: Any, **options: Any) -> Any:
        path = args[position] if len(args) > position else options[keyword]
        return getattr(self._at(path), name)(*args, **options)

    return call


for _name, _told_by in _TOLD_BY.items():
    setattr(Anywhere, _name, _passed_on(_name, *_told_by))
