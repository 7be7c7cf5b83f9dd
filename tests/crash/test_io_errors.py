"""Every call of a transaction and of a recovery fails, once and for ever: what the error says is what is on disk."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.crash.scenarios import BY_NAME, NAMES, Tree, prepare, resting, tree
from txfiles import FileTransaction, recover, status
from txfiles._disk import system
from txfiles.errors import TxFilesError
from txfiles.testing._faults import FaultyFS, fail_at

DEEP = bool(os.environ.get("TXFILES_DEEP"))
ERRORS = [errno.EIO, errno.ENOSPC, errno.EACCES, errno.EDQUOT, errno.EMFILE, errno.EROFS, errno.ENOLCK, errno.EINTR]
STEP = 1 if DEEP else 4


def _commit(root: Path, name: str, fs: FaultyFS) -> None:
    with system.use(fs), FileTransaction(root) as tx:  # type: ignore[arg-type]
        BY_NAME[name].change(tx)


def _fresh(name: str, root: Path) -> Tree:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    return prepare(BY_NAME[name], root)


def _forget_failed_syncs(root: Path) -> None:
    """As if the machine had been restarted: the notes of failed syncs name another boot."""
    for path in (root / ".txfiles").iterdir():
        if path.suffix in (".committed", ".aborting", ".intent"):
            head, _, _ = path.read_bytes().partition(b"}sync failed ")
            path.write_bytes(head if head.endswith(b"}") else head + b"}")


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("name", NAMES)
def test_each_call_fails(memory: Path, name: str, forever: bool) -> None:
    root = memory / "root"
    _fresh(name, root)
    counting = FaultyFS(system.KernelFS())
    _commit(root, name, counting)
    after = tree(root)
    said = set()
    for number in range(1, counting.calls + 1, 1 if name != "mixed" else STEP):
        error = ERRORS[number % len(ERRORS)] if not DEEP else errno.EIO
        for code in ERRORS if DEEP else [error if number % 2 else errno.EIO]:
            before = _fresh(name, root)
            where = f"call {number} ({counting.trace[number - 1]}) failed with {errno.errorcode[code]}"
            outcome = "after"
            try:
                _commit(root, name, FaultyFS(system.KernelFS(), fail_at(number, code, forever=forever)))
            except TxFilesError as failed:
                outcome = failed.outcome
            except OSError as failed:
                outcome = "before" if failed.errno == code else f"unexpected {failed!r}"
            said.add(outcome)
            now = tree(root)
            if outcome != "unknown":
                assert now == (before if outcome == "before" else after), f"{where}: {outcome} was said"
            _forget_failed_syncs(root)
            recover(root, timeout=0)
            found = tree(root)
            assert found in (before, after), where
            if outcome != "unknown":
                assert found == (before if outcome == "before" else after), f"{where}: {outcome} was said"
            assert resting(root), where
            with FileTransaction(root, timeout=0, durability="process") as tx:
                tx.write("next", "works")
    assert "before" in said
    assert "after" in said


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("name", ["replace four", "mixed"])
def test_each_call_of_recovery_fails(memory: Path, name: str, forever: bool) -> None:
    root, kept = memory / "root", memory / "kept"
    before = _fresh(name, root)
    _stop_in_apply(root, name)
    shutil.copytree(root, kept, symlinks=True)
    counting = FaultyFS(system.KernelFS())
    with system.use(counting):  # type: ignore[arg-type]
        recover(root)
    after = tree(root)
    for number in range(1, counting.calls + 1, STEP):
        shutil.rmtree(root)
        _fresh(name, root)
        _stop_in_apply(root, name)
        fs = FaultyFS(system.KernelFS(), fail_at(number, errno.EIO, forever=forever))
        failed = False
        try:
            with system.use(fs):  # type: ignore[arg-type]
                recover(root)
        except (OSError, TxFilesError):
            failed = True
        where = f"call {number} ({counting.trace[number - 1]})"
        assert failed or tree(root) == after, where
        status(root)
        _forget_failed_syncs(root)
        recover(root, timeout=0)
        assert tree(root) == after, where
        assert resting(root), where
    assert before != after


class _WriteOnly(system.KernelFS):
    """For a user who may write some files and not read them."""

    def open_read(self, at: int, name: bytes) -> int:
        if not os.stat(name, dir_fd=at, follow_symlinks=False).st_mode & 0o400:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return super().open_read(at, name)


def test_files_that_cannot_be_opened_again_are_synced_before_they_are_closed(memory: Path) -> None:
    """However many, so that their descriptors are not all kept."""
    names = [f"f{number}" for number in range(20)]
    for name in names:
        (memory / name).write_text("old", encoding="utf-8")
        (memory / name).chmod(0o200)
    counting = FaultyFS(_WriteOnly())
    with system.use(counting), FileTransaction(memory) as tx:  # type: ignore[arg-type]
        for name in names:
            tx.write(name, "new")
    assert {(memory / name).read_text(encoding="utf-8") for name in names} == {"new"}
    assert counting.trace.count("sync_file") == len(names) + 3  # the journal, the format and the spare


class _Stop(BaseException):
    pass


def _stop_in_apply(root: Path, name: str) -> None:
    """Leave a commit half applied, as a killed process would."""
    renames = 0

    def plan(_: int, call: str) -> None:
        nonlocal renames, dead
        renames += call == "rename"
        dead = dead or renames == 4
        if dead and call not in ("close",):
            raise _Stop

    dead = False
    fs = FaultyFS(system.KernelFS(), plan)
    with pytest.raises(_Stop):
        _commit(root, name, fs)
