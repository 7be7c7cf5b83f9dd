"""What a test needs of the machine, and whether the machine has it.

    @pytest.mark.needs("loop", "xfs", "strace")

A thing is `root`, `mount` (the right to mount), `users` (children of other users), `sysctl` (the right to change the
kernel's settings), `user namespaces` (for users without any right), `loop` (loop devices), `ext4`, `xfs` or `btrfs`
(mkfs and the kernel's part), `landlock` (the kernel's sandbox), `strace` (installed and allowed to trace),
`module:NAME` (a Python module), or the name of a program.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.support import as_user, mounts, sandbox

SETTING = "TXFILES_SYSTEM_TESTS"
MODES = ("auto", "require", "off")
_PACKAGES = {
    "mkfs.ext4": "e2fsprogs",
    "chattr": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "mkfs.btrfs": "btrfs-progs",
    "strace": "strace",
    "setfacl": "acl",
    "getfacl": "acl",
    "setfattr": "attr",
    "losetup": "mount",
    "unshare": "util-linux",
    "flock": "util-linux",
    "systemd-analyze": "systemd",
    "node": "nodejs",
    "chromium": "chromium",
    "ceph": "ceph-common",
    "ceph-mon": "ceph-mon",
    "ceph-osd": "ceph-osd",
    "radosgw": "radosgw",
    "azurite-blob": "azurite, from npm",
    "fauxqs": "fauxqs, from npm",
    "s3rver": "s3rver, from npm",
}


def mode() -> str:
    """`auto` (deselect what cannot run), `require` (fail it) or `off` (deselect all that need anything)."""
    chosen = os.environ.get(SETTING, "auto")
    if chosen not in MODES:
        raise ValueError(f"{SETTING} must be one of {', '.join(MODES)}, not {chosen!r}")
    return chosen


@cache
def missing(thing: str) -> str | None:
    """Why `thing` cannot be had, or `None` when it is there."""
    if thing == "root":
        return None if os.geteuid() == 0 else "root: the tests run as another user"
    if thing == "mount":
        return missing("root") or (None if mounts.isolate() else "mount: this container may not mount")
    if thing == "users":
        return missing("root") or _other_users()
    if thing == "user namespaces":
        return missing("users") or _no_user_namespaces()
    if thing == "sysctl":
        return missing("root") or (
            None if os.access("/proc/sys/fs/protected_regular", os.W_OK) else "sysctl: /proc/sys is read-only"
        )
    if thing == "loop":
        return missing("mount") or missing("losetup") or _missing_file("/dev/loop-control")
    if thing in ("ext4", "xfs", "btrfs"):
        return missing(f"mkfs.{thing}") or _missing_filesystem(thing)
    if thing == "landlock":
        return None if sandbox.version() >= 2 else "landlock: the kernel has none, or not the right to refer"
    if thing == "strace":
        return _missing_program(thing) or _untraceable()
    if thing.startswith("module:"):
        return _missing_module(thing.removeprefix("module:"))
    return _missing_program(thing)


def program(name: str) -> str | None:
    """The path of a program, also of one in the system directories that are not on everybody's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _missing_program(name: str) -> str | None:
    if program(name):
        return None
    package = _PACKAGES.get(name)
    return f"{name}: not installed" + (f" (package {package})" if package else "")


def _missing_module(name: str) -> str | None:
    return None if importlib.util.find_spec(name) else f"{name}: not installed (pip install -e '.[dev]')"


def _missing_file(path: str) -> str | None:
    return None if Path(path).exists() else f"{path}: not there"


def _missing_filesystem(name: str) -> str | None:
    def known() -> bool:
        return name in Path("/proc/filesystems").read_text(encoding="utf-8").split()

    if not known() and program("modprobe"):
        subprocess.run(["modprobe", name], check=False, capture_output=True)
    return None if known() else f"{name}: the kernel has no such file system"


def _other_users() -> str | None:
    try:
        as_user.as_user(65534)
    except RuntimeError as error:
        return f"users: {error}"
    return None


def _no_user_namespaces() -> str | None:
    done = subprocess.run(
        ["unshare", "--user", "true"], user=65534, group=65534, cwd="/", capture_output=True, check=False
    )
    return None if done.returncode == 0 else f"user namespaces: {done.stderr.decode().strip()}"


def _untraceable() -> str | None:
    tried = subprocess.run(
        ["strace", "-o", "/dev/null", "true"], check=False, capture_output=True, text=True, encoding="utf-8"
    )
    return None if tried.returncode == 0 else f"strace: cannot trace ({tried.stderr.strip()[:80]})"
