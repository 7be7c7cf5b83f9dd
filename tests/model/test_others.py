"""Other programs change the tree between the calls of a transaction and its commit.

Whatever they do, the commit does what the transaction has seen right before it, or says that nothing was changed.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.model.disk import Dying, Killed, look
from tests.model.reference import Node, Tree
from tests.support import DEEP, debris, scratch
from txfiles import FileTransaction, recover
from txfiles._disk import system
from txfiles.errors import TxFilesError

PATHS = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "e", "e/a", "new/a", "new"]
paths = st.sampled_from(PATHS)
staged = st.one_of(
    st.tuples(st.just("write"), paths, st.sampled_from([b"ours", b"ours too"])),
    st.tuples(st.just("delete"), paths),
    st.tuples(st.just("delete_tree"), paths),
    st.tuples(st.just("mkdir"), paths),
    st.tuples(st.just("move"), paths, paths),
    st.tuples(st.just("copy"), paths, paths),
)
theirs = st.one_of(
    st.tuples(st.sampled_from(["write", "append", "replace", "remove", "mkdir", "fifo"]), paths),
    st.tuples(st.sampled_from(["rename", "symlink", "link"]), paths, paths),
)


def by_others(root: Path, what: str, path: str, to: str = "") -> None:
    """What another program does at once; what the system refuses it is not done."""
    where = root / path
    with suppress(OSError):
        if where.is_fifo():
            where.unlink()  # opening it would wait for somebody at its other end
        if what == "write":
            where.write_bytes(b"theirs")
        elif what == "append":
            with open(where, "ab") as stream:
                stream.write(b"+")
        elif what == "replace":
            where.with_name("tmp").write_bytes(b"replaced")
            where.with_name("tmp").rename(where)
        elif what == "remove":
            shutil.rmtree(where) if where.is_dir() and not where.is_symlink() else where.unlink()
        elif what == "mkdir":
            where.mkdir()
        elif what == "fifo":
            os.mkfifo(where)
        elif what == "rename":
            where.rename(root / to)
        elif what == "symlink":
            where.symlink_to(root / to)
        else:
            where.hardlink_to(root / to)


def view(tx: FileTransaction) -> Tree | None:
    """The whole tree as the transaction sees it; `None` where it cannot be looked at."""

    def below(path: str) -> Iterator[tuple[str, Node]]:
        for name in tx.listdir(path):
            child = name if path == "." else f"{path}/{name}"
            try:
                yield child, Node("file", content=tx.read(child))
            except IsADirectoryError:
                yield child, Node("dir")
                yield from below(child)

    try:
        return dict(below("."))
    except (OSError, TxFilesError):
        return None


def plain(tree: Tree) -> Tree:
    return {path: Node(node.kind, content=node.content) for path, node in tree.items()}


@settings(max_examples=20_000 if DEEP else 100, suppress_health_check=list(HealthCheck))
@given(
    calls=st.lists(staged, min_size=1, max_size=5),
    meanwhile=st.lists(theirs, min_size=1, max_size=4),
    durability=st.sampled_from(["full", "process"]),
    die_at=st.one_of(st.none(), st.integers(0, 60)),
)
def test_a_commit_beside_other_programs(
    calls: list[tuple[Any, ...]], meanwhile: list[tuple[str, ...]], durability: Any, die_at: int | None
) -> None:
    base = scratch.directory(scratch.MEMORY).resolve()
    try:
        root = base / "root"
        (root / "d/e").mkdir(parents=True)
        (root / "e").mkdir()
        for path in ("a", "d/a", "d/e/a"):
            (root / path).write_bytes(path.encode())
        _commit_beside(root, calls, meanwhile, durability, die_at)
        assert debris.problems(root) == []
    finally:
        shutil.rmtree(base)


def _commit_beside(
    root: Path, calls: list[tuple[Any, ...]], meanwhile: list[tuple[str, ...]], durability: Any, die_at: int | None
) -> None:
    fs: Any = Dying()
    with system.use(fs):
        tx = FileTransaction(root, durability=durability, timeout=0).begin()
    for name, *arguments in calls:
        with suppress(OSError, TxFilesError):
            getattr(tx, name)(*arguments)
    for what, *where in meanwhile:
        by_others(root, what, *where)
    tx._staging.tree.close()  # forget directories that others have moved, as the commit does first of all
    before, expected = look(root), view(tx)
    fs.die_at = None if die_at is None else fs.calls + 1 + die_at
    try:
        tx.commit()
        outcome = "after"
    except TxFilesError as error:
        event(f"refused: {type(error).__name__}")
        outcome = error.outcome
    except Killed:
        event("killed")
        fs.die_at = None
        recover(root, timeout=0)
        outcome = "before" if look(root) == before else "after"
    assert outcome in ("before", "after")
    found = look(root)
    if outcome == "before":
        assert found == before
    elif expected is not None and all(node.kind in ("file", "dir") for node in found.values()):
        assert plain(found) == expected


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "txfiles")  # what is recovered is no news here
