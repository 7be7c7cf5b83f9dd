"""Counts the rows of the field that a run covered, and shares loop images between its tests."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.support import mounts
from tests.support.disks import Place
from tests.support.loop import LoopFS, loop_fs

_ROWS = {
    "A": "01 03 04 05 06 07 08 10 12 13 14 15 16 19 21 22 23 24 25 26 27",
    "B": "01 02 03 05 06 07 08 09 10 11 12 13 16 17 19 20 21 22 23 24 25 26 28 29 31 33 34",
    "C": "01 02 04 06 08 09 10 11 12 16",
    "D": "01 02 03 04 06 08 10 12 13 14 15 16",
    "E": "01 02 04 05 07 08 09 10 12 13 15 16 18 20 21 23 24",
    "F": "01 02 03 04 05 07 09 10 12 13 14 16 17",
    "G": "01 02 04 05 07 08",
    "H": "01 02 04 05",
    "I": "01 03",
}
_ALL = [section + number for section, numbers in _ROWS.items() for number in numbers.split()]
_IDS = re.compile(r"test_((?:[a-i]\d\d_)+)")
_covered: set[str] = set()


def _rows(test: str) -> list[str]:
    """The rows that a test shows: all ids that its name begins with."""
    match = _IDS.match(test)
    return [row.upper() for row in match[1].split("_") if row] if match else []


def pytest_itemcollected(item: pytest.Item) -> None:
    rows = _rows(item.name)
    if not rows or not set(rows) <= set(_ALL):
        raise pytest.UsageError(f"{item.nodeid}: the name of a test of the field begins with the id of its row")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        _covered.update(_rows(report.location[2]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    covered = [row for row in _ALL if row in _covered]
    terminalreporter.write_line(f"field cases covered: {' '.join(covered)} ({len(covered)} of {len(_ALL)})")


@pytest.fixture(scope="session")
def _disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], LoopFS]]:
    with ExitStack() as stack:

        @cache
        def disk(name: str) -> LoopFS:
            fstype, *options = name.split()
            folder = stack.enter_context(mounts.tmpfs(tmp_path_factory.mktemp(fstype)))  # a sync costs nothing there
            return stack.enter_context(loop_fs(folder, fstype, size=320 << 20, options=options))

        yield disk


@pytest.fixture
def memory(_trash: list[Path], root: Path, watch: Callable[[Path], Path]) -> Path:
    """As `root`, in memory where there is some: for tests that commit often."""
    if not os.path.isdir("/dev/shm"):
        return root
    path = Path(tempfile.mkdtemp(prefix="txfiles-", dir="/dev/shm"))
    _trash.append(path)
    return watch(path)


@pytest.fixture
def _trash() -> Iterator[list[Path]]:
    folders: list[Path] = []
    yield folders
    for folder in folders:
        shutil.rmtree(folder)


@pytest.fixture
def place(
    _disks: Callable[[str], LoopFS],
    _trash: list[Path],
    watch: Callable[[Path], Path],
    request: pytest.FixtureRequest,
) -> Callable[[str], Place]:
    """Makes an empty directory on one of `FILESYSTEMS`, shared with other tests; watched as `root` is, then removed."""

    def make(name: str) -> Place:
        fs = _disks(name)
        root = fs.path / f"{len(_trash)}-{request.node.originalname[:60]}"
        root.mkdir()
        _trash.append(root)
        return Place(fs, watch(root))

    return make
