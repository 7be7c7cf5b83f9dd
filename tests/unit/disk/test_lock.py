"""The writers' lock: one holder among threads, processes and users, freed by every kind of death, and fair."""

from __future__ import annotations

import errno
import gc
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock, lock_descriptor

from tests.support import mounts
from tests.support.as_user import as_user, public_directory
from tests.support.inject import Fault, traced
from tests.support.procs import CHECKOUT, Child, child, python, run_python
from txfiles._disk import lock as _lock
from txfiles._disk import pace, system
from txfiles._format import layout
from txfiles.errors import (
    ConflictError,
    LockTimeoutError,
    NestedTransactionError,
    TransactionClosedError,
)

FS = system.KernelFS()

LOCK = """
from txfiles._disk import lock as _lock, system
from txfiles.errors import *
fs, root = system.current(), os.fsencode(sys.argv[1])
private_fd = fs.open_dir(None, root + b"/.txfiles")
lock = _lock.make_lock(fs, private_fd, root)
"""

WAIT = LOCK + "print('waiting'); lock.acquire(20, 1); lock.check(); print('held'); input()"

HOLD = LOCK + "lock.acquire(0, 1); print('held', flush=True); input(); lock.release(); print('released')"

TRY = LOCK + "lock.acquire(float(sys.argv[2]) if len(sys.argv) > 2 else 0, 1); print('held')"


@pytest.fixture
def home(root: Path) -> Path:
    """A root with an empty private directory."""
    (root / ".txfiles").mkdir(mode=0o700)
    return root


@pytest.fixture
def private_fd(home: Path) -> Iterator[int]:
    fd = FS.open_dir(None, os.fsencode(home / ".txfiles"))
    yield fd
    FS.close(fd)


@pytest.fixture
def lock(home: Path, private_fd: int) -> Iterator[_lock.RootLock]:
    made = _lock.RootLock(FS, private_fd, os.fsencode(home))
    yield made
    made.release()


def another(home: Path, private_fd: int) -> _lock.RootLock:
    return _lock.RootLock(FS, private_fd, os.fsencode(home))


def file_of(home: Path) -> Path:
    return home / ".txfiles" / "lock"


def is_free(home: Path) -> bool:
    """Whether the kernel would give the lock to somebody else."""
    with file_of(home).open("ab") as file:
        return lock_descriptor(file.fileno(), blocking=False)


@contextmanager
def holder(home: Path) -> Iterator[Child]:
    with child(HOLD, home) as process:
        process.expect("held")
        yield process


def wait_for_queue(private_fd: int, *, waiters: int) -> None:
    """Wait until so many tickets stand in the queue of this process."""
    found = os.fstat(private_fd)
    limit = time.monotonic() + 60
    while len(_lock._queues.get((found.st_dev, found.st_ino), _lock._no_queue).tickets) != waiters:
        assert time.monotonic() < limit
        time.sleep(0.001)


# What it is


def test_the_file_is_private_empty_and_stays(home: Path, lock: _lock.RootLock) -> None:
    seen = [lock.held]
    lock.acquire(0, 1)
    seen.append(lock.held)
    lock.check()
    assert not is_free(home)
    lock.release()
    lock.release()
    seen.append(lock.held)
    assert seen == [False, True, False]
    assert is_free(home)
    found = file_of(home).lstat()
    assert (stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode), found.st_size) == (stat.S_IFREG, 0o600, 0)
    assert os.listdir(home / ".txfiles") == ["lock"]
    lock.acquire(0, 1)
    assert file_of(home).lstat().st_ino == found.st_ino


def test_it_is_the_lock_of_filelock(home: Path, lock: _lock.RootLock) -> None:
    with FileLock(file_of(home)), pytest.raises(LockTimeoutError):
        lock.acquire(0, 1)
    lock.acquire(0, 1)
    with pytest.raises(TimeoutError):
        FileLock(file_of(home), timeout=0).acquire()


def test_check_without_the_lock(lock: _lock.RootLock) -> None:
    with pytest.raises(TransactionClosedError):
        lock.check()


def test_a_file_system_may_bring_its_own_lock(home: Path, private_fd: int) -> None:
    class Fake(system.KernelFS):
        def __init__(self) -> None:
            self.lock_factory = lambda *given: given

    fs = Fake()
    made: object = _lock.make_lock(fs, private_fd, os.fsencode(home))
    assert made == (fs, private_fd, os.fsencode(home))
    assert isinstance(_lock.make_lock(FS, private_fd, os.fsencode(home)), _lock.RootLock)


def test_c02_deep_directory_and_c08_any_bytes(tmp_path: Path) -> None:
    """Beyond PATH_MAX the lock file has no path that the kernel would take, but it has a directory."""
    start = os.open(tmp_path, os.O_RDONLY)
    name, depth, at = b"\xff" + b"d" * 250, 20, os.dup(start)
    try:
        for _ in range(depth):
            os.mkdir(name, dir_fd=at)
            inner = os.open(name, os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = inner
        os.mkdir(layout.PRIVATE, 0o700, dir_fd=at)
        private = FS.open_dir(at, layout.PRIVATE)
        path = os.fsencode(tmp_path) + (b"/" + name) * depth
        first, second = _lock.RootLock(FS, private, path), _lock.RootLock(FS, private, path)
        first.acquire(0, 1)
        first.check()
        with pytest.raises(LockTimeoutError) as caught:
            second.acquire(0, 2)
        assert caught.value.path == os.fsdecode(path + b"/.txfiles/lock")
        first.release()
        FS.close(private)
    finally:
        os.close(at)
        os.close(start)
        mounts.run("rm", "-rf", tmp_path / os.fsdecode(name))


def test_a_renamed_root_is_the_same_and_nothing_is_made_in_its_old_place(
    home: Path, private_fd: int, lock: _lock.RootLock
) -> None:
    moved = home.rename(home.parent / "moved")
    lock.acquire(0, 1)
    lock.check()
    assert not home.exists()
    assert not is_free(moved)
    lock.release()
    moved.rename(home)


def test_a_removed_private_directory_is_not_made_again(home: Path, lock: _lock.RootLock) -> None:
    (home / ".txfiles").rmdir()
    with pytest.raises(FileNotFoundError, match="lock file"):
        lock.acquire(None, 1)
    assert list(home.iterdir()) == []


# Waiting


def test_timeout(home: Path, lock: _lock.RootLock) -> None:
    with holder(home):
        for timeout in (0.0, 0.25):
            began = time.monotonic()
            with pytest.raises(LockTimeoutError, match=f"waited {timeout:.1f}") as caught:
                lock.acquire(timeout, 1)
            assert timeout <= time.monotonic() - began < timeout + 20
            assert caught.value.path == str(file_of(home))
            assert isinstance(caught.value, TimeoutError)
            assert not lock.held


def test_a_look_of_a_reader_is_no_reason_to_give_up(
    home: Path, lock: _lock.RootLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the lock for a moment, because the kernel cannot be asked otherwise."""
    answers = [False, True]

    def answer(fd: int, *, blocking: bool) -> bool:
        time.sleep(0.01)  # a busy machine
        return answers.pop(0)

    monkeypatch.setattr("filelock.lock_descriptor", answer)
    lock.acquire(0, 1)


def test_whether_somebody_has_it(home: Path, private_fd: int, lock: _lock.RootLock) -> None:
    assert not _lock.is_locked(FS, private_fd), "there is no lock file"
    lock.acquire(0, 1)
    assert _lock.is_locked(FS, private_fd)
    lock.check()
    lock.release()
    assert not _lock.is_locked(FS, private_fd)
    assert is_free(home)
    with holder(home):
        assert _lock.is_locked(FS, private_fd)


def test_e02_a_copy_of_what_a_reader_looked_through_keeps_nothing(home: Path, private_fd: int) -> None:
    copies = []

    class Copying(system.KernelFS):
        def open_read(self, at: int, name: bytes) -> int:
            fd = super().open_read(at, name)
            copies.append(os.dup(fd))
            return fd

    file_of(home).touch()
    assert not _lock.is_locked(Copying(), private_fd)
    assert is_free(home)
    os.close(copies.pop())


def test_none_waits_for_as_long_as_it_takes(home: Path, lock: _lock.RootLock) -> None:
    with holder(home) as process:
        threading.Timer(0.3, process.send).start()
        began = time.monotonic()
        lock.acquire(None, 1)
        assert 0.2 < time.monotonic() - began < 60
        process.expect("released")


def test_a_timeout_of_infinity(home: Path, lock: _lock.RootLock) -> None:
    with holder(home) as process:
        threading.Timer(0.05, process.send).start()
        lock.acquire(float("inf"), 1)


def test_threads_come_in_the_order_of_their_arrival(home: Path, private_fd: int, lock: _lock.RootLock) -> None:
    order: list[int] = []

    def write(number: int) -> None:
        mine = another(home, private_fd)
        mine.acquire(10, number)
        order.append(number)
        mine.release()

    lock.acquire(0, -1)
    threads = [threading.Thread(target=write, args=(number,)) for number in range(12)]
    for number, thread in enumerate(threads):
        thread.start()
        wait_for_queue(private_fd, waiters=number + 2)
    lock.release()
    for thread in threads:
        thread.join()
    assert order == list(range(12))


def test_a_thread_that_gave_up_blocks_nobody(home: Path, private_fd: int, lock: _lock.RootLock) -> None:
    lock.acquire(0, 1)
    with pytest.raises(LockTimeoutError):
        another(home, private_fd).acquire(0.02, 2)
    with pytest.raises(LockTimeoutError):
        another(home, private_fd).acquire(0, 3)
    lock.release()
    other = another(home, private_fd)
    other.acquire(0, 4)
    other.release()


def test_only_the_first_thread_asks_the_kernel(home: Path, private_fd: int) -> None:
    """A process has one voice however many threads wait in it."""
    asked: set[int] = set()

    class Watching(system.KernelFS):
        def open_lock(self, at: int, name: bytes) -> int:
            asked.add(threading.get_ident())
            return super().open_lock(at, name)

    def wait() -> None:
        with pytest.raises(LockTimeoutError):
            _lock.RootLock(Watching(), private_fd, os.fsencode(home)).acquire(0.3, threading.get_ident())

    with holder(home):
        threads = [threading.Thread(target=wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_for_queue(private_fd, waiters=4)
        assert len(asked) == 1
        for thread in threads:
            thread.join()


def test_roots_do_not_wait_for_each_other(tmp_path: Path, lock: _lock.RootLock) -> None:
    (tmp_path / "other" / ".txfiles").mkdir(parents=True)
    fd = FS.open_dir(None, os.fsencode(tmp_path / "other" / ".txfiles"))
    lock.acquire(0, 1)
    other = _lock.RootLock(FS, fd, os.fsencode(tmp_path / "other"))
    other.acquire(0, 1)
    assert other.held
    assert lock.held
    other.release()
    FS.close(fd)


def test_many_roots_are_not_remembered_for_ever(tmp_path: Path) -> None:
    for number in range(3 * _lock._IDLE_QUEUES):
        path = tmp_path / str(number)
        path.mkdir()
        fd = FS.open_dir(None, os.fsencode(path))
        lock = _lock.RootLock(FS, fd, os.fsencode(path))
        lock.acquire(0, 1)
        lock.release()
        FS.close(fd)
    assert len(_lock._queues) <= _lock._IDLE_QUEUES


# Who stops waiting


@pytest.mark.parametrize("holder", ["this process", "another process"])
def test_a_wait_can_be_stopped_from_another_thread(
    home: Path, private_fd: int, lock: _lock.RootLock, holder: str
) -> None:
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            mine.acquire(None, "waiter")
        except LockTimeoutError as error:
            ended.append(error)

    def stop() -> None:
        thread = threading.Thread(target=wait)
        thread.start()
        wait_for_queue(private_fd, waiters=2 if holder == "this process" else 1)
        mine.stop_waiting()
        thread.join(60)

    mine = another(home, private_fd)
    if holder == "this process":
        lock.acquire(0, "holder")
        stop()
        lock.check()
        lock.release()
    else:
        with child(HOLD, home) as other:
            other.expect("held")
            stop()
            other.send()
    assert len(ended) == 1
    assert not mine.held
    another(home, private_fd).acquire(0, "waiter")


def test_a_wait_stopped_before_it_began(home: Path, private_fd: int, lock: _lock.RootLock) -> None:
    lock.stop_waiting()
    with pytest.raises(LockTimeoutError):
        lock.acquire(None, 1)
    assert is_free(home)


# Owners


def test_e04_the_same_owner_never_waits_for_itself(home: Path, private_fd: int, lock: _lock.RootLock) -> None:
    lock.acquire(0, "me")
    with pytest.raises(NestedTransactionError):
        lock.acquire(None, "anybody")
    (home.parent / "link").symlink_to(home)
    spelled = os.fsencode(home.parent / "link" / ".." / "link" / ".txfiles")
    fd = FS.open_dir(None, spelled)
    try:
        with pytest.raises(NestedTransactionError):
            _lock.RootLock(FS, fd, os.fsencode(home.parent / "link")).acquire(None, "me")
    finally:
        FS.close(fd)
    assert lock.held
    lock.release()
    lock.acquire(0, "me")


def test_e04_also_while_it_waits(home: Path, private_fd: int, lock: _lock.RootLock) -> None:
    lock.acquire(0, "holder")

    def wait() -> None:
        mine = another(home, private_fd)
        mine.acquire(10, "waiter")
        mine.release()

    thread = threading.Thread(target=wait)
    thread.start()
    wait_for_queue(private_fd, waiters=2)
    with pytest.raises(NestedTransactionError):
        another(home, private_fd).acquire(None, "waiter")
    lock.release()
    thread.join()


def test_e05_released_in_another_thread(home: Path, lock: _lock.RootLock) -> None:
    lock.acquire(0, threading.get_ident())
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    assert not lock.held
    assert is_free(home)
    lock.acquire(0, threading.get_ident())


def test_e24_one_holder_among_16_threads_and_the_dropped_free_nothing(home: Path, private_fd: int) -> None:
    together = threading.Barrier(16)
    inside: list[int] = []
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            together.wait()
            for _ in range(10):
                mine = another(home, private_fd)
                mine.acquire(30, number)
                del_me = another(home, private_fd)
                with pytest.raises(NestedTransactionError):
                    del_me.acquire(0, number)
                del del_me
                inside.append(number)
                assert inside == [number]
                inside.remove(number)
                assert mine.held
                mine.check()
                mine.release()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_dropped_lock_is_free(home: Path, private_fd: int, lock: _lock.RootLock) -> None:
    dropped = another(home, private_fd)
    dropped.acquire(0, 1)
    cycle = [dropped]
    cycle.append(cycle)  # type: ignore[arg-type]
    del dropped, cycle
    gc.collect()
    assert is_free(home)
    lock.acquire(0, 1)


# The file under it


def test_e01_the_file_was_deleted_under_its_holder(home: Path, private_fd: int, lock: _lock.RootLock) -> None:
    lock.acquire(0, 1)
    file_of(home).unlink()
    with pytest.raises(ConflictError) as caught:
        lock.check()
    assert str(caught.value).startswith(f"the lock file {str(file_of(home))!r} was removed or replaced")
    assert caught.value.path == str(file_of(home))
    run_python(TRY, home).check()
    with pytest.raises(ConflictError):
        lock.check()
    lock.release()
    lock.acquire(0, 1)
    lock.check()


def test_e01_the_file_was_replaced_under_who_waits_for_it(home: Path, lock: _lock.RootLock) -> None:
    with holder(home) as old, child(LOCK + WAIT, home) as waiter:
        waiter.expect("waiting")
        time.sleep(0.2)
        file_of(home).unlink()
        lock.acquire(0, 1)
        old.send()
        old.expect("released")
        time.sleep(0.1)  # it has the old file by now, and must not believe in it
        with pytest.raises(AssertionError, match="expected for"):
            waiter.expect("held", timeout=0.05)
        lock.check()
        lock.release()
        waiter.expect("held")
        assert not is_free(home)


def test_e01_a_file_that_is_replaced_again_and_again_ends_in_an_error(home: Path, private_fd: int) -> None:
    class Replacing(system.KernelFS):
        def fstat(self, fd: int) -> os.stat_result:
            for name in os.listdir(private_fd):
                os.unlink(name, dir_fd=private_fd)
            return os.fstat(fd)

    lock = _lock.RootLock(Replacing(), private_fd, os.fsencode(home))
    with pytest.raises(ConflictError, match="again and again"):
        lock.acquire(None, 1)
    assert not lock.held


def test_a_symlink_is_refused(home: Path, lock: _lock.RootLock) -> None:
    for target in ("elsewhere", home.parent / "dangling"):
        (home.parent / "elsewhere").touch()
        file_of(home).symlink_to(target)
        with pytest.raises(OSError, match="lock file") as caught:
            lock.acquire(1, 1)
        assert (caught.value.errno, caught.value.filename) == (errno.ELOOP, str(file_of(home)))
        assert not (home.parent / "dangling").exists()
        file_of(home).unlink()


def test_what_is_no_file_is_refused(home: Path, lock: _lock.RootLock) -> None:
    file_of(home).mkdir()
    with pytest.raises(IsADirectoryError, match="lock file"):
        lock.acquire(1, 1)
    file_of(home).rmdir()
    os.mkfifo(file_of(home))
    reader = os.open(file_of(home), os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match=r"not a regular file \(the lock file\)"):
        lock.acquire(1, 1)
    os.close(reader)
    file_of(home).unlink()


def test_e18_age_and_content_mean_nothing(home: Path, lock: _lock.RootLock) -> None:
    file_of(home).write_bytes(b"12345\nhost\n\x00junk")
    os.utime(file_of(home), (0, 0))
    with holder(home), pytest.raises(LockTimeoutError):
        lock.acquire(0, 1)
    lock.acquire(0, 1)
    assert file_of(home).read_bytes() == b"12345\nhost\n\x00junk"
    assert file_of(home).stat().st_mtime == 0


def test_e18_of_8_processes_at_once_one_gets_it(home: Path) -> None:
    code = LOCK + "input()\ntry: lock.acquire(0, 1)\nexcept LockTimeoutError: print('no')\nelse: print('yes')\ninput()"
    processes = []
    try:
        processes = [Child(python(code, home), {}) for _ in range(8)]
        for process in processes:
            process.send()
        answers = [process.expect("") for process in processes]
        assert sorted(answers) == ["no"] * 7 + ["yes"]
    finally:
        for process in processes:
            process.close()


@pytest.mark.needs("strace")
@pytest.mark.parametrize("name", ["ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def test_e07_e08_a_place_without_file_locks(home: Path, name: str) -> None:
    code = """
    from filelock import lock_descriptor
    with region():
        try:
            lock.acquire(5, 1)
        except UnsupportedFilesystemError as error:
            print(error.path, error.__cause__.errno, error)
    assert not lock.held
    """
    done = traced(LOCK + code.replace("\n    ", "\n"), home, faults=[Fault("flock", error=name, when="1+")])
    path, number, message = done.check().stdout.strip().split(" ", 2)
    assert (path, int(number)) == (str(file_of(home)), getattr(errno, name))
    assert "no file locks" in message
    assert os.listdir(home / ".txfiles") == ["lock"], "there is no other kind of lock to fall back to"
    assert file_of(home).read_bytes() == b""


@pytest.mark.needs("strace")
@pytest.mark.parametrize(("call", "name"), [("flock", "EIO"), ("openat", "EACCES"), ("openat", "ENOSPC")])
def test_other_errors_pass_and_name_the_file(home: Path, call: str, name: str) -> None:
    code = """
    from filelock import lock_descriptor
    with region():
        try:
            lock.acquire(5, 1)
        except OSError as error:
            print(error.filename, error.errno, error)
    lock.acquire(0, 1)
    """
    done = traced(LOCK + code.replace("\n    ", "\n"), home, faults=[Fault(call, error=name)])
    path, number, message = done.check().stdout.strip().split(" ", 2)
    assert (path, int(number)) == (str(file_of(home)), getattr(errno, name))
    assert "(the lock file)" in message


@pytest.mark.needs("mount")
@pytest.mark.parametrize("made_before", [True, False])
def test_e15_a_read_only_file_system(home: Path, made_before: bool) -> None:
    if made_before:
        run_python(TRY, home).check()
    with mounts.read_only(home):
        began = time.monotonic()
        done = run_python(TRY, home, 100)
        assert time.monotonic() - began < 50
    assert "OSError: [Errno 30] Read-only file system (the lock file)" in done.stderr
    assert file_of(home).exists() == made_before


@pytest.mark.needs("mount")
def test_e16_no_room_for_the_file(tmp_path: Path) -> None:
    with mounts.tmpfs(tmp_path / "full", nr_inodes=3) as where:
        (where / ".txfiles").mkdir()
        (where / "last").touch()
        done = run_python(TRY, where)
        assert "OSError: [Errno 28] No space left on device (the lock file)" in done.stderr


@pytest.mark.needs("strace")
def test_e12_what_exists_is_opened_without_o_creat(home: Path) -> None:
    file_of(home).touch()
    code = LOCK + "import filelock\nwith region():\n    lock.acquire(0, 1)"
    opens = traced(code, home).check().named("openat")  # type: ignore[attr-defined]
    assert [call.paths for call in opens] == [[str(file_of(home))]]
    assert "O_NOFOLLOW" in opens[0].args
    assert "O_CREAT" not in opens[0].args


@pytest.mark.needs("users")
def test_e12_root_takes_the_lock_of_another_user_in_a_sticky_directory() -> None:
    with public_directory() as where:
        private = where / ".txfiles"
        private.mkdir()
        private.chmod(0o1777)
        run_python(TRY, where, **as_user(1000)).check()
        assert file_of(where).stat().st_uid == 1000
        run_python(TRY, where).check()


@pytest.mark.needs("users")
@pytest.mark.parametrize("setgid", [True, False])
def test_e13_a_group_shares_it_whatever_the_umask(setgid: bool) -> None:
    with public_directory() as where:
        private = where / ".txfiles"
        private.mkdir()
        os.chown(private, 1000, 5000)
        private.chmod(0o2770 if setgid else 0o770)
        run_python(TRY, where, **as_user(1000, groups=[5000], umask=0o077)).check()
        found = file_of(where).stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1000, 5000, 0o660)
        run_python(TRY, where, **as_user(1001, groups=[5000], umask=0o022)).check()
        denied = run_python(TRY, where, **as_user(1002))
        assert denied.returncode != 0


@pytest.mark.needs("users")
def test_e13_its_owner_shares_what_a_kill_left_unshared_and_nothing_else() -> None:
    with public_directory() as where:
        private, secret = where / ".txfiles", file_of(where)
        private.mkdir()
        os.chown(private, 1000, 5000)
        private.chmod(0o770)
        secret.touch(mode=0o600)
        os.chown(secret, 1000, 1000)
        denied = run_python(TRY, where, **as_user(1001, groups=[5000]))
        assert "Permission denied (the lock file)" in denied.stderr
        run_python(TRY, where, **as_user(1000, groups=[5000])).check()
        assert stat.S_IMODE(secret.stat().st_mode) == 0o660
        run_python(TRY, where, **as_user(1001, groups=[5000])).check()

        secret.chmod(0o600)  # a file of this user's that somebody of the group moved here
        secret.write_bytes(b"private")
        run_python(TRY, where, **as_user(1000, groups=[5000])).check()
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_e13_it_waits_for_who_is_just_making_it(home: Path, private_fd: int) -> None:
    class Unshared(system.KernelFS):
        refused = 0

        def open_lock(self, at: int, name: bytes) -> int:
            if self.refused < 3:
                self.refused += 1
                raise PermissionError(errno.EACCES, "Permission denied", name)
            return super().open_lock(at, name)

    lock = _lock.RootLock(Unshared(), private_fd, os.fsencode(home))
    with pytest.raises(PermissionError, match="lock file"):
        lock.acquire(1, 1)
    (home / ".txfiles").chmod(0o770)
    lock = _lock.RootLock(Unshared(), private_fd, os.fsencode(home))
    lock.acquire(1, 1)
    lock.release()


@pytest.mark.needs("users")
def test_d06_root_does_not_shut_the_owner_out() -> None:
    with public_directory() as where:
        private = where / ".txfiles"
        private.mkdir(mode=0o700)
        os.chown(private, 1000, 1000)
        run_python(TRY, where).check()
        run_python(TRY, where, **as_user(1000)).check()


# Death, forks, interrupts


def test_a_killed_holder_frees_it_at_once(home: Path, lock: _lock.RootLock) -> None:
    with holder(home) as process:
        process.stop()
        with pytest.raises(LockTimeoutError):
            lock.acquire(0.05, 1)
        process.kill()
        process.finish()
        lock.acquire(0, 1)


@pytest.mark.needs("root", "unshare")
def test_e10_across_pid_namespaces(home: Path) -> None:
    code = "assert os.getpid() == 1\n"
    first = Child(mounts.unshared(*python(code + HOLD, home)), {})
    try:
        first.expect("held")
        waiting = code + LOCK + "try: lock.acquire(0.1, 1)\nexcept LockTimeoutError: print('no')\n"
        second = Child(mounts.unshared(*python(waiting + "input(); lock.acquire(5, 1); print('held')", home)), {})
        try:
            second.expect("no")
            first.kill()
            second.send()
            second.expect("held")
            second.finish().check()
        finally:
            second.close()
    finally:
        first.close()


def test_e02_a_forked_child_has_no_part_in_it(home: Path, private_fd: int, lock: _lock.RootLock) -> None:
    lock.acquire(0, 1)

    def in_child() -> bool:
        if lock.held:
            return False
        lock.release()
        lock.__del__()
        try:
            another(home, private_fd).acquire(0.05, 1)  # no NestedTransactionError: the child's queue is empty
        except LockTimeoutError:
            return True
        return False

    assert in_a_fork(in_child)
    assert lock.held
    lock.check()
    assert not is_free(home)


def in_a_fork(function: object) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if function() else 1)  # type: ignore[operator]
        finally:
            os._exit(2)
    return os.waitpid(pid, 0)[1] == 0


def test_e02_the_child_outlives_its_parent_and_keeps_nothing(home: Path, lock: _lock.RootLock) -> None:
    code = "lock.acquire(0, 1)\nif os.fork() == 0: time.sleep(60)\nprint('held'); time.sleep(60)"
    with child(LOCK + code, home) as parent:
        parent.expect("held")
        with pytest.raises(LockTimeoutError):
            lock.acquire(0, 1)
        os.kill(parent.pid, signal.SIGKILL)
        lock.acquire(1, 1)


def test_e02_a_copy_that_a_child_has_for_a_moment_keeps_nothing(home: Path, lock: _lock.RootLock) -> None:
    """As between the fork and the exec of another thread's subprocess: a release unlocks, it does not only close."""
    lock.acquire(0, 1)
    assert lock._ticket is not None
    copy = os.dup(lock._ticket.fd)
    lock.release()
    assert is_free(home)
    os.close(copy)


def test_e02_a_fork_while_another_thread_opens_the_file(home: Path, lock: _lock.RootLock) -> None:
    """The child's copy is of a descriptor whose number the parent had not yet noted."""
    code = """
    opened, forked = threading.Event(), threading.Event()
    class Slow(system.KernelFS):
        def open_lock(self, at, name):
            fd = super().open_lock(at, name)
            opened.set()
            forked.wait()
            return fd
    lock = _lock.RootLock(Slow(), private_fd, root)
    thread = threading.Thread(target=lock.acquire, args=(0, 1))
    thread.start()
    opened.wait()
    if os.fork() == 0:
        time.sleep(60)
    forked.set()
    thread.join()
    lock.check()
    print('held')
    time.sleep(60)
    """
    file_of(home).touch()
    with child(LOCK + code.replace("\n    ", "\n"), home) as parent:
        parent.expect("held")
        os.kill(parent.pid, signal.SIGKILL)
        lock.acquire(1, 1)


def test_e02_a_fork_amid_the_work_of_other_threads(home: Path) -> None:
    """Whatever they are at, the child can use the lock afterwards, and their locks die with the parent."""
    code = """
    import filelock
    stop = threading.Event()
    def work(number):
        while not stop.is_set():
            mine = _lock.make_lock(fs, private_fd, root)
            mine.acquire(None, number)
            mine.release()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads: thread.start()
    children = []
    for _ in range(30):
        pid = os.fork()
        if pid == 0:
            mine = _lock.make_lock(fs, private_fd, root)
            mine.acquire(20, 1)
            mine.check()
            mine.release()
            os._exit(0)
        children.append(pid)
        time.sleep(0.002)
    ends = [os.waitpid(pid, 0)[1] for pid in children]
    stop.set()
    for thread in threads: thread.join()
    print(ends)
    """
    done = run_python(LOCK + code.replace("\n    ", "\n"), home).check()
    assert done.stdout.strip() == str([0] * 30)
    assert is_free(home)


@pytest.mark.parametrize("moment", ["in a close", "in the queue"])
def test_e02_a_fork_at_the_worst_moment(home: Path, moment: str) -> None:
    """Another thread is inside, with a mutex that nobody will ever release in the child."""
    code = """
    inside, go = threading.Event(), threading.Event()
    def stay():
        inside.set()
        go.wait()
    class Slow(system.KernelFS):
        def close(self, fd):
            if threading.current_thread() is thread:
                stay()
            super().close(fd)
    class Owner:
        def __eq__(self, other):
            if threading.current_thread() is thread:
                stay()
            return False
    if sys.argv[2] == "in a close":
        lock = _lock.RootLock(Slow(), private_fd, root)
        lock.acquire(0, 1)
        thread = threading.Thread(target=lock.release)
    else:
        lock.acquire(0, Owner())
        thread = threading.Thread(target=_lock.make_lock(fs, private_fd, root).acquire, args=(10, Owner()))
    thread.start()
    inside.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(5)
        lock.release()
        assert not lock.held
        other = _lock.make_lock(fs, private_fd, root)
        try:
            other.acquire(0, 1)
        except LockTimeoutError:
            pass
        os._exit(0)
    end = os.waitpid(pid, 0)[1]
    go.set()
    lock.release()
    thread.join()
    assert end == 0, end
    """
    run_python(LOCK + code.replace("\n    ", "\n"), home, moment).check()


def test_an_unlock_that_fails_frees_it_all_the_same(
    home: Path, lock: _lock.RootLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says nothing: closing frees it too, and an error here would hide the outcome of the commit."""
    failed = []

    def failing(fd: int) -> None:
        failed.append(fd)
        raise OSError(errno.EIO, "injected")

    lock.acquire(0, 1)
    with monkeypatch.context() as patch:
        patch.setattr("filelock.unlock_descriptor", failing)
        lock.release()
    assert failed
    assert not lock.held
    assert is_free(home)
    lock.acquire(0, 1)


def test_ctrl_c_after_the_answer_of_the_kernel(
    home: Path, lock: _lock.RootLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a copy of the descriptor keeps what was locked a moment before."""
    copies = []

    def interrupted(fd: int, *, blocking: bool) -> bool:
        copies.append(os.dup(fd))
        assert lock_descriptor(fd, blocking=blocking)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("filelock.lock_descriptor", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(0, 1)
    assert is_free(home)
    os.close(copies.pop())
    lock.acquire(0, 1)


def test_e23_ctrl_c_while_it_waits(home: Path, private_fd: int, lock: _lock.RootLock) -> None:
    with holder(home):
        threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(None, 1)
        assert not lock.held
    lock.acquire(0, 1)
    threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        another(home, private_fd).acquire(None, 2)
    lock.release()
    lock.acquire(0, 2)


def test_e23_ctrl_c_at_any_moment(home: Path) -> None:
    """After each, the lock is free for a descriptor that knows nothing of it, and the queue is empty."""
    code = """
    import fcntl, gc
    gc.disable()
    dice = random.Random(int(sys.argv[2]))
    other = os.open(root + b"/.txfiles/lock", os.O_RDWR | os.O_CREAT)
    lock.acquire(0, 1); lock.release()
    armed, hits = False, 0
    def interrupt(*_):
        if armed:
            raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupt)
    for _ in range(1500):
        mine = _lock.make_lock(fs, private_fd, root)
        try:
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, 120e-6))
                mine.acquire(0, 1)
                mine.release()
            finally:
                armed = False
        except KeyboardInterrupt:
            hits += 1
            mine.release()
        assert not mine.held
        assert not any(queue.tickets for queue in _lock._queues.values())
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_UN)
    print(hits)
    """
    done = run_python(LOCK + code.replace("\n    ", "\n"), home, 0).check()
    assert int(done.stdout) > 100


# Fairness

LOOP = """
hold, turns = float(sys.argv[2]), 0
print("ready"); input()
until = time.monotonic() + float(sys.argv[3])
while time.monotonic() < until:
    mine = _lock.make_lock(fs, private_fd, root)
    mine.acquire(None, 1)
    time.sleep(hold)
    turns += 1
    mine.release()
print(turns)
"""


@pytest.mark.parametrize(("count", "hold"), [(2, 0.003), (8, 0.003), (8, 0.0)])
def test_processes_share_it(home: Path, count: int, hold: float) -> None:
    processes = []
    try:
        processes = [Child(python(LOCK + LOOP, home, hold, 2), {}) for _ in range(count)]
        for process in processes:
            process.expect("ready")
        for process in processes:
            process.send()
        turns = [int(process.expect("")) for process in processes]
    finally:
        for process in processes:
            process.close()
    assert max(turns) <= 3 * min(turns), turns
    assert sum(turns) * (hold + 0.001) > 2 * 0.5, turns


def test_a_newcomer_need_not_wait_for_a_lucky_moment(home: Path, lock: _lock.RootLock) -> None:
    """A writer with long transactions, one right after the other, leaves others a chance, though it knows of nobody."""
    with child(LOCK + LOOP, home, 0.06, 30) as busy:
        busy.expect("ready")
        busy.send()
        waits = []
        for _ in range(7):
            time.sleep(0.13)
            began = time.monotonic()
            lock.acquire(10, 1)
            waits.append(time.monotonic() - began)
            lock.release()
        assert sorted(waits)[3] < 0.25, waits


class Clock:
    """Takes the place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept = 0.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return 0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def test_the_pace_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """In milliseconds: a pause of 1 after each turn; turns of 2 while others are met, of 50 when nobody is."""
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    queue, wait = pace.Pace(), pace.Wait(None, "")

    def turns(milliseconds: float, *, hold: float = 0.3) -> list[float]:
        """How long the process went on between pauses, in `milliseconds` of taking the lock for `hold` each."""
        lengths, began, until = [], clock.now, clock.now + milliseconds / 1000
        while clock.now < until:
            clock.slept = 0.0
            queue.pause(wait)
            if clock.slept:
                assert clock.slept == pytest.approx(0.001)
                lengths.append(round((clock.now - clock.slept - began) * 1000, 6))
                began = clock.now
            clock.now += hold / 1000
            queue.released = clock.now
        return lengths

    assert turns(180) == [50.1, 50.1, 50.1]
    queue.met_others()
    assert turns(80) == [2.1] * pace._POLITE + [50.1]
    queue.met_others()
    assert turns(12, hold=3) == [3, 3, 3]
    clock.now += 0.002  # the writer itself was away for long enough
    assert turns(1) == []

    late = pace.Wait(0, "")
    clock.now += 0.0025
    queue.released, clock.slept = clock.now, 0.0
    queue.met_others()
    clock.now += 0.0001
    queue.pause(late)
    assert not clock.slept, "who has no time left does not pause"


def test_it_runs_from_the_checkout() -> None:
    assert Path(_lock.__file__).is_relative_to(CHECKOUT), sys.path
