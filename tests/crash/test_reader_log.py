"""A reader between any two calls of a writer that commits through the log, of one that dies, and of the recovery then.

As in `test_reader_explored`: the calls are recorded once, and played between any two calls of a reader that may write
nothing. What it has read is a state that was the committed one meanwhile; beside a dead writer, the one to which
recovery goes on.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import pytest

from tests.crash.steps import at_call
from tests.crash.steps_of_log import (
    SCENARIOS,
    Change,
    both,
    checkpointed,
    committed,
    delete,
    die,
    fail,
    failing,
    recover,
    small,
)
from tests.crash.steps_of_log import write as writing
from tests.crash.test_reader_explored import FILES, LOOKS, UNDONE, Call, Explored, Read, one_by_one, pinned
from tests.crash.test_reader_simulated import look
from tests.support import DEEP
from txfiles import FileStore, FileTransaction
from txfiles._commit.home import Home
from txfiles._commit.log_look import read_log, read_tail
from txfiles._commit.logfile import LogFile
from txfiles._disk import system
from txfiles._format import log
from txfiles._reading import reader, records
from txfiles._reading.records import LogLook, Records
from txfiles.testing import Crash, SimFS, explore
from txfiles.testing._faults import NOT_SYSTEM_CALLS, FaultyFS
from txfiles.testing._simtree import Options

CHANGES = frozenset(
    (
        *("create", "write", "write_at", "allocate", "mkdir", "link", "rename", "rename_new", "exchange", "unlink"),
        *("hold", "let_go", "die"),
    )
)
FORBIDDEN = CHANGES | {
    "sync_dir",
    "sync_file",
    "sync_data",
    "open_write",
    "write_in_place",
    "chmod",
    "chown",
    "set_mtime",
    "set_xattr",
    "remove_xattr",
    "truncate",
    "symlink",
}
Step = Callable[[SimFS], None]


class Recorder:
    """The calls of one process after the other that succeed and do something, in order."""

    def __init__(self, sim: SimFS) -> None:
        self.sim = sim
        self.calls: list[Call] = []
        self._is_dead = False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.sim, name)
        if name in NOT_SYSTEM_CALLS or not callable(call) or name == "lock_factory":
            return call

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._is_dead:
                raise Crash
            try:
                result = call(*args, **kwargs)
            except Crash:
                self._is_dead = True
                raise
            if name not in LOOKS:
                self.calls.append((name, args, result, bool(kwargs)))
            return result

        return recorded

    def run(self, step: Step) -> list[Call]:
        """Those of one process, up to its end or death."""
        self.calls, self._is_dead = [], False
        with system.use(self), suppress(Crash):  # type: ignore[arg-type]
            step(self.sim)
        if self._is_dead:
            self.calls.append(("die", tuple(self.sim._fds), None, False))
        vars(self.sim).update(vars(self.sim.after_kill()))
        return self.calls


class Recording(Explored):
    """What processes did to a root with a log, one after the other."""

    def __init__(self, program: list[str]) -> None:
        super().__init__()
        self.scene = a_root()
        self.pieces, self.states = [[]], [1, 1]
        self.idle = {0, 1}  # places at which nobody has the lock
        self._applying = False
        number, recorder = 1, Recorder(self.scene.after_kill())
        for kind in program:
            number += kind.startswith(("commit", "full", "dies"))
            for call in recorder.run(step(kind, number)):
                self._add(call, commits=kind != "remove-log")
            self.idle.add(len(self.pieces))
        assert self.states[-1] == number

    def _add(self, call: Call, *, commits: bool) -> None:
        name, args = call[:2]
        if name not in CHANGES:
            self.pieces[-1].append(call)
            return
        self.pieces.append([call])
        with small():
            tail = log.decode_tail(bytes(args[1])) if name == "write_at" else None
        into = args[3] if name == "rename" else b""
        done = False
        if name == "die" or into == b"HEAD" or (tail is not None and tail.phase in ("applied", "syncing")):
            done, self._applying = self._applying, False
        elif tail is not None:
            self._applying = tail.phase == "applying"
        elif into.endswith(b".committed"):
            self._applying = True
        self.states.append(self.states[-1] + (done and commits))

    def play(self, sim: SimFS, fds: dict[int, int], call: Call) -> None:
        if call[0] == "die":
            for fd in call[1]:
                sim.close(fds[fd])
        else:
            super().play(sim, fds, call)

    def allow(self, name: str) -> None:
        if name in FORBIDDEN:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    @contextmanager
    def beside(self, place: Callable[[], int]) -> Iterator[None]:
        with small(), mock.patch.object(reader, "is_locked", side_effect=lambda *_: place() not in self.idle):
            yield


def change(number: int, before: int) -> Change:
    contents = {name.replace("/", "_"): f"{name} {number}" for name in FILES}
    return both(writing(**contents, **{f"mark_{number}": str(number)}), delete(f"mark/{before}"))


def a_root() -> SimFS:
    scene = SimFS(Options(reuse_inodes=False))  # the records name inodes, and a reader that keeps files open has some
    with system.use(scene):
        with FileTransaction("/sim") as tx:
            for name in FILES:
                tx.write(name, f"{name} 0")
            tx.write("mark/0", "0")
        committed(change(1, 0))(scene)
    return scene


def full(number: int, plan: Callable[[int, str], None] | None = None) -> Step:
    """With `plan` from where the commit begins."""

    def run(fs: SimFS) -> None:
        with small(), FileTransaction("/sim") as tx:
            for name in FILES:
                tx.write(name, f"{name} {number}")
            tx.write(f"mark/{number}", str(number))
            tx.delete(f"mark/{number - 1}")
            fs.plan = plan
            tx.commit()

    return run


def step(kind: str, number: int) -> Step:
    """`number` is that of the state after it."""
    word, *rest = kind.split()
    if word == "commit":
        return committed(change(number, number - 1))
    if word == "dies":  # before a call of its commit
        return committed(change(number, number - 1), at_call(rest[0], int(rest[1]), die))
    if word == "full-dies":
        return full(number, at_call(rest[0], int(rest[1]), die))
    if word == "undone":
        return failing(change(UNDONE, number), "exchange", int(rest[0]))
    if word == "undo-dies":
        return undo_dies(change(UNDONE, number), rest[0], int(rest[1]))
    if word == "checkpoint-dies":
        return dying(checkpointed, rest[0], int(rest[1]))
    if word == "recovery-dies":
        return dying(recovered, rest[0], int(rest[1]))
    steps: dict[str, Step] = {"checkpoint": checkpointed, "recover": recovered, "remove-log": remove_log}
    return steps.get(word) or full(number)


def recovered(fs: SimFS) -> None:
    recover(fs)


def remove_log(_: SimFS) -> None:
    with small():
        FileStore("/sim").remove_log()


def undo_dies(what: Change, name: str, nth: int) -> Step:
    """The third exchange fails, and the process dies in the undo."""

    def run(fs: SimFS) -> None:
        def fail_and_die_later() -> None:
            fs.plan = at_call(name, nth, die)
            fail()

        committed(what, at_call("exchange", 3, fail_and_die_later))(fs)

    return run


def dying(act: Step, name: str, nth: int) -> Step:
    def run(fs: SimFS) -> None:
        fs.plan = at_call(name, nth, die)
        try:
            act(fs)
        finally:
            fs.plan = None

    return run


PROGRAMS = {
    "twice": ["commit", "commit"],
    "undone": ["undone 3", "commit", "undone 1", "commit"],
    "checkpoint": ["commit", "checkpoint", "commit", "commit", "commit", "commit", "commit"],
    "full between": ["commit", "full", "commit", "checkpoint"],
    "there and back": ["remove-log", "commit", "remove-log", "full"],
    "dies unsynced": ["commit", "dies sync_data 1", "recover", "commit"],
    "dies at once": ["dies exchange 1", "recover", "commit"],
    "dies midway": ["dies exchange 3", "recovery-dies exchange 1", "recover", "commit"],
    "full dies": ["full-dies rename 4", "recovery-dies rename 2", "recover", "commit"],
    "full dies later": ["full-dies rename 5", "recover", "full"],
    "dies when done": ["dies unlink 2", "recover", "commit"],
    "undo dies": ["commit", "undo-dies exchange 2", "recovery-dies rename 2", "recover", "commit"],
    "undo dies later": ["undo-dies sync_data 1", "recover", "commit"],
    "checkpoint dies": ["commit", "checkpoint-dies sync_file 2", "recovery-dies rename 1", "recover", "commit"],
    "restart dies": ["commit", "checkpoint-dies sync_data 1", "recover", "commit"],
}


@pytest.fixture(scope="module", params=PROGRAMS)
def recording(request: pytest.FixtureRequest) -> Recording:
    return Recording(PROGRAMS[request.param])


@pytest.mark.parametrize("read", [pinned, one_by_one])
def test_every_place_between_two_calls(recording: Recording, read: Read) -> None:
    """In a default run only some of them."""
    states = set(recording.states)
    schedules = recording.schedules(read, 1) if DEEP else recording.sample(read, 1, 60 * len(states))
    assert {recording.read(read, *chosen)[0] for chosen in schedules} == states


@pytest.mark.parametrize("read", [pinned, one_by_one])
def test_a_writer_that_goes_on_twice_meanwhile(recording: Recording, read: Read) -> None:
    for start, schedule in recording.sample(read, 2, 100_000 if DEEP else 100):
        recording.read(read, start, schedule)


@pytest.mark.parametrize(("program", "places"), [("dies midway", range(1, 9)), ("full dies", range(20, 25))])
def test_who_recovers_comes_between_two_questions_about_a_path(program: str, places: range) -> None:
    """Or goes on to another commit. That is no conflict."""
    recording = Recording(PROGRAMS[program])
    dead = 1 + [piece[0][0] for piece in recording.pieces].index("die")
    for call in range(1, recording.length(pinned, dead) + 1):
        for further in places:
            recording.read(pinned, dead, {call: dead + further})


# -- what crashes leave ---------------------------------------------------------------------------------------------


def forbid_changes(_: int, name: str) -> None:
    if name in FORBIDDEN:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def read_and_recover(fs: SimFS) -> None:
    """Takes the place of recovery: a reader that may not write, one that may and recovers, and then recovery itself."""
    with small():
        version = fs.disk.version
        found = look(FaultyFS(fs, forbid_changes))
        assert fs.disk.version == version, "a reader without the right to write changed something"
        assert look(fs) == found, "a reader that may write saw something else than one that may not"
        unseen = has_unseen_record(fs)
        recover(fs)
        assert unseen or look(fs) == found, "recovery made something else of it than a reader saw"


def has_unseen_record(fs: SimFS) -> bool:
    """Of a commit whose process died between its record and its first change: so nobody has seen it until recovery."""
    home = Home.find(fs, b"/sim")
    if home is None:
        return False
    with home:
        tail, found = read_tail(home)[0], read_log(home)
        return tail is not None and found is not None and (tail.phase, found.phase) == ("applied", "applying")


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_read_after_a_crash_is_what_recovery_makes_of_it(name: str) -> None:
    """After a kill, and after a power loss: out of the records, where the files are not whole."""
    scenario = dataclasses.replace(SCENARIOS[name], recover=read_and_recover)
    assert explore(scenario, (32,) if DEEP else (4,)).states > 20


# -- each check is needed -------------------------------------------------------------------------------------------


def _one_look() -> Callable[[Records], LogLook]:
    look = Records.look
    seen: dict[int, LogLook] = {}

    def again(self: Records) -> LogLook:
        return seen.setdefault(id(self), look(self))

    return again


def _marks_late(self: LogFile, phase: log.Phase) -> None:
    hold = self._home.hold
    with mock.patch.object(self._home, "hold"):
        mark(self, phase)
    if phase != "applied":
        hold(self._tail_fd)


mark = LogFile.mark
WITHOUT: dict[str, tuple[object, str, object, str]] = {
    "the writer shows that it lives": (Home, "hold", lambda self, fd: None, "twice"),
    "it does so before it begins": (LogFile, "mark", _marks_late, "twice"),
    "the tail is compared": (Records, "look", _one_look(), "twice"),
    "a commit under way is not at rest": (LogLook, "is_quiet", property(lambda self: True), "twice"),
    "the state before is laid over": (records, "lay_record_before", lambda home, journal, entries: None, "twice"),
    "the state after is, beside a dead writer": (
        *(records, "lay_record_after", lambda home, journal, entries: None, "dies midway"),
    ),
    "a recovery marks what nobody has seen": (LogFile, "mark_begun", lambda self: None, "dies unsynced"),
    "records are followed": (Records, "changed", lambda self, since, now: set(), "checkpoint"),
}


@pytest.mark.parametrize("check", WITHOUT)
def test_each_check_is_missed(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a reader is found that sees a mix, or a state too early."""
    where, name, otherwise, program = WITHOUT[check]
    monkeypatch.setattr(where, name, otherwise)
    for seed, read in itertools.product(range(10), (one_by_one, pinned)):
        try:
            recording = Recording(PROGRAMS[program])
            for start, schedule in recording.sample(read, 1 + seed % 2, 200, seed):
                recording.read(read, start, schedule)
        except (AssertionError, FileNotFoundError):
            return
    pytest.fail(f"nothing was found where it is not so that {check}")
