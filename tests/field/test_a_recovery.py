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
from tests.support.boundary import killed, tree
from tests.support.debris import problems
from tests.support.disks import EXT4, Place
from tests.support.inject import Fault, each_call, traced
from tests.support.mounts import bind, run
from tests.support.procs import run_python
from txfiles import FileTransaction, _layout, recover, status
from txfiles.errors import JournalCorruptError, JournalVersionError, RecoveryConflictError, RecoveryError

Places = Callable[[str], Place]
OLD = {"a": b"old a", "b": b"old b"}
NEW = {"a": b"new a\n", "b": b"new b\n", "sub": None, "sub/c": b"new c\n"}


def _change(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "new a\n")
        tx.write("b", "new b\n")
        tx.write("sub/c", "new c\n")


def _furnish(root: Path) -> None:
    """Settled once, so that a commit does not sync the home again."""
    with FileTransaction(root) as tx:
        tx.write("a", "old a")
        tx.write("b", "old b")


def _died(root: Path, applied: int) -> None:
    """A commit that died before the journal's rename (-1) or after it and `applied` files."""
    _furnish(root)
    killed(lambda: _change(root), "rename", applied + 2)


def _private(root: Path, *kinds: str) -> list[Path]:
    found = [path for path in (root / ".txfiles").iterdir() if _layout.parse(os.fsencode(path.name)).kind in kinds]
    return sorted(found, key=lambda path: path.name)


def _token(root: Path, number: int) -> Path:
    """The staged file of `a`, `b` or `sub/c`."""
    [path] = [path for path in _private(root, "token") if path.suffix == f".{number}"]
    return path


def _journal(root: Path) -> Path:
    [path] = _private(root, "intent", "committed", "aborting", "prepared")
    return path


def _everything(root: Path) -> dict[str, object]:
    """All that is on disk, the private directory too."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path.relative_to(root))] = (info.st_mode, info.st_ino, info.st_nlink, info.st_mtime_ns, content)
    return found


# -- A07, B31: states that a rename can leave -----------------------------------------------------------------------


def _target_gone(root: Path) -> None:
    (root / "b").unlink()


def _both_names(root: Path) -> None:
    (root / "b").unlink()
    os.link(_token(root, 1), root / "b")


def _done_by_hand(root: Path) -> None:
    os.rename(_token(root, 1), root / "b")


def _both_names_of_the_journal(root: Path) -> None:
    os.link(_journal(root), _journal(root).with_suffix(".intent"))


@pytest.mark.parametrize("state", [_target_gone, _both_names, _done_by_hand, _both_names_of_the_journal])
@pytest.mark.parametrize("applied", [0, 1])
def test_a07_b31_states_that_a_rename_leaves_end_in_the_state_after(
    root: Path, state: Callable[[Path], None], applied: int
) -> None:
    _died(root, applied)
    state(root)
    report = recover(root)
    assert tree(root) == NEW
    assert [done.paths for done in report.rolled_forward] == [["a", "b", "sub", "sub/c"]]
    assert report.removed == report.unknown == []


@pytest.mark.parametrize("applied", [0, 1])
def test_a07_both_names_of_an_intent_are_proof(root: Path, applied: int) -> None:
    """Without the journal's rename: a target that is the staged file shows that the commit point was passed."""
    _died(root, applied)
    _both_names(root)
    _journal(root).rename(_journal(root).with_suffix(".intent"))
    recover(root)
    assert tree(root) == NEW


@pytest.mark.leaves_debris
@pytest.mark.parametrize("path", ["b", "sub/c"])
def test_a07_b31_a_file_that_is_in_neither_place_is_a_loud_error(root: Path, path: str) -> None:
    _died(root, 3)
    (root / path).unlink()
    found = _everything(root)
    with pytest.raises(RecoveryConflictError) as caught:
        recover(root)
    assert caught.value.paths == (path,)
    with pytest.raises(RecoveryConflictError, match=path):
        FileTransaction(root).begin()
    assert _everything(root) == found
    recover(root, on_conflict="keep-theirs")
    assert tree(root) == {name: content for name, content in NEW.items() if name != path}


@pytest.mark.parametrize("lost", ["a", "b"])
def test_b31_an_undo_restores_a_target_that_is_gone(root: Path, lost: str) -> None:
    """The rename that failed took the target with it; the old file is still linked in the private directory."""
    _died(root, 2)
    _journal(root).rename(_journal(root).with_suffix(".aborting"))
    (root / lost).unlink()
    recover(root)
    assert tree(root) == OLD


# -- A10: only "no such entry" means that there is nothing ----------------------------------------------------------

_OPENINGS = {
    "recover": "recover(sys.argv[1])",
    "begin": "FileTransaction(sys.argv[1]).begin().rollback()",
    "snapshot": "FileStore(sys.argv[1], timeout=0.1).snapshot('a').__enter__().close()",
}


@pytest.mark.needs("strace")
@pytest.mark.parametrize("opening", _OPENINGS.values(), ids=_OPENINGS)
def test_a10_an_error_on_the_journal_is_not_no_journal(root: Path, tmp_path: Path, opening: str) -> None:
    code = f"""
        from txfiles import FileStore, FileTransaction, recover
        import txfiles._fs, txfiles._recover, filelock, orjson
        with region():
            try:
                {opening}
            except (OSError, txfiles.errors.TxFilesError) as error:
                print(type(error).__name__, error)
                raise SystemExit(3)
    """
    _died(root, 1)
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
            found = _everything(fresh())
            done = traced(code, twin, faults=[Fault(call.name, error=error, when=call.nth)])
            assert done.returncode == 3, (call, error, done)
            assert _everything(twin) == found, (call, error)
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
    _died(root, 1)
    found = _everything(root)
    for spare in range(20):
        try:
            with _descriptors(spare):
                opening(root)
            break
        except OSError as error:
            failed = error.errno
        assert failed == errno.EMFILE
        if spare <= 3:  # the root, the private directory, the lock; and no journal yet
            assert _everything(root) == found
    assert spare > 4
    assert tree(root) == NEW


@pytest.mark.needs("users")
@pytest.mark.leaves_debris
def test_a10_who_may_not_look_is_told_so(tmp_path: Path) -> None:
    with public_directory(0o777) as root:
        _died(root, 1)
        found = _everything(root)
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
        assert _everything(root) == found


# -- A15: two journals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["intent", "committed"])
@pytest.mark.parametrize("damage", [b"", b"txfiles journal 1 900 ", b"\0" * 900])
def test_a15_a_torn_journal_does_not_hide_a_whole_one(root: Path, state: str, damage: bytes) -> None:
    _died(root, 1)
    torn = root / ".txfiles" / f"{'0' * 32}.{state}"
    torn.write_bytes(damage)
    if state == "intent":
        report = recover(root)
        assert report.removed == [torn.name], "and said so"
    else:
        found = _everything(root)
        with pytest.raises(JournalCorruptError, match=torn.name):
            recover(root)
        assert _everything(root) == found, "the whole one waits, too"
        assert {p.error is None for p in status(root).pending} == {True, False}
        torn.unlink()
        report = recover(root)
    assert len(report.rolled_forward) == 1
    assert tree(root) == NEW


# -- A16, A21: a journal that is damaged ----------------------------------------------------------------------------


def test_a16_an_intent_cut_at_every_byte_was_never_committed(memory: Path) -> None:
    _died(memory, -1)
    intent, token = _journal(memory), _token(memory, 1)
    whole = intent.read_bytes()
    for length in range(len(whole)):
        intent.write_bytes(whole[:length])
        token.write_bytes(b"new b\n")
        report = recover(memory)
        assert tree(memory) == OLD, f"cut at {length}"
        assert not report.rolled_forward
        assert problems(memory) == []


@pytest.mark.parametrize("applied", [0, 1])
def test_a16_a_committed_journal_cut_at_any_byte_is_damage(memory: Path, applied: int) -> None:
    """It was renamed after its sync, so that it cannot be torn."""
    _died(memory, applied)
    journal, found = _journal(memory), tree(memory)
    whole = journal.read_bytes()
    for length in range(len(whole)):
        journal.write_bytes(whole[:length])
        with pytest.raises(JournalCorruptError, match=journal.name):
            recover(memory)
        assert tree(memory) == found, f"cut at {length}"
    journal.write_bytes(whole)
    recover(memory)
    assert tree(memory) == NEW


def _flips(length: int) -> list[tuple[int, int]]:
    return [(at, 1 << at % 8) for at in range(length)]


@pytest.mark.parametrize("applied", [0, 1])
def test_a21_a_flipped_bit_anywhere_in_the_journal(memory: Path, applied: int) -> None:
    _died(memory, applied)
    journal, found = _journal(memory), tree(memory)
    whole = journal.read_bytes()
    for at, bit in _flips(len(whole)):
        journal.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        with pytest.raises((JournalCorruptError, JournalVersionError)):
            recover(memory)
        assert tree(memory) == found, f"bit {bit} of byte {at}"
    journal.write_bytes(whole)
    recover(memory)
    assert tree(memory) == NEW


@pytest.mark.parametrize("applied", [-1, 0, 1])
def test_a21_a_flipped_bit_anywhere_in_a_staged_file(memory: Path, applied: int) -> None:
    _died(memory, applied)
    found = tree(memory)
    for token in _private(memory, "token"):
        whole = token.read_bytes()
        for at, bit in _flips(len(whole)):
            with token.open("r+b") as file:
                file.seek(at)
                file.write(bytes([whole[at] ^ bit]))
            if applied == -1:
                assert status(memory).pending[0].state == "intent"
            else:
                with pytest.raises(RecoveryError, match="damaged"):
                    recover(memory)
            assert tree(memory) == found
        token.write_bytes(whole)
    if applied == -1:
        _token(memory, 0).write_bytes(b"bad a\n")
    recover(memory)
    assert tree(memory) == (OLD if applied == -1 else NEW)


@pytest.mark.parametrize("damage", ["mode", "owner", "shorter", "longer", "missing", "a link"])
def test_a21_a_staged_file_that_is_otherwise_not_what_it_was(root: Path, damage: str, tmp_path: Path) -> None:
    _died(root, 1)
    found = tree(root)
    token = _token(root, 1)
    aside = tmp_path / "aside"
    run("cp", "-a", token, aside)
    if damage == "mode":
        token.chmod(0o666)
    elif damage == "owner":
        os.chown(token, 1234, 1234)
    elif damage in ("shorter", "longer"):
        os.truncate(token, 3 if damage == "shorter" else 30)
    else:
        token.unlink()
        if damage == "a link":
            token.symlink_to(aside)
    with pytest.raises(RecoveryError, match=r"'b' is (damaged|missing)|since the crash: 'b'"):
        recover(root)
    assert tree(root) == found
    token.unlink(missing_ok=True)
    aside.rename(token)
    recover(root)
    assert tree(root) == NEW


# -- A25: edits around the crash ------------------------------------------------------------------------------------


def _in_place(path: Path) -> None:
    path.write_text("theirs")


def _same_length(path: Path) -> None:
    time.sleep(0.01)
    path.write_text("OLD b")


def _by_an_editor(path: Path) -> None:
    path.with_name("temporary").write_text("theirs")
    path.with_name("temporary").rename(path)


def _restored(path: Path) -> None:
    """From a backup, with the old time: same size, same mtime, another inode."""
    info = path.stat()
    path.with_name("temporary").write_text("OLD b")
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
    _died(root, applied)
    edit(root / "b")
    found = _everything(root)
    for opening in (recover, lambda root: FileTransaction(root).begin()):
        with pytest.raises(RecoveryConflictError) as caught:
            opening(root)  # type: ignore[operator]
        assert caught.value.paths == ("b",)
        assert _everything(root) == found, "nothing was touched"
    theirs = tree(root)["b"]
    report = recover(root, on_conflict="keep-theirs")
    assert len(report.rolled_forward) == 1
    assert tree(root) == {**NEW, "b": theirs}


@pytest.mark.parametrize("decision", ["roll-forward", "roll-back"])
def test_a25_the_conflict_is_decided_by_the_caller(root: Path, decision: str) -> None:
    _died(root, 1)
    (root / "b").write_text("theirs")
    recover(root, on_conflict=decision)  # type: ignore[arg-type]
    assert tree(root) == (NEW if decision == "roll-forward" else {"a": b"old a", "b": b"theirs"})


@pytest.mark.parametrize("applied", [1, 2, 3])
def test_a25_an_edit_of_what_was_applied_already_is_kept(root: Path, applied: int) -> None:
    _died(root, applied)
    (root / "a").write_text("edited after the new one was there")
    recover(root)
    assert tree(root) == {**NEW, "a": b"edited after the new one was there"}


@pytest.mark.parametrize("edit", [_in_place, _by_an_editor])
def test_a25_a_new_file_where_the_crash_left_none(root: Path, edit: Callable[[Path], None]) -> None:
    _died(root, 0)
    (root / "sub").mkdir(exist_ok=True)
    edit(root / "sub/c")
    with pytest.raises(RecoveryConflictError):
        recover(root)
    assert (root / "sub/c").read_text() == "theirs"
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
    _died(origin, applied)
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
        (origin / "b").write_text("a stranger")
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
    _died(here.root, applied)
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
    _died(origin, 1)
    shutil.copytree(origin, there, copy_function=shutil.copyfile)
    found = tree(there)
    with pytest.raises(RecoveryError):
        recover(there)
    assert tree(there) == found
