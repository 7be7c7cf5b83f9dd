"""A disk that fails for a moment: the error is raised, and neither the lock nor the store is given up.

Two processes count their steps in one store. In ours a system call answers EIO, then all is well again: first the first
call of a step, then the second, and so on to the last one. The neighbour's disk never fails, and it must not notice.

    python examples/flaky_disk.py [directory] [--naive]

The errors are injected: the functions that Python calls the system with are replaced in our process, the disk itself is
healthy. Syncs are left out, because a failed sync is no passing matter: until the machine is restarted nobody can know
what has reached the disk, and txfiles refuses to guess. With `--naive` a program does what many do: where it cannot
lock, it goes on without, and what it cannot read counts as not there yet.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from _show import fork, parser, replace, workplace

from txfiles import JsonDocuments
from txfiles.errors import TxFilesError

CALLS = [
    *((os, name) for name in ("open", "read", "write", "stat", "fstat", "listdir", "listxattr", "mkdir", "fchmod")),
    *((os, name) for name in ("link", "rename", "unlink")),
    (fcntl, "flock"),
]
ROUNDS = 10  # of the naive way, which makes only a few calls

Steps = dict[str, int]


class Store:
    """How many steps each of the two has made, in `steps.json`."""

    def __init__(self, directory: Path) -> None:
        self.documents = JsonDocuments(directory, {"steps": {"ours": 0, "neighbour": 0}}, timeout=60)

    def load(self) -> Steps:
        steps: Steps = self.documents.load()["steps"]
        return steps

    @contextmanager
    def edit(self) -> Iterator[Steps]:
        with self.documents.edit() as documents:
            yield documents["steps"]


class NaiveStore:
    """A lock if it can be had, and an empty store where there seems to be none."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "steps.json"
        self.lock = directory / "lock"

    def load(self) -> Steps:
        try:
            fd = os.open(self.file, os.O_RDONLY)
            try:
                steps: Steps = json.loads(os.read(fd, 4096))
                return steps
            finally:
                os.close(fd)
        except (OSError, ValueError):
            return {"ours": 0, "neighbour": 0}

    @contextmanager
    def edit(self) -> Iterator[Steps]:
        fd = os.open(self.lock, os.O_RDWR | os.O_CREAT)
        try:
            with suppress(OSError):  # no locks on this disk, it seems
                fcntl.flock(fd, fcntl.LOCK_EX)
            steps = self.load()
            yield steps
            replace(self.file, json.dumps(steps))
        finally:
            os.close(fd)


@contextmanager
def failing(number: int) -> Iterator[list[str]]:
    """In the block the call `number` of this process raises EIO; the list that is given has its name once it did."""
    real = [(module, name, getattr(module, name)) for module, name in CALLS]
    failed: list[str] = []
    made = 0

    def flaky(name: str, call: Any) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            nonlocal made
            made += 1
            if made == number:
                failed.append("unlock" if (name, args[-1]) == ("flock", fcntl.LOCK_UN) else name)
                path = args[0] if isinstance(args[0], (str, bytes, Path)) else None
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return call(*args, **options)

        return counted

    for module, name, call in real:
        setattr(module, name, flaky(name, call))
    try:
        yield failed
    finally:
        for module, name, call in real:
            setattr(module, name, call)


def step(store: Store | NaiveStore, who: str) -> None:
    with store.edit() as steps:
        steps[who] += 1


def our_steps(store: Store | NaiveStore, rounds: int) -> tuple[int, Counter[str], Counter[str]]:
    """Make steps with a failing call each. How many took place, which failures were raised, and which were not."""
    made, raised, unnoticed = 0, Counter[str](), Counter[str]()
    for number in count(1):
        for _ in range(rounds):
            try:
                with failing(number) as failed:
                    step(store, "ours")
                made += 1
                unnoticed.update(failed)
            except (OSError, TxFilesError) as error:
                path = error.path if isinstance(error, TxFilesError) else error.filename
                raised["with a path" if path else "without a path"] += 1
                made += isinstance(error, TxFilesError) and error.outcome == "after"
        if not failed:  # a step makes fewer calls
            return made, raised, unnoticed
    raise AssertionError


def main() -> int:
    options = parser(__doc__).parse_args()
    with workplace(options.directory, "store") as directory:
        store = NaiveStore(directory) if options.naive else Store(directory)
        ended, theirs = fork.RawValue("b", 0), fork.RawValue("i", 0)  # shared with the neighbour

        def neighbour() -> None:
            while not ended.value:
                step(store, "neighbour")
                theirs.value += 1

        process = fork.Process(target=neighbour, daemon=True)
        process.start()
        ours, raised, unnoticed = our_steps(store, ROUNDS if options.naive else 1)
        ended.value = 1
        process.join()
        steps = store.load()

    print(f"{raised.total() + unnoticed.total()} calls of our steps failed")
    print(f"  raised: {listed(raised)}; not raised: {listed(unnoticed)}")
    print(f"  our steps: {ours} made, {steps['ours']} in the store")
    print(
        f"  the neighbour's: {theirs.value} made, {steps['neighbour']} in the store; it ended with {process.exitcode}"
    )
    whole = steps == {"ours": ours, "neighbour": theirs.value} and process.exitcode == 0
    print("nobody lost a step" if whole else "steps were lost")
    return 0 if whole and not raised["without a path"] else 1


def listed(counted: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counted.items()) or "none"


if __name__ == "__main__":
    sys.exit(main())
