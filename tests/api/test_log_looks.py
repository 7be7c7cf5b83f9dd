"""What status, verify, recover and the command line say of a root with a log: unsettled is no damage."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_journal_level import records
from tests.crash.steps import at_call
from tests.support.boundary import tree
from tests.support.mounts import run
from txfiles import FileStore, FileTransaction, recover, status
from txfiles._disk import system
from txfiles._format import log
from txfiles.cli import main
from txfiles.errors import CommitError
from txfiles.recovery import verify
from txfiles.testing._faults import FaultyFS


@pytest.fixture
def store(root: Path) -> FileStore:
    store = FileStore(root, durability="journal")
    put(store, a="old a", b="old b")
    put(store, a="second a")
    return store


def put(store: FileStore, **contents: str) -> None:
    with store.transaction() as tx:
        for name, content in contents.items():
            tx.write(name, content)


def killed(store: FileStore, name: str, nth: int) -> None:
    """A commit of a and b, and a checkpoint, whose process is killed before a call."""
    pid = os.fork()
    if not pid:
        try:
            plan = at_call(name, nth, lambda: os.kill(os.getpid(), signal.SIGKILL))
            with system.use(FaultyFS(system.KernelFS(), plan)):  # type: ignore[arg-type]
                put(store, a="new a", b="new b")
                store.checkpoint()
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def in_another_session(root: Path) -> None:
    """As after it was mounted anew."""
    (root / ".txfiles" / "tail").unlink()


def damaged(root: Path) -> None:
    """The first of two records."""
    with (root / ".txfiles" / "log").open("r+b") as file:
        file.seek(log.FIRST + 200)
        file.write(b"\xff\xff")


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    code = main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def lines(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, list[str]]:
    code = main([*map(str, words)])
    return code, capsys.readouterr().out.splitlines()


def test_unsettled_is_no_damage(root: Path, store: FileStore, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(root)
    found = store.status()
    assert found.clean
    assert found.log is not None
    assert [(one.state, one.paths) for one in found.log.unsettled] == [("unsettled", ["a", "b"]), ("unsettled", ["a"])]
    assert found.log.restored == []
    assert found.head is not None
    assert (found.head.paths, found.head.sequence) == (["a"], found.log.sequence)
    assert verify(root).sound
    code, shown = lines(capsys, "status", root)
    assert code == 0
    assert shown[-2:] == ["log          2 commits since the last checkpoint", "clean"]
    assert lines(capsys, "verify", root) == (0, ["sound"])
    assert answer(capsys, "status", root)[1]["log"]["restored"] == []
    assert recover(root).clean
    assert tree(root) == before
    store.checkpoint()
    assert lines(capsys, "status", root)[1][-2] == "log          0 commits since the last checkpoint"


def test_after_a_restart_a_whole_tree_is_clean_too(
    root: Path, store: FileStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, gone="soon")
    with store.transaction() as tx:
        tx.delete("gone")
    monkeypatch.setattr(system.KernelFS, "boot_id", lambda self: "another")
    assert (main(["status", str(root)]), main(["verify", str(root)])) == (0, 0)
    capsys.readouterr()
    assert recover(root).clean
    assert store.status().log.unsettled == []  # type: ignore[union-attr]


def test_what_is_to_be_restored_is_told(root: Path, store: FileStore, capsys: pytest.CaptureFixture[str]) -> None:
    os.truncate(root / "a", 0)  # as a power loss may leave it
    os.utime(root / "a", ns=(0, 0))
    (root / "b").unlink()
    in_another_session(root)
    before = tree(root)
    found = store.status()
    assert not found.clean
    assert found.log is not None
    assert found.log.restored == ["a", "b"]
    code, shown = lines(capsys, "status", root)
    assert code == 3
    assert "to restore   a, b (from the log)" in shown
    assert lines(capsys, "verify", root) == (
        3,
        ["pending: to restore from the log: a, b", "sound, recovery is pending"],
    )
    assert tree(root) == before
    code, report = answer(capsys, "recover", root)
    assert (code, report["clean"]) == (0, False)
    assert [done["paths"] for done in report["rolled_forward"]] == [["a", "b"], ["a"]]
    assert ((root / "a").read_text(encoding="utf-8"), (root / "b").read_text(encoding="utf-8")) == ("second a", "old b")
    assert store.status().clean


@pytest.mark.parametrize(
    ("name", "nth", "state", "restored"),
    [
        ("exchange", 2, "committed", ["b"]),
        ("sync_data", 1, "committed", ["a", "b"]),
        ("write_at", 5, "", ["a", "b"]),
        ("unlink", 1, "", []),
    ],
)
def test_a_crash_is_seen_verified_and_recovered(
    root: Path,
    store: FileStore,
    capsys: pytest.CaptureFixture[str],
    name: str,
    nth: int,
    state: str,
    restored: list[str],
) -> None:
    """In the middle of a commit, before it counts for anybody, in a checkpoint, and when all but the tokens is done."""
    killed(store, name, nth)
    before = tree(root)
    found = store.status()
    assert [(one.state, one.paths) for one in found.pending] == ([(state, ["a", "b"])] if state else [])
    assert found.log is not None
    assert found.log.restored == restored
    assert not found.unknown
    assert (name == "unlink") == bool(found.debris)
    code, shown = answer(capsys, "verify", root)
    assert (code, shown["sound"]) == (3, True)
    assert lines(capsys, "recover", root, "--dry-run")[1][0] == "would recover:"
    assert tree(root) == before
    code, report = answer(capsys, "recover", root)
    assert (code, report["clean"]) == (0, False)
    assert ((root / "a").read_text(encoding="utf-8"), (root / "b").read_text(encoding="utf-8")) == ("new a", "new b")
    assert (main(["status", str(root)]), main(["verify", str(root)])) == (0, 0)


def test_a_conflict_is_found_before_recovery(root: Path, store: FileStore, capsys: pytest.CaptureFixture[str]) -> None:
    killed(store, "exchange", 2)
    (root / "b").unlink()
    (root / "b").write_text("theirs", encoding="utf-8")
    code, found = answer(capsys, "verify", root)
    assert code == 3
    assert len(found["conflicts"]) == 1
    assert "'b'" in found["conflicts"][0]
    code, report = answer(capsys, "recover", root)
    assert (code, report["error"]["type"]) == (3, "RecoveryConflictError")
    code, report = answer(capsys, "recover", root, "--keep-theirs")
    assert (code, report["kept"]) == (0, [])
    assert ((root / "a").read_text(encoding="utf-8"), (root / "b").read_text(encoding="utf-8")) == ("new a", "theirs")


def test_in_another_session_of_the_same_boot_what_others_did_since_is_kept(
    root: Path, store: FileStore, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(store, "exchange", 2)
    (root / "b").unlink()
    (root / "b").write_text("theirs", encoding="utf-8")
    in_another_session(root)
    assert answer(capsys, "verify", root)[1]["conflicts"] == []
    assert answer(capsys, "recover", root)[1]["kept"] == ["b"]
    assert ((root / "a").read_text(encoding="utf-8"), (root / "b").read_text(encoding="utf-8")) == ("new a", "theirs")


def test_a_damaged_log_is_damage(root: Path, store: FileStore, capsys: pytest.CaptureFixture[str]) -> None:
    damaged(root)
    before = tree(root)
    found = store.status()
    assert not found.clean
    assert found.log is not None
    assert found.log.error is not None
    assert "damaged" in found.log.error
    code, shown = lines(capsys, "status", root)
    assert (code, shown[-2]) == (3, f"damaged      {found.log.error}")
    code, shown = lines(capsys, "verify", root)
    assert (code, shown) == (1, [f"damaged: {found.log.error}", "not sound"])
    in_another_session(root)
    code, report = answer(capsys, "recover", root)
    assert (code, report["error"]["type"]) == (3, "JournalCorruptError")
    assert tree(root).items() >= {one: before[one] for one in before if not one.startswith(".txfiles/tail")}.items()


def test_a_format_that_knows_of_no_log_beside_one_is_damage(root: Path, store: FileStore) -> None:
    (root / ".txfiles" / "format").write_bytes(b"txfiles 1 flock\n")
    assert store.status().unknown == ["format"]
    assert verify(root).damaged == ["the format file is not that of a root with a log"]


def test_the_log_of_a_root_that_cannot_be_written(root: Path, store: FileStore) -> None:
    """Where nothing is to be recovered nothing is locked."""

    def refuse(_: int, name: str) -> None:
        if name in ("open_lock", "open_write", "write_at", "create"):
            raise OSError(30, os.strerror(30))

    with system.use(FaultyFS(system.KernelFS(), refuse)):  # type: ignore[arg-type]
        assert recover(root).clean


def test_checkpoint(root: Path, store: FileStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "checkpoint", root) == (0, ["2 commits settled, every file is durable where it is"])
    assert answer(capsys, "checkpoint", root) == (0, {"commits": 0, "log": True, "is_root": True})
    put(store, a="third a")
    shown = ["1 commit settled, every file is durable where it is; the log is removed"]
    assert lines(capsys, "checkpoint", root, "--remove-log") == (0, shown)
    assert not (root / ".txfiles" / "log").exists()
    assert (root / ".txfiles" / "format").read_bytes() == b"txfiles 1 flock\n"
    assert lines(capsys, "checkpoint", root) == (0, ["no log, nothing to do"])


def test_checkpoint_of_what_is_no_root(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", str(root)]) == 5
    assert not (root / ".txfiles").exists()


def test_beside_another_level_there_is_no_log(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "1")
    assert status(root).log is None


# -- who can read it --------------------------------------------------------------------------------------------------


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("owner", "group", "folder", "mode", "held"),
    [
        (0, 0, 0o755, 0o600, True),
        (1000, 1000, 0o755, 0o600, False),  # of root, in a log of that user
        (1000, 1000, 0o755, 0o644, True),
        (0, 1000, 0o775, 0o640, False),  # the group of the file is another one
        (0, 0, 0o775, 0o640, True),
        (0, 0, 0o775, 0o600, False),
        (0, 0, 0o775, 0o604, False),
    ],
)
def test_no_content_is_in_the_log_that_who_reads_it_may_not_read(
    root: Path, owner: int, group: int, folder: int, mode: int, held: bool
) -> None:
    """What is not goes by another protocol, which keeps it under its own mode."""
    os.chown(root, owner, group)
    root.chmod(folder)
    store = FileStore(root, durability="journal")
    with store.transaction() as tx:
        tx.write("a", "not for everybody", mode=mode)
    assert (root / "a").read_text(encoding="utf-8") == "not for everybody"
    assert (b"not for everybody" in (root / ".txfiles" / "log").read_bytes()) == held


@pytest.mark.needs("root")
def test_what_it_may_not_hold_is_deleted_through_it(root: Path) -> None:
    root.chmod(0o775)
    store = FileStore(root, durability="journal")
    with store.transaction() as tx:
        tx.write("a", "not for everybody", mode=0o600)
    with store.transaction() as tx:
        tx.delete("a")
    assert records(root) == 1


@pytest.mark.needs("root", "setfacl")
def test_nor_what_an_acl_closes_to_some_of_the_group(root: Path) -> None:
    root.chmod(0o775)
    (root / "a").write_text("old", encoding="utf-8")
    (root / "a").chmod(0o640)
    run("setfacl", "-m", "user:1000:---", root / "a")
    store = FileStore(root, durability="journal")
    with store.transaction() as tx:
        tx.write("a", "not for everybody")
        tx.write("b", "for the group", mode=0o640)
    assert (root / "a").read_text(encoding="utf-8") == "not for everybody"
    assert b"not for everybody" not in (root / ".txfiles" / "log").read_bytes()


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_log_that_was_for_its_owner_alone_is_not_opened_to_a_group(root: Path, cut_off: bool) -> None:
    """The root is given to a group later: what the log holds goes, and the members have a log that they can use."""
    store = FileStore(root, durability="journal")
    with store.transaction() as tx:
        tx.write("a", "not for everybody", mode=0o600)
    log, tail = root / ".txfiles" / "log", root / ".txfiles" / "tail"
    if cut_off:
        tail.unlink()
    os.chown(root, -1, 1000)
    root.chmod(0o775)
    with log.open("rb") as open_before:
        with store.transaction() as tx:
            tx.write("b", "b", mode=0o644)
        open_before.seek(0)
        was_closed = not os.fstat(open_before.fileno()).st_mode & stat.S_IRGRP
    assert was_closed
    assert b"not for everybody" not in log.read_bytes()
    assert b'"b"' in log.read_bytes()  # the record
    assert stat.S_IMODE(log.stat().st_mode) == stat.S_IMODE(tail.stat().st_mode) == 0o660
    assert (root / "a").read_text(encoding="utf-8") == "not for everybody"


# -- readers --------------------------------------------------------------------------------------------------------


def test_the_version_changes_with_each_commit_and_with_nothing_else(root: Path, store: FileStore) -> None:
    versions = [store.state_version()]
    for name in "ab":
        put(store, **{name: f"third {name}"})
        with store.snapshot("a") as snap:
            versions.append(snap.state_version)
        store.checkpoint()
        assert store.state_version() == versions[-1]
    in_another_session(root)
    assert store.state_version() == versions[-1]
    recover(root)
    assert store.state_version() == versions[-1]

    def fail(_: int, name: str) -> None:
        if name == "exchange":
            raise OSError(5, os.strerror(5))

    with system.use(FaultyFS(system.KernelFS(), fail)), pytest.raises(CommitError):  # type: ignore[arg-type]
        put(store, a="never")
    assert store.state_version() == versions[-1]
    with FileTransaction(root) as tx:
        tx.write("a", "by another protocol")
    versions.append(store.state_version())
    assert len(set(versions)) == 4
    store.remove_log()
    assert store.state_version() not in versions[:-1]


def test_a_root_with_a_log_is_known_to_be_at_rest(
    root: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its session alone."""
    at_rest(root, store, monkeypatch)
    with store.snapshot("a") as snap:
        assert snap._resting is not None
        assert snap.read("a") == b"second a"
        assert snap.read("b") == b"old b"
    monkeypatch.setattr(system.KernelFS, "session", lambda self, fd: b"another")
    with store.snapshot("a") as snap:
        assert snap._resting is None


def test_a_checkpoint_that_was_cut_off_ends_the_rest(
    root: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync may have failed in it, and what can be read may not stay so."""
    at_rest(root, store, monkeypatch)
    killed_in_checkpoint(store)
    with store.snapshot("a") as snap:
        assert snap.read("a") == b"second a"
    assert store.status().log.unsettled == []  # type: ignore[union-attr]


def at_rest(root: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known to be so, in a directory that nobody has changed for longer than a tick."""
    later = os.stat(root / ".txfiles").st_mtime_ns + 10**9
    os.utime(root / ".txfiles", ns=(later, later + 1))
    now = time.monotonic()
    for seconds in (0, 1, 2):
        monkeypatch.setattr(time, "monotonic", lambda at=now + seconds: at)
        with store.snapshot() as snap:
            assert snap.read("a") == b"second a"
    monkeypatch.undo()


def killed_in_checkpoint(store: FileStore) -> None:
    pid = os.fork()
    if not pid:
        try:
            plan = at_call("write_at", 2, lambda: os.kill(os.getpid(), signal.SIGKILL))
            with system.use(FaultyFS(system.KernelFS(), plan)):  # type: ignore[arg-type]
                store.checkpoint()
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
