"""What a commit of one small file asks of the kernel, once its root is under way: all that it does not need is gone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.inject import traced

COMMITS = """
from txfiles import FileTransaction

def commit(number):
    with FileTransaction(sys.argv[1], durability=sys.argv[2]) as tx:
        tx.write("a", f"{number}" * 100)

for number in range(3):
    commit(number)
with region():
    for number in range(10):
        commit(number)
"""
NOT_OF_ONE = {"brk", "mmap", "munmap", "mremap", "madvise", "clock_nanosleep", "restart_syscall"}  # now and then


@pytest.mark.needs("strace")
@pytest.mark.parametrize(("durability", "most"), [("process", 72), ("journal", 80), ("full", 80)])
def test_a_commit_makes_few_system_calls(root: Path, durability: str, most: int) -> None:
    """Where no log can be, "journal" is "full"."""
    done = traced(COMMITS, root, durability, calls=("all",))
    done.check()
    made = Counter(call.name for call in done.calls if call.name not in NOT_OF_ONE)
    assert made.total() // 10 <= most, made
