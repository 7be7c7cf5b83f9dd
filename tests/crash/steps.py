"""What scenarios are made of: commits that fail and die, what somebody does to a tree, and what is looked for."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.crash.test_simfs_engine import commit, files, write
from txfiles import FileTransaction, commit_prepared, recover, status
from txfiles.errors import CommitError, RecoveryConflictError, TxFilesError
from txfiles.testing import Crash, Scenario, SimFS, Tree
from txfiles.testing._simfs import KILL

Change = Callable[[FileTransaction], Any]
PRIVATE = "/sim/.txfiles"
WRITES = write("a", "b", "e")
NEW_AND_OLD = write("A", "b")


def at_call(name: str, number: int, act: Callable[[], None]) -> Callable[[int, str], None]:
    """A plan: before the `number`-th call of this name, `act`."""
    left = [number]

    def plan(_: int, now: str) -> None:
        if now == name:
            left[0] -= 1
            if not left[0]:
                act()

    return plan


def failing(
    change: Change, name: str, number: int, code: int = errno.EIO, *, flushed: bool = True
) -> Callable[[SimFS], None]:
    """A commit in which one call fails; the commit is undone. What was done before it has come to the disk by then."""

    def step(fs: SimFS) -> None:
        def fail() -> None:
            if flushed:
                fs.sync_everything()
            raise OSError(code, "injected")

        with suppress(TxFilesError):
            try:
                with FileTransaction("/sim") as tx:
                    change(tx)
                    fs.plan = at_call(name, number, fail)
            finally:
                fs.plan = None

    return step


def dying(change: Change, name: str, number: int, **settings: Any) -> Callable[[SimFS], None]:
    """A commit that is killed before this call. What was done before has come to the disk."""

    def step(fs: SimFS) -> None:
        def die() -> None:
            raise Crash

        with suppress(Crash), FileTransaction("/sim", **settings) as tx:
            change(tx)
            fs.plan = at_call(name, number, die)
        _killed(fs)
        fs.sync_everything()

    return step


def recovery_dying(name: str, number: int) -> Callable[[SimFS], None]:
    """A recovery that is killed before this call. What was done before has not come to the disk by itself."""

    def step(fs: SimFS) -> None:
        def die() -> None:
            raise Crash

        fs.plan = at_call(name, number, die)
        with suppress(Crash):
            recover("/sim")
        _killed(fs)

    return step


def _killed(fs: SimFS) -> None:
    survivor = fs.survive(KILL)
    survivor.watch = fs.watch
    vars(fs).update(vars(survivor))


def dying_in_undo(fs: SimFS) -> None:
    """A rename fails and the process is killed before the undo is durable."""

    def fail() -> None:
        fs.sync_everything()
        fs.plan = at_call("sync_dir", 1, die)
        raise OSError(errno.EIO, "injected")

    def die() -> None:
        raise Crash

    with suppress(Crash), FileTransaction("/sim") as tx:
        tx.write("a", "new a")
        tx.write("b", "new b")
        fs.plan = at_call("rename", 3, fail)
    _killed(fs)


def then(*steps: Callable[[SimFS], object]) -> Callable[[SimFS], None]:
    def step(fs: SimFS) -> None:
        for one in steps:
            one(fs)

    return step


def rename_private(fs: SimFS, before: str, after: str) -> None:
    """Let the journal have another state, as a power loss does that takes a rename back."""
    (name,) = [name for name in fs.names(PRIVATE) if name.endswith(before)]
    at = fs.open_dir(None, PRIVATE.encode())
    fs.rename(at, name.encode(), at, (name.removesuffix(before) + after).encode())
    fs.close(at)
    fs.sync_everything()


def new_tree(tx: FileTransaction) -> None:
    tx.write("x/y", "new")
    tx.write("z", "new")


def over_and_new_tree(tx: FileTransaction) -> None:
    tx.write("a", "new")
    tx.write("x/y", "new")
    tx.write("x/z", "new")


def move_directory(tx: FileTransaction) -> None:
    tx.move("dir", "moved")
    tx.write("a", "new")


def two_new(tx: FileTransaction) -> None:
    tx.write("e", "new")
    tx.write("x/y", "new")


def old_tree(tx: FileTransaction) -> None:
    tx.delete_tree("gone")
    tx.write("a", "new")


def fresh_root(fs: SimFS) -> None:
    fs.mkdirs("/sim/fresh", synced=False)


def in_fresh_root(fs: SimFS) -> None:
    with FileTransaction("/sim/fresh") as tx:
        tx.write("a", "new")


def recover_fresh_root(fs: SimFS) -> None:
    if fs.exists("/sim/fresh"):
        recover("/sim/fresh")


def there_once_returned(fs: SimFS, allowed: Sequence[Tree]) -> None:
    if len(allowed) == 1:
        assert fs.exists("/sim/fresh/a")
        assert fs.get("/sim/fresh/a") == b"new"


def theirs(fs: SimFS) -> None:
    fs.put("/sim/e", "new e")  # the same bytes as ours
    fs.mkdirs("/sim/x")


def empty_directory(fs: SimFS) -> None:
    files(fs)
    fs.mkdirs("/sim/empty", mode=0o750)


def remove_empty_directory(tx: FileTransaction) -> None:
    tx.delete_tree("empty")
    tx.write("a", "new a")


# -- other programs -------------------------------------------------------------------------------------------------


def settle_conflicts(decision: Any) -> Callable[[SimFS], None]:
    """Recovery that asks, and is told."""

    def act(_: SimFS) -> None:
        try:
            recover("/sim")
        except RecoveryConflictError:
            recover("/sim", on_conflict=decision)

    return act


keep_theirs = settle_conflicts("keep-theirs")


def refused(kind: type[Exception]) -> Callable[[SimFS], None]:
    """A recovery that must refuse, with nothing changed."""

    def step(fs: SimFS) -> None:
        before = fs.tree(skip_private=False)
        with pytest.raises(kind) as refusal:
            recover("/sim")
        assert refusal.type is kind
        assert fs.tree(skip_private=False) == before

    return step


def shows(**contents: str | None) -> Callable[[SimFS], None]:
    def step(fs: SimFS) -> None:
        for name, content in contents.items():
            found = fs.get(f"/sim/{name}").decode() if fs.exists(f"/sim/{name}") else None
            assert found == content, f"{name} is {found!r} and not {content!r}"

    return step


def anything(_: SimFS, __: Sequence[Tree]) -> None:
    """The steps themselves check."""


def case(name: str, *steps: Callable[[SimFS], object], **settings: Any) -> Scenario:
    """One fixed course of events; no crash but those in the steps."""
    return Scenario(name, then(files, *steps), [], check=anything, recover=lambda _: None, power_loss=False, **settings)


def private(fs: SimFS, ending: str) -> str:
    """The path of a file of the private directory."""
    (name,) = [name for name in fs.names(PRIVATE) if name.endswith(ending)]
    return f"{PRIVATE}/{name}"


def overwrite(path: str, content: str = "other") -> Callable[[SimFS], None]:
    return lambda fs: fs.put(path, content)


def replaced(path: str, content: str = "other") -> Callable[[SimFS], None]:
    def step(fs: SimFS) -> None:
        fs.remove(path)
        fs.put(path, content)

    return step


def meddling(
    name: str, change: Change, act: Callable[[SimFS], None], number: int = 2, stays: str = "other"
) -> Scenario:
    """Another program acts between the look of a commit and its deed; the commit must say so."""

    def step(fs: SimFS) -> None:
        try:
            with FileTransaction("/sim") as tx:
                change(tx)
                fs.plan = at_call("rename", number, lambda: act(fs))
        except TxFilesError:
            pass
        else:
            raise AssertionError("the commit did not raise")
        finally:
            fs.plan = None

    return case(name, step, shows(a="old a", b=stays))


def set_mtime(fs: SimFS, path: str, mtime: int) -> None:
    fs.disk.touch(fs._find(path, follow=False).serial, 4).mtime = mtime


def copied(fs: SimFS) -> None:
    """The tree is copied as by `cp -a` without links: the same bytes and times, other inodes."""
    fs.mkdirs("/copy")
    for path, entry in sorted(fs.tree(skip_private=False).items()):
        if entry.kind == "dir":
            fs.mkdirs(f"/copy/{path}", mode=entry.mode)
        elif entry.kind == "link":
            fs.put_symlink(f"/copy/{path}", entry.content)
        else:
            fs.put(
                f"/copy/{path}", entry.content, mode=entry.mode, uid=entry.uid, gid=entry.gid, xattrs=dict(entry.xattrs)
            )
            set_mtime(fs, f"/copy/{path}", fs.disk.nodes[fs._find(f"/sim/{path}").serial].mtime)


def recover_copy(fs: SimFS) -> None:
    recover("/copy")


def copy_is(**contents: str) -> Callable[[SimFS], None]:
    def step(fs: SimFS) -> None:
        for name, content in contents.items():
            found = fs.get(f"/copy/{name}").decode()
            assert found == content, f"{name} is {found!r}"

    return step


def like_the_token(fs: SimFS) -> None:
    """Another program's `b` in the copy, with the size and time of what was to come."""
    fs.put("/copy/b", "other")
    set_mtime(fs, "/copy/b", fs.disk.nodes[fs._find(private(fs, ".1")).serial].mtime)


def gone(fs: SimFS, *paths: str) -> None:
    assert not any(map(fs.exists, paths))


def conflict_in_copy(_: SimFS) -> None:
    try:
        recover("/copy")
    except RecoveryConflictError:
        return
    raise AssertionError("no conflict")


def to_intent(fs: SimFS) -> None:
    rename_private(fs, ".committed", ".intent")


def to_aborting(fs: SimFS) -> None:
    rename_private(fs, ".committed", ".aborting")


def meddled_token(fs: SimFS) -> None:
    try:
        with FileTransaction("/sim") as tx:
            tx.write("a", "new a")
            fs.put(private(fs, ".0"), "other")
    except TxFilesError:
        return
    raise AssertionError("the commit did not raise")


def delete_and_write(tx: FileTransaction) -> None:
    tx.delete("b")
    tx.write("a", "new a")


def delete_two(tx: FileTransaction) -> None:
    tx.delete("a")
    tx.delete("b")


def delete_link(tx: FileTransaction) -> None:
    tx.delete("link")
    tx.write("a", "new a")


def other_link(fs: SimFS) -> None:
    fs.remove("/sim/link")
    fs.put_symlink("/sim/link", "dir/two")


def link_stays(fs: SimFS) -> None:
    assert fs.tree()["link"].content == b"dir/two"


def into_parent(tx: FileTransaction) -> None:
    tx.write("a", "new a")
    tx.write("gone/g", "new")


def parent_goes(fs: SimFS) -> None:
    fs.remove("/sim/gone/f")
    fs.remove("/sim/gone")


def parent_comes_back(fs: SimFS) -> None:
    """As a recovery does that is killed before its sync."""
    fs.mkdirs("/sim/gone", synced=False)


def damage(ending: str, content: str = "new b", **what: Any) -> Callable[[SimFS], None]:
    return lambda fs: fs.put(private(fs, ending), content, **what)


def a_link_for_a_token(fs: SimFS) -> None:
    name = private(fs, ".1")
    fs.remove(name)
    fs.put_symlink(name, "dir/one")


def a_directory_among_tokens(fs: SimFS) -> None:
    name = private(fs, ".committed").replace(".committed", ".9")
    fs.mkdirs(name)


def took_a_directory(fs: SimFS) -> None:
    """Somebody put it in the place of the file that the first rename was to take."""
    fs.remove("/sim/a")
    fs.mkdirs(private(fs, ".committed").replace(".committed", ".0"))


def directory_is_back(fs: SimFS, _: Sequence[Tree]) -> None:
    assert fs.names("/sim/a") == set()


def directory_is_kept(fs: SimFS) -> None:
    (name,) = [name for name in fs.names(PRIVATE) if name.endswith(".9")]
    assert recover("/sim").unknown == [name]


def no_token(fs: SimFS) -> None:
    fs.remove(private(fs, ".1"))


def lone_old(fs: SimFS) -> None:
    fs.put(f"{PRIVATE}/{'0' * 32}.0.old", "the only one")


def old_is_kept(fs: SimFS) -> None:
    assert recover("/sim").unknown == [f"{'0' * 32}.0.old"]
    assert fs.get(f"{PRIVATE}/{'0' * 32}.0.old") == b"the only one"


# -- two-phase ------------------------------------------------------------------------------------------------------


def prepared(change: Change) -> Callable[[SimFS], None]:
    def step(fs: SimFS) -> None:
        with FileTransaction("/sim") as tx:
            change(tx)
            tx.prepare()
        fs.sync_everything()

    return step


def decide(_: SimFS) -> None:
    commit_prepared("/sim", status("/sim").pending[0].transaction_id)


def prepare_fails(fs: SimFS) -> None:
    """The sync that makes T.prepared durable fails."""

    def fail() -> None:
        raise OSError(errno.EIO, "injected")

    with suppress(CommitError), FileTransaction("/sim") as tx:
        WRITES(tx)
        fs.plan = at_call("sync_dir", 2, fail)
        tx.prepare()
    fs.plan = None


def taken_back(fs: SimFS, allowed: Sequence[Tree]) -> None:
    assert fs.tree() in allowed
    if len(allowed) == 1:
        assert not any(name.endswith(".prepared") for name in fs.names(PRIVATE))


# -- more files than descriptors ------------------------------------------------------------------------------------


def write_only(fs: SimFS) -> None:
    files(fs)
    fs.put("/sim/special", "s", mode=0o200)


def without_descriptors(change: Change) -> Callable[[SimFS], None]:
    def step(fs: SimFS) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("txfiles._tree.tokens._KEEP_OPEN", (1, 1))
            commit(change)(fs)

    return step


# -- bytes that are the same ----------------------------------------------------------------------------------------


def twins(fs: SimFS) -> None:
    files(fs)
    fs.put("/sim/twin", "old a", uid=7)


def other_owner(tx: FileTransaction) -> None:
    tx.move("twin", "a")
    tx.write("b", "new b")


def closed_directories(fs: SimFS) -> None:
    """A commit that makes some, which are closed to the group when it returns."""
    with FileTransaction("/sim") as tx:
        tx.write("x/y/z", "new")
        tx.delete("a")
        tx.write("a/below", "where a file was")
    assert [fs.tree()[name].mode for name in ("x", "x/y", "a")] == [0o2700, 0o2700, 0o2700]


def shared_root(fs: SimFS) -> None:
    """A root whose group may write it, where new directories are closed to that group."""
    fs.mkdirs("/sim", mode=0o2775, gid=5000)
    files(fs)
