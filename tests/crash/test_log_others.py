"""What people and programs do to a tree whose log was left behind, long after its last commit, before a restart."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.test_journal_level import SYNCS, Calls, records
from tests.crash.test_kill import _in_child as in_child
from tests.crash.test_reader_log import FORBIDDEN
from tests.support.boundary import killed, nth_call, tree
from tests.support.disks import Restarted
from tests.support.loop import loop_fs
from tests.support.mounts import bind
from txfiles import FileStore, FileTransaction, OnConflict, recover
from txfiles._disk import system
from txfiles.errors import RecoveryConflictError, SettleError
from txfiles.testing._faults import FaultyFS

HOUR = 3_600_000_000_000


class AfterAll(Restarted):
    """The machine was started when all this had been done."""

    def booted(self) -> int:
        return time.time_ns() + HOUR


class AnHourAgo(system.KernelFS):
    def now(self) -> int:
        return super().now() - HOUR


def commit(root: Path, **contents: str | None) -> None:
    """An hour ago, and nobody has checkpointed it."""
    with system.use(AnHourAgo()):
        change(root, **contents)


def change(root: Path, **contents: str | None) -> None:
    with FileTransaction(root, durability="journal") as tx:
        for name, content in contents.items():
            if content is None:
                tx.delete(name)
            else:
                tx.write(name, content)


def restarted(root: Path) -> None:
    with system.use(AfterAll()):
        recover(root)


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.fixture
def old(root: Path) -> Path:
    """A root whose log knows two states of `a`; the older is kept beside it as a backup."""
    commit(root, a="older", b="b", c="c")
    FileStore(root).checkpoint()
    shutil.copy2(root / "a", root.parent / "backup")
    commit(root, a="newer", c=None, new="new")
    return root


def makes_again(root: Path) -> Callable[[], bool]:
    (root / "c").write_text("theirs", encoding="utf-8")
    return lambda: text(root / "c") == "theirs"


def changes_the_mode(root: Path) -> Callable[[], bool]:
    (root / "a").chmod(0o600)
    return lambda: (root / "a").stat().st_mode & 0o777 == 0o600


def copies_the_backup_over_it(root: Path) -> Callable[[], bool]:
    """`cp -p`: the file stays, with the older time."""
    shutil.copy2(root.parent / "backup", root / "a")
    return lambda: text(root / "a") == "older"


def moves_the_backup_over_it(root: Path) -> Callable[[], bool]:
    """`rsync -a`, tar: a new file with the older time."""
    shutil.copy2(root.parent / "backup", root / "new")
    os.replace(root / "new", root / "a")
    return lambda: text(root / "a") == "older"


def edits(root: Path) -> Callable[[], bool]:
    (root / "a").write_text("theirs", encoding="utf-8")
    return lambda: text(root / "a") == "theirs"


def edits_without_a_change_of_size(root: Path) -> Callable[[], bool]:
    (root / "a").write_text("NEWER", encoding="utf-8")
    return lambda: text(root / "a") == "NEWER"


def moves_something_old_over_it(root: Path) -> Callable[[], bool]:
    (root / "else").write_text("from long ago", encoding="utf-8")
    os.utime(root / "else", ns=(0, 0))
    os.replace(root / "else", root / "a")
    return lambda: text(root / "a") == "from long ago"


DEEDS = [
    makes_again,
    changes_the_mode,
    copies_the_backup_over_it,
    moves_the_backup_over_it,
    edits,
    edits_without_a_change_of_size,
    moves_something_old_over_it,
]


@pytest.mark.parametrize("deed", DEEDS)
def test_what_they_did_stays(old: Path, deed: Callable[[Path], Callable[[], bool]]) -> None:
    is_there = deed(old)
    restarted(old)
    assert is_there()
    assert text(old / "new") == "new"
    with FileStore(old, durability="journal").transaction() as tx:
        tx.write("other", "goes on")
    assert is_there()


def test_a_torn_file_is_put_right_whoever_has_changed_its_mode_since(old: Path) -> None:
    """As a start of a container does, and then the machine starts once more."""
    found = (old / "a").stat()
    os.truncate(old / "a", 0)
    os.utime(old / "a", ns=(found.st_atime_ns, found.st_mtime_ns))
    (old / "a").chmod(0o600)
    restarted(old)
    assert text(old / "a") == "newer"


def test_a_new_file_that_is_not_there_comes_back(old: Path) -> None:
    """A power loss takes a name that was new, and nobody can tell from the directory: others have been there since."""
    (old / "new").unlink()
    (old / "theirs").touch()
    restarted(old)
    assert text(old / "new") == "new"


def test_a_directory_in_the_place_of_a_file_stays(old: Path) -> None:
    (old / "a").unlink()
    (old / "a").mkdir()
    (old / "a" / "theirs").touch()
    commit(old, b="x" * (old / "a").stat().st_size)
    (old / "b").unlink()
    (old / "b").mkdir()
    restarted(old)
    assert (old / "a" / "theirs").exists()
    assert (old / "b").is_dir()


@pytest.mark.parametrize("is_file", [False, True])
def test_what_was_in_a_directory_that_they_removed_stays_away(old: Path, is_file: bool) -> None:
    (old / "d" / "deep").mkdir(parents=True)
    commit(old, **{"d/f": "in it", "d/deep/g": "below"})
    shutil.rmtree(old / "d")
    if is_file:
        (old / "d").write_text("theirs", encoding="utf-8")
    restarted(old)
    assert (old / "d").is_file() == (old / "d").exists() == is_file
    assert text(old / "new") == "new"


def test_what_they_edited_in_a_directory_that_they_moved_stays(old: Path) -> None:
    (old / "d").mkdir()
    commit(old, **{"d/f": "in it"})
    (old / "d").rename(old / "e")
    (old / "e" / "f").write_text("edited", encoding="utf-8")
    restarted(old)
    assert text(old / "e" / "f") == "edited"


def with_number(place: Path, number: int) -> Path:
    """A new file that has got this inode number, which is free."""
    place.mkdir()
    for attempt in range(1000):
        (place / str(attempt)).write_text("unpacked", encoding="utf-8")
        if (place / str(attempt)).stat().st_ino == number:
            return place / str(attempt)
    pytest.fail("the number does not come back")


@pytest.mark.needs("loop", "ext4")
@pytest.mark.parametrize("mtime", [0, -1])
def test_a_file_that_got_the_number_of_one_they_removed_with_its_directory_is_theirs(
    tmp_path: Path, mtime: int
) -> None:
    """`tar x` gives files their old times."""
    with loop_fs(tmp_path) as fs:
        root = fs.path / "root"
        (root / "d").mkdir(parents=True)
        commit(root, **{"d/f": "in it, and longer"})
        removed = (root / "d" / "f").stat()
        shutil.rmtree(root / "d")
        found = with_number(root / "e", removed.st_ino)
        when = removed.st_mtime_ns + mtime if mtime else 0
        os.utime(found, ns=(when, when))
        restarted(root)
        assert text(found) == "unpacked"


def test_a_directory_that_they_moved_and_nobody_else_may_read_is_no_obstacle(old: Path) -> None:
    (old / "d").mkdir()
    commit(old, **{"d/f": "in it"})
    (old / "d").rename(old / "e")
    with system.use(refusing(b"f")):
        recover(old)
    assert records(old) == 0


def refusing(name: bytes) -> system.FileSystem:
    class Refusing(AfterAll):
        def stat(self, at: int | None, path: bytes) -> system.Stat:
            if path == name:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return super().stat(at, path)

    return Refusing()


REFUSED: list[OnConflict] = ["raise", "roll-back"]  # there is no way back to before what is over


@pytest.mark.parametrize("deed", [edits, edits_without_a_change_of_size, moves_something_old_over_it, makes_again])
@pytest.mark.parametrize("decision", ["keep-theirs", "roll-forward"])
def test_what_they_did_since_the_restart_is_for_somebody_to_decide(
    old: Path, deed: Callable[[Path], Callable[[], bool]], decision: OnConflict
) -> None:
    is_there = deed(old)
    before = tree(old)
    with system.use(Restarted()):
        for nothing in REFUSED:
            with pytest.raises(RecoveryConflictError):
                recover(old, on_conflict=nothing)
            assert tree(old) == before
        recover(old, on_conflict=decision)
    if decision == "keep-theirs":
        assert is_there()
    else:
        assert (text(old / "a"), (old / "c").exists()) == ("newer", False)


def removes(root: Path) -> Callable[[], bool]:
    (root / "a").unlink()
    return lambda: not (root / "a").exists()


@pytest.mark.parametrize("deed", [*DEEDS, removes])
@pytest.mark.parametrize("fails", [False, True])
def test_what_they_did_before_a_checkpoint_that_fails_or_is_killed_stays(
    old: Path, deed: Callable[[Path], Callable[[], bool]], fails: bool
) -> None:
    """What they left alone is put in place anew, for its sync may have failed."""
    commit(old, b="again")
    is_there = deed(old)
    inode = (old / "b").stat().st_ino
    if fails:
        with system.use(nth_call("sync_file", 1, raise_eio)):
            FileStore(old).checkpoint()
    else:
        killed(FileStore(old).checkpoint, "write_at", 2)
        report = recover(old)
        assert not report.clean
        assert not report.kept
    assert is_there()
    assert text(old / "b") == "again"
    assert (old / "b").stat().st_ino != inode
    assert records(old) == 0


def test_a_reader_that_cannot_recover_sees_what_they_did_before_a_checkpoint_was_killed(old: Path) -> None:
    def allow(_: int, name: str) -> None:
        if name in FORBIDDEN:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    removes(old)
    commit(old, b="b again")
    (old / "b").write_text("edited!", encoding="utf-8")
    killed(FileStore(old).checkpoint, "write_at", 2)
    with system.use(FaultyFS(system.KernelFS(), allow)), FileStore(old).snapshot() as snap:  # type: ignore[arg-type]
        assert not snap.exists("a")
        assert (snap.read_text("b"), snap.read_text("new")) == ("edited!", "new")
    assert records(old) > 0


def raise_eio() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.needs("mount")
@pytest.mark.parametrize("deed", DEEDS)
def test_what_they_did_stays_where_the_next_one_comes_by_another_mount(
    old: Path, tmp_path: Path, deed: Callable[[Path], Callable[[], bool]]
) -> None:
    """Where nothing says that a sync has failed, what is whole is left as it is."""
    commit(old, b="again")
    is_there = deed(old)
    before = (old / "b").stat().st_ino
    with bind(old, tmp_path / "again") as again:
        recover(again)
    assert is_there()
    assert (old / "b").stat().st_ino == before
    assert records(old) == 0


@pytest.mark.needs("mount")
def test_where_a_sync_may_have_failed_the_next_one_puts_it_anew_by_another_mount(old: Path, tmp_path: Path) -> None:
    before = (old / "new").stat().st_ino
    killed(FileStore(old).checkpoint, "write_at", 2)
    with bind(old, tmp_path / "again") as again:
        recover(again)
    assert (old / "new").stat().st_ino != before
    assert text(old / "new") == "new"


def test_after_a_restart_nothing_that_is_whole_is_written_again(old: Path) -> None:
    """Whatever sync has failed before: what can be read came from the disk."""
    killed(FileStore(old).checkpoint, "write_at", 2)
    before = (old / "new").stat().st_ino
    restarted(old)
    assert (old / "new").stat().st_ino == before


def test_a_mode_that_was_changed_since_a_kill_is_a_conflict(old: Path) -> None:
    killed(lambda: change(old, a="newest", b="new b"), "exchange", 2, inner=AnHourAgo())
    (old / "b").chmod(0o600)
    with pytest.raises(RecoveryConflictError, match="'b'"):
        recover(old)
    assert (text(old / "a"), text(old / "b")) == ("newest", "b")
    recover(old, on_conflict="keep-theirs")
    assert (text(old / "b"), (old / "b").stat().st_mode & 0o777) == ("b", 0o600)


def test_a_commit_is_rolled_back_beside_an_earlier_file_that_they_have_edited(old: Path) -> None:
    (old / "new").write_text("edited", encoding="utf-8")
    killed(lambda: change(old, a="newest", b="new b"), "exchange", 2, inner=AnHourAgo())
    (old / "b").write_text("theirs", encoding="utf-8")
    assert recover(old, on_conflict="roll-back").kept == []
    assert [text(old / name) for name in ("a", "b", "new")] == ["newer", "theirs", "edited"]
    assert recover(old).clean


def test_what_cannot_be_rolled_back_is_told(old: Path) -> None:
    killed(lambda: change(old, a="newest", b="new b"), "exchange", 2, inner=AnHourAgo())
    (old / "a").write_text("edited", encoding="utf-8")
    (old / "b").write_text("theirs", encoding="utf-8")
    assert recover(old, on_conflict="roll-back").kept == ["a"]
    assert [text(old / name) for name in "ab"] == ["edited", "theirs"]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("content", ["new b", None])
def test_a_directory_in_the_way_is_not_overwritten(old: Path, restart: bool, content: str | None) -> None:
    """Nor is anything else then."""
    call = "rename_new" if content is None else "exchange"
    killed(lambda: change(old, a="newest", b=content), call, 1, inner=AnHourAgo())
    (old / "b").unlink(missing_ok=True)
    (old / "b").mkdir()
    before = tree(old)
    with system.use(Restarted() if restart else system.KernelFS()):
        if restart:
            (old / ".txfiles" / "tail").unlink()
        with pytest.raises(RecoveryConflictError, match="'b'"):
            recover(old, on_conflict="roll-forward")
        assert tree(old) == before
        recover(old, on_conflict="keep-theirs")
    assert (text(old / "a"), (old / "b").is_dir()) == ("newest", True)


@pytest.mark.parametrize("decision", ["keep-theirs", "roll-forward", "roll-back"])
@pytest.mark.parametrize("is_file", [False, True])
def test_a_directory_that_is_gone_since_a_kill(old: Path, decision: OnConflict, is_file: bool) -> None:
    (old / "d").mkdir()
    commit(old, **{"d/x": "old x", "d/y": "old y"})
    killed(
        lambda: change(old, **{"a": "newest", "d/x": "new x", "d/y": None, "z": "new z"}),
        "exchange",
        2,
        inner=AnHourAgo(),
    )
    shutil.rmtree(old / "d")
    if is_file:
        (old / "d").write_text("theirs", encoding="utf-8")
    with pytest.raises(RecoveryConflictError, match="'d/x'"):
        recover(old)
    if is_file and decision == "roll-forward":
        with pytest.raises(OSError, match="d/x"):
            recover(old, on_conflict=decision)
        recover(old, on_conflict="keep-theirs")
        return
    recover(old, on_conflict=decision)
    assert (text(old / "a"), (old / "z").exists()) == (
        ("newer", False) if decision == "roll-back" else ("newest", True)
    )
    assert (old / "d" / "x").exists() == (decision == "roll-forward")
    assert recover(old).clean


def test_a_recovery_that_fails_leaves_nothing_behind(old: Path) -> None:
    found = (old / "a").stat()
    os.truncate(old / "a", 0)
    os.utime(old / "a", ns=(found.st_atime_ns, found.st_mtime_ns))
    before = set(os.listdir(old / ".txfiles"))
    with system.use(nth_call("rename", 1, raise_eio, Restarted())), pytest.raises(OSError, match="'a'"):
        recover(old)
    assert set(os.listdir(old / ".txfiles")) == before
    restarted(old)
    assert text(old / "a") == "newer"


def test_in_a_copy_everything_was_changed_when_it_was_copied(old: Path) -> None:
    copy = old.parent / "copy"
    shutil.copytree(old, copy)
    shutil.copy2(old.parent / "backup", copy / "a")  # as a power loss had left the original
    (copy / "new").unlink()
    restarted(copy)
    assert (text(copy / "a"), text(copy / "new")) == ("newer", "new")
    recover(copy)
    with system.use(fs := Calls()):
        FileTransaction(copy).begin().rollback()
    assert not SYNCS.intersection(fs.made), "its log is one of its own by now"


class Suspended(system.KernelFS):
    """The machine sleeps in a commit."""

    slept = 0

    def now(self) -> int:
        return super().now() + self.slept

    def sync_data(self, fd: int) -> None:
        super().sync_data(fd)
        self.slept += HOUR


def test_a_commit_that_took_long_is_not_left_in_the_log(root: Path) -> None:
    """Its files are changed long after its record was written, and could be taken for somebody else's."""
    with system.use(Suspended()), FileTransaction(root, durability="journal") as tx:
        tx.write("a", "1")
    assert records(root) == 0
    with FileTransaction(root, durability="journal") as tx:
        tx.write("a", "2")
    assert records(root) == 1


def test_where_that_cannot_be_made_durable_the_error_says_so(root: Path) -> None:
    class Failing(Suspended):
        def run_all(self, jobs: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    commit(root, a="1")
    with pytest.raises(SettleError, match="checkpoint"), system.use(Failing()):  # noqa: SIM117
        with FileTransaction(root, durability="journal") as tx:
            tx.write("a", "2")
    assert text(root / "a") == "2"
    assert recover(root).clean is False
    assert records(root) == 0


def test_a_log_put_back_under_a_process_that_knows_it(root: Path) -> None:
    """`cp -a` of a backup over a tree writes into the files that are there."""
    store = FileStore(root, durability="journal")

    def put(*contents: str) -> None:
        for content in contents:
            with store.transaction() as tx:
                tx.write("a", content)

    put("1")
    shutil.copytree(root, root.parent / "backup")
    put("2", "3")
    shutil.copytree(root.parent / "backup", root, dirs_exist_ok=True)
    assert not in_child(lambda: put("4", "5", "6"))
    put("7")
    assert text(root / "a") == "7"
    assert recover(root).clean


@pytest.mark.parametrize("undoing", [False, True])
@pytest.mark.parametrize("decision", REFUSED)
def test_a_log_put_back_alone_behind_a_commit_that_was_killed(root: Path, decision: OnConflict, undoing: bool) -> None:
    """The tail tells of a record that is not there."""
    commit(root, a="1", b="1")
    FileStore(root).checkpoint()
    empty = (root / ".txfiles" / "log").read_bytes()
    killed(lambda: change(root, a="2", b="2"), "exchange", 2)
    if undoing:
        (root / "b").write_text("theirs", encoding="utf-8")
        killed(lambda: recover(root, on_conflict="roll-back"), "exchange")
    (root / ".txfiles" / "log").write_bytes(empty)
    assert recover(root, on_conflict=decision).rolled_forward == []
    commit(root, a="3", b="3")
    assert records(root) == 1
    assert recover(root).clean


def test_a_log_put_back_and_as_long_as_before_is_another(root: Path) -> None:
    """What is known to be durable is of the log that is there."""
    store = FileStore(root, durability="journal")
    with store.transaction() as tx:
        tx.write("a", "1")
    shutil.copytree(root, root.parent / "backup")
    with store.transaction() as tx:
        tx.write("b", "1")
    shutil.copytree(root.parent / "backup", root, dirs_exist_ok=True)
    assert not in_child(lambda: commit(root, c="1"))
    with system.use(fs := Calls()), store.transaction() as tx:
        tx.write("b", "2")
    assert "run_all" in fs.made, "b is no longer in the log, and nobody knows that it is durable"
