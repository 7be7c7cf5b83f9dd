"""Each call of a commit, of its undoing and of a recovery fails, and then the power: what was said is what is found.

A sync that fails (A4) has lost what it was to make durable, and shows nothing of that; so the rest of this session may
refuse to recover, and after the next start nothing must be a mix.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import pytest

from tests.crash.steps import dying, then, to_aborting, to_intent
from tests.crash.test_simfs_engine import Change, everything, files, rotate_directory, swap, write
from tests.support import DEEP
from txfiles import FileTransaction, recover
from txfiles._disk import system
from txfiles.errors import RecoveryError, TxFilesError
from txfiles.testing import SimFS, Tree
from txfiles.testing._faults import fail_at
from txfiles.testing._scenario import quiet

ERRORS = [errno.EIO, errno.ENOSPC, errno.EACCES, errno.EDQUOT, errno.EMFILE, errno.EROFS, errno.ENOLCK, errno.EINTR]
_FULL = ("ENOSPC", "EDQUOT")  # there HEAD makes room for a journal
HEAD = "HEAD"
PERMANENT = {HEAD, "format", "lock"}
CAP = 64 if DEEP else 4  # states of one power loss
CHANGES = {
    "replace": write("a", "b", "e"),
    "swap": swap,
    "create": write("x/y", "a"),
    "rotate": rotate_directory,
    "everything": everything,
}
STATES: dict[str, Callable[[SimFS], None]] = {"committed": lambda _: None, "intent": to_intent, "aborting": to_aborting}


class Said(NamedTuple):
    """What came of some work: the outcome that it stated."""

    outcome: str
    why: str


def _start() -> SimFS:
    fs = SimFS()
    with system.use(fs):
        files(fs)
    fs.calls = 0
    return fs


def _commit(fs: SimFS, change: Change) -> Said:
    try:
        with system.use(fs), FileTransaction("/sim") as tx:
            change(tx)
    except TxFilesError as error:
        return Said(error.outcome, repr(error))
    except OSError as error:
        return Said("before", repr(error))
    return Said("after", "it returned")


def _recover(fs: SimFS) -> Said:
    try:
        with system.use(fs):
            recover("/sim")
    except (OSError, RecoveryError) as error:
        return Said("unknown", repr(error))
    return Said("recovered", "it returned")


def _holds(fs: SimFS, said: Said, before: Tree, after: Tree, where: str) -> None:
    """Now, after a kill, and after each power loss, with a recovery: what was said, and never a mix."""
    allowed = {"before": [before], "after": [after], "recovered": [after]}.get(said.outcome, [before, after])
    if said.outcome != "unknown":
        assert fs.tree() in allowed, f"{where}: {said} is not what is there"
    killed = fs.after_kill()
    if _recover(killed).outcome == "recovered":
        assert killed.tree() in allowed, f"{where}: {said}, but not after a kill"
    for token, left in fs.surviving_states(CAP, fs.calls):
        found = _recover(left)
        assert found.outcome == "recovered", f"{where}: {said}, and after a power loss ({token}) {found}"
        assert left.tree() in allowed, f"{where}: {said}, but not after a power loss ({token})"
        names = left.names("/sim/.txfiles")
        assert names == PERMANENT or (where.endswith(_FULL) and names == PERMANENT - {HEAD}), where


def _codes(number: int) -> Sequence[int]:
    """All errors in the deep run; otherwise EIO and another one by turns."""
    return ERRORS if DEEP else [errno.EIO if number % 2 else ERRORS[number // 2 % len(ERRORS)]]


def _noting(made: list[str], plan: Callable[[int, str], None]) -> Callable[[int, str], None]:
    def note(number: int, name: str) -> None:
        made.append(name)
        plan(number, name)

    return note


def _each_failure(
    start: Callable[[], SimFS],
    work: Callable[[SimFS], Said],
    before: Tree,
    after: Tree,
    *,
    forever: bool,
    after_call: int = 0,
) -> set[str]:
    """Let each call of the work fail, those behind `after_call`; the outcomes that were stated.

    Of errors behind which the same calls were made, and the same was said and is there, the first is enough.
    """
    names: list[str] = []
    fs = start()
    fs.plan = lambda _, name: names.append(name)
    work(fs)
    said = set()
    for number in range(after_call + 1, len(names) + 1):
        met: list[tuple[str, list[str], Tree]] = []
        for code in _codes(number):
            fs = start()
            made: list[str] = []
            fs.plan = _noting(made, fail_at(number, code, forever=forever))
            told = work(fs)
            fs.plan = None
            said.add(told.outcome)
            if (came := (told.outcome, made, fs.tree())) in met:
                continue
            met.append(came)
            _holds(fs, told, before, after, f"call {number} ({names[number - 1]}) failed with {errno.errorcode[code]}")
    return said


def _trees(change: Change) -> tuple[Tree, Tree]:
    fs = _start()
    before = fs.tree()
    assert _commit(fs, change).outcome == "after"
    return before, fs.tree()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("name", CHANGES if DEEP else ["replace", "create"])
def test_each_call_of_a_commit_fails(name: str, forever: bool) -> None:
    change = CHANGES[name]
    said = _each_failure(_start, lambda fs: _commit(fs, change), *_trees(change), forever=forever)
    assert said >= {"before", "after", "unknown"}


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("name", CHANGES if DEEP else ["rotate"])
def test_each_call_of_an_undo_fails(name: str, forever: bool) -> None:
    """The last rename of a target fails, and then one of the calls that put back what was done before it."""
    change = CHANGES[name]
    fails = _last_rename_of_a_target(change)

    def commit(fs: SimFS) -> Said:
        inner = fs.plan
        assert inner is not None

        def plan(number: int, name: str) -> None:
            inner(number, name)
            if number == fails:
                raise OSError(errno.EIO, "injected")

        fs.plan = plan
        return _commit(fs, change)

    said = _each_failure(_start, commit, *_trees(change), forever=forever, after_call=fails)
    assert said == {"before", "unknown"}


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize(
    ("name", "state"),
    list(product(CHANGES, STATES))
    if DEEP
    else [("replace", "committed"), ("create", "intent"), ("rotate", "aborting")],
)
def test_each_call_of_a_recovery_fails(name: str, state: str, forever: bool) -> None:
    """A recovery that returned has ended it; one that raised has lost nothing, and the next start ends it."""
    change = CHANGES[name]
    before, after = _trees(change)
    half_done = then(files, dying(change, "rename", 3), STATES[state])

    def start() -> SimFS:
        fs = SimFS()
        with system.use(fs):
            half_done(fs)
        fs.calls = 0
        return fs

    end = before if state == "aborting" else after
    assert _each_failure(start, _recover, end, end, forever=forever) == {"recovered", "unknown"}


def _last_rename_of_a_target(change: Change) -> int:
    """Its number among the calls of a commit; the journal is renamed after it."""
    renames: list[int] = []
    fs = _start()
    fs.plan = lambda number, name: renames.append(number) if name == "rename" else None
    _commit(fs, change)
    return renames[-2]
