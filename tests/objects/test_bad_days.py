"""What goes wrong around a store, through the public classes: an error that says so, and nothing is lost.

More of such days: a server that keeps versions and no conditions is in `test_servers`, requests that fail one by one in
`test_scripted_server`, what somebody deletes or puts back in `test_faults`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from obstore.store import MemoryStore

from tests.objects.faulty import Wrapped, contents, fresh, made, memory, writing
from tests.support.scripted import Server, scripted, store_on
from txfiles import FileStore, FileTransaction
from txfiles.errors import (
    CommitError,
    CommitOutcomeUnknownError,
    JournalVersionError,
    RecoveryError,
    SnapshotExpiredError,
    UnsupportedFilesystemError,
)
from txfiles.objects.collect import collect
from txfiles.objects.requests import Got, Listed
from txfiles.recovery import verify

DAY = 86400.0


class Day:
    """A root with one file on a server, and what is wrong with that from now on."""

    def __init__(self, server: Server, today: list[str]) -> None:
        self.server = server
        self._today = today
        self.store = self.other()
        self.store.update(lambda tx: tx.write("a", "1"))

    def is_bad(self, fault: str) -> None:
        self._today.append(fault)

    def is_good(self) -> None:
        self._today.clear()

    def other(self) -> FileStore:
        """As another process sees it."""
        return FileStore.on(store_on(self.server, retries=None), "p", timeout=1.0, create=True)

    def files(self) -> dict[str, bytes]:
        with self.other().snapshot() as snap:
            return {name: snap.read(name) for name in snap.glob("**")}


@pytest.fixture
def day() -> Iterator[Day]:
    today: list[str] = []
    with scripted(lambda *_: today[0] if today else None) as server:
        yield Day(server, today)


def begun(store: FileStore) -> FileTransaction:
    tx = store.transaction().begin()
    tx.write("b", "2")
    return tx


def test_no_network(day: Day) -> None:
    tx = begun(day.store)
    day.is_bad("drop before")
    with pytest.raises((CommitError, CommitOutcomeUnknownError)) as caught:
        tx.commit()
    assert "the store failed" in str(caught.value) or "recover(" in str(caught.value)
    with pytest.raises(OSError, match="the store failed"):
        day.other().state_version()
    day.is_good()
    assert day.files() == {"a": b"1"}
    day.store.update(lambda tx: tx.write("b", "2"))
    assert day.files() == {"a": b"1", "b": b"2"}


def test_no_network_to_begin_with() -> None:
    with scripted() as server:
        store = store_on(server, retries=0)
    with pytest.raises(OSError, match="the store failed"):
        FileStore.on(store, "p", create=True).update(lambda tx: tx.write("a", "1"))


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed"])
def test_wrong_credentials_and_a_clock_that_is_wrong_by_more_than_the_store_allows(day: Day, code: str) -> None:
    tx = begun(day.store)
    day.is_bad(f"403 before {code}")
    with pytest.raises(CommitError, match=f"nothing was changed.*{code}") as caught:
        tx.commit()
    assert (caught.value.outcome, tx.outcome) == ("before", "before")
    assert isinstance(caught.value.__cause__, PermissionError)
    with pytest.raises(PermissionError, match=code) as denied:
        day.other().state_version()
    for told in (str(caught.value), repr(caught.value.__cause__), str(denied.value)):
        assert "testtest" not in told
    day.is_good()
    assert day.files() == {"a": b"1"}


@pytest.mark.parametrize("fault", ["429 before", "503 before SlowDown"])
def test_throttling(day: Day, fault: str) -> None:
    """For a while it is waited for; where it goes on, the commit ends in time."""
    day.is_bad(fault)
    again = threading.Timer(0.3, day.is_good)
    again.start()
    day.store.update(lambda tx: tx.write("b", "2"))
    again.join()
    assert day.files() == {"a": b"1", "b": b"2"}
    tx = day.store.transaction().begin()
    tx.write("c", "3" * 5000)
    day.is_bad(fault)
    began = time.monotonic()
    with pytest.raises((CommitError, CommitOutcomeUnknownError)):
        tx.commit()
    assert time.monotonic() - began < 30
    day.is_good()
    assert day.files() == {"a": b"1", "b": b"2"}


class Skewed(Wrapped):
    """The times that a store gives are wrong: by `skew(key)` seconds."""

    def __init__(self, inner: Any, skew: Callable[[str], float]) -> None:
        super().__init__(inner)
        self.skew = skew

    def get(self, key: str, unless: Any = None) -> Any:
        got: Got = self.inner.get(key, unless)
        return got._replace(modified=got.modified + self.skew(key))

    def list(self, prefix: str, at_most: int | None = None) -> Any:
        found: list[Listed] = self.inner.list(prefix, at_most)
        return [one._replace(modified=one.modified + self.skew(one.key)) for one in found]


@pytest.mark.parametrize("lists", [-2 * DAY, -DAY, DAY])
@pytest.mark.parametrize("here", [-DAY, DAY])
def test_clocks_that_are_wrong_by_a_day(monkeypatch: pytest.MonkeyPatch, lists: float, here: float) -> None:
    """They decide how long an old snapshot lives, and nothing else."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + here)
    requests = Skewed(made(memory()), lambda key: lists if key.startswith("gc/") else 0.0)
    root = fresh(requests)
    root.commit(writing({b"a": b"1" * 5000}))
    old = root.reading(root.newest())
    root.source.cache._held.clear()
    deleted = 0
    for n in range(6):
        root.commit(writing({b"a": b"2" * 5000, b"b": b"%d" % n * 5000}))
        deleted += collect(fresh(requests), 0, DAY).deleted
        assert contents(fresh(requests)) == {b"a": b"2" * 5000, b"b": b"%d" % n * 5000}
    assert (deleted > 0) == (lists < 0)
    entry = old.entry(b"a")
    assert entry is not None
    if deleted:
        with pytest.raises(SnapshotExpiredError, match="take a new snapshot"):
            old.content(b"a", entry)
    else:
        assert old.content(b"a", entry) == b"1" * 5000


def test_a_lifecycle_rule_that_deleted_a_pack() -> None:
    """What needs it fails and says why; everything else goes on; and with the pack back all is well."""
    inner = MemoryStore()
    store = FileStore.on(inner, "p", create=True)
    store.update(lambda tx: tx.write("old", "1" * 5000))
    (pack,) = [meta["path"] for chunk in inner.list("p/pack") for meta in chunk]
    data = bytes(inner.get(pack).bytes())
    store.update(lambda tx: tx.write("new", "2" * 5000))
    inner.delete(pack)
    again = FileStore.on(inner, "p")
    with again.snapshot() as snap:
        assert snap.read("new") == b"2" * 5000
        with pytest.raises(RecoveryError, match="lifecycle rule.*" + pack.rpartition("/")[2]):
            snap.read("old")
    with pytest.raises(RecoveryError, match="lifecycle"), again.transaction() as tx:
        tx.write("new", tx.read("old"))
    again.update(lambda tx: tx.write("third", "3"))
    assert not verify(again).sound
    inner.put(pack, data)
    assert verify(again).sound
    with again.snapshot() as snap:
        assert (snap.read("old"), snap.read("third")) == (b"1" * 5000, b"3")


def test_a_bucket_that_keeps_versions(day: Day) -> None:
    """All is as without: what is replaced or deleted stays as a version, and is listed and asked for no more."""
    day.server.keeps_versions = True
    for n in range(5):
        day.store.update(lambda tx, n=n: tx.write("a", b"%d" % n * 5000))  # type: ignore[misc]
        day.store.gc(grace_commits=0, grace_seconds=0)
    day.other().update(lambda tx: tx.write("b", "2"))
    assert day.files() == {"a": b"4" * 5000, "b": b"2"}
    assert verify(day.other()).sound
    assert sum(key == "p/HEAD" for key, _ in day.server.versions) > 10
    deleted = {key for key, _ in day.server.versions if key.startswith("p/pack")}
    assert deleted
    assert not deleted & set(day.server.objects)


def test_a_head_that_is_lost_comes_back_from_a_tag() -> None:
    """As docs/object-storage.md has it: one word of the object of the tag is another one."""
    inner = MemoryStore()
    store = FileStore.on(inner, "p", create=True)
    store.update(lambda tx: tx.write("a", "1" * 5000))
    store.tag("v1")
    for n in range(5):
        store.update(lambda tx, n=n: tx.write("a", b"%d" % n * 5000))  # type: ignore[misc]
        store.gc(grace_commits=0, grace_seconds=0)
    inner.delete("p/HEAD")
    with pytest.raises(RecoveryError, match="restore HEAD"):
        store.update(lambda tx: tx.write("b", "2"))
    with pytest.raises(RecoveryError, match="no HEAD"):
        FileStore.on(inner, "p", create=True).update(lambda tx: tx.write("b", "2"))
    (snap,) = [meta["path"] for chunk in inner.list("p/snap") for meta in chunk]
    inner.put("p/HEAD", bytes(inner.get(snap).bytes()).replace(b"txfiles snapshot ", b"txfiles head ", 1))
    with pytest.raises(RecoveryError, match="started anew"):
        store.state_version()
    again = FileStore.on(inner, "p")
    again.update(lambda tx: tx.write("b", "2"))
    for _ in range(5):
        again.gc(grace_commits=0, grace_seconds=0)
    with FileStore.on(inner, "p").snapshot() as found:
        assert (found.read("a"), found.read("b")) == (b"1" * 5000, b"2")
    assert verify(again).sound


def test_a_prefix_that_is_used_twice() -> None:
    """By another program: refused. By two of ours: it is one root. By one in another: refused where it can be seen."""
    inner = MemoryStore()
    inner.put("theirs/data.csv", b"1,2,3")
    with pytest.raises(UnsupportedFilesystemError, match=r"used by something else: 'data\.csv'"):
        FileStore.on(inner, "theirs", create=True).update(lambda tx: tx.write("a", "1"))
    assert bytes(inner.get("theirs/data.csv").bytes()) == b"1,2,3"
    one, other = (FileStore.on(inner, "ours", create=True) for _ in range(2))
    one.update(lambda tx: tx.write("a", "1"))
    other.update(lambda tx: tx.write("b", "2"))
    with one.snapshot() as snap:
        assert sorted(snap.listdir()) == ["a", "b"]
    FileStore.on(inner, "ground/inner", create=True).update(lambda tx: tx.write("a", "1"))
    with pytest.raises(UnsupportedFilesystemError, match="prefix of its own"):
        FileStore.on(inner, "ground", create=True).update(lambda tx: tx.write("a", "1"))


def test_a_head_of_a_newer_version() -> None:
    inner = MemoryStore()
    store = FileStore.on(inner, "p", create=True)
    store.update(lambda tx: tx.write("a", "1"))
    newer = bytes(inner.get("p/HEAD").bytes()).replace(b"txfiles head 1 ", b"txfiles head 2 ", 1)
    inner.put("p/HEAD", newer)
    for known in (FileStore.on(inner, "p"), FileStore.on(inner, "p", create=True)):
        with pytest.raises(JournalVersionError, match="written by a newer txfiles"):
            known.update(lambda tx: tx.write("b", "2"))
        with pytest.raises(JournalVersionError), known.snapshot():
            pass
    with pytest.raises(JournalVersionError) as caught:
        store.update(lambda tx: tx.write("b", "2"))
    assert caught.value.outcome == "unknown", "the newer one may have been told of it, and cannot be asked"
    assert bytes(inner.get("p/HEAD").bytes()) == newer, "nothing is touched"
