"""Object storage under a model of its latency: each request sleeps, and is then answered by obstore's MemoryStore.

Writers commit one small file each, again and again: each with a root of its own (as machines with nothing in common
but the bucket) or all through one (as the threads of a process, whose commits share a `HEAD`). Then the requests and
the modelled time of what is done on a root of many files.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from txfiles.objects.change import Change, Put
from txfiles.objects.collect import collect
from txfiles.objects.content import Spool, Writer
from txfiles.objects.requests import Body, Condition, StoreRequests, Token
from txfiles.objects.root import Root
from txfiles.objects.state import HEAD, State, encode, new_id

PUT, GET = 0.030, 0.015  # seconds
COUNTS = (1, 4, 16, 64)
AT_ONCE = 20_000


@dataclass
class Modelled:
    """The five requests, counted; each takes as long as `scale` times the model says."""

    inner: StoreRequests
    scale: float = 1.0
    counts: Counter[str] = field(default_factory=Counter)

    def _take(self, name: str, seconds: float) -> None:
        self.counts[name] += 1
        if self.scale:
            time.sleep(seconds * self.scale)

    def put(self, key: str, body: Body, condition: Condition = None) -> Any:
        self._take("PUT", PUT)
        return self.inner.put(key, body, condition)

    def get(self, key: str, unless: Token | None = None) -> Any:
        self._take("GET", GET)
        return self.inner.get(key, unless)

    def ranges(self, key: str, spans: Any) -> Any:
        self._take("GET", GET)
        return self.inner.ranges(key, spans)

    def list(self, prefix: str, at_most: int | None = None) -> Any:
        self._take("LIST", GET)
        return self.inner.list(prefix, at_most)

    def delete(self, key: str) -> None:
        self._take("DELETE", GET)
        self.inner.delete(key)


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


def crowd(writers: int, seconds: float, *, grouped: bool) -> tuple[float, float, float, float]:
    """Commits a second, the longest that one took, and PUTs and GETs for each commit."""
    requests = Modelled(new_store())
    shared = Root(requests, "memory://crowd")
    done, longest = [0] * writers, [0.0] * writers
    until = time.monotonic() + seconds

    def write(number: int) -> None:
        root = shared if grouped else Root(requests, "memory://crowd")
        while (began := time.monotonic()) < until:
            root.commit(change({b"w%d" % number: b"%d" % done[number]}), None)
            done[number] += 1
            longest[number] = max(longest[number], time.monotonic() - began)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken, commits = time.monotonic() - began, sum(done)
    return commits / taken, max(longest), requests.counts["PUT"] / commits, requests.counts["GET"] / commits


def name(number: int) -> bytes:
    return b"d%03d/f%07d" % (number % 997, number)


def large(files: int) -> Iterator[tuple[str, Counter[str], float]]:
    """What is done on a root of so many files: requests, and seconds with the model's latency."""
    inner = new_store()
    root = Root(inner, "memory://large")
    for start in range(0, files, AT_ONCE):
        root.commit(change({name(n): b"x" * 100 for n in range(start, min(start + AT_ONCE, files))}), None)

    def cold(what: str, act: Callable[[Root], object]) -> tuple[str, Counter[str], float]:
        requests = Modelled(inner)
        begun = Root(requests, "memory://large")
        began = time.monotonic()
        act(begun)
        return what, requests.counts, time.monotonic() - began

    def spread(number: int) -> dict[bytes, bytes]:
        return {name(n * files // number): b"y" * 500 for n in range(number)}

    yield cold("look one file up", lambda root: root.reading(root.newest()).entry(name(files // 2)))
    yield cold("list a directory", lambda root: root.reading(root.newest()).listing(b"d001"))
    yield cold("commit 4 files", lambda root: root.commit(change(spread(4)), None))
    yield cold("commit 1,000 files", lambda root: root.commit(change(spread(1000)), None))
    yield cold("gc, marking", lambda root: collect(root, 0, 0))
    yield cold("gc, deleting", lambda root: collect(root, 0, 0))


def report(counts: tuple[int, ...], seconds: float, files: int) -> None:
    print(f"a PUT takes {PUT * 1000:g} ms, a GET {GET * 1000:g} ms\n")
    print("| writers | | commits/s | longest, s | PUT a commit | GET a commit |\n|---|---|---|---|---|---|")
    for writers in counts:
        for grouped in (False, True):
            rate, longest, puts, gets = crowd(writers, seconds, grouped=grouped)
            how = "in one process" if grouped else "each alone"
            print(f"| {writers} | {how} | {rate:.0f} | {longest:.2f} | {puts:.2f} | {gets:.2f} |", flush=True)
    print(f"\n{files:,} files, a process that knows nothing yet:\n")
    print("| | PUT | GET | LIST | DELETE | s |\n|---|---|---|---|---|---|")
    for what, requests, taken in large(files):
        row = " | ".join(str(requests[kind]) for kind in ("PUT", "GET", "LIST", "DELETE"))
        print(f"| {what} | {row} | {taken:.2f} |", flush=True)
