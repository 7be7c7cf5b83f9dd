"""B: full disks, limits and interrupts while files are staged."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.support import DEEP
from tests.support.boundary import tree
from tests.support.debris import problems
from tests.support.inject import WRITE, Fault, traced
from tests.support.loop import loop_fs
from tests.support.mounts import run, tmpfs
from txfiles import FileTransaction, recover
from txfiles._disk import system
from txfiles._format import layout
from txfiles.errors import CommitError, TxFilesError

OLD = {"a": b"old a", "b": b"old b" * 20, "c": b"old c"}
Limit = Callable[[Path], AbstractContextManager[tuple[Path, int]]]
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def _furnish(root: Path) -> None:
    with FileTransaction(root) as tx:
        for name, content in OLD.items():
            tx.write(name, content)


def _whole(tx: FileTransaction, size: int) -> None:
    tx.write("b", b"x" * size)


def _in_parts(tx: FileTransaction, size: int) -> None:
    tx.write("b", (b"x" * 1000 for _ in range(size // 1000)))


def _streamed(tx: FileTransaction, size: int) -> None:
    with tx.open("b", "w") as file:
        for _ in range(size // 1000):
            file.write("x" * 1000)


def _appended(tx: FileTransaction, size: int) -> None:
    with tx.open("b", "ab") as file:
        file.write(b"x" * size)


def _as_json(tx: FileTransaction, size: int) -> None:
    tx.write_json("b", ["x" * 90] * (size // 90))


def _copied(tx: FileTransaction, size: int) -> None:
    tx.write("small", b"x" * (size // 4))
    with tx.open("b", "wb") as file:
        for _ in range(8):
            file.write(tx.read("small"))


HOW = [_whole, _in_parts, _streamed, _appended, _as_json, _copied]


def _used(root: Path) -> tuple[int, int]:
    info = os.statvfs(root)
    return info.f_blocks - info.f_bfree, info.f_files - info.f_ffree


@contextmanager
def _small_tmpfs(where: Path) -> Iterator[tuple[Path, int]]:
    with tmpfs(where, size="64k") as path:
        yield path, 100_000


@contextmanager
def _quota(where: Path) -> Iterator[tuple[Path, int]]:
    where.mkdir()
    with loop_fs(where, "btrfs") as fs:
        root = fs.path / "subvolume"
        run("btrfs", "quota", "enable", fs.path)
        run("btrfs", "subvolume", "create", root)
        run("btrfs", "qgroup", "limit", "2M", root)
        yield root, 4_000_000


@contextmanager
def _file_size_limit(where: Path) -> Iterator[tuple[Path, int]]:
    where.mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        yield where, 100_000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


LIMITS = [
    pytest.param(_small_tmpfs, marks=pytest.mark.needs("mount")),
    pytest.param(_quota, marks=pytest.mark.needs("loop", "btrfs")),
    _file_size_limit,
]

# -- B11, B13: no space ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", LIMITS)
def test_b11_b13_the_second_of_three_files_does_not_fit(tmp_path: Path, limit: Limit) -> None:
    with limit(tmp_path / "limited") as (root, size):
        _furnish(root)
        used, inodes = _used(root), {name: (root / name).stat().st_ino for name in OLD}
        for how in HOW:
            with pytest.raises(OSError) as caught, FileTransaction(root) as tx:
                tx.write("a", "new a")
                how(tx, size)
                tx.write("c", "new c")
            assert caught.value.errno in FULL, how
            assert tree(root) == OLD, "no file in sight, and none of them new"
            assert problems(root) == []
            if limit is _small_tmpfs:
                assert _used(root) == used, "all space is given back"
        assert {name: (root / name).stat().st_ino for name in OLD} == inodes
        with FileTransaction(root) as tx:
            tx.write("b", "fits")
        assert (root / "b").read_text(encoding="utf-8") == "fits"


@pytest.mark.parametrize("limit", LIMITS)
def test_b11_after_the_error_the_transaction_goes_on_without_that_file(tmp_path: Path, limit: Limit) -> None:
    with limit(tmp_path / "limited") as (root, size):
        for how in (_whole, _streamed, _appended, _as_json):
            _furnish(root)
            with FileTransaction(root) as tx:
                tx.write("a", "new a")
                tx.write("b", "small b")
                with pytest.raises(OSError) as caught:
                    how(tx, size)
                assert caught.value.errno in FULL, how
                assert tx.read("b") == b"small b", "what was staged for it before"
                tx.write("c", "new c")
            assert tree(root) == {"a": b"new a", "b": b"small b", "c": b"new c"}


@pytest.mark.needs("mount")
@pytest.mark.parametrize("space", range(16, 40, 2 if DEEP else 4))
def test_b11_full_at_every_step_of_the_commit(tmp_path: Path, space: int) -> None:
    """The files fit, and then the journal, the markers or the directories do not: always all or nothing."""
    with tmpfs(tmp_path / "limited", nr_inodes=space) as root:
        _furnish(root)
        used = _used(root)
        failed: Exception | None = None
        try:
            with FileTransaction(root) as tx:
                for number in range(4):
                    tx.write(f"new {number}/file", "x")
                tx.delete("a")
        except (CommitError, OSError) as error:
            failed = error
        if failed is not None:
            assert getattr(failed.__cause__ or failed, "errno", None) in FULL
            assert tree(root) == OLD
            assert max(_used(root), used) == used  # the spare may be gone
        else:
            assert len(tree(root)) == 10
        assert problems(root) == []


@pytest.mark.parametrize("most", [1, 7, 4096])
def test_b11_short_writes_are_continued(root: Path, most: int) -> None:
    """Of the files, the journal, and what is written once for a root."""

    class Short(system.KernelFS):
        def write(self, fd: int, data: bytes | memoryview) -> int:
            return os.write(fd, data[:most])

    data = os.urandom(10_000)
    with system.use(Short()), FileTransaction(root) as tx:
        tx.write("a", data)
        with tx.open("b", "wb") as file:
            file.write(data)
        tx.copy("a", "c")
    assert tree(root) == dict.fromkeys("abc", data)


@pytest.mark.parametrize("nth", [1, 2], ids=["file", "journal"])
def test_b11_a_write_that_makes_no_progress_is_an_error(root: Path, nth: int) -> None:
    class Stuck(system.KernelFS):
        seen = 0

        def write(self, fd: int, data: bytes | memoryview) -> int:
            self.seen += 1
            return 0 if self.seen >= nth else super().write(fd, data)

    _furnish(root)
    with system.use(Stuck()), pytest.raises((OSError, CommitError), match="no progress"), FileTransaction(root) as tx:
        tx.write("a", "new")
    assert tree(root) == OLD


@pytest.mark.needs("strace")
@pytest.mark.parametrize(
    ("when", "error"),
    [(1, "EDQUOT"), (2, "ENOSPC"), (2, "EIO"), (4, "EIO"), ("4..6", "ENOSPC"), ("4..5", "ENOSPC")],
    ids=["first file", "second file", "second file, EIO", "journal, EIO", "journal", "journal, until HEAD is gone"],
)
def test_b13_each_write_fails(root: Path, error: str, when: int | str) -> None:
    """Without room for the journal the spare goes, then HEAD; then it fits, or that is the end of it."""
    _furnish(root)
    done = traced(
        """
        from txfiles import FileTransaction
        with region():
            try:
                with FileTransaction(sys.argv[1]) as tx:
                    for name in "abc":
                        tx.write(name, "new")
            except Exception as error:
                print(getattr(error.__cause__ or error, "errno", None), sorted(os.listdir(sys.argv[1])))
                print(sorted(os.listdir(sys.argv[1] + "/.txfiles")))
        """,
        root,
        faults=[Fault(WRITE, error=error, when=when)],
    )
    if when == "4..5":
        assert done.check().stdout == ""
        assert tree(root) == dict.fromkeys("abc", b"new")
        return
    names, private = ["a", "b", "c"], ["format", "lock"] if when == "4..6" else ["HEAD", "format", "lock", "spare"]
    assert done.check().stdout == f"{getattr(errno, error)} {['.txfiles', *names]}\n{private}\n"
    assert tree(root) == OLD


# -- B12: errors that come late -------------------------------------------------------------------------------------


def _closing(tx: FileTransaction, mode: str) -> None:
    file = tx.open("b", mode)
    file.write("é" * 60_000 if "b" not in mode else b"x" * 120_000)  # all of it still in the buffer
    file.close()


def _leaving_the_block(tx: FileTransaction, mode: str) -> None:
    with tx.open("b", mode) as file:
        file.write("é" * 60_000 if "b" not in mode else b"x" * 120_000)


def _flushing(tx: FileTransaction, mode: str) -> None:
    file = tx.open("b", mode)
    file.write("é" * 60_000 if "b" not in mode else b"x" * 120_000)
    try:
        file.flush()
    finally:
        file.close()


@pytest.mark.needs("mount")
@pytest.mark.parametrize("mode", ["w", "wb", "a", "ab"])
@pytest.mark.parametrize("late", [_closing, _leaving_the_block, _flushing])
def test_b12_an_error_that_comes_with_the_flush_is_in_time(
    tmp_path: Path, late: Callable[[FileTransaction, str], None], mode: str
) -> None:
    with tmpfs(tmp_path / "limited", size="64k") as root:
        _furnish(root)
        with FileTransaction(root) as tx:
            tx.write("a", "new a")
            with pytest.raises(OSError) as caught:
                late(tx, mode)
            assert caught.value.errno == errno.ENOSPC
            assert tx.read("b") == OLD["b"]
        assert tree(root) == {**OLD, "a": b"new a"}, "the failed file is as it was, the others are committed"


@pytest.mark.parametrize("mode", ["w", "wb"])
def test_b12_a_file_that_was_not_closed_is_not_committed_by_half(root: Path, mode: str) -> None:
    _furnish(root)
    with pytest.raises(CommitError, match="open"), FileTransaction(root) as tx:
        tx.write("a", "new")
        file = tx.open("b", mode)
        file.write("x" if mode == "w" else b"x")
    file.close()
    assert tree(root) == OLD
    assert problems(root) == []


@pytest.mark.parametrize("name", ["é" * 127, "日本" * 42, "🗂" * 63])
def test_b12_no_name_is_cut_in_the_middle_of_a_character(root: Path, name: str) -> None:
    with FileTransaction(root) as tx:
        tx.write(name, "x")
        tx.write("plain", "y")
        staged = [layout.parse(os.fsencode(found)).kind for found in os.listdir(root / ".txfiles")]
        assert staged.count("token") == 2
    assert set(tree(root)) == {name, "plain"}


# -- B10: interrupts ------------------------------------------------------------------------------------------------

SIZE = 100 << 20
_PART = b"x" * (1 << 20)


def _interrupt_at(nth: int, call: str = "write") -> system.FileSystem:
    class Interrupting(system.KernelFS):
        seen = 0

        def write(self, fd: int, data: bytes | memoryview) -> int:
            self.seen += 1
            if self.seen == nth:
                os.kill(os.getpid(), signal.SIGINT)
            return super().write(fd, data)

    return Interrupting()


def _in_one(tx: FileTransaction) -> None:
    tx.write("b", _PART * (SIZE >> 20))


def _from_parts(tx: FileTransaction) -> None:
    tx.write("b", (_PART for _ in range(SIZE >> 20)))


def _by_stream(tx: FileTransaction) -> None:
    with tx.open("b", "wb") as file:
        for _ in range(SIZE >> 20):
            file.write(_PART)


def _by_stream_without_a_block(tx: FileTransaction) -> None:
    file = tx.open("b", "wb")
    for _ in range(SIZE >> 20):
        file.write(_PART)
    file.close()


@pytest.mark.parametrize("how", [_in_one, _from_parts, _by_stream, _by_stream_without_a_block])
def test_b10_ctrl_c_while_a_large_file_is_staged(memory: Path, how: Callable[[FileTransaction], None]) -> None:
    _furnish(memory)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with system.use(_interrupt_at(60)), pytest.raises(KeyboardInterrupt), FileTransaction(memory) as tx:
            tx.write("a", "new")
            how(tx)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert tree(memory) == OLD
    assert problems(memory) == []
    assert recover(memory).clean


def test_b10_an_interrupt_that_the_program_survives_takes_only_that_file_back(root: Path) -> None:
    _furnish(root)

    def parts() -> Iterator[bytes]:
        yield b"x" * 1000
        raise KeyboardInterrupt

    with FileTransaction(root) as tx:
        tx.write("a", "new a")
        with pytest.raises(KeyboardInterrupt):
            tx.write("b", parts())
        assert tx.read("b") == OLD["b"]
    assert tree(root) == {**OLD, "a": b"new a"}


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, MemoryError, TxFilesError])
def test_b10_whatever_a_source_raises(root: Path, error: type[BaseException]) -> None:
    _furnish(root)

    class Source:
        left = 1

        def read(self, size: int) -> bytes:
            self.left -= 1
            if self.left < 0:
                raise error("from the source")
            return b"x" * 10

    with pytest.raises(error), FileTransaction(root) as tx:
        tx.write("a", "new")
        tx.write("b", Source())
    assert tree(root) == OLD
    assert problems(root) == []
