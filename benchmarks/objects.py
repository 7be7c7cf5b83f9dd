"""Object storage under a model of its latency: each request takes so long, and is answered by obstore's MemoryStore.

The code is the real one, the time a virtual one: the figures depend on no machine. Writers commit one small file each,
again and again: each with a root of its own (as machines with nothing in common but the bucket) or all through one (as
the threads of a process, whose commits share a `HEAD`; there the time that Python computes counts, too). Then the
requests and the modelled time of what is done on a root of many files.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Any

from benchmarks.virtual import VirtualClock
from txfiles.objects.change import Change, Put
from txfiles.objects.collect import collect
from txfiles.objects.content import Spool, Writer
from txfiles.objects.requests import Body, Condition, StoreRequests, Token
from txfiles.objects.root import Root
from txfiles.objects.state import HEAD, State, encode, new_id

PUT, GET = 0.030, 0.015  # seconds
BANDWIDTH = 100e6  # bytes a second that reads of packs transfer
PARALLEL, COALESCED = 10, 1 << 20  # of obstore: ranges at once, bytes between two that are asked for together
COUNTS = (1, 4, 16, 64)
AT_ONCE = 20_000
KEPT = 20  # files of a writer: then it writes them again


@dataclass
class Modelled:
    """The five requests, counted; each takes as long as the model says, give or take a part of it, `jitter`."""

    inner: StoreRequests
    clock: VirtualClock
    jitter: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def _take(self, name: str, seconds: float, number: int = 1) -> None:
        self.counts[name] += number
        jitter = 1 + self.jitter * self.clock.rng.uniform(-1, 1)
        self.clock.sleep(-(-number // PARALLEL) * seconds * jitter)

    def put(self, key: str, body: Body, condition: Condition = None) -> Any:
        self._take("PUT", PUT)
        return self.inner.put(key, body, condition)

    def get(self, key: str, unless: Token | None = None) -> Any:
        self._take("GET", GET)
        return self.inner.get(key, unless)

    def ranges(self, key: str, spans: Sequence[tuple[int, int]]) -> Any:
        """As obstore asks for them: those with less than a megabyte between them in one request, ten at once."""
        read, last, number = 0, -math.inf, 0
        for start, length in spans:
            apart = start - last > COALESCED
            number += apart
            read += length if apart else max(0, start + length - int(last))
            last = max(last, start + length)
        self._take("GET", GET, number)
        self.clock.sleep(read / BANDWIDTH)
        return self.inner.ranges(key, spans)

    def list(self, prefix: str, at_most: int | None = None) -> Any:
        found = self.inner.list(prefix, at_most)
        self._take("LIST", GET, max(1, -(-len(found) // 1000)))
        return found

    def delete(self, key: str) -> None:
        self._take("DELETE", GET)
        self.inner.delete(key)


def opened(requests: Modelled) -> Root:
    """A root as a process begins on it; what it asks for at once takes the time of the longest."""
    root, clock = Root(requests, "memory://model", clock=requests.clock), requests.clock

    def at_once(call: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        free, out = [clock.time] * root.source.width, []
        for item in items:
            clock.time = heappop(free)
            out.append(call(item))
            heappush(free, clock.time)
        clock.time = max(free)
        return out

    root.source.at_once = at_once  # type: ignore[method-assign]
    return root


def change(files: dict[bytes, bytes]) -> Change:
    made, spool = Change(new_id()), Spool()
    for number, (path, data) in enumerate(files.items()):
        writer = Writer(spool)
        writer.write(data)
        made.writes[path] = Put(f"{made.tid}.{number}", None, writer.finish())
    return made


def new_store() -> StoreRequests:
    from obstore.store import MemoryStore

    requests = StoreRequests(MemoryStore(), "")
    requests.put(HEAD, encode(State(seq=0, id=new_id())), "create")
    return requests


@dataclass
class Crowd:
    """What became of the writers: commits a second, the longest that one took, and requests for each commit."""

    rate: float
    longest: float
    puts: float
    gets: float
    commits: list[int]  # of each writer
    files: int  # in the end


def crowd(writers: int, seconds: float, *, grouped: bool, seed: int = 0, jitter: float = 0.0) -> Crowd:
    clock = VirtualClock(seed, cpu=grouped)
    requests = Modelled(new_store(), clock, jitter)
    shared = opened(requests)
    done, longest = [0] * writers, [0.0] * writers

    def write(number: int) -> None:
        root = shared if grouped else opened(requests)
        while (began := clock.now()) < seconds:
            root.commit(change({b"w%d/%d" % (number, done[number] % KEPT): b"%d" % done[number]}), None)
            done[number] += 1
            longest[number] = max(longest[number], clock.now() - began)

    clock.run([partial(write, number) for number in range(writers)])
    commits, counts, taken = sum(done), requests.counts, clock.time
    files = opened(requests).newest().files
    return Crowd(commits / taken, max(longest), counts["PUT"] / commits, counts["GET"] / commits, done, files)


def name(number: int) -> bytes:
    return b"d%03d/f%07d" % (number % 997, number)


def large(files: int) -> Iterator[tuple[str, Counter[str], float, float]]:
    """What is done on a root of so many files: requests, seconds in the model, seconds that Python computes."""
    inner = new_store()
    root = Root(inner, "memory://large")
    for start in range(0, files, AT_ONCE):
        root.commit(change({name(n): b"x" * 100 for n in range(start, min(start + AT_ONCE, files))}), None)

    def timed(what: str, requests: Modelled, act: Callable[[], object]) -> tuple[str, Counter[str], float, float]:
        requests.counts, began, computed = Counter(), requests.clock.time, time.process_time()
        act()
        return what, requests.counts, requests.clock.time - began, time.process_time() - computed

    def cold(what: str, act: Callable[[Root], object]) -> tuple[str, Counter[str], float, float]:
        requests = Modelled(inner, VirtualClock())
        return timed(what, requests, lambda: act(opened(requests)))

    def spread(number: int) -> dict[bytes, bytes]:
        return {name(n * files // number): b"y" * 500 for n in range(number)}

    yield cold("look one file up", lambda root: root.reading(root.newest()).entry(name(files // 2)))
    yield cold("list a directory", lambda root: root.reading(root.newest()).listing(b"d001"))
    yield cold("list the root", lambda root: root.reading(root.newest()).listing(b""))
    yield cold("commit 4 files", lambda root: root.commit(change(spread(4)), None))
    warm = Modelled(inner, VirtualClock())
    known = opened(warm)
    for number in (4, 1000):
        known.commit(change(spread(number)), None)
        what = f"commit {number:,} files again"
        yield timed(what, warm, lambda number=number: known.commit(change(spread(number)), None))  # type: ignore[misc]
    yield cold("commit 1,000 files", lambda root: root.commit(change(spread(1000)), None))
    for _ in range(2):
        collect(root, 0, 0)  # the floor comes to what is garbage now
    for what in ("gc, marking", "gc, deleting"):
        yield cold(what, lambda root: collect(root, 0, 0))


def report(counts: tuple[int, ...], seconds: float, files: int) -> None:
    print(f"a PUT takes {PUT * 1000:g} ms, a GET {GET * 1000:g} ms, and what packs have comes at 100 MB/s\n")
    print("| writers | | commits/s | longest, s | PUT a commit | GET a commit |\n|---|---|---|---|---|---|")
    for writers in counts:
        for grouped in (False, True):
            got = crowd(writers, seconds, grouped=grouped)
            how = "in one process" if grouped else "each alone"
            row = f"{got.rate:.0f} | {got.longest:.2f} | {got.puts:.2f} | {got.gets:.2f}"
            print(f"| {writers} | {how} | {row} |", flush=True)
    print(f"\n{files:,} files, a process that knows nothing yet:\n")
    print("| | PUT | GET | LIST | DELETE | s | and CPU, s |\n|---|---|---|---|---|---|---|")
    for what, requests, taken, computed in large(files):
        row = " | ".join(str(requests[kind]) for kind in ("PUT", "GET", "LIST", "DELETE"))
        print(f"| {what} | {row} | {taken:.2f} | {computed:.2f} |", flush=True)
