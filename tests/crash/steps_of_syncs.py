"""Steps about what is durable (G2): failed syncs, no syncs, and what a new transaction stands on."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from tests.crash.steps import PRIVATE, WRITES, at_call, private, then
from tests.crash.steps_of_others import at_rest, pending
from tests.crash.test_simfs_engine import commit, files, write
from txfiles import FileTransaction, recover, status
from txfiles._commit.home import Home
from txfiles._commit.inventory import read_head, take
from txfiles.errors import CommitError, RecoveryError, TxFilesError
from txfiles.testing import Options, Scenario, SimFS, Tree

# -- failed syncs (A4) ----------------------------------------------------------------------------------------------


def unsyncable(act: Callable[[SimFS], object], first: int | str) -> Callable[[SimFS], None]:
    """From the `first` sync of a directory on, or from the first call of this name on, every such sync fails."""

    def step(fs: SimFS) -> None:
        seen: list[str] = []

        def plan(_: int, name: str) -> None:
            seen.append(name)
            failing = first in seen if isinstance(first, str) else seen.count("sync_dir") >= first
            if name == "sync_dir" and failing:
                raise OSError(errno.EIO, "injected")

        fs.plan = plan
        try:
            with suppress(TxFilesError, OSError):
                act(fs)
        finally:
            fs.plan = None

    return step


def try_to_recover(_: SimFS) -> None:
    with suppress(RecoveryError):
        recover("/sim")


def all_or_nothing(fs: SimFS, _: Sequence[Tree]) -> None:
    found = {fs.get(f"/sim/{name}").split()[0] for name in "ab"}
    assert len(found) == 1 or pending(fs), f"a mix: {found}"


def new_with_below(fs: SimFS, allowed: Sequence[Tree]) -> None:
    all_or_nothing(fs, allowed)
    assert pending(fs) or fs.exists("/sim/x/y") == (fs.get("/sim/a") == b"new a")


def failed_sync(
    name: str,
    before: Callable[[SimFS], object],
    act: Callable[[SimFS], object],
    first: int | str,
    check: Callable[[SimFS, Sequence[Tree]], None] = all_or_nothing,
) -> Scenario:
    return Scenario(name, then(files, before), [then(unsyncable(act, first), try_to_recover)], try_to_recover, check)


def undo_unsynced(fs: SimFS) -> None:
    """The third rename fails, and of the undo every sync but the first."""

    def fail() -> None:
        fs.plan = at_call("sync_dir", 1, lambda: setattr(fs, "plan", at_call("sync_dir", 1, still)))
        raise OSError(errno.EIO, "injected")

    def still() -> None:
        fs.plan = at_call("sync_dir", 1, still)
        raise OSError(errno.EIO, "injected")

    try:
        with suppress(TxFilesError), FileTransaction("/sim") as tx:
            WRITES(tx)
            fs.plan = at_call("rename", 3, fail)
    finally:
        fs.plan = None


def nothing(_: SimFS) -> None: ...


def recover_now(_: SimFS) -> None:
    recover("/sim")


def at_rest_and_whole(fs: SimFS, allowed: Sequence[Tree]) -> None:
    """After a recovery everything is there."""
    at_rest(fs, allowed)
    assert [fs.get(f"/sim/{name}") for name in "abe"] == [b"new a", b"new b", b"new e"]


def undone_or_not(fs: SimFS, allowed: Sequence[Tree]) -> None:
    at_rest(fs, allowed)
    assert {fs.get(f"/sim/{name}").split()[0] for name in "ab"} in ({b"old"}, {b"new"})


def _a_and(b: str) -> Callable[[FileTransaction], None]:
    def change(tx: FileTransaction) -> None:
        tx.write("a", "new a")
        tx.write("b", b)

    return change


def given_up(outcome: str, *, also_files: bool = False) -> Callable[[SimFS], None]:
    """A commit whose syncs of directories all fail, with `also_files` those of its journal, too.

    What lies in the private directory meanwhile is kept in another, by links.
    """

    def step(fs: SimFS) -> None:
        fs.mkdirs("/kept")

        def plan(_: int, name: str) -> None:
            if name == "sync_dir" and not fs.names("/kept"):
                for there in fs.names(PRIVATE):
                    if there not in ("format", "lock", "HEAD"):
                        fs.put_link(f"/kept/{there}", f"{PRIVATE}/{there}")
            if name == "sync_dir" or (also_files and name == "sync_file" and fs.names("/kept")):
                raise OSError(errno.EIO, "injected")

        with pytest.raises(TxFilesError) as told:
            try:
                with FileTransaction("/sim") as tx:
                    _a_and("new one")(tx)
                    fs.plan = plan
            finally:
                fs.plan = None
        assert told.value.outcome == outcome

    return step


def back_from_the_dead(fs: SimFS) -> None:
    """The intent that was given up is there again, with its old files and the last of its tokens."""
    kept = sorted(fs.names("/kept"))
    first = next(name for name in kept if name.rpartition(".")[2].isdigit())
    for name in kept:
        if name != first and not fs.exists(f"{PRIVATE}/{name}"):
            fs.put_link(f"{PRIVATE}/{name}", f"/kept/{name}")
    fs.sync_everything()


same_a_again = _a_and("new two")


def restored(ending: str) -> Callable[[SimFS], None]:
    """A file of the private directory is put back, as from a backup, and has its old inode number again."""

    def step(fs: SimFS) -> None:
        name = private(fs, ending)
        content, before = fs.get(name), _inode(fs, name)
        while True:  # take the lower numbers that are free
            fs.put(f"{PRIVATE}/.lower", "")
            if _inode(fs, f"{PRIVATE}/.lower") > before:
                break
            fs.put_link(f"/lower-{_inode(fs, f'{PRIVATE}/.lower')}", f"{PRIVATE}/.lower")
            fs.remove(f"{PRIVATE}/.lower")
        fs.remove(name)
        fs.put(name, content, mode=0o600)
        assert _inode(fs, name) == before
        believed(head=ending != "HEAD", journals=[False] * (ending != "HEAD"))(fs)

    return step


def believed(*, head: bool, journals: Sequence[bool]) -> Callable[[SimFS], None]:
    """Whether HEAD vouches for anything, and whether each journal counts as that of this tree."""

    def step(fs: SimFS) -> None:
        with Home.find(fs, b"/sim") as home:  # type: ignore[union-attr]
            last = read_head(home)
            assert last is not None
            assert last.vouches == head
            assert [pending.same_tree for pending in take(home).pending] == journals

    return step


def without_births(fs: SimFS) -> None:
    """As a file system that does not tell when a file was made."""
    fs.born = lambda at, name=b"": 0  # type: ignore[method-assign]


def with_births(fs: SimFS) -> None:
    del fs.born


def journal_elsewhere(fs: SimFS) -> None:
    """The journal is copied within its directory, under its name."""
    name = private(fs, ".committed")
    fs.put_link("/before", name)
    content = fs.get(name)
    fs.remove(name)
    fs.put(name, content, mode=0o600)


def _inode(fs: SimFS, path: str) -> int:
    at = fs.open_dir(None, PRIVATE.encode())
    try:
        return fs.stat(at, path.rpartition("/")[2].encode()).st_ino
    finally:
        fs.close(at)


def numbers_are_new(fs: SimFS) -> None:
    """What comes after one that was given up has another number, also from recovery on."""
    head = status("/sim").head
    assert head is not None
    commit(WRITES)(fs)
    following = status("/sim").head
    assert following is not None
    assert following.sequence == head.sequence + 2


# -- process durability and power loss ------------------------------------------------------------------------------


def quietly(fs: SimFS, _: Sequence[Tree]) -> None:
    """Nothing is promised but that recovery finds its way."""
    assert not pending(fs)


def after_process(fs: SimFS) -> None:
    for name in "ab":
        fs.put(f"/sim/{name}", f"old {name}")
    with FileTransaction("/sim", durability="process") as tx:
        tx.write("settled", "once")


def there_and_whole(fs: SimFS, allowed: Sequence[Tree]) -> None:
    if len(allowed) == 1:
        assert fs.get("/sim/a") == b"new a"
    assert not pending(fs)


def undone_process(fs: SimFS) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "injected")

    with suppress(CommitError), FileTransaction("/sim", durability="process") as tx:
        WRITES(tx)
        fs.plan = at_call("rename", 4, fail)
    fs.plan = None


# -- what HEAD vouches for ------------------------------------------------------------------------------------------


def in_new_root(_: SimFS) -> None:
    with FileTransaction("/sim/new/root", create=True) as tx:
        tx.write("a", "new")


def recover_new_root(fs: SimFS) -> None:
    if fs.exists("/sim/new/root"):
        recover("/sim/new/root")


def whole_new_root(fs: SimFS, allowed: Sequence[Tree]) -> None:
    there = fs.exists("/sim/new/root/a")
    assert there or len(allowed) > 1
    assert not there or fs.get("/sim/new/root/a") == b"new"


def half_made_root(fs: SimFS) -> None:
    """Somebody made the directories above, and was killed before any sync."""
    fs.mkdirs("/sim/new", synced=False)


def copied_root(fs: SimFS) -> None:
    """A root is copied with its private directory, and nothing of the copy synced."""
    files(fs)
    for _ in range(2):
        commit(write("a"))(fs)
    fs.sync_everything()
    for directory in ("/sim/new", "/sim/new/root", "/sim/new/root/.txfiles"):
        fs.mkdirs(directory, synced=False)
    for name in fs.names(PRIVATE):
        fs.put(f"/sim/new/root/.txfiles/{name}", fs.get(f"{PRIVATE}/{name}"), mode=0o600, synced=False)
    fs.put("/sim/new/root/a", fs.get("/sim/a"), synced=False)


def whole_copied_root(fs: SimFS, allowed: Sequence[Tree]) -> None:
    assert len(allowed) > 1 or fs.get("/sim/new/root/a") == b"new"


def recover_copied_root(fs: SimFS) -> None:
    with suppress(FileNotFoundError, RecoveryError):  # the copy itself may have been lost
        recover("/sim/new/root")


def overwritten_since_head(fs: SimFS) -> None:
    """Another program overwrote what the last transaction wrote, and did not sync."""
    files(fs)
    commit(write("a"))(fs)
    fs.sync_everything()
    fs.put("/sim/a", "theirs", synced=False)


def directory_again(fs: SimFS) -> None:
    """Somebody removed a directory that the last transaction used, and made it anew, of its number, unsynced."""
    files(fs)
    commit(write("x/y"))(fs)
    fs.sync_everything()
    fs.remove("/sim/x/y")
    fs.remove("/sim/x")
    fs.mkdirs("/sim/x", synced=False)


def over_process(fs: SimFS) -> None:
    files(fs)
    for _ in range(2):
        commit(write("x/w/y", "a"), durability="process")(fs)


def all_once_returned(fs: SimFS, allowed: Sequence[Tree]) -> None:
    if len(allowed) == 1:
        assert [fs.get(f"/sim/{name}") for name in ("x/w/z", "a", "b")] == [b"new x/w/z", b"new a", b"new b"]
    assert not pending(fs)


def z_is_there(fs: SimFS, allowed: Sequence[Tree]) -> None:
    if len(allowed) == 1:
        assert fs.get("/sim/x/z") == b"new x/z"
    at_rest(fs, allowed)


def prepared_twice(fs: SimFS) -> None:
    """Both names of the rename to T.prepared: prepare had not returned."""
    name = private(fs, ".intent")
    fs.put_link(name.removesuffix("intent") + "prepared", name)


def waits(fs: SimFS) -> None:
    """What a prepared transaction needs stays."""
    before = fs.tree(skip_private=False)
    assert recover("/sim").waiting
    assert fs.tree(skip_private=False) == before


def nothing_waits(_: SimFS) -> None:
    assert not recover("/sim").waiting


def stale_journal(fs: SimFS) -> None:
    """The journal of a transaction that is over comes back, from a copy; other transactions followed."""
    name = private(fs, ".committed")
    content = fs.get(name)
    recover("/sim")
    commit(write("a"))(fs)
    fs.remove("/sim/e")
    fs.put(name, content)


def link_moves(tx: FileTransaction) -> None:
    tx.write("a", "new a")
    tx.move("link", "other")


def second_link(fs: SimFS) -> None:
    """Another inode with the same text."""
    fs.put_symlink("/sim/b-link", "dir/one")


def link_over_link(tx: FileTransaction) -> None:
    tx.move("link", "b-link")
    tx.write("e", "new e")


def a_file_for_a_token(fs: SimFS) -> None:
    (name,) = [n for n in fs.names(PRIVATE) if fs.tree(skip_private=False)[f".txfiles/{n}"].kind == "link"]
    fs.remove(f"{PRIVATE}/{name}")
    fs.put(f"{PRIVATE}/{name}", "dir/one")


def refuses_to_roll_back(fs: SimFS) -> None:
    before = fs.tree(skip_private=False)
    with suppress(RecoveryError):
        recover("/sim", on_conflict="roll-back")
    assert fs.tree(skip_private=False) == before


TICK = Options(granularity_ns=10**9)
