"""What actors do in the explorations and storms, and what must hold afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.objects.faulty import contents, fresh, writing
from txfiles.errors import (
    CommitError,
    CommitOutcomeUnknownError,
    ConflictError,
    LockTimeoutError,
    SnapshotExpiredError,
    TxFilesError,
)
from txfiles.objects.change import Change, Put
from txfiles.objects.collect import collect, tagged
from txfiles.objects.compact import compact
from txfiles.objects.root import Root
from txfiles.objects.state import State, new_id
from txfiles.objects.tags import tag

BIG = 6000  # bytes: goes into a pack


class Counting:
    """Writers that each add one to a counter and leave a marker; every outcome that is told must be true."""

    def __init__(self, *, size: int = 0, timeout: float | None = None) -> None:
        self.outcomes: dict[bytes, str] = {}
        self.ids: dict[bytes, str] = {}
        self._size = size
        self._timeout = timeout

    def writer(self, name: bytes, rounds: int = 1, base_first: bool = False) -> Callable[[Root], None]:
        def act(root: Root) -> None:
            for number in range(rounds):
                self.one(root, name + b"%d" % number)

        return act

    def one(self, root: Root, name: bytes) -> None:
        marker = b"marker/" + name
        self.outcomes[marker] = "killed"
        again = False
        while True:
            try:
                if again:
                    root.newest()
                reading = root.reading(root.state())
                found = reading.find(b"counter")
                entry = found.entry if found else None
                value = int(reading.content(b"counter", entry)) if entry else 0
                change = writing(
                    {b"counter": b"%d" % (value + 1), marker: marker + b"." * self._size},
                    reads={b"counter": entry.version if entry else None},
                )
                self.ids[marker] = change.tid
                root.commit(change, self._timeout)
                self.outcomes[marker] = "after"
                return
            except SnapshotExpiredError:
                again = True
            except ConflictError as error:
                assert error.outcome == "before"
                again = True
            except (CommitError, LockTimeoutError) as error:
                assert error.outcome == "before"
                self.outcomes[marker] = "before"
                return
            except CommitOutcomeUnknownError:
                self.outcomes[marker] = "unknown"
                return
            except OSError:
                self.outcomes[marker] = "before"
                return

    def check(self, requests: Any) -> None:
        found = contents(fresh(requests))
        markers = {path for path in found if path.startswith(b"marker/")}
        assert int(found.get(b"counter", b"0")) == len(markers), "an update was lost"
        for marker, outcome in self.outcomes.items():
            if outcome == "after":
                assert marker in markers, f"{marker!r} was reported as committed and is not there"
            if outcome == "before":
                assert marker not in markers, f"{marker!r} was reported as not committed and is there"


def collector(runs: int) -> Callable[[Root], None]:
    def act(root: Root) -> None:
        for _ in range(runs):
            with suppress(OSError):  # a run that could not read ends
                collect(root, 0, 0)

    return act


def compactor(runs: int, dead: float = 0.3) -> Callable[[Root], None]:
    def act(root: Root) -> None:
        for _ in range(runs):
            with suppress(OSError, SnapshotExpiredError):  # it ends where it cannot read
                compact(root, dead, None)

    return act


class Settling(Counting):
    """A writer whose time is short; what it does not know, it asks as a new process."""

    def __init__(self, timeout: float = 0.004) -> None:
        super().__init__(timeout=timeout)

    def settler(self, name: bytes) -> Callable[[Root], None]:
        def act(root: Root) -> None:
            self.one(root, name)
            marker = b"marker/" + name
            if self.outcomes[marker] == "unknown":
                try:
                    committed = fresh(root.source.requests).is_committed(self.ids[marker])
                except (OSError, TxFilesError):
                    return
                self.outcomes[marker] = "after" if committed else "before"

        return act


class Snapshotting:
    """A reader of one state, as slow as it likes: its bytes, or `SnapshotExpiredError`."""

    def __init__(self, *, mixed: bool = False) -> None:
        self._values = 2 if mixed else 1

    def reader(self) -> Callable[[Root], None]:
        def act(root: Root) -> None:
            try:
                reading = root.reading(root.newest())
                entries = list(reading.scan(b"old/"))
                found = [reading.content(path, entry) for path, entry in entries]
            except (SnapshotExpiredError, OSError):
                return
            values = {data[:1] for data in found}
            assert (len(found), len(values)) == (2, self._values), f"a mix: {values}"

        return act


def old_files(generation: bytes) -> Any:
    return writing({b"old/%d" % n: generation * BIG for n in range(2)})


def replacer(generation: bytes) -> Callable[[Root], None]:
    def act(root: Root) -> None:
        root.commit(old_files(generation), None)

    return act


def with_old_files(runs: int) -> Callable[[Any], None]:
    """Some commits and runs of gc before it begins."""

    def prepare(requests: Any) -> None:
        root = fresh(requests)
        root.commit(old_files(b"1"))
        for _ in range(runs):
            collect(root, 0, 0)

    return prepare


def copier(source: bytes, target: bytes) -> Callable[[Root], None]:
    """Copies a file, and no bytes: the entry goes where that of the source lies when it commits."""

    def act(root: Root) -> None:
        while True:
            found = root.reading(root.newest()).find(source)
            assert found is not None
            assert found.entry is not None
            change = Change(new_id(), reads={source: found.entry.version})
            change.writes[target] = Put(f"{change.tid}.0", None, None, (source, found.entry.version))
            try:
                root.commit(change, None)
            except ConflictError:
                continue
            return

    return act


def half_dead(requests: Any) -> None:
    """A pack of which a part is garbage, and a leaf of the tree in one, too."""
    root = fresh(requests)
    root.commit(old_files(b"1"))
    root.commit(flushed(writing({b"old/1": b"2" * BIG})))
    for _ in range(2):
        collect(root, 0, 0)


def flushed(change: Change) -> Change:
    change.flush = True
    return change


class Files:
    """What files begin with: `before`, and what acts make of them. One that was killed may have happened or not."""

    def __init__(self, before: dict[bytes, bytes]) -> None:
        self._before = before
        self._after: dict[bytes, bytes] = {}
        self._finished: set[bytes] = set()

    def made(self, after: dict[bytes, bytes], act: Callable[[Root], None]) -> Callable[[Root], None]:
        def run(root: Root) -> None:
            act(root)
            self._finished.update(after)

        self._after.update(after)
        return run

    def check(self, requests: Any) -> None:
        everything_referenced_is_readable(requests)
        found = contents(fresh(requests))
        assert found.keys() <= {*self._before, *self._after}
        for path in (*self._before, *self._after):
            begins = found.get(path, b"")[:1]
            allowed = {self._after.get(path)} if path in self._finished else {self._before.get(path, b"")}
            assert begins in allowed | {self._after.get(path)}, f"{path!r} begins with {begins!r}"


def tagging(name: str, state_of: Callable[[Root], State]) -> Callable[[Root], None]:
    def act(root: Root) -> None:
        state = state_of(root)
        with suppress(SnapshotExpiredError, OSError):
            tag(root, name, state)

    return act


def everything_referenced_is_readable(requests: Any) -> None:
    root = fresh(requests)
    contents(root)
    for name in root.state().tags:
        reading = root.reading(tagged(root, root.state().tags[name].snap))
        files = [(path, entry) for path, entry in reading.scan(b"") if entry.is_file]
        reading.contents(files)
