"""Members of a group that share a root: each can go on where another died, whatever the umask of that one."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.boundary import tree
from tests.support.procs import Result, run_python
from txfiles import status

pytestmark = pytest.mark.needs("users")

OLD = {"a": b"old a", "c": b"old c"}
NEW = {"a": b"new a", "new": b"new"}
_SAVE = """
    from txfiles import FileTransaction
    with FileTransaction(sys.argv[1]) as tx:
        tx.write("a", "old a")
        tx.write("c", "old c")
"""
_DIE = """
    from txfiles import FileTransaction
    from txfiles._disk import system
    class Dying(system.KernelFS):
        left = int(sys.argv[2])
        def rename(self, *args):
            Dying.left -= 1
            if not Dying.left:
                os.kill(os.getpid(), signal.SIGKILL)
            super().rename(*args)
    with system.use(Dying()), FileTransaction(sys.argv[1]) as tx:
        tx.write("a", "new a")
        tx.write("new", "new")
        tx.delete("c")
        for name in sys.argv[3:]:
            tx.write(name, "deep")
"""
WAYS = {
    "begin": "from txfiles import FileTransaction; FileTransaction(sys.argv[1]).begin().rollback()",
    "recover": "from txfiles import recover; recover(sys.argv[1])",
    "roll back": "from txfiles import recover; recover(sys.argv[1], on_conflict='roll-back')",
    "read": """
        from txfiles import FileStore, recover
        with FileStore(sys.argv[1]).snapshot() as snap:
            print(snap.listdir())
        recover(sys.argv[1])
    """,
}


@pytest.fixture
def shared() -> Iterator[Path]:
    with public_directory() as root:
        os.chown(root, 0, 5000)
        root.chmod(0o2775)
        yield root


def _member(code: str, root: Path, *args: object, uid: int, umask: int = 0o077) -> Result:
    return run_python(code, root, *args, **as_user(uid, groups=[5000], umask=umask))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("renames", range(1, 6))
def test_a_member_with_a_strict_umask_died(shared: Path, renames: int, way: str) -> None:
    _member(_SAVE, shared, uid=1000).check()
    assert _member(_DIE, shared, renames, uid=1000).returncode < 0
    done = _member(WAYS[way], shared, uid=1001).check()
    assert tree(shared) == (NEW if renames > 1 else OLD)
    assert status(shared).clean
    for name in tree(shared):  # as private as its writer wanted it
        found = (shared / name).stat()
        assert (found.st_uid, found.st_mode & 0o7777) == (1000, 0o600)
    if way == "read":
        assert done.stdout == f"{sorted(tree(shared))}\n"
    _member(_SAVE, shared, uid=1000).check()


@pytest.mark.parametrize("umask", [0o077, 0o022])
def test_who_can_recover_a_directory_that_a_member_closed(shared: Path, umask: int) -> None:
    """Nobody else may change what is in it, also without the library: the error says who may."""
    _member(_SAVE, shared, uid=1000).check()
    assert _member(_DIE, shared, 5, "sub/deep/b", uid=1000, umask=umask).returncode < 0
    for way in ("begin", "recover", "roll back"):
        refused = _member(WAYS[way], shared, uid=1001)
        assert "PermissionError" in refused.stderr
        assert "that user 1000, who died in it, or the superuser can recover: 'sub/deep" in refused.stderr
    _member(WAYS["recover"], shared, uid=1000).check()
    assert tree(shared) == NEW | {"sub": None, "sub/deep": None, "sub/deep/b": b"deep"}
    assert status(shared).clean


@pytest.mark.parametrize("way", WAYS)
def test_a_directory_that_is_open_to_the_group_is_no_hindrance(shared: Path, way: str) -> None:
    _member(_SAVE, shared, uid=1000).check()
    assert _member(_DIE, shared, 5, "sub/deep/b", uid=1000, umask=0o002).returncode < 0
    _member(WAYS[way], shared, uid=1001).check()
    assert tree(shared) == NEW | {"sub": None, "sub/deep": None, "sub/deep/b": b"deep"}


def test_a_file_that_is_not_the_one_recorded_is_not_believed_unread(shared: Path) -> None:
    _member(_SAVE, shared, uid=1000).check()
    assert _member(_DIE, shared, 2, uid=1000).returncode < 0
    token = next(path for path in (shared / ".txfiles").glob("*.0") if path.stat().st_size == 5)
    found = token.stat()
    token.write_text("other", encoding="utf-8")
    os.utime(token, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    assert "is damaged" in _member(WAYS["recover"], shared, uid=1001).stderr
    assert tree(shared) == OLD


def test_a_root_that_is_opened_to_its_group_later() -> None:
    with public_directory() as root:
        os.chown(root, 1000, 5000)
        _member(_SAVE, root, uid=1000).check()
        root.chmod(0o2775)
        _member(WAYS["begin"], root, uid=1000).check()
        save = "from txfiles import FileTransaction\nwith FileTransaction(sys.argv[1]) as tx: tx.write('b', 'new')"
        _member(save, root, uid=1001).check()
        assert tree(root) == OLD | {"b": b"new"}


def test_what_cannot_be_read_is_not_believed_in_a_copied_tree(shared: Path) -> None:
    _member(_SAVE, shared, uid=1000).check()
    assert _member(_DIE, shared, 2, uid=1000).returncode < 0
    with public_directory() as copy:
        subprocess.run(["cp", "-a", f"{shared}/.", copy], check=True)
        _is_for_its_writer(copy)


def test_what_cannot_be_read_and_was_never_synced_is_not_believed_after_a_restart(shared: Path) -> None:
    _member(_SAVE, shared, uid=1000).check()
    unsynced = _DIE.replace("(sys.argv[1])", "(sys.argv[1], durability='process')")
    assert _member(unsynced, shared, 2, uid=1000).returncode < 0
    (journal,) = (shared / ".txfiles").glob("*.committed")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip().encode()
    body = journal.read_bytes().split(b"\n", 1)[1].replace(boot, boot[::-1])
    checksum = hashlib.blake2b(body, digest_size=32).hexdigest().encode()
    journal.write_bytes(b"txfiles journal 1 %d %s\n%s" % (len(body), checksum, body))
    _is_for_its_writer(shared)


def _is_for_its_writer(root: Path) -> None:
    refused = _member(WAYS["recover"], root, uid=1001)
    assert "PermissionError" in refused.stderr
    assert "the superuser can recover: 'a'" in refused.stderr
    _member(WAYS["recover"], root, uid=1000).check()
    assert tree(root) == NEW
