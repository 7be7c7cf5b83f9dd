"""docs/crash.svg shows what really lies in the private directory after a crash, and what recovery makes of it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.boundary import killed
from tests.support.procs import CHECKOUT
from txfiles import FileTransaction, recover, rollback_prepared
from txfiles._disk import system
from txfiles.testing._faults import FaultyFS

PICTURE = (CHECKOUT / "docs/crash.svg").read_text(encoding="utf-8")


def save(root: Path, text: str, *, prepare: bool = False) -> None:
    with FileTransaction(root) as tx:
        tx.write("a.txt", text)
        tx.write("b.txt", text)
        if prepare:
            tx.prepare()


def undone_halfway(root: Path) -> None:
    """The second file cannot be put in place, and the process dies when the first is to be put back."""
    renames = 0

    def plan(_: int, name: str) -> None:
        nonlocal renames
        renames += name == "rename"
        if name == "rename" and renames == 3:
            raise OSError(5, "the disk")
        if name == "rename" and renames == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    if (child := os.fork()) == 0:
        with system.use(FaultyFS(system.KernelFS(), plan)):
            save(root, "new")
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


CRASHES: dict[str, Callable[[Path], None]] = {
    "Killed before the commit point": lambda root: killed(lambda: save(root, "new"), "rename", 1),
    "Killed after it, between two files": lambda root: killed(lambda: save(root, "new"), "rename", 3),
    "Killed while a failed commit was undone": undone_halfway,
    "Killed after prepare()": lambda root: save(root, "new", prepare=True),
}


def shown() -> dict[str, list[str]]:
    """The heading of each part of the picture, and the files in it from top to bottom."""
    parts = re.split(r'<text class="head"[^>]*>', PICTURE)[1:]
    return {part.split("<")[0]: re.findall(r'<text class="file"[^>]*>([^<]+)<', part) for part in parts}


def test_it_shows_every_crash_and_no_other() -> None:
    assert list(shown()) == list(CRASHES)


@pytest.mark.parametrize("crash", CRASHES)
def test_the_picture_of_a_crash_is_true(root: Path, crash: str) -> None:
    *private, found_a, found_b, after_a, after_b = shown()[crash]
    save(root, "old")
    CRASHES[crash](root)
    names = {re.sub("^[0-9a-f]{32}", "T", path.name) for path in (root / ".txfiles").iterdir()}
    assert sorted(private) == sorted(names - {"format", "lock", "HEAD", "spare"})
    assert [found_a, found_b] == _files(root)
    report = recover(root)
    assert [after_a, after_b] == _files(root)
    assert bool(report.waiting) is (crash == "Killed after prepare()")
    for one in report.waiting:
        rollback_prepared(root, one.transaction_id)


def _files(root: Path) -> list[str]:
    return [f"{name}: {(root / name).read_text(encoding='utf-8')}" for name in ("a.txt", "b.txt")]
