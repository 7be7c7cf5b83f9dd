"""B: Ctrl-C, kills and errors while a transaction ends or is undone, and what is left then."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support import DEEP
from tests.support.boundary import killed, tree
from tests.support.debris import problems
from tests.support.inject import LINK, LOCK, OPEN, RENAME, SYNC, UNLINK, WRITE, Fault, each_call, traced
from txfiles import FileStore, FileTransaction, JsonDocuments, recover, status
from txfiles._disk import system
from txfiles._format import layout
from txfiles.errors import CommitOutcomeUnknownError, JournalCorruptError, RecoveryError, TxFilesError

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


# -- B09: Ctrl-C ----------------------------------------------------------------------------------------------------

_INTERRUPTED = """
    from txfiles import FileTransaction
    import txfiles._commit.protocol
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
    last = max(n for n, call in enumerate(listed) if call.name == "flock")  # the lock is freed
    states = []
    for call in listed[: last + 1 : 1 if DEEP else 3 if times == "twice" else 2]:
        _furnish(memory)
        faults = [Fault(call.name, signal="SIGINT", when=call.nth)]
        done = traced(_INTERRUPTED, memory, end, times, faults=faults)
        assert done.check().stdout == "interrupted\n", f"swallowed at {call}"
        states.append(tree(memory))
        assert states[-1] in ((OLD, NEW) if end == "commit" else (OLD,)), call
        assert problems(memory) == []
    assert len(states) >= 2
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


# -- B33: the undo fails, too ---------------------------------------------------------------------------------------


class _FailsTwice(system.KernelFS):
    """The rename onto `b` fails, and then, of the undo, every call `call` outside the private directory."""

    def __init__(self, call: str, code: int) -> None:
        self.call = call
        self.code = code
        self.undoing = False

    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        if layout.parse(new).kind == "unknown" and (new == b"b" or (self.undoing and self.call == "rename")):
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
    with system.use(fs), pytest.raises(CommitOutcomeUnknownError) as caught:
        _save(root)
    assert caught.value.outcome == "unknown"
    assert tree(root) not in (OLD, NEW), "a mix, for who does not ask"
    assert [pending.state for pending in status(root).pending] == ["aborting"]
    for _ in range(2):
        with system.use(fs), pytest.raises(OSError) as failed:
            FileTransaction(root, timeout=0).begin()
        assert failed.value.errno == code
        with system.use(fs):
            assert _read(root) in (OLD, code)
    with FileTransaction(root) as tx:
        assert {name: tx.read(name) for name in "abc"} == OLD
    assert tree(root) == OLD


@pytest.mark.leaves_debris
def test_b33_after_a_failed_sync_of_the_undo_only_a_restart_tells(root: Path) -> None:
    _furnish(root)
    with system.use(_FailsTwice("sync_dir", errno.EIO)), pytest.raises(CommitOutcomeUnknownError):
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
