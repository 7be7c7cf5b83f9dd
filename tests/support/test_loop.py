"""Loop images show what is on the device: what was synced is there, what was not may be missing."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from tests.support.loop import crash_image, loop_fs
from tests.support.mounts import is_mounted, run
from tests.support.procs import child

pytestmark = pytest.mark.needs("loop")

FSTYPES = [pytest.param(name, marks=pytest.mark.needs(name)) for name in ("ext4", "xfs", "btrfs")]


def _write(path: Path, data: bytes, *, sync: bool) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    if sync:
        fd = os.open(path.parent, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


@pytest.mark.parametrize("fstype", FSTYPES)
def test_a_crash_image_has_what_was_synced(tmp_path: Path, fstype: str) -> None:
    with loop_fs(tmp_path, fstype) as fs:
        _write(fs.path / "synced", b"s" * 9000, sync=True)
        _write(fs.path / "not", b"n" * 9000, sync=False)
        with crash_image(fs) as first, crash_image(fs) as second:
            for copy in (first, second):
                assert (copy.path / "synced").read_bytes() == b"s" * 9000
                assert not (copy.path / "not").exists()
                (copy.path / "not").write_bytes(b"the copies are apart")
        assert (fs.path / "not").read_bytes() == b"n" * 9000
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fstype", FSTYPES[:2])
def test_a_power_cut_loses_what_was_not_synced(tmp_path: Path, fstype: str) -> None:
    with loop_fs(tmp_path, fstype) as fs:
        _write(fs.path / "synced", b"s" * 9000, sync=True)
        _write(fs.path / "not", b"n" * 9000, sync=False)
        fs.shutdown()
        with pytest.raises(OSError, match="Input/output") as dead:
            (fs.path / "more").touch()
        assert dead.value.errno == errno.EIO
        fs.unmount()
        fs.mount()
        assert (fs.path / "synced").read_bytes() == b"s" * 9000
        assert not (fs.path / "not").exists()
        fs.power_cut()
        assert (fs.path / "synced").exists()


@pytest.mark.needs("ext4")
def test_options_remount_and_size(tmp_path: Path) -> None:
    with loop_fs(tmp_path, "ext4", size=16 << 20, options=["noauto_da_alloc"]) as fs:
        assert "noauto_da_alloc" in run("findmnt", "-no", "FS-OPTIONS", fs.path)
        assert os.statvfs(fs.path).f_blocks * os.statvfs(fs.path).f_frsize < 16 << 20
        fs.remount("ro")
        with pytest.raises(OSError, match="Read-only"):
            (fs.path / "f").touch()
        fs.remount("rw")
        (fs.path / "f").touch()


@pytest.mark.needs("ext4")
def test_a_failing_block_leaves_neither_mount_nor_device(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), loop_fs(tmp_path, "ext4") as fs, crash_image(fs):
        raise ZeroDivisionError
    assert not is_mounted(fs.path)
    assert str(tmp_path) not in run("losetup", "--list")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_no_device(tmp_path: Path) -> None:
    code = """
        from pathlib import Path
        from tests.support import loop, mounts
        assert mounts.isolate()
        with loop.loop_fs(Path(sys.argv[1]), "ext4") as fs:
            print(fs.device)
            input()
    """
    with child(code, tmp_path) as process:
        device = process.expect("/dev/loop")
        assert str(tmp_path) in run("losetup", "--list", "--noheadings", "--output", "BACK-FILE", device)
        process.kill()
    until = time.monotonic() + 30
    while str(tmp_path) in run("losetup", "--list", "--noheadings", "--output", "BACK-FILE"):
        assert time.monotonic() < until, f"{device} is still attached"
        time.sleep(0.01)
