"""durability="journal": what a commit waits for, counted, once its root is under way."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import device
from tests.support.inject import SYNC, traced
from tests.support.loop import loop_fs
from txfiles import FileStore

COMMITS = """
from txfiles import FileTransaction

def commit(number):
    with FileTransaction(sys.argv[1], durability="journal") as tx:
        for name in ("a", "b", "c"):
            tx.write(name, f"{name} {number}" * 100)
        tx.delete("d") if number % 2 else tx.write("d", "again")

commit(0)
with region():
    for number in range(1, 6):
        commit(number)
"""


@pytest.mark.needs("strace")
def test_a_commit_makes_one_fdatasync_and_no_other_sync(root: Path) -> None:
    """Three files replaced, and one that goes or comes."""
    done = traced(COMMITS, root, calls=SYNC)
    done.check()
    assert [call.name for call in done.calls] == ["fdatasync"] * 5
    assert {Path(path).name for call in done.calls for path in call.paths} == {"log"}


@pytest.mark.parametrize(
    ("fstype", "options"),
    [
        pytest.param("ext4", ["commit=600"], marks=pytest.mark.needs("loop", "ext4")),
        pytest.param("xfs", [], marks=pytest.mark.needs("loop", "xfs")),
    ],
)
def test_a_commit_is_one_flush_of_the_device_and_no_commit_of_its_journal(
    tmp_path: Path, fstype: str, options: list[str]
) -> None:
    with loop_fs(tmp_path, fstype, options=options) as fs:
        counted = {}
        for durability in ("journal", "full"):
            root = fs.path / durability
            root.mkdir()
            store = FileStore(root, durability=durability)  # type: ignore[arg-type]
            for _ in range(2):
                save(store)
            counted[durability] = device.per_commit(root, lambda store=store: save(store))
    assert counted["journal"] == {"flushes": 1, "journal_commits": 0}
    assert counted["full"]["flushes"] >= 2
    assert counted["full"]["journal_commits"] >= 1


def save(store: FileStore) -> None:
    with store.transaction() as tx:
        for name in ("a", "b"):
            tx.write(name, b"x" * 2000)
