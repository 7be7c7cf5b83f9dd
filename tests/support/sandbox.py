"""A sandbox of landlock(7) that the calling process puts itself into; there is no way out. For children only."""

from __future__ import annotations

import ctypes
import os

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH, _NO_NEW_PRIVS = 1, 1, 38
_EXECUTE, _READ_FILE, _READ_DIR, _REFER = 1 << 0, 1 << 2, 1 << 3, 1 << 13
_ALL = (1 << 14) - 1  # of version 2, the first that knows the right to refer


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def version() -> int:
    """What the kernel knows of landlock; 0 without it."""
    return max(int(ctypes.CDLL(None).syscall(_CREATE_RULESET, None, 0, _VERSION)), 0)


def confine(path: str | os.PathLike[str], *beside: str | os.PathLike[str], refer: bool) -> None:
    """Everything is allowed below `path`, with or without the right to refer, and below what is `beside` it, without;
    elsewhere only reading is.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(*arguments: object) -> int:
        done = int(libc.syscall(*arguments))
        if done < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return done

    rules = call(_CREATE_RULESET, ctypes.byref(ctypes.c_uint64(_ALL)), 8, 0)
    unreferred = _ALL & ~_REFER
    allowed = [(path, _ALL if refer else unreferred), *((one, unreferred) for one in beside)]
    for folder, rights in (*allowed, ("/", _EXECUTE | _READ_FILE | _READ_DIR)):
        fd = os.open(folder, os.O_PATH)
        call(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(_PathBeneath(rights, fd)), 0)
        os.close(fd)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    call(_RESTRICT_SELF, rules, 0)
    os.close(rules)
