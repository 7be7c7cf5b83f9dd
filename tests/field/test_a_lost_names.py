"""A: deletes, directories that go and directories that move, cut off at each sync of real file systems.

On btrfs the old file of a rename over it can be gone while the new one still has its old name. Each order of the syncs
of a round leaves other halves of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import DEEP
from tests.support.boundary import InAnyOrder, tree
from tests.support.debris import problems
from tests.support.disks import BTRFS, EXT4_STRICT, XFS, Place
from txfiles import FileTransaction, recover

Places = Callable[[str], Place]
Change = Callable[[FileTransaction], object]

_STEPS = ("rename", "unlink", "sync_file", "sync_dir", "rmdir", "mkdir", "link", "write")
_SEEDS = range(8) if DEEP else range(1)


def _write(tx: FileTransaction) -> None:
    for name in ("n/f", "n/m/f", "s/b"):
        tx.write(name, f"first {name}")


def _delete(tx: FileTransaction) -> None:
    tx.delete("s/b")
    tx.delete_tree("n")


def _move(tx: FileTransaction) -> None:
    tx.delete("s/b")
    tx.move("n", "moved")


def _rewrite(tx: FileTransaction) -> None:
    for name in ("n/f", "n/m/f", "s/b"):
        tx.write(name, f"second {name}" * 20)


def _commit(root: Path, change: Change) -> None:
    with FileTransaction(root) as tx:
        change(tx)


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("change", [_delete, _move, _rewrite], ids=["delete", "move", "rewrite"])
@pytest.mark.parametrize("filesystem", [EXT4_STRICT, XFS, BTRFS])
def test_a15_recovery_finishes_whatever_names_a_power_loss_took(
    place: Places, filesystem: str, change: Change, seed: int
) -> None:
    here, twin = place(filesystem), place(filesystem)
    for root in (here.root, twin.root):
        _commit(root, lambda tx: tx.write("other", "settled"))
    states = [tree(twin.root)]
    for step in (_write, change):
        _commit(twin.root, step)
        states.append(tree(twin.root))
    here.sync()
    done = 0

    def work() -> None:
        nonlocal done
        for step in (_write, change):
            _commit(here.root, step)
            done += 1

    def look(copy: Path, where: str) -> None:
        recover(copy)
        assert tree(copy) in states[done : done + 2], where
        assert problems(copy) == [], where

    steps = _STEPS if DEEP else ("sync_dir",)
    seen = here.after_each(*steps, work=work, look=look, inner=InAnyOrder(random.Random(seed)))
    print(f"{filesystem}: {seen} images")
    assert done == 2
