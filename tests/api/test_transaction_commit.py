"""A commit as others see it, what it asks of the system, and what it says when the system refuses."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.boundary import nth_call, tree
from tests.support.inject import SYNC, traced
from tests.support.mounts import tmpfs
from txfiles import FileTransaction, GivenUp, recover, status
from txfiles._disk import system
from txfiles._format import journal
from txfiles.errors import CommitError, CommitOutcomeUnknownError, ConflictError, SettleError, TxFilesError
from txfiles.testing._faults import FaultyFS

WRITING = {
    "create",
    "write",
    "mkdir",
    "rmdir",
    "link",
    "rename",
    "unlink",
    "symlink",
    "chmod",
    "chown",
    "sync_file",
    "sync_dir",
}


def _fill(root: Path) -> None:
    (root / "d").mkdir()
    for path in ("a", "b", "c", "d/a", "d/b"):
        (root / path).write_text(f"old {path}", encoding="utf-8")


def _used(root: Path) -> None:
    """A root that has had its first transaction, which costs more than later ones."""
    with FileTransaction(root) as tx:
        tx.write("first", "x")


def _traced(root: Path, change: Callable[[FileTransaction], object]) -> list[str]:
    """The calls of a transaction from its begin to its end."""
    fs: Any = FaultyFS(system.KernelFS())
    with system.use(fs):
        tx = FileTransaction(root).begin()
    fs.trace.clear()
    with tx.savepoint():
        change(tx)
    tx.commit()
    return list(fs.trace)


def _stats(root: Path) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for folder, directories, files in os.walk(root):
        for name in [".", *directories, *files]:
            stat = os.lstat(os.path.join(folder, name))
            path = os.path.relpath(os.path.join(folder, name), root)
            found[path] = (stat.st_ino, stat.st_mode, stat.st_nlink, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return found


# -- nothing to do --------------------------------------------------------------------------------------------------


def _reads(tx: FileTransaction) -> None:
    tx.read("a")
    tx.open("b").close()
    tx.exists("x")
    tx.listdir("d")
    tx.glob("**")
    tx.version("a")


def _undone(tx: FileTransaction) -> None:
    with pytest.raises(ZeroDivisionError), tx.savepoint():
        tx.write("a", "x")
        raise ZeroDivisionError


TOUCH_NOTHING: dict[str, Callable[[FileTransaction], Any]] = {
    "nothing": lambda tx: None,
    "reads": _reads,
    "mkdir of what is there": lambda tx: tx.mkdir("d"),
    "delete what is missing": lambda tx: tx.delete("x", missing_ok=True),
    "move onto itself": lambda tx: tx.move("a", "a"),
    "copy onto itself": lambda tx: tx.copy("a", "./a"),
}
CHANGE_NOTHING: dict[str, list[tuple[str, ...]]] = {
    "made and deleted": [("write", "x", "x"), ("delete", "x")],
    "made and deleted in a directory": [("write", "x/y", "x"), ("delete_tree", "x")],
    "a directory made and deleted": [("mkdir", "x/y"), ("delete_tree", "x")],
    "moved there and back": [("move", "a", "x"), ("move", "x", "a")],
    "swapped twice": [("move", "a", "x"), ("move", "b", "a"), ("move", "x", "b")] * 2,
    "a directory moved there and back": [("move", "d", "x"), ("move", "x", "d")],
}


@pytest.mark.parametrize("what", TOUCH_NOTHING)
def test_a_transaction_that_changes_nothing_touches_nothing(root: Path, what: str) -> None:
    _fill(root)
    _used(root)
    before = _stats(root)
    assert not WRITING & set(_traced(root, TOUCH_NOTHING[what]))
    assert _stats(root) == before


@pytest.mark.parametrize("what", CHANGE_NOTHING)
def test_changes_that_come_to_nothing_write_no_journal(root: Path, what: str) -> None:
    _fill(root)
    _used(root)
    before, head = _stats(root), (root / ".txfiles/HEAD").read_bytes()
    trace = _traced(root, lambda tx: [getattr(tx, name)(*arguments) for name, *arguments in CHANGE_NOTHING[what]])
    assert not {"rename", "mkdir", "rmdir", "sync_file", "sync_dir"} & set(trace)
    changed = {path for path, stat in _stats(root).items() if before.get(path) != stat}
    assert changed <= {".txfiles", ".txfiles/.", "a", "b", "d/a", "d/b"}, "but for times of a directory and links"
    assert {path: stat[:5] for path, stat in before.items() if not path.startswith(".txfiles")} == {
        path: stat[:5] for path, stat in _stats(root).items() if not path.startswith(".txfiles")
    }
    assert (root / ".txfiles/HEAD").read_bytes() == head


def test_a_rollback_syncs_nothing(root: Path) -> None:
    _used(root)
    fs: Any = FaultyFS(system.KernelFS())
    with system.use(fs):
        tx = FileTransaction(root).begin()
        tx.write("a", "x")
        tx.rollback()
    assert not {"rename", "sync_file", "sync_dir"} & set(fs.trace)


# -- the rounds of syncs --------------------------------------------------------------------------------------------


def _pattern(trace: list[str]) -> str:
    """S for a sync, R for a rename, D for a directory that is made or removed."""
    letters = {"sync_file": "S", "sync_dir": "S", "rename": "R", "mkdir": "D", "rmdir": "D"}
    return "".join(letters.get(call, "") for call in trace)


@pytest.mark.parametrize("number", [1, 4, 30])
def test_one_round_before_the_commit_point_and_one_after(root: Path, number: int) -> None:
    for path in range(number):
        (root / str(path)).write_text("old", encoding="utf-8")
    (root / "gone").write_text("old", encoding="utf-8")
    _used(root)

    def change(tx: FileTransaction) -> None:
        for path in range(number):
            tx.write(str(path), "new")
        tx.delete("gone")
        tx.write("new", "new")

    pattern = _pattern(_traced(root, change))
    assert re.fullmatch(rf"S+RR{{{number + 2}}}S+R", pattern), pattern


def test_directories_cost_a_barrier_before_and_one_after(root: Path) -> None:
    (root / "gone").mkdir()
    (root / "gone/a").write_text("old", encoding="utf-8")
    _used(root)

    def change(tx: FileTransaction) -> None:
        tx.delete_tree("gone")
        tx.write("new/deep/a", "new")

    pattern = _pattern(_traced(root, change))
    assert re.fullmatch(r"S+RRS+DDDS+RS+R", pattern), pattern


@pytest.mark.needs("strace")
def test_process_durability_makes_no_sync_at_all(root: Path) -> None:
    """Neither at the first commit of a root nor with directories, nor in an undo or a recovery."""
    (root / "gone").mkdir()
    (root / "old").write_text("old", encoding="utf-8")
    code = """
        from txfiles import FileTransaction, recover
        FileTransaction(sys.argv[1], durability="process")
        with region():
            with FileTransaction(sys.argv[1] + "/sub/root", durability="process", create=True) as tx:
                tx.write("a", b"x" * 9_000_000)
            with FileTransaction(sys.argv[1], durability="process") as tx:
                tx.write("new/deep/a", "x")
                tx.delete_tree("gone")
                tx.move("old", "new/old")
            recover(sys.argv[1])
    """
    done = traced(code, root, calls=(*SYNC, "rename", "renameat", "renameat2"))
    done.check()
    assert [call.name for call in done.calls if call.name in SYNC] == []
    assert done.named("rename", "renameat", "renameat2")
    assert (root / "new/old").read_text(encoding="utf-8") == "old"
    assert not (root / "gone").exists()


class _Refusing(system.KernelFS):
    """Syncs of directories fail with `error`."""

    def __init__(self, error: int) -> None:
        self.error = error

    def sync_dir(self, fd: int) -> None:
        raise OSError(self.error, os.strerror(self.error))


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS], ids=errno.errorcode.get)
def test_a_file_system_that_cannot_sync_directories_is_said_once(
    root: Path, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "txfiles"), system.use(_Refusing(error)):
        for content in ("1", "2", "3"):
            with FileTransaction(root, accept={"unsynced-directories"}) as tx:
                tx.write("new/a", content)
            assert tx.given_up == (GivenUp("unsynced-directories", str(root)),)
    assert tree(root)["new/a"] == b"3"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(root) in caplog.text
    assert "cannot sync directories" in caplog.text


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES], ids=errno.errorcode.get)
def test_any_other_failure_of_it_is_raised(root: Path, error: int) -> None:
    _used(root)
    with system.use(_Refusing(error)), pytest.raises(TxFilesError) as caught, FileTransaction(root) as tx:
        tx.write("a", "x")
    assert isinstance(caught.value, (CommitError, CommitOutcomeUnknownError))
    assert isinstance(caught.value.__cause__, OSError)
    recover(root)
    assert tree(root) == {"first": b"x"}


# -- what the error says --------------------------------------------------------------------------------------------


def _fails(root: Path, call: str, nth: int, error: int = errno.EIO) -> TxFilesError:
    """The error of a commit of a, b and c whose `nth` call of this name after staging fails."""
    (root / "a").write_text("old", encoding="utf-8")
    (root / "b").write_text("old", encoding="utf-8")
    _used(root)
    tx = None

    def fail() -> None:
        raise OSError(error, os.strerror(error))

    fs: Any = nth_call(call, nth, fail)
    with system.use(fs):
        tx = FileTransaction(root).begin()
    tx.write("a", "new")
    tx.write("b", "new")
    tx.write("c", "new")
    with pytest.raises(TxFilesError) as caught:
        tx.commit()
    raised = caught.value
    copied = pickle.loads(pickle.dumps(raised))
    assert (type(copied), str(copied), copied.outcome, copied.path) == (
        type(raised), str(raised), raised.outcome, raised.path,
    )  # fmt: skip
    assert isinstance(raised.__cause__, OSError)
    assert raised.__cause__.errno == error
    return raised


OLD = {"a": b"old", "b": b"old", "first": b"x"}
NEW = {"a": b"new", "b": b"new", "c": b"new", "first": b"x"}
ERRORS: dict[str, tuple[str, int, type[TxFilesError], str | None, dict[str, bytes]]] = {
    "a sync of the first round": ("sync_file", 1, CommitError, None, OLD),
    "the commit point": ("rename", 1, CommitError, None, OLD),
    "the first target": ("rename", 2, CommitError, "a", OLD),
    "the second target": ("rename", 3, CommitError, "b", OLD),
    "a new file": ("rename", 4, CommitError, "c", OLD),
    "settling": ("rename", 5, SettleError, None, NEW),
    "tidying up": ("unlink", 1, SettleError, None, NEW),
}


@pytest.mark.parametrize("step", ERRORS)
def test_an_error_says_what_is_on_disk_and_where_it_happened(root: Path, step: str) -> None:
    call, nth, error, path, found = ERRORS[step]
    raised = _fails(root, call, nth)
    assert type(raised) is error
    assert raised.outcome == ("before" if found is OLD else "after")
    assert raised.path == (path or str(root))
    assert tree(root) == found
    if found is OLD:
        assert status(root).clean, "nothing is left for recovery"
    with FileTransaction(root, timeout=0) as tx:
        assert tx.read("a") == found["a"]
        tx.write("a", "next")
    assert (root / "a").read_text(encoding="utf-8") == "next"


def test_the_target_became_a_directory(root: Path) -> None:
    tx = FileTransaction(root).begin()
    tx.write("a", "x")
    tx.write("b", "x")
    (root / "b").mkdir()
    with pytest.raises(TxFilesError) as caught:
        tx.commit()
    assert (caught.value.outcome, caught.value.path) == ("before", "b")
    assert isinstance(caught.value.__cause__, IsADirectoryError)
    assert tree(root) == {"b": None}
    assert sorted(os.listdir(root / ".txfiles")) == ["format", "lock"]


class _After(system.KernelFS):
    """Does something once, after the first round of syncs."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act: Callable[[], object] | None = act

    def run_all(self, jobs: Any) -> None:
        super().run_all(jobs)
        act, self._act = self._act, None
        if act is not None:
            act()


def test_a_directory_was_swapped_for_another_in_the_sync_round(root: Path) -> None:
    with FileTransaction(root) as tx:
        for path in ("c", "d/a", "e/a"):
            tx.write(path, f"old {path}")

    def swap() -> None:
        (root / "d").rename(root / "f")
        (root / "e").rename(root / "d")

    with system.use(_After(swap)), pytest.raises(ConflictError), FileTransaction(root) as tx:
        tx.write("c", "new")
        tx.write("d/a", "new")
    assert tree(root) == {"c": b"old c", "d": None, "d/a": b"old e/a", "f": None, "f/a": b"old d/a"}


@pytest.mark.needs("mount")
@pytest.mark.parametrize("seconds", [20_000_000_000, -20_000_000_000])
@pytest.mark.parametrize("change", ["write", "delete", "move"])
def test_a_time_that_no_journal_can_hold(root: Path, change: str, seconds: int) -> None:
    with tmpfs(root):
        _used(root)
        (root / "old").write_text("old", encoding="utf-8")
        os.utime(root / "old", (0, seconds))
        tx = FileTransaction(root).begin()
        tx.write("a", "new")
        getattr(tx, change)("old", *{"write": ["new"], "move": ["moved"]}.get(change, []))
        with pytest.raises(CommitError, match="its time of modification is beyond 64 bits") as caught:
            tx.commit()
        assert (caught.value.outcome, caught.value.path) == ("before", "old")
        assert tree(root) == {"first": b"x", "old": b"old"}
        assert status(root).clean


def test_a_journal_that_nobody_could_read_is_not_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _used(root)
    size = (root / ".txfiles/HEAD").stat().st_size
    monkeypatch.setattr(journal, "MAX_SIZE", 2 * size + 1024)
    with (
        pytest.raises(CommitError, match=r"a journal of \d+ bytes is too large") as caught,
        FileTransaction(root) as tx,
    ):
        for number in range(10):
            tx.write(f"{number}", "new")
    assert caught.value.outcome == "before"
    assert tree(root) == {"first": b"x"}
    assert status(root).clean
    with FileTransaction(root) as tx:
        tx.write("a", "fits")


@pytest.mark.parametrize("what", ["root moved", "root replaced", "private directory replaced", "lock replaced"])
def test_the_place_is_no_longer_the_one_that_was_opened(root: Path, tmp_path: Path, what: str) -> None:
    tx = FileTransaction(root).begin()
    tx.write("a", "x")
    moved, private = tmp_path / "moved", root / ".txfiles"
    if what.startswith("root"):
        root.rename(moved)
        if what == "root replaced":
            root.mkdir()
    elif what == "lock replaced":
        (private / "lock").unlink()
        (private / "lock").touch()
    else:
        private.rename(moved)
        private.mkdir()
    with pytest.raises(ConflictError) as caught:
        tx.commit()
    assert caught.value.outcome == "before"
    assert caught.value.path is not None
    for place in (root, moved):
        assert not (place / "a").exists()
        assert (
            not [name for name in os.listdir(place / ".txfiles") if "." in name]
            if (place / ".txfiles").exists()
            else True
        )


# -- what other programs see ----------------------------------------------------------------------------------------


def _scene(tx: FileTransaction) -> None:
    tx.write("a", "new a")
    tx.write("d/a", "new d/a")
    tx.delete("c")
    tx.move("b", "n/b")
    tx.write("n/o/x", "new")
    tx.move("d/b", "b")


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("fails", [False, True], ids=["committed", "undone"])
def test_others_see_final_names_and_whole_files_at_every_moment(root: Path, durability: Any, fails: bool) -> None:
    _fill(root)
    before = tree(root)
    after = {
        "a": b"new a", "b": b"old d/b", "d": None, "d/a": b"new d/a",
        "n": None, "n/b": b"old b", "n/o": None, "n/o/x": b"new",
    }  # fmt: skip
    moments: list[dict[str, object]] = []
    renames = 0

    def look(_: int, name: str) -> None:
        nonlocal renames
        moments.append(tree(root))
        renames += name == "rename"
        if fails and name == "rename" and renames == 6:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    fs: Any = FaultyFS(system.KernelFS(), look)
    with system.use(fs):
        tx = FileTransaction(root, durability=durability).begin()
    _scene(tx)
    if fails:
        with pytest.raises(CommitError):
            tx.commit()
    else:
        tx.commit()
    assert tree(root) == (before if fails else after)
    for moment in moments:
        assert set(moment) <= set(before) | set(after)
        assert set(before) & set(after) <= set(moment), "what is there before and after is never missing"
        for path, content in moment.items():
            assert content in (before.get(path, content), after.get(path, content)), path
    assert before in moments
    assert any(moment not in (before, after) for moment in moments), "they were looked at in the midst of it"
