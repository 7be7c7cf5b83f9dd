"""Two phases: prepared, it waits for a decision, whoever makes it and whenever."""

from __future__ import annotations

import errno
import gc
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.boundary import killed, nth_call, tree
from tests.support.procs import child, run_python
from txfiles import FileStore, FileTransaction, JsonDocuments, commit_prepared, recover, rollback_prepared, status
from txfiles._disk import system
from txfiles.errors import (
    CommitError,
    CommitOutcomeUnknownError,
    ConflictError,
    InvalidPathError,
    LockTimeoutError,
    NestedTransactionError,
    RecoveryConflictError,
    RecoveryError,
    SettleError,
    TransactionClosedError,
)
from txfiles.recovery import verify
from txfiles.testing._faults import FaultyFS

OLD = {"a": b"old a", "b": b"old b", "gone": b"gone"}
NEW = {"a": b"new a", "b": b"old b", "new": None, "new/c": b"new c"}


@pytest.fixture
def used(root: Path) -> Path:
    for name, data in OLD.items():
        (root / name).write_bytes(data)
    with FileTransaction(root) as tx:
        tx.write("a", OLD["a"])
    return root


def change(tx: FileTransaction) -> None:
    tx.write("a", "new a")
    tx.write("new/c", "new c")
    tx.delete("gone")


def prepared(root: Path) -> str:
    with FileTransaction(root) as tx:
        change(tx)
        return tx.prepare()


def waiting(root: Path) -> list[str]:
    return [one.transaction_id for one in recover(root).waiting]


def resting(root: Path) -> bool:
    return set(os.listdir(root / ".txfiles")) == {"format", "lock", "HEAD", "spare"}


# -- one process ----------------------------------------------------------------------------------------------------


def test_prepare_then_commit(used: Path) -> None:
    with FileTransaction(used) as tx:
        change(tx)
        assert tx.prepare() == tx.transaction_id
        assert tree(used) == OLD
        tx.commit()
        assert tree(used) == NEW
        assert resting(used)
        with pytest.raises(TransactionClosedError, match="has ended"):
            tx.commit()


def test_prepare_then_roll_back(used: Path) -> None:
    with FileTransaction(used) as tx:
        change(tx)
        tx.prepare()
        tx.rollback()
        assert tree(used) == OLD
        assert resting(used)


def test_a_prepared_transaction_stages_nothing_more(used: Path) -> None:
    with FileTransaction(used) as tx:
        change(tx)
        file = tx.open("a", "rb")
        tx.prepare()
        for call in (lambda: tx.read("a"), lambda: tx.write("a", "x"), lambda: tx.open("a"), tx.prepare):
            with pytest.raises(TransactionClosedError, match="is prepared"):
                call()
        with pytest.raises(TransactionClosedError, match="is prepared"), tx.savepoint():
            pass
        assert file.read() == b"new a"
        file.close()
        tx.commit()
    assert tree(used) == NEW


def test_leaving_the_block_leaves_it_prepared(used: Path) -> None:
    tid = prepared(used)
    assert waiting(used) == [tid]
    assert [(p.transaction_id, p.state) for p in status(used).pending] == [(tid, "prepared")]
    assert verify(used).sound
    assert tree(used) == OLD
    commit_prepared(used, tid)
    assert tree(used) == NEW
    assert resting(used)
    assert status(used).head is not None


def test_an_exception_in_the_block_does_not_decide_either(used: Path) -> None:
    with pytest.raises(ZeroDivisionError), FileTransaction(used) as tx:
        change(tx)
        tid = tx.prepare()
        raise ZeroDivisionError
    assert waiting(used) == [tid]
    rollback_prepared(used, tid)
    assert tree(used) == OLD
    assert resting(used)


def test_an_exception_before_prepare_rolls_back(used: Path) -> None:
    with pytest.raises(ZeroDivisionError), FileTransaction(used) as tx:
        change(tx)
        raise ZeroDivisionError
    assert resting(used)


def test_dropped_after_prepare_it_waits_and_frees_the_lock(used: Path) -> None:
    tx = FileTransaction(used).begin()
    change(tx)
    tid = tx.prepare()
    del tx
    gc.collect()
    commit_prepared(used, tid, timeout=0)
    assert tree(used) == NEW


def test_the_lock_is_kept_until_the_end_of_the_block(used: Path) -> None:
    with FileTransaction(used) as tx:
        change(tx)
        tid = tx.prepare()
        for call in (lambda: commit_prepared(used, tid), lambda: recover(used), FileTransaction(used).begin):
            with pytest.raises(NestedTransactionError):
                call()
        failed: list[BaseException] = []

        def elsewhere() -> None:
            try:
                commit_prepared(used, tid, timeout=0)
            except LockTimeoutError as error:
                failed.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert failed
        tx.rollback()


def test_the_others_wait_for_the_decision(used: Path) -> None:
    tid = prepared(used)
    with pytest.raises(LockTimeoutError, match=f"{tid}.*waits for a decision"):
        FileTransaction(used, timeout=0).begin()
    begun = time.monotonic()
    with pytest.raises(LockTimeoutError):
        FileTransaction(used, timeout=0.2).begin()
    assert time.monotonic() - begun >= 0.2
    decide = threading.Timer(0.2, commit_prepared, (used, tid))
    decide.start()
    with FileTransaction(used, timeout=10) as tx:
        assert tx.read("a") == b"new a"
    decide.join()


def test_without_a_timeout_they_wait_until_it_is_decided(used: Path) -> None:
    tid = prepared(used)
    decide = threading.Timer(0.2, rollback_prepared, (used, tid))
    decide.start()
    with FileTransaction(used, timeout=None) as tx:
        assert tx.read("a") == b"old a"
    decide.join()


def test_every_way_to_write_waits(used: Path) -> None:
    tid = prepared(used)
    store = FileStore(used, timeout=0)
    ways: list[Callable[[], object]] = [
        lambda: store.update(lambda tx: tx.write("b", "x")),
        lambda: JsonDocuments(used, {"d": 1}, timeout=0).save(d=2),
        lambda: FileTransaction(used, durability="process", timeout=0).begin(),
    ]
    for write in ways:
        with pytest.raises(LockTimeoutError, match=tid):
            write()
    assert tree(used) == OLD
    rollback_prepared(used, tid)


def test_recovery_decides_nothing_whatever_it_is_told(used: Path) -> None:
    tid = prepared(used)
    (used / "a").write_bytes(b"theirs")
    for on_conflict in ("raise", "keep-theirs", "roll-forward", "roll-back"):
        report = recover(used, on_conflict=on_conflict)  # type: ignore[arg-type]
        assert [(one.transaction_id, one.paths) for one in report.waiting] == [(tid, ["a", "gone", "new", "new/c"])]
        assert not report.clean
    assert tree(used) == {**OLD, "a": b"theirs"}
    rollback_prepared(used, tid)


def test_readers_see_the_state_before(used: Path) -> None:
    store = FileStore(used)
    version = store.state_version()
    tid = prepared(used)
    with store.snapshot() as snap:
        assert (snap.read("a"), snap.exists("new"), snap.listdir()) == (b"old a", False, sorted(OLD))
        commit_prepared(used, tid)
        assert snap.read("b") == b"old b"
        with pytest.raises(ConflictError):
            snap.read("a")
    assert store.state_version() != version
    with store.snapshot() as snap:
        assert (snap.read("a"), snap.exists("gone")) == (b"new a", False)


def test_modes_owners_and_a_long_wait(used: Path) -> None:
    os.chmod(used / "a", 0o604)
    tid = prepared(used)
    assert waiting(used) == [tid] == waiting(used)
    commit_prepared(used, tid)
    assert stat.S_IMODE((used / "a").stat().st_mode) == 0o604


@pytest.mark.parametrize("decide", [commit_prepared, rollback_prepared])
def test_with_process_durability(used: Path, decide) -> None:
    fs = FaultyFS(system.KernelFS())
    with system.use(fs):  # type: ignore[arg-type]
        with FileTransaction(used, durability="process") as tx:
            change(tx)
            tid = tx.prepare()
            tx._owner = None
        assert "sync_dir" not in fs.trace
        assert "sync_file" not in fs.trace
    decide(used, tid)
    assert tree(used) == (NEW if decide is commit_prepared else OLD)
    assert resting(used)


# -- nothing to decide ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["commit", "rollback", "leave"])
def test_a_transaction_that_changes_nothing_leaves_nothing(used: Path, end: str) -> None:
    with FileTransaction(used) as tx:
        assert tx.read("a") == b"old a"
        tid = tx.prepare()
        if end != "leave":
            getattr(tx, end)()
    assert tid.startswith(tx.transaction_id)
    assert resting(used)
    commit_prepared(used, tid)
    rollback_prepared(used, tid)
    assert recover(used).clean


def test_two_of_them_have_two_ids(used: Path) -> None:
    ids = set()
    for _ in range(2):
        with FileTransaction(used) as tx:
            ids.add(tx.prepare())
    assert len(ids) == 2


# -- wrong calls ----------------------------------------------------------------------------------------------------


def test_an_unknown_id(used: Path, tmp_path: Path) -> None:
    for call in (commit_prepared, rollback_prepared):
        for tid in ("0" * 32, "", "../x", "no id at all"):
            with pytest.raises(TransactionClosedError, match=r"no transaction .* is prepared") as caught:
                call(used, tid)
            assert (caught.value.outcome, caught.value.path) == ("before", str(used))
        for wrong in (None, b"0" * 32):
            with pytest.raises(TypeError):
                cast("Any", call)(used, wrong)
        with pytest.raises(FileNotFoundError):
            call(tmp_path / "missing", "0" * 32)
        with pytest.raises(InvalidPathError):
            call("", "0" * 32)
        with pytest.raises(ValueError, match="timeout"):
            call(used, "0" * 32, timeout=-1)
    with pytest.raises(ValueError, match="on_conflict"):
        commit_prepared(used, "0" * 32, on_conflict="roll-back")  # type: ignore[arg-type]


def test_a_root_that_never_held_a_transaction(root: Path) -> None:
    with pytest.raises(TransactionClosedError, match="no transaction"):
        commit_prepared(root, "0" * 32)
    assert os.listdir(root) == []


def test_a_decision_may_be_repeated(used: Path) -> None:
    tid = prepared(used)
    for _ in range(3):
        commit_prepared(used, tid)
    with pytest.raises(TransactionClosedError, match="was committed"):
        rollback_prepared(used, tid)
    with FileTransaction(used) as tx:
        tx.write("a", "later")
    for call in (commit_prepared, rollback_prepared):
        with pytest.raises(TransactionClosedError, match="no transaction"):
            call(used, tid)
    assert (used / "a").read_bytes() == b"later"


def test_rolled_back_is_unknown(used: Path) -> None:
    tid = prepared(used)
    rollback_prepared(used, tid)
    for call in (commit_prepared, rollback_prepared):
        with pytest.raises(TransactionClosedError, match="no transaction"):
            call(used, tid)


def test_another_id_leaves_the_one_that_waits(used: Path) -> None:
    tid = prepared(used)
    for call in (commit_prepared, rollback_prepared):
        with pytest.raises(TransactionClosedError):
            call(used, "0" * 32)
    assert waiting(used) == [tid]
    rollback_prepared(used, tid)


def test_prepare_needs_an_open_transaction(used: Path) -> None:
    tx = FileTransaction(used)
    with pytest.raises(TransactionClosedError, match="has not begun"):
        tx.prepare()
    with pytest.raises(TransactionClosedError, match="has not begun"):
        _ = tx.transaction_id
    with tx:
        with tx.savepoint(), pytest.raises(TransactionClosedError, match="savepoint"):
            tx.prepare()
        tx.rollback()
        with pytest.raises(TransactionClosedError, match="has ended"):
            tx.prepare()


def test_a_file_that_is_open_for_writing_is_refused(used: Path) -> None:
    tx = FileTransaction(used).begin()
    file = tx.open("a", "w")
    with pytest.raises(CommitError, match="'a' is still open"):
        tx.prepare()
    file.close()
    assert resting(used)


def test_an_expected_version_is_checked_by_prepare(used: Path) -> None:
    with pytest.raises(ConflictError), FileTransaction(used) as tx:
        tx.write("a", "x", if_version=tx.version("a"))
        (used / "a").write_bytes(b"theirs")
        tx.prepare()
    assert resting(used)


def test_an_optimistic_transaction_checks_at_prepare(used: Path) -> None:
    store = FileStore(used)
    with store.snapshot() as snap:
        snap.read("a")
    with store.transaction() as tx:
        tx.write("a", "other")
    with pytest.raises(ConflictError), store.transaction(base=snap) as tx:
        tx.write("b", "x")
        tx.prepare()
    assert resting(used)


# -- other processes ------------------------------------------------------------------------------------------------


def test_the_id_survives_the_process(used: Path) -> None:
    code = """
    from txfiles import FileTransaction
    tx = FileTransaction(sys.argv[1]).begin()
    tx.write("a", "new a"); tx.write("new/c", "new c"); tx.delete("gone")
    print(tx.prepare())
    input()
    """
    with child(code, used) as process:
        tid = process.expect("")
        with pytest.raises(LockTimeoutError):
            commit_prepared(used, tid, timeout=0)
        process.kill()
        process.finish()
    assert waiting(used) == [tid]
    run_python("import txfiles; txfiles.commit_prepared(*sys.argv[1:])", used, tid).check()
    assert tree(used) == NEW


def test_a_forked_child_decides_nothing(used: Path) -> None:
    with FileTransaction(used) as tx:
        change(tx)
        tid = tx.prepare()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for call in (tx.commit, tx.rollback, tx.prepare):
                    with pytest.raises(TransactionClosedError, match="process"):
                        call()
                tx.__exit__(None, None, None)
                tx.__del__()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        with pytest.raises(NestedTransactionError):
            recover(used)
        tx.commit()
    assert status(used).head is not None
    assert tree(used) == NEW
    commit_prepared(used, tid)


def test_many_decide_at_once(used: Path) -> None:
    tid = prepared(used)
    errors: list[BaseException] = []

    def decide() -> None:
        try:
            commit_prepared(used, tid)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=decide) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert tree(used) == NEW


def test_a_commit_that_died_is_finished_by_the_next_call(used: Path) -> None:
    tid = prepared(used)
    killed(lambda: commit_prepared(used, tid), "rename", 3)
    assert tree(used) not in (OLD, NEW)
    with pytest.raises(TransactionClosedError, match="was committed"):
        rollback_prepared(used, tid)  # decided is decided
    assert tree(used) == NEW
    commit_prepared(used, tid)


# -- changed by others meanwhile ------------------------------------------------------------------------------------


def test_a_file_that_somebody_changed_is_not_overwritten(used: Path) -> None:
    tid = prepared(used)
    (used / "a").write_bytes(b"theirs")
    with pytest.raises(RecoveryConflictError) as caught:
        commit_prepared(used, tid)
    assert caught.value.paths == ("a",)
    assert tree(used) == {**OLD, "a": b"theirs"}
    assert waiting(used) == [tid]
    commit_prepared(used, tid, on_conflict="keep-theirs")
    assert tree(used) == {**NEW, "a": b"theirs"}
    assert resting(used)


def test_it_can_be_overwritten_when_told(used: Path) -> None:
    tid = prepared(used)
    (used / "a").write_bytes(b"theirs")
    commit_prepared(used, tid, on_conflict="roll-forward")
    assert tree(used) == NEW


def test_the_transaction_itself_does_not_overwrite_it_either(used: Path) -> None:
    with pytest.raises(RecoveryConflictError), FileTransaction(used) as tx:
        change(tx)
        tid = tx.prepare()
        (used / "a").write_bytes(b"theirs")
        tx.commit()
    assert waiting(used) == [tid]
    rollback_prepared(used, tid)
    assert tree(used) == {**OLD, "a": b"theirs"}


def test_rolling_back_touches_nothing_of_others(used: Path) -> None:
    """An empty directory where one was to be made, and one that was to be removed, are not ours now."""
    (used / "dir").mkdir()
    with FileTransaction(used) as tx:
        tx.mkdir("made")
        tx.delete_tree("dir")
        tid = tx.prepare()
    (used / "made").mkdir()
    (used / "dir").rmdir()
    rollback_prepared(used, tid)
    assert tree(used) == {**OLD, "made": None}
    assert resting(used)


def test_a_staged_file_that_was_damaged_is_noticed(used: Path) -> None:
    tid = prepared(used)
    [token] = [p for p in (used / ".txfiles").glob(f"{tid}.*") if p.is_file() and p.read_bytes() == b"new a"]
    token.write_bytes(b"NEW A")
    assert any("damaged" in problem for problem in verify(used).damaged)
    with pytest.raises(RecoveryError, match="damaged"):
        commit_prepared(used, tid)
    assert tree(used) == OLD
    rollback_prepared(used, tid)
    assert resting(used)


def test_a_root_that_was_moved_waits_there(used: Path, tmp_path: Path) -> None:
    with pytest.raises(ConflictError, match="moved or replaced"), FileTransaction(used) as tx:
        change(tx)
        tid = tx.prepare()
        used.rename(tmp_path / "elsewhere")
        tx.commit()
    commit_prepared(tmp_path / "elsewhere", tid)
    assert tree(tmp_path / "elsewhere") == NEW


def test_a_copy_of_the_tree_can_be_committed_for_itself(used: Path, tmp_path: Path) -> None:
    tid = prepared(used)
    run_python("import subprocess; subprocess.run(['cp', '-a', *sys.argv[1:]], check=True)", used, tmp_path / "copy")
    commit_prepared(tmp_path / "copy", tid)
    assert tree(tmp_path / "copy") == NEW
    assert tree(used) == OLD
    rollback_prepared(used, tid)


# -- faults ---------------------------------------------------------------------------------------------------------


def failing(call: str, nth: int, *, forever: bool = False):
    """The kernel's file system, where the `nth` call of this name (and with `forever` every later one) fails."""
    seen = 0

    def plan(_: int, name: str) -> None:
        nonlocal seen
        seen += name == call
        if name == call and (seen == nth or (forever and seen > nth)):
            raise OSError(errno.EIO, "injected")

    return system.use(FaultyFS(system.KernelFS(), plan))  # type: ignore[arg-type]


@pytest.mark.parametrize(("call", "nth"), [("rename", 1), ("sync_dir", 1), ("sync_dir", 2), ("sync_file", 1)])
def test_prepare_fails_and_nothing_waits(used: Path, call: str, nth: int) -> None:
    with failing(call, nth), pytest.raises(CommitError) as caught, FileTransaction(used) as tx:
        change(tx)
        tx.prepare()
    assert caught.value.outcome == "before"
    assert resting(used)
    assert tree(used) == OLD


def test_prepare_fails_and_cannot_tidy_up(used: Path) -> None:
    with failing("sync_dir", 2, forever=True), pytest.raises(CommitOutcomeUnknownError), FileTransaction(used) as tx:
        change(tx)
        tx.prepare()
    assert not recover(used).waiting
    assert resting(used)
    assert tree(used) == OLD


def test_the_decision_fails_and_it_still_waits(used: Path) -> None:
    tid = prepared(used)
    with failing("rename", 1), pytest.raises(CommitOutcomeUnknownError):
        commit_prepared(used, tid)
    assert waiting(used) == [tid]
    commit_prepared(used, tid)
    assert tree(used) == NEW


@pytest.mark.leaves_debris
def test_a_decision_that_may_not_be_durable_is_not_built_upon(used: Path) -> None:
    """Until the machine is restarted nobody can tell whether it is on the disk."""
    tid = prepared(used)
    with failing("sync_dir", 2), pytest.raises(CommitOutcomeUnknownError):
        commit_prepared(used, tid)
    assert tree(used) == OLD
    with pytest.raises(RecoveryError, match="since the machine was started"):
        recover(used)


@pytest.mark.parametrize("nth", [2, 3, 4])
def test_once_decided_it_is_not_undone(used: Path, nth: int) -> None:
    tid = prepared(used)
    with failing("rename", nth), pytest.raises(CommitOutcomeUnknownError, match="decided") as caught:
        commit_prepared(used, tid)
    assert caught.value.outcome == "unknown"
    assert [p.state for p in status(used).pending] == ["committed"]
    assert [one.transaction_id for one in recover(used).rolled_forward] == [tid]
    assert tree(used) == NEW


def test_settling_fails_after_the_commit(used: Path) -> None:
    tid = prepared(used)
    with failing("rename", 5), pytest.raises(SettleError):
        commit_prepared(used, tid)
    assert tree(used) == NEW
    commit_prepared(used, tid)
    assert resting(used)


def test_rolling_back_fails_and_may_be_repeated(used: Path) -> None:
    tid = prepared(used)
    with failing("unlink", 1), pytest.raises(CommitOutcomeUnknownError):
        rollback_prepared(used, tid)
    rollback_prepared(used, tid)
    assert resting(used)


def test_a_lock_file_that_was_replaced_stops_the_commit(used: Path) -> None:
    """Somebody else may have decided under the other one."""
    with pytest.raises(ConflictError, match="lock file"), FileTransaction(used) as tx:
        change(tx)
        tid = tx.prepare()
        (used / ".txfiles/lock").unlink()
        tx.commit()
    assert tree(used) == OLD
    rollback_prepared(used, tid)


def test_nothing_is_decided_by_the_way(used: Path) -> None:
    """Not by recovery at the begin of others, not by a reader, not by status or verify."""
    tid = prepared(used)
    before = sorted(os.listdir(used / ".txfiles"))
    for _ in range(3):
        with pytest.raises(LockTimeoutError):
            FileTransaction(used, timeout=0).begin()
        recover(used)
        status(used)
        verify(used)
        with FileStore(used).snapshot("a") as snap:
            assert snap.read("a") == b"old a"
    assert sorted(os.listdir(used / ".txfiles")) == before
    with system.use(nth_call("rename", 99, lambda: None)):  # type: ignore[arg-type]
        commit_prepared(used, tid)
    assert tree(used) == NEW
