"""B: transactions that are given up, by an error, an exception or a signal."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.boundary import Refusing, tree
from tests.support.debris import problems
from tests.support.procs import run_python
from txfiles import FileStore, FileTransaction, JsonDocuments, recover
from txfiles._disk import system
from txfiles.errors import (
    CommitError,
    ConflictError,
    NestedTransactionError,
    TransactionClosedError,
)
from txfiles.testing._faults import FaultyFS, fail_at

strace = pytest.mark.needs("strace")
OLD: dict[str, object] = dict.fromkeys("abc", b"old")
NEW: dict[str, object] = dict.fromkeys("abc", b"new")


def _furnish(root: Path) -> None:
    with FileTransaction(root) as tx:
        for name in "abc":
            tx.write(name, "old")


def _save(root: Path) -> None:
    with FileTransaction(root, timeout=0) as tx:
        for name in "abc":
            tx.write(name, "new")


def _begun(root: Path, fs: system.FileSystem | None = None) -> FileTransaction:
    with system.use(fs or system.KernelFS()):
        tx = FileTransaction(root).begin()
    tx.write("a", "new")
    tx.write("b", "new")
    return tx


# -- B05: after a failed commit -------------------------------------------------------------------------------------


class _NoSync(system.KernelFS):
    def sync_file(self, fd: int) -> None:
        raise OSError(errno.EIO, "injected")

    def sync_dir(self, fd: int) -> None:
        os.fsync(fd)


class _NoLinks(system.KernelFS):
    def link(self, at: int, name: bytes, to: int, new: bytes) -> None:
        raise OSError(errno.EMLINK, "injected")


def _a_file_is_changed(root: Path) -> FileTransaction:
    tx = _begun(root)
    tx.write("c", "new", if_version=tx.version("c"))
    (root / "c").unlink()
    (root / "c").write_text("theirs", encoding="utf-8")
    return tx


_FAILING: dict[str, Callable[[Path], FileTransaction]] = {
    "a rename fails": lambda root: _begun(root, Refusing(b"b", errno.EIO)),
    "a sync fails": lambda root: _begun(root, _NoSync()),
    "a link fails": lambda root: _begun(root, _NoLinks()),
    "a file was changed": _a_file_is_changed,
}


@pytest.mark.parametrize("begin", _FAILING.values(), ids=_FAILING)
def test_b05_a_failed_commit_frees_everything(root: Path, begin: Callable[[Path], FileTransaction]) -> None:
    for _ in range(3):
        _furnish(root)
        tx = begin(root)
        before = tree(root)
        with pytest.raises((CommitError, ConflictError)) as caught:
            tx.commit()
        assert caught.value.outcome == "before"
        assert tree(root) == before
        assert problems(root) == []
        for call in (tx.begin, tx.commit, tx.rollback, partial(tx.write, "a", "x"), partial(tx.read, "a"), tx.listdir):
            with pytest.raises(TransactionClosedError):
                call()  # type: ignore[operator]
        _save(root)
        assert tree(root) == NEW
    run_python("from txfiles import FileTransaction; FileTransaction(sys.argv[1], timeout=0).begin()", root).check()


def test_b05_a_loop_over_directories_goes_on_after_one_failed(tmp_path: Path, watch: Callable[[Path], Path]) -> None:
    roots = [watch(tmp_path / name) for name in ("one", "two", "three")]
    stores = [FileStore(root, create=True) for root in roots]
    for store in stores:
        store.update(lambda tx: tx.write("state", "old"))
    (roots[1] / "state").unlink()
    (roots[1] / "state").mkdir()
    failed = []
    for store in stores:
        try:
            store.update(lambda tx: tx.write("state", "new"))
        except OSError as error:
            failed.append(str(error))
    assert len(failed) == 1
    assert [(root / "state").is_file() and (root / "state").read_text(encoding="utf-8") for root in roots] == [
        "new",
        False,
        "new",
    ]
    (roots[1] / "state").rmdir()
    stores[1].update(lambda tx: tx.write("state", "new"))


# -- B06: nested transactions ---------------------------------------------------------------------------------------


def _again(root: Path) -> None:
    FileTransaction(root).begin()


def _by_a_link(root: Path) -> None:
    (root.parent / "link").symlink_to(root)
    FileTransaction(root.parent / "link").begin()


def _by_another_spelling(root: Path) -> None:
    FileTransaction(f"{root}/../{root.name}/").begin()


def _update(root: Path) -> None:
    FileStore(root).update(lambda tx: tx.write("b", "inner"))


def _documents(root: Path) -> None:
    JsonDocuments(root, {"b": {}}).save(b={"inner": True})


def _recover(root: Path) -> None:
    recover(root)


@pytest.mark.parametrize("inner", [_again, _by_a_link, _by_another_spelling, _update, _documents, _recover])
@pytest.mark.parametrize("end", ["commit", "roll back"])
def test_b06_an_inner_transaction_neither_commits_the_outer_nor_waits_for_it(
    root: Path, inner: Callable[[Path], None], end: str
) -> None:
    _furnish(root)
    tx = FileTransaction(root).begin()
    tx.write("a", "outer")
    with pytest.raises(NestedTransactionError):
        inner(root)
    assert tree(root) == OLD, "the outer one is neither committed nor ended"
    assert tx.read("a") == b"outer"
    tx.write("c", "outer, later")
    if end == "commit":
        tx.commit()
        assert tree(root) == {**OLD, "a": b"outer", "c": b"outer, later"}
    else:
        tx.rollback()
        assert tree(root) == OLD


def test_b06_savepoints_are_what_nests(root: Path) -> None:
    _furnish(root)
    with FileTransaction(root) as tx:
        tx.write("a", "outer")
        with pytest.raises(ZeroDivisionError), tx.savepoint():
            tx.write("a", "inner")
            with tx.savepoint():
                tx.write("b", "innermost")
                tx.delete("c")
            raise ZeroDivisionError
        assert (tx.read("a"), tx.read("b"), tx.exists("c")) == (b"outer", b"old", True)
        with tx.savepoint():
            tx.write("b", "kept")
        assert tree(root) == OLD
    assert tree(root) == {"a": b"outer", "b": b"kept", "c": b"old"}


def test_b06_another_directory_is_no_nesting(root: Path) -> None:
    (root / "other").mkdir()
    with FileTransaction(root) as outer, FileTransaction(root / "other") as inner:
        inner.write("b", "inner")
        outer.write("a", "outer")
    assert tree(root) == {"a": b"outer", "other": None, "other/b": b"inner"}


# -- B07: reading inside a transaction ------------------------------------------------------------------------------


def test_b07_reads_see_what_was_written_and_the_disk_does_not(root: Path) -> None:
    _furnish(root)
    (root / "sub").mkdir()
    (root / "sub/d").write_text("old", encoding="utf-8")
    before = tree(root)
    with FileTransaction(root) as tx:

        def look(path: str, expected: object) -> None:
            assert tree(root) == before
            assert tx.exists(path) == (expected is not None)
            assert (path in tx.glob("**")) == (expected is not None)
            assert (tx.version(path) is not None) == (expected is not None)
            if expected is not None:
                assert tx.read(path) == expected
                with tx.open(path, "rb") as file:
                    assert file.read() == expected

        look("a", b"old")
        tx.write("a", "1")
        look("a", b"1")
        tx.write("a", "2")
        look("a", b"2")
        with tx.open("a", "ab") as file:
            file.write(b"3")
        look("a", b"23")
        tx.delete("b")
        look("b", None)
        with pytest.raises(FileNotFoundError):
            tx.read("b")
        tx.write("b", "again")
        look("b", b"again")
        tx.write("new/deep/e", "new")
        look("new/deep/e", b"new")
        assert tx.listdir() == ["a", "b", "c", "new", "sub"]
        assert tx.listdir("new") == ["deep"]
        tx.move("sub", "moved")
        look("moved/d", b"old")
        look("sub/d", None)
        tx.copy("moved/d", "sub/copy")
        look("sub/copy", b"old")
        tx.write_json("f.json", {"n": 1})
        assert tx.read_json("f.json") == {"n": 1}
        tx.delete_tree("new")
        look("new/deep/e", None)
        assert tree(root) == before
    after = {"a": b"23", "b": b"again", "c": b"old", "f.json": b'{\n  "n": 1\n}\n'}
    assert tree(root) == {**after, "moved": None, "moved/d": b"old", "sub": None, "sub/copy": b"old"}


@pytest.mark.parametrize("read", ["read", "open", "glob", "listdir", "snapshot"])
def test_b07_a_file_that_is_being_read_does_not_stop_the_commit(root: Path, read: str) -> None:
    _furnish(root)
    with FileStore(root).snapshot("a") as snap, FileTransaction(root) as tx:
        tx.write("a", "new")
        if read == "open":
            file = tx.open("b")
            assert file.read(1) == "o"
            tx.write("b", "new")
            tx.commit()
            assert file.read() == "ld", "and goes on reading what it opened"
            file.close()
        elif read == "snapshot":
            assert snap.read("a") == b"old"
        else:
            getattr(tx, read)(*(["a"] if read == "read" else ["*"] if read == "glob" else []))
    assert (root / "a").read_text(encoding="utf-8") == "new"


# -- B08: exceptions in the block -----------------------------------------------------------------------------------


class _Own(BaseException):
    pass


_EXCEPTIONS = [Exception, SystemExit, GeneratorExit, KeyboardInterrupt, asyncio.CancelledError, StopIteration, _Own]


@pytest.mark.parametrize("kind", [*_EXCEPTIONS, OSError, CommitError])
def test_b08_whatever_is_raised_in_the_block_rolls_back_and_comes_out(root: Path, kind: type[BaseException]) -> None:
    _furnish(root)
    raised = kind("mine")
    with pytest.raises(kind) as caught, FileTransaction(root) as tx:
        tx.write("a", "new")
        tx.delete("b")
        raise raised
    assert caught.value is raised
    assert tree(root) == OLD
    assert problems(root) == []
    with pytest.raises(TransactionClosedError):
        tx.commit()
    _save(root)


@pytest.mark.parametrize("call", ["unlink", "close"])
@pytest.mark.parametrize("kind", _EXCEPTIONS)
def test_b08_a_rollback_that_fails_does_not_hide_it(root: Path, kind: type[BaseException], call: str) -> None:
    _furnish(root)
    counting = FaultyFS(system.KernelFS(), fail_at(1, errno.EIO, forever=True, only=call))
    raised = kind("mine")
    with system.use(counting), pytest.raises(kind) as caught, FileTransaction(root) as tx:  # type: ignore[arg-type]
        tx.write("a", "new")
        raise raised
    assert caught.value is raised
    if call == "unlink":
        assert "could not be removed" in raised.__notes__[0]
    assert tree(root) == OLD
    _save(root)
    assert tree(root) == NEW


# -- B26: directories that were made --------------------------------------------------------------------------------


class _Visited(Refusing):
    """While the commit is under way, another program puts a file into the new directory."""

    def __init__(self, root: Path, where: str | None) -> None:
        super().__init__(b"z")
        self.root = root
        self.where = where

    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        if new == b"z" and self.where is not None:
            (self.root / self.where).write_text("theirs", encoding="utf-8")
        super().rename(at, name, to, new)


_LEFT: dict[str | None, list[str]] = {
    None: [],
    "new/theirs": ["new", "new/theirs"],
    "new/deep/theirs": ["new", "new/deep", "new/deep/theirs"],
    "new/side/theirs": ["new", "new/side", "new/side/theirs"],
}


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("theirs", _LEFT)
def test_b26_directories_go_with_the_transaction_that_made_them(
    root: Path, theirs: str | None, durability: str
) -> None:
    (root / "empty/before").mkdir(parents=True)
    (root / "z").write_text("old", encoding="utf-8")
    before = tree(root)
    with (
        system.use(_Visited(root, theirs)),
        pytest.raises(CommitError),
        FileTransaction(root, durability=durability) as tx,  # type: ignore[arg-type]
    ):
        tx.write("new/deep/x.json", "{}")
        tx.mkdir("new/side")
        tx.write("empty/x.json", "{}")
        tx.mkdir("empty/before")
        tx.write("z", "new")
    assert {name: content for name, content in tree(root).items() if not name.startswith("new")} == before
    assert sorted(name for name in tree(root) if name.startswith("new")) == _LEFT[theirs]
    if theirs is not None:
        assert (root / theirs).read_text(encoding="utf-8") == "theirs"
    assert problems(root) == []


@pytest.mark.parametrize("give_up", ["an exception", "roll back", "before the commit point"])
def test_b26_no_directory_is_made_before_the_commit(root: Path, give_up: str) -> None:
    (root / "empty").mkdir()
    fs = _NoSync() if give_up == "before the commit point" else system.KernelFS()
    with system.use(fs):
        tx = FileTransaction(root).begin()
    tx.write("new/deep/x", "x")
    tx.delete_tree("empty")
    assert tree(root) == {"empty": None}
    if give_up == "roll back":
        tx.rollback()
    elif give_up == "an exception":
        tx.__exit__(ValueError, ValueError("mine"), None)
    else:
        with pytest.raises(CommitError):
            tx.commit()
    assert tree(root) == {"empty": None}
