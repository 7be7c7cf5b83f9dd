"""Exceptions of signal handlers in a commit: what was found in the field."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.scenarios import resting
from tests.support.boundary import tree
from txfiles import FileTransaction

NAMES = [f"file{number}" for number in range(12)]


class Deadline(Exception):
    """The deadline of a job queue."""


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    def raise_it(*_: object) -> None:
        raise Deadline

    before = signal.signal(signal.SIGALRM, raise_it)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_n23_a_deadline_in_a_commit_finishes_or_undoes_it_500_times(memory: Path) -> None:
    root = memory / "root"
    root.mkdir()
    old: dict[str, object] = {}
    outcomes = set()
    for number in range(500):
        new: dict[str, bytes] = dict.fromkeys(NAMES, b"%d" % number)
        raised = False
        tx = FileTransaction(root, timeout=0)
        try:
            with tx:
                for name, content in new.items():
                    tx.write(name, content)
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.000_01 + number % 100 * 0.000_04)
                    tx.commit()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        except Deadline:
            raised = True
        assert tx.outcome == ("after" if tree(root) == new else "before"), number
        assert tree(root) in (old, new), number
        assert resting(root), number
        outcomes.add((raised, tx.outcome))
        old = tree(root)
    assert (True, "after") in outcomes or (True, "before") in outcomes
