"""Members of a group that share a root: each can go on where another died, whatever the umask of that one."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import shutil
import signal
import subprocess
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import DEEP, scratch
from tests.support.as_user import as_user, public_directory
from tests.support.boundary import killed, tree
from tests.support.procs import Result, run_python
from txfiles import FileStore, FileTransaction, recover, status
from txfiles._commit.evidence import Evidence
from txfiles._commit.home import Home
from txfiles._commit.inventory import take
from txfiles._disk import system
from txfiles._format.journal import Journal
from txfiles.testing._faults import FaultyFS

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


def _forked(act: Callable[[], object], uid: int, umask: int = 0o022) -> int:
    """Do it as another user of group 5000, in a forked child; its exit status, or minus the signal that killed it."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([5000])
            os.setgid(uid)
            os.setuid(uid)
            os.umask(umask)
            act()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def _in_memory() -> Iterator[Path]:
    path = scratch.directory(scratch.MEMORY)
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


DEEP_NEW = {"a": b"new", "sub": None, "sub/b": b"b", "sub/deep": None, "sub/deep/c": b"c", "x": b"x"}
ACTS: dict[str, Callable[[Path], object]] = {
    "begin": lambda root: FileTransaction(root).begin().rollback(),
    "recover": recover,
    "roll back": lambda root: recover(root, on_conflict="roll-back"),
}


@pytest.mark.parametrize(
    ("umask", "bits"), [(0o077, 0o2775), (0o077, 0o775), *([(0o022, 0o2775), (0o002, 0o2770)] if DEEP else [])], ids=oct
)
def test_directories_that_a_member_was_making_when_he_died(umask: int, bits: int) -> None:
    """At any call: others can go on, and nothing was open to more than the group of the root."""
    outcomes = set()
    for number, way in zip(itertools.count(1, 1 if DEEP else 4), itertools.cycle(ACTS)):
        with _in_memory() as root:
            os.chown(root, 0, 5000)
            root.chmod(bits)
            (root / "a").write_text("old", encoding="utf-8")
            os.chown(root / "a", 1000, 5000)
            died = _forked(partial(_die_at, number, root), 1000, umask)
            for path in (root / "sub", root / "sub/deep"):
                if path.exists():
                    mode = path.stat().st_mode & 0o7777
                    assert mode in (0o1700, 0o3700, 0o4770, 0o4700, 0o2777 & ~umask, 0o777 & ~umask), oct(mode)
                    assert path.stat().st_gid == 5000 or not mode & 0o070 & umask
            assert _forked(partial(ACTS[way], root), 1001) == 0, (number, way)
            assert status(root).clean
            found = tree(root)
            outcomes.add(len(found))
            assert found in ({"a": b"old"}, DEEP_NEW), number
            assert not any((root / name).stat().st_mode & 0o777 & umask for name in found.keys() & {"x", "sub/b"})
            assert _forked(partial(_save, root, "y"), 1001) == 0
            assert _forked(partial(_save, root, "z"), 1000) == 0
        if died == 0:
            break
        assert died == -signal.SIGKILL
    assert outcomes == {1, len(DEEP_NEW)}


def _die_at(number: int, root: Path) -> None:
    """In the commit, before its call of this number."""
    begun: list[int] = []

    def plan(now: int, _: str) -> None:
        if begun and now - begun[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)

    fs: Any = FaultyFS(system.KernelFS(), plan)
    with system.use(fs), FileTransaction(root) as tx:
        tx.write("a", "new")
        tx.write("sub/b", "b")
        tx.write("sub/deep/c", "c")
        tx.write("x", "x")
        begun.append(fs.calls)


def _save(root: Path, name: str) -> None:
    with FileTransaction(root) as tx:
        tx.write(name, name)


def test_a_journal_that_cannot_be_read_is_none_only_where_it_is_empty(shared: Path) -> None:
    _member(_SAVE, shared, uid=1000).check()
    assert _member(_DIE, shared, 2, uid=1000).returncode < 0
    (journal,) = (shared / ".txfiles").glob("*.committed")
    journal.chmod(0o600)
    assert "PermissionError" in _member(WAYS["recover"], shared, uid=1001).stderr
    assert journal.exists()
    _member(WAYS["recover"], shared, uid=1000).check()
    assert tree(shared) == NEW


def test_a_directory_that_somebody_closed_is_not_believed_to_be_done(shared: Path) -> None:
    """One that was there before: only its own the journal closes at the end."""
    _member(_SAVE, shared, uid=1000).check()
    (shared / "sub").mkdir()
    os.chown(shared / "sub", 1000, 5000)
    assert _member(_DIE, shared, 5, "sub/b", uid=1000).returncode < 0
    (shared / "sub").chmod(0o700)
    refused = _member(WAYS["recover"], shared, uid=1001)
    assert "that user 1000, who died in it, or the superuser can recover" in refused.stderr
    _member(WAYS["recover"], shared, uid=1000).check()
    assert tree(shared) == NEW | {"sub": None, "sub/b": b"deep"}


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


class Beside(system.KernelFS):
    """At one look below a new directory it is closed still; then its writer goes on."""

    def __init__(self, times: int) -> None:
        self._times = times

    def stat(self, at: int | None, name: bytes) -> system.Stat:
        if name == b"y" and self._times:
            self._times -= 1
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return super().stat(at, name)


@pytest.mark.parametrize("times", [1, 4, 5])
def test_a_reader_looks_again_where_a_new_directory_is_opened_meanwhile(shared: Path, times: int) -> None:
    """What it may not pass for longer is an error."""
    home, journal = _standing(shared)
    home.close()
    home = Home.open(Beside(times), os.fsencode(shared), create=False, follow=False)
    (op,) = (op for op in journal.ops if op.path == b"d/f/y")
    with home, pytest.raises(PermissionError) if times == 5 else nullcontext():
        Evidence(home, journal, same_tree=True).target(op)
    recover(shared)


def _standing(root: Path) -> tuple[Home, Journal]:
    """A commit that was killed while it was applied."""

    def change(tx: FileTransaction) -> None:
        tx.move("d", "e")
        tx.write("e/f/y", "1")

    with FileTransaction(root) as tx:
        tx.write("d/f/y", "0")
    killed(lambda: FileStore(root, durability="process").update(change), "rename", 2)
    home = Home.find(system.current(), os.fsencode(root))
    assert home is not None
    (pending,) = take(home).pending
    assert pending.journal is not None
    return home, pending.journal
