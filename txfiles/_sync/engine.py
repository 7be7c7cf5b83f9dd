"""A sync: find what two places differ in, and stage that on one of them."""

from __future__ import annotations

import hashlib
from itertools import zip_longest
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from txfiles._sync.plan import Plan, Wishes, compare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from txfiles._sync.sides import Listing, Source, Target


class Watcher(Protocol):
    """Is told how far the work has come."""

    def expect(self, what: str, files: int, size: int) -> None: ...
    def read(self, name: str, chunks: Iterator[bytes]) -> Iterator[bytes]: ...


@runtime_checkable
class Digested(Protocol):
    """A side that knows the digests of its files."""

    def digest(self, name: str) -> str: ...


def _digest(chunks: Iterator[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def find(source: Source, listing: Listing, place: Source, there: Listing, wishes: Wishes, watch: Watcher) -> Plan:
    """What makes `place`, listed as `there`, like `source`: where a look does not tell, files are read."""
    plan = compare(listing, there, wishes)
    watch.expect("comparing", len(plan.doubtful), size_of(listing, plan.doubtful))
    for name in plan.doubtful:
        ours = source.read(name, listing.entries[name])
        theirs = place.read(name, there.entries[name])
        try:
            if isinstance(place, Digested):  # nothing is read that is far away
                differ = _digest(watch.read(name, ours)) != place.digest(name)
            elif isinstance(source, Digested):
                differ = _digest(watch.read(name, theirs)) != source.digest(name)
            else:
                differ = any(mine != yours for mine, yours in zip_longest(watch.read(name, ours), theirs))
            if differ:
                plan.write.append(name)
        finally:
            ours.close()
            theirs.close()
    plan.write.sort()
    return plan


def stage(source: Source, listing: Listing, plan: Plan, target: Target, wishes: Wishes, watch: Watcher) -> None:
    """Stage a plan. An error means that the source cannot be had as it was listed: do not commit then."""
    for name in plan.delete:
        target.delete(name)
    for name in plan.remove:
        target.remove_directory(name)
    for name in plan.make:
        target.make_directory(name, listing.entries[name].mode & 0o777 if wishes.perms else None)
    for name in plan.links:
        target.make_link(name, listing.entries[name].link)
    watch.expect("copying", len(plan.write), size_of(listing, plan.write))
    for name in plan.write:
        entry = listing.entries[name]
        chunks = watch.read(name, source.read(name, entry))
        target.write(name, chunks, plan.modes[name], entry.mtime_ns if wishes.times else None)


def size_of(listing: Listing, names: list[str]) -> int:
    """Of these files together, in bytes."""
    return sum(listing.entries[name].size for name in names)
