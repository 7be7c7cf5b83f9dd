"""durability="journal": what goes through the log and what by "full", the format, and the way back."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import fsspec
import pytest

import txfiles
from tests.support.boundary import nth_call, tree
from tests.support.mounts import bind, run, tmpfs
from tests.support.procs import run_python
from txfiles import (
    AsyncDocuments,
    AsyncFileTransaction,
    Documents,
    Durability,
    FileStore,
    FileTransaction,
    commit_prepared,
)
from txfiles._commit import home, idle, levels, log_commit
from txfiles._commit.home import Home
from txfiles._disk import system
from txfiles._format import layout, log
from txfiles._groups import threads as gatherings
from txfiles.cli import main
from txfiles.errors import CommitError, ConflictError, JournalVersionError, RecoveryError
from txfiles.testing._faults import FaultyFS, interrupt_at


@pytest.fixture
def store(root: Path) -> FileStore:
    return FileStore(root, durability="journal")


@pytest.fixture(autouse=True)
def _no_checkpoint_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "AFTER", 1000)


def put(store: FileStore, **contents: str) -> None:
    with store.transaction() as tx:
        for name, content in contents.items():
            tx.write(name, content)


def private(root: Path) -> list[str]:
    return sorted(os.listdir(root / ".txfiles"))


def records(root: Path) -> int:
    """How many commits are in the log."""
    raw = (root / ".txfiles" / "log").read_bytes()
    even, odd = (raw[log.slot(parity) :][: log.HEADER_SIZE] for parity in (0, 1))
    header = log.decode_headers(even, odd, "log")
    return len(log.decode_records(raw, header, "log"))


class Calls(system.KernelFS):
    """Which calls are made."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if not name.startswith("_") and callable(found) and name != "made":
            self.made.append(name)
        return found


# -- the setting ----------------------------------------------------------------------------------------------------


def test_a_commit_goes_through_the_log(root: Path, store: FileStore) -> None:
    put(store, a="1", b="2")
    with store.transaction() as tx:
        tx.write("a", "3")
        tx.delete("b")
        tx.write("new", b"\0" * log.INLINE)
    assert (root / "a").read_text(encoding="utf-8") == "3"
    assert sorted(os.listdir(root)) == [".txfiles", "a", "new"]
    assert private(root) == ["format", "lock", "log", "tail"]
    assert records(root) == 2
    assert tx.outcome == "after"


def test_each_door_has_it(tmp_path: Path) -> None:
    async def asynchronous() -> None:
        async with AsyncFileTransaction(tmp_path / "b", durability="journal", create=True) as tx:
            await tx.write("a", "1")
        (tmp_path / "c").mkdir()
        await AsyncDocuments(tmp_path / "c", {"state": {}}, durability="journal").save(state={"turn": 1})

    with FileTransaction(tmp_path / "a", durability="journal", create=True) as tx:
        tx.write("a", "1")
    asyncio.run(asynchronous())
    (tmp_path / "d").mkdir()
    Documents(tmp_path / "d", {"state": {}}, durability="journal").save(state={"turn": 1})
    (tmp_path / "e").mkdir()
    fs = fsspec.filesystem("txfiles", root=str(tmp_path / "e"), durability="journal", skip_instance_cache=True)
    fs.pipe(f"{tmp_path}/e/a", b"1")
    (tmp_path / "f").mkdir()
    (tmp_path / "g").write_text("1", encoding="utf-8")
    assert main(["put", "--durability", "journal", str(tmp_path / "f"), f"a={tmp_path / 'g'}"]) == 0
    for name in "abcdef":
        assert records(tmp_path / name) == 1, name


def test_a_setting_that_is_none_names_all(root: Path) -> None:
    with pytest.raises(ValueError, match='"full", "journal" or "process"'):
        FileStore(root, durability="log")  # type: ignore[arg-type]


def test_once_it_is_under_way_a_commit_has_one_sync(root: Path, store: FileStore) -> None:
    """No sync of a file or a directory: of the log's own blocks alone."""
    put(store, a="1", b="2")
    with system.use(fs := Calls()):
        for number in range(5):
            put(store, a=f"{number}", b=f"{number}")
    assert fs.made.count("sync_data") == 5
    assert not {"sync_file", "sync_dir", "run_all", "sync_file_system"}.intersection(fs.made)


def test_who_comes_later_knows_what_is_durable(root: Path, store: FileStore) -> None:
    """Another process, before and after a checkpoint."""
    put(store, a="1", b="2")
    for make in (lambda: None, store.checkpoint):
        make()
        system.KernelFS.logs.clear()
        with system.use(fs := Calls()):
            put(store, a="3", b="4")
        assert fs.made.count("sync_data") == 1
        assert "run_all" not in fs.made


def test_what_somebody_else_has_written_is_synced_first(root: Path, store: FileStore) -> None:
    put(store, a="1", b="2")
    (root / "a").write_text("theirs", encoding="utf-8")
    with system.use(fs := Calls()):
        put(store, a="3", b="4")
    assert fs.made.count("run_all") == 1


def test_a_staged_file_that_was_changed_in_place_with_its_time_kept_is_in_no_record(
    root: Path, store: FileStore
) -> None:
    """Its record would not count, nor would those behind it."""
    put(store, a="old")
    with pytest.raises(ConflictError, match="was staged"), store.transaction() as tx:
        with tx.open("a", "wb") as file:
            file.write(b"staged")
            mine = os.dup(file.fileno())
        try:
            found = os.fstat(mine)
            os.pwrite(mine, b"STAGED", 0)
            os.utime(mine, ns=(found.st_atime_ns, found.st_mtime_ns))
        finally:
            os.close(mine)
    assert (root / "a").read_bytes() == b"old"
    put(store, b="next")
    assert records(root) == 2


def same_content(token: Path) -> None:
    os.utime(token, ns=(0, 0))


def other_content(token: Path) -> None:
    token.write_text("theirs", encoding="utf-8")


@pytest.mark.parametrize("deed", [same_content, other_content])
@pytest.mark.parametrize("is_remembered", [False, True])
def test_nor_is_one_that_is_not_the_same_any_more(
    root: Path, store: FileStore, deed: Callable[[Path], None], is_remembered: bool
) -> None:
    put(store, a="old")
    with pytest.raises(ConflictError, match="was staged"), store.transaction() as tx:
        tx.write("a", "staged")
        for _ in range(0 if is_remembered else 70):  # more than is kept in memory
            tx.write("b", "x" * log.INLINE)
        (token,) = (root / ".txfiles").glob("*.0")
        deed(token)
    assert (root / "a").read_bytes() == b"old"


def test_progress(store: FileStore) -> None:
    told: list[tuple[int, int]] = []
    with store.transaction() as tx:
        tx.on_progress(lambda done, total: told.append((done, total)))
        tx.write("a", "1")
        tx.write("b", "2")
    assert told == [(1, 2), (2, 2)]


def test_a_full_log_begins_anew(root: Path, store: FileStore) -> None:
    content = "x" * (log.INLINE - 1)
    for number in range(80):
        put(store, a=f"{number % 10}{content}")
    assert 0 < records(root) < 63
    assert (root / "a").read_text(encoding="utf-8")[0] == "9"


# -- what goes by another protocol ----------------------------------------------------------------------------------


def makes_a_directory(tx: FileTransaction) -> None:
    tx.mkdir("d")
    tx.write("d/f", "1")


def removes_a_directory(tx: FileTransaction) -> None:
    tx.delete_tree("empty")


def makes_a_link(tx: FileTransaction) -> None:
    tx.symlink("a", "link")


def removes_a_link(tx: FileTransaction) -> None:
    tx.delete("old-link")


def writes_much(tx: FileTransaction) -> None:
    tx.write("a", "x" * (log.INLINE + 1))


def writes_many(tx: FileTransaction) -> None:
    for number in range(70):
        tx.write(f"f{number}", "x" * log.INLINE)


OTHERS = [makes_a_directory, removes_a_directory, makes_a_link, removes_a_link, writes_much, writes_many]


@pytest.mark.parametrize("what", OTHERS)
def test_what_the_log_cannot_hold_goes_by_full_behind_a_checkpoint(
    root: Path, store: FileStore, what: Callable[[FileTransaction], None]
) -> None:
    (root / "empty").mkdir()
    (root / "old-link").symlink_to("a")
    put(store, a="1", b="2")
    synced: list[str] = []
    with system.use(nth_call("sync_dir", 1, lambda: synced.append(f"{records(root)}"))), store.transaction() as tx:
        what(tx)
        tx.write("b", "both")
    assert synced
    assert records(root) == 0
    assert txfiles.status(root).head is not None
    assert (root / "b").read_text(encoding="utf-8") == "both"
    put(store, a="again")
    assert records(root) == 1


def test_so_does_what_leads_out_of_the_root(root: Path, tmp_path: Path) -> None:
    (out := tmp_path / "out").mkdir()
    (root / "link").symlink_to(out)
    store = FileStore(root, durability="journal", links="follow")
    put(store, a="1")
    with store.transaction() as tx:
        tx.write("link/far", "2")
        tx.write("a", "2")
    assert records(root) == 0
    assert (out / "far").read_text(encoding="utf-8") == (root / "a").read_text(encoding="utf-8") == "2"


@pytest.mark.parametrize("durability", ["full", "process"])
def test_a_transaction_of_another_durability_begins_with_a_checkpoint(
    root: Path, store: FileStore, durability: txfiles.Durability
) -> None:
    put(store, a="1")
    other = FileStore(root, durability=durability)
    with other.transaction() as tx:
        tx.read("a")
    assert records(root) == 1, "it has changed nothing"
    put(other, b="2")
    assert records(root) == 0
    put(store, a="3")
    assert records(root) == 1


def test_sequence_numbers_run_through_both(root: Path, store: FileStore) -> None:
    put(store, a="1")
    put(store, a="2")
    put(FileStore(root), b="1")
    head = txfiles.status(root).head
    assert head is not None
    assert head.sequence == 3
    put(store, a="3")
    put(FileStore(root), b="2")
    head = txfiles.status(root).head
    assert head is not None
    assert head.sequence == 5


def test_a_prepared_transaction_is_beside_an_empty_log(root: Path, store: FileStore) -> None:
    put(store, a="1")
    with store.transaction() as tx:
        tx.write("a", "2")
        waiting = tx.prepare()
    assert records(root) == 0
    commit_prepared(root, waiting)
    assert (root / "a").read_text(encoding="utf-8") == "2"
    put(store, a="3")
    assert records(root) == 1


class Without(Calls):
    """A place where no log can be."""

    def __init__(self, call: str, answer: object) -> None:
        super().__init__()

        def refuse(*_: object) -> object:
            if isinstance(answer, int):
                raise OSError(answer, os.strerror(answer))
            return answer

        setattr(self, call, refuse)


PLACES = [
    ("exchange", errno.EINVAL),
    ("exchange", errno.ENOSYS),
    ("allocate", errno.ENOSPC),
    ("allocate", errno.EDQUOT),
    ("allocate", errno.EFBIG),
    ("kind", "btrfs"),
    ("session", b""),
]


@pytest.mark.parametrize(("call", "answer"), PLACES)
def test_where_no_log_can_be_it_is_full(root: Path, store: FileStore, call: str, answer: object) -> None:
    with system.use(fs := Without(call, answer)):
        place = FileStore(root, durability="journal")
        put(place, a="1")
        put(place, a="2")
    assert "run_all" in fs.made, "and syncs its files"
    assert "log" not in private(root)
    assert (root / ".txfiles" / "format").read_bytes() == layout.FORMAT_TEXT
    head = txfiles.status(root).head
    assert head is not None
    assert head.sequence == 2
    put(store, a="3")
    assert records(root) == 1


@pytest.mark.parametrize("call", ["exchange", "allocate"])
def test_a_disk_that_fails_is_no_place_without_a_log(root: Path, call: str) -> None:
    with system.use(Without(call, errno.EIO)), pytest.raises(CommitError, match="nothing was changed"):
        put(FileStore(root, durability="journal"), a="1")
    assert tree(root) == {}


SYNCS = {"sync_file", "sync_dir", "run_all", "sync_data"}


def test_process_syncs_nothing(root: Path) -> None:
    with system.use(fs := Calls()):
        put(FileStore(root, durability="process"), a="1")
    assert not SYNCS.intersection(fs.made)


@pytest.mark.needs("mount")
def test_in_memory_it_is_process(shm: Path) -> None:
    with system.use(fs := Calls()):
        put(FileStore(shm, durability="journal"), a="1")
    assert not SYNCS.intersection(fs.made)
    assert "log" not in private(shm)


@pytest.fixture
def shm(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "memory") as place:
        yield place


# -- the format, and the way back -----------------------------------------------------------------------------------


def an_older_one(patch: pytest.MonkeyPatch) -> None:
    """What a txfiles without logs knows."""
    patch.setattr(layout, "FORMAT_WITH_LOG", b"nothing\n")
    patch.setattr(home, "_known_formats", {})


def test_an_older_txfiles_refuses_a_root_with_a_log(
    root: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(FileStore(root), a="1")
    put(store, a="2")
    before = tree(root)
    with monkeypatch.context() as patch:
        an_older_one(patch)
        with pytest.raises(JournalVersionError, match="txfiles 2 flock"):
            put(FileStore(root), a="3")
    assert tree(root) == before
    version = store.state_version()
    store.remove_log()
    assert store.state_version() != version
    assert private(root) == ["HEAD", "format", "lock", "spare"]
    assert (root / ".txfiles" / "format").read_bytes() == b"txfiles 1 flock\n"
    assert (root / ".txfiles" / "HEAD").read_bytes().startswith(b"txfiles journal 1 ")
    with monkeypatch.context() as patch:
        an_older_one(patch)
        put(FileStore(root), a="3")
    head = txfiles.status(root).head
    assert head is not None
    assert head.sequence == 4, "the number goes on, and no version comes back"
    put(store, a="4")
    assert records(root) == 1


def test_the_format_is_durable_before_there_is_a_log(root: Path, store: FileStore) -> None:
    put(FileStore(root), a="1")
    seen: list[bytes] = []
    here = root / ".txfiles"

    class Watched(system.KernelFS):
        def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
            if new == layout.LOG:
                seen.append((here / "format").read_bytes())
            super().rename(at, name, to, new)

    with system.use(Watched()):
        put(FileStore(root, durability="journal"), a="2")
    assert seen == [layout.FORMAT_WITH_LOG]


def test_without_a_log_there_is_nothing_to_remove(root: Path, store: FileStore) -> None:
    for other in (store, FileStore(root / "none", create=True)):
        other.checkpoint()
        other.close()
        other.remove_log()
    assert not (root / ".txfiles").exists()
    put(FileStore(root), a="1")
    store.remove_log()
    assert private(root) == ["HEAD", "format", "lock", "spare"]


def test_a_checkpoint_empties_the_log(root: Path, store: FileStore) -> None:
    put(store, a="1")
    store.checkpoint()
    assert records(root) == 0
    put(store, a="2")
    FileStore(root).close()
    assert records(root) == 1
    store.close()
    assert records(root) == 0


def test_a_checkpoint_makes_the_room_that_a_full_disk_will_need(root: Path, store: FileStore) -> None:
    put(store, a="1")
    store.checkpoint()
    assert "spare" in private(root)


def test_a_log_beside_another_format_is_refused(root: Path, store: FileStore) -> None:
    put(store, a="1")
    (root / ".txfiles" / "format").write_bytes(layout.FORMAT_TEXT)
    with pytest.raises(RecoveryError, match="format"):
        put(store, a="2")
    (root / ".txfiles" / "format").write_bytes(layout.FORMAT_WITH_LOG)
    put(store, a="2")


# -- errors ---------------------------------------------------------------------------------------------------------


def test_a_sync_that_fails_leaves_the_state_before(root: Path, store: FileStore) -> None:
    put(store, a="1")

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with system.use(nth_call("sync_data", 1, fail)), pytest.raises(CommitError, match="nothing was changed"):
        put(FileStore(root, durability="journal"), a="2", b="2")
    assert (root / "a").read_text(encoding="utf-8") == "1"
    assert private(root) == ["format", "lock", "log", "tail"]
    put(store, a="3")
    assert (root / "a").read_text(encoding="utf-8") == "3"


def interrupted_at(numbers: list[int], now: int, name: str) -> None:
    interrupt_at(*numbers)(now, name)


@pytest.mark.parametrize(
    ("level", "permanent"),
    [("journal", ["format", "lock", "log", "tail"]), ("full", ["HEAD", "format", "lock", "spare"])],
)
def test_an_interrupt_at_any_call_ends_in_one_state(root: Path, level: Durability, permanent: list[str]) -> None:
    """Recovery goes on at once."""
    put(FileStore(root, durability=level), a="0", b="0")
    outcomes, number, interrupted = set(), 0, True
    while interrupted:
        number += 1
        before = (root / "a").read_text(encoding="utf-8")
        at: list[int] = []
        fs = FaultyFS(system.KernelFS(), partial(interrupted_at, at))
        with system.use(fs):
            tx = FileTransaction(root, durability=level).begin()
            tx.write("a", before + "+")
            tx.write("b", before + "+")
            at.append(fs.calls + number)
            try:
                tx.commit()
                interrupted = fs.calls >= at[0]
            except KeyboardInterrupt:
                pass
        after = (root / "a").read_text(encoding="utf-8")
        assert after == (root / "b").read_text(encoding="utf-8")
        assert tx.outcome == ("before" if after == before else "after"), number
        assert private(root) == permanent, number
        outcomes.add(tx.outcome)
    assert outcomes == {"before", "after"}
    assert number > 20


def test_a_group_shares_a_commit_through_the_log(root: Path, store: FileStore) -> None:
    """Who comes while the first is in it waits, and all of them have one record."""
    put(store, count="0")
    inside, goes_on = threading.Event(), threading.Event()

    def increment(tx: FileTransaction) -> None:
        inside.set()
        assert goes_on.wait(30)
        tx.write("count", f"{int(tx.read('count')) + 1}")

    threads = [threading.Thread(target=store.update, args=(increment,), kwargs={"group": True}) for _ in range(9)]
    threads[0].start()
    assert inside.wait(30)
    for thread in threads[1:]:
        thread.start()
    while sum(len(one._waiting) for one in list(gatherings._gatherings.values())) < 8:
        threading.Event().wait(0.001)
    goes_on.set()
    for thread in threads:
        thread.join()
    assert (root / "count").read_text(encoding="utf-8") == "9"
    assert records(root) == 2


# -- checkpoints by themselves --------------------------------------------------------------------------------------


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        threading.Event().wait(0.005)


def number(root: Path) -> int:
    """Of the last commit in the log."""
    with Home.open(system.current(), os.fsencode(root), create=False) as opened:
        assert levels.rests(opened)
        file = levels.log_of(opened)
        assert file is not None
        return file.seq


def test_a_log_that_nobody_commits_to_is_checkpointed(
    root: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "AFTER", 0.01)
    put(store, a="1")
    until(lambda: records(root) == 0)
    put(store, a="2")
    until(lambda: records(root) == 0)
    until(lambda: idle._waiting.thread is None)
    assert (root / "a").read_text(encoding="utf-8") == "2"


def test_it_is_for_those_who_have_committed_since(root: Path, store: FileStore) -> None:
    put(store, a="1")
    first = number(root)
    put(store, a="2")
    idle._checkpoint(os.fsencode(root), first)
    assert records(root) == 2
    idle._checkpoint(os.fsencode(root), first + 1)
    assert records(root) == 0


def test_a_busy_root_is_asked_again_later(root: Path, store: FileStore) -> None:
    put(store, a="1")
    seq = number(root)
    idle.forget()
    with store.transaction():
        thread = threading.Thread(target=idle._checkpoint, args=(os.fsencode(root), seq))
        thread.start()
        thread.join()
        assert [one for _, one in idle._waiting.due.values()] == [seq]
    assert records(root) == 1


def test_one_that_fails_is_told_in_the_log_and_left_to_recovery(
    root: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, a="1")
    seq = number(root)

    class Failing(system.KernelFS):
        def run_all(self, jobs: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(idle, "_fs", Failing())
    idle._checkpoint(os.fsencode(root), seq)
    assert "the checkpoint of its log failed" in caplog.text
    put(store, b="1")
    assert records(root) == 1
    assert (root / "a").read_text(encoding="utf-8") == "1"


def test_a_root_that_is_gone_or_pending_is_let_be(
    root: Path, store: FileStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, a="1")
    seq = number(root)
    (root / ".txfiles" / f"{'0' * 32}.0").write_bytes(b"")
    idle._checkpoint(os.fsencode(root), seq)
    assert records(root) == 1
    store.recover()
    caplog.clear()
    idle._checkpoint(os.fsencode(root) + b"/none", seq)
    assert not caplog.text


def test_it_does_not_keep_the_interpreter_alive(root: Path) -> None:
    code = f"""
import sys, time
from txfiles import FileStore
from txfiles._commit import idle
idle.AFTER = 1000
with FileStore({str(root)!r}, durability="journal").transaction() as tx:
    tx.write("a", "1")
assert idle._waiting.thread.is_alive()
"""
    assert run_python(code, timeout=60).returncode == 0
    assert records(root) == 1


def test_a_fork_finds_one_thread_and_the_child_has_its_own(root: Path, store: FileStore) -> None:
    """Later Pythons warn of a fork beside threads."""
    put(store, a="1")
    assert idle._waiting.thread is not None
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert threading.active_count() == 1
            assert not idle._waiting.due
            put(store, a="2")
            assert idle._waiting.thread is not None
            code = 0
        finally:
            os._exit(code)
    assert idle._waiting.thread is not None  # again: what was due still is
    assert os.waitpid(child, 0)[1] == 0
    put(store, a="3")
    assert idle._waiting.thread is not None
    assert records(root) == 3


def test_async_twins(root: Path, store: FileStore) -> None:
    async def run(end: Callable[[], Awaitable[None]]) -> None:
        async with store.async_transaction() as tx:
            await tx.write("a", "1")
        assert records(root) == 1
        await end()
        assert records(root) == 0

    asyncio.run(run(store.async_checkpoint))
    asyncio.run(run(store.async_close))


def test_new_files_cost_one_sync_too_once_their_directory_is_durable(root: Path, store: FileStore) -> None:
    """As long as nobody else changes a name there, or above."""
    (root / "d" / "e").mkdir(parents=True)
    put(store, a="makes the log")

    def syncs(name: str) -> int:
        with system.use(fs := Calls()):
            put(store, **{name: "1"})
        assert fs.made.count("sync_data") == 1
        return fs.made.count("run_all")

    assert [syncs(f"d/e/{number}") for number in range(4)] == [1, 0, 0, 0]
    assert syncs("other") == 0, "it was above the others"
    (root / "d" / "theirs").write_text("1", encoding="utf-8")
    assert [syncs(f"d/e/{number}") for number in range(4, 8)] == [1, 0, 0, 0]
    store.checkpoint()
    assert syncs("d/e/last") == 0


def test_a_file_in_a_directory_costs_one_too_also_for_who_comes_later(root: Path, store: FileStore) -> None:
    """As long as nobody else changes a name there, and the last commit was in it."""
    (root / "d").mkdir()
    put(store, **{"d/x": "1", "a": "1"})

    def syncs(*names: str, later: bool = False) -> int:
        if later:
            system.KernelFS.logs.clear()
        with system.use(fs := Calls()):
            put(store, **dict.fromkeys(names, "2"))
        assert "sync_file_system" not in fs.made
        return fs.made.count("run_all")

    assert [syncs("d/x"), syncs("d/x", later=True), syncs("d/x", "a", later=True)] == [0, 0, 0]
    (root / "d" / "theirs").touch()
    assert [syncs("d/x"), syncs("d/x")] == [1, 0]
    time.sleep(0.02)  # more than a tick of the kernel's clock
    (root / "d" / "theirs").unlink()
    assert [syncs("d/x", later=True), syncs("d/x", later=True)] == [1, 0]
    assert [syncs("a"), syncs("d/x", later=True), syncs("a", later=True)] == [0, 1, 0]


def test_what_no_record_can_hold_is_not_read(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_commit, "_content", lambda *_: pytest.fail("read"))
    put(store, **{str(number): "x" * 60_000 for number in range(70)})


# -- other places, other users --------------------------------------------------------------------------------------


@pytest.mark.needs("mount")
def test_another_mount_of_the_same_files_is_another_session(root: Path, store: FileStore, tmp_path: Path) -> None:
    """Each brings to rest what the other has left, and nothing is lost."""
    put(store, a="0", b="0")
    with bind(root, tmp_path / "again") as again:
        for number in range(4):
            put((store, FileStore(again, durability="journal"))[number % 2], a=f"{number}", b=f"{number}")
            assert {(root / name).read_text(encoding="utf-8") for name in "ab"} == {f"{number}"}
            assert records(root) == 1 if number else records(root) == 2


def test_a_copy_of_the_tree_is_a_root_of_its_own(root: Path, store: FileStore, tmp_path: Path) -> None:
    put(store, a="1")
    put(store, a="2", b="2")
    copy = tmp_path / "copy"
    run("cp", "-a", str(root), str(copy))
    (copy / "b").write_text("torn", encoding="utf-8")
    os.utime(copy / "b", ns=(0, (root / "b").stat().st_mtime_ns))
    with pytest.raises(RecoveryError):
        put(FileStore(copy, durability="journal"), c="3")
    (copy / "b").unlink()
    put(FileStore(copy, durability="journal"), c="3")
    assert [(copy / name).read_text(encoding="utf-8") for name in "abc"] == ["2", "2", "3"]
    put(store, a="4")
    assert (copy / "a").read_text(encoding="utf-8") == "2"


def test_a_log_is_shared_with_those_who_share_the_root(root: Path, store: FileStore) -> None:
    put(store, a="1")
    root.chmod(0o770)
    put(store, a="2")
    for name in ("log", "tail", "format"):
        assert (root / ".txfiles" / name).stat().st_mode & 0o777 == 0o660, name
