"""Every test here names the row that it shows; loop images are shared between tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.support import mounts, rows, scratch
from tests.support.disks import Place
from tests.support.loop import LoopFS, loop_fs


def pytest_itemcollected(item: pytest.Item) -> None:
    found = rows.named_by(item.name)
    if not found or not set(found) <= set(rows.ALL):
        raise pytest.UsageError(f"{item.nodeid}: the name of a test of the field begins with the id of its row")


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
    path = scratch.directory(scratch.MEMORY)
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
