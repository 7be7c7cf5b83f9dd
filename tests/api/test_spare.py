"""The spare: when a root has one, and that it is in nobody's way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.procs import run_python
from txfiles import FileTransaction, recover, status
from txfiles._commit.spare import LARGE, SIZE
from txfiles._disk import system
from txfiles.errors import CommitError
from txfiles.recovery import verify
from txfiles.testing import Options, SimFS
from txfiles.testing._faults import FaultyFS

_SAVE = """
from txfiles import FileTransaction
with FileTransaction(sys.argv[1]) as tx:
    tx.write(sys.argv[2], "x")
"""


def _save(root: Path, text: str = "new") -> None:
    with FileTransaction(root) as tx:
        tx.write("a", text)


def _spare(root: Path) -> Path:
    return root / ".txfiles/spare"


def test_the_first_commit_makes_it_and_it_stays(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "not committed")
        tx.rollback()
    assert not _spare(root).exists()
    _save(root)
    made = _spare(root).stat()
    assert made.st_size in (SIZE, LARGE)
    assert made.st_size == made.st_blocks * 512
    _save(root)
    assert _spare(root).stat().st_ino == made.st_ino
    assert status(root).clean
    assert not status(root).foreign
    assert verify(root).sound


def test_a_root_of_an_earlier_version_gets_one(root: Path) -> None:
    _save(root)
    _spare(root).unlink()
    _save(root)
    assert _spare(root).exists()


def test_without_it_nothing_else_is_done(root: Path) -> None:
    _save(root)
    counting = FaultyFS(system.KernelFS())
    with system.use(counting):  # type: ignore[arg-type]
        _save(root)
    assert not {"free", "allocate"}.intersection(counting.trace)


@pytest.mark.parametrize(("room", "made"), [(16 * SIZE + 4096, True), (16 * SIZE - 1, False)])
def test_it_takes_a_sixteenth_of_the_room_at_most(room: int, made: bool) -> None:
    fs = SimFS(Options(capacity=room, kind="ext"))
    with system.use(fs), FileTransaction("/sim") as tx:
        tx.write("a", "x")
    assert fs.exists("/sim/.txfiles/spare") == made


@pytest.mark.parametrize("call", ["free", "allocate", "sync_file"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.ENOTSUP, errno.EFBIG])
def test_where_it_cannot_be_made_nothing_is_lost(root: Path, call: str, error: int) -> None:
    seen = [0]

    def plan(_: int, name: str) -> None:
        seen[0] += name in ("free", "allocate")
        if seen[0] and name == call:
            raise OSError(error, "injected")

    with system.use(FaultyFS(system.KernelFS(), plan)):  # type: ignore[arg-type]
        _save(root)
    assert seen[0]
    assert sorted(os.listdir(root / ".txfiles")) == ["HEAD", "format", "lock"]
    assert (root / "a").read_text(encoding="utf-8") == "new"


def test_a_process_transaction_syncs_nothing_for_it(root: Path) -> None:
    counting = FaultyFS(system.KernelFS())
    with system.use(counting), FileTransaction(root, durability="process") as tx:  # type: ignore[arg-type]
        tx.write("a", "x")
    assert _spare(root).exists()
    assert not [name for name in counting.trace if name.startswith("sync")]


@pytest.mark.leaves_debris
def test_a_directory_with_its_name_is_in_nobodys_way(root: Path) -> None:
    _save(root)
    _spare(root).unlink()
    _spare(root).mkdir()

    def plan(_: int, name: str) -> None:
        if name == "link":
            raise OSError(errno.ENOSPC, "injected")

    with system.use(FaultyFS(system.KernelFS(), plan)), pytest.raises(CommitError, match="injected"):  # type: ignore[arg-type]
        _save(root, "no room for its link")
    _save(root, "again")
    assert _spare(root).is_dir()
    assert recover(root).clean


def test_other_users_of_a_root_may_take_it() -> None:
    with public_directory(0o2775) as root:
        os.chown(root, 1000, 3000)
        run_python(_SAVE, root, "a", **as_user(1001, 3000, umask=0o077)).check()
        found = _spare(root).stat()
        assert (found.st_gid, found.st_mode & 0o777) == (3000, 0o660)
        _spare(root).unlink()
        run_python(_SAVE, root, "b", **as_user(0)).check()
        assert _spare(root).stat().st_uid == 1001, "of whoever made the private directory"
