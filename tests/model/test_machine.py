"""A state machine: the whole API of a transaction, crashes and other programs included, against a tree in a dict."""

from __future__ import annotations

import gc
import io
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.model.disk import Dying, Killed, look
from tests.model.reference import Node, Reference, Tree, file, parent
from tests.support import DEEP, debris, scratch
from txfiles import FileStore, FileTransaction, recover, status
from txfiles._disk import system
from txfiles.errors import TxFilesError

UMASK = 0o022
Durability = Literal["full", "process"]


class Undone(Exception):
    """Leaves a block."""


# -- what the rules are given ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spelled:
    """A path, or the `number`-th of those that are there, in some spelling."""

    path: str
    number: int | None
    spelling: str

    def among(self, tree: Tree) -> str:
        there = sorted(tree)
        path = self.path if self.number is None or not there else there[self.number % len(there)]
        return self.spelling.format(path)


@dataclass(frozen=True)
class Planted:
    """What another program puts at a path where nothing is."""

    path: str
    what: str
    content: bytes
    mode: int
    to: str


ordinary = st.sampled_from(["a", "b", "d", "e", "d/a", "d/b", "d/e", "e/a", "e/d", "d/e/a", "e/d/b", "a/b", "b/e/a"])
spellings = st.sampled_from(["{}"] * 25 + ["./{}", "b/../{}", "{}/", "../root/{}", "/{}", "."])
paths = st.builds(Spelled, ordinary, st.one_of(st.none(), st.integers(0, 30)), spellings)
contents = st.binary(max_size=6)
link_texts = st.one_of(
    ordinary,
    ordinary,
    st.sampled_from([".", "..", "../a", "../../outside", "{outside}", "{root}/d", "{root}", "{root}x"]),
)
whats = st.sampled_from(["file"] * 4 + ["dir"] * 4 + ["link", "link", "hard link", "fifo"])
modes = st.sampled_from([0o700, 0o750, 0o755, 0o4755])
other_programs = st.lists(st.builds(Planted, ordinary, whats, contents, modes, link_texts), max_size=3)
durabilities: st.SearchStrategy[Durability] = st.sampled_from(["full", "process"])
calls = st.one_of(st.integers(0, 35), st.integers(0, 130))  # a commit here takes 20 to 150


def in_pieces(content: bytes) -> Iterator[bytes]:
    return (content[start : start + 2] for start in range(0, len(content), 2))


class Machine(RuleBasedStateMachine):
    """A transaction is open all the time; the rules that end one begin the next."""

    versions = Bundle("versions")

    def __init__(self) -> None:
        super().__init__()
        self.base = scratch.directory(scratch.MEMORY)
        self.root = self.base.resolve() / "root"
        self.root.mkdir()
        self.outside = self.base / "outside"
        self.outside.write_bytes(b"not yours")
        self.umask = os.umask(UMASK)
        self.fs: Any = Dying()
        self.disk: Tree = {}
        self.model = Reference({}, str(self.root), UMASK)
        self.tx: FileTransaction | None = None
        self.savepoints: list[tuple[Any, Tree]] = []
        self.version_of: dict[int, str] = {}
        self.serial_of: dict[str | None, int | None] = {None: None}
        self.end = (0, 0)

    def teardown(self) -> None:
        try:
            if self.tx is not None:
                self._die_committing(*self.end)
                self._take().rollback()
            assert look(self.root) == shown(self.disk)
            assert debris.problems(self.root) == []
            assert self.outside.read_bytes() == b"not yours"
        finally:
            os.umask(self.umask)
            shutil.rmtree(self.base)

    @invariant()
    def nothing_shows_before_the_commit(self) -> None:
        assert look(self.root) == shown(self.disk)

    # -- begin and end ------------------------------------------------------------------------------------------

    @initialize(others=other_programs, more=other_programs, durability=durabilities, end=st.tuples(calls, calls))
    def start(self, others: list[Planted], more: list[Planted], durability: Durability, end: tuple[int, int]) -> None:
        self.end = end
        self._begin(others + more, durability)

    @rule(others=other_programs, durability=durabilities)
    def commit(self, others: list[Planted], durability: Durability) -> None:
        self._take().commit()
        self.disk = self.model.committed(self.disk)
        self._begin(others, durability)

    @rule(number=calls, again=calls, others=other_programs, durability=durabilities)
    def die_committing(self, number: int, again: int, others: list[Planted], durability: Durability) -> None:
        self._die_committing(number, again, others, durability)

    def _die_committing(
        self, number: int, again: int, others: Sequence[Planted] = (), durability: Durability = "full"
    ) -> None:
        """A kill somewhere in the commit, one somewhere in the recovery, and a recovery that comes to its end."""
        tx, before, after = self._take(), self.disk, self.model.committed(self.disk)
        committed = self._dies(tx.commit, number)
        self._dies(lambda: recover(self.root, timeout=0), again)
        recover(self.root, timeout=0)
        found = look(self.root)
        assert found in ([shown(after)] if committed else [shown(before), shown(after)])
        self.disk = after if found == shown(after) else before
        self._begin(others, durability)

    @rule(number=calls, durability=durabilities)
    def commit_on_a_full_disk(self, number: int, durability: Durability) -> None:
        """One call fails: what the error says is so, at once and after a recovery."""
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
        self._begin([], durability)

    @rule(how=st.sampled_from(["roll back", "drop", "die", "die beginning"]), number=calls, durability=durabilities)
    def give_up(self, how: str, number: int, durability: Durability) -> None:
        if how == "drop" and not self.savepoints:
            with pytest.warns(ResourceWarning, match="dropped while open"):
                self._drop()
        elif how == "die":
            self._dies(self._take().rollback, 0)
        else:
            self._take().rollback()
            if how == "die beginning":
                self._dies(lambda: FileTransaction(self.root, timeout=0).begin().rollback(), number)
        self._begin([], durability)

    def _begin(self, others: Sequence[Planted], durability: Durability) -> None:
        """Other programs have their turn, and then the next transaction."""
        for planted in others:
            self._plant(planted)
        with system.use(self.fs):
            self.tx = FileStore(self.root, durability=durability, timeout=0).transaction().begin()
        assert status(self.root).clean
        self.model = Reference(self.disk, str(self.root), UMASK)

    def _take(self) -> FileTransaction:
        """The transaction, to be ended."""
        while self.savepoints:
            self._leave_savepoint(undo=False)
        tx, self.tx = self.tx, None
        assert tx is not None
        return tx

    def _drop(self) -> None:
        self.tx = None
        gc.collect()  # tracebacks refer to it in a circle

    def _dies(self, work: Callable[[], object], number: int) -> bool:
        """Whether the work came to its end before the process came to its."""
        self.fs.die_at = self.fs.calls + 1 + number
        try:
            with system.use(self.fs):
                work()
        except Killed:
            return False
        finally:
            self.fs.die_at = None
        return True

    def _plant(self, planted: Planted) -> None:
        path, above = planted.path, parent(planted.path)
        where = self.root / path
        if path in self.disk or (above and (above not in self.disk or self.disk[above].kind != "dir")):
            return
        if planted.what == "file":
            where.write_bytes(planted.content)
            where.chmod(planted.mode)
            self.disk[path] = file(planted.content, planted.mode)
        elif planted.what == "dir":
            where.mkdir()
            where.chmod(planted.mode)
            self.disk[path] = Node("dir", planted.mode)
        elif planted.what == "link":
            text = planted.to.format(root=self.root, outside=self.outside)
            where.symlink_to(text)
            self.disk[path] = Node("link", text=text)
        elif planted.what == "fifo":
            os.mkfifo(where)
            self.disk[path] = Node("special")
        elif planted.to in self.disk and self.disk[planted.to].kind == "file":
            where.hardlink_to(self.root / planted.to)
            self.disk[path] = self.disk[planted.to]

    # -- savepoints ---------------------------------------------------------------------------------------------

    @rule()
    def enter_savepoint(self) -> None:
        assert self.tx is not None
        savepoint = self.tx.savepoint()
        savepoint.__enter__()
        self.savepoints.append((savepoint, dict(self.model.tree)))

    @precondition(lambda self: self.savepoints)
    @rule(undo=st.booleans())
    def leave_savepoint(self, undo: bool) -> None:
        self._leave_savepoint(undo)

    def _leave_savepoint(self, undo: bool) -> None:
        savepoint, before = self.savepoints.pop()
        if undo:
            assert not savepoint.__exit__(Undone, Undone(), None)
            self.model.tree = before
        else:
            savepoint.__exit__(None, None, None)

    # -- calls --------------------------------------------------------------------------------------------------

    def _agree(self, ours: Callable[[FileTransaction], object], theirs: Callable[[], object]) -> None:
        """Both give the same, or both raise the same and change nothing."""
        assert self.tx is not None
        before = dict(self.model.tree)
        try:
            expected = theirs()
        except (OSError, TxFilesError, Undone) as error:
            self.model.tree = before
            self._refused(ours, error)
        else:
            assert ours(self.tx) == expected

    def _refused(self, ours: Callable[[FileTransaction], object], expected: Exception) -> None:
        assert self.tx is not None
        with pytest.raises(type(expected)) as caught:
            ours(self.tx)
        error = caught.value
        assert type(error) is type(expected)
        if isinstance(error, TxFilesError):
            assert error.outcome == "before"
            assert error.path is not None
        elif isinstance(error, OSError):
            assert error.filename is not None
            assert error.errno == getattr(expected, "errno", None) or type(expected) is not OSError

    @rule(to=paths, content=contents, form=st.sampled_from([bytes, bytearray, memoryview, io.BytesIO, in_pieces]))
    def write(self, to: Spelled, content: bytes, form: Callable[[bytes], Any]) -> None:
        path = to.among(self.model.tree)
        self._agree(lambda tx: tx.write(path, form(content)), lambda: self.model.write(path, content))

    @rule(to=paths, content=contents, version=st.one_of(versions, st.just("current")))
    def write_if_version(self, to: Spelled, content: bytes, version: str | None) -> None:
        path = to.among(self.model.tree)
        expected = self._version(path) if version == "current" else version
        self._agree(
            lambda tx: tx.write(path, content, if_version=expected),
            lambda: self.model.write(path, content, expected=self.serial_of[expected]),
        )

    @rule(to=paths, value=st.dictionaries(st.sampled_from("kl"), st.integers(-9, 9), min_size=1))
    def write_json(self, to: Spelled, value: dict[str, int]) -> None:
        path, content = to.among(self.model.tree), json.dumps(value, indent=2).encode() + b"\n"
        self._agree(lambda tx: tx.write_json(path, value), lambda: self.model.write(path, content))

    @rule(to=paths, mode=st.sampled_from(["w", "wb", "a", "ab", "x", "xb"]), content=contents, fails=st.booleans())
    def open(self, to: Spelled, mode: str, content: bytes, fails: bool) -> None:
        path, text = to.among(self.model.tree), content.decode("latin-1")

        def ours(tx: FileTransaction) -> None:
            with tx.open(path, mode) as stream:
                stream.write(text.encode() if mode.endswith("b") else text)
                if fails:
                    raise Undone

        def theirs() -> None:
            {"w": self.model.write, "a": self.model.append, "x": self.model.create}[mode[0]](path, text.encode())
            if fails:
                raise Undone

        self._agree(ours, theirs)

    @rule(of=paths, missing_ok=st.booleans())
    def delete(self, of: Spelled, missing_ok: bool) -> None:
        path = of.among(self.model.tree)
        self._agree(
            lambda tx: tx.delete(path, missing_ok=missing_ok),
            lambda: self.model.delete(path, missing_ok=missing_ok),
        )

    @rule(of=paths)
    def delete_tree(self, of: Spelled) -> None:
        path = of.among(self.model.tree)
        self._agree(lambda tx: tx.delete_tree(path), lambda: self.model.delete_tree(path))

    @rule(of=paths, to=paths)
    def move(self, of: Spelled, to: Spelled) -> None:
        one, other = of.among(self.model.tree), to.among(self.model.tree)
        self._agree(lambda tx: tx.move(one, other), lambda: self.model.move(one, other))

    @rule(of=paths, to=paths)
    def copy(self, of: Spelled, to: Spelled) -> None:
        one, other = of.among(self.model.tree), to.among(self.model.tree)
        self._agree(lambda tx: tx.copy(one, other), lambda: self.model.copy(one, other))

    @rule(to=paths)
    def mkdir(self, to: Spelled) -> None:
        path = to.among(self.model.tree)
        self._agree(lambda tx: tx.mkdir(path), lambda: self.model.mkdir(path))

    @rule(of=paths, name=st.sampled_from(["*", "a", "[!a]", "?"]))
    def read(self, of: Spelled, name: str) -> None:
        path = of.among(self.model.tree)
        self._agree(lambda tx: tx.read(path), lambda: self.model.read(path))
        self._agree(lambda tx: read_through(tx, path), lambda: self.model.read(path))
        self._agree(lambda tx: tx.exists(path), lambda: self.model.exists(path))
        self._agree(lambda tx: tx.listdir(path), lambda: self.model.listdir(path))
        self._agree(lambda tx: tx.glob(f"**/{name}"), lambda: self.model.glob(name))

    @rule(target=versions, of=paths)
    def read_version(self, of: Spelled) -> str | None:
        return self._version(of.among(self.model.tree))

    def _version(self, path: str) -> str | None:
        """The same version always and only for the same file, through moves, commits, crashes and undos."""
        assert self.tx is not None
        try:
            serial = self.model.serial(path)
        except (OSError, TxFilesError) as error:
            self._refused(lambda tx: tx.version(path), error)
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
            assert snap.glob("**") == sorted(path for path, node in self.disk.items() if node.kind != "dir")
            for path, node in self.disk.items():
                if node.kind == "file":
                    assert snap.read(path) == node.content


def read_through(tx: FileTransaction, path: str) -> object:
    with tx.open(path, "rb") as stream:
        return stream.read()


def shown(tree: Tree) -> Tree:
    return {path: replace(node, serial=0) for path, node in tree.items()}


def test_the_api_agrees_with_a_dict(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "txfiles")  # what is recovered is no news here
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=5000 if DEEP else 30,
            stateful_step_count=80 if DEEP else 50,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
