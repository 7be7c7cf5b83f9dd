"""`FileStore`: a root and its settings."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Self, TypedDict, TypeVar

from txfiles import checkpoint, recovery
from txfiles._calls.settings import HasRoot, check_links, check_settings, is_far, root_of
from txfiles._commit.home import is_missing, locate
from txfiles._commit.recover import RecoveryReport
from txfiles._disk import system
from txfiles._disk.interrupts import HeldBack
from txfiles._format import paths
from txfiles._groups.threads import gathering_of
from txfiles._reading.lookout import NEVER, Lookout, unreadable
from txfiles.errors import ConflictError, TransactionClosedError, UnsupportedFilesystemError
from txfiles.snapshot import Snapshot
from txfiles.transaction import FileTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator

    from obstore.store import ObjectStore

    from txfiles._asyncio.snapshot import Reads
    from txfiles._calls.settings import Links
    from txfiles._commit.recover import OnConflict
    from txfiles._disk.allowance import Accept
    from txfiles._format.journal import Durability
    from txfiles._format.paths import AnyPath
    from txfiles.aio import AsyncFileTransaction, AsyncSnapshot
    from txfiles.objects.collect import Collected
    from txfiles.objects.compact import Compacted
    from txfiles.objects.far import Far
    from txfiles.objects.reader import FarReader
    from txfiles.objects.root import Root
    from txfiles.objects.state import State

__all__ = ["FileStore"]

_BACK_OFF = 0.01  # seconds
_BACK_OFF_MAX = 1.0
_LOOK = 0.001
_LOOK_MAX = 0.05
_FAR_LOOK = 0.2  # of a root on object storage
_FAR_LOOK_MAX = 5.0

A = TypeVar("A")
T = TypeVar("T")


class _How(TypedDict):
    """What all transactions of a store have in common."""

    durability: Durability
    links: Links
    accept: Collection[Accept]


class FileStore:
    """A root directory and the settings of its transactions. Cheap to make, safe to share between threads.

    With `create`, a root that is missing reads as an empty one, and only a transaction makes it.
    """

    _accept: frozenset[Accept] = frozenset()

    def __init__(
        self,
        root: AnyPath | HasRoot,
        *,
        durability: Durability = "full",
        timeout: float | None = 10.0,
        create: bool = False,
        links: Links = "refuse",
        accept: Collection[Accept] = (),
    ) -> None:
        """The arguments are those of `FileTransaction`. Nothing is opened or made yet."""
        check_settings(durability, timeout, accept)
        check_links(links, root)
        self._links: Links = links
        self._far: Far | None = None
        if is_far(root):
            from txfiles.objects.far import far_of

            self._far = far_of(root)
            self._root = self._far.shown
        else:
            self._root = paths.decode(locate(system.current(), root_of(root)))
        self._durability: Durability = durability
        self._timeout = timeout
        self._create = create
        self._accept = frozenset(accept)

    @classmethod
    def on(
        cls,
        store: ObjectStore,
        prefix: str = "",
        *,
        durability: Durability = "full",
        timeout: float | None = 10.0,
        create: bool = False,
        accept: Collection[Accept] = (),
    ) -> Self:
        """A root on a store of obstore, for credentials and endpoints that the environment does not have.

        The root is below `prefix`; the rest is as for a URL. It cannot be pickled: the store may hold secrets.
        """
        from txfiles.objects.far import Far

        made = cls.__new__(cls)
        check_settings(durability, timeout, accept)
        made._far = Far(f"{type(store).__name__}/{prefix.strip('/')}", store, prefix)
        made._root, made._durability, made._timeout, made._create = made._far.shown, durability, timeout, create
        made._links = "refuse"
        made._accept = frozenset(accept)
        return made

    def __repr__(self) -> str:
        return f"<FileStore {self._root!r}>"

    @property
    def root(self) -> str:
        """The absolute path of the root, symbolic links resolved; or its URL, without credentials."""
        return self._root

    def transaction(self, *, base: Snapshot | None = None) -> FileTransaction:
        """A new transaction, not begun: use it as a context manager.

        With `base`, a snapshot of this root, it is optimistic: the commit raises `ConflictError`, and changes nothing,
        if anything that was read, listed or looked up through the snapshot is no longer so. The snapshot may have
        ended by then. What was only pinned does not count.

        >>> with store.snapshot("a.json") as snap:
        ...     value = snap.read_json("a.json")
        >>> value["total"] = sum(value["parts"])  # or whatever takes long
        >>> with store.transaction(base=snap) as tx:
        ...     tx.write_json("a.json", value)
        """
        create = self._create and (base is None or base._of_nothing)
        tx = FileTransaction(self._place, timeout=self._timeout, create=create, **self._how)
        if base is not None:
            tx._checks.append(self._require_mine(base)._require_unchanged)
        return tx

    @property
    def _place(self) -> str | FileStore:
        """What a transaction takes as its root."""
        return self._root if self._far is None else self

    def _require_mine(self, base: Reads) -> Reads:
        if base.root != self._root:
            raise ValueError(f"the snapshot is of {base.root!r}, not of {self._root!r}")
        return base

    def snapshot(self, *names: AnyPath, tag: str | None = None) -> Snapshot:
        """Reads of the last committed state, see `Snapshot`; a context manager. The files `names` are pinned.

        With `tag`, on object storage, of the state that has this tag instead; entering raises `KeyError` for none.

        >>> with store.snapshot("a.json", "b.json") as snap:
        ...     a, b = snap.read_json("a.json"), snap.read_json("b.json")
        >>> a["generation"] == b["generation"]
        True
        """
        fs, root, durable = system.current(), paths.encode(self._root), self._durability != "process"
        far = None if self._far is None else partial(self._far_reader, self._far, tag)
        if far is None and tag is not None:
            raise _no_tags(self._root)
        out = self._links == "follow"
        return Snapshot(fs, root, names, self._timeout, durable=durable, create=self._create, links_out=out, far=far)

    def _far_reader(self, far: Far, tag: str | None) -> FarReader:
        from txfiles.objects.engine import state_of_tag
        from txfiles.objects.reader import FarReader

        def state(root: Root) -> State:
            return root.newest() if tag is None else state_of_tag(root, tag)

        return FarReader(partial(far.open, create=self._create), state)

    def update(self, change: Callable[[FileTransaction], T], *, retries: int = 10, group: bool = False) -> T:
        """Run `change(tx)` in a transaction, commit, and return its value; after a `ConflictError` do it again.

        So `change` may run several times and must do nothing but through `tx`. It reads and writes under the lock: a
        conflict comes from an `if_version` in it, or from a program that changes files without txfiles.

        >>> def increment(tx):
        ...     number = int(tx.read("count")) + 1
        ...     tx.write("count", str(number))
        ...     return number
        >>> store.update(increment)
        1

        With `group`, those who wait for one another in this process share one transaction and its commit: at most 64,
        in the order in which they came, none waiting for more to come. Each sees what those before it have staged.
        What one raises undoes what it has staged, and reaches its caller alone; an error of the commit reaches all.
        `change` may run in another thread that waits with it, with the context variables of its caller; it cannot end
        the transaction itself. Nobody returns before the commit has.

        >>> store.update(increment, group=True)
        2

        Args:
            change: is given a transaction that has begun.
            retries: how many more times it is tried, after random pauses that grow from 10 ms to 1 s.
            group: whether the commit may be shared.

        Raises the last `ConflictError`, and at once what else `change`, `begin` and `commit` raise.
        """
        once = self._update_in_group if group else self._update_once
        for pause in _pauses(retries):
            try:
                return once(change)
            except ConflictError as error:
                if error.outcome != "before":  # of a callback
                    raise
                time.sleep(pause)
        return once(change)

    def _update_once(self, change: Callable[[FileTransaction], T]) -> T:
        with self.transaction() as tx:
            return called(change, tx)

    def _update_in_group(self, change: Callable[[FileTransaction], T]) -> T:
        make = partial(FileTransaction, self._place, create=self._create, **self._how)
        gathering = gathering_of(self._settings, lambda left: make(timeout=left), self._root, self._timeout)
        return gathering.run(partial(called, change))

    @property
    def _settings(self) -> tuple[object, ...]:
        place = self._root if self._far is None else self._far.key
        return place, self._durability, self._timeout, self._create, self._links, self._accept

    @property
    def _how(self) -> _How:
        return {"durability": self._durability, "links": self._links, "accept": self._accept}

    def state_version(self) -> str:
        """The version of the committed state: an opaque string that changes with every commit.

        It takes some tens of microseconds, no lock, no write permission. A commit counts when it has ended; one that
        a crash left unfinished, when it was recovered. `Snapshot.state_version` is the same for the state that is read.
        """
        if self._far is not None:
            return self._far.open(create=self._create).newest().version
        with HeldBack():
            if self._is_missing():
                return NEVER
            lookout = Lookout(system.current(), paths.encode(self._root))
            try:
                return lookout.version_now()
            except PermissionError as error:
                raise unreadable(lookout.root) from error
            finally:
                lookout.close()

    def wait_for_change(self, since: str, timeout: float | None = None) -> str:
        """Wait until the state is no longer `since`, at most `timeout` seconds (`None`: for ever); the version then.

        So it returns `since` if nothing was committed in time. It looks at growing intervals of up to 50 ms, without
        a lock; on object storage of 0.2 to 5 s.

        >>> with store.snapshot("a.json") as snap:
        ...     a = snap.read_json("a.json")
        >>> store.wait_for_change(snap.state_version, timeout=0.01) == snap.state_version
        True
        """
        check_settings(self._durability, timeout)
        until = math.inf if timeout is None else time.monotonic() + timeout
        intervals = self._intervals()
        while (version := self.state_version()) == since and (left := until - time.monotonic()) > 0:
            time.sleep(min(next(intervals), left))
        return version

    def _is_missing(self) -> bool:
        """The root is still to be made; reading makes nothing."""
        if self._far is not None or not self._create:
            return False
        with HeldBack():
            return is_missing(system.current(), paths.encode(self._root))

    def _intervals(self) -> Iterator[float]:
        return _intervals(_LOOK, _LOOK_MAX) if self._far is None else _intervals(_FAR_LOOK, _FAR_LOOK_MAX)

    # -- the log of durability="journal" -----------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Make durable in the tree itself what commits with `durability="journal"` have put there, and empty the log.

        Until then a power loss may leave old, mixed or empty files, which the next recovery puts right from the log. It
        happens by itself when the log is full, and about a second after the last commit of a process that goes on.
        Does nothing where there is no log. Raises `SettleError` where the disk fails: the log keeps what it has. Raises
        `LockTimeoutError`, `RecoveryError` and its kinds, and `OSError` before it has begun.

        >>> store.checkpoint()
        """
        if self._far is None and not self._is_missing():
            follow = self._links == "follow"
            checkpoint.checkpoint(paths.encode(self._root), self._timeout, self._accept, follow=follow)

    def close(self) -> None:
        """A last `checkpoint`, where the durability is `"journal"`. The store may be used again."""
        if self._durability == "journal":
            self.checkpoint()

    def remove_log(self) -> None:
        """A checkpoint, and then the root is one that every version of txfiles can use: without a log.

        The next commit with `durability="journal"` makes a new one. Does nothing where there is none. Raises what
        `checkpoint` does; the root is with its log then, or without, and whole.

        >>> store.remove_log()
        """
        if self._far is None and not self._is_missing():
            follow = self._links == "follow"
            checkpoint.remove_log(paths.encode(self._root), self._timeout, self._accept, follow=follow)

    async def async_checkpoint(self) -> None:
        """`checkpoint` for asyncio, in a thread. A cancelled one comes to its end there."""
        from txfiles.aio import in_thread

        await in_thread(self.checkpoint)

    async def async_close(self) -> None:
        """`close` for asyncio, as `async_checkpoint`."""
        from txfiles.aio import in_thread

        await in_thread(self.close)

    # -- object storage -----------------------------------------------------------------------------------------

    def tag(self, name: str, snapshot: Snapshot | None = None) -> None:
        """Keep a state under a name, on object storage: that of a snapshot, or else the newest. It does not expire.

        What had the name before is let go. Raises `SnapshotExpiredError` for a state that gc may already have begun to
        delete, `UnsupportedFilesystemError` for a directory, and what a commit raises.
        """
        from txfiles.objects.tags import tag

        root = self._open()
        state = root.newest() if snapshot is None else self._require_mine(snapshot)._far_state
        if state is None:
            raise TransactionClosedError("the snapshot was not entered")
        tag(root, name, state, self._timeout)

    def untag(self, name: str) -> None:
        """Let the state with this tag go. Raises `KeyError` for none, and what `tag` raises."""
        from txfiles.objects.tags import untag

        untag(self._open(), name, self._timeout)

    def tags(self) -> list[str]:
        """The tags of the root, sorted; `UnsupportedFilesystemError` for a directory."""
        return sorted(self._open().newest().tags)

    def gc(self, *, grace_commits: int = 1000, grace_seconds: float = 86400) -> Collected:
        """Delete objects that nothing refers to, on object storage; any number of processes at once, at any time.

        Safe beside every writer, however slow. What a run finds goes some runs later, once `grace_commits` commits and
        `grace_seconds` have passed: snapshots that are older may expire then, but for those with a tag.
        """
        from txfiles.objects.collect import collect

        if grace_commits < 0 or not 0 <= grace_seconds < math.inf:
            raise ValueError("the grace is a number of commits and of seconds, 0 or more")
        return collect(self._open(), grace_commits, grace_seconds)

    def compact(self, *, dead: float = 0.5) -> Compacted:
        """Write anew what is still needed of packs of which a part of `dead` or more is not, on object storage.

        `gc` deletes whole packs only: after this, and its grace, it deletes these. No file, version or snapshot
        changes; writers and readers go on. Packs that a tag retains stay as they are. Large roots are done in several
        commits; who is interrupted or fails has done some of them. Raises `UnsupportedFilesystemError` for a directory,
        `OSError`, and what a commit raises.
        """
        from txfiles.objects.compact import compact

        if not 0 < dead <= 1:
            raise ValueError("the dead part of a pack is more than 0 and at most 1")
        return compact(self._open(), dead, self._timeout)

    def _open(self) -> Root:
        if self._far is None:
            raise _no_tags(self._root)
        return self._far.open(create=self._create)

    # -- asyncio ------------------------------------------------------------------------------------------------

    def async_transaction(self, *, base: AsyncSnapshot | None = None) -> AsyncFileTransaction:
        """`transaction` for asyncio, see `AsyncFileTransaction`.

        >>> async def save():
        ...     async with store.async_transaction() as tx:
        ...         await tx.write("a.txt", "one")
        >>> asyncio.run(save())
        """
        from txfiles.aio import AsyncFileTransaction

        create = self._create and (base is None or base._snapshot._of_nothing)
        tx = AsyncFileTransaction(self._place, timeout=self._timeout, create=create, **self._how)
        if base is not None:
            tx._checks.append(self._require_mine(base._snapshot)._require_unchanged)
        return tx

    def async_snapshot(self, *names: AnyPath) -> AsyncSnapshot:
        """`snapshot` for asyncio, see `AsyncSnapshot`."""
        from txfiles.aio import AsyncSnapshot

        return AsyncSnapshot(self.snapshot(*names))

    async def async_update(
        self, change: Callable[[AsyncFileTransaction], Awaitable[T]], *, retries: int = 10, group: bool = False
    ) -> T:
        """`update` for asyncio, with a coroutine function.

        With `group`, the tasks of one event loop share a commit. Each runs `change` itself; who is cancelled meanwhile
        leaves alone, and what it has staged is undone, unless the commit has begun: that comes to its end first.

        >>> async def increment(tx):
        ...     await tx.write("count", str(int(await tx.read("count")) + 1))
        >>> asyncio.run(store.async_update(increment))
        """
        from txfiles.aio import AsyncFileTransaction, update, update_once

        if not group:
            return await update(lambda: update_once(self.async_transaction, change), _pauses(retries))

        from txfiles._groups.tasks import gathering_of

        make = partial(AsyncFileTransaction, self._place, create=self._create, **self._how)
        gathering = gathering_of(self._settings, lambda left: make(timeout=left), self._root, self._timeout)
        return await update(lambda: gathering.run(change), _pauses(retries))

    async def async_wait_for_change(self, since: str, timeout: float | None = None) -> str:
        """`wait_for_change` for asyncio. Tasks that wait hold no thread."""
        from txfiles.aio import wait_for_change

        check_settings(self._durability, timeout)
        return await wait_for_change(self.state_version, since, timeout, self._intervals())

    def recover(self, transaction_id: str | None = None, *, on_conflict: OnConflict = "raise") -> RecoveryReport:
        """`txfiles.recover` on this root, with this store's timeout; a root that `create` is to make is clean."""
        if self._is_missing():
            return RecoveryReport()
        return recovery.recover(
            self._place,
            transaction_id,
            timeout=self._timeout,
            on_conflict=on_conflict,
            links=self._links,
            accept=self._accept,
        )

    def status(self) -> recovery.StoreStatus:
        """`txfiles.status` of this root; one that `create` is to make is clean."""
        if self._is_missing():
            return recovery.StoreStatus(is_root=False)
        return recovery.status(self._place)


def called(change: Callable[[A], T], argument: A) -> T:
    """Its value; raises `TypeError` for a coroutine function."""
    value = change(argument)
    if isinstance(value, Coroutine):
        value.close()
        raise TypeError("a coroutine function cannot be run here, async_update does it")
    return value


def _pauses(retries: int) -> Iterator[float]:
    """Seconds before each of the retries."""
    if retries < 0:
        raise ValueError(f"retries is a number of times, 0 or more; not {retries!r}")
    return (random.uniform(0, min(_BACK_OFF * 2**attempt, _BACK_OFF_MAX)) for attempt in range(retries))


def _intervals(interval: float, longest: float) -> Iterator[float]:
    """Seconds between looks, without end."""
    while True:
        yield interval
        interval = min(interval * 1.5, longest)


def _no_tags(root: str) -> UnsupportedFilesystemError:
    message = f"{root!r} is a directory; tags and gc are of roots on object storage, a copy of a directory is a sync"
    return UnsupportedFilesystemError(message, path=root)
