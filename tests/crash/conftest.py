"""Where the tests of this folder work."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import scratch


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where a sync costs nothing; elsewhere an ordinary one."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    path = scratch.directory(scratch.MEMORY)
    yield path
    shutil.rmtree(path)
