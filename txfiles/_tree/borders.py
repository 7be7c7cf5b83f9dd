"""What nothing can be renamed across, though it is below the root: another mount, subvolume or quota project.

rename(2) and link(2) say EXDEV to all of them; in a sandbox of landlock(7) they may say it for any two directories.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from txfiles._disk.system import release
from txfiles._format import paths
from txfiles._format.layout import PRIVATE
from txfiles.errors import UnsupportedFilesystemError

if TYPE_CHECKING:
    from txfiles._disk.system import FileSystem

POSSIBLE = "a quota project, a subvolume or a sandbox is in the way of a rename"
_CANNOT = "nothing can be renamed from one into the other, and a commit has to"


class Borders:
    """Compares directories with the root, whose private directory is on the root's side."""

    def __init__(self, fs: FileSystem, root_fd: int, root: bytes) -> None:
        self._fs = fs
        self._root_fd = root_fd
        self._root = root
        self._mount: int | None = None
        self._place: tuple[int, int] | None = None

    def require_reachable(self, fd: int, path: bytes) -> None:
        """Raise `UnsupportedFilesystemError` if a directory is in another mount or subvolume."""
        self._require_mount(self._fs.mount_id(fd), path)
        device, _ = self._here()
        if self._fs.fstat(fd).st_dev != device:  # in one mount that is a subvolume (btrfs)
            raise self._error(path, f"is in another subvolume than the root {self._shown}: {_CANNOT}")

    def require_inside(self, fd: int, path: bytes) -> None:
        """The same, and if it takes no files of the root's quota project."""
        self.require_reachable(fd, path)
        theirs, only_theirs = self._fs.project(fd)
        if only_theirs and theirs != self._here()[1]:
            raise self._other_project(path, theirs)
        with paths.Naming(path, always=True):
            beyond = paths.is_outside(path) and self._fs.confined(self._root_fd, PRIVATE, fd)
        if beyond:
            raise self._error(path, f"is beyond what a sandbox (Landlock) lets be renamed from the root {self._shown}")

    def require_own_mount(self, at: int, name: bytes, path: bytes) -> None:
        """Raise `UnsupportedFilesystemError` if what is out of the root is in another mount or subvolume."""
        if self._fs.mount_id(at, name) != self._fs.mount_id(self._root_fd):
            raise self._error(path, f"is in another mount than the root {self._shown}, no link is followed to there")
        if self._fs.stat(at, name).st_dev != self._fs.fstat(self._root_fd).st_dev:
            raise self._error(path, f"is in another subvolume than the root {self._shown}: {_CANNOT}")

    def require_mount(self, at: int, name: bytes, path: bytes) -> None:
        """The same for a file: a single one can be a bind mount, and then rename says EBUSY."""
        self._require_mount(self._fs.mount_id(at, name), path)

    def explain(self, at: int, name: bytes, path: bytes) -> UnsupportedFilesystemError | None:
        """What it means that the system said EXDEV to a rename of `path`, in either direction; `None`: who knows."""
        try:
            self.require_inside(at, path)
            with suppress(FileNotFoundError):
                self.require_mount(at, name, path)
            with suppress(OSError):
                self._require_project(at, name, path)
        except UnsupportedFilesystemError as error:
            return error
        return confined(self._fs, self._root_fd, self._root)

    def _require_project(self, at: int, name: bytes, path: bytes) -> None:
        fd = self._fs.open_read(at, name)
        try:
            theirs, _ = self._fs.project(fd)
        finally:
            release(self._fs, fd)
        if theirs != self._here()[1]:
            raise self._other_project(path, theirs)

    def _require_mount(self, mount: int, path: bytes) -> None:
        if self._mount is None:
            self._mount = self._fs.mount_id(self._root_fd)
        if mount != self._mount:
            raise self._error(path, f"is in another mount than the root {self._shown}, it cannot be replaced")

    def _other_project(self, path: bytes, theirs: int) -> UnsupportedFilesystemError:
        ours = self._here()[1]
        return self._error(path, f"is in the quota project {theirs}, the root {self._shown} in {ours}: {_CANNOT}")

    def _here(self) -> tuple[int, int]:
        """Device and quota project of the private directory, and so of what comes out of it."""
        if self._place is None:
            fd = self._fs.open_dir(self._root_fd, PRIVATE)
            try:
                self._place = self._fs.fstat(fd).st_dev, self._fs.project(fd)[0]
            finally:
                release(self._fs, fd)
        return self._place

    @property
    def _shown(self) -> str:
        return repr(paths.decode(self._root))

    def _error(self, path: bytes, what: str) -> UnsupportedFilesystemError:
        shown = paths.decode(path)
        return UnsupportedFilesystemError(f"{shown!r} {what}", path=shown)


def confined(fs: FileSystem, root_fd: int, root: bytes) -> UnsupportedFilesystemError | None:
    """The error of a root in which a sandbox lets nothing be renamed from one directory into another."""
    if not fs.confined(root_fd, PRIVATE):
        return None
    shown = paths.decode(root)
    message = (
        f"a sandbox (Landlock) lets nothing be renamed from one directory of {shown!r} into another, and a commit has"
        " to: it must grant the right LANDLOCK_ACCESS_FS_REFER on the root"
    )
    return UnsupportedFilesystemError(message, path=shown)
