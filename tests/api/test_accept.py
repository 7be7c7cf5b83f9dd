"""What a place does not give: an error, unless it was accepted by name; then it is told."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.boundary import tree
from tests.support.debris import problems
from tests.support.procs import run_python
from txfiles import (
    AsyncDocuments,
    AsyncFileTransaction,
    Documents,
    FileStore,
    FileTransaction,
    GivenUp,
    commit_prepared,
    recover,
    rollback_prepared,
)
from txfiles._disk import system
from txfiles.cli import main
from txfiles.errors import CommitError

_UNSYNCED: Any = {"unsynced-directories"}


class _Unsynced(system.KernelFS):
    """A file system that has no sync of directories."""

    def sync_dir(self, fd: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


@pytest.fixture(params=[False, True], ids=["new root", "used root"])
def used(request: pytest.FixtureRequest, root: Path) -> dict[str, object]:
    if request.param:
        with FileTransaction(root) as tx:
            tx.write("a", "old")
    return tree(root)


def test_directories_that_cannot_be_synced_are_an_error_with_nothing_changed(
    root: Path, used: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    with system.use(_Unsynced()), pytest.raises(CommitError, match=r'accept=."unsynced-directories"') as caught:
        FileStore(root).update(lambda tx: tx.write("a", "new"))
    assert (caught.value.outcome, caught.value.path) == ("before", str(root))
    assert tree(root) == used
    assert problems(root) == []
    assert not caplog.records


def test_a_place_that_syncs_gives_up_nothing(root: Path) -> None:
    with FileTransaction(root, accept={"unsynced-directories", "narrowed-modes"}) as tx:
        tx.write("a", "new")
        tx.write("b/c", "new", mode=0o640)
    assert tx.given_up == ()


def test_process_durability_needs_no_sync(root: Path) -> None:
    with system.use(_Unsynced()), FileTransaction(root, durability="process") as tx:
        tx.write("a", "new")
    assert tx.given_up == ()


def test_stores_and_documents_hand_it_on(root: Path) -> None:
    store = pickle.loads(pickle.dumps(FileStore(root, accept=_UNSYNCED)))
    with system.use(_Unsynced()):
        store.update(lambda tx: tx.write("a", "1"))
        store.update(lambda tx: tx.write("a", "2"), group=True)
        Documents(root, {"state": {}}, accept=_UNSYNCED).save(state={"turn": 1})
    assert sorted(tree(root)) == ["a", "state.json"]


def test_the_twins_take_it_and_tell(root: Path) -> None:
    async def run() -> AsyncFileTransaction:
        with pytest.raises(CommitError, match="cannot sync directories"):
            async with AsyncFileTransaction(root) as tx:
                await tx.write("a", "1")
        async with AsyncFileTransaction(root, accept=_UNSYNCED) as tx:
            await tx.write("a", "1")
        await AsyncDocuments(root, {"state": {}}, accept=_UNSYNCED).save(state={"turn": 1})
        return tx

    with system.use(_Unsynced()):
        tx = asyncio.run(run())
    assert tx.given_up == (GivenUp("unsynced-directories", str(root)),)
    assert sorted(tree(root)) == ["a", "state.json"]


def test_fsspec_takes_it(root: Path) -> None:
    with system.use(_Unsynced()):
        with pytest.raises(CommitError, match="cannot sync directories"):
            fsspec.filesystem("txfiles", root=root).pipe(f"{root}/a", b"1")
        fsspec.filesystem("txfiles", root=root, accept=_UNSYNCED).pipe(f"{root}/a", b"1")
    assert tree(root) == {"a": b"1"}


def test_the_command_line_takes_it(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/b").write_bytes(b"1")
    put = ["put", str(root), f"a={tmp_path / 'source/b'}"]
    copy = ["sync", str(tmp_path / "source"), str(root)]
    with system.use(_Unsynced()):
        for argv in (put, copy):
            assert main(argv) == 1
            assert "cannot sync directories" in capsys.readouterr().err
            assert main([*argv, "--accept", "unsynced-directories"]) == 0
        assert main(["recover", str(root), "--accept", "unsynced-directories"]) == 0
        with pytest.raises(SystemExit):
            main([*put, "--accept", "much"])
    assert tree(root) == {"a": b"1", "b": b"1"}


def test_a_decision_has_to_accept_it_again(root: Path) -> None:
    with system.use(_Unsynced()):
        for end, expected in ((commit_prepared, {"a": b"new"}), (rollback_prepared, {"a": b"new"})):
            tx = FileTransaction(root, accept=_UNSYNCED).begin()
            tx.write("a", "new" if end is commit_prepared else "newer")
            decided = tx.prepare()
            tx._end(discard=False)
            end(root, decided, accept=_UNSYNCED)
            assert tree(root) == expected


def test_recovery_has_to_accept_it_and_reports_it(root: Path) -> None:
    with system.use(_Unsynced()):
        FileStore(root, accept=_UNSYNCED).update(lambda tx: tx.write("a", "old"))
    code = """
        from txfiles import FileTransaction
        from txfiles._disk import system
        class Dying(system.KernelFS):
            def rename(self, at, name, to, new):
                if new == b"a":
                    os.kill(os.getpid(), signal.SIGKILL)
                super().rename(at, name, to, new)
        with system.use(Dying()), FileTransaction(sys.argv[1]) as tx:
            tx.write("a", "new")
    """
    assert run_python(code, root).returncode < 0
    with system.use(_Unsynced()):
        with pytest.raises(OSError, match="cannot sync directories"):
            recover(root)
        with FileStore(root).snapshot() as snap:
            assert snap.read("a") in (b"old", b"new")
        report = recover(root, accept=_UNSYNCED)
    assert len(report.rolled_forward) == 1
    assert report.given_up == [GivenUp("unsynced-directories", str(root))]
    assert tree(root) == {"a": b"new"}


@pytest.mark.parametrize("accept", ["narrowed-modes", {"owners"}, [1]], ids=repr)
def test_unknown_names_are_refused_with_the_list(root: Path, accept: Any) -> None:
    for make in (FileTransaction, FileStore, recover):
        with pytest.raises(ValueError, match="'narrowed-modes', 'unsynced-directories'"):
            make(root, accept=accept)


@pytest.mark.needs("users")
def test_an_owner_that_cannot_be_kept_is_told_and_no_error() -> None:
    """Members of a group that replace each other's files."""
    code = """
        import logging
        logging.basicConfig(level="INFO", stream=sys.stdout, format="%(levelname)s %(message)s")
        from txfiles import FileTransaction
        with FileTransaction(sys.argv[1]) as tx:
            tx.write("a", "new")
            tx.write("b", "new")
            tx.write("fresh", "new")
        print([(lost.what, lost.path) for lost in tx.given_up])
    """
    with public_directory() as root:
        os.chown(root, 1000, 5000)
        root.chmod(0o2775)
        for name in ("a", "b"):
            (root / name).write_text("old", encoding="utf-8")
            os.chown(root / name, 1001, 5000)
            (root / name).chmod(0o664)
        said = run_python(code, root, **as_user(1000, groups=[5000])).check().stdout.splitlines()
        assert said[-1] == "[('changed-owners', 'a'), ('changed-owners', 'b')]"
        assert [line.split()[0] for line in said[:-1]] == ["INFO"]
        assert "'a' belongs to 1000:5000 now, not 1001:5000" in said[0]
        found = (root / "a").stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (1000, 5000, 0o664)


@pytest.mark.needs("users")
@pytest.mark.parametrize("accepted", [False, True])
def test_permissions_are_narrowed_only_where_that_was_accepted(accepted: bool) -> None:
    code = """
        import logging
        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
        from txfiles import FileTransaction
        with FileTransaction(sys.argv[1], accept=sys.argv[2:]) as tx:
            try:
                tx.write("a", "new")
            except PermissionError as error:
                print(error.filename, error)
        print([(lost.what, lost.path) for lost in tx.given_up])
    """
    with public_directory() as root:
        os.chown(root, 1000, 1000)
        (root / "a").write_text("old", encoding="utf-8")
        os.chown(root / "a", 1000, 4321)
        (root / "a").chmod(0o640)
        names = ["narrowed-modes"] if accepted else []
        said = run_python(code, root, *names, **as_user(1000)).check().stdout.splitlines()
        if accepted:
            assert said[0].startswith("WARNING")
            assert said[1] == "[('narrowed-modes', 'a')]"
        else:
            assert said[0].startswith("a ")
            assert 'accept={"narrowed-modes"}' in said[0]
            assert said[1] == "[]"
        assert (root / "a").read_text(encoding="utf-8") == ("new" if accepted else "old")
        assert (root / "a").stat().st_mode & 0o7777 == (0o600 if accepted else 0o640)
        assert problems(root) == []
