"""What `SimFS` offers besides the calls: counting, plans, options, mounts, the lock, the scene and the tree."""

from __future__ import annotations

import errno
from functools import partial
from typing import Any

import pytest

from tests.support.boundary import doing
from txfiles import FileTransaction, recover
from txfiles._disk.lock import make_lock
from txfiles._disk.system import FileSystem, use
from txfiles.errors import ConflictError, LockTimeoutError, NestedTransactionError, TransactionClosedError
from txfiles.testing import Crash, Entry, Options, SimFS, crash_at
from txfiles.testing._faults import fail_at


@pytest.fixture
def fs() -> SimFS:
    return SimFS()


def top(fs: SimFS) -> int:
    return fs.open_dir(None, b"/sim")


def code_of(call: Any, *args: Any) -> int | None:
    with pytest.raises(OSError) as raised:
        call(*args)
    return raised.value.errno


def test_it_is_a_file_system(fs: SimFS) -> None:
    boundary: FileSystem = fs
    missing = [name for name in vars(FileSystem) if not name.startswith("_") and not hasattr(boundary, name)]
    assert not missing


def test_a_transaction_on_it(fs: SimFS) -> None:
    fs.put("/sim/a", "old", mode=0o640, uid=5)
    with use(fs):
        with FileTransaction("/sim") as tx:
            tx.write("a", "new")
            tx.write("deep/er/b", "b")
        assert recover("/sim").clean
    assert fs.get("/sim/a") == b"new"
    assert fs.tree()["a"] == Entry("file", b"new", 0o640, 5, 0, ())
    assert fs.names("/sim/.txfiles") == {"format", "lock", "HEAD"}
    assert fs.open_files == []


# Counting and plans.


def test_system_calls_are_counted_and_traced_by_path(fs: SimFS) -> None:
    fs.trace = []
    at = top(fs)
    fd = fs.create(at, b"a", 0o600)
    fs.write(fd, memoryview(b"x" * 99))
    fs.close(fd)
    fs.rename(at, b"a", at, b"b")
    assert code_of(fs.unlink, at, b"a") == errno.ENOENT
    fs.boot_id(), fs.random_id(), fs.pid(), fs.ids(), fs.umask(at, b""), fs.absolute(b"/sim")
    assert fs.calls == 6
    assert fs.trace == [
        "   1 open_dir /sim",
        "   2 create /sim/a 384",
        f"   3 write /sim/a {b'x' * 40!r}... 99 bytes",
        "   4 close /sim/a",
        "   5 rename /sim/a /sim/b",
        "   6 unlink /sim/a (ENOENT)",
    ]


def test_setting_the_scene_is_not_counted(fs: SimFS) -> None:
    fs.mkdirs("/sim/d/e")
    fs.put("/sim/a", "x")
    fs.get("/sim/a"), fs.tree(), fs.names("/sim"), fs.exists("/sim/a")
    assert fs.calls == 0


def test_a_call_fails_once_or_for_ever_or_of_one_kind(fs: SimFS) -> None:
    at = top(fs)
    fs.plan = fail_at(fs.calls + 1, errno.ENOSPC)
    assert code_of(fs.create, at, b"a") == errno.ENOSPC
    fs.create(at, b"a")
    fs.plan = fail_at(fs.calls + 1, errno.EIO, forever=True, only="mkdir")
    fs.create(at, b"b")
    assert [code_of(fs.mkdir, at, name, 0o700) for name in (b"c", b"d")] == [errno.EIO] * 2
    assert fs.names("/sim") == {"a", "b"}


def test_a_close_that_fails_has_closed(fs: SimFS) -> None:
    fd = top(fs)
    fs.plan = fail_at(fs.calls + 1, errno.EIO)
    assert code_of(fs.close, fd) == errno.EIO
    fs.plan = None
    assert code_of(fs.fstat, fd) == errno.EBADF


def test_a_crash_before_a_call(fs: SimFS) -> None:
    at = top(fs)
    fs.plan = crash_at(fs.calls + 1)
    with pytest.raises(Crash):
        fs.create(at, b"a")
    assert fs.names("/sim") == set()


def test_a_crash_after_a_call(fs: SimFS) -> None:
    at = top(fs)
    fs.after = crash_at(fs.calls + 1)
    with pytest.raises(Crash):
        fs.create(at, b"a")
    assert fs.names("/sim") == {"a"}


def test_after_a_crash_nothing_works_any_more(fs: SimFS) -> None:
    at = top(fs)
    fs.plan = crash_at(fs.calls + 1)
    with pytest.raises(Crash):
        fs.stat(at, b".")
    fs.plan = None
    assert fs.crashed
    for call in (lambda: fs.unlink(at, b"a"), lambda: fs.close(at), lambda: fs.open_dir(None, b"/")):
        with pytest.raises(Crash):
            call()
    assert not fs.after_kill().crashed
    assert not issubclass(Crash, Exception)


def test_a_crash_in_a_watch_counts_too(fs: SimFS) -> None:
    def watch(now: SimFS) -> None:
        if now.calls == 1:
            raise Crash

    fs.watch = watch
    at = top(fs)
    with pytest.raises(Crash):
        fs.mkdir(at, b"d", 0o700)
    assert fs.crashed
    assert fs.names("/sim") == set()


def test_a_plan_may_do_anything_at_a_call(fs: SimFS) -> None:
    def interrupt(number: int, name: str) -> None:
        if name == "mkdir":
            raise KeyboardInterrupt

    at = top(fs)
    fs.plan = interrupt
    with pytest.raises(KeyboardInterrupt):
        fs.mkdir(at, b"d", 0o700)
    fs.create(at, b"a")
    assert not fs.crashed


# What kind of file system it is.


def test_writes_can_be_short() -> None:
    fs = SimFS(Options(longest_write=3))
    fd = fs.create(top(fs), b"a")
    assert [fs.write(fd, b"12345"), fs.write(fd, b"45")] == [3, 2]
    assert fs.get("/sim/a") == b"12345"


def test_the_disk_can_be_full() -> None:
    fs = SimFS(Options(capacity=10))
    at = top(fs)
    fd = fs.create(at, b"a")
    assert [fs.write(fd, b"1234"), fs.write(fd, b"5678901")] == [4, 6]
    assert code_of(fs.write, fd, b"x") == errno.ENOSPC
    fs.seek(fd, 0, 0)
    assert fs.write(fd, b"over") == 4
    fs.unlink(at, b"a")
    other = fs.create(at, b"b")
    assert code_of(fs.write, other, b"x") == errno.ENOSPC  # a is still open
    fs.close(fd)
    assert fs.write(other, b"x") == 1
    assert fs.after_kill().disk.used == 1


def test_without_attributes() -> None:
    fs = SimFS(Options(xattrs=False))
    at = top(fs)
    assert fs.xattrs(at, b".") == {}
    assert code_of(fs.set_xattr, at, "user.x", b"") == errno.ENOTSUP
    assert code_of(fs.remove_xattr, at, "user.x") == errno.ENOTSUP


def test_without_directory_syncs() -> None:
    fs = SimFS(Options(sync_dirs=False))
    fs.put("/sim/a", "")
    at = top(fs)
    assert code_of(fs.sync_dir, at) == errno.EINVAL
    fs.sync_file(fs.open_read(at, b"a"))


def test_without_hard_links() -> None:
    fs = SimFS(Options(hard_links=False))
    fs.put("/sim/a", "")
    at = top(fs)
    assert code_of(fs.link, at, b"a", at, b"b") == errno.EPERM


def test_the_clock_has_ticks() -> None:
    fine, coarse = SimFS(), SimFS(Options(granularity_ns=10**9))
    for fs, ticks in ((fine, 3), (coarse, 1)):
        times = set()
        for _ in range(3):
            fs.put("/sim/a", "x")
            times.add(fs.stat(top(fs), b"a").st_mtime_ns)
        assert len(times) == ticks
    assert fs.after_kill()._mtime() >= max(times)


def test_jobs_run_in_an_order_that_the_seed_decides() -> None:
    orders = []
    for seed in range(5):
        done: list[int] = []
        fs = SimFS(Options(seed=seed))
        fs.run_all([doing(partial(done.append, n)) for n in range(6)])
        assert sorted(done) == list(range(6))
        orders.append(done)
    assert len({tuple(order) for order in orders}) > 1


def test_all_jobs_run_also_after_a_failure(fs: SimFS) -> None:
    done: list[int] = []

    def fail() -> None:
        raise OSError(errno.EIO, "injected")

    jobs = [doing(partial(done.append, 1)), doing(fail), doing(partial(done.append, 2))]
    assert code_of(fs.run_all, jobs) == errno.EIO
    assert sorted(done) == [1, 2]


def test_ids_never_come_twice(fs: SimFS) -> None:
    seen = {fs.random_id() for _ in range(1000)}
    seen |= {fs.after_kill().random_id()}
    assert len(seen) == 1001
    assert all(len(one) == 32 and int(one, 16) for one in seen)


# Mounts.


def test_a_mount_is_another_place(fs: SimFS) -> None:
    fs.mkdirs("/sim/m/below")
    fs.mkdirs("/sim/bind")
    fs.mount("/sim/m")
    fs.mount("/sim/bind", same_device=True)
    fs.put("/sim/a", "x")
    at, mounted, bound = top(fs), fs.open_dir(None, b"/sim/m"), fs.open_dir(None, b"/sim/bind")
    assert len({fs.mount_id(at), fs.mount_id(mounted), fs.mount_id(at, b"bind")}) == 3
    assert fs.mount_id(mounted, b"below") == fs.mount_id(mounted)
    assert fs.fstat(at).st_dev == fs.fstat(bound).st_dev != fs.fstat(mounted).st_dev
    for to in (mounted, bound):
        assert code_of(fs.rename, at, b"a", to, b"a") == errno.EXDEV
        assert code_of(fs.link, at, b"a", to, b"a") == errno.EXDEV
    assert code_of(fs.rmdir, at, b"bind") == errno.EBUSY
    assert code_of(fs.rename, at, b"bind", at, b"other") == errno.EBUSY
    fd = fs.create(mounted, b"new")
    assert fs.fstat(fd).st_dev == fs.fstat(mounted).st_dev
    assert [state.mount_id(top(state), b"m") for _, state in fs.surviving_states(1)] == [fs.mount_id(mounted)]


def test_a_file_can_be_a_mount(fs: SimFS) -> None:
    fs.put("/sim/a", "x")
    fs.put("/sim/b", "x")
    fs.mount("/sim/a", same_device=True)
    at = top(fs)
    assert code_of(fs.unlink, at, b"a") == errno.EBUSY
    assert code_of(fs.rename, at, b"b", at, b"a") == errno.EBUSY


# The lock.


def lock_of(fs: SimFS) -> Any:
    if not fs.exists("/sim/.txfiles"):
        fs.mkdirs("/sim/.txfiles")
    return make_lock(fs, fs.open_dir(None, b"/sim/.txfiles"), b"/sim")


def test_the_lock_has_one_holder(fs: SimFS) -> None:
    lock, other = lock_of(fs), lock_of(fs)
    lock.acquire(10.0, "one")
    assert lock.held
    with pytest.raises(LockTimeoutError):
        other.acquire(10.0, "two")
    with pytest.raises(NestedTransactionError):
        other.acquire(10.0, "one")
    assert not other.held
    lock.check()
    lock.release()
    lock.release()
    other.acquire(0.0, "one")
    other.release()
    assert not [path for path in fs.open_files if path.endswith(b"lock")]


def test_the_lock_file_is_made_through_counted_calls(fs: SimFS) -> None:
    lock = lock_of(fs)
    before = fs.calls
    lock.acquire(None, "one")
    assert fs.exists("/sim/.txfiles/lock")
    assert fs.calls > before + 1


def test_a_lock_file_that_was_replaced_is_noticed(fs: SimFS) -> None:
    lock = lock_of(fs)
    with pytest.raises(TransactionClosedError):
        lock.check()
    lock.acquire(None, "one")
    fs.remove("/sim/.txfiles/lock")
    with pytest.raises(ConflictError):
        lock.check()
    fs.put("/sim/.txfiles/lock", "")
    with pytest.raises(ConflictError):
        lock.check()


def test_the_lock_goes_with_the_process(fs: SimFS) -> None:
    lock_of(fs).acquire(None, "one")
    for state in (fs.after_kill(), fs.survive("1" * len(next(iter(fs.surviving_states(1)))[0]))):
        lock_of(state).acquire(0.0, "one")


# The scene and the tree.


def test_put_writes_in_place_and_keeps_what_is_not_said(fs: SimFS) -> None:
    fs.put("/sim/a", "one", mode=0o600, uid=1, gid=2, xattrs={"user.k": b"v"})
    number = fs.stat(top(fs), b"a").st_ino
    fs.put("/sim/a", b"two")
    assert fs.stat(top(fs), b"a").st_ino == number
    assert fs.tree()["a"] == Entry("file", b"two", 0o600, 1, 2, (("user.k", b"v"),))


def test_the_tree_has_everything_but_the_private_directory(fs: SimFS) -> None:
    fs.mkdirs("/sim/d", mode=0o2750, gid=3)
    fs.put("/sim/d/f", "x")
    fs.put_symlink("/sim/l", "d/f")
    fs.put_link("/sim/h", "/sim/d/f")
    fs.mkdirs("/sim/.txfiles")
    assert fs.tree("/sim") == {
        "d": Entry("dir", b"", 0o2750, 0, 3, ()),
        "d/f": Entry("file", b"x", 0o644, 0, 3, ()),
        "l": Entry("link", b"d/f", 0o777, 0, 0, ()),
        "h": Entry("file", b"x", 0o644, 0, 3, ()),
    }
    assert set(fs.tree("/sim", skip_private=False)) == {"d", "d/f", "l", "h", ".txfiles"}
    assert fs.get("/sim/l") == b"x"


def test_what_is_not_there(fs: SimFS) -> None:
    fs.put("/sim/a", "")
    for call in (lambda: fs.get("/sim/b"), lambda: fs.put("/sim/d/a", ""), lambda: fs.remove("/sim/b")):
        assert code_of(call) == errno.ENOENT
    assert code_of(fs.put, "/sim/a/b", "") == errno.ENOTDIR
    assert not fs.exists("/sim/a/b")
    fs.mkdirs("/sim/d/e")
    assert code_of(fs.remove, "/sim/d") == errno.ENOTEMPTY


def test_links_lead_on_but_not_in_circles(fs: SimFS) -> None:
    fs.mkdirs("/sim/d")
    fs.put_symlink("/sim/l", "/sim/d/../d")
    fs.put_symlink("/sim/one", "two")
    fs.put_symlink("/sim/two", "one")
    fs.put("/sim/l/f", "x")
    assert fs.get("/sim/d/f") == b"x"
    assert code_of(fs.get, "/sim/one/x") == errno.ELOOP
    assert code_of(fs.open_dir, None, b"/sim/l") == errno.ENOTDIR
    assert fs.fstat(fs.open_dir(None, b"/sim/l", follow=True)).st_ino == fs.stat(top(fs), b"d").st_ino


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/sim/l/x/y", b"/sim/d/x/y"),
        (b"/sim/./d/../d/", b"/sim/d"),
        (b"sim", b"/sim"),
        (b"/none/../sim/l", b"/sim/d"),
        (b"/", b"/"),
        (b"/sim/file/x", b"/sim/file/x"),
    ],
)
def test_absolute_paths_have_no_links(fs: SimFS, path: bytes, expected: bytes) -> None:
    fs.mkdirs("/sim/d")
    fs.put_symlink("/sim/l", "d")
    fs.put("/sim/file", "")
    assert fs.absolute(path) == expected


def test_setgid_directories_hand_on_their_group(fs: SimFS) -> None:
    fs.mkdirs("/sim/d", mode=0o2775, gid=9)
    at = fs.open_dir(None, b"/sim/d")
    fs.mkdir(at, b"e", 0o777)
    fs.create(at, b"f", 0o666)
    tree = fs.tree("/sim/d")
    assert (tree["e"].mode, tree["e"].gid, tree["f"].mode, tree["f"].gid) == (0o2755, 9, 0o644, 9)


def test_descriptors_are_none_of_the_kernels(fs: SimFS) -> None:
    assert top(fs) >= 1 << 20


def test_nul_bytes_are_refused(fs: SimFS) -> None:
    with pytest.raises(ValueError, match="null byte"):
        fs.stat(top(fs), b"a\0b")
