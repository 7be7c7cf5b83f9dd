"""Calls on the staged view that touch more than one path: walk, move, copy, delete. REQUIRES: inside a `step`."""

from __future__ import annotations

import errno
import math
from typing import TYPE_CHECKING

from txfiles._disk import metadata
from txfiles._disk.interrupts import give_way
from txfiles._format import paths
from txfiles._tree.staging import ABSENT, Directory, Staging, refuse_special
from txfiles._tree.tree import Node
from txfiles._tree.view import C, View, must_be_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_CHUNK = 1 << 20


def walk(
    view: View[C], path: bytes, depth: float = math.inf, excluded: Callable[[bytes], bool] = lambda _: False
) -> Iterator[tuple[bytes, Node]]:
    """Everything below a directory of the view whose path has at most `depth` components.

    Parents come before children, links are not followed. What is excluded is not looked at, nor what is below it.
    """
    todo = _contents(view, path, depth)
    while todo:
        give_way()
        below = todo.pop()
        if excluded(below):
            continue
        node = view.listed(below)
        if node is None:
            continue  # another program removed it since it was listed
        yield below, node
        if node.kind == "dir":
            todo += _contents(view, below, depth)


def _contents(view: View[C], path: bytes, depth: float) -> list[bytes]:
    """The paths in a directory, the last one first."""
    if path.count(b"/") + bool(path) >= depth:
        return []
    return [paths.join(path, name) for name in reversed(view.listdir(path))]


def excluder(patterns: Iterable[str | bytes]) -> Callable[[bytes], bool]:
    """Whether a path matches one of the patterns."""
    compiled = paths.compile_globs(patterns)
    return lambda path: any(one.fullmatch(paths.decode(path)) for one in compiled)


def glob(view: View[C], pattern: str | bytes, exclude: Iterable[str | bytes] = ()) -> list[str]:
    """The files whose path matches, sorted. No directory is entered that is too deep, or beside what is fixed."""
    matcher, start = paths.compile_glob(pattern), paths.fixed_part(pattern)
    excluded = excluder(exclude)
    if any(paths.is_private(part) for part in start.split(b"/")):
        return []
    if any(map(excluded, [*paths.ancestors(start)[1:], start])):
        return []
    node = view.look(start) if start and view.parent_is_directory(start) else None
    if start and (node is None or node.kind != "dir"):
        shown = paths.decode(start)
        return [shown] if node is not None and matcher.fullmatch(shown) else []
    found = walk(view, start, paths.depth(pattern), excluded)
    files = (paths.decode(path) for path, node in found if node.kind != "dir")
    return sorted(path for path in files if matcher.fullmatch(path))


def _require_movable(staging: Staging, path: bytes) -> list[tuple[bytes, Node]]:
    """The contents of a directory that goes as a whole; what txfiles may not touch is refused."""
    staging.refuse_nested_root(path)
    found = list(walk(staging, path))
    for below, node in found:
        if node.kind == "special":
            raise refuse_special(below)
        if node.kind == "dir":
            staging.refuse_nested_root(below)
    return found


def delete_tree(staging: Staging, path: bytes) -> None:
    found = _require_movable(staging, path)
    for below, node in reversed(found):
        if node.kind == "dir":
            staging.remove_directory(below)
        else:
            staging.put(below, ABSENT)
    staging.remove_directory(path)


def move(staging: Staging, source: bytes, target: bytes, *, overwrite: bool) -> None:
    """A file, a link (itself) or a directory. An existing file is replaced with `overwrite`, a directory is not."""
    node = staging.look(source)
    shown = paths.decode(source)
    if node is None:
        raise FileNotFoundError(errno.ENOENT, "no such file or directory", shown)
    if node.kind == "special":
        raise refuse_special(source)
    if source == target:
        return
    _prepare_target(staging, source, node, target, overwrite)
    if node.kind != "dir":
        _move_file(staging, source, target)
        return
    found = _require_movable(staging, source)
    staging.put(target, Directory(staging.meta_of(source)))
    for below, inner in found:
        there = target + below[len(source) :]
        if inner.kind == "dir":
            staging.put(there, Directory(staging.meta_of(below)))
        else:
            _move_file(staging, below, there)
    for below, inner in reversed(found):
        if inner.kind == "dir":
            staging.remove_directory(below)
    staging.remove_directory(source)


def _move_file(staging: Staging, source: bytes, target: bytes) -> None:
    entry = staging.taken(source)
    staging.put(source, ABSENT)  # first: an interrupt between the two must not find the token at both
    staging.put(target, entry)


def copy(staging: Staging, source: bytes, target: bytes, *, overwrite: bool) -> None:
    """A file, or a directory with its links as links: content, mode and attributes; the owner as for a write."""
    node = staging.look(source) if source else Node("dir")
    if node is None:
        raise FileNotFoundError(errno.ENOENT, "no such file or directory", paths.decode(source))
    if node.kind == "special":
        raise refuse_special(source)
    _prepare_target(staging, source, node, target, overwrite)
    if node.kind != "dir":
        _copy_file(staging, source, node, target)
        return
    found = list(walk(staging, source))
    for below, inner in found:
        if inner.kind == "special":
            raise refuse_special(below)
    staging.put(target, Directory(staging.copied_meta(source, target, is_dir=True)))
    for below, inner in found:
        there = target + below[len(source) :]
        if inner.kind == "dir":
            staging.put(there, Directory(staging.copied_meta(below, there, is_dir=True)))
        else:
            _copy_file(staging, below, inner, there)


def link(staging: Staging, source: bytes, target: bytes) -> None:
    """A second name of a file. Raises `FileExistsError`."""
    path, node = staging.find(source)
    must_be_file(path, node)
    to = staging.resolve(target, follow_last=False)
    _prepare_target(staging, path, Node("file"), to, overwrite=False)
    staging.put(to, staging.linked(path))


def _prepare_target(staging: Staging, source: bytes, node: Node, target: bytes, overwrite: bool) -> None:
    shown = paths.decode(target)
    if node.kind == "dir" and paths.is_below(target, source):
        raise OSError(errno.EINVAL, "a directory cannot be put into itself", shown)
    there = staging.look(target)
    if there is not None:
        if there.kind == "dir":
            raise IsADirectoryError(errno.EISDIR, "is a directory", shown)
        if there.kind == "special":
            raise refuse_special(target)
        if node.kind == "dir":
            raise NotADirectoryError(errno.ENOTDIR, "a directory cannot replace a file", shown)
        if not overwrite:
            raise FileExistsError(errno.EEXIST, "the file exists", shown)
    if not overwrite:
        staging.expect_nothing(target)
    staging.make_parents(target)


def _copy_file(staging: Staging, source: bytes, node: Node, target: bytes) -> None:
    if node.kind == "link":
        staging.put(target, staging.tokens.symlink(node.link))
        return
    if source == target:
        return
    staging.put(target, staging.copied(source, target))


def change_mode(staging: Staging, path: bytes, node: Node, mode: int) -> None:
    """The content of a file goes to a new one with the mode; a directory has to be new itself."""
    if node.kind == "dir" and staging.is_directory_on_disk(path):
        message = "the mode of a directory that is there already cannot be changed in a transaction"
        raise IsADirectoryError(errno.EISDIR, message, paths.decode(path))
    meta = staging.meta_of(path)
    changed = metadata.with_mode(meta, mode)
    if node.kind == "dir":
        staging.put(path, Directory(changed))
    elif changed != meta:
        staging.put(path, staging.copied(path, path, changed))
