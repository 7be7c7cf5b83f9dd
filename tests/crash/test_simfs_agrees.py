"""`SimFS` answers as a real directory does: the same calls on both, compared by result, errno and what is there."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support import scratch
from txfiles._disk.system import FileSystem, KernelFS
from txfiles.testing import Options, SimFS

NAMES = [b"a", b"b", b"c", b".", b"..", b"a/b", b"b/c", b"../a", b"x" * 255, b"x" * 256, b""]
names = st.sampled_from([*NAMES[:3], *NAMES])  # plain ones more often
# Nothing may lead further up than `..` of a directory below the top: links stay where they are, `..` is never opened.
openable = names.filter(lambda name: name != b"..")
TEXTS = [b"a", b"b", b"nowhere", b".", b"a/b", b""]
MODES = [0o600, 0o644, 0o755, 0o4755, 0o2755, 0o2644, 0o1777, 0]


class Both:
    """Runs a call on two file systems; each has its own descriptors under the same numbers."""

    def __init__(self, real: FileSystem, sim: SimFS, real_root: bytes) -> None:
        self.real, self.sim = real, sim
        self.fds = [(real.open_dir(None, real_root), sim.open_dir(None, b"/sim/top"))]

    def run(self, call: Callable[[FileSystem, Callable[[int], int]], Any]) -> Any:
        got = [self._outcome(call, fs, side) for side, fs in enumerate((self.real, self.sim))]
        assert got[0] == got[1]
        return got[0]

    def open(self, call: Callable[[FileSystem, Callable[[int], int]], int]) -> None:
        def opened(fs: FileSystem, fd: Callable[[int], int]) -> str:
            made.append(call(fs, fd))
            return "opened"

        made: list[int] = []
        if self.run(opened) == "opened":
            self.fds.append((made[0], made[1]))

    def close(self, which: int) -> None:
        real, sim = self.fds.pop(which)
        self.real.close(real)
        self.sim.close(sim)

    def _outcome(self, call: Callable[[FileSystem, Callable[[int], int]], Any], fs: FileSystem, side: int) -> Any:
        try:
            return call(fs, lambda which: self.fds[which % len(self.fds)][side])
        except OSError as error:
            return errno.errorcode[error.errno or 0]


def seen(fs: FileSystem, at: int, depth: int = 0) -> dict[bytes, Any]:
    """Everything below a directory, through the calls of the boundary."""
    found: dict[bytes, Any] = {}
    for name in sorted(fs.listdir(at)):
        info = fs.stat(at, name)
        entry: list[Any] = [stat.S_IFMT(info.st_mode), info.st_mode, info.st_uid, info.st_gid]
        if stat.S_ISDIR(info.st_mode):
            fd = fs.open_dir(at, name)
            entry.append(seen(fs, fd))
            fs.close(fd)
        elif stat.S_ISLNK(info.st_mode):
            entry += [info.st_nlink, fs.readlink(at, name)]
        else:
            fd = fs.open_read(at, name)
            entry += [info.st_nlink, info.st_size, fs.read(fd, 1 << 20)]
            fs.close(fd)
        entry.append({key: value for key, value in fs.xattrs(at, name).items() if key.startswith("user.")})
        found[name] = entry
    return found


def seen_around(fs: FileSystem, at: int) -> dict[bytes, Any]:
    """The same, one directory further up."""
    above = fs.open_dir(at, b"..")
    found = seen(fs, above)
    fs.close(above)
    return found


which = st.integers(0, 5)


class SimAndReal(RuleBasedStateMachine):
    """Random calls on both. Descriptor 0 is the top directory; `ROOM` caps the others."""

    ROOM = 8

    @initialize()
    def begin(self) -> None:
        self.directory = str(scratch.directory(scratch.MEMORY))
        os.chmod(self.directory, 0o755)
        os.mkdir(os.path.join(self.directory, "top"), 0o755)
        self.before = os.umask(0o022)
        sim = SimFS(Options(umask=0o022))
        sim.mkdirs("/sim/top")
        self.both = Both(KernelFS(), sim, os.fsencode(self.directory) + b"/top")

    def teardown(self) -> None:
        if hasattr(self, "both"):
            while self.both.fds:
                self.both.close(-1)
            os.umask(self.before)
            shutil.rmtree(self.directory)

    def room(self) -> bool:
        return len(self.both.fds) < self.ROOM

    @rule(at=which, name=openable, follow=st.booleans())
    @precondition(room)
    def open_dir(self, at: int, name: bytes, follow: bool) -> None:
        self.both.open(lambda fs, fd: fs.open_dir(fd(at), name, follow=follow))

    @rule(at=which, name=openable)
    @precondition(room)
    def open_read(self, at: int, name: bytes) -> None:
        self.both.open(lambda fs, fd: fs.open_read(fd(at), name))

    @rule(at=which, name=openable)
    @precondition(room)
    def open_append(self, at: int, name: bytes) -> None:
        self.both.open(lambda fs, fd: fs.open_append(fd(at), name))

    @rule(at=which, name=openable)
    @precondition(room)
    def open_write(self, at: int, name: bytes) -> None:
        self.both.open(lambda fs, fd: fs.open_write(fd(at), name))

    @rule(at=which, name=names, mode=st.sampled_from(MODES))
    @precondition(room)
    def create(self, at: int, name: bytes, mode: int) -> None:
        self.both.open(lambda fs, fd: fs.create(fd(at), name, mode))

    @rule(fd=which)
    def close(self, fd: int) -> None:
        if 0 < fd < len(self.both.fds):
            self.both.close(fd)

    @rule(fd=which, size=st.integers(0, 9))
    def read(self, fd: int, size: int) -> None:
        self.both.run(lambda fs, of: fs.read(of(fd), size))

    @rule(fd=which, data=st.binary(max_size=6))
    def write(self, fd: int, data: bytes) -> None:
        self.both.run(lambda fs, of: fs.write(of(fd), memoryview(data)))

    @rule(fd=which, size=st.integers(0, 9), offset=st.integers(0, 9))
    def read_at(self, fd: int, size: int, offset: int) -> None:
        self.both.run(lambda fs, of: fs.read_at(of(fd), size, offset))

    @rule(at=which, some=st.lists(names, max_size=3), limit=st.integers(0, 9))
    def read_small(self, at: int, some: list[bytes], limit: int) -> None:
        def read(fs: FileSystem, fd: Callable[[int], int]) -> Any:
            found = fs.read_small(fd(at), some, limit)
            return found and ([comparable(info) for info in found[0]], found[1])

        self.both.run(read)

    @rule(fd=which, data=st.binary(max_size=6), offset=st.integers(0, 9))
    def write_at(self, fd: int, data: bytes, offset: int) -> None:
        self.both.run(lambda fs, of: fs.write_at(of(fd), memoryview(data), offset))

    @rule(fd=which, size=st.integers(1, 12))
    def allocate(self, fd: int, size: int) -> None:
        self.both.run(lambda fs, of: fs.allocate(of(fd), size))

    @rule(fd=which, offset=st.integers(-2, 9), whence=st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END]))
    def seek(self, fd: int, offset: int, whence: int) -> None:
        def seek(fs: FileSystem, of: Callable[[int], int]) -> int | None:
            if stat.S_ISDIR(fs.fstat(of(fd)).st_mode):
                return None  # a directory's offsets are its own affair
            return fs.seek(of(fd), offset, whence)

        self.both.run(seek)

    @rule(fd=which)
    def fstat(self, fd: int) -> None:
        self.both.run(lambda fs, of: comparable(fs.fstat(of(fd))))

    @rule(at=which, name=names)
    def stat(self, at: int, name: bytes) -> None:
        self.both.run(lambda fs, fd: comparable(fs.stat(fd(at), name)))

    @rule(at=which, name=names)
    def readlink(self, at: int, name: bytes) -> None:
        self.both.run(lambda fs, fd: fs.readlink(fd(at), name))

    @rule(at=which)
    def listdir(self, at: int) -> None:
        self.both.run(lambda fs, fd: sorted(fs.listdir(fd(at))))

    @rule(text=st.sampled_from(TEXTS), at=which, name=names)
    def symlink(self, text: bytes, at: int, name: bytes) -> None:
        self.both.run(lambda fs, fd: fs.symlink(text, fd(at), name))

    @rule(at=which, name=names, mode=st.sampled_from(MODES))
    def mkdir(self, at: int, name: bytes, mode: int) -> None:
        self.both.run(lambda fs, fd: fs.mkdir(fd(at), name, mode))

    @rule(at=which, name=names)
    def rmdir(self, at: int, name: bytes) -> None:
        self.both.run(lambda fs, fd: fs.rmdir(fd(at), name))

    @rule(at=which, name=names)
    def unlink(self, at: int, name: bytes) -> None:
        self.both.run(lambda fs, fd: fs.unlink(fd(at), name))

    @rule(at=which, name=names, to=which, new=names)
    def link(self, at: int, name: bytes, to: int, new: bytes) -> None:
        self.both.run(lambda fs, fd: fs.link(fd(at), name, fd(to), new))

    @rule(at=which, name=names, to=which, new=names)
    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        self.both.run(lambda fs, fd: fs.rename(fd(at), name, fd(to), new))

    @rule(at=which, name=names, to=which, new=names)
    def rename_new(self, at: int, name: bytes, to: int, new: bytes) -> None:
        self.both.run(lambda fs, fd: fs.rename_new(fd(at), name, fd(to), new))

    @rule(at=which, name=names, to=which, new=names)
    def exchange(self, at: int, name: bytes, to: int, new: bytes) -> None:
        self.both.run(lambda fs, fd: fs.exchange(fd(at), name, fd(to), new))

    @rule(fd=which, mode=st.sampled_from(MODES))
    def chmod(self, fd: int, mode: int) -> None:
        self.both.run(lambda fs, of: fs.chmod(of(fd), mode))

    @rule(fd=which, uid=st.sampled_from([-1, 0, 1234]), gid=st.sampled_from([-1, 0, 1234]))
    def chown(self, fd: int, uid: int, gid: int) -> None:
        self.both.run(lambda fs, of: fs.chown(of(fd), uid, gid))

    @rule(fd=which, mtime_ns=st.integers(1, 10**18))
    def set_mtime(self, fd: int, mtime_ns: int) -> None:
        def set_mtime(fs: FileSystem, of: Callable[[int], int]) -> int:
            fs.set_mtime(of(fd), mtime_ns)
            return fs.fstat(of(fd)).st_mtime_ns

        self.both.run(set_mtime)

    @rule(fd=which, key=st.sampled_from(["user.one", "user.two", "nonsense"]), value=st.binary(max_size=3))
    def set_xattr(self, fd: int, key: str, value: bytes) -> None:
        self.both.run(lambda fs, of: fs.set_xattr(of(fd), key, value))

    @rule(fd=which, key=st.sampled_from(["user.one", "user.two", "nonsense"]))
    def remove_xattr(self, fd: int, key: str) -> None:
        self.both.run(lambda fs, of: fs.remove_xattr(of(fd), key))

    @rule(fd=which)
    def sync(self, fd: int) -> None:
        self.both.run(lambda fs, of: fs.sync_file(of(fd)))
        self.both.run(lambda fs, of: fs.sync_data(of(fd)))
        self.both.run(lambda fs, of: fs.sync_dir(of(fd)))
        self.both.run(lambda fs, of: fs.start_writeback(of(fd)))

    @rule()
    def kill(self) -> None:
        """A process kill changes nothing but that the descriptors are gone."""
        while len(self.both.fds) > 1:
            self.both.close(-1)
        self.both.sim = self.both.sim.after_kill()
        self.both.fds = [(self.both.fds[0][0], self.both.sim.open_dir(None, b"/sim/top"))]

    @invariant()
    def same_tree(self) -> None:
        if hasattr(self, "both"):
            real, sim = self.both.fds[0]
            assert seen_around(self.both.real, real) == seen_around(self.both.sim, sim)


def comparable(info: Any) -> tuple[Any, ...]:
    if stat.S_ISDIR(info.st_mode):
        return info.st_mode, info.st_uid, info.st_gid
    return info.st_mode, info.st_uid, info.st_gid, info.st_nlink, info.st_size


TestSimAndReal = pytest.mark.needs("root")(SimAndReal.TestCase)
TestSimAndReal.settings = settings(stateful_step_count=60)
