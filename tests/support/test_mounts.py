"""The mounts are what they say, and gone afterwards."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import mounts

pytestmark = pytest.mark.needs("mount")


def test_tmpfs_is_full_at_its_limits(tmp_path: Path) -> None:
    with mounts.tmpfs(tmp_path / "t", size="64k", nr_inodes=4) as where:
        with pytest.raises(OSError, match="No space") as full:
            (where / "big").write_bytes(bytes(128 << 10))
        assert full.value.errno == errno.ENOSPC
        with pytest.raises(OSError, match="No space"):
            for n in range(5):
                (where / str(n)).touch()
    assert not mounts.is_mounted(where)
    assert list(where.iterdir()) == []


def test_bind_of_a_directory_and_of_one_file(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("x", encoding="utf-8")
    with mounts.bind(tmp_path / "d", tmp_path / "seen"), mounts.bind(tmp_path / "d" / "f", tmp_path / "one"):
        assert (tmp_path / "seen" / "f").read_text(encoding="utf-8") == "x"
        with pytest.raises(OSError, match="busy") as busy:
            (tmp_path / "d" / "f").rename(tmp_path / "one")
        assert busy.value.errno == errno.EBUSY
    assert not mounts.is_mounted(tmp_path / "one")


def test_overlay_leaves_the_lower_layer_alone(tmp_path: Path) -> None:
    lower = tmp_path / "lower"
    lower.mkdir()
    (lower / "f").write_text("old", encoding="utf-8")
    with mounts.overlay(tmp_path / "o", lower) as merged:
        (merged / "f").write_text("new", encoding="utf-8")
    assert (lower / "f").read_text(encoding="utf-8") == "old"
    assert (tmp_path / "o" / "upper" / "f").read_text(encoding="utf-8") == "new"


def test_read_only_of_a_mount_and_of_a_plain_directory(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    with mounts.tmpfs(tmp_path / "t") as mounted:
        for where in (mounted, plain):
            with mounts.read_only(where), pytest.raises(OSError, match="Read-only"):
                (where / "f").touch()
            (where / "f").touch()


def test_what_is_in_use_is_detached_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_PATIENCE", 0.1)
    where = tmp_path / "t"
    with pytest.raises(RuntimeError, match="busy"), mounts.tmpfs(where):
        fd = os.open(where, os.O_RDONLY)
    os.close(fd)
    assert not mounts.is_mounted(where)


def test_names_with_spaces_are_found(tmp_path: Path) -> None:
    with mounts.tmpfs(tmp_path / "a b\\c") as where:
        assert mounts.is_mounted(where)
    assert not mounts.is_mounted(where)


def test_unshared_is_process_one() -> None:
    code = "import os; print(os.getpid(), os.readlink('/proc/self'))"
    done = subprocess.run(
        mounts.unshared(sys.executable, "-c", code), capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert done.stdout.split() == ["1", "1"]


def test_mounts_are_not_seen_outside() -> None:
    assert os.readlink("/proc/self/ns/mnt") != os.readlink(f"/proc/{os.getppid()}/ns/mnt")
