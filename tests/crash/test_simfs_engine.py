"""Every crash of a commit, of its undoing and of its recovery, on the simulated file system."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.support import DEEP
from txfiles import FileTransaction
from txfiles.errors import CommitError
from txfiles.testing import Options, Scenario, SimFS, Tree, explore

Change = Callable[[FileTransaction], Any]


def files(fs: SimFS) -> None:
    """The state before, and a root that has seen a transaction."""
    for name in "abcd":
        fs.put(f"/sim/{name}", f"old {name}")
    fs.put("/sim/special", "s", mode=0o640, uid=7, gid=8, xattrs={"user.k": b"v"})
    fs.mkdirs("/sim/dir/deep", mode=0o750)
    fs.put("/sim/dir/one", "1")
    fs.put("/sim/dir/deep/two", "2", mode=0o600)
    fs.mkdirs("/sim/gone")
    fs.put("/sim/gone/f", "f")
    fs.put_symlink("/sim/link", "dir/one")
    fs.put_link("/sim/second", "/sim/c")
    with FileTransaction("/sim") as tx:
        tx.write("settled", "once")
    fs.sync_everything()


def commit(change: Change, **settings: Any) -> Callable[[SimFS], None]:
    def step(fs: SimFS) -> None:
        with FileTransaction("/sim", **settings) as tx:
            change(tx)

    return step


def write(*names: str) -> Change:
    def change(tx: FileTransaction) -> None:
        for name in names:
            tx.write(name, f"new {name}")

    return change


def again(tx: FileTransaction) -> None:
    for name in "abe":
        tx.write(name, f"once more {name}")


def swap(tx: FileTransaction) -> None:
    tx.move("a", "t")
    tx.move("b", "a")
    tx.move("t", "b")


def same_bytes(fs: SimFS) -> None:
    fs.put("/sim/a", "same")
    fs.put("/sim/b", "old b")
    with FileTransaction("/sim") as tx:
        tx.write("settled", "once")
    fs.sync_everything()


def same_and_new(tx: FileTransaction) -> None:
    tx.write("a", "same")
    tx.write("b", "new")


def rotate_directory(tx: FileTransaction) -> None:
    """A directory becomes a file, a file a directory."""
    tx.delete_tree("gone")
    tx.write("gone", "a file now")
    tx.delete("a")
    tx.write("a/below", "a directory now")


def replace_and_delete(tx: FileTransaction) -> None:
    tx.write("a", "new")
    tx.delete("b")


def everything(tx: FileTransaction) -> None:
    tx.write("link", "through the link")
    tx.delete("b")
    tx.write("new/nested/file", "created")
    tx.move("c", "d")
    tx.move("dir", "moved")
    rotate_directory(tx)
    tx.mkdir("empty")


def failing_apply(change: Change, renames: int) -> Callable[[SimFS], None]:
    """Of the renames, the commit point among them, the last one fails: the commit is undone."""

    def step(fs: SimFS) -> None:
        left = [renames]

        def plan(_: int, name: str) -> None:
            left[0] -= name == "rename"
            if not left[0]:
                left[0] = -1
                raise OSError(errno.EIO, "injected")

        with suppress(CommitError):
            try:
                with FileTransaction("/sim") as tx:
                    change(tx)
                    fs.plan = plan
            finally:
                fs.plan = None
        assert left[0] < 0

    return step


def never_used(fs: SimFS) -> None:
    for name in "ab":
        fs.put(f"/sim/{name}", f"old {name}")


def unsynced(fs: SimFS) -> None:
    """The same, and what another program has just made without a sync."""
    files(fs)
    fs.mkdirs("/sim/fresh/deep", synced=False)
    fs.put("/sim/fresh/deep/f", "theirs", synced=False)
    fs.put("/sim/fresh/g", "theirs", synced=False)
    fs.put("/sim/a", "theirs", synced=False)


def on_fresh_ground(tx: FileTransaction) -> None:
    tx.write("fresh/deep/f", "new")
    tx.write("fresh/new", "new")
    tx.write("a", "new")
    tx.delete("fresh/g")
    tx.write("b", "new")


def after_or_lost(fs: SimFS, allowed: Sequence[Tree]) -> None:
    """Until the commit has returned, what was not synced before may be lost; the rest is before or after."""
    found = fs.tree()
    if len(allowed) == 1 and "fresh/new" in allowed[0]:
        assert found == allowed[0]
        return
    was_new = {found[path].content == b"new" for path in ("b", "fresh/new") if path in found}
    assert was_new != {True, False}
    assert found["b"] in [tree["b"] for tree in allowed]


SCENARIOS = {
    scenario.name: scenario
    for scenario in [
        Scenario("first-commit", never_used, [commit(write("a", "new"))]),
        Scenario("replace-1", files, [commit(write("a"))]),
        Scenario("replace-4", files, [commit(write(*"abcd"))]),
        Scenario("create", files, [commit(write("x/y/z", "x/w"))]),
        Scenario("delete", files, [commit(lambda tx: tx.delete("a"))]),
        Scenario("move", files, [commit(lambda tx: tx.move("special", "dir/here"))]),
        Scenario("swap", files, [commit(swap)]),
        Scenario("replace-and-delete", files, [commit(replace_and_delete)]),
        Scenario("move-directory", files, [commit(lambda tx: tx.move("dir", "moved"))]),
        Scenario("rotate-directory", files, [commit(rotate_directory)]),
        Scenario("through-a-symlink", files, [commit(write("link"))]),
        Scenario("one-of-two-links", files, [commit(write("c"))]),
        Scenario("special", files, [commit(write("special"))]),
        Scenario("two-in-a-row", files, [commit(write("a", "b")), commit(again)]),
        Scenario("there-and-back", files, [commit(lambda tx: tx.delete("a")), commit(write("a"))]),
        Scenario("fresh-ground", unsynced, [commit(on_fresh_ground)], check=after_or_lost),
        Scenario("undone", files, [failing_apply(write(*"abe"), 3)], attempt=commit(write(*"abe"))),
        Scenario("undone-directory", files, [failing_apply(write("x/y", "a"), 2)], attempt=commit(write("x/y", "a"))),
        Scenario("same-bytes", same_bytes, [commit(same_and_new)]),
        Scenario("undone-rotation", files, [failing_apply(rotate_directory, 4)], attempt=commit(rotate_directory)),
        Scenario("everything", files, [commit(everything)]),
        Scenario("process", files, [commit(everything, durability="process")], power_loss=False),
    ]
}
LARGE = (
    "create",
    "everything",
    "fresh-ground",
    "move-directory",
    "rotate-directory",
    "two-in-a-row",
    "undone-directory",
)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_crash_ends_before_or_after(name: str) -> None:
    if DEEP:
        explore(SCENARIOS[name], (128, 8) if name in LARGE else (256, 16, 2))
    else:
        explore(SCENARIOS[name], (16,) if name in LARGE else (32, 2))


@pytest.mark.parametrize(
    "options",
    [Options(reuse_inodes=False), Options(granularity_ns=4_000_000), Options(granularity_ns=10**9, seed=1)],
    ids=["numbers-once", "coarse-clock", "clock-of-seconds"],
)
@pytest.mark.parametrize("name", ["replace-4", "swap", "two-in-a-row", "undone"])
def test_on_other_file_systems(name: str, options: Options) -> None:
    explore(replace(SCENARIOS[name], options=options), (128, 8) if DEEP else (24,), seed=1)
