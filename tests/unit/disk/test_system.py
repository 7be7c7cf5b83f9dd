"""Each call of the boundary does what it says, on the running kernel."""

from __future__ import annotations

import errno
import io
import os
import random
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import mounts
from tests.support.inject import Fault, traced
from tests.support.procs import run_python
from txfiles._disk import system
from txfiles._disk.system import KernelFS

fs = KernelFS()


@pytest.fixture
def at(tmp_path: Path) -> Iterator[int]:
    """A directory descriptor of `tmp_path`."""
    fd = fs.open_dir(None, os.fsencode(tmp_path))
    yield fd
    fs.close(fd)


def put(path: Path, text: str = "x") -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def error_of(call: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as raised:
        call()
    return raised.value.errno


# Opening.


def test_absolute_is_one_spelling_for_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")
    monkeypatch.chdir(tmp_path)
    spellings = [b"d", b"./d/", b"d/../d", b"link", os.fsencode(tmp_path / "link")]
    assert {fs.absolute(path) for path in spellings} == {os.fsencode(tmp_path.resolve() / "d")}


@pytest.mark.parametrize("name", ["new", "new/er", "file/below", "loop", "d (deleted)", "dangling", "x" * 300])
def test_absolute_of_what_is_no_directory_is_that_of_realpath(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "d (deleted)").mkdir()
    path = os.fsencode(tmp_path / name)
    assert fs.absolute(path) == os.path.realpath(path)


def test_absolute_is_not_a_name_in_another_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What /proc tells of a directory whose mount has gone, or is outside of the root directory."""
    monkeypatch.setattr(os, "readlink", lambda path, **_: os.fsencode(tmp_path.parent))
    assert fs.absolute(os.fsencode(tmp_path)) == os.fsencode(tmp_path)


def test_absolute_is_told_anew_when_a_name_leads_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, first, second = tmp_path / "link", tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        (directory / "same").mkdir(parents=True)
    link.symlink_to("first")
    for _ in range(3):
        assert fs.absolute(os.fsencode(link)) == os.fsencode(first)
        monkeypatch.chdir(first)
        assert fs.absolute(b"same") == os.fsencode(first / "same")
        monkeypatch.chdir(second)
        assert fs.absolute(b"same") == os.fsencode(second / "same")
    link.unlink()
    link.symlink_to("second")
    assert fs.absolute(os.fsencode(link)) == os.fsencode(second)
    second.rename(tmp_path / "third")
    second.symlink_to("third")
    assert fs.absolute(os.fsencode(link)) == os.fsencode(tmp_path / "third")
    assert fs.absolute(os.fsencode(second)) == os.fsencode(tmp_path / "third")
    above = tmp_path / "above"
    (above / "root").mkdir(parents=True)
    assert fs.absolute(os.fsencode(above / "root")) == os.fsencode(above / "root")
    above.rename(tmp_path / "moved")
    above.symlink_to("moved")
    assert fs.absolute(os.fsencode(above / "root")) == os.fsencode(tmp_path / "moved" / "root")


def test_absolute_raises_what_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> int:
        raise OSError(errno.EIO, "Input/output error", b"a")

    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(OSError, match="Input/output error"):
        fs.absolute(os.fsencode(tmp_path))


def test_open_dir_refuses_files_and_follows_links_only_when_told(tmp_path: Path, at: int) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")
    put(tmp_path / "f")
    fs.close(fs.open_dir(at, b"d"))
    assert error_of(lambda: fs.open_dir(at, b"link")) in (errno.ENOTDIR, errno.ELOOP)
    fs.close(fs.open_dir(at, b"link", follow=True))
    assert error_of(lambda: fs.open_dir(at, b"f")) == errno.ENOTDIR
    assert error_of(lambda: fs.open_dir(at, b"absent")) == errno.ENOENT


def test_open_read_follows_no_link_and_does_not_wait_for_a_fifo(tmp_path: Path, at: int) -> None:
    put(tmp_path / "f", "abc")
    (tmp_path / "link").symlink_to("f")
    os.mkfifo(tmp_path / "fifo")
    fd = fs.open_read(at, b"f")
    assert (fs.read(fd, 2), fs.read(fd, 9), fs.read(fd, 9)) == (b"ab", b"c", b"")
    assert fs.seek(fd, 1, io.SEEK_SET) == 1
    assert fs.read(fd, 9) == b"bc"
    fs.close(fd)
    assert error_of(lambda: fs.open_read(at, b"link")) == errno.ELOOP
    fs.close(fs.open_read(at, b"fifo"))


def test_open_append_writes_at_the_end(tmp_path: Path, at: int) -> None:
    put(tmp_path / "f", "abc")
    (tmp_path / "link").symlink_to("f")
    fd = fs.open_append(at, b"f")
    assert fs.write(fd, b"de") == 2
    fs.close(fd)
    assert (tmp_path / "f").read_text(encoding="utf-8") == "abcde"
    assert error_of(lambda: fs.open_append(at, b"link")) == errno.ELOOP
    assert error_of(lambda: fs.open_append(at, b"absent")) == errno.ENOENT


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_d04_create_is_private_and_never_takes_what_is_there(tmp_path: Path, at: int, umask: int) -> None:
    before = os.umask(umask)
    try:
        fd = fs.create(at, b"new")
        wide = fs.create(at, b"wide", 0o666)
    finally:
        os.umask(before)
    assert stat.S_IMODE(fs.fstat(fd).st_mode) == 0o600
    assert stat.S_IMODE(fs.fstat(wide).st_mode) == 0o666 & ~umask
    assert fs.write(fd, memoryview(b"abc")) == 3
    assert fs.seek(fd, 0, io.SEEK_SET) == 0
    assert fs.read(fd, 9) == b"abc"
    fs.close(fd)
    fs.close(wide)
    (tmp_path / "dangling").symlink_to("elsewhere")
    for name in (b"new", b"dangling"):
        assert error_of(lambda name=name: fs.create(at, name)) == errno.EEXIST
    assert not (tmp_path / "elsewhere").exists()


def test_descriptors_are_not_inherited(tmp_path: Path, at: int) -> None:
    put(tmp_path / "f")
    opened = [fs.open_dir(at, b"."), fs.open_read(at, b"f"), fs.open_append(at, b"f"), fs.create(at, b"g")]
    assert not any(os.get_inheritable(fd) for fd in opened)
    for fd in opened:
        fs.close(fd)


# Looking.


def test_stat_and_fstat_follow_no_link(tmp_path: Path, at: int) -> None:
    put(tmp_path / "f", "abc")
    (tmp_path / "link").symlink_to("f")
    os.utime(tmp_path / "f", ns=(1, 2))
    os.link(tmp_path / "f", tmp_path / "other")
    fd = fs.open_read(at, b"f")
    for found in (fs.stat(at, b"f"), fs.stat(None, os.fsencode(tmp_path / "f")), fs.fstat(fd)):
        assert (found.st_size, found.st_mtime_ns, found.st_nlink) == (3, 2, 2)
        assert (found.st_ino, found.st_dev) == (fs.stat(at, b"other").st_ino, fs.stat(at, b"other").st_dev)
    fs.close(fd)
    assert stat.S_ISLNK(fs.stat(at, b"link").st_mode)
    assert error_of(lambda: fs.stat(at, b"absent")) == errno.ENOENT


def test_symlink_and_readlink_keep_any_bytes(at: int) -> None:
    fs.symlink(b"caf\xe9/..//x", at, b"link\xff")
    assert fs.readlink(at, b"link\xff") == b"caf\xe9/..//x"
    assert error_of(lambda: fs.symlink(b"x", at, b"link\xff")) == errno.EEXIST


def test_listdir_gives_bytes_again_and_again(tmp_path: Path, at: int) -> None:
    for name in (b"a", b"caf\xe9", "é".encode()):
        fs.close(fs.create(at, name))
    assert sorted(fs.listdir(at)) == sorted([b"a", b"caf\xe9", "é".encode()])
    (tmp_path / "a").unlink()
    assert sorted(fs.listdir(at)) == sorted([b"caf\xe9", "é".encode()])


@pytest.mark.parametrize("way", ["statx", "fdinfo"])
@pytest.mark.needs("mount")
def test_mount_id_tells_a_bind_mount_of_the_same_file_system(
    tmp_path: Path, at: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "fdinfo":
        monkeypatch.setattr(system, "_statx_mount_id", lambda at, name: None)
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("one")
    put(tmp_path / "f")
    with mounts.bind(tmp_path / "d", tmp_path / "bound"), mounts.bind(tmp_path / "f", tmp_path / "one"):
        here = fs.mount_id(at)
        assert here == fs.mount_id(at, b"d") == fs.mount_id(at, b"f") == fs.mount_id(at, b"link")
        assert len({here, fs.mount_id(at, b"bound"), fs.mount_id(at, b"one")}) == 3
        assert fs.stat(at, b"bound").st_dev == fs.stat(at, b"d").st_dev
        fd = fs.open_dir(at, b"bound")
        assert fs.mount_id(fd) == fs.mount_id(at, b"bound")
        fs.close(fd)
    assert error_of(lambda: fs.mount_id(at, b"absent")) == errno.ENOENT


def test_a_number_comes_back_and_a_time_of_birth_does_not(tmp_path: Path) -> None:
    fs = system.KernelFS()
    seen: set[int] = set()
    at = fs.open_dir(None, bytes(tmp_path))
    try:
        while len(seen) < 3:  # a clock tick apart
            fd = fs.create(at, b"f")
            seen.add(fs.born(fd))
            assert fs.born(at, b"f") == fs.born(fd)
            fs.close(fd)
            os.utime(tmp_path / "f", (0, 0))
            assert fs.born(at, b"f") in seen
            fs.unlink(at, b"f")
    finally:
        fs.close(at)
    assert min(seen) > 1.7e18


def test_where_nobody_tells_the_birth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_statx", lambda *_: None)
    with open(tmp_path / "f", "wb") as file:
        assert system.KernelFS().born(file.fileno()) == 0


@pytest.mark.needs("mount")
def test_a_session_is_one_boot_and_one_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def session() -> bytes:
        fd = fs.open_dir(None, os.fsencode(tmp_path / "m"))
        try:
            return fs.session(fd)
        finally:
            fs.close(fd)

    code = "import sys; from txfiles._disk.system import KernelFS as K; k = K()\n"
    code += "print(k.session(k.open_dir(None, sys.argv[1].encode())).hex())"
    seen = set()
    for _ in range(3):
        with mounts.tmpfs(tmp_path / "m"):
            seen.add(session())
            assert run_python(code, tmp_path / "m").check().stdout.strip() == session().hex()
    assert len(seen) == 3
    assert all(len(one) == 32 for one in seen)
    (tmp_path / "m").mkdir(exist_ok=True)
    monkeypatch.setattr(system, "_statx", lambda *_: None)
    assert session() == b""
    monkeypatch.undo()
    monkeypatch.setattr(fs, "boot_id", lambda: "", raising=False)
    assert session() == b""


# Changing.


def test_mkdir_and_rmdir(tmp_path: Path, at: int) -> None:
    fs.mkdir(at, b"d", 0o700)
    fs.mkdir(None, os.fsencode(tmp_path / "e"), 0o700)
    assert stat.S_IMODE(fs.stat(at, b"d").st_mode) == 0o700
    put(tmp_path / "d" / "f")
    assert error_of(lambda: fs.mkdir(at, b"d", 0o700)) == errno.EEXIST
    assert error_of(lambda: fs.rmdir(at, b"d")) == errno.ENOTEMPTY
    fs.rmdir(at, b"e")
    assert not (tmp_path / "e").exists()


def test_link_and_rename_between_directories(tmp_path: Path, at: int) -> None:
    fs.mkdir(at, b"d", 0o700)
    d = fs.open_dir(at, b"d")
    put(tmp_path / "f", "new")
    (tmp_path / "sym").symlink_to("f")
    fs.link(at, b"f", d, b"f.old")
    assert fs.stat(d, b"f.old").st_ino == fs.stat(at, b"f").st_ino
    fs.link(at, b"sym", d, b"sym.old")
    assert fs.readlink(d, b"sym.old") == b"f"
    assert error_of(lambda: fs.link(at, b"f", d, b"f.old")) == errno.EEXIST
    put(tmp_path / "d" / "target", "old")
    fs.rename(at, b"f", d, b"target")
    assert (tmp_path / "d" / "target").read_text(encoding="utf-8") == "new"
    assert not (tmp_path / "f").exists()
    fs.rename(d, b"target", d, b"f.old")  # two names of one inode (A1): nothing happens
    assert sorted(fs.listdir(d)) == [b"f.old", b"sym.old", b"target"]
    fs.close(d)


def test_a_free_name_is_taken_and_names_are_exchanged(tmp_path: Path, at: int) -> None:
    put(tmp_path / "a", "A")
    put(tmp_path / "b", "B")
    assert error_of(lambda: fs.rename_new(at, b"a", at, b"b")) == errno.EEXIST
    fs.exchange(at, b"a", at, b"b")
    assert ((tmp_path / "a").read_text(encoding="utf-8"), (tmp_path / "b").read_text(encoding="utf-8")) == ("B", "A")
    fs.rename_new(at, b"a", at, b"c")
    assert error_of(lambda: fs.exchange(at, b"b", at, b"a")) == errno.ENOENT
    assert sorted(os.listdir(tmp_path)) == ["b", "c"]
    for call in (fs.rename_new, fs.exchange):
        with pytest.raises(ValueError, match="null"):
            call(at, b"b\0", at, b"c")


def test_renames_of_another_kind_are_enosys_where_the_library_lacks_them(
    tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "a")
    monkeypatch.setattr(system, "_LINUX", False)
    assert error_of(lambda: fs.exchange(at, b"a", at, b"a")) == errno.ENOSYS


def test_bytes_are_overwritten_in_place_whatever_a_write_takes(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = fs.create(at, b"log")
    fs.allocate(fd, 16)
    fs.allocate(fd, 8)
    assert fs.read_at(fd, 100, 0) == bytes(16)
    monkeypatch.setattr(fs, "write_at", lambda fd, data, offset: os.pwrite(fd, data[:3], offset), raising=False)
    system.write_all_at(fs, fd, b"0123456789", 4)
    assert fs.read_at(fd, 12, 3) == b"\x000123456789\0"
    monkeypatch.setattr(fs, "write_at", lambda fd, data, offset: 0, raising=False)
    assert error_of(lambda: system.write_all_at(fs, fd, b"0", 4)) == errno.EIO
    assert fs.seek(fd, 0, os.SEEK_CUR) == 0
    fs.close(fd)
    again = fs.open_write(at, b"log")
    assert fs.read(again, 100) == bytes(4) + b"0123456789" + bytes(2)
    fs.close(again)


def test_unlink_takes_the_link_and_no_directory(tmp_path: Path, at: int) -> None:
    put(tmp_path / "f")
    (tmp_path / "link").symlink_to("f")
    (tmp_path / "d").mkdir()
    fs.unlink(at, b"link")
    assert (tmp_path / "f").exists()
    assert error_of(lambda: fs.unlink(at, b"d")) in (errno.EISDIR, errno.EPERM)
    assert error_of(lambda: fs.unlink(at, b"link")) == errno.ENOENT


def test_chmod_and_mtime(at: int) -> None:
    fd = fs.create(at, b"f")
    fs.chmod(fd, 0o2751)
    fs.set_mtime(fd, 1_234_567_890_123_456_789)
    assert stat.S_IMODE(fs.fstat(fd).st_mode) == 0o2751
    assert fs.fstat(fd).st_mtime_ns == 1_234_567_890_123_456_789
    fs.close(fd)


@pytest.mark.needs("root")
def test_chown(at: int) -> None:
    fd = fs.create(at, b"f")
    fs.chown(fd, 1234, 5678)
    assert (fs.fstat(fd).st_uid, fs.fstat(fd).st_gid) == (1234, 5678)
    fs.chown(fd, -1, 99)
    assert (fs.fstat(fd).st_uid, fs.fstat(fd).st_gid) == (1234, 99)
    fs.close(fd)


# Extended attributes.


def test_d08_xattrs_round_trip_and_are_read_without_following(tmp_path: Path, at: int) -> None:
    fd = fs.create(at, b"caf\xe9")
    (tmp_path / "link").symlink_to(os.fsdecode(b"caf\xe9"))
    assert fs.xattrs(at, b"caf\xe9") == {}
    fs.set_xattr(fd, "user.b", b"\0\xff")
    fs.set_xattr(fd, "user.a", b"")
    fs.set_xattr(fd, "user.b", b"\0\xfe")
    assert list(fs.xattrs(at, b"caf\xe9").items()) == [("user.a", b""), ("user.b", b"\0\xfe")]
    assert fs.xattrs(at, b"link") == {}
    fs.remove_xattr(fd, "user.a")
    assert fs.xattrs(at, b"caf\xe9") == {"user.b": b"\0\xfe"}
    assert error_of(lambda: fs.remove_xattr(fd, "user.a")) == errno.ENODATA
    assert error_of(lambda: fs.xattrs(at, b"absent")) == errno.ENOENT
    fs.close(fd)


@pytest.mark.needs("setfacl")
def test_d08_an_acl_is_among_the_xattrs(tmp_path: Path, at: int) -> None:
    put(tmp_path / "f")
    subprocess.run(["setfacl", "-m", "u:1234:r", tmp_path / "f"], check=True)
    (value,) = fs.xattrs(at, b"f").values()
    fd = fs.create(at, b"g")
    fs.set_xattr(fd, "system.posix_acl_access", value)
    fs.close(fd)
    shown = subprocess.run(
        ["getfacl", "-cn", tmp_path / "g"], check=True, capture_output=True, text=True, encoding="utf-8"
    ).stdout
    assert "user:1234:r--" in shown


@pytest.mark.parametrize(("number", "raises"), [(errno.ENOTSUP, False), (errno.ENOSYS, False), (errno.EIO, True)])
def test_only_not_supported_means_no_xattrs(
    at: int, number: int, raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    fs.close(fs.create(at, b"f"))
    monkeypatch.setattr(os, "listxattr", fail)
    if raises:
        assert error_of(lambda: fs.xattrs(at, b"f")) == number
    else:
        assert fs.xattrs(at, b"f") == {}


# Syncing.

_SYNC = """
    from txfiles._disk.system import KernelFS
    fs = KernelFS()
    at = fs.open_dir(None, os.fsencode(sys.argv[1]))
    fd = fs.create(at, b"f")
    fs.write(fd, b"x")
    fs.start_writeback(fd)
    with region():
        fs.start_writeback(fd)
        fs.sync_file(fd)
        fs.sync_dir(at)
        fs.sync_data(fd)
"""


@pytest.mark.needs("strace")
def test_the_sync_calls_reach_the_kernel(tmp_path: Path) -> None:
    done = traced(_SYNC, tmp_path)
    done.check()
    assert [(call.name, call.paths) for call in done.calls] == [
        ("sync_file_range", [f"{tmp_path}/f"]),
        ("fsync", [f"{tmp_path}/f"]),
        ("fsync", [str(tmp_path)]),
        ("fdatasync", [f"{tmp_path}/f"]),
    ]


@pytest.mark.needs("strace")
def test_a_failed_sync_is_raised_and_a_failed_hint_is_not(tmp_path: Path) -> None:
    done = traced(_SYNC, tmp_path, faults=[Fault("sync_file_range", error="EIO")])
    done.check()
    (tmp_path / "f").unlink()
    done = traced(_SYNC, tmp_path, faults=[Fault("fsync", error="EIO", when=2)])
    assert "OSError: [Errno 5]" in done.stderr


# The process and the machine.


def test_random_ids_are_128_bits_and_differ() -> None:
    ids = {fs.random_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(i) == 32 and int(i, 16) >= 0 for i in ids)


def test_random_ids_do_not_depend_on_a_seed_nor_on_a_fork() -> None:
    random.seed(1)
    first = fs.random_id()
    random.seed(1)
    assert fs.random_id() != first


def test_boot_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_boot", None)
    assert fs.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    monkeypatch.setattr(system, "_boot", None)
    monkeypatch.setattr(system, "open", _no_proc, raising=False)
    assert fs.boot_id() == ""


def test_pid_and_ids() -> None:
    assert fs.pid() == os.getpid()
    assert fs.ids() == (os.geteuid(), os.getegid())


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o027, 0o077])
@pytest.mark.parametrize("without", ["nothing", "/proc", "/proc and O_TMPFILE"])
def test_umask_is_read_and_never_set(umask: int, without: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting it to read it would open a window in which another thread's new files get the wrong mode."""
    before = os.umask(umask)
    try:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        if without != "nothing":
            monkeypatch.setattr(system, "open", _no_proc, raising=False)
        if without == "/proc and O_TMPFILE":
            monkeypatch.delattr(os, "O_TMPFILE")
        monkeypatch.setattr(os, "umask", None)
        at = fs.open_dir(None, os.fsencode(tmp_path))
        assert fs.umask(at, b".") == umask
        fs.close(at)
        assert list(tmp_path.iterdir()) == []
    finally:
        monkeypatch.undo()
        assert os.umask(before) == umask


def _no_proc(*_: object, **__: object) -> None:
    raise FileNotFoundError(errno.ENOENT, "no /proc")


def test_on_fork_runs_in_the_child_only() -> None:
    code = """
        from txfiles._disk.system import KernelFS
        KernelFS().on_fork(lambda: print("child", os.getpid() != parent))
        parent = os.getpid()
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        print("parent")
    """
    assert run_python(code).check().stdout == "child True\nparent\n"


def test_use_replaces_the_file_system_for_a_block() -> None:
    other = KernelFS()
    before = system.current()
    with pytest.raises(ZeroDivisionError), system.use(other):
        assert system.current() is other
        raise ZeroDivisionError
    assert system.current() is before
