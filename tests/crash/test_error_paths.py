"""Every error of the disk, wherever it comes, names a file that its reader knows."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txfiles import FileTransaction, JsonDocuments
from txfiles._disk import system
from txfiles.errors import TxFilesError
from txfiles.testing._faults import FaultyFS, fail_at


def _save(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write_json("a.json", tx.read_json("a.json") + 1)
        tx.write("new/b", b"x" * 10)


def _load(root: Path) -> None:
    JsonDocuments(root, {"a": 0, "b": 0}).load()


@pytest.mark.parametrize("work", [_save, _load], ids=["save", "load"])
def test_the_path_is_in_the_error(memory: Path, work: Callable[[Path], None], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "txfiles")
    raised = number = 0
    while True:
        number += 1
        root = memory / str(number)
        root.mkdir()
        with FileTransaction(root, durability="process") as tx:
            tx.write_json("a.json", 1)
            tx.write_json("b.json", 1)
        faulty = FaultyFS(system.KernelFS(), fail_at(number, errno.EIO))
        error: Any = None
        try:
            with system.use(faulty):
                work(root)
        except (OSError, TxFilesError) as caught:
            error = caught
        if error is not None:
            path = error.path if isinstance(error, TxFilesError) else error.filename
            told = f"{faulty.trace[number - 1]}: {error!r}"
            assert isinstance(path, str), told
            assert path in ("a.json", "b.json", "new", "new/b", str(root)) or path.startswith(f"{root}/.txfiles"), told
            raised += 1
        if faulty.calls < number:
            break
    assert raised > 10


def test_an_error_of_what_is_written_from_keeps_its_name(root: Path) -> None:
    class Source:
        def read(self, size: int) -> bytes:
            raise OSError(errno.EIO, "the source cannot be read")

    with FileTransaction(root) as tx, pytest.raises(OSError, match="the source") as raised:
        tx.write("a", Source())
    assert raised.value.filename is None
