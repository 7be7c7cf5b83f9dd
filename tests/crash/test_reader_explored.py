"""A reader between any two calls of a writer, on the simulated file system: every place, and every piece of the writer.

The calls of a writer are recorded once. Then a reader reads, and before one of its calls, or before two, the writer
goes on by some of the calls that change something. What it has read is a state that was the committed one meanwhile.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from tests.support import DEEP
from txfiles import FileStore, FileTransaction
from txfiles._commit.home import Home
from txfiles._disk import system
from txfiles._reading import reader
from txfiles._reading.lookout import Look, Lookout
from txfiles.errors import CommitError, SnapshotExpiredError
from txfiles.snapshot import _Files
from txfiles.testing import SimFS
from txfiles.testing._faults import NOT_SYSTEM_CALLS, FaultyFS
from txfiles.testing._simlock import SimLock

CHANGES = frozenset(
    ("create", "write", "mkdir", "rmdir", "link", "rename", "unlink", "hold", "let_go", "take_lock", "leave_lock")
)
FILES = ("a", "b", "d/c")
LOOKS = frozenset(
    (
        *("stat", "fstat", "listdir", "read", "read_at", "readlink", "xattrs", "mount_id", "project", "confined"),
        *("start_writeback", "sync_file", "sync_data", "sync_dir", "sync_file_system", "is_held", "session", "fileno"),
    )
)
UNDONE = 1000  # and more: generations that never were
Call = tuple[str, tuple[Any, ...], Any, bool]
Read = Callable[[FileStore], int]
Schedule = dict[int, int]  # to which place the writer goes on before a call of the reader


class Recorder:
    """The calls of `inner` that succeed and do something, in order, with what they returned."""

    def __init__(self, inner: SimFS) -> None:
        self._inner = inner
        self.calls: list[Call] = []
        self.fail_at = 0  # this rename
        self.renames = 0

    def __getattr__(self, name: str) -> Any:
        if name == "lock_factory":
            return lambda *args: RecordedLock(self, *args)
        call = getattr(self._inner, name)
        if name in NOT_SYSTEM_CALLS or not callable(call):
            return call

        def recorded(*args: Any, **kwargs: Any) -> Any:
            self.renames += name == "rename"
            if name == "rename" and self.renames == self.fail_at:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            result = call(*args, **kwargs)
            if name not in LOOKS:
                self.calls.append((name, args, result, bool(kwargs)))
            return result

        return recorded


class RecordedLock(SimLock):
    """To a reader beside the writer the lock is taken, too: it waits, and does not recover."""

    def __init__(self, recorder: Recorder, *args: Any) -> None:
        super().__init__(*args)
        self._recorder = recorder

    def acquire(self, timeout: float | None, owner: object) -> None:
        super().acquire(timeout, owner)
        self._recorder.calls.append(("take_lock", (self._ino, self), None, False))

    def release(self) -> None:
        if self.held:
            self._recorder.calls.append(("leave_lock", (self._ino,), None, False))
        super().release()


class Explored:
    """What was recorded of writers. `pieces` are their calls, each from one that changes something up to the next.

    `states[n]` is the generation after n pieces.
    """

    scene: SimFS
    pieces: list[list[Call]]
    states: list[int]

    def __init__(self) -> None:
        self._lengths: dict[tuple[Read, int], int] = {}

    @property
    def places(self) -> int:
        return len(self.pieces)

    def read(self, read: Read, start: int, schedule: Schedule) -> tuple[int, int]:
        """Let a reader read; what it found, and how many calls that took it."""
        sim = self.scene.after_kill()
        fds: dict[int, int] = {}
        at = 0

        def go_on(place: int) -> None:
            nonlocal at
            while at < place:
                for call in self.pieces[at]:
                    self.play(sim, fds, call)
                at += 1

        calls = 0

        def before(_: int, name: str) -> None:
            nonlocal calls
            calls += 1
            go_on(schedule.get(calls, 0))
            self.allow(name)

        go_on(start)
        fs = FaultyFS(sim, before)
        with system.use(fs), self.beside(lambda: at):  # type: ignore[arg-type]
            found = read(FileStore("/sim", timeout=0))
        allowed = self.states[start : at + 1]
        assert found in allowed, f"{found} is none of {sorted(set(allowed))}: {start=} {schedule=}"
        return found, calls

    def play(self, sim: SimFS, fds: dict[int, int], call: Call) -> None:
        """One call of the writer; `fds` are its descriptors, as recorded and as played."""
        name, args, result, follow = call
        if name == "take_lock":
            sim.locks[args[0]] = args[1]
            return
        if name == "leave_lock":
            del sim.locks[args[0]]
            return
        mine = [fds.get(arg, arg) if type(arg) is int else arg for arg in args]
        made = getattr(sim, name)(*mine, **({"follow": True} if follow else {}))
        if type(result) is int and name not in ("write", "write_at", "seek"):
            fds[result] = made

    def allow(self, name: str) -> None:
        """Raise `OSError` for a call that the reader may not make."""

    def beside(self, place: Callable[[], int]) -> AbstractContextManager[object]:
        """What holds while a reader reads, where the writer is at that place."""
        return nullcontext()

    def length(self, read: Read, start: int) -> int:
        """How many calls a reader makes where the writer stands still."""
        if (read, start) not in self._lengths:
            self._lengths[read, start] = self.read(read, start, {})[1]
        return self._lengths[read, start]

    def schedules(self, read: Read, switches: int) -> Iterator[tuple[int, Schedule]]:
        """Every start of the reader, every place in it, and every place to which the writer goes on there."""
        for start in range(self.places + 1):
            calls = self.length(read, start)
            ways = itertools.combinations(range(1, calls + 1), switches)
            for places in ways:
                for targets in itertools.combinations(range(start + 1, self.places + 1), switches):
                    yield start, dict(zip(places, targets, strict=True))

    def sample(self, read: Read, switches: int, count: int, seed: int = 0) -> Iterator[tuple[int, Schedule]]:
        draw = random.Random(seed)
        for _ in range(count):
            start = draw.randint(0, self.places)
            calls = self.length(read, start)
            places = sorted(draw.sample(range(1, calls + 1), switches))
            targets = sorted(draw.choices(range(start, self.places + 1), k=switches))
            yield start, dict(zip(places, targets, strict=True))


class Recording(Explored):
    """What a program of transactions did to a root."""

    def __init__(self, program: list[str]) -> None:
        super().__init__()
        self.scene = SimFS()
        with system.use(self.scene):
            self._write("commit", 0)
            self._write("commit", 1)
        sim = self.scene.after_kill()
        recorder = Recorder(sim)
        number, ends = 1, []
        with system.use(recorder):  # type: ignore[arg-type]
            for kind in program:
                recorder.renames, recorder.fail_at = 0, 2 + int(kind[-1]) if "undone" in kind else 0
                if recorder.fail_at:
                    with pytest.raises(CommitError):
                        self._write(kind, UNDONE)
                else:
                    number += 1
                    self._write(kind, number)
                ends.append(number)
        self.pieces = []
        self.states = [1]
        for call in recorder.calls:
            if call[0] in CHANGES:
                settles = call[0] == "rename" and call[1][3] == b"HEAD"
                self.states.append(self.states[-1] + settles)
                self.pieces.append([])
            if self.pieces:
                self.pieces[-1].append(call)
            else:
                self.pieces = [[call]]
                self.states.append(1)
        assert self.states[-1] == number

    @staticmethod
    def _write(kind: str, generation: int) -> None:
        with FileTransaction("/sim") as tx:
            if "move" in kind:
                tx.move("a", "spare")
                tx.move("b", "a")
                tx.move("spare", "b")
            for name in FILES:
                tx.write(name, f"{name} {generation}")
            for old in tx.glob("mark/*"):
                tx.delete(old)
            tx.write(f"mark/{generation}", str(generation))
            if "tree" in kind:
                if tx.exists("x"):
                    tx.delete_tree("x")
                else:
                    tx.write(f"x/deep/{generation}", str(generation))


def generation(contents: list[bytes]) -> int:
    found = {content.split()[1] for content in contents}
    assert len(found) == 1, f"a mix: {contents}"
    return int(found.pop())


def pinned(store: FileStore) -> int:
    with store.snapshot(*FILES) as snap:
        return generation([snap.read(name) for name in FILES])


def one_by_one(store: FileStore) -> int:
    while True:
        with store.snapshot() as snap:
            try:
                number = generation([snap.read(name) for name in FILES])
                assert snap.listdir("mark") == [str(number)], "a mix of names"
                assert not snap.exists(f"mark/{UNDONE}")
                return number
            except SnapshotExpiredError:
                continue


PROGRAMS = {
    "twice": ["commit", "commit"],
    "undone": ["undone 1", "commit", "undone 3"],
    "moves": ["commit move tree", "undone move 2", "commit move tree"],
}


@pytest.fixture(scope="module", params=PROGRAMS)
def recording(request: pytest.FixtureRequest) -> Recording:
    return Recording(PROGRAMS[request.param])


@pytest.mark.parametrize("read", [pinned, one_by_one])
def test_every_place_between_two_calls(recording: Recording, read: Read) -> None:
    """In a default run only some of them."""
    schedules = recording.schedules(read, 1)
    seen = {recording.read(read, *chosen)[0] for chosen in (schedules if DEEP else recording.sample(read, 1, 600))}
    assert seen == set(recording.states)


@pytest.mark.parametrize("read", [pinned, one_by_one])
def test_a_writer_that_goes_on_twice_meanwhile(recording: Recording, read: Read) -> None:
    for start, schedule in recording.sample(read, 2, 100_000 if DEEP else 400):
        recording.read(read, start, schedule)


class _Same:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


def _blind_to(field: str) -> Callable[[Lookout], Look]:
    look = Lookout.look

    def blind(self: Lookout) -> Look:
        found = look(self)
        return found._replace(head=self.head) if field == "head" else found._replace(live=frozenset())

    return blind


WITHOUT: dict[str, tuple[object, str, object]] = {
    "the writer shows that it lives": (Home, "hold", lambda self, fd: None),
    "HEAD is compared": (Lookout, "look", _blind_to("head")),
    "commits under way are seen": (Lookout, "look", _blind_to("live")),
    "the question is asked again": (_Files, "again", lambda self, view: _Same()),
    "a commit under way goes on": (Look, "is_quiet", property(lambda self: True)),
    "the state before is laid over": (reader, "lay_before", lambda evidence, entries: None),
}


@pytest.mark.parametrize("check", WITHOUT)
def test_each_check_is_missed(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a reader is found that sees a mix, or a state too early."""
    where, name, otherwise = WITHOUT[check]
    monkeypatch.setattr(where, name, otherwise)
    monkeypatch.setattr(reader.Patience, "sleep", lambda self: None)
    for program, read in itertools.product(PROGRAMS.values(), (pinned, one_by_one)):
        recording = Recording(program)
        try:
            for start, schedule in itertools.chain(recording.sample(read, 1, 500), recording.sample(read, 2, 500)):
                recording.read(read, start, schedule)
        except (AssertionError, IsADirectoryError, FileNotFoundError):
            return
    pytest.fail(f"nothing was found where it is not so that {check}")
