"""Looking at a journal takes steps in proportion to its operations. Counted, for a clock would count others, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.crash.steps import dying, to_aborting
from txfiles import FileTransaction
from txfiles._commit import inventory
from txfiles._commit.evidence import Evidence
from txfiles._commit.home import Home
from txfiles._disk import system
from txfiles._reading.overlay import lay_after, lay_before
from txfiles.testing import SimFS


class Counted(tuple[Any, ...]):
    """Operations that count how many of them were looked through."""

    seen = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            Counted.seen += 1
            yield item

    def __reversed__(self) -> Iterator[Any]:
        return iter(Counted(self[::-1]))


def _before(fs: SimFS, number: int) -> None:
    for n in range(number):
        fs.put(f"/sim/file{n}", "old")
        fs.put(f"/sim/other{n}", "old")
        fs.mkdirs(f"/sim/tree{n}")
    with FileTransaction("/sim") as tx:
        tx.write("settled", "once")


def _change(number: int) -> Callable[[FileTransaction], None]:
    """Files become directories, directories files, and other files go."""

    def change(tx: FileTransaction) -> None:
        for n in range(number):
            tx.delete(f"file{n}")
            tx.write(f"file{n}/new", "new")
            tx.delete_tree(f"tree{n}")
            tx.write(f"tree{n}", "new")
            tx.delete(f"other{n}")

    return change


def _forward(evidence: Evidence) -> None:
    evidence.conflicts_forward()
    lay_after(evidence, {})


def _back(evidence: Evidence) -> None:
    evidence.conflicts_undo()
    lay_before(evidence, {})


def _steps(number: int, renames: float, look: Callable[[Evidence], None]) -> tuple[int, int]:
    """Calls of the file system, and operations that were gone through, when that share of the renames is done."""
    fs = SimFS()
    with system.use(fs):
        _before(fs, number)
        dying(_change(number), "rename", 2 + int(renames * number))(fs)
        if look is _back:
            to_aborting(fs)
        with Home.open(fs, b"/sim", create=False) as home:
            (pending,) = inventory.take(home).pending
            assert pending.journal is not None
            journal = replace(pending.journal, ops=Counted(pending.journal.ops))
            evidence = Evidence(home, journal, same_tree=True)
            Counted.seen, fs.calls = 0, 0
            look(evidence)
            return fs.calls, Counted.seen


@pytest.mark.parametrize("renames", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("look", [_forward, _back])
def test_a_look_at_a_journal_is_linear(renames: int, look: Callable[[Evidence], None]) -> None:
    for once, twice in zip(_steps(20, renames, look), _steps(40, renames, look), strict=True):
        assert 0 < twice <= 2.2 * once
