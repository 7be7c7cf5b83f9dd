"""E: locks."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import shutil
import signal
import subprocess
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import mounts
from tests.support.as_user import as_user, public_directory
from tests.support.boundary import killed, tree
from tests.support.inject import RENAME, Fault, each_call, traced
from tests.support.loop import loop_fs
from tests.support.procs import Child, child, python, run_python
from txfiles import FileStore, FileTransaction, recover, status
from txfiles.errors import (
    ConflictError,
    JournalCorruptError,
    JournalVersionError,
    LockTimeoutError,
    NestedTransactionError,
    TransactionClosedError,
)

SAVE = """
    from txfiles import FileTransaction
    with FileTransaction(sys.argv[1], timeout=float(sys.argv[2])) as tx:
        tx.write(sys.argv[3], "theirs")
"""
HOLD = """
    from txfiles import FileTransaction
    tx = FileTransaction(sys.argv[1]).begin()
    tx.write("held", "staged")
    print("holding")
    input()
    tx.commit()
"""


def _save(root: Path, name: str = "a", content: str = "x", **settings: Any) -> None:
    with FileTransaction(root, **settings) as tx:
        tx.write(name, content)


# -- E01: the lock file is removed ----------------------------------------------------------------------------------


def _delete_lock(root: Path) -> None:
    (root / ".txfiles/lock").unlink()


def _replace_lock(root: Path) -> None:
    (root / "new").write_text("", encoding="utf-8")
    (root / "new").rename(root / ".txfiles/lock")


def _delete_private(root: Path) -> None:
    shutil.rmtree(root / ".txfiles")


def _swap_private(root: Path) -> None:
    (root / ".txfiles").rename(root.parent / "aside")


def _swap_root(root: Path) -> None:
    root.rename(root.parent / "aside")
    root.mkdir()


@pytest.mark.leaves_debris
@pytest.mark.parametrize("remove", [_delete_lock, _replace_lock, _delete_private, _swap_private, _swap_root])
def test_e01_of_two_holders_the_first_does_nothing(root: Path, remove: Callable[[Path], None]) -> None:
    _save(root, "before")
    tx = FileTransaction(root).begin()
    tx.write("mine", "x")
    tx.delete("before")
    remove(root)
    run_python(SAVE, root, 5, "theirs").check()
    expected = tree(root)
    with pytest.raises(ConflictError) as caught:
        tx.commit()
    assert caught.value.outcome == "before"
    assert tree(root) == expected
    assert "theirs" in expected
    run_python(SAVE, root, 5, "again").check()


@pytest.mark.parametrize("waiting", ["before", "after"])
def test_e01_who_waits_for_a_lock_file_that_goes_gets_the_new_one(root: Path, waiting: str) -> None:
    _save(root)
    with child(HOLD, root) as holder:
        holder.expect("holding")
        with child(SAVE, root, 20, "theirs") as second:
            if waiting == "before":
                time.sleep(0.3)  # it has the old file open by now
            _delete_lock(root)
            with FileTransaction(root) as tx:  # on the new file, whichever of the two is first
                tx.write("mine", "x")
            holder.send()
            assert "ConflictError" in holder.finish().stderr
            second.finish().check()
    recover(root)
    assert sorted(tree(root)) == ["a", "mine", "theirs"]


def test_e01_the_lock_file_stays_the_same(root: Path) -> None:
    _save(root)
    before = (root / ".txfiles/lock").stat().st_ino
    for number in range(20):
        with pytest.raises(ZeroDivisionError) if number % 2 else ExitStack(), FileTransaction(root) as tx:
            tx.write("a", str(number))
            if number % 2:
                raise ZeroDivisionError
    killed(lambda: _save(root), "rename", 1)
    recover(root)
    assert (root / ".txfiles/lock").stat().st_ino == before


# -- E02: fork ------------------------------------------------------------------------------------------------------

WAYS_OUT = {
    "falls out of the block": "pass",
    "raises": "raise ZeroDivisionError",
    "os._exit": "os._exit(0)",
    "sys.exit": "sys.exit(0)",
    "commits": "tx.commit()",
    "rolls back": "tx.rollback()",
    "begins its own": "FileTransaction(sys.argv[1], timeout=0).begin()",
    "drops it": "globals().pop('tx'); import gc; gc.collect()",
}
FORKS = {
    "in the block": """
        with tx:
            pid = os.fork()
            if pid == 0:
                way_out()
            else:
                os.waitpid(pid, 0)
                check()
        if pid == 0:
            os._exit(0)
    """,
    "multiprocessing": """
        def in_child():
            with tx:
                way_out()
        with tx:
            import multiprocessing
            worker = multiprocessing.get_context("fork").Process(target=in_child)
            worker.start()
            worker.join()
            check()
    """,
    "in a thread": """
        def fork():
            pid = os.fork()
            if pid == 0:
                with tx:
                    way_out()
                os._exit(0)
            os.waitpid(pid, 0)
        with tx:
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()
            check()
    """,
}


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.parametrize("how", FORKS)
def test_e02_a_forked_child_ends_without_touching_anything(root: Path, way: str, how: str) -> None:
    code = f"""
        import warnings
        from txfiles import FileTransaction
        warnings.simplefilter("error")
        class Entered(FileTransaction):
            def __enter__(self):
                return self
        def listing():
            return sorted(os.listdir(sys.argv[1] + "/.txfiles"))
        def way_out():
            {WAYS_OUT[way]}
        def check():
            assert listing() == before
            assert not os.path.exists(sys.argv[1] + "/a")
        tx = Entered(sys.argv[1]).begin()
        tx.write("a", "staged")
        before = listing()
    """
    done = run_python(textwrap.dedent(code) + textwrap.dedent(FORKS[how]) + "print(listing())\n", root)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['HEAD', 'format', 'lock', 'spare']\n"
    assert tree(root) == {"a": b"staged"}


CHILD_CALLS: dict[str, Callable[[FileTransaction], object]] = {
    "write": lambda tx: tx.write("b", "x"),
    "read": lambda tx: tx.read("a"),
    "listdir": lambda tx: tx.listdir(),
    "open": lambda tx: tx.open("a"),
    "delete": lambda tx: tx.delete("a"),
    "commit": lambda tx: tx.commit(),
    "rollback": lambda tx: tx.rollback(),
    "savepoint": lambda tx: tx.savepoint().__enter__(),
}


def test_e02_every_call_of_a_forked_child_is_refused(root: Path) -> None:
    _save(root)
    with FileTransaction(root) as tx:
        tx.write("c", "x")
        file = tx.open("streamed", "w")
        file.write("text")
        binary = tx.open("binary", "wb")
        binary.write(b"bytes")
        pid = os.fork()
        if pid == 0:
            wrong = []
            for name, call in CHILD_CALLS.items():
                try:
                    call(tx)
                    wrong.append(name)
                except TransactionClosedError:
                    pass
            try:
                binary.write(b"x" * 1_000_000)
                wrong.append("the file's write")
            except TransactionClosedError:
                pass
            file.close()
            del binary
            gc.collect()
            tx.__exit__(None, None, None)
            os._exit(len(wrong))
        assert os.waitpid(pid, 0)[1] == 0
        file.close()
        binary.close()
    assert tree(root) == {"a": b"x", "c": b"x", "streamed": b"text", "binary": b"bytes"}


@pytest.mark.parametrize("how", ["fork", "subprocess", "daemon"])
def test_e02_a_child_does_not_keep_the_lock_after_its_parent(root: Path, how: str) -> None:
    code = """
        import subprocess
        from txfiles import FileTransaction
        tx = FileTransaction(sys.argv[1]).begin()
        tx.write("a", "staged")
        if sys.argv[2] == "subprocess":
            child = subprocess.Popen(["sleep", "60"], start_new_session=True).pid
        else:
            child = os.fork()
            if child == 0:
                if sys.argv[2] == "daemon":
                    os.setsid()
                time.sleep(60)
        print(child)
        time.sleep(60)
    """
    with child(code, root, how) as parent:
        pid = int(parent.expect(""))
        try:
            os.kill(parent.pid, signal.SIGKILL)
            _save(root, timeout=2)
        finally:
            os.kill(pid, signal.SIGKILL)


# -- E04, E05: threads ----------------------------------------------------------------------------------------------

Spell = Callable[[Path], Any]
SPELLINGS: dict[str, Spell] = {
    "the same": lambda root: root,
    "bytes": os.fsencode,
    "trailing slash": lambda root: f"{root}/",
    "dots": lambda root: f"{root}/sub/../.",
    "symbolic link": lambda root: root.parent / "link",
    "relative": os.path.relpath,
}
HELPERS: dict[str, Callable[[Any], object]] = {
    "begin": lambda root: FileTransaction(root, timeout=None).begin(),
    "update": lambda root: FileStore(root, timeout=None).update(lambda tx: tx.write("b", "x")),
    "with": lambda root: FileStore(root, timeout=60).transaction().__enter__(),
}


@pytest.mark.parametrize("helper", HELPERS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_e04_a_second_transaction_of_a_thread_is_an_error_at_once(root: Path, spelling: str, helper: str) -> None:
    (root / "sub").mkdir()
    (root.parent / "link").symlink_to(root)
    began = time.monotonic()
    with FileTransaction(root) as tx:
        tx.write("a", "x")
        with pytest.raises(NestedTransactionError):
            HELPERS[helper](SPELLINGS[spelling](root))
        tx.write("a", "the first goes on")
    assert time.monotonic() - began < 30
    assert (root / "a").read_text(encoding="utf-8") == "the first goes on"


@pytest.mark.needs("mount")
def test_e04_a_bind_mount_is_the_same_directory(root: Path, tmp_path: Path) -> None:
    with mounts.bind(root, tmp_path / "elsewhere") as other, FileTransaction(root) as tx:
        tx.write("a", "x")
        with pytest.raises(NestedTransactionError):
            FileTransaction(other, timeout=None).begin()
        with pytest.raises(LockTimeoutError):
            run_in_thread(lambda: FileTransaction(other, timeout=0).begin())


def run_in_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_e04_another_root_and_another_thread_are_no_nesting(root: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with FileTransaction(root) as tx, FileTransaction(tmp_path / "other") as other:
        tx.write("a", "x")
        other.write("a", "x")
        with pytest.raises(LockTimeoutError):
            run_in_thread(lambda: _save(root, timeout=0.1))
    run_in_thread(lambda: _save(root, timeout=0))


@pytest.mark.parametrize("end", ["commit", "rollback", "with", "dropped"])
def test_e05_begun_in_one_thread_and_ended_in_another(root: Path, end: str) -> None:
    tx: FileTransaction | None = run_in_thread(lambda: FileTransaction(root).begin())
    assert tx is not None
    tx.write("a", "x")
    if end == "with":
        run_in_thread(partial(tx.__exit__, None, None, None))
    elif end == "dropped":
        with pytest.warns(ResourceWarning):
            tx = None
    else:
        run_in_thread(getattr(tx, end))
    run_in_thread(lambda: _save(root, "b", timeout=0))
    _save(root, "c", timeout=0)
    assert sorted(tree(root)) == (["b", "c"] if end in ("rollback", "dropped") else ["a", "b", "c"])


def test_e05_the_number_of_a_thread_that_ended_may_come_back(root: Path) -> None:
    """The system gives it to the next one, which is not the one that began the transaction."""
    tx = run_in_thread(lambda: FileTransaction(root).begin())
    for _ in range(20):
        with pytest.raises(LockTimeoutError):
            run_in_thread(lambda: FileTransaction(root, timeout=0).begin())
    tx.commit()


def test_e05_an_event_loop_that_hands_it_from_thread_to_thread(root: Path) -> None:
    """The thread that began it owns it to its end. A pool may use that thread for another begin: an error, and no wait
    for itself. Whoever works like this takes `AsyncFileTransaction`, which belongs to a task.
    """

    async def save(number: int) -> bool:
        try:
            tx = await asyncio.to_thread(FileTransaction(root, timeout=20).begin)
        except NestedTransactionError:
            return False
        count = int(await asyncio.to_thread(tx.read, "count"))
        await asyncio.sleep(0.001 * (number % 3))
        await asyncio.to_thread(tx.write, "count", str(count + 1))
        await asyncio.to_thread(tx.rollback if number % 4 == 3 else tx.commit)
        return number % 4 != 3

    async def all_at_once() -> int:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(24))
        saved = sum(await asyncio.gather(*(save(number) for number in range(16))))
        await loop.shutdown_default_executor()
        return saved

    _save(root, "count", "0")
    saved = asyncio.run(all_at_once())
    assert int((root / "count").read_text(encoding="utf-8")) == saved > 0
    _save(root, timeout=0)


def test_e05_dropped_by_the_collector_in_whatever_thread(root: Path) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self
            self.tx = FileTransaction(root).begin()
            self.tx.write("a", "x")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        Cycle()
        run_in_thread(gc.collect)
    _save(root, "b", timeout=0)
    assert sorted(tree(root)) == ["b"]


# -- E07, E08, E09: file systems without locks ----------------------------------------------------------------------


@pytest.mark.needs("strace")
@pytest.mark.parametrize("error", ["ENOSYS", "ENOLCK", "EOPNOTSUPP", "EIO"])
@pytest.mark.parametrize("fresh", [False, True], ids=["used", "fresh"])
def test_e07_e08_without_file_locks_it_fails_at_the_beginning(root: Path, error: str, fresh: bool) -> None:
    if not fresh:
        _save(root)
    before = tree(root)
    code = """
        from txfiles import FileTransaction
        FileTransaction(sys.argv[2], create=True).begin().rollback()
        with region():
            try:
                FileTransaction(sys.argv[1], timeout=100).begin()
            except Exception as error:
                print(type(error).__name__, getattr(error, "path", None) or error.filename)
        print(sorted(os.listdir(sys.argv[1] + "/.txfiles")))
    """
    began = time.monotonic()
    done = traced(code, root, root.parent / "warm", faults=[Fault("flock", error=error, when="1+")], calls=("flock",))
    said = done.check().stdout.splitlines()
    known = error in ("ENOSYS", "ENOLCK", "EOPNOTSUPP")
    assert said[0] == f"{'UnsupportedFilesystemError' if known else 'OSError'} {root}/.txfiles/lock"
    assert said[1] == ("['lock']" if fresh else "['HEAD', 'format', 'lock', 'spare']")
    assert time.monotonic() - began < 60
    assert tree(root) == before
    _save(root, timeout=0)


FILESYSTEMS = ["ext4", "xfs", "btrfs", "tmpfs", "overlay"]


@contextmanager
def _filesystem(tmp_path: Path, name: str) -> Iterator[Path]:
    if name == "tmpfs":
        with mounts.tmpfs(tmp_path / "mnt") as path:
            yield path
    elif name == "overlay":
        (tmp_path / "lower").mkdir()
        with mounts.tmpfs(tmp_path / "upper") as upper, mounts.overlay(upper, tmp_path / "lower") as path:
            yield path
    else:
        with loop_fs(tmp_path, name) as fs:
            yield fs.path


@pytest.mark.needs("loop", "ext4", "xfs", "btrfs", "flock")
@pytest.mark.parametrize("name", FILESYSTEMS)
def test_e09_the_lock_can_be_tested_from_outside(tmp_path: Path, name: str) -> None:
    """While a transaction is open, `flock --nonblock R/.txfiles/lock true` must fail, also from another machine."""
    with _filesystem(tmp_path, name) as root:
        tx = FileTransaction(root).begin()
        test = ["flock", "--nonblock", "--conflict-exit-code", "75", str(root / ".txfiles/lock"), "true"]
        assert subprocess.run(test, check=False).returncode == 75
        with pytest.raises(LockTimeoutError):
            run_in_thread(lambda: _save(root, timeout=0))
        tx.commit()
        assert subprocess.run(test, check=False).returncode == 0


# -- E10: process numbers -------------------------------------------------------------------------------------------


@pytest.mark.needs("mount", "unshare")
def test_e10_two_containers_with_one_pid(root: Path) -> None:
    first = Child(mounts.unshared(*python("assert os.getpid() == 1\n" + textwrap.dedent(HOLD), root)), {})
    try:
        first.expect("holding")
        second = mounts.unshared(*python("assert os.getpid() == 1\n" + textwrap.dedent(SAVE), root, 0.3, "theirs"))
        refused = subprocess.run(second, capture_output=True, text=True, check=False, encoding="utf-8")
        assert "LockTimeoutError" in refused.stderr
        first.kill()
        assert first.finish().returncode == -signal.SIGKILL
        subprocess.run(second, capture_output=True, check=True)
    finally:
        first.close()
    assert tree(root) == {"theirs": b"theirs"}


@pytest.mark.parametrize(
    "content", ["", "1\n", pytest.param(f"{os.getpid()}\n", id="pid"), "99999999\n", "\0" * 100, "host:1:locked\n"]
)
def test_e10_e18_what_stands_in_the_lock_file_means_nothing(root: Path, content: str) -> None:
    _save(root)
    lock = root / ".txfiles/lock"
    lock.write_text(content, encoding="utf-8")
    os.utime(lock, (0, 0))
    _save(root, timeout=0)
    assert lock.read_text(encoding="utf-8") == content
    with FileTransaction(root), pytest.raises(LockTimeoutError):
        run_in_thread(lambda: _save(root, timeout=0))
    lock.write_text("", encoding="utf-8")


# -- E12, E13: other users ------------------------------------------------------------------------------------------


@pytest.fixture
def protected_regular() -> Iterator[None]:
    sysctl = Path("/proc/sys/fs/protected_regular")
    before = sysctl.read_text(encoding="utf-8")
    sysctl.write_text("2\n", encoding="utf-8")
    yield
    sysctl.write_text(before, encoding="utf-8")


@pytest.mark.needs("users", "sysctl")
@pytest.mark.usefixtures("protected_regular")
@pytest.mark.parametrize("where", ["root", "private directory"])
def test_e12_root_opens_a_lock_of_somebody_else_in_a_sticky_directory(where: str) -> None:
    with public_directory(0o1777) as top:
        os.chown(top, 1000, 1000)
        run_python(SAVE, top, 0, "first", **as_user(1000)).check()
        if where == "private directory":
            (top / ".txfiles").chmod(0o1777)
        _save(top, "mine", timeout=0)
        run_python(SAVE, top, 0, "second", **as_user(1000)).check()
        assert sorted(tree(top)) == ["first", "mine", "second"]


@pytest.mark.needs("users", "sysctl")
@pytest.mark.usefixtures("protected_regular")
def test_e12_where_anybody_could_have_made_it_the_error_is_clear() -> None:
    with public_directory(0o1777) as top:
        run_python(SAVE, top, 0, "first", **as_user(1000)).check()
        with pytest.raises(PermissionError, match=r"belongs to user 1000 in a sticky directory: '.*\.txfiles'"):
            _save(top, "mine", timeout=0)
        assert sorted(tree(top)) == ["first"]


@pytest.mark.needs("users")
@pytest.mark.parametrize(("bits", "mask"), [(0o2775, 0o022), (0o2775, 0o002), (0o2770, 0o077)])
def test_e13_members_of_a_group_share_a_directory(mask: int, bits: int) -> None:
    with public_directory() as top:
        root = top / "root"
        root.mkdir()
        os.chown(root, 0, 5000)
        root.chmod(bits)
        for turn, uid in enumerate([1000, 1001, 1000, 1001]):
            member = as_user(uid, groups=[5000], umask=mask)
            run_python(SAVE, root, 5, f"by-{uid}-{turn}", **member).check()
        assert len(tree(root)) == 4
        stranger = run_python(SAVE, root, 5, "x", **as_user(1002))
        assert "PermissionError" in stranger.stderr
        assert str(root) in stranger.stderr
        assert len(tree(root)) == 4
        private = root / ".txfiles"
        assert all(not path.stat().st_mode & 0o007 for path in [private, *private.iterdir()])


KILLED = """
    from txfiles import FileTransaction
    from txfiles._disk import system
    class Dying(system.KernelFS):
        def rename(self, at, name, to, new):
            if new == b"b":
                os.kill(os.getpid(), signal.SIGKILL)
            super().rename(at, name, to, new)
    with system.use(Dying()), FileTransaction(sys.argv[1]) as tx:
        tx.write("a", "new")
        tx.write("b", "new")
"""


@pytest.mark.needs("users")
def test_e13_a_member_recovers_what_another_left(root: Path) -> None:
    with public_directory() as top:
        shared = top / "shared"
        shared.mkdir()
        os.chown(shared, 0, 5000)
        shared.chmod(0o2775)
        assert run_python(KILLED, shared, **as_user(1000, groups=[5000], umask=0o002)).returncode == -signal.SIGKILL
        run_python(SAVE, shared, 5, "c", **as_user(1001, groups=[5000], umask=0o002)).check()
        assert tree(shared) == {"a": b"new", "b": b"new", "c": b"theirs"}


@pytest.mark.needs("users")
@pytest.mark.parametrize("closed", [".txfiles", ".txfiles/lock", ".txfiles/format", ".txfiles/HEAD"])
def test_e13_the_error_says_what_cannot_be_opened(closed: str) -> None:
    with public_directory() as root:
        os.chown(root, 1000, 1000)
        run_python(SAVE, root, 5, "a", **as_user(1000)).check()
        os.chown(root / closed, 0, 0)
        (root / closed).chmod(0o700 if closed == ".txfiles" else 0o600)
        if closed != ".txfiles":
            (root / ".txfiles").chmod(0o755)
        said = run_python(SAVE, root, 5, "b", **as_user(1000)).stderr
        assert "PermissionError" in said
        assert str(root / closed) in said
        if closed.endswith("lock"):
            assert "the lock file" in said


# -- E15, E16: what cannot be written -------------------------------------------------------------------------------


@contextmanager
def _read_only(tmp_path: Path, name: str) -> Iterator[tuple[Path, Callable[[], Any]]]:
    """A root, and a block in which it is read-only."""
    if name == "loop":
        with loop_fs(tmp_path, "ext4") as fs:

            @contextmanager
            def remounted() -> Iterator[None]:
                fs.remount("ro")
                yield
                fs.remount("rw")

            yield fs.path, remounted
    elif name == "tmpfs":
        with mounts.tmpfs(tmp_path / "mnt") as path:
            yield path, lambda: mounts.read_only(path)
    else:
        (tmp_path / "plain").mkdir()
        yield tmp_path / "plain", lambda: mounts.read_only(tmp_path / "plain")


@pytest.mark.needs("loop", "ext4")
@pytest.mark.parametrize("name", ["loop", "tmpfs", "bind"])
@pytest.mark.parametrize("state", ["never used", "rolled back once", "at rest", "committed", "intent"])
def test_e15_reading_from_a_read_only_mount(tmp_path: Path, name: str, state: str) -> None:
    with _read_only(tmp_path, name) as (root, read_only):
        if state == "never used":
            for path in ("a", "b"):
                (root / path).write_text("old", encoding="utf-8")
        elif state == "rolled back once":
            for path in ("a", "b"):
                (root / path).write_text("old", encoding="utf-8")
            FileTransaction(root).begin().rollback()
        else:
            _save_both(root, "old")
        if state in ("committed", "intent"):
            killed(lambda: _save_both(root, "new"), "rename", 3 if state == "committed" else 1)
        with read_only():
            with FileStore(root, timeout=0.3).snapshot() as snap:
                assert snap.read_text("a") == snap.read_text("b") == ("new" if state == "committed" else "old")
            assert status(root).clean is (state not in ("committed", "intent"))
            if state in ("committed", "intent"):
                with pytest.raises(OSError, match="Read-only") as failed:
                    recover(root)
                assert failed.value.errno == errno.EROFS
            else:
                assert recover(root).clean
            began = time.monotonic()
            with pytest.raises(OSError, match="Read-only") as caught:
                FileTransaction(root, timeout=30).begin()
            assert caught.value.errno == errno.EROFS
            assert str(caught.value.filename).startswith(str(root / ".txfiles"))
            assert time.monotonic() - began < 20
        recover(root)
        assert (root / "a").read_text(encoding="utf-8") == (root / "b").read_text(encoding="utf-8")


def _save_both(root: Path, content: str) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", content)
        tx.write("b", content)


@pytest.mark.needs("mount")
@pytest.mark.parametrize("at", ["directory", "lock", "format", "token"])
def test_e16_no_room_is_no_reason_to_go_on_without_a_lock(tmp_path: Path, at: str) -> None:
    inodes = {"directory": 2, "lock": 3, "format": 4, "token": 5}[at]  # the mount's root and `a` are two
    with mounts.tmpfs(tmp_path / "mnt", nr_inodes=inodes) as root:
        (root / "a").write_text("old", encoding="utf-8")
        with pytest.raises(OSError, match="No space") as caught:
            _save(root)
        assert caught.value.errno == errno.ENOSPC
        assert tree(root) == {"a": b"old"}
        assert not set(os.listdir(root / ".txfiles") if at != "directory" else []) - {"lock", "format"}
        mounts.run("mount", "-o", "remount,nr_inodes=100", root)
        _save(root, timeout=0)


# -- E18, E20, E21, E23, E24 ----------------------------------------------------------------------------------------


def test_e18_eight_processes_at_once_on_a_lock_that_looks_stale(root: Path) -> None:
    _save(root, "count", "0")
    (root / ".txfiles/lock").write_text("pid 1, long dead\n", encoding="utf-8")
    os.utime(root / ".txfiles/lock", (0, 0))
    code = """
        from txfiles import FileTransaction
        print("ready")
        input()
        for _ in range(5):
            with FileTransaction(sys.argv[1], durability="process", timeout=60) as tx:
                tx.write("count", str(int(tx.read("count")) + 1))
    """
    with ExitStack() as stack:
        children = [stack.enter_context(child(code, root)) for _ in range(8)]
        for one in children:
            one.expect("ready")
        for one in children:
            one.send()
        for one in children:
            one.finish().check()
    assert (root / "count").read_text(encoding="utf-8") == "40"


STOPPED = """
    from txfiles import FileTransaction
    from txfiles._disk import system
    class Stopping(system.KernelFS):
        renames = 0
        def rename(self, at, name, to, new):
            Stopping.renames += 1
            if Stopping.renames == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGSTOP)
            super().rename(at, name, to, new)
    with system.use(Stopping()), FileTransaction(sys.argv[1]) as tx:
        for name in "ab":
            tx.write(name, "new")
"""


@pytest.mark.parametrize(
    "at", [1, 2, 3, 4], ids=["at the commit point", "none renamed", "one renamed", "at the settling"]
)
def test_e20_nobody_recovers_a_commit_that_is_only_slow(root: Path, at: int) -> None:
    _save_both(root, "old")
    with child(STOPPED, root, at) as writer:
        assert writer.wait_for_stop()
        before = _everything(root)
        for call in (
            lambda: FileTransaction(root, timeout=0.2).begin(),
            lambda: recover(root, timeout=0.2),
            lambda: _save(root, timeout=0),
        ):
            with pytest.raises(LockTimeoutError):
                call()
        with FileStore(root, timeout=0.2).snapshot() as snap:
            assert snap.read_text("a") == snap.read_text("b") == "old"
        assert not status(root).clean
        assert _everything(root) == before
        writer.resume()
        writer.finish().check()
    assert tree(root) == {"a": b"new", "b": b"new"}
    assert recover(root).clean


def _everything(root: Path) -> dict[str, tuple[int, int, int]]:
    return {
        os.path.join(folder, name): (found.st_ino, found.st_size, found.st_nlink)
        for folder, _, files in os.walk(root)
        for name in files
        for found in [os.lstat(os.path.join(folder, name))]
    }


def _newer_format(root: Path) -> Callable[[], object]:
    (root / ".txfiles/format").write_text("txfiles 3 flock\n", encoding="utf-8")
    return lambda: (root / ".txfiles/format").write_text("txfiles 1 flock\n", encoding="utf-8")


def _other_locks(root: Path) -> Callable[[], object]:
    (root / ".txfiles/format").write_text("txfiles 1 fcntl\n", encoding="utf-8")
    return lambda: (root / ".txfiles/format").write_text("txfiles 1 flock\n", encoding="utf-8")


def _damaged_journal(root: Path) -> Callable[[], object]:
    path = root / ".txfiles" / f"{'0' * 32}.committed"
    path.write_text("damaged", encoding="utf-8")
    return path.unlink


def _lock_is_a_directory(root: Path) -> Callable[[], object]:
    (root / ".txfiles/lock").rename(root.parent / "lock")
    (root / ".txfiles/lock").mkdir()

    def mend() -> None:
        (root / ".txfiles/lock").rmdir()
        (root.parent / "lock").rename(root / ".txfiles/lock")

    return mend


def _lock_is_a_fifo(root: Path) -> Callable[[], object]:
    (root / ".txfiles/lock").unlink()
    os.mkfifo(root / ".txfiles/lock")
    return (root / ".txfiles/lock").unlink


def _no_root(root: Path) -> Callable[[], object]:
    root.rename(root.parent / "aside")
    return lambda: (root.parent / "aside").rename(root)


def _held(root: Path) -> Callable[[], object]:
    return run_in_thread(lambda: FileTransaction(root).begin()).rollback  # type: ignore[no-any-return]


FAILURES: dict[Callable[[Path], Callable[[], object]], type[Exception]] = {
    _newer_format: JournalVersionError,
    _other_locks: JournalVersionError,
    _damaged_journal: JournalCorruptError,
    _lock_is_a_directory: OSError,
    _lock_is_a_fifo: OSError,
    _no_root: FileNotFoundError,
    _held: LockTimeoutError,
}


@pytest.mark.parametrize("breaking", FAILURES)
def test_e21_an_opening_that_failed_holds_nothing(root: Path, breaking: Callable[[Path], Callable[[], object]]) -> None:
    _save_both(root, "old")
    mend = breaking(root)
    for _ in range(3):
        with pytest.raises(FAILURES[breaking]):
            FileTransaction(root, timeout=0).begin()
        if FAILURES[breaking] in (JournalVersionError, JournalCorruptError, FileNotFoundError):
            with pytest.raises(FAILURES[breaking]):
                FileStore(root, timeout=0).snapshot().__enter__()
    mend()
    run_python(SAVE, root, 0, "c").check()
    _save(root, timeout=0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_e23_a_lock_ends_with_its_process(root: Path, number: signal.Signals) -> None:
    with child(HOLD, root) as holder:
        holder.expect("holding")
        with pytest.raises(LockTimeoutError):
            _save(root, timeout=0)
        holder.signal(number)
        holder.finish()
        _save(root, timeout=0)
    assert sorted(tree(root)) == ["a"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_e23_one_that_dies_waiting_is_not_in_the_way(root: Path, number: signal.Signals) -> None:
    with FileTransaction(root) as tx, child(SAVE, root, 60, "b") as waiting:
        time.sleep(0.4)
        waiting.signal(number)
        waiting.finish()
        tx.write("a", "x")
    _save(root, "c", timeout=0)
    assert sorted(tree(root)) == ["a", "c"]


def test_e24_sixteen_threads_at_once_and_one_holder(root: Path) -> None:
    _save(root, "count", "0")
    start = threading.Barrier(16)
    inside = 0

    def one(_: int) -> int:
        nonlocal inside
        start.wait()
        done = 0
        for attempt in range(5):
            try:
                with FileTransaction(root, timeout=0 if attempt % 2 else 30, durability="process") as tx:
                    inside += 1
                    assert inside == 1
                    tx.write("count", str(int(tx.read("count")) + 1))
                    inside -= 1
                done += 1
            except LockTimeoutError:
                gc.collect(1)
        return done

    with ThreadPoolExecutor(16) as pool:
        done = sum(pool.map(one, range(16)))
    assert int((root / "count").read_text(encoding="utf-8")) == done >= 16 * 3


def test_e24_the_end_of_one_that_does_not_hold_it_is_no_release(root: Path) -> None:
    with FileTransaction(root) as tx:
        for _ in range(5):
            loser = FileTransaction(root, timeout=0)
            with pytest.raises(LockTimeoutError):
                run_in_thread(loser.begin)
            with pytest.raises(TransactionClosedError):
                loser.rollback()
            loser.__exit__(None, None, None)
            del loser
            gc.collect()
            with pytest.raises(LockTimeoutError):
                run_in_thread(lambda: _save(root, timeout=0))
        tx.write("a", "x")
    assert tree(root) == {"a": b"x"}


@pytest.mark.needs("strace")
def test_e18_a_lock_file_is_neither_unlinked_nor_made_again(root: Path) -> None:
    code = """
        from txfiles import FileTransaction
        FileTransaction(sys.argv[1]).begin().rollback()
        with region():
            with FileTransaction(sys.argv[1]) as tx:
                tx.write("a", "x")
    """
    calls = each_call(code, root, calls=("unlink", "unlinkat", "openat", *RENAME))
    on_lock = [call for call in calls if any(path.endswith("/lock") for path in call.paths)]
    assert [call.name for call in on_lock] == ["openat"]
    assert "O_CREAT" not in on_lock[0].args
