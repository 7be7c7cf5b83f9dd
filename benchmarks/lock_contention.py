"""How the writers' lock is shared: throughput, fairness and waits of writers that take it in a loop.

    python benchmarks/lock_contention.py [--seconds 4] [DIR]

Every line is a number of processes (or threads of one process) that take the lock, hold it for a while, asleep as one
who waits for a disk or busy, and let it go, again and again. `of one` is their throughput together over that of one
process alone, `max:min` compares the writers that got the lock most and least often, `longest` is the longest wait.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from txfiles import _fs, _layout
from txfiles._lock import make_lock


class Load(NamedTuple):
    """What a writer does with the lock for `hold` seconds."""

    hold: float
    busy: bool

    def run(self) -> None:
        if not self.busy:
            time.sleep(self.hold)
            return
        until = time.perf_counter() + self.hold
        while time.perf_counter() < until:
            pass


class Tally(NamedTuple):
    """What one writer got."""

    turns: int
    longest: float
    cpu: float


def write(root: bytes, load: Load, start: float, seconds: float) -> Tally:
    """Take the lock of `root` again and again from `start` on, a new lock object each time, as transactions do."""
    fs = _fs.current()
    private_fd = fs.open_dir(None, root + b"/" + _layout.PRIVATE)
    turns, longest = 0, 0.0
    time.sleep(max(0.0, start - time.time()))
    cpu = time.process_time()
    while time.time() < start + seconds:
        lock = make_lock(fs, private_fd, root)
        asked = time.perf_counter()
        lock.acquire(None, threading.get_ident())
        longest = max(longest, time.perf_counter() - asked)
        load.run()
        turns += 1
        lock.release()
    fs.close(private_fd)
    return Tally(turns, longest, time.process_time() - cpu)


def processes(count: int, root: bytes, load: Load, seconds: float) -> list[Tally]:
    def child(out: Connection) -> None:
        out.send(write(root, load, start, seconds))

    context = multiprocessing.get_context("fork")
    start = time.time() + 0.2 + 0.02 * count
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    running = [context.Process(target=child, args=(out,)) for _, out in pipes]
    for process in running:
        process.start()
    tallies = [receive.recv() for receive, _ in pipes]
    for process in running:
        process.join()
    return tallies


def threads(count: int, root: bytes, load: Load, seconds: float) -> list[Tally]:
    tallies: list[Tally] = []
    start = time.time() + 0.2
    running = [threading.Thread(target=lambda: tallies.append(write(root, load, start, seconds))) for _ in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return tallies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", help="where the root is made; a temporary directory if not given")
    parser.add_argument("--seconds", type=float, default=4.0, help="of every line (default 4)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as root:
        os.mkdir(os.path.join(root, ".txfiles"))
        print(f"   hold {'writers':>21} {'turns/s':>9} {'of one':>7} {'max:min':>8} {'longest':>10} {'CPU':>6}")
        for load in (Load(0.003, busy=False), Load(0.003, busy=True), Load(0.0002, busy=True)):
            alone = 0.0
            for kind, counts in ((processes, (1, 2, 8, 32)), (threads, (8,))):
                for count in counts:
                    tallies = kind(count, os.fsencode(root), load, options.seconds)
                    turns = [tally.turns for tally in tallies]
                    rate = sum(turns) / options.seconds
                    alone = alone or rate
                    cpu = (max if kind is threads else sum)(tally.cpu for tally in tallies) / options.seconds
                    print(
                        f"{load.hold * 1e3:5.1f}ms {'busy' if load.busy else 'asleep':6} {count:3} {kind.__name__:>10} "
                        f"{rate:9.0f} {rate / alone:7.2f} {max(turns) / max(1, min(turns)):8.2f} "
                        f"{max(tally.longest for tally in tallies) * 1e3:8.1f}ms {cpu:6.0%}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
