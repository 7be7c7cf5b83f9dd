"""What is measured with several processes: writers of one root, and readers beside a writer."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import filelock

from benchmarks.competitors import SAVES
from benchmarks.modes import fresh
from benchmarks.rounds import Result, rotated, settle_down
from txfiles import FileStore
from txfiles.errors import SnapshotExpiredError

_CONTEXT = multiprocessing.get_context("fork")
PAUSE = 0.001  # seconds between two reads: readers that never rest leave the writer no processor
WRITERS = ("txfiles", "journal", "process", "sqlite-extra", "sqlite-wal")
Turn = Callable[[], object]
"""One commit, or one read of all the files; true when it saw files of two states."""
Player = Callable[[], AbstractContextManager[Turn]]


class Tally(NamedTuple):
    """What one process got: the seconds of each of its turns, how many were torn, how often it was refused the lock."""

    waits: list[float]
    torn: int
    refused: int


def writers(
    base: Path,
    *,
    counts: tuple[int, ...] = (1, 2, 4, 8),
    files: int = 4,
    size: int = 2000,
    duration: float = 2.0,
    rounds: int,
    only: Sequence[str] = WRITERS,
) -> Result:
    """Processes that commit to one root as fast as they can: seconds for each commit of all of them together.

    The facts are commits in a second by all, the same over that of one writer, how many commits the fastest process
    made for each of the slowest, over all rounds, and how often txfiles asked the kernel for the lock in vain for each.
    """
    result = Result("writers", f"{files} x {size} B, {duration:g} s", reference="txfiles 1")
    folder = fresh(base)
    turns: dict[str, list[list[int]]] = {}
    refused: dict[str, int] = {}
    for number in range(rounds):
        for name in rotated([*only], number):
            for count in counts:
                settle_down(base)
                tallies = together(name, folder / name, count, files=files, size=size, duration=duration)
                made = [len(tally.waits) for tally in tallies]
                label = f"{name} {count}"
                refused[label] = refused.get(label, 0) + sum(tally.refused for tally in tallies)
                turns.setdefault(label, []).append(sorted(made))
                result.seconds.setdefault(label, []).append(duration / max(1, sum(made)))
    for label, rows in turns.items():
        alone = result.median(f"{label.split()[0]} {counts[0]}")
        result.facts[label] = {
            "commits_per_second": 1 / result.median(label),
            "of_one_writer": alone / result.median(label),
            "fastest_over_slowest": sum(row[-1] for row in rows) / max(1, sum(row[0] for row in rows)),
            "refused_per_commit": refused[label] / max(1, sum(map(sum, rows))),
        }
    return result


def together(name: str, root: Path, count: int, *, files: int, size: int, duration: float) -> list[Tally]:
    """Processes that commit to `root` as fast as they can."""
    return _together([partial(_writer, name, root, files, size)] * count, duration)


def readers(
    base: Path,
    *,
    writer: str = "txfiles",
    readers: int = 2,
    pause: float = PAUSE,
    files: int = 4,
    size: int = 2000,
    duration: float = 2.0,
    rounds: int,
    only: Collection[str] = (),
) -> Result:
    """Processes that read all files beside a writer, with a pause after each time: seconds of each of them.

    The facts are commits of the writer in a second, the same over those of one alone, how often each of the readers
    has read in a second, and which part of that saw files of two states.
    """
    rest = f"every {pause * 1e3:g} ms" if pause else "without rest"
    case = f"{readers} readers {rest}, 1 writer ({writer}), {files} x {size} B, {duration:g} s"
    result = Result("readers", case)
    folder = fresh(base)
    kinds = {
        "txfiles": (writer, _snapshots),
        "pinned": (writer, _pinned),
        "open+read": (writer, _plain),
        "sqlite-wal": ("sqlite-wal", _rows),
    }
    commits: dict[str, list[float]] = {}
    torn: dict[str, int] = {}
    for number in range(rounds):
        for name in rotated([name for name in (*kinds, "nobody") if not only or name in only], number):
            how, read = kinds.get(name, (writer, _plain))
            root = folder / how
            player = partial(_writer, how, root, files, size)
            _together([player], 0.05)  # so that there is something to read
            settle_down(base)
            crowd = [partial(read, root, files) for _ in range(readers if name in kinds else 0)]
            written, *seen = _together([player, *crowd], duration, [0.0, *([pause] * len(crowd))])
            commits.setdefault(name, []).append(len(written.waits) / duration)
            for tally in seen:
                result.seconds.setdefault(name, []).extend(tally.waits)
                torn[name] = torn.get(name, 0) + tally.torn
    for name, rates in commits.items():
        result.facts[name] = {"commits_per_second": statistics.median(rates)}
        if name in torn:
            if kinds[name][0] == writer and "nobody" in commits:
                result.facts[name]["of_one_alone"] = statistics.median(rates) / statistics.median(commits["nobody"])
            result.facts[name]["reads_per_second"] = len(result.seconds[name]) / (rounds * readers * duration)
            result.facts[name]["torn"] = torn[name] / len(result.seconds[name])
    return result


@contextmanager
def _writer(how: str, root: Path, files: int, size: int) -> Iterator[Turn]:
    with SAVES[how](root) as save:

        def turn() -> None:
            content = os.urandom(16) * (size // 16 + 1)  # the same in all files: so a torn read is seen
            save([(f"{number}", content[:size]) for number in range(files)])

        yield turn


def _two_states(read: list[bytes]) -> bool:
    return len(set(read)) > 1


@contextmanager
def _snapshots(root: Path, files: int) -> Iterator[Turn]:
    store = FileStore(root, timeout=None)
    names = [f"{number}" for number in range(files)]

    def turn() -> bool:
        while True:
            try:
                with store.snapshot() as snap:
                    return _two_states([snap.read(name) for name in names])
            except SnapshotExpiredError:
                continue

    yield turn


@contextmanager
def _pinned(root: Path, files: int) -> Iterator[Turn]:
    store = FileStore(root, timeout=None)
    names = [f"{number}" for number in range(files)]

    def turn() -> bool:
        with store.snapshot(*names) as snap:
            return _two_states([snap.read(name) for name in names])

    yield turn


@contextmanager
def _plain(root: Path, files: int) -> Iterator[Turn]:
    paths = [root / f"{number}" for number in range(files)]
    yield lambda: _two_states([path.read_bytes() for path in paths])


@contextmanager
def _rows(root: Path, files: int) -> Iterator[Turn]:
    db = sqlite3.connect(root / "db", isolation_level=None, timeout=600)
    try:
        yield lambda: _two_states([content for (content,) in db.execute("select content from files")])
    finally:
        db.close()


def _together(players: list[Player], duration: float, pauses: Sequence[float] = ()) -> list[Tally]:
    """Every player in a process of its own, all at the same time, turn after turn for `duration` seconds."""
    start = time.monotonic() + 0.03 + 0.02 * len(players)
    pipes = [_CONTEXT.Pipe(duplex=False) for _ in players]
    running = [
        _CONTEXT.Process(target=_play, args=(player, start, duration, pause, out))
        for player, (_, out), pause in zip(players, pipes, pauses or [0.0] * len(players), strict=True)
    ]
    for process in running:
        process.start()
    try:
        for _, out in pipes:
            out.close()  # a child that dies is noticed
        return [receive.recv() for receive, _ in pipes]
    finally:
        for process, (receive, _) in zip(running, pipes, strict=True):
            process.join()
            receive.close()


def _play(player: Player, start: float, duration: float, pause: float, out: Connection) -> None:
    waits: list[float] = []
    torn = refused = 0
    ask = filelock.lock_descriptor

    def counting(fd: int, *, blocking: bool = True, poll_interval: float = 0.05) -> bool:
        nonlocal refused
        given = ask(fd, blocking=blocking, poll_interval=poll_interval)
        refused += not given
        return given

    filelock.lock_descriptor = counting  # in this process, which only plays
    with player() as turn:
        time.sleep(max(0.0, start - time.monotonic()))
        now = time.monotonic()
        while now < start + duration or not waits:  # once at least, however late it came
            torn += bool(turn())
            after = time.monotonic()
            waits.append(after - now)
            if pause:
                time.sleep(pause)
                after = time.monotonic()
            now = after
    out.send(Tally(waits, torn, refused))
