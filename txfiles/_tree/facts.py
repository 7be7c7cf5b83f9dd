"""What is known of the files and directories of a view, besides their content."""

from __future__ import annotations

import errno
import stat as modes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txfiles._format import paths
from txfiles._tree import subtrees
from txfiles._tree.view import Directory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from txfiles._disk.system import Stat
    from txfiles._tree.view import View


@dataclass(frozen=True, slots=True)
class FileStat:
    """What `stat` tells, by the names of `os.stat_result`; times and identity of a staged file are those it will have.

    A directory that is only staged has no inode yet, and the time of the root.
    """

    st_mode: int
    st_size: int
    st_mtime_ns: int
    st_uid: int
    st_gid: int
    st_ino: int
    st_dev: int

    @property
    def st_mtime(self) -> float:
        """The same in seconds."""
        return self.st_mtime_ns / 1e9


def stat_of(found: Stat) -> FileStat:
    return FileStat(
        found.st_mode, found.st_size, found.st_mtime_ns, found.st_uid, found.st_gid, found.st_ino, found.st_dev
    )


def stat(view: View[Any], path: bytes, *, follow: bool = True) -> FileStat:
    """Raises `FileNotFoundError`."""
    resolved, node = view.find(path, follow_last=follow)
    if node is None:
        raise FileNotFoundError(errno.ENOENT, "no such file or directory", paths.decode(path))
    there = node.stat or view.stat(resolved) or (view.tree.stat(resolved) if view.on_disk(resolved) else None)
    if there is not None and not (node.kind == "dir" and not modes.S_ISDIR(there.st_mode)):
        return stat_of(there)
    entry, root = view.entries.get(resolved), view.tree.stat(paths.ROOT)
    if not isinstance(entry, Directory) or root is None:
        raise FileNotFoundError(errno.ENOENT, "no such file or directory", paths.decode(path))
    mode = modes.S_IFDIR | entry.meta.mode
    return FileStat(mode, 0, root.st_mtime_ns, entry.meta.uid, entry.meta.gid, 0, root.st_dev)


def kind(view: View[Any], path: bytes) -> str | None:
    """dir, file, or special, links followed; `None` where there is nothing."""
    try:
        node = view.find(path)[1]
    except NotADirectoryError:
        return None
    return None if node is None else node.kind


def readlink(view: View[Any], path: bytes) -> str:
    node = view.find(path, follow_last=False)[1]
    if node is None:
        raise FileNotFoundError(errno.ENOENT, "no such file or directory", paths.decode(path))
    if node.kind != "link":
        raise OSError(errno.EINVAL, "not a symbolic link", paths.decode(path))
    return paths.decode(node.link)


def iterdir(view: View[Any], path: bytes) -> list[str]:
    return [paths.decode(paths.join(path, name)) for name in view.listdir(view.resolve(path))]


def walk(view: View[Any], path: bytes, exclude: Iterable[str | bytes] = ()) -> list[tuple[str, list[str], list[str]]]:
    """Links are not followed, and are among the files."""
    top = view.resolve(path)
    found: dict[bytes, tuple[list[str], list[str]]] = {top: ([], [])}
    for below, node in subtrees.walk(view, top, excluded=subtrees.excluder(exclude)):
        parent, name = paths.split(below)
        found[parent][node.kind != "dir"].append(paths.decode(name))
        if node.kind == "dir":
            found[below] = [], []
    return [(paths.decode(view.name_of(directory)) or ".", *names) for directory, names in found.items()]
