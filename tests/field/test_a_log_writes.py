"""A: power cuts at each write that reaches the device of ext4, xfs and btrfs under durability="journal".

Commits through a log that is soon full, what goes by "full" between them, checkpoints, another process, and programs
that know nothing of txfiles, in an order of chance.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.crash.steps_of_log import small
from tests.support import DEEP
from tests.support.boundary import InAnyOrder, tree
from tests.support.debris import problems
from tests.support.disks import BTRFS, EXT4_STRICT, XFS, Restarted
from tests.support.mounts import run
from tests.support.power import Bench, Cut, Log, bench, recorded
from txfiles import FileStore, FileTransaction, recover
from txfiles._disk import system
from txfiles.errors import RecoveryConflictError

Tree = dict[str, object]
Change = Callable[[FileTransaction], object]

SEEDS = range(12) if DEEP else range(1)
EVERY = 1 if DEEP else 30  # of the cuts that are tried
AGAIN = 24 if DEEP else 2  # of those: whose recovery is cut, too
STEPS = 16
NAMES = ("a", "b", "c", "d/e", "d/f")


class Edit(NamedTuple):
    """What another program did to a path; `content` is `None` where it removed it."""

    path: str
    content: bytes | None
    began: int
    ended: int
    synced: bool
    before: int  # commits that came before it


class Made(NamedTuple):
    """A transaction: the paths it changed, the tree after it, and where in the log of writes it began and ended."""

    changed: frozenset[str]
    after: Tree
    began: int
    ended: int


@dataclass
class History:
    """What happened on a recorded disk."""

    commits: list[Made] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def states(self, at: int) -> list[int]:
        """The commits behind which a power cut may lead: none that had returned is lost, none there is not begun."""
        returned = sum(one.ended <= at for one in self.commits)
        return list(range(returned - 1, sum(one.began < at for one in self.commits)))

    def theirs(self, at: int) -> dict[str, Edit]:
        """The last edit of each path that no commit has changed since."""
        returned = self.states(at)[0]
        found: dict[str, Edit] = {}
        for edit in self.edits:
            later = self.commits[edit.before : returned + 1]
            if edit.began < at and not any(edit.path in one.changed for one in later):
                found[edit.path] = edit
        return found

    def wrong(self, at: int, found: Tree) -> str | None:
        """What is wrong with a recovered tree."""
        states, theirs = self.states(at), self.theirs(at)
        ours = {path: content for path, content in found.items() if path not in theirs and not path.endswith("~")}
        allowed = [_without(self.commits[number].after, theirs) for number in states]
        if ours not in allowed:
            return f"torn or lost: {[_differing(ours, state) for state in allowed]}"
        for path, edit in theirs.items():
            since = [self.commits[number] for number in states[1:] if number >= edit.before]
            contents = [edit.content, *(one.after.get(path) for one in since if path in one.changed)]
            is_there = edit.synced and edit.ended <= at and edit.content is not None  # what shows nothing is put back
            if is_there and found.get(path) not in contents:
                return f"an edit of somebody else's is lost: {path!r}"
        return None


def _differing(found: Tree, wanted: Tree) -> list[str]:
    return sorted(name for name in found.keys() | wanted.keys() if found.get(name, "") != wanted.get(name, ""))


def _without(after: Tree, theirs: dict[str, Edit]) -> Tree:
    return {path: content for path, content in after.items() if path not in theirs}


@dataclass
class Course:
    """Steps of chance in `root`."""

    root: Path
    log: Log
    chance: random.Random
    history: History

    def commit(self, change: Change, *changed: str, durability: str = "journal", elsewhere: bool = False) -> None:
        began = self.log.now()
        if elsewhere:
            child = os.fork()
            if child == 0:
                os._exit(_status(lambda: self._commit(change, durability)))
            assert os.waitpid(child, 0)[1] == 0
        else:
            self._commit(change, durability)
        self.history.commits.append(Made(frozenset(changed), tree(self.root), began, self.log.now()))

    def _commit(self, change: Change, durability: str) -> None:
        with FileTransaction(self.root, durability=durability) as tx:  # type: ignore[arg-type]
            change(tx)

    # -- steps -------------------------------------------------------------------------------------------------------

    def small(self, *, elsewhere: bool = False, durability: str = "journal") -> None:
        chosen = self.chance.sample(NAMES, self.chance.randrange(1, 4))
        gone = {name for name in chosen if self.chance.random() < 0.25 and (self.root / name).exists()}
        new = {name: self.content() for name in chosen if name not in gone}

        def change(tx: FileTransaction) -> None:
            for name in gone:
                tx.delete(name)
            for name, content in new.items():
                tx.write(name, content)

        self.commit(change, *chosen, elsewhere=elsewhere, durability=durability)

    def elsewhere(self) -> None:
        self.small(elsewhere=True)

    def full(self) -> None:
        self.small(durability="full")

    def makes_a_directory(self) -> None:
        name = f"new{len(self.history.commits)}"

        def change(tx: FileTransaction) -> None:
            tx.mkdir(name)
            tx.write(f"{name}/file", b"in it")
            tx.write("a", name)

        self.commit(change, name, f"{name}/file", "a")

    def big(self) -> None:
        content = self.content() + bytes(70_000)

        def change(tx: FileTransaction) -> None:
            tx.write("b", content)
            tx.write("d/e", "beside a big one")

        self.commit(change, "b", "d/e")

    def checkpoint(self) -> None:
        FileStore(self.root).checkpoint()

    def remove_log(self) -> None:
        FileStore(self.root).remove_log()

    def sync(self) -> None:
        run("sync", "-f", self.root)

    def edit(self) -> None:
        """An editor puts a file in the place of another, writes over it or removes it."""
        name, content = self.chance.choice(NAMES), b"theirs " + self.content()
        how = self.chance.choice(["replace", "write", "append", "remove"])
        path, began, synced = self.root / name, self.log.now(), self.chance.random() < 0.6
        if how == "remove" and path.exists():
            path.unlink()
            written = None
        elif how == "replace":
            path.with_name(f"{path.name}~").write_bytes(content)
            if synced:
                _sync(path.with_name(f"{path.name}~"))
            os.rename(path.with_name(f"{path.name}~"), path)
            written = content
        else:
            with open(path, "ab" if how == "append" else "wb") as file:
                file.write(content)
            written = path.read_bytes()
        if synced:
            if written is not None:
                _sync(path)
            _sync(path.parent)
        self.history.steps[-1] += f" {how} {name}{' synced' if synced else ''}"
        self.history.edits.append(Edit(name, written, began, self.log.now(), synced, len(self.history.commits)))

    def content(self) -> bytes:
        return self.chance.randbytes(self.chance.choice([0, 20, 3000, 5000]))


def _status(work: Callable[[], object]) -> int:
    try:
        work()
    except BaseException:
        return 1
    return 0


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


class Later(Restarted):
    """The machine came up some time after what others did last: that is theirs without a question."""

    def booted(self) -> int:
        return time.time_ns() + 10_000_000_000


BOOTS = (Restarted, Later, system.KernelFS)  # at last: only mounted anew
WEIGHTS = {
    Course.small: 8,
    Course.elsewhere: 2,
    Course.edit: 4,
    Course.sync: 2,
    Course.checkpoint: 1,
    Course.full: 1,
    Course.makes_a_directory: 1,
    Course.big: 1,
    Course.remove_log: 0.5,
}


def _record(workdir: Path, filesystem: str, chance: random.Random) -> tuple[History, Log, int]:
    with recorded(workdir, filesystem) as disk:
        root = disk.fs.path / "root"
        (root / "d").mkdir(parents=True)
        course = Course(root, disk.log, chance, History())
        with FileTransaction(root) as tx:
            for name in NAMES[:-1]:
                tx.write(name, f"first {name}")
        course.sync()
        since = disk.log.now()
        course.history.commits.append(Made(frozenset(), tree(root), -1, -1))
        with system.use(InAnyOrder(chance)):
            for step in chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS):
                course.history.steps.append(step.__name__)
                step(course)
        assert (root / ".txfiles" / "log").exists() or filesystem == "btrfs" or "remove_log" in course.history.steps
    return course.history, disk.log, since


def _tried(cuts: Iterator[Cut], chance: random.Random) -> Iterator[Cut]:
    return itertools.islice(cuts, chance.randrange(EVERY), None, EVERY)


def _failure(root: Path, history: History, at: int, seen: Counter[str]) -> str | None:
    try:
        try:
            recover(root)
        except RecoveryConflictError as error:
            if not set(error.paths) <= set(history.theirs(at)):
                return f"a false conflict: {error}"
            seen["conflicts"] += 1
            recover(root, on_conflict="keep-theirs")
        tree(root)
    except Exception as error:
        return f"refused: {error!r}"
    return history.wrong(at, tree(root)) or ", ".join(problems(root)) or None


def _cut_again(
    workdir: Path, filesystem: str, cut: Cut, history: History, mounted: Bench, seen: Counter[str]
) -> list[str]:
    """Recover once more, and cut that at each of its writes."""
    wrong = []
    with recorded(workdir, filesystem, content=cut.blocks) as disk:
        recover(disk.fs.path / "root", on_conflict="keep-theirs")
    for second in _tried(disk.log.cuts(), random.Random(cut.name)):
        seen["cut again"] += 1
        with mounted(second) as path:
            failure = _failure(path / "root", history, cut.at, seen)
        if failure:
            wrong.append(f"{cut.name}, then {second.name}: {failure}")
    return wrong


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("filesystem", [EXT4_STRICT, XFS, BTRFS])
def test_a07_what_went_through_the_log_is_recovered(tmp_path: Path, filesystem: str, seed: int) -> None:
    chance = random.Random(f"{filesystem} {seed}")
    with small():
        history, log, since = _record(tmp_path, filesystem, chance)
        seen, wrong = Counter[str](), []
        with bench(tmp_path, filesystem) as mounted, system.use(BOOTS[seed % len(BOOTS)]()):
            for cut in _tried(log.cuts(since=since, seed=seed), chance):
                seen["cuts"] += 1
                with mounted(cut) as path:
                    failure = _failure(path / "root", history, cut.at, seen)
                if failure:
                    wrong.append(f"{cut.name}: {failure}")
                elif seen["cuts"] % AGAIN == 0:
                    wrong += _cut_again(tmp_path, filesystem, cut, history, mounted, seen)
    print(f"{filesystem} {seed}: {dict(seen)}, {len(wrong)} wrong; {', '.join(history.steps)}")
    assert not wrong, f"{len(wrong)} of {seen}: " + "\n".join(wrong[:5])
    assert seen["cuts"] > (50 if DEEP else 2)
