"""`recover` and `status`: what they say and do after a process died at each step of a commit."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.boundary import Refusing, killed, tree
from tests.support.procs import child, run_python
from txfiles import FileStore, FileTransaction, RecoveryReport, StoreStatus, recover, status
from txfiles._disk import system
from txfiles.errors import (
    InvalidPathError,
    LockTimeoutError,
    NestedTransactionError,
    RecoveryConflictError,
    RecoveryError,
)

OLD: dict[str, object] = {"a": b"old", "b": b"old", "gone": b"old"}
NEW: dict[str, object] = {"a": b"new", "b": b"new", "n": None, "n/c": b"new"}
PATHS = ["a", "b", "gone", "n", "n/c"]


def _save(root: Path, durability: Any = "full") -> None:
    with FileTransaction(root, durability=durability) as tx:
        tx.write("a", "new")
        tx.write("b", "new")
        tx.write("n/c", "new")
        tx.delete("gone")


# A death before one of these calls of the commit, and what it leaves.
DEATHS = {
    "while it writes the journal": ("link", 1),
    "at the commit point": ("rename", 1),
    "before anything is applied": ("rename", 2),
    "in the midst of it": ("rename", 4),
    "before it is settled": ("rename", 6),
    "while it tidies up": ("unlink", 4),
}


@pytest.fixture
def used(root: Path) -> Path:
    with FileTransaction(root) as tx:
        for path in ("a", "b", "gone"):
            tx.write(path, "old")
    return root


def _die(root: Path, death: str, durability: Any = "full") -> None:
    killed(lambda: _save(root, durability), *DEATHS[death])


def _stats(root: Path) -> dict[str, tuple[int, ...]]:
    """Of everything, all but when it was read."""
    found: dict[str, tuple[int, ...]] = {}
    for folder, directories, files in os.walk(root):
        for path in (os.path.join(folder, name) for name in [".", *directories, *files]):
            stat = os.lstat(path)
            found[path] = (stat.st_ino, stat.st_mode, stat.st_nlink, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return found


def _private(root: Path) -> list[str]:
    return sorted(os.listdir(root / ".txfiles"))


# -- reports --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("death", DEATHS)
def test_what_is_recovered_is_reported(used: Path, death: str, durability: Any) -> None:
    _die(used, death, durability)
    after = list(DEATHS).index(death) > 1
    pending = status(used)
    report = recover(used, timeout=0)
    assert tree(used) == (NEW if after else OLD)
    assert not report.clean
    assert (report.waiting, report.unknown) == ([], [])
    if death in ("while it writes the journal", "while it tidies up"):
        assert (report.rolled_forward, report.rolled_back) == ([], [])
        assert report.removed
    else:
        done = report.rolled_forward if after else report.rolled_back
        assert report.rolled_forward + report.rolled_back == done
        assert [transaction.paths for transaction in done] == [PATHS]
        assert [transaction.transaction_id for transaction in done] == [one.transaction_id for one in pending.pending]
    assert _private(used) == ["HEAD", "format", "lock", "spare"]
    assert recover(used) == RecoveryReport()
    assert recover(used).clean
    assert status(used).clean


@pytest.mark.leaves_debris
@pytest.mark.parametrize("death", DEATHS)
def test_status_tells_before_and_changes_nothing(used: Path, death: str) -> None:
    head = status(used).head
    _die(used, death)
    before = _stats(used)
    found = status(used)
    assert not found.clean
    assert found.unknown == []
    if death in ("while it writes the journal", "at the commit point"):
        assert found.head == head
    if death == "while it tidies up":
        assert (found.pending, found.head != head) == ([], True)
        assert found.debris
    else:
        [pending] = found.pending
        assert pending.state == ("intent" if list(DEATHS).index(death) < 2 else "committed")
        written = death != "while it writes the journal"  # a journal not yet whole is no damage
        assert (pending.paths, pending.error) == (PATHS if written else [], None)
    assert _stats(used) == before


@pytest.mark.parametrize("death", DEATHS)
def test_a_transaction_that_begins_recovers_first(used: Path, death: str) -> None:
    _die(used, death)
    with FileTransaction(used, timeout=0) as tx:
        assert tx.read("a") == (b"new" if list(DEATHS).index(death) > 1 else b"old")
        assert tx.exists("gone") == (list(DEATHS).index(death) <= 1)
    assert status(used).clean


def test_the_head_tells_of_the_last_commit(used: Path) -> None:
    first = status(used).head
    assert first is not None
    assert first.paths == ["a", "b", "gone"]
    _save(used)
    second = status(used).head
    assert second is not None
    assert (second.sequence, second.paths) == (first.sequence + 1, PATHS)
    assert first.transaction_id != second.transaction_id
    FileTransaction(used).begin().rollback()
    with FileTransaction(used):
        pass
    assert status(used).head == second


def test_what_was_done_is_logged(used: Path, caplog: pytest.LogCaptureFixture) -> None:
    _die(used, "in the midst of it")
    with caplog.at_level(logging.INFO, "txfiles"):
        [done] = recover(used).rolled_forward
        recover(used)
    assert len(caplog.records) == 1
    for told in (str(used), "forward", done.transaction_id, "n/c"):
        assert told in caplog.text


# -- nothing to recover ---------------------------------------------------------------------------------------------


def test_a_root_that_never_held_a_transaction_stays_as_it_is(root: Path) -> None:
    (root / "a").write_text("x", encoding="utf-8")
    before = _stats(root)
    for _ in range(2):
        assert recover(root) == RecoveryReport()
        assert status(root) == StoreStatus(is_root=False)
        assert FileStore(root).recover().clean
        assert FileStore(root).status().clean
    assert os.listdir(root) == ["a"]
    assert _stats(root) == before


def test_at_rest_it_changes_nothing_and_needs_no_lock(used: Path) -> None:
    before = _stats(used)
    with FileTransaction(used):
        assert recover(used, timeout=0).clean
    assert _stats(used) == before


def test_a_live_writer_is_waited_for_and_not_recovered(used: Path) -> None:
    tx = FileTransaction(used).begin()
    tx.write("a", "staged")
    assert status(used).debris, "what a writer has staged looks like this"

    def elsewhere() -> None:
        for timeout in (0, 0.05):
            with pytest.raises(LockTimeoutError) as caught:
                recover(used, timeout=timeout)
            assert caught.value.path is not None

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    with pytest.raises(NestedTransactionError):
        recover(used, timeout=0)
    tx.commit()
    assert recover(used, timeout=0).clean
    assert (used / "a").read_text(encoding="utf-8") == "staged"


@pytest.mark.parametrize("settings", [{"on_conflict": "guess"}, {"timeout": -1}, {"timeout": "1"}], ids=str)
def test_settings_are_checked(used: Path, settings: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        recover(used, **settings)


def test_bad_roots(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for look in (recover, status):
        with pytest.raises(FileNotFoundError):
            look(tmp_path / "missing")
        with pytest.raises(NotADirectoryError):
            look(tmp_path / "file")
        with pytest.raises(InvalidPathError):
            look("")


# -- what others did meanwhile --------------------------------------------------------------------------------------

DECISIONS: dict[str, dict[str, object]] = {
    "keep-theirs": {**NEW, "b": b"theirs"},
    "roll-forward": NEW,
    "roll-back": {**OLD, "b": b"theirs"},
}


@pytest.mark.parametrize("decision", DECISIONS)
def test_an_edit_since_the_crash_is_a_conflict_until_it_is_decided(used: Path, decision: Any) -> None:
    _die(used, "in the midst of it")
    (used / "b").write_text("theirs", encoding="utf-8")
    before, private = tree(used), _private(used)
    for look in (lambda: recover(used), lambda: FileTransaction(used).begin(), lambda: FileStore(used).recover()):
        with pytest.raises(RecoveryConflictError) as caught:
            look()
        assert isinstance(caught.value, RecoveryError)
        assert (caught.value.paths, caught.value.path, caught.value.outcome) == (("b",), "b", "unknown")
        assert (tree(used), _private(used)) == (before, private)
    report = recover(used, on_conflict=decision)
    assert tree(used) == DECISIONS[decision]
    assert bool(report.rolled_back) == (decision == "roll-back")
    assert bool(report.rolled_forward) == (decision != "roll-back")
    assert _private(used) == ["HEAD", "format", "lock", "spare"]
    with FileTransaction(used, timeout=0) as tx:
        tx.write("b", "next")


def test_without_a_conflict_nothing_is_to_be_decided(used: Path) -> None:
    """The decision is about conflicts only; a committed transaction is rolled forward whatever it says."""
    for decision in ("keep-theirs", "roll-forward", "roll-back"):
        with FileTransaction(used) as tx:
            for path in ("a", "b", "gone"):
                tx.write(path, "old")
            if tx.exists("n"):
                tx.delete_tree("n")
        _die(used, "in the midst of it")
        assert recover(used, on_conflict=decision).rolled_forward  # type: ignore[arg-type]
        assert tree(used) == NEW


def test_names_that_are_not_ours_are_told_and_left(used: Path) -> None:
    (used / ".txfiles/notes.txt").write_text("mine", encoding="utf-8")
    assert (status(used).foreign, status(used).unknown) == (["notes.txt"], [])
    report = recover(used)
    assert (report.foreign, report.unknown, report.clean, status(used).clean) == (["notes.txt"], [], True, True)
    _die(used, "in the midst of it")
    assert recover(used).foreign == ["notes.txt"]
    with FileTransaction(used, timeout=0) as tx:
        tx.write("a", "next")
    assert (used / ".txfiles/notes.txt").read_text(encoding="utf-8") == "mine"
    (used / ".txfiles/notes.txt").unlink()


def test_a_prepared_transaction_waits_for_its_decision(used: Path) -> None:
    """Readers see the state before, and writers wait for it as for another writer."""
    killed(lambda: _save(used), "rename", 1)
    [intent] = (used / ".txfiles").glob("*.intent")
    body = intent.read_bytes()
    intent.rename(intent.with_suffix(".prepared"))
    [pending] = status(used).pending
    assert (pending.state, pending.paths) == ("prepared", PATHS)
    for _ in range(2):
        report = recover(used)
        assert not report.clean
        assert [one.transaction_id for one in report.waiting] == [intent.stem]
        assert (report.rolled_forward, report.rolled_back) == ([], [])
    with pytest.raises(LockTimeoutError, match=f"{intent.stem}.*waits for a decision"):
        FileTransaction(used, timeout=0).begin()
    assert tree(used) == OLD
    assert intent.with_suffix(".prepared").read_bytes() == body
    intent.with_suffix(".prepared").rename(intent)  # the decision: it never happened
    assert recover(used).rolled_back
    assert tree(used) == OLD


def test_an_undo_that_died_is_finished(used: Path) -> None:
    with system.use(Refusing(b"c", then_die_undoing=True)):
        pid = os.fork()
        if pid == 0:
            try:
                _save(used)
            finally:
                os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    [pending] = status(used).pending
    assert pending.state == "aborting"
    assert tree(used) != OLD
    [done] = recover(used).rolled_back
    assert done.paths == PATHS
    assert tree(used) == OLD


# -- many at once, and again and again ------------------------------------------------------------------------------


@pytest.mark.parametrize("death", ["at the commit point", "in the midst of it"])
def test_many_processes_at_once(used: Path, death: str) -> None:
    """As the workers of a service do when it starts: one of them recovers, all of them find it done."""
    _die(used, death)
    code = """
        from txfiles import recover
        print("ready")
        input()
        report = recover(sys.argv[1])
        print(len(report.rolled_forward) + len(report.rolled_back))
    """
    with child(code, used) as one, child(code, used) as two, child(code, used) as three:
        workers = (one, two, three)
        for worker in workers:
            worker.expect("ready")
        for worker in workers:
            worker.send()
        done = [worker.finish().check().stdout.split()[1] for worker in workers]
    assert sorted(done) == ["0", "0", "1"]
    assert tree(used) == (OLD if death == "at the commit point" else NEW)


def test_many_threads_at_once(used: Path) -> None:
    _die(used, "in the midst of it")
    reports: list[RecoveryReport] = []
    threads = [threading.Thread(target=lambda: reports.append(recover(used))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(report.rolled_forward) for report in reports) == 1
    assert tree(used) == NEW


def test_killed_again_and_again(used: Path) -> None:
    _die(used, "in the midst of it")
    for nth in range(1, 4):
        killed(lambda: recover(used), "rename", 1)
        killed(lambda: recover(used), "stat", 3 * nth)
    assert recover(used).rolled_forward
    assert tree(used) == NEW


def test_the_report_is_plain_data(used: Path) -> None:
    code = """
        import dataclasses
        from txfiles import recover, status
        print(json.dumps([dataclasses.asdict(status(sys.argv[1])), dataclasses.asdict(recover(sys.argv[1]))]))
    """
    _die(used, "in the midst of it")
    found, report = json.loads(run_python(code, used).check().stdout)
    assert found["pending"][0]["paths"] == report["rolled_forward"][0]["paths"] == PATHS
