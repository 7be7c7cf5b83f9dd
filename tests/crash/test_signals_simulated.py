"""Ctrl-C before and after each call of a transaction, and twice: never half a state, the lock free, nothing swallowed.

The simulated file system does in a second what takes minutes on a real one; see `test_signals` for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.crash.test_simfs_engine import commit, everything, failing_apply, files, rotate_directory, write
from tests.support import DEEP
from txfiles import FileTransaction
from txfiles._disk import system
from txfiles.testing import SimFS
from txfiles.testing._scenario import quiet

CHANGES = {"replace": write("a", "b", "e"), "rotate": rotate_directory, "everything": everything}
GAPS = {"once": None, "next call": 1, "two later": 2, "seven later": 7}
NAMES = list(CHANGES) if DEEP else ["replace", "rotate"]


def _start() -> SimFS:
    fs = SimFS()
    with system.use(fs):
        files(fs)
    fs.calls = 0
    return fs


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


class _Interrupt:
    """A plan: Ctrl-C at each of these calls. `came`: at one of them, at least; behind a call that fails comes none."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers
        self.came = False

    def __call__(self, now: int, _: str) -> None:
        if now in self.numbers:
            self.came = True
            raise KeyboardInterrupt


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("name", NAMES)
def test_interrupted_at_each_call(name: str, gap: str, when: str) -> None:
    work, later = commit(CHANGES[name]), GAPS[gap]
    whole = _start()
    before = whole.tree()
    with system.use(whole):
        work(whole)
    after = whole.tree()
    outcomes = set()
    for number in range(1, whole.calls + 1, 1 if DEEP or later is None else 2):
        fs = _start()
        plan = _Interrupt(number, number if later is None else number + later)
        where = f"interrupted {when} call {number}, {gap}"
        if when == "before":
            fs.plan = plan
        else:
            fs.after = plan
        with system.use(fs):
            try:
                work(fs)
            except KeyboardInterrupt:
                pass
            else:
                assert not plan.came, f"{where}: swallowed"
            fs.plan = fs.after = None
            with FileTransaction("/sim", timeout=0):
                assert fs.tree() in (before, after), where
            assert fs.names("/sim/.txfiles") == {"HEAD", "format", "lock"}, where
        outcomes.add(fs.tree() == after)
    assert outcomes == {False, True}


@pytest.mark.parametrize("name", NAMES)
def test_an_undo_is_interrupted_at_each_call(name: str) -> None:
    """The commit fails, and the interrupt that comes while it is undone is what the caller sees."""
    work = failing_apply(CHANGES[name], 4)
    for number in count(1):
        fs = _start()
        before = fs.tree()
        fs.after = plan = _Interrupt(number)
        with system.use(fs):
            try:
                work(fs)
            except KeyboardInterrupt:
                pass
            else:
                assert not plan.came, f"after call {number}: swallowed"
            fs.plan = fs.after = None
            with FileTransaction("/sim", timeout=0):
                assert fs.tree() == before, f"interrupted after call {number}"
        if fs.calls < number:
            break
    assert number > 50
