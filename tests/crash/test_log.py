"""Every crash of commits through the log, of their undoing, of a checkpoint, and of the recoveries from it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.crash.steps import at_call
from tests.crash.steps_of_log import (
    SCENARIOS,
    Change,
    both,
    check,
    committed,
    delete,
    fail,
    recover,
    small,
    with_record,
    write,
)
from tests.support import DEEP
from txfiles import FileStore
from txfiles._commit.home import Home
from txfiles._commit.logfile import LogFile
from txfiles._disk import system
from txfiles._format import log
from txfiles.errors import (
    CommitError,
    CommitOutcomeUnknownError,
    ConflictError,
    JournalCorruptError,
    RecoveryConflictError,
    RecoveryError,
    SettleError,
)
from txfiles.testing import Crash, SimFS, Tree, explore


@pytest.mark.parametrize("name", SCENARIOS)
def test_before_or_after(name: str) -> None:
    found = explore(SCENARIOS[name], (64, 4) if DEEP else (24,))
    assert found.states > 50


def a_root() -> SimFS:
    fs = SimFS()
    with system.use(fs):
        with_record(fs)
    return fs


def left(fs: SimFS, cap: int) -> list[tuple[str, SimFS]]:
    return [("kill", fs.after_kill()), *fs.surviving_states(cap)]


def brought_to_rest(fs: SimFS) -> Tree:
    with system.use(fs):
        recover(fs)
    check(fs, [tree := fs.tree("/sim")])
    return tree


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize(
    "change", [write(a="third a", b="new b", e="new e"), both(write(a="3"), delete("b", "c"))], ids=["write", "delete"]
)
def test_whatever_call_fails_the_error_says_what_is_on_disk(change: Change, code: int) -> None:
    """After a kill and after any power loss; where the error says that nobody knows, recovery decides."""
    number = tried = 0
    outcomes = set()
    while True:
        number += 1
        fs = a_root()
        before = fs.tree("/sim")
        plan = at_number(number, code)
        outcome: str = "after"
        with system.use(fs):
            try:
                committed(change, plan)(fs)
            except (CommitError, ConflictError, SettleError, CommitOutcomeUnknownError) as error:
                outcome = error.outcome
        if plan.left > 0:
            break
        outcomes.add(outcome)
        whole = a_root()
        with system.use(whole):
            committed(change)(whole)
        after = whole.tree("/sim")
        allowed = {"before": [before], "after": [after], "unknown": [before, after]}[outcome]
        for token, state in left(fs, 3):
            assert brought_to_rest(state) in allowed, f"call {number}, {outcome}, {token}"
            tried += 1
    assert outcomes == {"before", "after", "unknown"}
    assert tried > 100


class at_number:
    """A plan: the call of this number fails."""

    def __init__(self, number: int, code: int) -> None:
        self.left, self.code = number, code

    def __call__(self, _: int, name: str) -> None:
        self.left -= 1
        if not self.left:
            raise OSError(self.code, "injected")


def test_a_recovery_in_which_any_call_fails_can_be_done_again() -> None:
    for setup in (dying_in("exchange", 2), dying_in("sync_data", 1)):
        number = 0
        while True:
            number += 1
            fs = setup()
            plan = at_number(number, errno.EIO)
            states = []
            for token, state in left(fs, 2):
                plan = at_number(number, errno.EIO)
                state.plan = plan
                with system.use(state), suppress(OSError, RecoveryError):
                    recover(state)
                state.plan = None
                states += [(token, plan.left, again) for _, again in left(state, 2)]
            trees = {tuple(sorted(brought_to_rest(again).items())) for token, _, again in states}
            assert len(trees) <= 2
            if all(more > 0 for _, more, _ in states):
                break
        assert number > 10


def dying_in(name: str, number: int) -> Callable[[], SimFS]:
    def make() -> SimFS:
        fs = a_root()

        def die() -> None:
            raise Crash

        with system.use(fs), suppress(Crash):
            committed(write(a="third a", b="new b"), at_call(name, number, die))(fs)
        return fs

    return make


# -- other programs, copies, and a log that cannot be made ----------------------------------------------------------


def test_a_file_that_somebody_replaced_during_the_commit_is_theirs() -> None:
    fs = a_root()
    plan = at_call("exchange", 2, lambda: fs.put("/sim/b", "theirs"))
    with system.use(fs), pytest.raises(ConflictError, match="'b'"):
        committed(write(a="third a", b="new b"), plan)(fs)
    for _, state in left(fs, 1):
        assert brought_to_rest(state)["b"].content == b"theirs"
        assert state.tree("/sim")["a"].content == b"second a"


@pytest.mark.parametrize(("name", "change"), [("e", write(a="third a", e="new e")), ("b", delete("a", "b"))])
def test_a_new_file_of_somebody_and_a_directory_stay(name: str, change: Change) -> None:
    """Where nothing was, and where a file was that is to be deleted."""
    fs = a_root()

    def come() -> None:
        if name == "b":
            fs.remove("/sim/b")
        fs.put(f"/sim/{name}", "theirs")

    call = "exchange" if name == "e" else "rename_new"
    with system.use(fs), pytest.raises(ConflictError, match=repr(name)):
        committed(change, at_call(call, 1, come))(fs)
    found = brought_to_rest(fs.after_kill())
    assert found[name].content == b"theirs"
    assert found["a"].content == b"second a"


def test_what_others_have_changed_since_stays_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Before the power went: that was the last change. After it nobody can tell, and recovery asks."""
    fs = a_root()
    fs.put("/sim/a", "theirs")
    fs.sync_everything()
    state = next(state for _, state in fs.surviving_states(1))
    assert brought_to_rest(state)["a"].content == b"theirs"
    assert "changed by somebody else since the commit, and kept: 'a'" in caplog.text
    state = next(state for _, state in a_root().surviving_states(1))
    state.put("/sim/a", "theirs")
    with system.use(state), pytest.raises(RecoveryConflictError, match="'a'"):
        recover(state)


def test_a_file_whose_directory_others_have_removed_stays_away() -> None:
    fs = a_root()
    with system.use(fs):
        committed(write(dir_one="2", a="3"))(fs)
    fs.remove("/sim/dir/one")
    fs.remove("/sim/dir/deep/two")
    fs.remove("/sim/dir/deep")
    fs.remove("/sim/dir")
    fs.sync_everything()
    found = brought_to_rest(next(state for _, state in fs.surviving_states(1)))
    assert "dir" not in found
    assert found["a"].content == b"3"


def test_a_checkpoint_that_cannot_sync_puts_the_files_there_anew() -> None:
    """And says so where that fails, too: then the log keeps what it has, and commits fail until it is done."""

    def failing(times: int) -> tuple[SimFS, bool]:
        fs, left = a_root(), [times]

        def plan(_: int, name: str) -> None:
            if name == "sync_file" and left[0]:
                left[0] -= 1
                fail()

        fs.plan = plan
        with system.use(fs), small():
            try:
                FileStore("/sim").checkpoint()
            except SettleError:
                with pytest.raises((CommitError, OSError)):
                    committed(write(a="4"))(fs)
                fs.plan = None
                return fs, False
        fs.plan = None
        return fs, True

    for times, done in ((1, True), (2, True), (9, False)):
        fs, was_done = failing(times)
        assert was_done == done
        for _, state in left(fs, 8):
            found = brought_to_rest(state)
            assert (found["a"].content, found["c"].content) == (b"second a", b"new c")


@pytest.mark.parametrize("session", [True, False])
def test_what_is_foreign_after_a_crash_is_for_the_caller_to_decide(session: bool) -> None:
    """In the session of the writer, where its last commit was cut off, and in another one."""
    made = dying_in("exchange", 2)()
    state = made.after_kill() if session else next(state for _, state in made.surviving_states(1))
    state.put("/sim/b", "theirs", mode=0o644)
    before = state.tree("/sim")
    with system.use(state):
        with pytest.raises(RecoveryConflictError, match="'b'") as caught:
            recover(state)
        assert caught.value.paths == ("b",)
        assert state.tree("/sim") == before
        recover(state, "keep-theirs")
    found = brought_to_rest(state)
    assert (found["a"].content, found["b"].content) == (b"third a", b"theirs")


@pytest.mark.parametrize("session", [False, True])
def test_roll_forward_replaces_what_is_foreign(session: bool) -> None:
    made = dying_in("exchange", 2)()
    state = made.after_kill() if session else next(state for _, state in made.surviving_states(1))
    state.put("/sim/b", "theirs", mode=0o644)
    with system.use(state):
        recover(state, "roll-forward")
    assert brought_to_rest(state)["b"].content == b"new b"


def test_roll_back_takes_back_the_last_commit_alone() -> None:
    """In the session of the writer, where it was cut off; elsewhere nobody knows what was before."""
    made = dying_in("exchange", 2)()
    here = made.after_kill()
    elsewhere = next(state for _, state in made.surviving_states(1))
    for state in (here, elsewhere):
        state.put("/sim/b", "theirs", mode=0o644)
    with system.use(here):
        report = recover(here, "roll-back")
    assert [one.paths for one in report.rolled_back] == [["a", "b"]]
    found = brought_to_rest(here)
    assert (found["a"].content, found["b"].content, found["c"].content) == (b"second a", b"theirs", b"new c")
    with system.use(elsewhere), pytest.raises(RecoveryConflictError):
        recover(elsewhere, "roll-back")


def test_in_a_copied_tree_no_inode_counts() -> None:
    """It is put right by content and time, and its log is its own then."""
    fs = a_root()
    raw = fs.get("/sim/.txfiles/log")
    fs.remove("/sim/.txfiles/log")
    fs.put("/sim/other", "takes the inode")
    fs.put("/sim/.txfiles/log", raw)
    with system.use(fs):
        assert not rests_of(fs)
        recover(fs)
        committed(write(a="third a"))(fs)
        assert rests_of(fs)
    assert brought_to_rest(fs.after_kill())["a"].content == b"third a"


def rests_of(fs: SimFS) -> bool:
    with small(), Home.open(fs, b"/sim", create=False) as home:
        file = LogFile.open(home)
        assert file is not None
        try:
            return file.phase() == "applied"
        finally:
            file.close()


@pytest.mark.parametrize("call", ["create", "exchange", "allocate", "write_at", "sync_file", "rename", "sync_dir"])
def test_a_log_that_cannot_be_made_leaves_no_token(call: str) -> None:
    fs = SimFS()
    with system.use(fs), small(), Home.open(fs, b"/sim", create=False) as home:
        home.lock.acquire(10, object())
        fs.plan = at_call(call, 1, fail)
        with pytest.raises(OSError, match="injected"):
            LogFile.make(home, 1, 0)
        fs.plan = None
        assert set(home.names()) <= {b"format", b"lock", b"tail"}
    assert not fs.open_files


def test_a_log_that_is_no_log_is_refused() -> None:
    fs = a_root()
    raw = fs.get("/sim/.txfiles/log")
    with small():
        first = log.FIRST
    for damaged in (raw[:-1], bytes(first) + raw[first:]):
        fs.put("/sim/.txfiles/log", damaged)
        with system.use(fs), pytest.raises(JournalCorruptError, match="log"):
            recover(fs)
    assert not fs.open_files
