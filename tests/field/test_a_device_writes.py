"""A: power cuts at each write that reaches the device of ext4, xfs and btrfs, also while recovery works.

Several transactions, one after the other, some of them behind a sync of the whole file system: what it made durable and
what only its log of single files has are two things on btrfs, which loses a name between them.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.field.test_a_lost_names import _delete, _move, _write
from tests.support import DEEP
from tests.support.boundary import InAnyOrder, tree
from tests.support.debris import problems
from tests.support.disks import BTRFS, EXT4_STRICT, XFS, Restarted
from tests.support.mounts import run
from tests.support.power import Bench, Cut, Log, bench, recorded
from txfiles import FileTransaction, recover
from txfiles._disk import system

Change = Callable[[FileTransaction], object]
Tree = dict[str, object]

SEEDS = range(12) if DEEP else range(1)
EVERY = 1 if DEEP else 24  # of the cuts that are tried
AGAIN = 32 if DEEP else 3  # of those: whose recovery is cut, too


def _rewrite(tx: FileTransaction) -> None:
    tx.delete("s/b")
    for name in ("n/f", "n/m/f"):
        tx.write(name, f"second {name}" * 200)


def _over(tx: FileTransaction) -> None:
    for name in ("other", "n/f", "s/b", "moved/f"):
        tx.write(name, f"third {name}" * 30)


def _again(tx: FileTransaction) -> None:
    tx.write("other", "fourth")
    tx.delete("n/f")
    tx.move("s/b", "n/b")


@dataclass
class _Course:
    """Transactions on a recorded disk: each state, and where in the log each commit began and ended."""

    states: list[Tree] = field(default_factory=list)
    began: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    def commit(self, root: Path, log: Log, change: Change) -> None:
        self.began.append(log.now())
        with FileTransaction(root) as tx:
            change(tx)
        self.ended.append(log.now())
        self.states.append(tree(root))

    def possible(self, at: int) -> list[Tree]:
        """What a power cut may leave: no commit is lost that had returned, none is there that had not begun."""
        return self.states[sum(end <= at for end in self.ended) : 1 + sum(start < at for start in self.began)]


def _record(workdir: Path, filesystem: str, change: Change, chance: random.Random) -> tuple[_Course, Log, int]:
    course = _Course()
    with recorded(workdir, filesystem) as disk:
        root = disk.fs.path / "root"
        root.mkdir()
        with FileTransaction(root) as tx:
            tx.write("other", "settled")
        run("sync", "-f", root)
        since = disk.log.now()
        course.states.append(tree(root))
        inner = InAnyOrder(chance) if chance.random() < 0.5 else system.KernelFS()
        with system.use(inner):
            for step in (_write, change, _over, _again):
                if step is change or chance.random() < 0.5:
                    run("sync", "-f", root)
                course.commit(root, disk.log, step)
    return course, disk.log, since


def _tried(cuts: Iterator[Cut]) -> Iterator[Cut]:
    return itertools.islice(cuts, 0, None, EVERY)


def _failure(root: Path, states: list[Tree]) -> str | None:
    """What is wrong with a root before, in or after its recovery."""
    torn = [name for name, content in tree(root).items() if content not in [state.get(name) for state in states]]
    if torn:
        return f"torn before recovery: {torn}"
    try:
        recover(root)
    except Exception as error:
        return f"refused: {error!r}"
    after = tree(root)
    if after not in states:
        return f"torn or lost: {after!r:.300}"
    return ", ".join(problems(root)) or None


def _cut_again(workdir: Path, filesystem: str, cut: Cut, states: list[Tree], mounted: Bench) -> tuple[int, list[str]]:
    """Recover once more, and cut that at each of its writes; the number of images, and what was wrong."""
    seen, wrong = 0, []
    with recorded(workdir, filesystem, content=cut.blocks) as disk:
        recover(disk.fs.path / "root")
        done, settled = disk.log.now(), tree(disk.fs.path / "root")
    for second in _tried(disk.log.cuts()):
        seen += 1
        with mounted(second) as path:
            failure = _failure(path / "root", [settled] if second.at >= done else states)
        if failure:
            wrong.append(f"{cut.name}, then {second.name}: {failure}")
    return seen, wrong


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("change", [_delete, _move, _rewrite], ids=["delete", "move", "rewrite"])
@pytest.mark.parametrize("filesystem", [EXT4_STRICT, XFS, BTRFS])
def test_a07_whatever_reached_the_device_is_recovered(
    tmp_path: Path, filesystem: str, change: Change, seed: int
) -> None:
    chance = random.Random(f"{filesystem} {seed}")
    course, log, since = _record(tmp_path, filesystem, change, chance)
    seen, wrong = Counter[str](), []
    with bench(tmp_path, filesystem) as mounted, system.use(Restarted()):
        for cut in _tried(log.cuts(since=since, seed=seed)):
            seen["cuts"] += 1
            states = course.possible(cut.at)
            with mounted(cut) as path:
                failure = _failure(path / "root", states)
            if failure:
                wrong.append(f"{cut.name}: {failure}")
            elif len(states) > 1 and seen["cuts"] % AGAIN == 0:
                images, failures = _cut_again(tmp_path, filesystem, cut, states, mounted)
                seen["cut again"] += images
                wrong += failures
    print(f"{filesystem} {seed}: {dict(seen)}, {len(wrong)} wrong")
    assert not wrong, f"{len(wrong)} of {seen}: " + "\n".join(wrong[:5])
    assert seen["cuts"] > (50 if DEEP else 2)
