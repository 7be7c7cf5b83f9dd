"""`FileStore.snapshot` at rest, and beside commits that end."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.procs import run_python
from txfiles import FileStore, FileTransaction, JsonDocuments
from txfiles._disk import system
from txfiles._format import layout
from txfiles.errors import (
    ConflictError,
    DocumentError,
    InvalidPathError,
    JournalVersionError,
    RecoveryError,
    SnapshotExpiredError,
    TransactionClosedError,
)


@pytest.fixture
def store(root: Path) -> FileStore:
    return FileStore(root, durability="process", timeout=5)


def put(store: FileStore, **files: str) -> None:
    with store.transaction() as tx:
        for name, text in files.items():
            tx.write(name, text)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


UNREADABLE = """
    from txfiles import FileStore, FileTransaction
    os.chdir(sys.argv[1])
    with FileTransaction("state", create=True) as tx:
        tx.write("secret", "x")
    os.chmod("state/secret", 0)
    for name in ("secret", "x" * 300):
        with FileStore("state", timeout=5).snapshot() as snap:
            try:
                snap.read(name)
            except OSError as error:
                print(error.errno, error.filename == name)
"""


@pytest.mark.needs("users")
def test_an_error_is_an_answer_right_after_a_commit_too() -> None:
    with public_directory(0o777) as where:
        done = run_python(UNREADABLE, where, **as_user(65534))
    assert done.check().stdout.split() == [str(errno.EACCES), "True", str(errno.ENAMETOOLONG), "True"]


# -- reading --------------------------------------------------------------------------------------------------------


def test_reads(root: Path, store: FileStore) -> None:
    with store.transaction() as tx:
        tx.write("a.txt", "grüß\r\nGott")
        tx.write_json("dir/b.json", {"n": 1 << 60})
        tx.write("empty", b"")
        tx.write("big", b"x" * 3_000_000)
    os.symlink("dir/b.json", root / "link")
    (root / "huge.json").write_text(str(1 << 80), encoding="utf-8")
    with store.snapshot() as snap, store.transaction() as tx:
        assert snap.read("a.txt") == "grüß\r\nGott".encode()
        assert snap.read_text("./a.txt") == "grüß\r\nGott"
        assert snap.read_json("dir/../dir/b.json") == {"n": 1 << 60}
        assert snap.read_json("link") == {"n": 1 << 60}
        assert snap.read_json("huge.json") == 1 << 80
        assert snap.read("empty") == b""
        assert snap.read("big") == b"x" * 3_000_000
        assert snap.read(b"a.txt") == snap.read(Path("a.txt")) == snap.read("a.txt")
        for path in ("a.txt", "dir/b.json", "link", "missing", "dir"):
            assert snap.version(path) == tx.version(path)
            assert snap.exists(path) == tx.exists(path)
        assert snap.listdir() == tx.listdir() == ["a.txt", "big", "dir", "empty", "huge.json", "link"]
        assert snap.listdir("dir/") == ["b.json"]
        for pattern in ("**", "*", "*/*.json", "dir/*", "dir/b.json", "missing/*"):
            assert snap.glob(pattern) == tx.glob(pattern)
        assert snap.exists(".")
        assert not snap.exists("dir/b.json2")


@pytest.mark.parametrize("pinned", [False, True])
def test_errors_of_reads(root: Path, store: FileStore, tmp_path: Path, pinned: bool) -> None:
    put(store, file="x")
    (tmp_path / "outside").write_text("secret", encoding="utf-8")
    os.symlink(tmp_path / "outside", root / "out")
    os.symlink("loop", root / "loop")
    (root / "dir").mkdir()
    (root / "bad.json").write_text("{", encoding="utf-8")

    def read(path: str) -> None:
        with store.snapshot(*[path] * pinned) as snap:
            snap.read(path)

    for path, error in [
        ("missing", FileNotFoundError),
        ("dir/missing", FileNotFoundError),
        ("dir", IsADirectoryError),
        ("file/x", NotADirectoryError),
        ("out", InvalidPathError),
        ("../root/file", InvalidPathError),
        ("", InvalidPathError),
        (".txfiles/HEAD", InvalidPathError),
        ("file/", InvalidPathError),
    ]:
        with pytest.raises(error):
            read(path)
    with pytest.raises(OSError, match="symbolic links") as caught:
        read("loop")
    assert caught.value.errno == errno.ELOOP
    with store.snapshot() as snap:
        with pytest.raises(DocumentError) as damaged:
            snap.read_json("bad.json")
        assert damaged.value.path == "bad.json"
        with pytest.raises(NotADirectoryError):
            snap.listdir("file")
        with pytest.raises(FileNotFoundError):
            snap.listdir("missing")


def test_a_fifo_is_never_opened(root: Path, store: FileStore) -> None:
    put(store, file="x")
    os.mkfifo(root / "fifo")
    writer = threading.Thread(target=lambda: os.close(os.open(root / "fifo", os.O_WRONLY)), daemon=True)
    writer.start()
    for names in ((), ("fifo",)):
        with pytest.raises(InvalidPathError), store.snapshot(*names) as snap:
            snap.read("fifo")
    assert writer.is_alive(), "somebody opened the FIFO"
    fd = os.open(root / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer.join(60)
    os.close(fd)


def test_life(store: FileStore) -> None:
    snap = store.snapshot()
    for call in (lambda: snap.read("a"), snap.listdir, lambda: snap.state_version):
        with pytest.raises(TransactionClosedError, match="was not entered"):
            call()
    with snap:
        assert snap.listdir() == []
        with pytest.raises(TransactionClosedError, match="entered already"):
            snap.__enter__()
    assert snap.state_version == store.state_version()
    with pytest.raises(TransactionClosedError, match="has ended"):
        snap.listdir()
    with pytest.raises(TransactionClosedError):
        snap.__enter__()
    snap.close()
    assert "ended" in repr(snap)


def test_a_snapshot_that_is_dropped_open_is_closed_with_a_warning(store: FileStore) -> None:
    before = descriptors()
    snap = store.snapshot()
    snap.__enter__()
    with pytest.warns(ResourceWarning, match="dropped while open"):
        del snap
    assert descriptors() == before


def test_a_missing_root(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), FileStore(tmp_path / "missing").snapshot():
        pass
    assert not (tmp_path / "missing").exists()


def test_reading_makes_nothing(root: Path, store: FileStore) -> None:
    (root / "a").write_text("by another program", encoding="utf-8")
    with store.snapshot("a") as pinned, store.snapshot() as snap:
        assert pinned.read("a") == snap.read("a") == b"by another program"
    assert os.listdir(root) == ["a"]


def test_inside_a_transaction_the_committed_state_is_read(store: FileStore) -> None:
    put(store, a="old")
    with store.transaction() as tx:
        tx.write("a", "new")
        tx.write("b", "new")
        with store.snapshot("a") as snap:
            assert snap.read("a") == b"old"
            assert snap.glob("**") == ["a"]
    with store.snapshot("a") as snap:
        assert snap.read("a") == b"new"


def test_one_snapshot_in_many_threads(store: FileStore) -> None:
    put(store, **{f"f{n}": str(n) * 100_000 for n in range(5)})
    failures = []
    with store.snapshot("f0", "f1") as snap:

        def read() -> None:
            for _ in range(30):
                for n in range(5):
                    if snap.read(f"f{n}") != str(n).encode() * 100_000:
                        failures.append(n)

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


# -- fork -----------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], object]) -> int:
    """The exit code of a forked child that does it: 0 when nothing was raised."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_reads_what_is_in_memory_and_nothing_else(root: Path, store: FileStore) -> None:
    big = "0123456789" * 10_000
    put(store, small="x", big=big, other="x")
    with store.snapshot("small", "big", "missing") as snap:
        assert snap.read_text("big") == big

        def refused() -> None:
            assert snap.read("small") == b"x"
            assert snap.exists("big")
            assert snap.version("big") == snap.version("./big")
            with pytest.raises(FileNotFoundError):
                snap.read("missing")
            for call in (
                lambda: snap.read("big"),
                lambda: snap.read("other"),
                lambda: snap.exists("other"),
                lambda: snap.version("other"),
                snap.listdir,
                lambda: snap.glob("*"),
            ):
                with pytest.raises(TransactionClosedError, match="the process that entered it"):
                    call()
            with store.snapshot("big") as own:
                assert own.read_text("big") == big
                assert own.listdir() == ["big", "other", "small"]

        def closed() -> None:
            before = descriptors()
            snap.close()
            assert descriptors() < before
            with pytest.raises(TransactionClosedError, match="has ended"):
                snap.read("small")

        def unused() -> None:
            with new:
                assert new.read_text("big") == big
                assert in_child(refused) == 0

        new = store.snapshot("big")
        for work in (refused, closed, unused):
            assert in_child(work) == 0
            assert snap.read_text("big") == big
            assert snap.listdir() == ["big", "other", "small"]


def test_a_forked_child_waits_for_no_thread_of_its_parent(store: FileStore) -> None:
    put(store, a="x")
    reading, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        reading.set()
        go_on.wait()

    with system.use(_Meanwhile(wait)), store.snapshot("b") as snap:  # type: ignore[arg-type]
        thread = threading.Thread(target=lambda: snap.read("a"))
        thread.start()
        reading.wait()

        def refused() -> None:
            signal.alarm(20)
            with pytest.raises(TransactionClosedError):
                snap.read("a")
            snap.close()

        try:
            assert in_child(refused) == 0
        finally:
            go_on.set()
            thread.join()


def test_a_snapshot_that_a_forked_child_drops_is_closed_in_silence(store: FileStore) -> None:
    before = descriptors()
    snaps = [store.snapshot().__enter__()]

    def drop() -> None:
        with warnings.catch_warnings(record=True, action="always") as caught:
            snaps.clear()
        assert (caught, descriptors()) == ([], before)

    assert in_child(drop) == 0
    snaps[0].close()


# -- the state ------------------------------------------------------------------------------------------------------


def test_pinned_files_never_expire(store: FileStore) -> None:
    put(store, a="old", b="old", c="old")
    with store.snapshot("a", "b", "missing") as snap:
        version = snap.version("a")
        for number in range(5):
            put(store, a=str(number), missing=str(number))
        with store.transaction() as tx:
            tx.delete("b")
        for _ in range(2):
            assert (snap.read("a"), snap.read("b")) == (b"old", b"old")
        assert snap.version("a") == version
        assert snap.exists("b")
        assert not snap.exists("missing")
        assert snap.version("missing") is None
        with pytest.raises(FileNotFoundError):
            snap.read("missing")
        with pytest.raises(SnapshotExpiredError):
            snap.read("c")


def test_what_a_later_commit_changed_has_expired_and_nothing_else(root: Path, store: FileStore) -> None:
    with store.transaction() as tx:
        for name in ("a", "b", "c", "one/x", "two/y", "two/deep/z"):
            tx.write(name, "old")
    os.symlink("a", root / "to-a")
    os.symlink("c", root / "to-c")
    with store.snapshot() as snap:
        put(store, a="new")
        with pytest.raises(SnapshotExpiredError) as caught:
            snap.read("a")
        assert caught.value.path == "a"
        assert isinstance(caught.value, ConflictError)
        assert caught.value.outcome == "before"
        assert snap.read("b") == b"old"
        with store.transaction() as tx:
            tx.write("two/new", "new")
            tx.delete("b")
        assert snap.read("c") == snap.read("to-c") == snap.read("one/x") == snap.read("two/y") == b"old"
        assert snap.listdir("one") == ["x"]
        assert snap.glob("one/*") == ["one/x"]
        assert snap.listdir("two/deep") == ["z"]
        for expired in (
            lambda: snap.read("b"),
            lambda: snap.read("a"),
            lambda: snap.read("to-a"),
            lambda: snap.version("a"),
            lambda: snap.exists("b"),
            lambda: snap.exists("two/new"),
            lambda: snap.listdir("two"),
            snap.listdir,
            lambda: snap.glob("two/*"),
            lambda: snap.glob("**"),
        ):
            with pytest.raises(SnapshotExpiredError):
                expired()
        with store.transaction() as tx:
            tx.delete_tree("one")
        for expired in (lambda: snap.read("one/x"), lambda: snap.listdir("one"), lambda: snap.exists("one")):
            with pytest.raises(SnapshotExpiredError):
                expired()
        assert snap.read("c") == b"old"


def test_a_glob_expires_by_what_is_as_deep_as_its_pattern(store: FileStore) -> None:
    with store.transaction() as tx:
        tx.write("a.json", "old")
        tx.write("deep/b.json", "old")
    with store.snapshot() as snap:
        with store.transaction() as tx:
            tx.write("deep/c.json", "new")
        assert snap.glob("*.json") == ["a.json"]
        for pattern in ("*/*.json", "**/*.json"):
            with pytest.raises(SnapshotExpiredError):
                snap.glob(pattern)


def test_a_commit_that_was_missed_expires_everything_that_is_not_pinned(store: FileStore) -> None:
    put(store, a="old", b="old")
    with store.snapshot() as snap, store.snapshot("a") as pinned:
        put(store, c="1")
        put(store, c="2")
        with pytest.raises(SnapshotExpiredError):
            snap.read("a")
        with pytest.raises(SnapshotExpiredError):
            snap.read("a")
        assert pinned.read("a") == b"old"


def test_the_first_transaction_of_a_root_beside_a_snapshot(root: Path, store: FileStore) -> None:
    (root / "a").write_text("old", encoding="utf-8")
    (root / "b").write_text("old", encoding="utf-8")
    with store.snapshot() as snap:
        put(store, a="new")
        assert snap.read("b") == b"old"
        with pytest.raises(SnapshotExpiredError):
            snap.read("a")


def test_a_transaction_that_is_open_or_rolled_back_expires_nothing(store: FileStore) -> None:
    put(store, a="old")
    for names in ((), ("a",)):
        with store.snapshot(*names) as snap:
            with pytest.raises(KeyError), store.transaction() as tx:
                tx.write("a", "new")
                assert snap.read("a") == b"old"
                raise KeyError
            assert snap.read("a") == b"old"
            assert snap.listdir() == ["a"]


def test_a_transaction_without_an_effect_expires_nothing(store: FileStore) -> None:
    put(store, a="old")
    with store.snapshot() as snap:
        with store.transaction() as tx:
            tx.write("b", "x")
            tx.delete("b")
        assert snap.read("a") == b"old"
        assert not snap.exists("b")


def test_removing_the_private_directory_expires_what_was_not_read(root: Path, store: FileStore) -> None:
    put(store, a="old")
    with store.snapshot() as snap, store.snapshot("a") as pinned:
        shutil.rmtree(root / ".txfiles")
        put(store, a="new")
        with pytest.raises(SnapshotExpiredError):
            snap.read("a")
        assert pinned.read("a") == b"old"
    with store.snapshot() as snap:
        assert snap.read("a") == b"new"


def test_a_root_at_rest_is_left_in_time(root: Path, store: FileStore) -> None:
    """Once a root is known to be at rest reads take a short cut; the next transaction ends it."""
    put(store, a="old", b="old")
    for names in ((), ("a",)):
        deadline = 200
        while deadline:  # long enough for the root to be known to be at rest
            with store.snapshot(*names) as snap:
                assert snap.read("a") == b"old"
            deadline -= 1
            threading.Event().wait(0.001)
        with store.snapshot(*names) as snap:
            with store.transaction() as tx:
                tx.write("b", "staged")
                assert (snap.read("a"), snap.read("b")) == (b"old", b"old")
            with pytest.raises(SnapshotExpiredError):
                snap.read("b")
            assert snap.read("a") == b"old"
        with store.snapshot(*names) as snap:
            assert snap.read("b") == b"staged"
        put(store, b="old")


class _Meanwhile(system.KernelFS):
    """Something happens between the look at a file and its opening; then `looks` counts those at open files."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act: Callable[[], object] | None = act
        self.looks = 0

    def open_read(self, at: int, name: bytes) -> int:
        self._before(name)
        return super().open_read(at, name)

    def read_small(self, at: int, names: Sequence[bytes], limit: int) -> Any:
        def opened(name: bytes, *args: Any, **kwargs: Any) -> int:
            self._before(name)
            return open_(name, *args, **kwargs)

        open_ = os.open
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "open", opened)
            return super().read_small(at, names, limit)

    def _before(self, name: bytes) -> None:
        if name == b"a" and self._act is not None:
            act, self._act = self._act, None
            act()

    def fstat(self, fd: int) -> os.stat_result:
        self.looks += 1
        return os.fstat(fd)


@pytest.mark.parametrize("names", [(), ("a", "b")])
def test_what_is_put_in_the_place_of_a_file_that_is_about_to_be_opened(
    root: Path, store: FileStore, names: tuple[str, ...]
) -> None:
    def known_to_be_at_rest() -> None:
        put(store, a="old a", b="old b")
        for _ in range(3):
            threading.Event().wait(0.1)
            with store.snapshot("a") as snap:
                snap.read("a")

    def read(act: Callable[[], object]) -> tuple[bytes, bytes, int]:
        known_to_be_at_rest()
        with system.use(fs := _Meanwhile(act)), store.snapshot(*names) as snap:  # type: ignore[arg-type]
            return snap.read("a"), snap.read("b"), fs.looks

    def longer() -> None:
        (root / "other").write_text("somebody's", encoding="utf-8")
        (root / "other").rename(root / "a")

    def pipe() -> None:
        (root / "a").unlink()
        os.mkfifo(root / "a")

    *contents, looks = read(lambda: None)
    assert contents == [b"old a", b"old b"]
    assert looks == 0 or not names
    assert read(longer)[:2] == (b"somebody's", b"old b")
    if names:
        assert read(lambda: put(store, a="new", b="new"))[:2] == (b"new", b"new")
    else:
        with pytest.raises(SnapshotExpiredError):
            read(lambda: put(store, a="new a", b="new b"))
    with pytest.raises(InvalidPathError):
        read(pipe)
    os.unlink(root / "a")


def test_descriptors_are_bounded(root: Path, store: FileStore) -> None:
    for n in range(300):
        (root / f"small{n}").write_bytes(b"s%d" % n)
    for n in range(100):
        (root / f"large{n}").write_bytes(b"l%d" % n * 30_000)
    names = [f"small{n}" for n in range(300)] + [f"large{n}" for n in range(100)]
    before = descriptors()
    with store.snapshot(*names) as snap:
        assert descriptors() - before <= 64 + 4
        put(store, **dict.fromkeys(names, "new"))
        for n in range(300):
            assert snap.read(f"small{n}") == b"s%d" % n
        for n in range(100):
            for _ in range(2):
                assert snap.read(f"large{n}") == b"l%d" % n * 30_000
    assert descriptors() == before


def test_two_spellings_of_a_pinned_file_are_one(store: FileStore) -> None:
    put(store, big="x" * 100_000)
    before = descriptors()
    with store.snapshot("big", "./big", b"big") as snap:
        assert snap.read("./big") == b"x" * 100_000
    assert descriptors() == before


def test_many_directories(store: FileStore) -> None:
    names = [f"d{n % 50}/e{n}/f" for n in range(150)]
    with store.transaction() as tx:
        for name in names:
            tx.write(name, name)
    with store.snapshot(*names) as pinned, store.snapshot() as snap:
        for name in names:
            assert pinned.read_text(name) == snap.read_text(name) == name
        assert snap.glob("**/f") == sorted(names)


def test_files_that_other_programs_change_all_the_time_can_be_read(root: Path, store: FileStore) -> None:
    """Written to in place, or replaced."""
    put(store, a="x")
    stop = threading.Event()

    def disturb() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            with open(root / "log", "a", encoding="utf-8") as file:
                file.write(f"{n}\n")
            (root / "new").write_text(str(n), encoding="utf-8")
            os.replace(root / "new", root / "replaced")
            stop.wait(0.0005)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(100):
            with store.snapshot("a", "log", "replaced") as snap:
                assert snap.read("a") == b"x"
    finally:
        stop.set()
        thread.join()


# -- what is not ours -----------------------------------------------------------------------------------------------


def test_a_newer_format_is_refused(root: Path, store: FileStore) -> None:
    put(store, a="x")
    (root / ".txfiles" / "format").write_text("txfiles 3 flock\n", encoding="utf-8")
    for names in ((), ("a",)):
        with pytest.raises(JournalVersionError), store.snapshot(*names):
            pass
    (root / ".txfiles" / "format").write_bytes(layout.FORMAT_TEXT)


def test_a_missing_format_beside_a_durable_commit_is_refused(root: Path) -> None:
    store = FileStore(root)
    put(store, a="x")
    (root / ".txfiles" / "format").unlink()
    with pytest.raises(RecoveryError), store.snapshot("a"):
        pass
    (root / ".txfiles" / "format").write_bytes(layout.FORMAT_TEXT)


def test_unknown_names_in_the_private_directory_do_not_disturb(root: Path, store: FileStore) -> None:
    put(store, a="x")
    strangers = [root / ".txfiles" / name for name in ("x.committed", "notes.intent", "README")]
    for path in strangers:
        path.write_text("not ours", encoding="utf-8")
    with store.snapshot("a") as snap:
        assert snap.read("a") == b"x"
    for path in strangers:
        path.unlink()


def test_the_root_is_fixed_when_the_object_is_made(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (root / "a.json").write_text("2", encoding="utf-8")
    monkeypatch.chdir(root)
    store, docs = FileStore("."), JsonDocuments(".", {"a": 1})
    monkeypatch.chdir(tmp_path)
    assert docs.load() == {"a": 2}
    with store.snapshot() as snap:
        assert snap.read("a.json") == b"2"


def test_names_of_any_bytes(root: Path, store: FileStore) -> None:
    name = os.fsdecode(b"caf\xe9 \n%41")
    with FileTransaction(root, durability="process") as tx:
        tx.write(name, "x")
    with store.snapshot(name) as pinned, store.snapshot() as snap:
        assert pinned.read(name) == snap.read(name) == b"x"
        assert snap.listdir() == [name]
        assert snap.glob("*") == [name]
        put(store, other="x")
        assert snap.read(name) == b"x"
