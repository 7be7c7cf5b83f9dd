"""B: system calls that fail in the middle of a commit."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import DEEP
from tests.support.boundary import tree
from tests.support.debris import problems
from tests.support.inject import OPEN, RENAME, SYNC, Fault, Traced, each_call, traced
from txfiles import FileStore, FileTransaction, recover
from txfiles._disk import system
from txfiles._format import layout
from txfiles.errors import CommitError, SettleError, TxFilesError
from txfiles.testing._faults import FaultyFS, fail_at

strace = pytest.mark.needs("strace")
OLD: dict[str, object] = {"a": b"old", "b": b"old", "sub": None, "sub/c": b"old"}
NEW: dict[str, object] = {"a": b"new", "b": b"new", "sub": None, "sub/c": b"new"}
_SAVE = """
    from txfiles import FileTransaction
    from txfiles.errors import TxFilesError
    import txfiles._commit.protocol
    def save():
        with FileTransaction(sys.argv[1], accept=sys.argv[2:]) as tx:
            for name in ("a", "b", "sub/c"):
                tx.write(name, "new")
    def attempt():
        try:
            save()
            print("done")
        except (TxFilesError, OSError) as error:
            cause = error.__cause__ if isinstance(error, TxFilesError) else error
            print(type(error).__name__, getattr(error, "outcome", "before"), getattr(cause, "errno", None), error)
    with region():
        attempt()
    attempt()
"""


def _furnish(root: Path) -> None:
    with FileTransaction(root) as tx:
        for name in ("a", "b", "sub/c"):
            tx.write(name, "old")


def _save(root: Path) -> None:
    with FileTransaction(root) as tx:
        for name in ("a", "b", "sub/c"):
            tx.write(name, "new")


@pytest.fixture
def roots(memory: Path) -> Callable[[], Path]:
    """Makes furnished roots, one after another."""
    made: list[Path] = []

    def make() -> Path:
        root = memory / str(len(made))
        root.mkdir()
        _furnish(root)
        made.append(root)
        return root

    return make


def _said(done: Traced) -> list[list[str]]:
    return [line.split(maxsplit=3) for line in done.check().stdout.splitlines()]


def _name(code: int) -> str:
    return errno.errorcode[code]


def _kind(path: str) -> str:
    return layout.parse(os.fsencode(path.rpartition("/")[2])).kind


# -- B16: fsync -----------------------------------------------------------------------------------------------------


@strace
@pytest.mark.parametrize("error", ["EIO", pytest.param("ENOSPC", marks=pytest.mark.deep)])
def test_b16_a_failed_fsync_is_neither_ignored_nor_tried_again(roots: Callable[[], Path], error: str) -> None:
    outcomes = set()
    number = 0
    for call in each_call(_SAVE, roots(), calls=("fsync", "fdatasync")):
        number += 1
        root = roots()
        done = traced(_SAVE, root, faults=[Fault(call.name, error=error, when=call.nth)])
        first, second = _said(done)
        where = f"fsync {number}, of {call.paths}"
        assert first[0] in ("CommitError", "SettleError", "CommitOutcomeUnknownError"), where
        assert first[2] == str(getattr(errno, error)), where
        outcomes.add(first[1])
        files = [c.paths[0] for c in done.named(*SYNC[:2]) if _kind(c.paths[0]) != "unknown"]
        again = {_kind(one) for one in files if files.count(one) > 1}
        noted = {"intent"} if _kind(call.paths[0]) == "unknown" else set()  # after a directory: that it is over
        assert again <= noted, f"{where}: a file was synced again, and that was believed"
        if first[1] == "before":
            assert second == ["done"], where
            assert tree(root) == NEW
            made = {c.paths[0] for c in done.named("openat") if "O_EXCL" in c.args}
            assert made, "the second attempt stages anew, under other names"
            assert problems(root) == []
        else:
            assert second[0] == "RecoveryError", where
            assert "restart" in second[3]
            assert tree(root) == NEW, "nobody takes it back"
            _restart(root)
            recover(root)
            assert tree(root) == NEW
    assert number >= 8
    assert {"before", "after"} <= outcomes


def _restart(root: Path) -> None:
    """As if the machine had been started since: the note of the failed sync names another boot."""
    for path in (root / ".txfiles").iterdir():
        if _kind(str(path)) in ("committed", "aborting"):
            path.write_bytes(path.read_bytes().partition(b"}sync failed ")[0] + b"}")


# -- B17: close -----------------------------------------------------------------------------------------------------


@strace
@pytest.mark.parametrize("files", [2, 20], ids=["all kept open", "closed early"])
@pytest.mark.parametrize("error", ["EIO", pytest.param("EDQUOT", marks=pytest.mark.deep)])
def test_b17_an_error_of_close_is_a_failed_write(root: Path, files: int, error: str) -> None:
    code = f"""
        from txfiles import FileTransaction
        from txfiles.errors import TxFilesError
        import txfiles._commit.protocol
        with region():
            try:
                with FileTransaction(sys.argv[1]) as tx:
                    for number in range({files}):
                        with tx.open(str(number), "w") as file:
                            file.write("new")
            except (TxFilesError, OSError) as error:
                print(getattr(error, "outcome", "before"), (error.__cause__ or error).errno)
    """
    with FileTransaction(root) as tx:
        for number in range(files):
            tx.write(str(number), "old")
    before = tree(root)
    closes = [c for c in each_call(code, root, calls=("close", "write")) if _kind(c.paths[0]) in ("token", "intent")]
    written = {c.paths[0] for c in closes if c.name == "write"}
    first = {c.paths[0]: c for c in reversed(closes) if c.name == "close" and c.paths[0] in written}
    closes = list(first.values())  # later ones are of descriptors that were opened to sync, and nothing was written to
    assert len(closes) > files
    chosen = closes if DEEP else [closes[0], closes[-1], closes[len(closes) // 2]]
    for call in chosen:
        with FileTransaction(root) as tx:
            for number in range(files):
                tx.write(str(number), "old")
        done = traced(code, root, faults=[Fault("close", error=error, when=call.nth)])
        assert done.check().stdout == f"before {getattr(errno, error)}\n", call
        assert tree(root) == before
        assert problems(root) == []


# -- B19: no descriptors --------------------------------------------------------------------------------------------


def _chain(error: BaseException | None) -> list[int | None]:
    found = []
    while error is not None:
        found.append(getattr(error, "errno", None))
        error = error.__cause__ or error.__context__
    return found


@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM], ids=_name)
def test_b19_the_first_error_is_the_one_that_is_told(roots: Callable[[], Path], code: int, forever: bool) -> None:
    """Every opening of a file or directory in a commit fails in turn; nothing waits for a restart afterwards.

    In a sync round, where a commit has descriptors to close, it does that and goes on when there is one to be had.
    """
    counting = FaultyFS(system.KernelFS())
    root = roots()
    with system.use(counting):  # type: ignore[arg-type]
        _save(root)
    opens = [n for n, name in enumerate(counting.trace, 1) if name in ("open_dir", "open_read", "create")]
    outcomes = set()
    went_on = 0
    for number in opens:
        root = roots()
        where = f"call {number}, {counting.trace[number - 1]}"
        try:
            with system.use(FaultyFS(system.KernelFS(), fail_at(number, code, forever=forever))):  # type: ignore[arg-type]
                _save(root)
        except (TxFilesError, OSError) as error:
            caught = error
        else:
            went_on += 1
            assert tree(root) == NEW, where
            continue
        chain = _chain(caught)
        assert code in chain, where
        assert errno.EBADF not in chain, where
        outcome = getattr(caught, "outcome", "before")
        outcomes.add(outcome)
        if outcome == "before":
            assert tree(root) == OLD, where
        _save(root)
        assert tree(root) == NEW, where
    assert "before" in outcomes
    if forever or code == errno.ENOMEM:
        assert went_on == 0
        assert outcomes & {"after", "unknown"}, "also the directories of the second sync round"
    else:
        assert 0 < went_on < len(opens) / 2


# -- B20, B21: file systems that cannot sync directories ------------------------------------------------------------


@strace
@pytest.mark.parametrize("error", ["EINVAL", "EOPNOTSUPP", "ENOSYS"])
def test_b20_b21_directories_that_cannot_be_synced_are_tolerated_where_that_was_accepted(
    root: Path, error: str
) -> None:
    _furnish(root)
    syncs = each_call(_SAVE, root, calls=("fsync",))
    first = next(n for n, call in enumerate(syncs, 1) if call.paths[0].endswith("/.txfiles"))
    assert all(os.path.isdir(call.paths[0]) for call in syncs[first - 1 :])
    faults = [Fault("fsync", error=error, when=f"{first}+")]
    refused = traced(_SAVE, root, faults=faults)
    assert [line[:2] for line in _said(refused)] == [["CommitError", "before"], ["done"]]
    _furnish(root)
    done = traced(_SAVE, root, "unsynced-directories", faults=faults)
    assert _said(done) == [["done"], ["done"]]
    assert len([call for call in done.calls if call.injected]) >= 4
    assert done.stderr.count("cannot sync directories") == 1, "it is said once"
    assert tree(root) == NEW


class _Failing(system.KernelFS):
    def __init__(self, call: str, code: int) -> None:
        self.call = call
        self.code = code

    def sync_file(self, fd: int) -> None:
        if self.call == "sync_file":
            raise OSError(self.code, os.strerror(self.code))
        os.fsync(fd)

    def sync_dir(self, fd: int) -> None:
        if self.call == "sync_dir":
            raise OSError(self.code, os.strerror(self.code))
        os.fsync(fd)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS], ids=_name)
def test_b20_said_once_for_a_root(root: Path, code: int, caplog: pytest.LogCaptureFixture) -> None:
    store = FileStore(root, accept={"unsynced-directories"})
    with caplog.at_level(logging.WARNING), system.use(_Failing("sync_dir", code)):
        for content in ("1", "2"):
            with store.transaction() as tx:
                tx.write("sub/c", content)
        store.recover()
    assert [record.levelname for record in caplog.records if "sync directories" in record.message] == ["WARNING"]
    assert str(root) in caplog.text


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EIO, errno.ENOSPC], ids=_name)
def test_b20_a_file_that_cannot_be_synced_is_never_tolerated(root: Path, code: int) -> None:
    _furnish(root)
    with system.use(_Failing("sync_file", code)), pytest.raises(CommitError) as caught:
        _save(root)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == code
    assert tree(root) == OLD


@pytest.mark.leaves_debris
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EBADF], ids=_name)
def test_b21_other_errors_of_a_directory_are_raised(root: Path, code: int) -> None:
    _furnish(root)
    with system.use(_Failing("sync_dir", code)), pytest.raises(CommitError) as caught:
        _save(root)
    assert code in _chain(caught.value)
    assert caught.value.outcome == "before"  # the journal says that it is over, should its name come back
    assert tree(root) == OLD


# -- B22, B25: rename -----------------------------------------------------------------------------------------------


@strace
@pytest.mark.parametrize(
    "error",
    ["EINVAL", "ENOSYS", "EXDEV", "EBUSY", "EACCES", "ENOSPC", *(["EPERM", "EDQUOT", "ENOENT"] if DEEP else [])],
)
def test_b22_b25_no_weaker_way_when_rename_fails(root: Path, error: str) -> None:
    _furnish(root)
    inodes = {name: (root / name).stat().st_ino for name in OLD}
    done = traced(_SAVE, root, faults=[Fault(RENAME, error=error, when=3)])
    first, second = _said(done)
    if error in ("ENOSPC", "EDQUOT"):
        assert first == ["done"], "the spare makes room"
    else:
        assert first[:3] == ["CommitError", "before", str(getattr(errno, error))]
        assert "'b'" in first[3]
        assert inodes != {name: (root / name).stat().st_ino for name in OLD}
    renames = [call for call in done.named(*RENAME) if not call.injected]
    assert not [call for call in renames if call.name == "renameat2"], "no flag that a file system may not know"
    targets = {str(root / name) for name in OLD}
    for call in done.named(*OPEN):
        if "O_WRONLY" in call.args or "O_RDWR" in call.args:
            assert not targets.intersection(call.paths), "no target is written to in place"
            assert call.paths[0].startswith(f"{root}/.txfiles/"), "and nothing anywhere else"
    assert second == ["done"]
    assert tree(root) == NEW


@strace
@pytest.mark.parametrize("error", ["EXDEV", pytest.param("EIO", marks=pytest.mark.deep)])
def test_b22_b25_each_rename_fails_once(roots: Callable[[], Path], error: str) -> None:
    said = []
    for call in each_call(_SAVE, roots(), calls=RENAME):
        root = roots()
        done = traced(_SAVE, root, faults=[Fault(RENAME, error=error, when=call.nth)])
        first, second = _said(done)
        said.append(first[1])
        assert second == ["done"]
        assert tree(root) == NEW
    assert said == ["before"] * 4 + ["after"], "the commit point, three files, and the end"


def test_b25_a_settle_that_fails_says_that_all_is_done(root: Path) -> None:
    _furnish(root)

    class NoHead(system.KernelFS):
        def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
            if new == b"HEAD":
                raise OSError(errno.ENOSPC, "injected")
            super().rename(at, name, to, new)

    with system.use(NoHead()), pytest.raises(SettleError) as caught:
        _save(root)
    assert caught.value.outcome == "after"
    assert tree(root) == NEW
    recover(root)
    assert tree(root) == NEW
