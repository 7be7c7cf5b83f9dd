"""A new directory has the ACLs that its parent gives, wherever its commit was cut off."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support import DEEP
from txfiles import FileTransaction, recover
from txfiles._disk import system
from txfiles._disk.metadata import ACCESS_ACL, DEFAULT_ACL
from txfiles.errors import CommitError
from txfiles.testing import Scenario, SimFS, explore
from txfiles.testing._faults import FaultyFS, kill_at

_NOBODY = 0xFFFFFFFF
_ENTRIES = [(0x01, 7, _NOBODY), (0x02, 7, 1234), (0x04, 5, _NOBODY), (0x10, 7, _NOBODY), (0x20, 0, _NOBODY)]
ACL = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in _ENTRIES)


def _change(tx: FileTransaction) -> None:
    tx.write("parent/new/deep/file", "1")
    tx.mkdir("parent/empty")


def _setup(fs: SimFS) -> None:
    fs.mkdirs("/sim/parent", xattrs={DEFAULT_ACL: ACL})
    with FileTransaction("/sim") as tx:
        tx.write("settled", "once")
    fs.sync_everything()


def _commit(fs: SimFS) -> None:
    with FileTransaction("/sim") as tx:
        _change(tx)


SCENARIOS = {"new-directory-acl": Scenario("new-directory-acl", _setup, [_commit])}


def test_a_power_loss_keeps_all_of_it() -> None:
    explore(SCENARIOS["new-directory-acl"], (64, 8) if DEEP else (32,))


def _steps(root: Path, acl: bytes = ACL) -> list[int]:
    """The calls that make a directory what it is, and the next one."""
    _fresh(root, acl)
    fs = FaultyFS(system.KernelFS())
    with system.use(fs), FileTransaction(root) as tx:  # type: ignore[arg-type]
        _change(tx)
    first = fs.trace.index("mkdir")
    made = [number for number, name in enumerate(fs.trace) if name in ("mkdir", "set_xattr", "chmod")]
    return [number + after for number in made if number >= first for after in (1, 2)]


def _kill(root: Path, number: int, acl: bytes = ACL) -> None:
    _fresh(root, acl)
    child = os.fork()
    if child == 0:
        with system.use(FaultyFS(system.KernelFS(), kill_at(number))), FileTransaction(root) as tx:  # type: ignore[arg-type]
            _change(tx)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def _fresh(root: Path, acl: bytes) -> None:
    shutil.rmtree(root, ignore_errors=True)
    (root / "parent").mkdir(parents=True)
    if acl:
        os.setxattr(root / "parent", DEFAULT_ACL, acl)
    FileTransaction(root).begin().rollback()


def test_a_kill_keeps_all_of_it(memory: Path) -> None:
    """Setting an ACL sets a part of the mode, too."""
    root = memory / "root"
    for number in sorted(set(_steps(root))):
        _kill(root, number)
        recover(root)
        for path in (root / "parent/new", root / "parent/new/deep", root / "parent/empty"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o770, number
            assert os.getxattr(path, DEFAULT_ACL) == os.getxattr(path, ACCESS_ACL) == ACL, number


@pytest.mark.parametrize(
    ("acl", "mode", "uid", "gid"),
    [
        pytest.param(ACL, 0o1755, 0, 0, id="mode"),
        pytest.param(ACL, 0o770, 0, 0, id="attributes"),
        pytest.param(ACL, 0o770, 1, 0, id="owner"),
        pytest.param(ACL, 0o770, 0, 1, id="group"),
        pytest.param(b"", 0o1755, 0, 0, id="no ACL"),
    ],
)
def test_what_somebody_else_has_made_there_stays(memory: Path, acl: bytes, mode: int, uid: int, gid: int) -> None:
    root = memory / "root"
    _kill(root, _steps(root, acl)[0], acl)
    theirs = root / "parent/empty"
    theirs.mkdir()
    for key in os.listxattr(theirs):
        os.removexattr(theirs, key)
    os.chown(theirs, uid, gid)
    theirs.chmod(mode)
    recover(root)
    assert (theirs.stat().st_mode & 0o7777, theirs.stat().st_uid, theirs.stat().st_gid) == (mode, uid, gid)
    assert not os.listxattr(theirs)


class _Other(FaultyFS):
    """Of a user who may not change what is somebody else's."""

    def ids(self) -> tuple[int, int]:
        return 1, 1


def test_who_may_not_finish_it_lets_it_be(memory: Path) -> None:
    root = memory / "root"
    assert any(_is_left_with_the_mode_of_its_acl(root, number) for number in _steps(root))
    with system.use(_Other(system.KernelFS())):  # type: ignore[arg-type]
        recover(root)
    assert stat.S_IMODE((root / "parent/new").stat().st_mode) == 0o1770


def _is_left_with_the_mode_of_its_acl(root: Path, number: int) -> bool:
    _kill(root, number)
    new = root / "parent/new"
    return new.exists() and stat.S_IMODE(new.stat().st_mode) == 0o1770


def test_an_undo_leaves_the_attributes_of_a_directory_alone(memory: Path) -> None:
    root = memory / "root"
    (root / "gone").mkdir(parents=True)
    os.setxattr(root / "gone", DEFAULT_ACL, ACL)

    def plan(_: int, name: str) -> None:
        if name == "rmdir":
            os.removexattr(root / "gone", DEFAULT_ACL)
            raise OSError(errno.EIO, "injected")

    faulty: Any = FaultyFS(system.KernelFS(), plan)
    with system.use(faulty), pytest.raises(CommitError), FileTransaction(root) as tx:
        tx.delete_tree("gone")
    assert not os.listxattr(root / "gone")
