"""What recovery, status and verify say of things in the private directory that are not as they should be."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from txfiles import FileTransaction, recover, status
from txfiles._disk import system
from txfiles.errors import JournalVersionError, RecoveryError, SettleError
from txfiles.recovery import verify
from txfiles.testing._faults import FaultyFS


@pytest.fixture
def used(root: Path) -> Path:
    with FileTransaction(root) as tx:
        tx.write("a", "1")
    return root


@pytest.mark.leaves_debris
def test_a_missing_format_beside_head_is_refused_and_reported(used: Path) -> None:
    (used / ".txfiles" / "format").unlink()
    with pytest.raises(RecoveryError, match="format"):
        recover(used)
    with pytest.raises(RecoveryError, match="format"), FileTransaction(used):
        pass
    assert status(used).unknown == ["format"]
    assert verify(used).damaged == ["the format file is missing or damaged"]


@pytest.mark.leaves_debris
@pytest.mark.parametrize("text", ["txfiles 99 flock\n", "txfiles 1 lease\n"])
def test_another_format_is_refused_everywhere(used: Path, text: str) -> None:
    (used / ".txfiles" / "format").write_text(text, encoding="utf-8")
    with pytest.raises(JournalVersionError):
        recover(used)
    with pytest.raises(JournalVersionError), FileTransaction(used):
        pass
    assert "format" in verify(used).damaged[0]


def test_a_damaged_head_is_told_by_verify_and_stops_nobody(used: Path) -> None:
    head = used / ".txfiles" / "HEAD"
    raw = bytearray(head.read_bytes())
    raw[-3] ^= 1
    head.write_bytes(raw)
    assert "HEAD is damaged" in verify(used).damaged[0]
    recover(used)
    with FileTransaction(used) as tx:
        tx.write("a", "2")
    assert verify(used).sound


@pytest.mark.leaves_debris
def test_names_of_ours_that_are_not_files_are_left_alone(used: Path) -> None:
    private = used / ".txfiles"
    tid = "0" * 32
    (private / f"{tid}.1").mkdir()
    (private / f"{tid}.committed").symlink_to("/etc/passwd")
    names = sorted([f"{tid}.1", f"{tid}.committed"])
    assert sorted(status(used).unknown) == names
    assert sorted(recover(used).unknown) == names
    with FileTransaction(used, timeout=0) as tx:
        tx.write("a", "2")
    assert (used / "a").read_text(encoding="utf-8") == "2"
    assert os.path.lexists(private / names[1])


@pytest.mark.leaves_debris
def test_a_failed_sync_bars_recovery_also_without_a_boot_id(used: Path) -> None:
    """Where a restart cannot be told, the note of a failed sync holds until the file is looked at by hand."""

    class Unbooted(system.KernelFS):
        def boot_id(self) -> str:
            return ""

    syncs = 0

    def plan(_: int, name: str) -> None:
        nonlocal syncs
        syncs += name == "sync_dir"
        if name == "sync_dir" and syncs == 3:
            raise OSError(errno.EIO, "injected")

    fs: Any = FaultyFS(Unbooted(), plan)
    with system.use(fs):
        with pytest.raises(SettleError), FileTransaction(used) as tx:
            tx.write("a", "2")
        with pytest.raises(RecoveryError, match="sync failed"):
            recover(used)


def test_a_failing_unlock_does_not_hide_the_outcome(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import filelock

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "injected")

    with FileTransaction(root) as tx:
        tx.write("a", "1")
        monkeypatch.setattr(filelock, "unlock_descriptor", fail)
    monkeypatch.undo()
    with FileTransaction(root, timeout=0) as tx:
        assert tx.read("a") == b"1"


def test_a_missing_root_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="create=True") as missing, FileTransaction(tmp_path / "nope"):
        pass
    assert missing.value.filename == str(tmp_path / "nope")
