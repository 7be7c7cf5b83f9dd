"""Every error of the disk, wherever it comes, names a file that its reader knows."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.boundary import killed
from txfiles import FileStore, FileTransaction, JsonDocuments, commit_prepared, recover, status
from txfiles._disk import system
from txfiles.errors import TxFilesError
from txfiles.testing._faults import NOT_SYSTEM_CALLS, FaultyFS, fail_at


def _save(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write_json("a.json", tx.read_json("a.json") + 1)
        tx.write("new/b", b"x" * 10)


def _load(root: Path) -> None:
    JsonDocuments(root, {"a": 0, "b": 0}).load()


def _change(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.move("a.json", "moved")
        tx.delete("b.json")
        tx.mkdir("d")


def _decide(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a.json", "new")
        prepared = tx.prepare()
    commit_prepared(root, prepared)


def _recover(root: Path) -> None:
    """What died in `_half_done` is finished."""
    recover(root)


def _verify(root: Path) -> None:
    with FileStore(root).snapshot() as snap:
        snap.read("a.json")
    status(root)


class _Raw(FaultyFS):
    """The k-th call fails as the kernel's do: the error has the name that the call was given, in bytes."""

    def __init__(self, number: int) -> None:
        super().__init__(system.KernelFS(), lambda now, _: None)
        self._number = number

    def __getattr__(self, name: str) -> Any:
        counted = super().__getattr__(name)
        if name in NOT_SYSTEM_CALLS or not callable(counted):
            return counted

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.calls + 1 == self._number:
                names = [arg for arg in args if isinstance(arg, bytes) and name not in ("write", "symlink")]
                self._plan = fail_at(self._number, errno.EIO)
                try:
                    return counted(*args, **kwargs)
                except OSError as error:
                    error.filename, error.filename2 = [*names, None, None][:2]
                    raise
            return counted(*args, **kwargs)

        return call


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


@pytest.mark.parametrize("work", [_save, _change, _load, _decide, _recover, _verify])
def test_no_error_shows_a_name_as_the_kernel_was_given_it(
    memory: Path, work: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "txfiles")
    raised = number = 0
    while True:
        number += 1
        root = memory / str(number)
        root.mkdir()
        with FileTransaction(root, durability="process") as tx:
            tx.write_json("a.json", 1)
            tx.write_json("b.json", 1)
        if work is _recover:
            killed(partial(_save, root), "rename", 2)
        faulty = _Raw(number)
        error: BaseException | None = None
        try:
            with system.use(faulty):
                work(root)
        except (OSError, TxFilesError) as caught:
            error = caught
        if error is not None:
            raised += 1
            told = f"{number} {faulty.trace[number - 1]}: {error!r} {getattr(error, '__notes__', '')}"
            assert not re.search(r"(?<![\w/'])b'", f"{error} {getattr(error, '__notes__', '')}"), told
            assert not isinstance(getattr(error, "filename", None), bytes), told
        if faulty.calls < number:
            break
    assert raised > 5


def test_an_error_of_what_is_written_from_keeps_its_name(root: Path) -> None:
    class Source:
        def read(self, size: int) -> bytes:
            raise OSError(errno.EIO, "the source cannot be read")

    with FileTransaction(root) as tx, pytest.raises(OSError, match="the source") as raised:
        tx.write("a", Source())
    assert raised.value.filename is None
