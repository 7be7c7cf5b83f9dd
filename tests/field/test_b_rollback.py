"""B: transactions that are given up, by an error, an exception or a signal."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support import DEEP
from tests.support.boundary import Refusing, killed, tree
from tests.support.debris import problems
from tests.support.inject import LINK, LOCK, OPEN, RENAME, SYNC, UNLINK, WRITE, Fault, each_call, traced
from tests.support.procs import run_python
from txfiles import FileStore, FileTransaction, JsonDocuments, _fs, _layout, recover, status
from txfiles.errors import (
    CommitError,
    CommitOutcomeUnknownError,
    ConflictError,
    JournalCorruptError,
    NestedTransactionError,
    RecoveryError,
    TransactionClosedError,
    TxFilesError,
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


def _begun(root: Path, fs: _fs.FileSystem | None = None) -> FileTransaction:
    with _fs.use(fs or _fs.KernelFS()):
        tx = FileTransaction(root).begin()
    tx.write("a", "new")
    tx.write("b", "new")
    return tx


# -- B05: after a failed commit -------------------------------------------------------------------------------------


class _NoSync(_fs.KernelFS):
    def sync_file(self, fd: int) -> None:
        raise OSError(errno.EIO, "injected")

    def sync_dir(self, fd: int) -> None:
        os.fsync(fd)


class _NoLinks(_fs.KernelFS):
    def link(self, at: int, name: bytes, to: int, new: bytes) -> None:
        raise OSError(errno.EMLINK, "injected")


def _a_file_is_changed(root: Path) -> FileTransaction:
    tx = _begun(root)
    tx.write("c", "new", if_version=tx.version("c"))
    (root / "c").unlink()
    (root / "c").write_text("theirs")
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
    assert [(root / "state").is_file() and (root / "state").read_text() for root in roots] == ["new", False, "new"]
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
    (root / "sub/d").write_text("old")
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
    assert (root / "a").read_text() == "new"


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
    counting = FaultyFS(_fs.KernelFS(), fail_at(1, errno.EIO, forever=True, only=call))
    raised = kind("mine")
    with _fs.use(counting), pytest.raises(kind) as caught, FileTransaction(root) as tx:  # type: ignore[arg-type]
        tx.write("a", "new")
        raise raised
    assert caught.value is raised
    if call == "unlink":
        assert "could not be removed" in raised.__notes__[0]
    assert tree(root) == OLD
    _save(root)
    assert tree(root) == NEW


# -- B09: Ctrl-C ----------------------------------------------------------------------------------------------------

_INTERRUPTED = """
    from txfiles import FileTransaction
    import txfiles._protocol
    root, end, times = sys.argv[1:]
    over = False
    def once(number, frame):
        if not over:
            raise KeyboardInterrupt
    def twice(number, frame):
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, once)
    signal.signal(signal.SIGINT, twice if times == "twice" else once)
    inside = region()
    ended = "committed"
    try:
        try:
            with FileTransaction(root) as tx:
                for name in "abc":
                    tx.write(name, "new")
                inside.__enter__()
                if end == "roll back":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            ended = "rolled back"
        finally:
            over = True
    except KeyboardInterrupt:
        over = True
        ended = "interrupted"
    inside.__exit__(None, None, None)
    del tx
    FileTransaction(root, timeout=0).begin().rollback()
    print(ended)
"""
_PLACES = (*SYNC[:1], *RENAME, *LINK, *UNLINK, *WRITE, *LOCK[:1])


@strace
@pytest.mark.parametrize("times", ["once", "twice"])
@pytest.mark.parametrize("end", ["commit", "roll back"])
def test_b09_ctrl_c_at_each_system_call_of_the_end(memory: Path, end: str, times: str) -> None:
    """The second signal comes a millisecond after the first."""
    _furnish(memory)
    listed = each_call(_INTERRUPTED, memory, end, times, calls=_PLACES)
    last = next(n for n, call in enumerate(listed) if call.name == "flock")  # the lock is freed
    states = []
    for call in listed[: last + 1 : 3 if times == "twice" and end == "commit" and not DEEP else 1]:
        _furnish(memory)
        faults = [Fault(call.name, signal="SIGINT", when=call.nth)]
        done = traced(_INTERRUPTED, memory, end, times, faults=faults)
        assert done.check().stdout == "interrupted\n", f"swallowed at {call}"
        states.append(tree(memory))
        assert states[-1] in ((OLD, NEW) if end == "commit" else (OLD,)), call
        assert problems(memory) == []
    assert len(states) >= 4
    assert (NEW in states) == (end == "commit")


# -- B23: the window of the named temporary -------------------------------------------------------------------------


@strace
def test_b23_names_are_made_in_the_private_directory_only(root: Path) -> None:
    _furnish(root)
    code = """
        from txfiles import FileTransaction
        with region():
            with FileTransaction(sys.argv[1]) as tx:
                for name in ("a", "b", "sub/new"):
                    tx.write(name, "new")
    """
    done = traced(code, root)
    done.check()
    private = f"{root}/.txfiles/"
    for call in done.calls:
        assert "O_TMPFILE" not in call.args
        if call.name in OPEN and "O_CREAT" in call.args:
            assert call.paths[0].startswith(private)
            assert "O_EXCL" in call.args
            assert "O_NOFOLLOW" in call.args
        if call.name in LINK:
            assert call.paths[-1].startswith(private)
        if call.name in RENAME and not call.paths[-1].startswith(private):
            assert call.paths[-1] in [f"{root}/{name}" for name in ("a", "b", "sub/new")]


@pytest.mark.parametrize("call", ["create", "write", "link", "rename", "sync_dir", "unlink"])
def test_b23_a_kill_leaves_nothing_that_users_see(memory: Path, call: str) -> None:
    for number in range(1, 20 if DEEP else 6):
        root = memory / str(number)
        root.mkdir()
        _furnish(root)
        try:
            killed(lambda root=root: _save(root), call, number)
        except AssertionError:
            break
        assert set(tree(root)) == set(OLD)
        assert set(tree(root).values()) <= {b"old", b"new"}
        recover(root)
        assert tree(root) in (OLD, NEW)
    assert number > 1


# -- B26: directories that were made --------------------------------------------------------------------------------


class _Visited(Refusing):
    """While the commit is under way, another program puts a file into the new directory."""

    def __init__(self, root: Path, where: str | None) -> None:
        super().__init__(b"z")
        self.root = root
        self.where = where

    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        if new == b"z" and self.where is not None:
            (self.root / self.where).write_text("theirs")
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
    (root / "z").write_text("old")
    before = tree(root)
    with (
        _fs.use(_Visited(root, theirs)),
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
        assert (root / theirs).read_text() == "theirs"
    assert problems(root) == []


@pytest.mark.parametrize("give_up", ["an exception", "roll back", "before the commit point"])
def test_b26_no_directory_is_made_before_the_commit(root: Path, give_up: str) -> None:
    (root / "empty").mkdir()
    fs = _NoSync() if give_up == "before the commit point" else _fs.KernelFS()
    with _fs.use(fs):
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


# -- B33: the undo fails, too ---------------------------------------------------------------------------------------


class _FailsTwice(_fs.KernelFS):
    """The rename onto `b` fails, and then, of the undo, every call `call` outside the private directory."""

    def __init__(self, call: str, code: int) -> None:
        self.call = call
        self.code = code
        self.undoing = False

    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        if _layout.parse(new).kind == "unknown" and (new == b"b" or (self.undoing and self.call == "rename")):
            raise OSError(self.code, "injected")
        self.undoing = self.undoing or new.endswith(b".aborting")
        super().rename(at, name, to, new)

    def sync_dir(self, fd: int) -> None:
        if self.undoing and self.call == "sync_dir":
            raise OSError(self.code, "injected")
        super().sync_dir(fd)


def _read(root: Path) -> dict[str, bytes] | int | None:
    """What a snapshot reads, or why it refuses."""
    try:
        with FileStore(root, timeout=0).snapshot() as snap:
            return {name: snap.read(name) for name in "abc"}
    except OSError as error:
        return error.errno
    except RecoveryError:
        return None


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOSPC], ids=errno.errorcode.get)
def test_b33_a_failed_undo_is_pending_and_never_read_as_a_mix(root: Path, code: int) -> None:
    _furnish(root)
    fs = _FailsTwice("rename", code)
    with _fs.use(fs), pytest.raises(CommitOutcomeUnknownError) as caught:
        _save(root)
    assert caught.value.outcome == "unknown"
    assert tree(root) not in (OLD, NEW), "a mix, for who does not ask"
    assert [pending.state for pending in status(root).pending] == ["aborting"]
    for _ in range(2):
        with _fs.use(fs), pytest.raises(OSError) as failed:
            FileTransaction(root, timeout=0).begin()
        assert failed.value.errno == code
        with _fs.use(fs):
            assert _read(root) in (OLD, code)
    with FileTransaction(root) as tx:
        assert {name: tx.read(name) for name in "abc"} == OLD
    assert tree(root) == OLD


@pytest.mark.leaves_debris
def test_b33_after_a_failed_sync_of_the_undo_only_a_restart_tells(root: Path) -> None:
    _furnish(root)
    with _fs.use(_FailsTwice("sync_dir", errno.EIO)), pytest.raises(CommitOutcomeUnknownError):
        _save(root)
    for opening in (recover, lambda root: FileTransaction(root).begin()):
        with pytest.raises(RecoveryError, match="restart"):
            opening(root)  # type: ignore[operator]
    assert _read(root) in (OLD, None)


# -- B34: starting afresh -------------------------------------------------------------------------------------------

_GARBAGE = [b"", b"\0" * 500, b"garbage\n", b"txfiles journal 1 20 " + b"0" * 64 + b"\n" + b"{" * 20]


@pytest.mark.parametrize("damage", _GARBAGE, ids=range(4))
@pytest.mark.parametrize("name", ["lock", "HEAD", "format", "committed", "aborting", "all of them"])
def test_b34_the_way_out_needs_nothing_of_what_is_damaged(root: Path, name: str, damage: bytes) -> None:
    """Whatever is damaged, `.txfiles` can be renamed and the directory is used again: the files are ordinary files."""
    _furnish(root)
    killed(lambda: _save(root), "rename", 3)
    private = root / ".txfiles"
    [journal] = private.glob("*.committed")
    if name == "aborting":
        journal = journal.rename(journal.with_suffix(".aborting"))
    damaged = {"committed": [journal], "aborting": [journal], "all of them": [*private.iterdir()]}
    for path in damaged.get(name, [private / name]):
        path.write_bytes(damage)
    found = tree(root)
    if name in ("lock", "HEAD"):
        _save(root)  # their content is not needed
        assert tree(root) == NEW
        return
    with pytest.raises(RecoveryError) as caught:
        _save(root)
    assert isinstance(caught.value, JournalCorruptError) == (name in ("committed", "aborting")) or name == "all of them"
    assert tree(root) == found
    private.rename(root.parent / "set aside")
    _save(root)
    assert tree(root) == NEW
    assert recover(root).clean


@pytest.mark.parametrize("cure", ["delete", "write"])
def test_b34_a_damaged_document_is_purged_without_being_read(root: Path, cure: str) -> None:
    (root / "state.json").write_bytes(b'{"half": ')
    documents = JsonDocuments(root, {"state": {}})
    with pytest.raises(TxFilesError, match=r"state\.json"):
        documents.load()
    if cure == "write":
        documents.save(state={"fresh": 1})
        assert documents.load() == {"state": {"fresh": 1}}
    else:
        documents.store.update(lambda tx: tx.delete("state.json"))
        assert documents.load() == {"state": {}}
