"""What the calls of a transaction mean, on a plain dict from paths to nodes. The root is the path `""`."""

from __future__ import annotations

import errno
import fnmatch
import itertools
import posixpath
from dataclasses import dataclass, replace
from typing import Literal

from txfiles.errors import ConflictError, InvalidPathError

_serials = itertools.count(1)
_LINKS = 40


@dataclass(frozen=True)
class Node:
    """`content` is that of a file, `text` that of a link; `serial` differs for every file that was ever written."""

    kind: Literal["file", "dir", "link", "special"]
    mode: int = 0
    content: bytes = b""
    text: str = ""
    serial: int = 0


Tree = dict[str, Node]


def file(content: bytes, mode: int) -> Node:
    return Node("file", mode, content, serial=next(_serials))


def parent(path: str) -> str:
    return posixpath.dirname(path)


class Reference:
    """A tree that calls change. A call that raises has changed nothing."""

    def __init__(self, tree: Tree, root: str, umask: int) -> None:
        self.tree = dict(tree)
        self.root = root
        self.file_mode = 0o666 & ~umask
        self.directory_mode = 0o777 & ~umask

    # -- names --------------------------------------------------------------------------------------------------

    def get(self, path: str) -> Node | None:
        return self.tree.get(path) if path else Node("dir")

    def resolve(self, spelled: str, *, follow: bool = True, directory: bool = False) -> str:
        path = posixpath.normpath(spelled)
        if path.startswith(("/", "..")) or (not directory and (spelled.endswith("/") or path == ".")):
            raise InvalidPathError(spelled)
        done, todo, links = "", [part for part in path.split("/") if part != "."], 0
        while todo:
            part = todo.pop(0)
            if part == "..":
                if not done:
                    raise InvalidPathError(spelled)
                done = parent(done)
                continue
            here = posixpath.join(done, part)
            node = self.get(here)
            if node is not None and node.kind == "link" and (todo or follow):
                links += 1
                if links > _LINKS:
                    raise OSError(errno.ELOOP, spelled)
                text = node.text
                if text.startswith("/"):
                    if text != self.root and not text.startswith(self.root + "/"):
                        raise InvalidPathError(spelled)
                    done, text = "", text[len(self.root) :]
                todo[:0] = [part for part in text.split("/") if part not in ("", ".")]
                continue
            if todo and node is not None and node.kind != "dir":
                raise NotADirectoryError(spelled)
            done = here
        return done

    def below(self, path: str) -> list[str]:
        """Everything below a directory, parents first."""
        return sorted(other for other in self.tree if other.startswith(path + "/" if path else ""))

    def _ordinary(self, path: str, *, links: bool = False) -> Node:
        node = self.get(path)
        if node is None:
            raise FileNotFoundError(path)
        if node.kind == "dir":
            raise IsADirectoryError(path)
        if node.kind == "special" or (node.kind == "link" and not links):
            raise InvalidPathError(path)
        return node

    def _directory(self, path: str) -> Node:
        node = self.get(path)
        if node is None:
            raise FileNotFoundError(path)
        if node.kind != "dir":
            raise NotADirectoryError(path)
        return node

    def _make_parents(self, path: str) -> None:
        above = parent(path)
        if above and above not in self.tree:
            self._make_parents(above)
            self.tree[above] = Node("dir", self.directory_mode)

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        return self._ordinary(self.resolve(path)).content

    def exists(self, path: str) -> bool:
        try:
            return self.get(self.resolve(path, directory=True)) is not None
        except NotADirectoryError:
            return False

    def serial(self, path: str) -> int | None:
        """Instead of a version: the same for the same file, another one for any other; `None` without a file."""
        node = self.get(self.resolve(path))
        return node.serial if node is not None and node.kind == "file" else None

    def listdir(self, path: str) -> list[str]:
        resolved = self.resolve(path, directory=True)
        self._directory(resolved)
        return sorted(posixpath.basename(other) for other in self.tree if parent(other) == resolved)

    def glob(self, name: str) -> list[str]:
        """As the pattern `**/NAME`."""
        return sorted(
            path
            for path, node in self.tree.items()
            if node.kind != "dir" and fnmatch.fnmatchcase(posixpath.basename(path), name)
        )

    # -- changing -----------------------------------------------------------------------------------------------

    def write(self, path: str, content: bytes, *, expected: int | Literal["any"] | None = "any") -> None:
        resolved = self.resolve(path)
        old = None if self.get(resolved) is None else self._ordinary(resolved)
        if expected != "any" and expected != (None if old is None else old.serial):
            raise ConflictError(path)
        self._make_parents(resolved)
        self.tree[resolved] = file(content, self.file_mode if old is None else old.mode)

    def append(self, path: str, content: bytes) -> None:
        old = self.get(self.resolve(path))
        self.write(path, (b"" if old is None else old.content) + content)

    def create(self, path: str, content: bytes) -> None:
        resolved = self.resolve(path)
        if self.get(resolved) is not None:
            self._ordinary(resolved)
            raise FileExistsError(path)
        self.write(path, content)

    def delete(self, path: str, *, missing_ok: bool) -> None:
        resolved = self.resolve(path, follow=False)
        if missing_ok and self.get(resolved) is None:
            return
        self._ordinary(resolved, links=True)
        del self.tree[resolved]

    def delete_tree(self, path: str) -> None:
        resolved = self._not_root(self.resolve(path, follow=False, directory=True))
        self._directory(resolved)
        for other in [resolved, *self._movable(resolved)]:
            del self.tree[other]

    def mkdir(self, path: str) -> None:
        resolved = self.resolve(path, directory=True)
        node = self.get(resolved)
        if node is not None and node.kind != "dir":
            raise FileExistsError(path)
        self._make_parents(posixpath.join(resolved, "x"))

    def move(self, source: str, target: str) -> None:
        one = self._not_root(self.resolve(source, follow=False, directory=True))
        other = self._not_root(self.resolve(target, follow=False, directory=True))
        node = self.get(one)
        if node is None:
            raise FileNotFoundError(source)
        self._slashes(node, source, target)
        if node.kind == "special":
            raise InvalidPathError(source)
        if one == other:
            return
        self._can_go_to(one, node, other)
        moved = [one, *self._movable(one)] if node.kind == "dir" else [one]
        self._make_parents(other)
        self.tree.update({other + path[len(one) :]: self.tree.pop(path) for path in moved})

    def copy(self, source: str, target: str) -> None:
        one, other = self.resolve(source, directory=True), self.resolve(target, directory=True)
        node = self.get(one)
        if node is None:
            raise FileNotFoundError(source)
        self._slashes(node, source, target)
        if node.kind == "special":
            raise InvalidPathError(source)
        self._can_go_to(one, node, other)
        copied = [one, *self._movable(one)] if node.kind == "dir" else [one]
        if one == other:
            return
        nodes = [self.tree[path] for path in copied]
        self._make_parents(other)
        for path, found in zip(copied, nodes, strict=True):
            fresh = replace(found, serial=next(_serials)) if found.kind == "file" else found
            self.tree[other + path[len(one) :]] = fresh

    def _slashes(self, node: Node, *spelled: str) -> None:
        if node.kind != "dir" and any(path.endswith("/") or path == "." for path in spelled):
            raise InvalidPathError(spelled[0])

    def _not_root(self, path: str) -> str:
        if not path:
            raise OSError(errno.EBUSY, "the root")
        return path

    def _movable(self, path: str) -> list[str]:
        found = self.below(path)
        if any(self.tree[other].kind == "special" for other in found):
            raise InvalidPathError(path)
        return found

    def _can_go_to(self, one: str, node: Node, other: str) -> None:
        if node.kind == "dir" and (not one or other.startswith(one + "/")):
            raise OSError(errno.EINVAL, "into itself")
        there = self.get(other)
        if there is None:
            return
        if there.kind == "dir":
            raise IsADirectoryError(other)
        if there.kind == "special":
            raise InvalidPathError(other)
        if node.kind == "dir":
            raise NotADirectoryError(other)

    # -- the end ------------------------------------------------------------------------------------------------

    def committed(self, before: Tree) -> Tree:
        """The tree after the commit: a directory that is there before and after is one directory, with one mode."""
        out = dict(self.tree)
        for path, node in before.items():
            if node.kind == "dir" and path in out and out[path].kind == "dir":
                out[path] = node
        return out
