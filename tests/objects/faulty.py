"""The boundary of requests with faults in it, on obstore's MemoryStore."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from obstore.store import MemoryStore

from txfiles.objects.change import Change, Put
from txfiles.objects.content import Spool, Writer
from txfiles.objects.requests import Body, Condition, Failed, Listed, RequestError, StoreRequests, Token
from txfiles.objects.root import Root
from txfiles.objects.state import HEAD, State, encode, new_id
from txfiles.objects.wait import Clock

FAULTS = ("before", "after", "twice", "late")


class FastClock(Clock):
    """Real or made-up time that passes by pauses only; nobody sleeps."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def pause(self, at_most: float) -> None:
        self.sleep(at_most)

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class Wrapped:
    """All requests go through `call`, which may do something else instead."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def call(self, name: str, key: str, run: Callable[[], Any]) -> Any:
        return run()

    def put(self, key: str, body: Body, condition: Condition = None) -> Any:
        return self.call("put", key, lambda: self.inner.put(key, body, condition))

    def get(self, key: str, unless: Token | None = None) -> Any:
        return self.call("get", key, lambda: self.inner.get(key, unless))

    def ranges(self, key: str, spans: Any) -> Any:
        return self.call("range", key, lambda: self.inner.ranges(key, spans))

    def list(self, prefix: str, at_most: int | None = None) -> Any:
        return self.call("list", prefix, lambda: self.inner.list(prefix, at_most))

    def delete(self, key: str) -> None:
        self.call("delete", key, lambda: self.inner.delete(key))


class Counted(Wrapped):
    """Counts requests by name."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.counts: Counter[str] = Counter()

    def call(self, name: str, key: str, run: Callable[[], Any]) -> Any:
        self.counts[name] += 1
        return run()


def apply_fault(kind: str, run: Callable[[], Any], later: Callable[[Callable[[], Any]], None]) -> Any:
    """What a faulty store does with a request, and tells of it."""
    if kind == "before":
        raise Failed("injected: not done", OSError("injected"))
    if kind == "after":
        run()
        raise Failed("injected: done, no answer", OSError("injected"))
    if kind == "twice":
        run()
        return run()  # a conditional request meets its own effect
    if kind == "late":
        later(run)
        raise Failed("injected: on its way", OSError("injected"))
    raise AssertionError(kind)


class Planned(Wrapped):
    """Fails the requests that `plan(number, name, key)` names, numbered from 0."""

    def __init__(self, inner: Any, plan: Callable[[int, str, str], str | None]) -> None:
        super().__init__(inner)
        self.plan = plan
        self.number = 0
        self.pending: list[Callable[[], Any]] = []

    def call(self, name: str, key: str, run: Callable[[], Any]) -> Any:
        kind = self.plan(self.number, name, key)
        self.number += 1
        return run() if kind is None else apply_fault(kind, run, self.pending.append)

    def land(self) -> None:
        """What was on its way arrives now."""
        pending, self.pending = self.pending, []
        for run in pending:
            with contextlib.suppress(RequestError):
                run()


class Random(Wrapped):
    """Fails a part of all requests, at random; what is late lands before some later request."""

    def __init__(self, inner: Any, part: float, seed: int) -> None:
        super().__init__(inner)
        self.part = part
        self.rng = random.Random(seed)
        self.mutex = threading.Lock()
        self.pending: list[Callable[[], Any]] = []
        self.stale: list[Listed] | None = None

    def call(self, name: str, key: str, run: Callable[[], Any]) -> Any:
        with self.mutex:
            fails, kind = self.rng.random() < self.part, self.rng.choice(FAULTS)
            lands = self.pending.pop(0) if self.pending and self.rng.random() < 0.3 else None
        if lands is not None:
            with contextlib.suppress(RequestError):
                lands()
        if not fails:
            return run()
        return apply_fault(kind, run, self.pending.append)

    def list(self, prefix: str, at_most: int | None = None) -> Any:
        found = super().list(prefix, at_most)
        with self.mutex:
            if self.rng.random() < self.part / 2 and self.stale is not None:
                found = [one for one in self.stale if one.key.startswith(prefix)]
            else:
                self.stale = found
        return found


def memory(prefix: str = "p/", store: MemoryStore | None = None) -> StoreRequests:
    return StoreRequests(store or MemoryStore(), prefix)


def made(requests: Any) -> Any:
    """An empty root, as `create` leaves it."""
    requests.put(HEAD, encode(State(seq=0, id=new_id())), "create")
    return requests


def fresh(requests: Any, clock: Clock | None = None) -> Root:
    """A root as a new process would see it; one request at a time."""
    root = Root(requests, "memory://test", clock=clock or FastClock())
    root.source.width = 1
    return root


def writing(
    files: dict[bytes, bytes], *, reads: dict[bytes, str | None] | None = None, deletes: tuple[bytes, ...] = ()
) -> Change:
    change = Change(new_id(), reads=dict(reads or {}))
    spool = Spool()
    for number, (path, data) in enumerate(files.items()):
        writer = Writer(spool)
        writer.write(data)
        change.writes[path] = Put(f"{change.tid}.{number}", None, writer.finish())
    for path in deletes:
        change.writes[path] = None
    return change


def contents(root: Root) -> dict[bytes, bytes]:
    """All files of the newest state, each checked against its digest."""
    reading = root.reading(root.newest())
    entries = [(path, entry) for path, entry in reading.scan(b"") if entry.is_file]
    assert reading.state.files == len(entries)
    return dict(zip((path for path, _ in entries), reading.contents(entries), strict=True))


def each_fault() -> Iterator[str]:
    yield from FAULTS
