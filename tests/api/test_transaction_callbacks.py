"""What a transaction tells: what it would change, its outcome, and those who asked to be called."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txfiles import AsyncFileTransaction, FileTransaction, commit_prepared
from txfiles._disk import system
from txfiles.errors import CommitError, CommitOutcomeUnknownError, ConflictError, SettleError, TransactionClosedError


class Told(list[str]):
    """Notes who was called, and whether the root could be locked by then."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def by(self, name: str) -> Callable[[], None]:
        def call() -> None:
            with FileTransaction(self.root, timeout=0):
                self.append(name)

        return call


def begun(root: Path, told: Told) -> FileTransaction:
    tx = FileTransaction(root)
    tx.begin()
    tx.on_commit(told.by("first commit"))
    tx.on_rollback(told.by("rollback"))
    tx.on_commit(told.by("second commit"))
    return tx


def outcome_of(tx: FileTransaction) -> str:
    return tx.outcome


# -- plan -----------------------------------------------------------------------------------------------------------


def test_a_plan_is_the_net_effect(root: Path) -> None:
    for name in ("old", "moved", "gone/f"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(name, encoding="utf-8")
    with FileTransaction(root) as tx:
        assert tx.plan() == ()
        assert str(tx.plan()) == ""
        tx.write("old", "new content")
        tx.write("new/deep", "x")
        tx.write("nothing", "is left of it")
        tx.delete("nothing")
        tx.delete_tree("gone")
        tx.move("moved", "there")
        tx.move("there", "moved")
        plan = tx.plan()
        assert str(plan).splitlines() == [
            "delete gone/f",
            "rmdir gone",
            "mkdir new",
            "create new/deep (1 bytes)",
            "replace old (11 bytes)",
        ]
        assert {change.kind: change.path for change in plan}["replace"] == "old"
        assert tx.plan() == plan, "asking changes nothing"
    assert (root / "moved").read_text(encoding="utf-8") == "moved"
    assert (root / "new/deep").read_text(encoding="utf-8") == "x"


def test_a_plan_shows_links(root: Path) -> None:
    (root / "link").symlink_to("a")
    with FileTransaction(root) as tx:
        tx.move("link", "there")
        assert str(tx.plan()).splitlines() == ["delete link", "create there -> a"]


def test_a_plan_that_cannot_be_done_says_why(root: Path) -> None:
    (root / "a").write_text("a", encoding="utf-8")
    with FileTransaction(root) as tx:
        tx.write("a", "mine", if_version=tx.version("a"))
        (root / "a").write_text("theirs", encoding="utf-8")
        with pytest.raises(ConflictError):
            tx.plan()
        tx.rollback()


# -- outcome and callbacks ------------------------------------------------------------------------------------------


def test_after_a_commit(root: Path) -> None:
    told = Told(root)
    tx = begun(root, told)
    tx.write("a", "new")
    assert outcome_of(tx) == "before"
    tx.commit()
    assert outcome_of(tx) == "after"
    assert told == ["first commit", "second commit"]
    with pytest.raises(TransactionClosedError):
        tx.commit()
    assert outcome_of(tx) == "after"
    assert len(told) == 2, "nobody is told twice"


def test_a_transaction_without_a_change_is_committed_too(root: Path) -> None:
    told = Told(root)
    begun(root, told).commit()
    assert told == ["first commit", "second commit"]


def test_after_a_rollback(root: Path) -> None:
    told = Told(root)
    tx = begun(root, told)
    tx.write("a", "new")
    tx.rollback()
    assert outcome_of(tx) == "before"
    assert told == ["rollback"]


def test_after_an_exception_in_the_block(root: Path) -> None:
    told = Told(root)

    def fails() -> None:
        raise OSError("no mail")

    with pytest.raises(ValueError, match="mine") as caught, FileTransaction(root) as tx:
        tx.on_rollback(fails)
        tx.on_rollback(told.by("rollback"))
        raise ValueError("mine")
    assert told == ["rollback"]
    assert any("no mail" in note for note in caught.value.__notes__)


class Failing(system.KernelFS):
    """`fails(call, name)` says which renames fail, and after the commit point which syncs."""

    def __init__(self, fails: Callable[[str, bytes], bool]) -> None:
        super().__init__()
        self._fails = fails
        self._renamed = False

    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        if self._fails("rename", new):
            raise OSError(errno.EIO, "no rename")
        super().rename(at, name, to, new)
        self._renamed |= new.endswith(b".committed")

    def sync_dir(self, fd: int) -> None:
        if self._renamed and self._fails("sync_dir", b""):
            raise OSError(errno.EIO, "no sync")
        super().sync_dir(fd)


@pytest.mark.parametrize(
    ("fails", "outcome", "error", "who"),
    [
        (lambda call, name: name.endswith(b".committed"), "before", CommitError, ["rollback"]),
        (lambda call, name: name == b"HEAD", "after", SettleError, ["first commit", "second commit"]),
        (lambda call, name: call == "sync_dir", "unknown", CommitOutcomeUnknownError, []),
    ],
    ids=["before", "after", "unknown"],
)
@pytest.mark.leaves_debris
def test_after_a_failed_commit(
    root: Path, fails: Callable[[str, bytes], bool], outcome: str, error: type[Exception], who: list[str]
) -> None:
    (root / "a").write_text("old", encoding="utf-8")
    told: list[str] = []
    with system.use(Failing(fails)):
        tx = FileTransaction(root).begin()
        for name in ("first commit", "second commit"):
            tx.on_commit(lambda name=name: told.append(name))
        tx.on_rollback(lambda: told.append("rollback"))
        tx.write("a", "new")
        with pytest.raises(error):
            tx.commit()
    assert outcome_of(tx) == outcome
    assert told == who


def test_an_interrupt_does_not_hide_the_outcome(root: Path) -> None:
    told = Told(root)

    class Interrupting(system.KernelFS):
        def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
            super().rename(at, name, to, new)
            if new == b"HEAD":
                raise KeyboardInterrupt

    with system.use(Interrupting()):
        tx = begun(root, told)
        tx.write("a", "new")
        with pytest.raises(KeyboardInterrupt):
            tx.commit()
    assert outcome_of(tx) == "after"
    assert told == ["first commit", "second commit"]
    assert (root / "a").read_text(encoding="utf-8") == "new"


def test_an_exception_of_a_callback_keeps_none_of_the_others(root: Path) -> None:
    told = Told(root)

    def fails() -> None:
        raise ValueError("no mail")

    with pytest.raises(ValueError, match="no mail") as caught, FileTransaction(root) as tx:
        tx.on_commit(fails)
        tx.on_commit(fails)
        tx.on_commit(told.by("commit"))
        tx.write("a", "new")
    assert told == ["commit"]
    assert outcome_of(tx) == "after"
    assert "outcome is 'after'" in caught.value.__notes__[0]
    assert len(caught.value.__notes__) == 2


def test_a_savepoint_that_is_undone(root: Path) -> None:
    told = Told(root)
    with FileTransaction(root) as tx:
        with pytest.raises(ValueError, match="undo"), tx.savepoint():
            tx.on_commit(told.by("inner commit"))
            tx.on_rollback(told.by("inner rollback"))
            raise ValueError("undo")
        with tx.savepoint():
            tx.on_commit(told.by("commit"))
            tx.on_rollback(told.by("rollback"))
        assert told == []
    assert told == ["inner rollback", "commit"]


@pytest.mark.parametrize("commit", [True, False])
def test_after_a_decision(root: Path, commit: bool) -> None:
    told = Told(root)
    tx = begun(root, told)
    tx.write("a", "new")
    tx.prepare()
    assert outcome_of(tx) == "before"
    assert told == []
    if commit:
        tx.commit()
        assert outcome_of(tx) == "after"
        assert told == ["first commit", "second commit"]
    else:
        tx.rollback()
        assert outcome_of(tx) == "before"
        assert told == ["rollback"]


def test_what_somebody_else_decides_is_not_told(root: Path) -> None:
    told = Told(root)
    with FileTransaction(root) as tx:
        tx.on_commit(told.by("commit"))
        tx.on_rollback(told.by("rollback"))
        tx.write("a", "new")
        prepared = tx.prepare()
    commit_prepared(root, prepared)
    assert told == []


def test_nobody_can_ask_after_the_end(root: Path) -> None:
    with FileTransaction(root) as tx:
        pass
    for call in (tx.on_commit, tx.on_rollback):
        with pytest.raises(TransactionClosedError):
            call(lambda: None)


# -- progress -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "total"), [("full", 23), ("process", 13)])
def test_progress_counts_what_is_durable_and_what_is_made(root: Path, durability: Any, total: int) -> None:
    (root / "gone").write_text("x", encoding="utf-8")
    seen: list[tuple[int, int]] = []
    with FileTransaction(root, durability=durability) as tx:
        tx.on_progress(lambda done, total: seen.append((done, total)))
        for number in range(10):
            tx.write(f"new/{number}", "x")
        tx.delete("gone")
        tx.mkdir("empty")
        assert not seen
    assert seen == [(done, total) for done in range(1, total + 1)]


def test_what_progress_raises_holds_nothing_up(root: Path) -> None:
    calls = []

    def fails(done: int, total: int) -> None:
        calls.append(done)
        raise ValueError("no terminal")

    with pytest.raises(ValueError, match="no terminal"), FileTransaction(root) as tx:
        tx.on_progress(fails)
        for name in "abc":
            tx.write(name, "new")
    assert calls == [1], "not called again"
    assert outcome_of(tx) == "after"
    assert sorted(path.name for path in root.iterdir() if path.name != ".txfiles") == ["a", "b", "c"]


def test_the_twin(root: Path) -> None:
    told = Told(root)

    async def run() -> None:
        async with AsyncFileTransaction(root) as tx:
            await tx.on_commit(told.by("commit"))
            await tx.on_rollback(told.by("rollback"))
            await tx.write("a", "new")
            assert str(await tx.plan()) == "create a (3 bytes)"
        assert tx.outcome == "after"

    asyncio.run(run())
    assert told == ["commit"]
