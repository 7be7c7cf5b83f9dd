"""Every crash and interrupt of a prepare and of its decision: prepared or not, and once decided, decided."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.crash.scenarios import BY_NAME, resting, tree
from tests.crash.scenarios import prepare as state_before
from tests.support import DEEP
from txfiles import FileTransaction, commit_prepared, recover, rollback_prepared, status
from txfiles._disk import system
from txfiles.testing import Scenario, SimFS, Tree, explore
from txfiles.testing._faults import FaultyFS, interrupt_at, kill_at

ROOT = "/sim"

# -- power losses, simulated ----------------------------------------------------------------------------------------


def files(fs: SimFS) -> None:
    """The state before, and a root that has seen a transaction."""
    for name in "abc":
        fs.put(f"{ROOT}/{name}", f"old {name}")
    fs.mkdirs(f"{ROOT}/gone")
    fs.put(f"{ROOT}/gone/f", "f")
    with FileTransaction(ROOT) as tx:
        tx.write("settled", "once")
    fs.sync_everything()


def replace_two(tx: FileTransaction) -> None:
    tx.write("a", "new a")
    tx.write("b", "new b")


def everything(tx: FileTransaction) -> None:
    tx.write("a", "new a")
    tx.delete("b")
    tx.move("c", "new/c")
    tx.delete_tree("gone")
    tx.write("gone", "a file now")


CHANGES = {"replace-two": replace_two, "everything": everything}
Change = Callable[[FileTransaction], None]


def prepare(change: Change, _: SimFS) -> None:
    with FileTransaction(ROOT) as tx:
        change(tx)
        tx.prepare()


def prepare_and_commit(change: Change, _: SimFS) -> None:
    with FileTransaction(ROOT) as tx:
        change(tx)
        tx.prepare()
        tx.commit()


def waiting() -> list[str]:
    return [pending.transaction_id for pending in status(ROOT).pending]


def prepared(change: Change, fs: SimFS) -> None:
    files(fs)
    prepare(change, fs)
    fs.sync_everything()


def commit(_: SimFS) -> None:
    commit_prepared(ROOT, waiting()[0])


def roll_back(_: SimFS) -> None:
    rollback_prepared(ROOT, waiting()[0])


def decide_both_ways(fs: SimFS, tid: str, before: Tree, after: Tree) -> None:
    for decide, wanted in ((commit_prepared, after), (rollback_prepared, before)):
        copy = fs.after_kill()
        with system.use(copy):
            decide(ROOT, tid)
            assert copy.tree(ROOT) == wanted
            assert recover(ROOT).clean


def check(what: str, before: Tree, after: Tree, fs: SimFS, allowed: Sequence[Tree]) -> None:
    """After a recovery. What waits is as before, and can then be committed or rolled back."""
    found = fs.tree(ROOT)
    assert found in allowed, "neither before nor after"
    with system.use(fs):
        left = waiting()
        assert [one.transaction_id for one in recover(ROOT).waiting] == left
    assert fs.tree(ROOT) == found
    if left:
        assert found == before
        decide_both_ways(fs, left[0], before, after)
    returned = len(allowed) == 1  # also when an earlier recovery has told which of the two it is
    if what == "prepare" and returned:
        assert left
    if what == "roll back" and returned:
        assert not left
    if what == "commit prepared" and found == before:
        assert left


def scenarios(name: str, change: Change) -> Iterator[Scenario]:
    fs = SimFS()
    with system.use(fs):
        files(fs)
        before = fs.tree(ROOT)
        prepare_and_commit(change, fs)
    steps: dict[str, tuple[Callable[[SimFS], object], Callable[[SimFS], object]]] = {
        "prepare": (files, partial(prepare, change)),
        "prepare and commit": (files, partial(prepare_and_commit, change)),
        "commit prepared": (partial(prepared, change), commit),
        "roll back": (partial(prepared, change), roll_back),
    }
    for what, (setup, step) in steps.items():
        judge = partial(check, what, before, fs.tree(ROOT))
        yield Scenario(f"{what.replace(' ', '-')}-{name}", setup, [step], check=judge)


SCENARIOS = {scenario.name: scenario for name, change in CHANGES.items() for scenario in scenarios(name, change)}


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_every_crash_leaves_it_prepared_or_decided(name: str) -> None:
    small = name in ("commit-prepared-replace-two", "roll-back-replace-two")
    caps: Sequence[int] = (128, 8) if DEEP else (16, 2) if small else (8,)
    assert explore(SCENARIOS[name], caps).states > 50


# -- kills and interrupts, real -------------------------------------------------------------------------------------

Setup = Callable[[Path], None]
Work = Callable[[Path], None]


def prepare_mixed(root: Path) -> None:
    with FileTransaction(root) as tx:
        BY_NAME["mixed"].change(tx)
        tx.prepare()


def commit_waiting(root: Path) -> None:
    for one in recover(root).waiting:
        commit_prepared(root, one.transaction_id)


def roll_back_waiting(root: Path) -> None:
    for one in recover(root).waiting:
        rollback_prepared(root, one.transaction_id)


def nothing(_: Path) -> None: ...


WORK: dict[str, tuple[Setup, Work]] = {
    "prepare": (nothing, prepare_mixed),
    "commit": (prepare_mixed, commit_waiting),
    "roll back": (prepare_mixed, roll_back_waiting),
}


class Place:
    """A root in the state before `work`; how that may be stopped, and what must hold then."""

    def __init__(self, memory: Path, what: str) -> None:
        self.root = memory / "root"
        self.setup, self.work = WORK[what]
        self.what = what
        self.fresh()
        commit_waiting(self.root) if what != "prepare" else self._prepare_and_commit()
        self.after = tree(self.root)
        self.fresh()
        counting = FaultyFS(system.KernelFS())
        self.run(counting)
        self.trace = counting.trace

    def _prepare_and_commit(self) -> None:
        prepare_mixed(self.root)
        commit_waiting(self.root)

    def fresh(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        self.before = state_before(BY_NAME["mixed"], self.root)
        self.setup(self.root)

    def run(self, fs: FaultyFS) -> None:
        with system.use(fs):  # type: ignore[arg-type]
            self.work(self.root)

    def numbers(self) -> range:
        return range(1, len(self.trace) + 1, 1 if DEEP else 2)

    def check(self, where: str) -> bool:
        """Whether the tree is that after; what waits can be decided."""
        left = recover(self.root, timeout=0).waiting
        found = tree(self.root)
        assert found in (self.before, self.after), where
        if left or self.what == "roll back":
            assert found == self.before, where
        if self.what == "commit" and not left:
            assert found == self.after, where
        commit_waiting(self.root)
        assert tree(self.root) == (self.after if left else found), where
        assert resting(self.root), where
        return bool(left)


@pytest.mark.parametrize("what", list(WORK))
def test_killed_at_each_call(memory: Path, what: str) -> None:
    place = Place(memory, what)
    outcomes = set()
    for number in place.numbers():
        place.fresh()
        child = os.fork()
        if child == 0:
            try:
                place.run(FaultyFS(system.KernelFS(), kill_at(number)))
            finally:
                os._exit(1)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        outcomes.add(place.check(f"killed at call {number}, {place.trace[number - 1]}"))
    assert outcomes == {False, True}


@pytest.mark.parametrize("what", list(WORK))
def test_interrupted_at_each_call(memory: Path, what: str) -> None:
    place = Place(memory, what)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for number in place.numbers():
            place.fresh()
            where = f"interrupted at call {number}, {place.trace[number - 1]}"
            with pytest.raises(KeyboardInterrupt):
                place.run(FaultyFS(system.KernelFS(), interrupt_at(number)))
                pytest.fail(f"{where}: the interrupt was swallowed")
            place.check(where)
    finally:
        signal.signal(signal.SIGINT, previous)


def test_interrupted_in_prepare_nothing_waits(memory: Path) -> None:
    """Nobody was told its id."""
    place = Place(memory, "prepare")
    renamed = next(n for n, name in enumerate(place.trace, 1) if name == "rename")
    for number in range(renamed - 3, renamed + 4):
        place.fresh()
        told = ""
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with (
                pytest.raises(KeyboardInterrupt),
                system.use(FaultyFS(system.KernelFS(), interrupt_at(number))),  # type: ignore[arg-type]
                FileTransaction(place.root) as tx,
            ):
                BY_NAME["mixed"].change(tx)
                told = tx.prepare()
        finally:
            signal.signal(signal.SIGINT, previous)
        left = [one.transaction_id for one in recover(place.root).waiting]
        assert left == [told] * bool(told)
