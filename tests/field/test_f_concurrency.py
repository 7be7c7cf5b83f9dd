"""F: concurrency, readers, cleanup, neighbours."""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import DEEP
from tests.support.boundary import Refusing, killed, nth_call, tree
from tests.support.loop import crash_image, loop_fs
from tests.support.procs import child, killed_at_random
from txfiles import FileStore, FileTransaction, recover, status
from txfiles._disk import system
from txfiles.errors import CommitError, ConflictError, LockTimeoutError, SnapshotExpiredError, TransactionClosedError

PERMANENT = ["HEAD", "format", "lock", "spare"]


def _private(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".txfiles").iterdir())


def _save(root: Path, content: str, *names: str, durability: Any = "full") -> None:
    with FileTransaction(root, durability=durability) as tx:
        for name in names:
            tx.write(name, content)


# -- F01, F02, F13: many writers ------------------------------------------------------------------------------------

GENERATIONS = """
    from txfiles import FileTransaction
    print("ready")
    input()
    for number in range(int(sys.argv[2])):
        with FileTransaction(sys.argv[1], durability="process", timeout=120) as tx:
            generation = tx.read_json("a.json")["generation"] + 1
            for name in ("a.json", "b.json"):
                tx.write_json(name, {"generation": generation, "by": os.getpid(), "padding": "x" * (number % 7) * 3000})
"""


def _run_all(code: str, root: Path, count: int, *args: object, meanwhile: Callable[[], None]) -> None:
    """Start `count` children together, and call `meanwhile` again and again until all have ended well."""
    with ExitStack() as stack:
        children = [stack.enter_context(child(code, root, *args)) for _ in range(count)]
        for one in children:
            one.expect("ready")
        for one in children:
            one.send()
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                meanwhile()
                time.sleep(0.002)

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            try:
                for one in children:
                    one.finish(600).check()
            finally:
                done.set()
            watching.result()


def test_f01_f02_f04_a_counter_that_eight_processes_raise(root: Path) -> None:
    """No parse error, no torn file, no lost update; through a snapshot the two files are always of one generation."""
    saves = 200 if DEEP else 25
    for name in ("a.json", "b.json"):
        (root / name).write_text('{"generation": 0}', encoding="utf-8")
    FileTransaction(root).begin().rollback()
    store = FileStore(root, timeout=60)
    seen: list[int] = []

    def read() -> None:
        for name in ("a.json", "b.json"):
            json.loads((root / name).read_bytes())
        with store.snapshot("a.json", "b.json") as snap:
            a, b = snap.read_json("a.json"), snap.read_json("b.json")
        assert a == b
        seen.append(a["generation"])

    _run_all(GENERATIONS, root, 8, saves, meanwhile=read)
    assert json.loads((root / "a.json").read_bytes())["generation"] == 8 * saves
    assert seen == sorted(seen)
    assert len(seen) > 5
    assert sorted(tree(root)) == ["a.json", "b.json"]
    assert _private(root) == PERMANENT


ROWS = """
    import random
    from concurrent.futures import ThreadPoolExecutor
    from txfiles import FileStore
    dice = random.Random(os.getpid())
    store = FileStore(sys.argv[1], durability="process", timeout=120)
    def one(_):
        with store.transaction() as tx:
            index = tx.read_json("index.json")
            for _ in range(dice.randint(1, 3)):
                name = f"data/{dice.randrange(40)}"
                if name in index and dice.random() < 0.6:
                    index.remove(name)
                    tx.delete(name)
                elif name not in index:
                    index.append(name)
                    tx.write(name, name)
            tx.write_json("index.json", index)
    print("ready")
    input()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(one, range(int(sys.argv[2]))))
"""


def test_f13_an_index_row_never_exists_without_its_file(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write_json("index.json", [])
        tx.write("data/keep", "x")
    store = FileStore(root, timeout=60)

    def check() -> None:
        with suppress(SnapshotExpiredError), store.snapshot() as snap:
            index = sorted(snap.read_json("index.json"))
            assert snap.glob("data/*") == sorted([*index, "data/keep"])
            assert [snap.read_text(name) for name in index] == index

    _run_all(ROWS, root, 3, 1000 if DEEP else 40, meanwhile=check)
    check()
    index = json.loads((root / "index.json").read_bytes())
    assert sorted(os.listdir(root / "data")) == sorted(["keep", *(os.path.basename(name) for name in index)])
    assert _private(root) == PERMANENT


def test_f02_a_value_that_was_read_before_the_lock_is_refused(root: Path) -> None:
    """Who must read first (a form on a screen, say) passes on what it saw: `if_version`, or a snapshot as the base."""
    _save(root, "1", "count")
    store = FileStore(root)
    with store.snapshot() as snap:
        seen, version = int(snap.read("count")), snap.version("count")
    _save(root, "2", "count")
    with store.transaction() as tx, pytest.raises(ConflictError):
        tx.write("count", str(seen + 1), if_version=version)
    with pytest.raises(ConflictError), store.transaction(base=snap) as tx:
        tx.write("count", str(seen + 1))
    assert store.update(lambda tx: tx.write("count", str(int(tx.read("count")) + 1))) is None
    assert (root / "count").read_text(encoding="utf-8") == "3"


# -- F03, F10: programs that know nothing of txfiles ----------------------------------------------------------------


def _in_place(root: Path) -> None:
    with open(root / "a", "r+", encoding="utf-8") as file:
        file.write("own")


def _by_rename(root: Path) -> None:
    (root / "t").write_text("own", encoding="utf-8")
    (root / "t").replace(root / "a")


def _same_size_and_time(root: Path) -> None:
    found = (root / "a").stat()
    _by_rename(root)
    os.utime(root / "a", ns=(found.st_atime_ns, found.st_mtime_ns))


def _moved_away(root: Path) -> None:
    (root / "a").rename(root / "a.conflict")


def _deleted(root: Path) -> None:
    (root / "a").unlink()


def _now_a_directory(root: Path) -> None:
    (root / "a").unlink()
    (root / "a").mkdir()


def _now_a_link(root: Path) -> None:
    (root / "a").rename(root / "real")
    (root / "a").symlink_to("real")


STRANGERS = [_in_place, _by_rename, _same_size_and_time, _moved_away, _deleted, _now_a_directory, _now_a_link]


@pytest.mark.parametrize("change", STRANGERS)
@pytest.mark.parametrize("how", ["if_version", "base"])
def test_f03_what_others_write_after_the_read_is_noticed_on_request(
    root: Path, change: Callable[[Path], None], how: str
) -> None:
    _save(root, "old", "a", "b")
    store = FileStore(root)
    with store.snapshot() as snap:
        assert snap.read("a") == b"old"
    tx = store.transaction(base=snap if how == "base" else None).begin()
    tx.write("b", "new")
    if how == "if_version":
        tx.write("a", "new", if_version=tx.version("a"))
    else:
        tx.write("a", "new")
    change(root)
    before = tree(root)
    if how == "base" and change is _now_a_link:  # to the same file: what was read is still so
        tx.commit()
        return
    with pytest.raises(ConflictError) as caught:
        tx.commit()
    assert caught.value.outcome == "before"
    assert caught.value.path == "a"
    assert tree(root) == before


@pytest.mark.parametrize("change", STRANGERS)
def test_f10_between_staging_and_commit_the_last_rename_wins(root: Path, change: Callable[[Path], None]) -> None:
    _save(root, "old", "a", "b")
    tx = FileTransaction(root).begin()
    tx.write("a", "new")
    tx.write("b", "new")
    change(root)
    if change is _now_a_directory:
        before = tree(root)
        with pytest.raises(CommitError, match="has become a directory"):
            tx.commit()
        assert tree(root) == before
        return
    tx.commit()
    assert (root / "a").read_text(encoding="utf-8") == (root / "b").read_text(encoding="utf-8") == "new"
    assert not (root / "a").is_symlink()


@pytest.mark.parametrize("change", STRANGERS)
@pytest.mark.parametrize("durability", ["full", "process"])
def test_f10_in_the_middle_of_a_commit_theirs_is_kept(
    root: Path, change: Callable[[Path], None], durability: str
) -> None:
    """At the commit point all was looked at; a sync client that comes after it makes the commit undo itself."""
    _save(root, "old", "0", "a", "b")
    fs: Any = nth_call("rename", 1, lambda: change(root))
    with (
        system.use(fs),
        pytest.raises((ConflictError, CommitError)) if change not in (_moved_away, _deleted) else ExitStack(),
    ):
        _save(root, "new", "0", "a", "b", durability=durability)
    found = tree(root)
    if change in (_moved_away, _deleted):  # whoever removes it wants it no longer; the new one comes after that
        assert found["0"] == found["a"] == found["b"] == b"new"
    else:
        assert found["0"] == found["b"] == b"old"
        assert found["a"] != b"new"
    assert _private(root) == PERMANENT
    with suppress(OSError):
        (root / "a").rmdir()
    _save(root, "again", "b")


@pytest.mark.parametrize("when", ["staged", "commit point"])
@pytest.mark.parametrize("how", ["renamed", "removed", "replaced by a file", "replaced by another"])
def test_f10_the_directory_goes(root: Path, when: str, how: str) -> None:
    _save(root, "old", "0", "d/a")

    def change() -> None:
        (root / "d").rename(root / "moved")
        if how == "removed":
            (root / "moved/a").unlink()
            (root / "moved").rmdir()
        elif how == "replaced by a file":
            (root / "d").write_text("a file", encoding="utf-8")
        elif how == "replaced by another":
            (root / "d").mkdir()

    fs: Any = nth_call("rename", 1, change if when == "commit point" else lambda: None)
    with system.use(fs):
        tx = FileTransaction(root).begin()
        for name in ("0", "d/a", "e/new"):
            tx.write(name, "new")
        if when == "staged":
            change()
        try:
            tx.commit()
        except (CommitError, ConflictError) as error:
            outcome = error.outcome
        else:
            outcome = "after"
    found = tree(root)
    if outcome == "after":  # as if the directory had been moved after the commit
        assert found["0"] == found["e/new"] == found.get("d/a", found.get("moved/a")) == b"new"
    else:
        assert b"new" not in found.values()
        assert found["0"] == b"old"
        assert "e" not in found
    assert (outcome == "before") is (how != "replaced by another")
    assert _private(root) == PERMANENT


# -- F04, F05: a writer that stands still ---------------------------------------------------------------------------

STOPPED = """
    from txfiles import FileTransaction
    from txfiles._disk import system
    class Stopping(system.KernelFS):
        seen = 0
        def _maybe(self, call):
            if call == sys.argv[2]:
                Stopping.seen += 1
                if Stopping.seen == int(sys.argv[3]):
                    os.kill(os.getpid(), signal.SIGSTOP)
        def rename(self, *args):
            self._maybe("rename")
            super().rename(*args)
        def write(self, fd, data):
            self._maybe("write")
            done = super().write(fd, data)
            os.utime(fd, (time.time() - int(sys.argv[4]),) * 2)  # as if it had been staged so long ago
            return done
    with system.use(Stopping()), FileTransaction(sys.argv[1]) as tx:
        for name in ("a.json", "b.json", "c.json"):
            tx.write_json(name, {"generation": 2})
"""


@pytest.mark.parametrize("at", [2, 3, 4], ids=["none renamed", "one renamed", "two renamed"])
def test_f04_a_snapshot_never_mixes_and_a_raw_reader_can(root: Path, at: int) -> None:
    names = ("a.json", "b.json", "c.json")
    _save(root, '{"generation": 1}', *names)
    store = FileStore(root, timeout=0.2)
    with store.snapshot(*names) as pinned, store.snapshot() as loose, child(STOPPED, root, "rename", at, 0) as writer:
        assert writer.wait_for_stop()
        raw = [json.loads((root / name).read_bytes())["generation"] for name in names]
        assert raw == [2] * (at - 2) + [1] * (5 - at)
        with store.snapshot() as snap:
            assert {snap.read_json(name)["generation"] for name in names} == {1}
        with store.snapshot(*names) as snap:
            assert {snap.read_json(name)["generation"] for name in names} == {1}
        assert {pinned.read_json(name)["generation"] for name in names} == {1}
        writer.resume()
        writer.finish().check()
        assert {pinned.read_json(name)["generation"] for name in names} == {1}
        with pytest.raises(SnapshotExpiredError):
            loose.read_json("a.json")


@pytest.mark.parametrize("age", [0, 3 * 86400, 10 * 365 * 86400])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_f05_nobody_clears_away_what_a_live_writer_has_staged(root: Path, at: int, age: int) -> None:
    _save(root, '{"generation": 1}', "a.json", "b.json", "c.json")
    with child(STOPPED, root, "write", at, age) as writer:
        assert writer.wait_for_stop()
        staged = _private(root)
        assert len(staged) == 4 + at
        then = time.time() - age
        for name in (*PERMANENT, "."):
            os.utime(root / ".txfiles" / name, (then, then))
        with pytest.raises(LockTimeoutError):
            FileTransaction(root, timeout=0.1).begin()
        with pytest.raises(LockTimeoutError):
            recover(root, timeout=0.1)
        with FileStore(root, timeout=0.1).snapshot() as snap:
            assert snap.read_json("a.json") == {"generation": 1}
        assert len(status(root).debris) == at
        assert _private(root) == staged
        writer.resume()
        writer.finish().check()
    assert json.loads((root / "c.json").read_bytes()) == {"generation": 2}
    assert _private(root) == PERMANENT


# -- F07, F14: what is left -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["create", "write", "chmod", "link", "rename"])
def test_f07_a_hundred_kills_leave_no_more_than_one(root: Path, call: str) -> None:
    _save(root, "old", "a", "b")
    (root / "a").chmod(0o640)
    (root / "b").chmod(0o640)
    for _ in range(20):
        killed(lambda: _save(root, "x" * 100_000, "a", "b"), call, 2)
        assert len(_private(root)) <= 4 + 5
    FileTransaction(root, timeout=0).begin().rollback()
    assert _private(root) == PERMANENT
    assert sorted(tree(root)) == ["a", "b"]


def test_f07_killed_at_any_moment(root: Path) -> None:
    code = """
        from txfiles import FileTransaction
        print("ready")
        while True:
            with FileTransaction(sys.argv[1]) as tx:
                for name in ("a", "d/b", "c"):
                    tx.write(name, os.urandom(50_000))
                tx.delete("gone", missing_ok=True)
            with FileTransaction(sys.argv[1]) as tx:
                tx.write("gone", "x")
    """
    used = []
    for _ in killed_at_random(code, root, rounds=100 if DEEP else 12, longest=0.05):
        recover(root, timeout=5)
        assert _private(root) in (PERMANENT, PERMANENT[:3], ["format", "lock"], ["lock"], [])
        used.append(sum(path.lstat().st_size for path in root.rglob("*") if path.is_file()))
    assert max(used) < 200_000 + (64 << 10), "the spare"


def test_f14_the_losers_clear_away_only_their_own(root: Path) -> None:
    _save(root, "old", "good-0", "good-1", "bad-0", "bad-1")
    start = threading.Barrier(4)

    def work(name: str) -> list[str]:
        said = []
        start.wait()
        for number in range(8):
            try:
                _save(root, f"{number}", name, f"{name}-{number}")
                said.append("after")
            except CommitError as error:
                said.append(error.outcome)
        return said

    with system.use(_RefusesBad(None)), ThreadPoolExecutor(4) as pool:
        said = list(pool.map(work, ["good-0", "bad-0", "good-1", "bad-1"]))
    assert said == [["after"] * 8, ["before"] * 8] * 2
    found = tree(root)
    assert found["bad-0"] == found["bad-1"] == b"old"
    assert len(found) == 4 + 16
    assert _private(root) == PERMANENT


class _RefusesBad(Refusing):
    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        self.target = new if new.startswith(b"bad-") else b""
        super().rename(at, name, to, new)


# -- F09: watchers --------------------------------------------------------------------------------------------------

_MODIFY, _MOVED_TO, _CREATE, _DELETE, _MOVED_FROM, _MASK = 0x2, 0x80, 0x100, 0x200, 0x40, 0x3FF


class _Watch:
    """inotify(7) on one path: the events so far, as (mask, name)."""

    def __init__(self, path: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._libc.inotify_add_watch(self.fd, os.fsencode(path), _MASK) > 0

    def events(self) -> list[tuple[int, str]]:
        found = []
        with suppress(BlockingIOError):
            data = os.read(self.fd, 1 << 16)
            while data:
                _, mask, _, length = struct.unpack_from("iIII", data)
                found.append((mask & _MASK, data[16 : 16 + length].rstrip(b"\0").decode()))
                data = data[16 + length :]
        return found

    def close(self) -> None:
        os.close(self.fd)


def test_f09_watch_the_directory_and_not_the_file(root: Path) -> None:
    """A watcher of the directory sees each file come once, whole; one of the file itself stays with the old inode."""
    _save(root, "old", "a", "gone")
    directory, file = _Watch(root), _Watch(root / "a")
    try:
        with FileTransaction(root) as tx:
            tx.write("a", "new")
            tx.write("b", "new")
            tx.delete("gone")
        told = [
            event for event in directory.events() if event[0] & (_MODIFY | _CREATE | _MOVED_TO | _DELETE | _MOVED_FROM)
        ]
        assert told == [(_MOVED_FROM, "gone"), (_MOVED_TO, "a"), (_MOVED_TO, "b")]
        file.events()
        _save(root, "newer", "a")
        assert file.events() == []
        assert (_MOVED_TO, "a") in directory.events()
    finally:
        directory.close()
        file.close()


# -- F12: one transaction for many threads --------------------------------------------------------------------------


def test_f12_sixteen_threads_share_a_transaction(root: Path) -> None:
    _save(root, "[]", "log.json")
    with FileTransaction(root) as tx:
        mutex = threading.Lock()

        def work(number: int) -> None:
            for turn in range(4):
                tx.write_json(f"own-{number}.json", {"number": number, "turn": turn})
                tx.write_json("shared.json", {"number": number, "padding": "x" * 10_000})
                assert tx.read_json("shared.json")["padding"] == "x" * 10_000
                with tx.open(f"stream-{number}", "w" if turn == 0 else "a") as file:
                    for _ in range(100):
                        file.write(f"{number}\n")
                with mutex:  # a read-modify-write of several calls is the callers' to serialise
                    tx.write_json("log.json", [*tx.read_json("log.json"), number])
                assert f"own-{number}.json" in tx.listdir()

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(16)))
    assert sorted(json.loads((root / "log.json").read_bytes())) == sorted(list(range(16)) * 4)
    assert json.loads((root / "shared.json").read_bytes())["number"] in range(16)
    for number in range(16):
        assert json.loads((root / f"own-{number}.json").read_bytes()) == {"number": number, "turn": 3}
        assert (root / f"stream-{number}").read_text(encoding="utf-8") == f"{number}\n" * 400


def test_f12_one_thread_ends_what_others_still_use(root: Path) -> None:
    tx = FileTransaction(root).begin()
    start = threading.Barrier(9)

    def write(number: int) -> int:
        start.wait()
        written = 0
        with suppress(TransactionClosedError):
            while True:
                tx.write(f"{number}-{written}", "x")
                written += 1
        return written

    with ThreadPoolExecutor(8) as pool:
        counts = [pool.submit(write, number) for number in range(8)]
        start.wait()
        time.sleep(0.02)
        tx.commit()
        written = sum(count.result() for count in counts)
    assert len(tree(root)) == written


# -- F16: append ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["create", "write", "sync_file", "rename"])
@pytest.mark.parametrize("lines", [1, 20_000])
def test_f16_a_killed_append_leaves_whole_records(root: Path, call: str, lines: int) -> None:
    """Appending replaces the whole file at the commit."""
    _save(root, '{"n": 0}\n', "log.jsonl")
    record = '{"n": 1}\n' * lines

    def append() -> None:
        with FileTransaction(root) as tx, tx.open("log.jsonl", "a") as file:
            file.write(record)

    for nth in (1, 2):
        with suppress(AssertionError):  # there may be no second call
            killed(append, call, nth)
        before = (root / "log.jsonl").read_text(encoding="utf-8")
        append()
        assert (root / "log.jsonl").read_text(encoding="utf-8") in (before + record, before + record + record)
        assert set((root / "log.jsonl").read_text(encoding="utf-8").splitlines()) == {'{"n": 0}', '{"n": 1}'}


# -- F17: default settings ------------------------------------------------------------------------------------------


@pytest.mark.needs("loop", "ext4")
@pytest.mark.parametrize("options", [(), ("noauto_da_alloc",), ("data=writeback",)], ids=" ".join)
def test_f17_the_default_is_safe_against_power_loss(tmp_path: Path, options: tuple[str, ...]) -> None:
    with loop_fs(tmp_path, "ext4", options=options) as fs:
        root = fs.path / "root"
        FileStore(root, create=True).update(lambda tx: tx.write("a", "old"))
        with FileTransaction(root) as tx:
            tx.write("a", "new")
            tx.write("deep/er/b", "new" * 100_000)
        with crash_image(fs) as after:
            assert recover(after.path / "root").rolled_back == []
            assert tree(after.path / "root") == tree(root)
        FileStore(root).update(lambda tx: tx.delete("a"))
        fs.power_cut()
        assert recover(root).rolled_back == []
        assert sorted(tree(root)) == ["deep", "deep/er", "deep/er/b"]


def test_f17_durability_is_not_something_to_ask_for() -> None:
    for made in (FileTransaction, FileStore):
        assert inspect.signature(made).parameters["durability"].default == "full"
