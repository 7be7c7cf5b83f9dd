"""Places with less than a whole system: user namespaces, no /proc, another root directory, a filter of system calls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.boundary import nth_call, tree
from tests.support.procs import Result, run_python
from txfiles import FileTransaction, status
from txfiles._disk import system

_IN_A_NAMESPACE = """
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    assert libc.unshare(0x10000000) == 0, os.strerror(ctypes.get_errno())  # CLONE_NEWUSER
    inside = int(sys.argv[2])
    for name, text in (("setgroups", "deny"), ("uid_map", f"{inside} {uid} 1"), ("gid_map", f"{inside} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)

    from txfiles import FileStore, FileTransaction, recover, status
    root = sys.argv[1]
"""
_USE = """
    with open(root + "/opened", "w") as file:
        file.write("x")
    with FileTransaction(root) as tx:
        tx.write("written", "x")
    with FileTransaction(root) as tx:
        tx.write("written", "y")
        tx.write("new/deep", "z")
        tx.delete("old")
    with FileStore(root).snapshot() as snap:
        assert snap.read_text("written") == "y"
    assert recover(root).clean
    assert status(root).clean
"""


def _in_a_namespace(root: Path, inside: int, code: str = _USE) -> Result:
    return run_python(_IN_A_NAMESPACE + code, root, inside, **as_user(1000, umask=0o022))


@pytest.mark.needs("users", "user namespaces")
@pytest.mark.parametrize("inside", [0, 1000])
@pytest.mark.parametrize(
    ("owner", "group", "mode"),
    [(0, 0, 0o777), (4000, 4000, 0o777), (1000, 5000, 0o2775), (1000, 5000, 0o2755), (1000, 5000, 0o775)],
)
def test_n09_owners_that_a_user_namespace_does_not_know(owner: int, group: int, mode: int, inside: int) -> None:
    with public_directory() as root:
        (root / "old").write_text("old", encoding="utf-8")
        os.chmod(root / "old", 0o666)
        os.chown(root, owner, group)
        root.chmod(mode)
        _in_a_namespace(root, inside).check()
        opened, written = (root / "opened").stat(), (root / "written").stat()
        assert tree(root) == {"opened": b"x", "written": b"y", "new": None, "new/deep": b"z"}
        assert (written.st_uid, written.st_gid, written.st_mode) == (opened.st_uid, opened.st_gid, opened.st_mode)
        assert (root / ".txfiles").stat().st_uid == 1000


@pytest.mark.needs("users", "user namespaces")
def test_n09_a_file_of_an_owner_that_is_not_known_is_replaced(tmp_path: Path) -> None:
    with public_directory(0o777) as root:
        (root / "a").write_text("old", encoding="utf-8")
        os.chown(root / "a", 4000, 4000)
        os.chmod(root / "a", 0o666)
        code = "\n    with FileTransaction(root) as tx:\n        tx.write('a', 'new')\n"
        _in_a_namespace(root, 0, code).check()
        assert tree(root) == {"a": b"new"}
        assert status(root).clean


@pytest.mark.parametrize("call", ["xattrs", "chown", "chmod"])
def test_n09_what_cannot_be_shared_leaves_no_half_made_private_directory(tmp_path: Path, call: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    if call != "xattrs":
        os.chown(root, 1000, 1000)
        root.chmod(0o2775)

    def fail() -> None:
        raise OSError(5, "Input/output error")

    with system.use(nth_call(call, 1, fail)), pytest.raises(OSError, match="Input/output"):
        FileTransaction(root).begin()
    assert os.listdir(root) == []
