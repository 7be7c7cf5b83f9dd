"""Ctrl-C between any two lines of a commit, not only at its system calls."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.crash.scenarios import resting
from tests.support import DEEP
from tests.support.boundary import tree
from txfiles import FileTransaction, status

OLD, NEW = {"a": b"old", "b": b"old"}, {"a": b"new", "b": b"new"}


class Interrupt:
    """Raises at the `number`-th event in the package from now on: a line, a call or a return."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if "/txfiles/" not in frame.f_code.co_filename or frame.f_code.co_name == "__del__":
            return None
        self.left -= 1
        if self.left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return self


def _interrupted(root: Path, number: int, durability: Any) -> bool:
    """Whether there was an event of that number. REQUIRES: a process of its own.

    An interrupt between `os.open` and the line that notes its result loses the number, for which Python has no cure.
    """
    tracer = Interrupt(number)
    tx = FileTransaction(root, durability=durability)
    try:
        with tx:
            for name, content in NEW.items():
                tx.write(name, content)
            sys.settrace(tracer)
            tx.commit()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    where = f"interrupted at event {number}, {status(root)}"
    assert tree(root) in (OLD, NEW), where
    assert resting(root), where
    FileTransaction(root, timeout=0).begin().rollback()  # while `tx` is alive
    return tracer.left == 0


def _in_child(root: Path, number: int, durability: str) -> bool:
    for name, content in OLD.items():
        (root / name).write_bytes(content)
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if _interrupted(root, number, durability) else 1
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1), f"event {number}"
    return code == 0


@pytest.mark.parametrize("durability", ["full", "process"])
def test_ctrl_c_between_two_lines_of_a_commit(root: Path, durability: str) -> None:
    number = 1
    while _in_child(root, number, durability):
        number += 1 if DEEP else 17
    assert number > 500


class _Ends(Exception):
    """Of the user's own: a block that raises is rolled back."""


def _leave(tx: FileTransaction, number: int, how: str) -> int:
    """Commit or roll back with an interrupt at this event; how many events were left."""
    tracer = Interrupt(number)
    raised: BaseException | None = None
    try:
        with tx:
            for name, content in NEW.items():
                tx.write(name, content)
            sys.settrace(tracer)
            if how == "rollback":
                raise _Ends
    except BaseException as error:
        raised = error
    finally:
        sys.settrace(None)
    # what was to be raised without it only where Python ignored it, in a `__del__`
    assert raised is None or isinstance(raised, (KeyboardInterrupt, _Ends)), repr(raised)
    return tracer.left


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_ctrl_c_at_the_very_end_leaves_nothing_and_raises_nothing_else(root: Path, how: str) -> None:
    many = 10**6
    events = many - _leave(FileTransaction(root), many, how)
    for number in range(max(10, events - 300), events + 1):  # from where `rollback` was entered
        for name, content in OLD.items():
            (root / name).write_bytes(content)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _leave(FileTransaction(root), number, how)
                assert tree(root) in ((OLD,) if how == "rollback" else (OLD, NEW))
                assert resting(root)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, f"event {number} of {events}"
