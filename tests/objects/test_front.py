"""The public classes on a root in memory: what a user does on a directory goes on, and what cannot be had is told."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore, MemoryStore, S3Store

from tests.objects.faulty import Planned, contents
from txfiles import AsyncFileTransaction, FileStore, FileTransaction, JsonDocuments, recover
from txfiles import status as status_of
from txfiles.errors import (
    CommitOutcomeUnknownError,
    ConflictError,
    DocumentError,
    InvalidPathError,
    RecoveryError,
    SnapshotExpiredError,
    TransactionClosedError,
    UnsupportedFilesystemError,
)
from txfiles.objects.far import far_of
from txfiles.recovery import ObjectStatus, verify

_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    name = f"memory://front{next(_numbers)}/some/prefix"
    with FileTransaction(name, create=True):
        pass
    return name


def files_of(root: Any) -> dict[str, bytes]:
    with FileStore(root).snapshot() as snap:
        return {name: snap.read(name) for name in snap.glob("**")}


def status(root: Any) -> ObjectStatus:
    found = status_of(root)
    assert isinstance(found, ObjectStatus)
    return found


def put(root: Any, **files: Any) -> None:
    with FileTransaction(root) as tx:
        for name, data in files.items():
            tx.write(name, data)


# -- the calls ------------------------------------------------------------------------------------------------------


def test_a_transaction_sees_what_it_has_staged_and_nobody_else_does(url: str) -> None:
    with FileTransaction(url) as tx:
        tx.write("a/b", "one")
        tx.write_json("c.json", {"x": 1})
        assert tx.read("a/b") == b"one"
        assert tx.read_json("c.json") == {"x": 1}
        assert tx.listdir() == ["a", "c.json"]
        assert tx.listdir("a") == ["b"]
        assert tx.exists("a")
        assert tx.glob("**/b") == ["a/b"]
        assert files_of(url) == {}
    assert files_of(url) == {"a/b": b"one", "c.json": b'{\n  "x": 1\n}\n'}
    assert tx.outcome == "after"


def test_an_exception_rolls_back(url: str) -> None:
    with pytest.raises(KeyError), FileTransaction(url) as tx:
        tx.write("a", "one")
        raise KeyError
    assert files_of(url) == {}
    assert tx.outcome == "before"


def test_savepoints(url: str) -> None:
    with FileTransaction(url) as tx:
        tx.write("a", "one")
        with pytest.raises(KeyError), tx.savepoint():
            tx.delete("a")
            tx.write("b", "two")
            raise KeyError
        assert tx.listdir() == ["a"]
    assert files_of(url) == {"a": b"one"}


def test_moves_and_copies_upload_no_content(url: str) -> None:
    put(url, big=b"x" * 100_000)
    packs = status(url).packs
    with FileTransaction(url) as tx:
        tx.copy("big", "d/copy")
        tx.move("big", "e/moved")
        tx.copy("d", "f")
        tx.move("d", "g")
        assert tx.read("f/copy") == b"x" * 100_000
    assert files_of(url) == dict.fromkeys(["e/moved", "f/copy", "g/copy"], b"x" * 100_000)
    assert status(url).packs == packs


def test_copies_of_what_is_staged_share_one_content(url: str) -> None:
    with FileTransaction(url) as tx:
        tx.write("big", b"x" * 100_000)
        tx.copy("big", "copy")
    assert files_of(url) == dict.fromkeys(["big", "copy"], b"x" * 100_000)
    root = far_of(url).open()
    (pack,) = root.source.requests.list("pack/")
    assert len(root.source.requests.get(pack.key).data) == 100_000


def test_a_copy_takes_the_content_from_where_it_lies_when_it_commits(url: str) -> None:
    """Between the read and the commit another transaction may have moved it from HEAD into a pack."""
    put(url, small=b"content")
    with FileTransaction(url) as tx:
        tx.copy("small", "copy")
        with FileTransaction(url) as other:
            for n in range(600):
                other.write(f"many/{n}", b"x")
    found = files_of(url)
    assert found["copy"] == b"content"


def test_files_that_are_opened(url: str) -> None:
    with FileTransaction(url) as tx:
        with tx.open("f", "wb") as file:
            file.write(b"a" * 50_000)
        with tx.open("f", "a") as file:
            file.write("end")
        with tx.open("new", "x") as file:
            file.write("text")
        with pytest.raises(FileExistsError):
            tx.open("f", "x")
    with FileTransaction(url) as tx:
        with tx.open("f", "rb") as file:
            file.seek(49_999)
            assert file.read() == b"aend"
        with tx.open("new") as file:
            assert file.read() == "text"
        with tx.open("new", "r+b") as file:
            file.seek(1)
            file.write(b"EX")
            assert file.read() == b"t"
        with tx.open("f", "w+b") as file:
            file.write(b"0123456789")
            file.seek(2)
            assert file.read(3) == b"234"
            file.truncate(4)
    assert files_of(url) == {"f": b"0123", "new": b"tEXt"}


def test_directories(url: str) -> None:
    with FileTransaction(url) as tx:
        tx.mkdir("made/deep")
        tx.write("implied/file", b"")
    with FileTransaction(url) as tx:
        assert tx.listdir("made") == ["deep"]
        assert tx.listdir("made/deep") == []
        tx.delete("implied/file")
    with FileTransaction(url) as tx:
        assert tx.listdir() == ["made"]
        tx.delete_tree("made")
        tx.write("made", b"now a file")
    with FileTransaction(url) as tx:
        tx.delete("made")
        tx.write("made/again", b"now a directory")
    assert files_of(url) == {"made/again": b"now a directory"}


def test_a_directory_goes_with_its_last_file_at_the_commit(url: str) -> None:
    put(url, **{"d/a": "1"})
    with FileTransaction(url) as tx:
        tx.delete("d/a")
        assert tx.exists("d")
        assert tx.listdir("d") == []
    with FileStore(url).snapshot() as snap:
        assert not snap.exists("d")
        assert snap.listdir() == []


def test_what_is_refused_is_refused_alike(url: str) -> None:
    with FileTransaction(url) as tx:
        tx.write("file", b"")
        tx.write("dir/x", b"")
    with FileTransaction(url) as tx:
        for call, error in (
            (lambda: tx.read("missing"), FileNotFoundError),
            (lambda: tx.read("dir"), IsADirectoryError),
            (lambda: tx.read("file/below"), NotADirectoryError),
            (lambda: tx.write("file/below", b""), NotADirectoryError),
            (lambda: tx.write("dir", b""), IsADirectoryError),
            (lambda: tx.mkdir("file"), FileExistsError),
            (lambda: tx.listdir("missing"), FileNotFoundError),
            (lambda: tx.listdir("file"), NotADirectoryError),
            (lambda: tx.delete("missing"), FileNotFoundError),
            (lambda: tx.delete("dir"), IsADirectoryError),
            (lambda: tx.write("../x", b""), InvalidPathError),
            (lambda: tx.write(".txfiles/x", b""), InvalidPathError),
            (lambda: tx.write_json("j", float("nan")), DocumentError),
            (lambda: tx.write("file", b"", if_version=None), ConflictError),
        ):
            with pytest.raises(error):
                call()
        assert not tx.exists("file/below")
        assert tx.glob("**") == ["dir/x", "file"]


def test_names_that_are_no_text(url: str) -> None:
    names = [b"caf\xe9", "grüße".encode(), b"100%", b"%41", b"new\nline", "lone\ud800".encode("utf-8", "surrogatepass")]
    with FileTransaction(url) as tx:
        for name in names:
            tx.write(name, name)
    with FileTransaction(url) as tx:
        assert sorted(os.fsencode(name) for name in tx.listdir()) == sorted(names)
        for name in names:
            assert tx.read(name) == name


def test_modes_are_kept(url: str) -> None:
    with FileTransaction(url) as tx:
        tx.write("a", b"1", mode=0o640)
        tx.write("b", b"1")
    with FileTransaction(url) as tx:
        assert (tx.stat("a").st_mode & 0o7777, tx.stat("a").st_size) == (0o640, 1)
        tx.write("a", b"22")
        tx.copy("a", "c")
        tx.chmod("b", 0o600)
        assert tx.stat("b").st_mode & 0o7777 == 0o600
    with FileTransaction(url) as tx:
        assert [tx.stat(name).st_mode & 0o7777 for name in "abc"] == [0o640, 0o600, 0o640]
        assert tx.is_dir(".")
        assert tx.is_file("a")
        tx.append("a", b"3")
        with pytest.raises(UnsupportedFilesystemError, match="symbolic links"):
            tx.symlink("a", "link")
    with FileStore(url).snapshot() as snap:
        assert snap.read("a") == b"223"
        assert snap.walk() == [(".", [], ["a", "b", "c"])]
        assert snap.stat("a").st_size == 3


def test_what_must_not_be_there(url: str) -> None:
    put(url, a="1", b="1")
    with FileTransaction(url) as tx:
        with pytest.raises(FileExistsError):
            tx.copy("a", "b", overwrite=False)
        with pytest.raises(FileExistsError):
            tx.mkdir("a")
        tx.mkdir("new", exist_ok=False)
        with pytest.raises(FileExistsError):
            tx.mkdir("new", exist_ok=False)


def test_callbacks_and_plan(url: str) -> None:
    told: list[str] = []
    with FileTransaction(url) as tx:
        tx.write("a", b"1")
        tx.on_commit(lambda: told.append("after"))
        tx.on_rollback(lambda: told.append("before"))
        assert str(tx.plan()) == "create a (1 bytes)"
    assert told == ["after"]


# -- who conflicts with whom ----------------------------------------------------------------------------------------


def beside(url: str, mine: Any, theirs: Any) -> None:
    """`theirs` commits between the beginning and the commit of `mine`."""
    with FileTransaction(url) as tx:
        mine(tx)
        with FileTransaction(url) as other:
            theirs(other)


AGREE = {
    "disjoint files": (lambda tx: tx.write("x", b""), lambda tx: tx.write("y", b"")),
    "blind writes of one file": (lambda tx: tx.write("x", b"1"), lambda tx: tx.write("x", b"2")),
    "new files of one new directory": (lambda tx: tx.write("n/x", b""), lambda tx: tx.write("n/y", b"")),
    "files of one directory": (lambda tx: tx.write("d/new", b""), lambda tx: tx.delete("d/a")),
    "one directory twice": (lambda tx: tx.mkdir("n"), lambda tx: tx.mkdir("n")),
    "a listing elsewhere": (lambda tx: (tx.listdir("e"), tx.write("x", b"")), lambda tx: tx.write("d/new", b"")),
    "a glob and a new content": (lambda tx: (tx.glob("**"), tx.write("f", b"1")), lambda tx: tx.write("f", b"2")),
}
CONFLICT = {
    "a read and a write": (lambda tx: (tx.read("f"), tx.write("x", b"")), lambda tx: tx.write("f", b"2")),
    "a missing file and a new one": (lambda tx: (tx.exists("n"), tx.write("x", b"")), lambda tx: tx.write("n", b"")),
    "a listing and a new name": (lambda tx: (tx.listdir("d"), tx.write("x", b"")), lambda tx: tx.write("d/n", b"")),
    "a glob and a new name": (lambda tx: (tx.glob("**/n"), tx.write("x", b"")), lambda tx: tx.write("d/n", b"")),
    "a file and one below it": (lambda tx: tx.write("n", b""), lambda tx: tx.write("n/below", b"")),
    "one below a file and the file": (lambda tx: tx.write("n/below", b""), lambda tx: tx.write("n", b"")),
    "a directory and a file": (lambda tx: tx.mkdir("n"), lambda tx: tx.write("n", b"")),
    "a move and a write of its source": (lambda tx: tx.move("f", "g"), lambda tx: tx.write("f", b"2")),
    "a copy and a write of its source": (lambda tx: tx.copy("f", "g"), lambda tx: tx.write("f", b"2")),
    "delete_tree and a new file in it": (lambda tx: tx.delete_tree("d"), lambda tx: tx.write("d/n", b"")),
    "a delete and a delete": (lambda tx: tx.delete("f"), lambda tx: tx.delete("f")),
    "an exclusive new file": (lambda tx: tx.open("n", "x").close(), lambda tx: tx.write("n", b"")),
    "an appended new file": (lambda tx: tx.open("n", "a").close(), lambda tx: tx.write("n", b"")),
    "an expected version": (lambda tx: tx.write("n", b"", if_version=None), lambda tx: tx.write("n", b"")),
}


@pytest.fixture
def filled(url: str) -> str:
    with FileTransaction(url) as tx:
        for name in ("f", "d/a", "d/b", "e/c"):
            tx.write(name, b"1")
    return url


@pytest.mark.parametrize("which", AGREE)
def test_disjoint_transactions_do_not_fail_each_other(filled: str, which: str) -> None:
    beside(filled, *AGREE[which])


@pytest.mark.parametrize("which", CONFLICT)
def test_what_was_read_has_to_be_so_still(filled: str, which: str) -> None:
    with pytest.raises(ConflictError) as caught:
        beside(filled, *CONFLICT[which])
    assert caught.value.outcome == "before"


def test_update_runs_again_after_a_conflict(url: str) -> None:
    put(url, count="0")
    runs = []

    def increment(tx: FileTransaction) -> None:
        runs.append(tx)
        number = int(tx.read("count"))
        if len(runs) == 1:
            put(url, count="10")
        tx.write("count", str(number + 1))

    FileStore(url).update(increment)
    assert files_of(url) == {"count": b"11"}
    assert len(runs) == 2


def test_updates_in_a_group(url: str) -> None:
    put(url, count="0")
    store = FileStore(url)

    def increment(tx: FileTransaction) -> None:
        tx.write("count", str(int(tx.read("count")) + 1))

    threads = [threading.Thread(target=store.update, args=(increment,), kwargs={"group": True}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert files_of(url) == {"count": b"8"}


def test_status_tells_what_it_cannot_read(url: str) -> None:
    root = far_of(url).open()
    root.source.requests.put(f"gc/0-{'0' * 32}", b"damaged")
    with pytest.raises(RecoveryError, match="gc/0-"):
        status(url)


def test_if_version_of_a_state_that_this_process_does_not_know_yet(url: str) -> None:
    """The conflict comes from an old state: the next try asks."""
    put(url, a="1")
    store = MemoryStore()
    mine, theirs = (FileStore.on(store, "p", create=True) for _ in range(2))
    with mine.transaction() as tx:
        tx.write("a", "1")
    with theirs.transaction() as tx:
        tx.write("a", "2")
        version = tx.version("a")
    with theirs.snapshot() as snap:
        version = snap.version("a")
    mine.update(lambda tx: tx.write("a", "3", if_version=version))
    assert files_of(theirs) == {"a": b"3"}


def test_who_only_reads_sees_others_the_next_time() -> None:
    store = MemoryStore()
    mine, theirs = (FileStore.on(store, "p", create=True) for _ in range(2))
    for store_of, text in ((mine, "1"), (theirs, "2")):
        with store_of.transaction() as tx:
            tx.write("a", text)
    seen = []
    for _ in range(2):
        with mine.transaction() as tx:
            seen.append(tx.read("a"))
    assert seen[-1] == b"2"


# -- snapshots, tags, gc --------------------------------------------------------------------------------------------


def test_a_snapshot_is_one_state(url: str) -> None:
    put(url, a="1", b="1")
    with FileStore(url).snapshot() as snap:
        assert snap.read("a") == b"1"
        put(url, a="2", b="2")
        assert snap.read("b") == b"1"
        assert snap.state_version != FileStore(url).state_version()


def test_optimistic_transactions(url: str) -> None:
    put(url, a="1", b="1")
    store = FileStore(url)
    with store.snapshot() as snap:
        snap.read("a")
    put(url, b="2")
    with store.transaction(base=snap) as tx:
        tx.write("c", "1")
    put(url, a="2")
    with pytest.raises(ConflictError), store.transaction(base=snap) as tx:
        tx.write("c", "2")
    assert files_of(url) == {"a": b"2", "b": b"2", "c": b"1"}


def test_tags_keep_a_state_through_gc_and_others_expire(url: str) -> None:
    store = FileStore(url)
    put(url, a=b"1" * 10_000)
    with store.snapshot() as kept:
        pass
    store.tag("v1", kept)
    put(url, a=b"2" * 10_000)
    lost = store.snapshot().__enter__()
    for n in range(5):
        put(url, a=b"3" * 10_000, b=str(n))
        store.gc(grace_commits=0, grace_seconds=0)
    far_of(url).open().source.cache._held.clear()
    with store.snapshot(tag="v1") as snap:
        assert snap.read("a") == b"1" * 10_000
    with pytest.raises(SnapshotExpiredError):
        lost.read("a")
    with pytest.raises(SnapshotExpiredError):
        store.tag("late", lost)
    lost.close()
    assert store.tags() == ["v1"]
    store.untag("v1")
    with pytest.raises(KeyError), store.snapshot(tag="v1"):
        pass
    with pytest.raises(KeyError):
        store.untag("v1")
    assert verify(url).sound


def test_pinned_files_never_expire(url: str) -> None:
    store = FileStore(url)
    put(url, a=b"1" * 10_000)
    with store.snapshot("a", "missing") as snap:
        for n in range(6):
            put(url, a=b"2" * 10_000, b=str(n))
            store.gc(grace_commits=0, grace_seconds=0)
        far_of(url).open().source.cache._held.clear()
        assert snap.read("a") == b"1" * 10_000
        assert not snap.exists("missing")


def test_status_recover_and_verify(url: str) -> None:
    put(url, a=b"1" * 10_000, b="2")
    found = status(url)
    assert (found.seq, found.files, found.packs, found.floor, found.condemned, found.clean) == (1, 2, 1, 0, 0, True)
    assert recover(url).clean
    with FileTransaction(url) as tx:
        tx.write("c", "3")
    assert recover(url, tx.transaction_id).outcome == "after"
    assert recover(FileStore(url), "0" * 32).outcome == "before"
    assert verify(url).sound
    assert verify(FileStore(url)).sound


def test_wait_for_change(url: str) -> None:
    store = FileStore(url)
    before = store.state_version()
    assert store.wait_for_change(before, timeout=0) == before
    put(url, a="1")
    assert store.wait_for_change(before, timeout=5) != before


# -- the other fronts -----------------------------------------------------------------------------------------------


def test_documents(url: str) -> None:
    docs = JsonDocuments(url, {"messages": [], "state": {}})
    assert docs.load() == {"messages": [], "state": {}}
    docs.save(messages=[1])
    with docs.edit() as d:
        d["state"]["turn"] = 1
    assert JsonDocuments(FileStore(url), {"messages": [], "state": {}}).load() == {
        "messages": [1],
        "state": {"turn": 1},
    }


def test_fsspec(url: str) -> None:
    import fsspec

    fs = fsspec.filesystem("txfiles", root=url, skip_instance_cache=True)
    fs.pipe({f"{url}/a/b": b"1", f"{url}/c": b"2"})
    assert fs.cat(f"{url}/c") == b"2"
    assert sorted(fs.find(url)) == [f"{url}/a/b", f"{url}/c"]
    assert fs.info(f"{url}/a")["type"] == "directory"
    with pytest.raises(KeyError), fs.transaction:
        fs.pipe(f"{url}/c", b"3")
        fs.rm(f"{url}/a", recursive=True)
        assert fs.cat(f"{url}/c") == b"3"
        raise KeyError
    with fs.open(f"{url}/d", "wb") as file:
        file.write(b"x" * 10_000)
    with fs.open(f"{url}/d") as file:
        assert file.read() == b"x" * 10_000
    assert set(files_of(url)) == {"a/b", "c", "d"}


def test_asyncio(url: str) -> None:
    async def main() -> None:
        async with AsyncFileTransaction(url) as tx:
            await tx.write("a", "1")
            async with AsyncFileTransaction(FileStore(url)) as other:  # nobody waits for anybody
                await other.write("b", "2")
            assert await tx.read("a") == b"1"
        assert await FileStore(url).async_update(lambda tx: tx.listdir()) == ["a", "b"]

    asyncio.run(main())


def test_an_async_commit_that_is_cancelled_is_finished_first(url: str) -> None:
    async def main() -> str:
        tx = await AsyncFileTransaction(url).begin()
        await tx.write("a", b"x" * 100_000)
        task = asyncio.create_task(tx.commit())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return tx.outcome

    outcome = asyncio.run(main())
    assert (files_of(url) != {}) == (outcome == "after")
    assert outcome in ("before", "after")


# -- what cannot be had ---------------------------------------------------------------------------------------------


def test_prepare_is_refused_and_the_transaction_stays_open(url: str) -> None:
    with FileTransaction(url) as tx:
        tx.write("a", "1")
        with pytest.raises(UnsupportedFilesystemError, match="recover") as caught:
            tx.prepare()
        assert caught.value.outcome == "before"
    assert files_of(url) == {"a": b"1"}


def test_a_root_that_is_not_there_is_made_on_request_only() -> None:
    with pytest.raises(FileNotFoundError, match="create=True"):
        FileTransaction("memory://nowhere").begin()
    with pytest.raises(FileNotFoundError):
        status("memory://nowhere")


def test_a_prefix_that_something_else_uses_is_refused() -> None:
    store = MemoryStore()
    store.put("p/readme.txt", b"mine")
    with pytest.raises(UnsupportedFilesystemError, match="prefix of its own"):
        FileStore.on(store, "p", create=True).state_version()


def test_directories_are_refused(tmp_path: Any) -> None:
    with pytest.raises(UnsupportedFilesystemError, match="give its path"):
        FileStore(f"file://{tmp_path}")
    with pytest.raises(UnsupportedFilesystemError, match="path"):
        FileStore.on(LocalStore(tmp_path), create=True).state_version()
    for call in (lambda s: s.tag("x"), lambda s: s.gc(), lambda s: s.snapshot(tag="x")):
        with pytest.raises(UnsupportedFilesystemError, match="directory"):
            call(FileStore(tmp_path))
    with pytest.raises(ValueError, match="object storage only"):
        recover(tmp_path, "0" * 32)


def test_secrets_are_in_no_message_and_no_pickle() -> None:
    secret = "s3cr3tvalue"
    store = S3Store("bucket", access_key_id="AK", secret_access_key=secret, endpoint="http://127.0.0.1:1", region="x",
                    client_options={"allow_http": True})  # fmt: skip
    root = FileStore.on(store, "prefix", timeout=0.1)
    assert secret not in repr(root) + root.root
    with pytest.raises(OSError, match="the store failed") as caught:
        root.state_version()
    assert secret not in repr(caught.value) + str(caught.value) + repr(caught.value.__cause__)
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(root)
    with pytest.raises(InvalidPathError, match="credentials"):
        FileStore(f"s3://AK:{secret}@bucket/prefix")


def test_a_store_of_a_url_pickles(url: str) -> None:
    again = pickle.loads(pickle.dumps(FileStore(url, timeout=3)))
    put(again, a="1")
    assert files_of(url) == {"a": b"1"}


def test_an_unknown_outcome_says_how_to_settle_it_also_pickled() -> None:
    error = CommitOutcomeUnknownError("x")
    error.transaction_id = "0" * 32
    assert pickle.loads(pickle.dumps(error)).transaction_id == "0" * 32


def test_an_unknown_outcome_through_the_front(url: str) -> None:
    root = far_of(url).open()
    inner = root.source.requests
    tx = FileTransaction(url, timeout=0.05)
    with pytest.raises(CommitOutcomeUnknownError) as caught, tx:
        tx.write("a", "1")
        faulty = Planned(inner, lambda number, name, key: "after" if name == "put" else "before")
        root.source.requests = faulty
    root.source.requests = inner
    assert tx.outcome == "unknown"
    assert caught.value.transaction_id == tx.transaction_id
    assert recover(url, tx.transaction_id).outcome == "after"
    assert files_of(url) == {"a": b"1"}


def test_a_read_that_the_store_fails_is_an_os_error_and_nothing_is_committed(url: str) -> None:
    put(url, a=b"x" * 100_000)
    root = far_of(url).open()
    inner, root.source.requests = root.source.requests, Planned(root.source.requests, lambda *_: "before")
    root.source.cache._held.clear()
    with pytest.raises(OSError, match="the store failed") as caught, FileTransaction(url) as tx:
        tx.write("b", "2")
        tx.read("a")
    root.source.requests = inner
    assert isinstance(caught.value.__cause__, OSError)
    assert set(files_of(url)) == {"a"}


def test_a_forked_child_is_refused(url: str) -> None:
    with FileTransaction(url) as tx:
        tx.write("a", "1")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for call in (lambda: tx.read("a"), FileTransaction(url).begin, FileStore(url).state_version):
                    try:
                        call()
                    except TransactionClosedError:
                        continue
                    os._exit(2)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert files_of(url) == {"a": b"1"}


def test_importing_txfiles_imports_nothing_of_it() -> None:
    program = (
        "import sys, txfiles, txfiles.store, txfiles.aio, txfiles.documents, txfiles.recovery\n"
        "txfiles.FileStore('/tmp')\n"
        "print([m for m in sys.modules if m.startswith(('obstore', 'txfiles.objects'))])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, encoding="utf-8"
        ).stdout
        == "[]\n"
    )


def test_a_deleted_head_is_told_through_the_front(url: str) -> None:
    put(url, a="1")
    far_of(url).open().source.requests.delete("HEAD")
    with pytest.raises(RecoveryError, match="HEAD is gone"), FileTransaction(url) as tx:
        tx.write("b", "2")


# -- against a dict -------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "a/x", "a/y", "b/x/z", "c", "d-", "d.", "d/e"])
SIZES = st.sampled_from([0, 1, 4096, 4097, 9000])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, SIZES),
        st.tuples(st.just("delete"), NAMES),
        st.tuples(st.just("move"), NAMES, NAMES),
        st.tuples(st.just("copy"), NAMES, NAMES),
        st.tuples(st.just("commit"), st.booleans()),
        st.tuples(st.just("gc")),
        st.tuples(st.just("compact")),
        st.tuples(st.just("flush")),
    ),
    max_size=25,
)


def _fits(model: dict[str, bytes], name: str) -> bool:
    return not any(name.startswith(f"{other}/") or other.startswith(f"{name}/") for other in model)


@settings(deadline=None, max_examples=30)
@given(STEPS)
def test_files_against_a_dict(steps: list[tuple[Any, ...]]) -> None:
    url = f"memory://model{next(_numbers)}"
    committed: dict[str, bytes] = {}
    model = dict(committed)
    tx = FileTransaction(url, create=True).begin()
    try:
        for kind, *rest in steps:
            if kind == "commit":
                tx.commit() if rest[0] else tx.rollback()
                committed = model if rest[0] else committed
                model = dict(committed)
                assert files_of(url) == committed
                tx = FileTransaction(url).begin()
            elif kind == "gc":
                FileStore(url).gc(grace_commits=0, grace_seconds=0)
            elif kind == "compact":
                FileStore(url).compact(dead=0.1)
            elif kind == "flush":
                with FileTransaction(url) as other:
                    for n in range(513):
                        other.write(f"zz/{n}", b"x")
                with FileTransaction(url) as other:
                    other.delete_tree("zz")
            elif kind == "write":
                name, data = rest[0], bytes([len(model) % 251]) * rest[1]
                if _fits(model, name) and not _was_directory(tx, name):
                    tx.write(name, data)
                    model[name] = data
            elif rest[0] in model and kind == "delete":
                tx.delete(rest[0])
                del model[rest[0]]
            elif rest[0] in model and _fits({k: v for k, v in model.items() if k != rest[0]}, rest[1]):
                source, target = rest
                if _was_directory(tx, target) or target.startswith(f"{source}/") or source == target:
                    continue
                getattr(tx, kind)(source, target)
                model[target] = model[source]
                if kind == "move":
                    del model[source]
            for name in model:
                assert tx.read(name) == model[name]
        tx.commit()
        assert files_of(url) == model
        assert contents(far_of(url).open()).keys() == {name.encode() for name in model}
    finally:
        if tx._state == "open":
            tx.rollback()


def _was_directory(tx: FileTransaction, name: str) -> bool:
    """Inside a transaction a directory whose files were deleted in it stays one."""
    try:
        tx.listdir(name)
    except OSError:
        return False
    return True


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    from txfiles.objects import far

    far._roots.clear()
    far._memory.clear()
