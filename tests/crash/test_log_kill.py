"""Processes that commit through the log are killed (SIGKILL) on a real file system: at each call, and at any time."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.crash.scenarios import Tree, tree
from tests.crash.steps_of_log import small
from tests.crash.test_kill import _in_child as in_child
from tests.support import DEEP, mounts
from tests.support.debris import problems
from tests.support.loop import loop_fs
from tests.support.procs import Child, child
from txfiles import FileStore, FileTransaction, recover
from txfiles._disk import system
from txfiles.testing._faults import FaultyFS, kill_at

Work = Callable[[Path], object]

pytestmark = pytest.mark.needs("loop", "ext4")
EVERY = 1 if DEEP else 11  # of the calls


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 in memory, where a sync costs little."""
    with mounts.tmpfs(tmp_path / "memory") as memory, loop_fs(memory, "ext4") as fs, small():
        yield fs.path


def save(root: Path, number: int, **more: str) -> None:
    with FileTransaction(root, durability="journal") as tx:
        for name, content in {"a": f"{number}", "d/b": f"{number}" * 3000, **more}.items():
            tx.write(name, content)


def changes(root: Path) -> None:
    """Two files replaced, one new and one gone."""
    with FileTransaction(root, durability="journal") as tx:
        tx.write("a", "changed")
        tx.write("d/b", "changed" * 1000)
        tx.write("d/new", "new")
        tx.delete("c")


def by_full(root: Path) -> None:
    with FileTransaction(root, durability="journal") as tx:
        tx.write("made/new", "new")
        tx.write("a", "changed")


def fills(root: Path) -> None:
    """The log has no room for it before a checkpoint."""
    with FileTransaction(root, durability="journal") as tx:
        tx.write("a", "changed" * 1500)
        tx.write("d/b", "changed")


WORKS: dict[str, tuple[int, Work]] = {
    "makes the log": (0, changes),
    "commits": (1, changes),
    "log full": (2, fills),
    "goes by full": (1, by_full),
    "checkpoint": (2, lambda root: FileStore(root).checkpoint()),
    "removes the log": (2, lambda root: FileStore(root).remove_log()),
}


def fresh(root: Path, commits: int) -> Tree:
    """The root after some commits through the log; 0: that has none yet."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "d").mkdir(parents=True)
    (root / "c").write_text("goes", encoding="utf-8")
    with FileTransaction(root, durability="process") as tx:
        for name in ("a", "d/b"):
            tx.write(name, "first")
    for number in range(commits):
        save(root, number)
    return tree(root)


def run(work: Work, root: Path, fs: FaultyFS) -> None:
    with system.use(fs):
        work(root)


def check(root: Path, states: list[Tree], told: str) -> Tree:
    recover(root, timeout=0)
    found = tree(root)
    assert found in states, told
    assert not problems(root), told
    save(root, 9)
    assert (root / "a").read_text(encoding="utf-8") == "9", told
    return found


@pytest.mark.parametrize("name", WORKS)
def test_killed_at_each_call(disk: Path, name: str) -> None:
    root = disk / "root"
    commits, work = WORKS[name]
    fresh(root, commits)
    run(work, root, fs := FaultyFS(system.KernelFS()))
    after = tree(root)
    outcomes = set()
    for number in [*range(1, fs.calls, EVERY), fs.calls]:
        before = fresh(root, commits)
        assert in_child(lambda n=number: run(work, root, FaultyFS(system.KernelFS(), kill_at(n))))
        found = check(root, [before, after], f"killed at call {number}, {fs.trace[number - 1]}")
        outcomes.add(found == after)
    assert outcomes == ({True} if before == after else {False, True})


@pytest.mark.parametrize("name", WORKS)
def test_recovery_killed_at_each_call(disk: Path, name: str) -> None:
    """Each recovery dies a little later than the last."""
    root = disk / "root"
    commits, work = WORKS[name]
    fresh(root, commits)
    run(work, root, fs := FaultyFS(system.KernelFS()))
    after = tree(root)
    for number in range(fs.calls, 0, -1 if DEEP else -47):
        before = fresh(root, commits)
        assert in_child(lambda n=number: run(work, root, FaultyFS(system.KernelFS(), kill_at(n))))
        again = 0
        while True:
            again += 1 if DEEP else 7
            if not in_child(lambda k=again: run(recover, root, FaultyFS(system.KernelFS(), kill_at(k)))):
                break
        check(root, [before, after], f"killed at call {number}, {fs.trace[number - 1]}, and in each recovery")


WRITER = """
from tests.crash.steps_of_log import small
from txfiles import FileStore

root, me, level = sys.argv[1:]
store = FileStore(root, durability=level, timeout=None)

def change(tx):
    state = json.loads(tx.read("state"))
    state[me] = state.get(me, 0) + 1
    tx.write("state", json.dumps(state))
    for name in ("one", "two"):
        tx.write(f"{me}-{name}", str(state[me]) + "x" * random.randrange(6000))
    if state[me] % 50 == 0:
        tx.write(f"dir{state[me]}/{me}", "by full")
    return state[me]

with small():
    print(store.update(change))
    while True:
        print(store.update(change))
"""


@pytest.mark.parametrize(
    "levels", [("journal",) * 4, ("journal", "journal", "full", "journal")], ids=["journal", "both"]
)
def test_killed_at_any_time(disk: Path, levels: tuple[str, ...]) -> None:
    """What one of them was told is there, and nothing of another is lost, whoever dies and recovers."""
    root = disk / "root"
    chance = random.Random(f"{levels}")
    with FileTransaction(root, durability="journal", create=True) as tx:
        tx.write("state", "{}")
    told: dict[str, int] = {}
    started = 0
    with ExitStack() as stack:

        def start(level: str) -> tuple[str, str, Child]:
            nonlocal started
            started += 1
            name = f"w{started}"
            one = stack.enter_context(child(WRITER, root, name, level))
            one.expect("")
            return name, level, one

        running = [start(level) for level in levels]
        for _ in range(40 if DEEP else 4):
            time.sleep(chance.uniform(0, 0.2))
            name, level, one = running.pop(chance.randrange(len(running)))
            one.kill()
            told[name] = len(one.finish().stdout.split())
            running.append(start(level))
        for name, _, one in running:
            one.kill()
            told[name] = len(one.finish().stdout.split())
    recover(root)
    state = json.loads((root / "state").read_bytes())
    assert not problems(root)
    for name, count in told.items():
        assert count <= state[name] <= count + 1
        for part in ("one", "two"):
            assert (root / f"{name}-{part}").read_text(encoding="utf-8").rstrip("x") == f"{state[name]}"
