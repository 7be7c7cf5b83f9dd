"""A fork that Python does not see: what the lock guarantees then, and what it cannot."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.procs import child
from txfiles import FileTransaction
from txfiles.errors import LockTimeoutError

_HOLD = """
    import ctypes, subprocess
    from txfiles import FileTransaction
    tx = FileTransaction(sys.argv[1]).begin()
    def c_fork():
        forked = ctypes.CDLL(None).fork()
        if forked == 0:
            ctypes.CDLL(None).pause()
            os._exit(0)
        return forked
    start = {
        "C fork": c_fork,
        "posix_spawn": lambda: os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ),
        "close_fds=False": lambda: subprocess.Popen(["sleep", "60"], close_fds=False).pid,
    }[sys.argv[2]]
    print(start())
    input()
    tx.rollback()
    print("rolled back")
    input()
"""
WAYS = ["C fork", "posix_spawn", "close_fds=False"]


def _begin(root: Path) -> None:
    FileTransaction(root, timeout=0).begin().rollback()


@pytest.mark.parametrize("how", WAYS)
def test_who_ends_a_transaction_frees_the_lock_whoever_was_forked_meanwhile(root: Path, how: str) -> None:
    with child(_HOLD, root, how) as holder:
        forked = int(holder.expect(""))
        with pytest.raises(LockTimeoutError):
            _begin(root)
        holder.send()
        holder.expect("rolled back")
        _begin(root)
        os.kill(forked, 0)  # it lives


@pytest.mark.parametrize("how", WAYS)
def test_who_is_killed_leaves_the_lock_to_a_fork_that_runs_no_other_program(root: Path, how: str) -> None:
    """The kernel counts it as a holder. It is free when that one ends; a program that was started holds nothing."""
    with child(_HOLD, root, how) as holder:
        forked = int(holder.expect(""))
        os.kill(holder.pid, signal.SIGKILL)
        while not holder._ended():
            pass
        if how == "C fork":
            with pytest.raises(LockTimeoutError):
                _begin(root)
        else:
            _begin(root)
        os.kill(forked, signal.SIGKILL)
        FileTransaction(root, timeout=10).begin().rollback()
