"""The staged view of a transaction on a store, and the change that a commit makes of it."""

from __future__ import annotations

import errno
import io
import stat
import tempfile
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from txfiles._format import paths
from txfiles._format.journal import Identity, Meta, Operation
from txfiles._tree.staging import Place, Staging
from txfiles._tree.view import Absent, Directory, must_be_file
from txfiles.errors import UnsupportedFilesystemError
from txfiles.objects import content
from txfiles.objects.change import Change, MakeDirectory, Put
from txfiles.objects.state import new_id
from txfiles.objects.view import FarView, Names, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from txfiles._disk.system import Stat
    from txfiles._tree.tokens import Token, Tokens
    from txfiles.objects.read import Reading

_CHUNK = 1 << 20
_NO_MODE = Meta(-1, 0, 0)
_IMPLIED = Meta(-2, 0, 0)  # of a directory that is there because something is below


class Blob(NamedTuple):
    """A staged file: what is put, and how many bytes it has."""

    put: Put
    size: int

    @property
    def identity(self) -> Identity:
        return Identity(0, self.size, 0)


class Writer:
    """As the writer of a token: takes the bytes of one file, and ends in a blob.

    What is not appended goes to a file of its own until the end.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._inner = content.Writer(blobs.spool)
        self._file: IO[bytes] | None = None

    @property
    def size(self) -> int:
        return self._inner.size

    def write(self, data: bytes | bytearray | memoryview) -> int:
        view = data if type(data) is bytes else memoryview(data).cast("B")
        if isinstance(view, memoryview) and not isinstance(view.obj, bytes):
            view = bytes(view)  # or what changes it meanwhile would part content and digest
        if self._file is None:
            return self._inner.write(view)
        rest = memoryview(view)
        while rest:
            rest = rest[self._file.write(rest) :]
        return len(view)

    def seek(self, offset: int, whence: int) -> int:
        if self._file is None and offset + (0, self.size, self.size)[whence] == self.size:
            return self.size
        return self._own().seek(offset, whence)

    def read(self, size: int) -> bytes:
        return b"" if self._file is None else self._file.read(size)

    def truncate(self, size: int) -> int:
        return size if self._file is None and size == self.size else self._own().truncate(size)

    def lend(self) -> int:
        """A descriptor, for others to write to."""
        return self._own().fileno()

    def _own(self) -> IO[bytes]:
        if self._file is None:
            file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            for chunk in self._inner.finish().chunks():
                file.write(chunk)
            self._file = file
        return self._file

    def finish(
        self, meta: Meta, identity: Identity | None, mtime_ns: int | None = None, *, kept: object = None
    ) -> Blob:
        """Of what is replaced, which has an `identity` and is `kept` on a disk, here nothing but the mode is."""
        if self._file is not None:
            self._inner = content.Writer(self._blobs.spool)
            self._file.seek(0)
            while chunk := self._file.read(_CHUNK):
                self._inner.write(chunk)
        held = self._inner.finish()
        return Blob(Put(self._blobs.new_version(), None if meta.mode < 0 else meta.mode, held), held.size)

    def discard(self) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Blobs:
    """As the tokens of a transaction: its id, and where new content goes."""

    def __init__(self) -> None:
        self.tid: str = new_id()
        self.spool: content.Spool = content.Spool()
        self._number = 0

    def new(self, path: bytes) -> Writer:
        return Writer(self)

    def new_version(self) -> str:
        self._number += 1
        return f"{self.tid}.{self._number}"

    def symlink(self, text: bytes) -> Token:
        raise UnsupportedFilesystemError(
            "there are no symbolic links on object storage; write the file itself, or copy it: that copies no bytes"
        )

    def remove_all(self) -> None:
        pass

    def forget(self) -> None:
        self.spool.close()


class Staged(FarView["Token"], Staging):
    """Entries by path, over one state. An entry is a `Blob` where that of a directory is a token."""

    def __init__(self, reading: Reading) -> None:
        self.names: Names = Names(reading)
        self.blobs: Blobs = Blobs()
        self._parents: set[bytes] = set()  # directories of the state, with no entry
        Staging.__init__(self, self.names.fs, self.names, cast("Tokens", self.blobs))

    def _blob(self, path: bytes) -> Blob | None:
        entry: object = self.entries.get(path)
        return entry if isinstance(entry, Blob) else None

    # -- changing -----------------------------------------------------------------------------------------------

    def place(self, path: bytes) -> Place:
        node = self.peek(path)[1]
        if node is None:
            return Place(path, None, None)
        must_be_file(path, node)
        return Place(path, Identity(0, 0, 0), None)

    def make_parents(self, path: bytes) -> None:
        """They are there with what is below them; none may be a file."""
        above = [one for one in paths.ancestors(path)[1:] if one not in self._parents]
        kinds = {one: self.kind_of(one) for one in above}
        if "file" in kinds.values():
            self.refuse_file_above(path)
        for one, kind in kinds.items():
            if kind is None:
                self.put(one, Directory(_IMPLIED))
            elif one not in self.entries:
                self._parents.add(one)

    def make_directory(self, path: bytes) -> None:
        node = self.peek(path)[1]
        if node is None:
            self.put(path, Directory(_NO_MODE))
        elif node.kind != "dir":
            raise NotADirectoryError(errno.ENOTDIR, "a parent is not a directory", paths.decode(path))

    def meta_for_new(self, path: bytes, *, is_dir: bool = False, mode: int | None = None) -> Meta:
        return _NO_MODE if mode is None else Meta(mode & 0o7777, 0, 0)

    def meta_of(self, path: bytes) -> Meta:
        entry = self.entries.get(path)
        if isinstance(entry, Directory):
            return entry.meta
        found = self.names.reading.entry(path)
        if self._blob(path) is None and found is None:
            return _IMPLIED
        return _NO_MODE._replace(uid=self.fs.ids()[0])

    def copied_meta(self, source: bytes, target: bytes, *, is_dir: bool = False) -> Meta:
        return self.meta_of(source)

    def refuse_nested_root(self, path: bytes) -> None:
        """Other roots have prefixes of their own."""

    # -- contents -----------------------------------------------------------------------------------------------

    def stat(self, path: bytes) -> Stat | None:
        blob = self._blob(path)
        if blob is not None:
            mode = blob.put.mode
            if mode is None:
                before = self.names.reading.entry(path if blob.put.origin is None else blob.put.origin[0])
                mode = None if before is None else before.mode
            return told(stat.S_IFREG | (0o644 if mode is None else mode), blob.size)
        if path in self.entries:
            return told(stat.S_IFDIR | 0o755) if isinstance(self.entries[path], Directory) else None
        return super().stat(path)

    def version(self, path: bytes) -> str | None:
        if path in self.entries:
            blob = self._blob(path)
            return None if blob is None else blob.put.version
        return super().version(path)

    def content(self, path: bytes) -> bytes:
        return b"".join(self.chunks(path))

    def raw(self, path: bytes) -> io.RawIOBase:
        must_be_file(path, self.find(path)[1])
        spool = content.Spool()
        pieces = [spool.append(chunk) for chunk in self.chunks(path)]
        return content.RawReader(spool, sum(length for _, length in pieces))

    def chunks(self, path: bytes) -> Iterator[bytes]:
        blob = self._blob(path)
        if blob is None:
            entry = self.file_entry(path)
            return self.names.reading.chunks(path, entry)
        if blob.put.content is not None:
            return blob.put.content.chunks()
        assert blob.put.origin is not None
        source = self.names.entry(blob.put.origin[0])
        assert source is not None
        return self.names.reading.chunks(path, source)

    def taken(self, path: bytes) -> Token:
        """No bytes are copied: the new entry is where the content of the old one is when it commits."""
        blob = self._blob(path)
        if blob is None:
            entry = self.file_entry(path)
            blob = Blob(Put("", None, None, (path, entry.version)), entry.size)
        mode = blob.put.mode
        if mode is None and (before := self.names.reading.entry(path)) is not None:
            mode = before.mode
        put = blob.put._replace(version=self.blobs.new_version(), mode=mode)
        return cast("Token", blob._replace(put=put))

    def copied(self, source: bytes, target: bytes, meta: Meta | None = None) -> Token:
        entry = self.taken(source)
        if meta is None or meta.mode < 0:
            return entry
        blob = cast("Blob", entry)
        return cast("Token", blob._replace(put=blob.put._replace(mode=meta.mode)))

    # -- the net effect -----------------------------------------------------------------------------------------

    def change(self) -> Change:
        """What the commit is to do."""
        reads = {**self.names.reads}
        for path, version in self.expected.items():
            reads.setdefault(path, version)
        change = Change(self.blobs.tid, reads, dict(self.names.listings))
        for path, entry in self.entries.items():
            blob = self._blob(path)
            if blob is not None:
                change.writes[path] = blob.put
            elif isinstance(entry, Absent):
                change.writes[path] = None
            elif isinstance(entry, Directory) and entry.meta is not _IMPLIED:
                change.writes[path] = MakeDirectory(self.blobs.new_version())
            elif (old := self.names.reading.entry(path)) is not None and old.is_file:
                change.writes[path] = None  # a file that has become a directory
        return change

    def plan(self) -> list[Operation]:
        """In the order of a commit to a directory: deletes, directories that go, directories that come, writes."""
        reading = self.names.reading
        goes, comes, writes = [], [], []
        for path, put in sorted(self.change().writes.items()):
            old = reading.entry(path)
            if isinstance(put, Put):
                blob = self._blob(path)
                assert blob is not None
                before = Identity(0, old.size, 0) if old is not None and old.is_file else None
                writes.append(Operation(-1, "write", path, before, blob.identity, "", _NO_MODE))
            elif put is not None:
                comes.append(Operation(-1, "mkdir", path, meta=_NO_MODE))
            elif old is not None:
                goes.append(Operation(-1, "delete" if old.is_file else "rmdir", path, meta=_NO_MODE))
        return [*goes, *comes, *writes]
