"""The spare on a full disk: every crash of a delete that needs its room, and each call that finds none."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.crash.steps import PRIVATE, dying
from tests.crash.test_simfs_engine import everything, files, rotate_directory
from txfiles import FileTransaction, recover
from txfiles._commit.spare import SIZE
from txfiles._disk import system
from txfiles.errors import CommitError
from txfiles.testing import Options, Scenario, SimFS, Tree, explore

CAPACITY = 2 << 20
SPARE = f"{PRIVATE}/spare"
LIMITED = Options(capacity=CAPACITY, kind="ext")
NEED_ROOM = {"create", "link", "mkdir", "rename", "write"}


def _write_first(fs: SimFS) -> None:
    with FileTransaction("/sim") as tx:
        tx.write("a", "new")


def _whole_or_not_there(fs: SimFS, _: Sequence[Tree]) -> None:
    assert not fs.exists(SPARE) or len(fs.get(SPARE)) == SIZE


MADE = Scenario(
    "spare-made", lambda fs: fs.put("/sim/a", "old"), [_write_first], check=_whole_or_not_there, options=LIMITED
)


def _full(fs: SimFS) -> None:
    files(fs)
    fs.put("/sim/filler", b"x" * (CAPACITY - fs.disk.used))
    fs.sync_everything()


def _delete(fs: SimFS) -> None:
    with FileTransaction("/sim") as tx:
        tx.delete("a")
        tx.delete_tree("gone")
    assert not fs.exists(SPARE)


def _empty(fs: SimFS) -> None:
    with FileTransaction("/sim") as tx:
        tx.delete("filler")


def _write(fs: SimFS) -> None:
    with FileTransaction("/sim") as tx:
        tx.write("b", "there is room")
    assert fs.exists(SPARE)


@contextmanager
def _full_while_it_is_there(fs: SimFS, *, since: int = 0) -> Iterator[list[str]]:
    """From this call on nothing is made that needs room. In the block: the calls that failed."""
    failed: list[str] = []
    begun = fs.calls

    def plan(number: int, name: str) -> None:
        if name in NEED_ROOM and number - begun >= since and fs.exists(SPARE):
            failed.append(name)
            raise OSError(errno.ENOSPC, "injected")

    fs.plan = plan
    try:
        yield failed
    finally:
        fs.plan = None


def _sim(options: Options = LIMITED) -> SimFS:
    fs = SimFS(options)
    with system.use(fs):
        files(fs)
    fs.calls = 0
    return fs


def _commit(fs: SimFS, change: Callable[[FileTransaction], object], since: int = 0) -> list[str]:
    with system.use(fs), FileTransaction("/sim") as tx:
        change(tx)
        with _full_while_it_is_there(fs, since=since) as failed:
            tx.commit()
    return failed


def test_every_crash_of_a_delete_on_a_full_disk() -> None:
    explore(Scenario("full", _full, [_delete], options=LIMITED), (64, 8))


def test_every_crash_of_its_coming_back() -> None:
    explore(Scenario("room-again", _full, [_delete, _empty, _write], options=LIMITED), (24,))


def test_a_full_disk_without_a_spare_is_as_it_was() -> None:
    fs = SimFS(LIMITED)
    with system.use(fs):
        _full(fs)
        fs.remove(SPARE)
        fs.put("/sim/filler2", b"x" * SIZE)
        before = fs.tree()
        with pytest.raises(CommitError, match="nothing was changed"):
            _delete_many(fs)
        assert fs.tree() == before
        with FileTransaction("/sim") as tx:
            tx.delete("a")  # in the room of HEAD
        assert not fs.exists("/sim/a")


def _delete_many(fs: SimFS) -> None:
    with FileTransaction("/sim") as tx:
        for name in ("a", "b", "c", "second", "special", "settled"):
            tx.delete(name)
        tx.delete_tree("dir")
        tx.delete_tree("gone")


def _deletes(tx: FileTransaction) -> None:
    tx.delete("a")
    tx.delete_tree("gone")


@pytest.mark.parametrize("change", [_deletes, rotate_directory, everything], ids=["deletes", "rotate", "everything"])
def test_from_any_call_on_the_disk_is_full(change: Callable[[FileTransaction], object]) -> None:
    """The commit goes on in the room of the spare, once."""
    after = _sim()
    _commit(after, change, since=10**6)
    assert after.exists(SPARE)
    failed: set[str] = set()
    for since in range(after.calls):
        fs = _sim()
        told = _commit(fs, change, since)
        assert fs.tree() == after.tree(), since
        assert told == told[-1:] or told == ["create", "link"]  # a marker without an inode is a link first
        assert fs.exists(SPARE) == (not told)
        failed.update(told)
    assert failed >= {"create", "link", "rename", "write"} - ({"link"} if change is _deletes else set())


def test_the_disk_is_full_while_a_commit_is_undone() -> None:
    fs = _sim()
    with system.use(fs):
        before = fs.tree()
        with FileTransaction("/sim") as tx:
            rotate_directory(tx)
            renames = [0]

            def plan(_: int, name: str) -> None:
                renames[0] += name == "rename"
                if renames[0] == 3 and name == "rename":
                    raise OSError(errno.EIO, "injected")
                if renames[0] > 3 and name in NEED_ROOM and fs.exists(SPARE):
                    raise OSError(errno.ENOSPC, "injected")

            fs.plan = plan
            with pytest.raises(CommitError, match="nothing was changed"):
                tx.commit()
            fs.plan = None
        assert fs.tree() == before
        assert fs.names(PRIVATE) == {"HEAD", "format", "lock"}


@pytest.mark.parametrize("renames", [2, 3])
def test_the_disk_is_full_when_it_is_recovered(renames: int) -> None:
    after = _sim()
    _commit(after, rotate_directory, since=10**6)
    fs = _sim()
    with system.use(fs):
        dying(rotate_directory, "rename", renames)(fs)
        with _full_while_it_is_there(fs) as failed:
            report = recover("/sim")
    assert failed
    assert len(report.rolled_forward) == 1
    assert fs.tree() == after.tree()
    assert fs.names(PRIVATE) == {"HEAD", "format", "lock"}


def test_a_sync_that_found_no_room_is_not_tried_again() -> None:
    """A second one that succeeds would say nothing (A4)."""
    fs = _sim()
    with system.use(fs), FileTransaction("/sim") as tx:
        rotate_directory(tx)
        renames = [0]

        def plan(_: int, name: str) -> None:
            renames[0] += name == "rename"
            if renames[0] > 1 and name == "sync_dir":
                fs.plan = None
                raise OSError(errno.ENOSPC, "injected")

        fs.plan = plan
        with pytest.raises(CommitError):
            tx.commit()
    assert fs.exists(SPARE)
