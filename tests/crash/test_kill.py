"""A child is killed (SIGKILL) at each call to the system: of a commit, then of its recovery, and of that one again."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.scenarios import BY_NAME, NAMES, Tree, prepare, resting, tree
from txfiles import FileTransaction, recover
from txfiles._disk import system
from txfiles.testing._faults import FaultyFS, kill_at

DEEP = bool(os.environ.get("TXFILES_DEEP"))


def _in_child(work: Callable[[], None]) -> bool:
    """Run in a forked child; whether it was killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(2)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed instead of being killed"
    return False


def _commit(root: Path, name: str, fs: FaultyFS, durability: str) -> None:
    with system.use(fs), FileTransaction(root, durability=durability) as tx:  # type: ignore[arg-type]
        BY_NAME[name].change(tx)


def _recover(root: Path, fs: FaultyFS) -> None:
    with system.use(fs):
        recover(root)


def _fresh(name: str, root: Path) -> Tree:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    return prepare(BY_NAME[name], root)


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("name", NAMES)
def test_killed_at_each_call(memory: Path, name: str, durability: str) -> None:
    root = memory / "root"
    _fresh(name, root)
    fs = FaultyFS(system.KernelFS())
    _commit(root, name, fs, durability)
    after = tree(root)
    outcomes = set()
    step = 1 if DEEP else 7 if name == "mixed" else 1 if durability == "full" else 3
    for number in range(1, fs.calls + 1, step):
        before = _fresh(name, root)
        assert _in_child(lambda n=number: _commit(root, name, FaultyFS(system.KernelFS(), kill_at(n)), durability))
        recover(root, timeout=0)
        found = tree(root)
        assert found in (before, after), f"killed at call {number}, {fs.trace[number - 1]}"
        outcomes.add(found == after)
        assert resting(root)
        with FileTransaction(root, timeout=0, durability="process") as tx:
            tx.write("next", "works")
    assert outcomes == {False, True}


@pytest.mark.parametrize("name", NAMES)
def test_recovery_killed_at_each_call(memory: Path, name: str) -> None:
    """Every call of the commit in the deep run, some otherwise; each recovery dies a little later than the last."""
    root = memory / "root"
    _fresh(name, root)
    fs = FaultyFS(system.KernelFS())
    _commit(root, name, fs, "full")
    after = tree(root)
    for number in range(fs.calls, 0, -1 if DEEP else -11 if name != "mixed" else -149):
        before = _fresh(name, root)
        assert _in_child(lambda n=number: _commit(root, name, FaultyFS(system.KernelFS(), kill_at(n)), "full"))
        again = 0
        while True:
            again += 1 if DEEP else 3
            if not _in_child(lambda k=again: _recover(root, FaultyFS(system.KernelFS(), kill_at(k)))):
                break
        recover(root, timeout=0)
        assert tree(root) in (before, after), f"killed at {number} and in each recovery"
        assert resting(root)
