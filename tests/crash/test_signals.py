"""Ctrl-C at each call between the begin and the end of a transaction, and twice: before or after, and the lock free."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.crash.scenarios import BY_NAME, Tree, prepare, resting, tree
from txfiles import FileTransaction
from txfiles._disk import system
from txfiles.testing._faults import FaultyFS, interrupt_at


def _fresh(name: str, root: Path) -> Tree:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    return prepare(BY_NAME[name], root)


def _commit(root: Path, name: str, fs: FaultyFS) -> None:
    with system.use(fs), FileTransaction(root) as tx:  # type: ignore[arg-type]
        BY_NAME[name].change(tx)


DEEP = bool(os.environ.get("TXFILES_DEEP"))


@pytest.mark.parametrize("gap", [None, 1, 2, 5], ids=["once", "next call", "two later", "five later"])
@pytest.mark.parametrize("name", ["replace four", "mixed"])
def test_interrupted_at_each_call(memory: Path, name: str, gap: int | None) -> None:
    root = memory / "root"
    _fresh(name, root)
    counting = FaultyFS(system.KernelFS())
    _commit(root, name, counting)
    after = tree(root)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    outcomes = set()
    try:
        step = 1 if DEEP else 9 if name == "mixed" else 1 if gap is None else 3
        for number in range(1, counting.calls + 1, step):
            before = _fresh(name, root)
            numbers = (number,) if gap is None else (number, number + gap)
            where = f"interrupted at {numbers}, {counting.trace[number - 1]}"
            with pytest.raises(KeyboardInterrupt):
                _commit(root, name, FaultyFS(system.KernelFS(), interrupt_at(*numbers)))
                pytest.fail(f"{where}: the interrupt was swallowed")
            with FileTransaction(root, timeout=0, durability="process"):
                found = tree(root)
            assert found in (before, after), where
            assert resting(root), where
            outcomes.add(found == after)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert outcomes == {False, True}


def test_an_interrupt_beside_a_failed_sync(memory: Path) -> None:
    """The failure undoes the commit, and the interrupt is what the caller sees."""
    root = memory / "root"
    before = _fresh("replace four", root)
    syncs = 0

    def plan(_: int, name: str) -> None:
        nonlocal syncs
        syncs += name == "sync_file"
        if name == "sync_file" and syncs == 2:  # the first is that of the format file, by itself
            raise OSError(errno.EIO, "a sync fails")
        if name == "sync_file" and syncs == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _commit(root, "replace four", FaultyFS(system.KernelFS(), plan))
    assert tree(root) == before
    assert resting(root)
