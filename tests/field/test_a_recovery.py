"""A: states that a crash, a hand or a bad disk leaves, and what the next opening makes of them."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import DEEP
from tests.support.as_user import as_user, public_directory
from tests.support.boundary import tree
from tests.support.debris import problems
from tests.support.disks import EXT4, Place
from tests.support.halfdone import NEW, OLD, die, everything, journal_of, staged
from tests.support.inject import Fault, each_call, traced
from tests.support.mounts import bind, run
from tests.support.procs import run_python
from txfiles import FileTransaction, recover
from txfiles.errors import RecoveryConflictError, RecoveryError

Places = Callable[[str], Place]
# -- A07, B31: states that a rename can leave -----------------------------------------------------------------------


def _target_gone(root: Path) -> None:
    (root / "b").unlink()


def _both_names(root: Path) -> None:
    (root / "b").unlink()
    os.link(staged(root, 1), root / "b")


def _done_by_hand(root: Path) -> None:
    os.rename(staged(root, 1), root / "b")


def _both_names_of_the_journal(root: Path) -> None:
    os.link(journal_of(root), journal_of(root).with_suffix(".intent"))


@pytest.mark.parametrize("applied", [0, 1])
def test_b31_a_target_that_is_gone_is_asked_about_in_the_same_boot(root: Path, applied: int) -> None:
    """Somebody may have removed it just as well."""
    die(root, applied)
    _target_gone(root)
    with pytest.raises(RecoveryConflictError, match="b"):
        recover(root)
    recover(root, on_conflict="roll-forward")
    assert tree(root) == NEW


@pytest.mark.parametrize("state", [_both_names, _done_by_hand, _both_names_of_the_journal])
@pytest.mark.parametrize("applied", [0, 1])
def test_a07_b31_states_that_a_rename_leaves_end_in_the_state_after(
    root: Path, state: Callable[[Path], None], applied: int
) -> None:
    die(root, applied)
    state(root)
    report = recover(root)
    assert tree(root) == NEW
    assert [done.paths for done in report.rolled_forward] == [["a", "b", "sub", "sub/c"]]
    assert report.removed == report.unknown == []


@pytest.mark.parametrize("applied", [0, 1])
def test_a07_both_names_of_an_intent_are_proof(root: Path, applied: int) -> None:
    """Without the journal's rename: a target that is the staged file shows that the commit point was passed."""
    die(root, applied)
    _both_names(root)
    journal_of(root).rename(journal_of(root).with_suffix(".intent"))
    recover(root)
    assert tree(root) == NEW


@pytest.mark.leaves_debris
@pytest.mark.parametrize("path", ["b", "sub/c"])
def test_a07_b31_a_file_that_is_in_neither_place_is_a_loud_error(root: Path, path: str) -> None:
    die(root, 3)
    (root / path).unlink()
    found = everything(root)
    with pytest.raises(RecoveryConflictError) as caught:
        recover(root)
    assert caught.value.paths == (path,)
    with pytest.raises(RecoveryConflictError, match=path):
        FileTransaction(root).begin()
    assert everything(root) == found
    recover(root, on_conflict="keep-theirs")
    assert tree(root) == {name: content for name, content in NEW.items() if name != path}


@pytest.mark.parametrize("lost", ["a", "b"])
def test_b31_an_undo_restores_a_target_that_is_gone(root: Path, lost: str) -> None:
    """The rename that failed took the target with it; the old file is still linked in the private directory."""
    die(root, 2)
    journal_of(root).rename(journal_of(root).with_suffix(".aborting"))
    (root / lost).unlink()
    with pytest.raises(RecoveryConflictError, match=f"'{lost}'"):  # somebody may have removed it
        recover(root)
    recover(root, on_conflict="roll-back")
    assert tree(root) == OLD


# -- A10: only "no such entry" means that there is nothing ----------------------------------------------------------

_OPENINGS = {
    "recover": "recover(sys.argv[1])",
    "begin": "FileTransaction(sys.argv[1]).begin().rollback()",
    "snapshot": "FileStore(sys.argv[1], timeout=0.1).snapshot('a').__enter__().close()",
}


@pytest.mark.needs("strace")
@pytest.mark.parametrize(
    "opening",
    [
        pytest.param(code, id=name, marks=pytest.mark.deep if name == "begin" else ())
        for name, code in _OPENINGS.items()
    ],
)
def test_a10_an_error_on_the_journal_is_not_no_journal(root: Path, tmp_path: Path, opening: str) -> None:
    code = f"""
        from txfiles import FileStore, FileTransaction, recover
        import txfiles._disk.system, txfiles._commit.recover, filelock, orjson
        with region():
            try:
                {opening}
            except (OSError, txfiles.errors.TxFilesError) as error:
                print(type(error).__name__, error)
                raise SystemExit(3)
    """
    die(root, 1)
    twin = tmp_path / "twin"

    def fresh() -> Path:
        shutil.rmtree(twin, ignore_errors=True)
        run("cp", "-a", root, twin)
        return twin

    calls = each_call(code, fresh(), calls=("openat", "newfstatat", "statx", "getdents64", "read"))
    on_journal = [call for call in calls if any(path.endswith(".committed/") for path in call.paths)]
    on_journal += [call for call in calls if any(path.endswith((".committed", "/.txfiles")) for path in call.paths)]
    seen = set()
    for call in on_journal:
        if call.name in seen or call.error:
            continue
        seen.add(call.name)
        for error in (
            ("EIO", "EACCES" if call.name == "openat" else "ESTALE") if DEEP or "recover" in opening else ("EIO",)
        ):
            found = everything(fresh())
            done = traced(code, twin, faults=[Fault(call.name, error=error, when=call.nth)])
            assert done.returncode == 3, (call, error, done)
            assert everything(twin) == found, (call, error)
    assert {"openat", "newfstatat", "getdents64", "read"} <= seen
    recover(root)


def _begin(root: Path) -> None:
    FileTransaction(root).begin().rollback()


@contextmanager
def _descriptors(spare: int) -> Iterator[None]:
    """Only so many more descriptors can be had inside."""
    taken = {int(name) for name in os.listdir("/proc/self/fd")}
    free = [number for number in range(len(taken) + spare + 2) if number not in taken]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("opening", [recover, _begin])
def test_a10_without_descriptors_nothing_is_taken_for_absent(root: Path, opening: Callable[[Path], object]) -> None:
    die(root, 1)
    found = everything(root)
    for spare in range(20):
        try:
            with _descriptors(spare):
                opening(root)
            break
        except OSError as error:
            failed = error.errno
        assert failed == errno.EMFILE
        if spare <= 3:  # the root, the private directory, the lock; and no journal yet
            assert everything(root) == found
    assert spare > 4
    assert tree(root) == NEW


@pytest.mark.needs("users")
@pytest.mark.leaves_debris
def test_a10_who_may_not_look_is_told_so(tmp_path: Path) -> None:
    with public_directory(0o777) as root:
        die(root, 1)
        found = everything(root)
        done = run_python(
            """
            from txfiles import FileStore, FileTransaction, recover, status
            for look in (recover, status, lambda r: FileTransaction(r).begin(), lambda r: FileStore(r).state_version()):
                try:
                    look(sys.argv[1])
                except PermissionError as error:
                    print(".txfiles" in str(error))
            """,
            root,
            **as_user(1000),
        ).check()
        assert done.stdout == "True\n" * 4
        assert everything(root) == found


# -- A25: edits around the crash ------------------------------------------------------------------------------------


def _in_place(path: Path) -> None:
    path.write_text("theirs", encoding="utf-8")


def _same_length(path: Path) -> None:
    time.sleep(0.01)
    path.write_text("OLD b", encoding="utf-8")


def _by_an_editor(path: Path) -> None:
    path.with_name("temporary").write_text("theirs", encoding="utf-8")
    path.with_name("temporary").rename(path)


def _restored(path: Path) -> None:
    """From a backup, with the old time: same size, same mtime, another inode."""
    info = path.stat()
    path.with_name("temporary").write_text("OLD b", encoding="utf-8")
    os.utime(path.with_name("temporary"), ns=(info.st_atime_ns, info.st_mtime_ns))
    path.with_name("temporary").rename(path)


def _became_a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("a")


def _became_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


_EDITS = [_in_place, _same_length, _by_an_editor, _restored, _became_a_link, _became_a_directory]


@pytest.mark.parametrize("edit", _EDITS)
@pytest.mark.parametrize("applied", [0, 1])
def test_a25_an_edit_by_hand_is_not_overwritten(root: Path, edit: Callable[[Path], None], applied: int) -> None:
    die(root, applied)
    edit(root / "b")
    found = everything(root)
    for opening in (recover, lambda root: FileTransaction(root).begin()):
        with pytest.raises(RecoveryConflictError) as caught:
            opening(root)  # type: ignore[operator]
        assert caught.value.paths == ("b",)
        assert everything(root) == found, "nothing was touched"
    theirs = tree(root)["b"]
    report = recover(root, on_conflict="keep-theirs")
    assert len(report.rolled_forward) == 1
    assert tree(root) == {**NEW, "b": theirs}


@pytest.mark.parametrize("decision", ["roll-forward", "roll-back"])
def test_a25_the_conflict_is_decided_by_the_caller(root: Path, decision: str) -> None:
    die(root, 1)
    (root / "b").write_text("theirs", encoding="utf-8")
    recover(root, on_conflict=decision)  # type: ignore[arg-type]
    assert tree(root) == (NEW if decision == "roll-forward" else {"a": b"old a", "b": b"theirs"})


@pytest.mark.parametrize("applied", [1, 2, 3])
def test_a25_an_edit_of_what_was_applied_already_is_kept(root: Path, applied: int) -> None:
    die(root, applied)
    (root / "a").write_text("edited after the new one was there", encoding="utf-8")
    recover(root)
    assert tree(root) == {**NEW, "a": b"edited after the new one was there"}


@pytest.mark.parametrize("edit", [_in_place, _by_an_editor])
def test_a25_a_new_file_where_the_crash_left_none(root: Path, edit: Callable[[Path], None]) -> None:
    die(root, 0)
    (root / "sub").mkdir(exist_ok=True)
    edit(root / "sub/c")
    with pytest.raises(RecoveryConflictError):
        recover(root)
    assert (root / "sub/c").read_text(encoding="utf-8") == "theirs"
    recover(root, on_conflict="keep-theirs")
    assert tree(root) == {**NEW, "sub/c": b"theirs"}


# -- A27: the directory is somewhere else ---------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [-1, 0, 1, 2])
@pytest.mark.parametrize("how", ["mv", "cp -a", "bind", "other name"])
@pytest.mark.needs("mount")
def test_a27_recovery_works_after_the_directory_moved(
    tmp_path: Path, watch: Callable[[Path], Path], how: str, applied: int
) -> None:
    origin, there = tmp_path / "origin", tmp_path / "somewhere" / "else"
    origin.mkdir()
    there.parent.mkdir()
    die(origin, applied)
    if how == "bind":
        with bind(origin, there):
            recover(there)
            assert tree(there) == (OLD if applied == -1 else NEW)
            assert problems(there) == []
        return
    if how == "cp -a":
        run("cp", "-a", origin, there)
    else:
        shutil.move(origin, there)
    if how == "other name":
        origin.mkdir()  # what the old path now leads to is nobody's business
        (origin / "b").write_text("a stranger", encoding="utf-8")
    _begin(watch(there))
    assert tree(there) == (OLD if applied == -1 else NEW)
    if how == "other name":
        assert tree(origin) == {"b": b"a stranger"}
    if how == "cp -a":
        _begin(origin)
        assert tree(origin) == tree(there)


@pytest.mark.parametrize("filesystem", [EXT4])
@pytest.mark.parametrize("applied", [0, 1])
def test_a27_a_disk_that_is_mounted_elsewhere(place: Places, filesystem: str, applied: int) -> None:
    here = place(filesystem)
    die(here.root, applied)
    here.sync()
    with here.after_power_loss() as there:
        assert there.stat().st_dev != here.root.stat().st_dev
        _begin(there)
        assert tree(there) == NEW
        assert problems(there) == []
    _begin(here.root)


@pytest.mark.leaves_debris
def test_a27_a_copy_that_lost_the_times_is_not_guessed_at(tmp_path: Path) -> None:
    """Nothing then tells an old file from an edited one."""
    origin, there = tmp_path / "origin", tmp_path / "there"
    origin.mkdir()
    die(origin, 1)
    shutil.copytree(origin, there, copy_function=shutil.copyfile)
    found = tree(there)
    with pytest.raises(RecoveryError):
        recover(there)
    assert tree(there) == found
