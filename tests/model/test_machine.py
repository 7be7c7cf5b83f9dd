"""A state machine: the whole public API, crashes and other programs included, against a tree in a dict."""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.model.reference import Node, Reference, Tree, file, parent
from tests.support import DEEP, debris
from txfiles import FileStore, FileTransaction, _fs, recover, status
from txfiles.errors import TxFilesError
from txfiles.testing._faults import FaultyFS

UMASK = 0o022
NAMES = ["a", "b", "d", "e"]
Durability = Literal["full", "process"]
plain = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
paths = st.one_of(
    *[plain] * 4,
    plain.map(lambda path: f"./{path}"),
    plain.map(lambda path: f"b/../{path}"),
    plain.map(lambda path: f"{path}/"),
    st.sampled_from([".", "..", "d/../..", "/a"]),
)
contents = st.binary(max_size=6)
modes = st.sampled_from([0o600, 0o640, 0o644, 0o755, 0o4755])
calls = st.integers(0, 130)  # the longest commits here take about as many
is_open = precondition(lambda self: self.tx is not None)
is_outermost = precondition(lambda self: self.tx is not None and not self.savepoints)
is_idle = precondition(lambda self: self.tx is None)


class Killed(BaseException):
    """The process is gone: nothing that it still tries has any effect."""


class Undone(Exception):
    """Leaves a block."""


class Dying(FaultyFS):
    """The kernel's file system; the process dies at call `die_at`, or call `fail_at` finds the disk full.

    What the kernel does at a process's end still happens: its descriptors are closed.
    """

    def __init__(self) -> None:
        super().__init__(_fs.KernelFS(), self._before)
        self.die_at: int | None = None
        self.fail_at: int | None = None

    def _before(self, number: int, name: str) -> None:
        if name == "close":
            return
        if self.die_at is not None and number >= self.die_at:
            raise Killed(f"at call {number}, {name}")
        if self.fail_at is not None and number >= self.fail_at and not name.startswith("sync"):
            self.fail_at = None
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def split(content: bytes) -> Any:
    return (content[i : i + 2] for i in range(0, len(content), 2))


class Machine(RuleBasedStateMachine):
    versions = Bundle("versions")

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="txfiles-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.root = self.base.resolve() / "root"
        self.root.mkdir()
        self.outside = self.base / "outside"
        self.outside.write_bytes(b"not yours")
        self.umask = os.umask(UMASK)
        self.fs: Any = Dying()
        self.disk: Tree = {}
        self.model = self._reference()
        self.tx: FileTransaction | None = None
        self.savepoints: list[tuple[Any, Tree]] = []
        self.version_of: dict[int, str] = {}
        self.serial_of: dict[str | None, int | None] = {None: None}

    def teardown(self) -> None:
        try:
            while self.savepoints:
                self.savepoints.pop()[0].__exit__(None, None, None)
            if self.tx is not None:
                self._take().rollback()
            assert debris.problems(self.root) == []
            assert self.outside.read_bytes() == b"not yours"
        finally:
            os.umask(self.umask)
            shutil.rmtree(self.base)

    def _reference(self) -> Reference:
        return Reference(self.disk, str(self.root), UMASK)

    @invariant()
    def nothing_shows_before_the_commit(self) -> None:
        assert look(self.root) == shown(self.disk)

    # -- begin and end ------------------------------------------------------------------------------------------

    @is_idle
    @rule(durability=st.sampled_from(["full", "process"]), through_store=st.booleans())
    def begin(self, durability: Durability, through_store: bool) -> None:
        with _fs.use(self.fs):
            if through_store:
                self.tx = FileStore(self.root, durability=durability, timeout=0).transaction().begin()
            else:
                self.tx = FileTransaction(self.root, durability=durability, timeout=0).begin()
        self.model = self._reference()

    @is_idle
    @rule(number=calls)
    def die_beginning(self, number: int) -> None:
        self._dies(lambda: FileTransaction(self.root, timeout=0).begin().rollback(), number)

    @is_outermost
    @rule()
    def commit(self) -> None:
        self._take().commit()
        self.disk = self.model.committed(self.disk)

    @is_open
    @rule()
    def roll_back(self) -> None:
        self._take().rollback()

    @is_outermost
    @rule()
    def drop(self) -> None:
        with pytest.warns(ResourceWarning, match="dropped while open"):
            self._drop()

    def _drop(self) -> None:
        self.tx = None
        gc.collect()  # tracebacks refer to it in a circle

    @is_open
    @rule()
    def die(self) -> None:
        """A kill before the commit."""
        self._dies(self._take().rollback, 0)
        assert recover(self.root, timeout=0).rolled_forward == []

    @is_outermost
    @rule(number=calls, again=calls)
    def die_committing(self, number: int, again: int) -> None:
        """A kill somewhere in the commit, one somewhere in the recovery, and a recovery that comes to its end."""
        tx, before, after = self._take(), self.disk, self.model.committed(self.disk)
        committed = self._dies(tx.commit, number)
        self._dies(lambda: recover(self.root, timeout=0), again)
        recover(self.root, timeout=0)
        found = look(self.root)
        assert found in ([shown(after)] if committed else [shown(before), shown(after)])
        self.disk = after if found == shown(after) else before
        assert status(self.root).clean

    @is_outermost
    @rule(number=calls)
    def commit_on_a_full_disk(self, number: int) -> None:
        """One call fails: what the error says is so, at once if it says so and after recovery in any case."""
        tx, before, after = self._take(), self.disk, self.model.committed(self.disk)
        self.fs.fail_at = self.fs.calls + 1 + number
        try:
            tx.commit()
            outcome = "after"
        except TxFilesError as error:
            outcome = error.outcome
        self.fs.fail_at = None
        assert outcome != "unknown"
        self.disk = after if outcome == "after" else before
        assert look(self.root) == shown(self.disk)
        recover(self.root, timeout=0)

    def _take(self) -> FileTransaction:
        tx, self.tx = self.tx, None
        assert tx is not None
        self.savepoints.clear()
        return tx

    def _dies(self, work: Callable[[], object], number: int) -> bool:
        """Whether the work came to its end before the process came to its."""
        self.fs.die_at = self.fs.calls + 1 + number
        try:
            with _fs.use(self.fs):
                work()
        except Killed:
            return False
        finally:
            self.fs.die_at = None
        return True

    @is_open
    @rule()
    def enter_savepoint(self) -> None:
        assert self.tx is not None
        savepoint = self.tx.savepoint()
        savepoint.__enter__()
        self.savepoints.append((savepoint, dict(self.model.tree)))

    @precondition(lambda self: self.savepoints)
    @rule(undo=st.booleans())
    def leave_savepoint(self, undo: bool) -> None:
        savepoint, before = self.savepoints.pop()
        if undo:
            assert not savepoint.__exit__(Undone, Undone(), None)
            self.model.tree = before
        else:
            savepoint.__exit__(None, None, None)

    # -- changes ------------------------------------------------------------------------------------------------

    def _agree(self, call: str, ours: Callable[[FileTransaction], object], theirs: Callable[[], object]) -> object:
        """Both give the same, or both raise the same and change nothing."""
        assert self.tx is not None
        before = dict(self.model.tree)
        try:
            expected, error = theirs(), None
        except (OSError, TxFilesError, Undone) as raised:
            expected, error = None, raised
            self.model.tree = before
        if error is None:
            assert ours(self.tx) == expected, call
            return expected
        with pytest.raises(type(error)) as found:
            ours(self.tx)
        assert type(found.value) is type(error), call
        if isinstance(found.value, TxFilesError):
            assert (found.value.outcome, found.value.path is None) == ("before", False)
        elif isinstance(found.value, OSError):
            assert found.value.filename is not None
            assert type(error) is not OSError or found.value.errno == error.errno
        return None

    @is_open
    @rule(path=paths, content=contents, form=st.sampled_from([bytes, bytearray, memoryview, io.BytesIO, split]))
    def write(self, path: str, content: bytes, form: Callable[[bytes], Any]) -> None:
        self._agree("write", lambda tx: tx.write(path, form(content)), lambda: self.model.write(path, content))

    @is_open
    @rule(path=paths, content=contents, version=st.one_of(versions, st.none(), st.just("current")))
    def write_if_version(self, path: str, content: bytes, version: str | None) -> None:
        if version == "current":
            version = self._version(path)
        expected = self.serial_of[version]
        self._agree(
            "write if_version",
            lambda tx: tx.write(path, content, if_version=version),
            lambda: self.model.write(path, content, expected=expected),
        )

    @is_open
    @rule(path=paths, value=st.dictionaries(st.sampled_from("kl"), st.integers(-9, 9), min_size=1))
    def write_json(self, path: str, value: dict[str, int]) -> None:
        content = json.dumps(value, indent=2).encode() + b"\n"
        self._agree("write_json", lambda tx: tx.write_json(path, value), lambda: self.model.write(path, content))
        self._agree("read", lambda tx: tx.read(path), lambda: self.model.read(path))

    @is_open
    @rule(path=paths, mode=st.sampled_from(["w", "wb", "a", "ab", "x", "xb"]), content=contents, fails=st.booleans())
    def open(self, path: str, mode: str, content: bytes, fails: bool) -> None:
        text = content.decode("latin-1")
        data = content if mode.endswith("b") else text.encode()

        def ours(tx: FileTransaction) -> None:
            with tx.open(path, mode) as stream:
                stream.write(content if mode.endswith("b") else text)
                if fails:
                    raise Undone

        def theirs() -> None:
            {"w": self.model.write, "a": self.model.append, "x": self.model.create}[mode[0]](path, data)
            if fails:
                raise Undone

        self._agree(f"open {mode}", ours, theirs)

    @is_open
    @rule(path=paths, missing_ok=st.booleans())
    def delete(self, path: str, missing_ok: bool) -> None:
        self._agree(
            "delete",
            lambda tx: tx.delete(path, missing_ok=missing_ok),
            lambda: self.model.delete(path, missing_ok=missing_ok),
        )

    @is_open
    @rule(path=paths)
    def delete_tree(self, path: str) -> None:
        self._agree("delete_tree", lambda tx: tx.delete_tree(path), lambda: self.model.delete_tree(path))

    @is_open
    @rule(source=paths, to=paths)
    def move(self, source: str, to: str) -> None:
        self._agree("move", lambda tx: tx.move(source, to), lambda: self.model.move(source, to))

    @is_open
    @rule(source=paths, to=paths)
    def copy(self, source: str, to: str) -> None:
        self._agree("copy", lambda tx: tx.copy(source, to), lambda: self.model.copy(source, to))

    @is_open
    @rule(path=paths)
    def mkdir(self, path: str) -> None:
        self._agree("mkdir", lambda tx: tx.mkdir(path), lambda: self.model.mkdir(path))

    # -- reads --------------------------------------------------------------------------------------------------

    @is_open
    @rule(path=paths)
    def read(self, path: str) -> None:
        self._agree("read", lambda tx: tx.read(path), lambda: self.model.read(path))
        self._agree("open", lambda tx: read_through(tx, path), lambda: self.model.read(path))

    @is_open
    @rule(path=paths, name=st.sampled_from(["*", "a", "[!a]", "?"]))
    def look_around(self, path: str, name: str) -> None:
        self._agree("exists", lambda tx: tx.exists(path), lambda: self.model.exists(path))
        self._agree("listdir", lambda tx: tx.listdir(path), lambda: self.model.listdir(path))
        self._agree("glob", lambda tx: tx.glob(f"**/{name}"), lambda: self.model.glob(name))

    @is_open
    @rule(target=versions, path=paths)
    def read_version(self, path: str) -> str | None:
        return self._version(path)

    def _version(self, path: str) -> str | None:
        """The same version always and only for the same file, through moves, commits, crashes and undos."""
        assert self.tx is not None
        try:
            serial = self.model.serial(path)
        except (OSError, TxFilesError) as error:
            with pytest.raises(type(error)):
                self.tx.version(path)
            return None
        version = self.tx.version(path)
        if serial is not None and version is not None:
            assert self.version_of.setdefault(serial, version) == version
        assert self.serial_of.setdefault(version, serial) == serial
        return version

    @rule()
    def snapshot(self) -> None:
        """Readers see the last commit, whatever is staged."""
        with FileStore(self.root, timeout=0).snapshot() as snap:
            files = [path for path, node in self.disk.items() if node.kind != "dir"]
            assert snap.glob("**") == sorted(files)
            for path in files:
                assert self.disk[path].kind != "file" or snap.read(path) == self.disk[path].content

    # -- other programs -----------------------------------------------------------------------------------------

    def _plant(self, path: str, node: Node, make: Callable[[Path], object]) -> None:
        above = parent(path)
        if path not in self.disk and (not above or (above in self.disk and self.disk[above].kind == "dir")):
            make(self.root / path)
            self.disk[path] = node

    @is_idle
    @rule(path=plain, content=contents, mode=modes)
    def plant_file(self, path: str, content: bytes, mode: int) -> None:
        def make(where: Path) -> None:
            where.write_bytes(content)
            where.chmod(mode)

        self._plant(path, file(content, mode), make)

    @is_idle
    @rule(path=plain, mode=st.sampled_from([0o700, 0o750, 0o755]))
    def plant_directory(self, path: str, mode: int) -> None:
        def make(where: Path) -> None:
            where.mkdir()
            where.chmod(mode)

        self._plant(path, Node("dir", mode), make)

    @is_idle
    @rule(
        path=plain,
        to=st.one_of(plain, st.sampled_from([".", "..", "../a", "../../outside", "OUTSIDE", "ROOT/d", "ROOT"])),
    )
    def plant_link(self, path: str, to: str) -> None:
        text = to.replace("ROOT", str(self.root)).replace("OUTSIDE", str(self.outside))
        self._plant(path, Node("link", text=text), lambda where: where.symlink_to(text))

    @is_idle
    @rule(path=plain, other=plain)
    def plant_hard_link(self, path: str, other: str) -> None:
        if other in self.disk and self.disk[other].kind == "file":
            self._plant(path, self.disk[other], lambda where: where.hardlink_to(self.root / other))

    @is_idle
    @rule(path=plain)
    def plant_fifo(self, path: str) -> None:
        self._plant(path, Node("special"), os.mkfifo)


def read_through(tx: FileTransaction, path: str) -> object:
    with tx.open(path, "rb") as stream:
        return stream.read()


def look(root: Path) -> dict[str, object]:
    """What is on disk, as `shown` gives it."""
    found: dict[str, object] = {}
    for folder, directories, files in os.walk(root):
        if folder == str(root) and ".txfiles" in directories:
            directories.remove(".txfiles")
        for name in (*directories, *files):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                node = Node("link", text=os.readlink(path))
            elif stat.S_ISDIR(mode):
                node = Node("dir", stat.S_IMODE(mode))
            elif stat.S_ISREG(mode):
                node = Node("file", stat.S_IMODE(mode), Path(path).read_bytes())
            else:
                node = Node("special")
            found[os.path.relpath(path, root)] = node
    return found


def shown(tree: Tree) -> dict[str, object]:
    return {path: replace(node, serial=0) for path, node in tree.items()}


def test_the_api_agrees_with_a_dict() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=5000 if DEEP else 150,
            stateful_step_count=80 if DEEP else 50,
            suppress_health_check=list(HealthCheck),
        ),
    )
