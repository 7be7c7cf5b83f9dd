"""A child that kills itself where the directory has come to its n-th state."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, FrameType
from typing import Any

_MODULES = {os.open.__module__, "_io", "io", "mmap"}
# fmt: off
_READS = frozenset((
    "access", "fspath", "fstat", "get_inheritable", "getcwd", "getegid", "geteuid", "getgid", "getpid",
    "getuid", "getxattr", "isatty", "listdir", "listxattr", "lseek", "lstat", "read", "readable", "readall",
    "readinto", "readline", "readlines", "readlink", "scandir", "seek", "seekable", "stat", "strerror", "tell",
    "text_encoding", "umask", "urandom", "writable",
))
# fmt: on
_FRAMES = 4
_HERE = os.path.join(os.path.dirname(__file__), "")
_FAILED = b"!"


def run_and_kill(work: Callable[[], object], root: Path, number: int) -> str | None:
    """Fork a child that runs `work` and kills itself when `root` is in its state `number`, 1 being the one before.

    Returns where it was then; `None` when it came to its end before. `AssertionError` when `work` raised or died.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _run(work, _Watch(os.fsencode(root), number, writing), writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    if said.startswith(_FAILED):
        raise AssertionError(f"the save fails by itself:\n{said[1:].decode(errors='replace')}")
    if os.WIFSIGNALED(status) and said:
        return said.decode(errors="replace")
    if status:
        raise AssertionError(f"the save ends its process by itself (wait status {status})")
    return None


def _run(work: Callable[[], object], watch: _Watch, pipe: int) -> None:
    """The life of the child; never returns. It does not clean up what the parent has to."""
    code = 1
    try:
        threading.setprofile(watch)
        sys.setprofile(watch)
        try:
            work()
        finally:
            sys.setprofile(None)
        code = 0
    except BaseException:
        os.write(pipe, _FAILED + traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


class _Watch:
    """A profile function: looks at the directory before each call to the system that may have followed a change."""

    def __init__(self, root: bytes, number: int, pipe: int) -> None:
        self._root = root
        self._left = number
        self._pipe = pipe
        self._state: object = None
        self._lock = threading.Lock()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event != "c_call" or not _may_write(arg):
            return
        with self._lock:
            state = state_of(self._root)
            if state == self._state:
                return
            self._state = state
            self._left -= 1
            if not self._left:
                os.write(self._pipe, f"before {arg.__name__} in {_place(frame)}".encode(errors="replace"))
                os.kill(os.getpid(), signal.SIGKILL)


def _may_write(call: BuiltinFunctionType) -> bool:
    owner = type(call.__self__)
    module = call.__module__ or owner.__module__
    if call is next:  # as `KernelFS` opens: no event tells of open(2) then
        return True
    return module in _MODULES and call.__name__ not in _READS


def _place(frame: FrameType) -> str:
    """The innermost function, and those in other files that called it, up to the save."""
    told: list[str] = []
    last = ""
    here: FrameType | None = frame
    while here is not None and len(told) < _FRAMES and not here.f_code.co_filename.startswith(_HERE):
        code = here.f_code
        if code.co_filename != last:
            last = code.co_filename
            told.append(f"{code.co_name} ({os.path.basename(last)}:{here.f_lineno})")
        here = here.f_back
    return ", called by ".join(told)


def state_of(root: bytes) -> dict[bytes, tuple[object, ...]]:
    """All that a program started now could find below `root`."""
    found: dict[bytes, tuple[object, ...]] = {}
    todo = [root]
    while todo:
        path = todo.pop()
        try:
            at = os.lstat(path)
            content = content_of(path, at.st_mode)
            if stat.S_ISDIR(at.st_mode):
                todo += [os.path.join(path, name) for name in os.listdir(path)]
        except FileNotFoundError:  # another thread of the save removed it
            continue
        found[path] = (
            at.st_ino,
            at.st_mode,
            at.st_nlink,
            at.st_uid,
            at.st_gid,
            at.st_mtime_ns,
            at.st_ctime_ns,
            content,
        )
    return found


def content_of(path: bytes, mode: int) -> bytes:
    """The bytes of a file, the text of a link, nothing for anything else."""
    if stat.S_ISLNK(mode):
        return os.readlink(path)
    if not stat.S_ISREG(mode) or not os.access(path, os.R_OK):
        return b""
    with open(path, "rb") as file:
        return file.read()
