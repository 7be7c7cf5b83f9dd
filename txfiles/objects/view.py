"""A state of a root on a store as a view of a tree, for transactions and snapshots."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING, Any, TypeVar, cast

from txfiles._disk import system
from txfiles._format import paths
from txfiles._tree.tree import Node, Tree
from txfiles._tree.view import Held, Told, View, must_be_file
from txfiles.objects.change import seen
from txfiles.objects.read import DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from txfiles._disk.system import Stat
    from txfiles.objects.change import Seen
    from txfiles.objects.read import Found, Reading
    from txfiles.objects.state import Entry

C = TypeVar("C", bound=Any)


class Names(Tree):
    """The names of one state in the place of those below a directory; remembers what was asked."""

    def __init__(self, reading: Reading) -> None:
        super().__init__(system.current(), -1, b"/")
        self.reading = reading
        self.reads: dict[bytes, Seen] = {}
        self.listings: dict[bytes, dict[bytes, str]] = {}

    def find(self, path: bytes) -> Found | None:
        found = self.reading.find(path)
        self.reads.setdefault(path, seen(found))
        return found

    def look(self, path: bytes) -> Node | None:
        return node_of(self.find(path))

    def peek(self, path: bytes) -> Node | None:
        """`look` for who does not depend on the answer but for its kind, which the commit looks at itself."""
        found = self.reading.find(path)
        if found is not None and found.entry is None:
            self.reads.setdefault(path, "dir")
        return node_of(found)

    def entry(self, path: bytes) -> Entry | None:
        """The entry of a file."""
        found = self.find(path)
        return None if found is None else found.entry

    def listing(self, path: bytes) -> dict[bytes, str]:
        if path not in self.listings:
            self.listings[path] = self.reading.listing(path)
        return self.listings[path]

    def listdir(self, path: bytes) -> list[bytes]:
        return list(self.listing(path))

    def own_view(self) -> FarView[Any]:
        return FarView(self.reading)

    def stat(self, path: bytes) -> Stat | None:
        found = self.find(path) if path else DIRECTORY
        if found is None:
            return None
        entry = found.entry
        return told(stat.S_IFDIR | 0o755) if entry is None else told(stat.S_IFREG | _mode(entry.mode), entry.size)

    def require_reachable(self, directory: bytes) -> None:
        """There is one place only."""

    def close(self) -> None:
        pass


def told(mode: int, size: int = 0) -> Stat:
    uid, gid = system.current().ids()[:2]
    return cast("Stat", Told(mode, size, st_uid=uid, st_gid=gid))


def _mode(mode: int | None) -> int:
    return 0o644 if mode is None else mode


def node_of(found: Found | None) -> Node | None:
    return None if found is None else Node(found.kind)


class FarView(View[C]):
    """There are no links: every path is resolved. A directory is what has something below, or was made."""

    def __init__(self, reading: Reading) -> None:
        self.names: Names = Names(reading)
        super().__init__(self.names.fs, self.names, self.names.at)

    def resolve(self, path: bytes, *, follow_last: bool = True) -> bytes:
        return path

    def find(self, path: bytes, *, follow_last: bool = True) -> tuple[bytes, Node | None]:
        node = self.look(path) if path else Node("dir")
        if node is None:
            self.refuse_file_above(path)
        return path, node

    def peek(self, path: bytes) -> tuple[bytes, Node | None]:
        if path in self.entries or not path or not self.on_disk(path):
            return path, self.look(path) if path else Node("dir")
        return path, self.names.peek(path)

    def listed(self, path: bytes) -> Node | None:
        parent, name = paths.split(path)
        kind = self.names.listings.get(parent, {}).get(name)
        return Node(kind) if kind is not None and path not in self.entries else self.look(path)

    def refuse_file_above(self, path: bytes) -> None:
        for above in paths.ancestors(path)[1:]:
            if self.kind_of(above) == "file":
                self.look(above)  # that it is one is what this depends on
                raise NotADirectoryError(errno.ENOTDIR, "a parent is not a directory", paths.decode(path))

    def kind_of(self, path: bytes) -> str | None:
        """What a path is, asked without a trace: the commit looks at the parents of what it writes itself."""
        if path in self.entries:
            node = self.look(path)
            return None if node is None else node.kind
        found = self.names.reading.find(path) if self.on_disk(path) else None
        return None if found is None else found.kind

    def is_directory_on_disk(self, path: bytes) -> bool:
        node = self.names.look(path) if self.on_disk(path) else None
        return node is not None and node.kind == "dir"

    def file_entry(self, path: bytes) -> Entry:
        """What the state has of a file. Raises `OSError` for what is none."""
        must_be_file(path, self.find(path)[1])
        entry = self.names.entry(path)
        assert entry is not None
        return entry

    def held(self, path: bytes) -> Held | None:
        entry = self.file_entry(path)
        found = told(stat.S_IFREG | _mode(entry.mode), entry.size)
        return Held(entry.version, found, lambda: self.names.reading.content(path, entry))

    def stat(self, path: bytes) -> Stat | None:
        return self.names.stat(path) if self.on_disk(path) else None

    def version(self, path: bytes) -> str | None:
        found = self.names.find(path) if self.on_disk(path) else None
        return None if found is None or found.entry is None else found.entry.version

    def fetch(self, wanted: Sequence[bytes]) -> None:
        """Fetch what is known to be read next, at once."""
        reading = self.names.reading
        reading.prefetch(wanted)
        files = [(path, found.entry) for path in wanted if (found := reading.find(path)) is not None and found.entry]
        reading.contents(files)
