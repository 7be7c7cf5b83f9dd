"""The checkpoint of a log that nothing was committed to for a second, by a thread of this process.

There is one thread for all roots, and only while something is due. It keeps no interpreter alive, but the end of one
waits for a checkpoint under way: cut off, it would cost the next recovery much. Before a fork it ends, so that the
child inherits nothing half done and no other thread; what was due is then for the next commit, here or elsewhere.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from typing import TYPE_CHECKING

from txfiles._commit import levels
from txfiles._commit.home import Home
from txfiles._disk.lock import here
from txfiles._disk.system import KernelFS
from txfiles._format import paths
from txfiles.errors import LockTimeoutError, TxFilesError

if TYPE_CHECKING:
    from txfiles._disk.system import FileSystem

AFTER = 1.0  # seconds

_log = logging.getLogger("txfiles")
_fs = KernelFS()


class _Waiting:
    """What is due, and the thread that waits for it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Also in a forked child, whose parent has the thread."""
        self.mutex = threading.Lock()
        self.due: dict[bytes, tuple[float, int]] = {}  # by root: when, and the number of the last commit
        self.thread: threading.Thread | None = None
        self.stopped = threading.Event()

    def expect(self, root: bytes, seq: int) -> None:
        with self.mutex:
            self.due[root] = time.monotonic() + AFTER, seq
            self._begin()

    def go_on(self) -> None:
        """After `stop`, where something is due."""
        with self.mutex:
            if self.due:
                self._begin()

    def _begin(self) -> None:
        if self.thread is None:
            self.stopped.clear()
            thread = threading.Thread(target=self._run, name="txfiles-checkpoint", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads to be had, or the interpreter is about to end
                return
            self.thread = thread

    def stop(self) -> None:
        """Returns when no thread is left."""
        with self.mutex:
            thread = self.thread
            self.stopped.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self.mutex:
                if self.stopped.is_set() or not self.due:
                    self.thread = None
                    return
                root = min(self.due, key=lambda one: self.due[one])
                at, seq = self.due[root]
                if (left := at - time.monotonic()) <= 0:
                    del self.due[root]
            if left > 0:
                self.stopped.wait(left)
            else:
                _checkpoint(root, seq)


_waiting = _Waiting()


def expect(fs: FileSystem, root: bytes, seq: int) -> None:
    """A commit with this number has gone through the log: a checkpoint is due, unless another commit follows.

    On the running kernel only: a thread would disturb what a test counts.
    """
    if type(fs) is KernelFS:
        _waiting.expect(root, seq)


def forget() -> None:
    """Nothing is due, and nothing under way, when this returns."""
    _waiting.stop()
    with _waiting.mutex:
        _waiting.due.clear()


def _checkpoint(root: bytes, seq: int) -> None:
    """Where others have committed since, it is for them; and so is what is not at rest."""
    shown = paths.decode(root)
    try:
        home = Home.find(_fs, root)
        if home is None:
            return
        with home:
            home.lock.acquire(0, here())
            rests = home.is_in_place() and levels.rests(home)
            if rests and (file := levels.log_of(home)) is not None and file.seq == seq:
                levels.empty_log(home)
    except LockTimeoutError:
        expect(_fs, root, seq)
    except FileNotFoundError:
        _log.debug("%s was removed before the checkpoint of its log", shown)
    except (OSError, TxFilesError) as error:
        _log.warning("%s: the checkpoint of its log failed and is left to recovery: %s", shown, error)


_fs.on_fork(_waiting.reset, before=_waiting.stop, after=_waiting.go_on)
atexit.register(_waiting.stop)
