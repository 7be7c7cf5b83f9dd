"""Compacting: what lives in mostly dead packs moves, nothing else changes, and gc takes the packs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.objects.faulty import Planned, contents, fresh, made, memory, writing
from tests.objects.scenarios import BIG, everything_referenced_is_readable, flushed
from txfiles.errors import CommitError, RecoveryError
from txfiles.objects import compact as compacting
from txfiles.objects.change import Put
from txfiles.objects.collect import collect
from txfiles.objects.compact import Compacted, compact
from txfiles.objects.root import Root
from txfiles.objects.tags import tag


def mixed(files: int = 40, *, size: int = BIG) -> Root:
    """A root in whose first pack one file of ten is left, its tree in packs, too."""
    root = fresh(made(memory()))
    root.commit(flushed(writing({b"f%02d" % n: b"%d" % n * (size // 2) for n in range(files)})))
    root.commit(flushed(writing({b"f%02d" % n: b"new" for n in range(files) if n % 10})))
    return root


def size_of(root: Root) -> int:
    return sum(one.size for one in root.source.requests.list("pack/"))


def swept(root: Root) -> int:
    for _ in range(4):
        collect(root, 0, 0)
    return size_of(root)


def versions(root: Root) -> dict[bytes, tuple[Any, ...]]:
    return {path: entry[:4] for path, entry in root.reading(root.newest()).scan(b"")}


@pytest.mark.parametrize("size", [BIG, 1000, 100_000])
def test_what_lives_moves_and_gc_takes_the_rest(size: int) -> None:
    root = mixed(size=size)
    before, seen, held = contents(root), versions(root), swept(root)
    done = compact(root, 0.5)
    assert (done.packs, done.moved) == (1, 4)
    assert done.moved_bytes < done.bytes / 2
    assert (contents(root), versions(root)) == (before, seen), "no file changes, no version, no mode"
    assert swept(root) < held / 2
    assert (contents(fresh(root.source.requests)), versions(root)) == (before, seen)
    compact(root, 0.5)  # of packs that lost their nodes to the new one
    assert compact(root, 0.5) == Compacted(), "it comes to rest"


def test_packs_that_live_are_left_alone() -> None:
    root = mixed()
    state = root.newest()
    assert compact(root, 0.95) == Compacted()
    assert root.newest() == state, "nothing is committed"


def test_nodes_of_the_tree_move_too() -> None:
    """A pack of which only nodes are left is as good as dead."""
    root = fresh(made(memory()))
    big = writing({b"big": b"x" * 500_000, **{b"f%04d" % n: b"" for n in range(600)}})
    root.commit(flushed(big))
    first = root.state().root
    assert first is not None
    root.commit(flushed(writing({b"f0599": b"y"}, deletes=(b"big",))))
    assert compact(root, 0.5).packs >= 1
    before = contents(root)
    swept(root)
    assert f"pack/{first.pack}" not in {one.key for one in root.source.requests.list("pack/")}
    assert contents(fresh(root.source.requests)) == before


def test_copies_share_a_content_afterwards_too() -> None:
    root = mixed(size=20_000)
    entry = root.reading(root.state()).entry(b"f00")
    assert entry is not None
    copy = writing({})
    copy.writes[b"copy"] = Put(f"{copy.tid}.0", None, None, (b"f00", entry.version))
    root.commit(copy)
    compact(root, 0.5)
    reading = root.reading(root.newest())
    one, other = reading.entry(b"f00"), reading.entry(b"copy")
    assert one is not None
    assert other is not None
    assert (one.pack, one.offset) == (other.pack, other.offset) != (entry.pack, entry.offset)


def test_what_a_tag_retains_stays() -> None:
    root = fresh(made(memory()))
    root.commit(writing({b"f%d" % n: b"%d" % n * BIG for n in range(10)}))
    tag(root, "v1", root.newest())
    root.commit(writing({b"f%d" % n: b"new" for n in range(9)}))
    assert compact(root, 0.5) == Compacted()
    everything_referenced_is_readable(root.source.requests)


def test_a_large_root_is_done_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "FILES", 3)
    monkeypatch.setattr(compacting, "BYTES", 2 * BIG)
    root = mixed(100)
    before, seq = contents(root), root.newest().seq
    told: list[int] = []
    done = compact(root, 0.5, told=told.append)
    assert (done.packs, done.moved) == (1, 10)
    assert root.newest().seq - seq == 1 + len(told) > 3
    assert told == sorted(told)
    assert contents(root) == before
    assert swept(root) < 20 * BIG


def test_a_store_that_fails_ends_it_with_nothing_lost() -> None:
    root = mixed()
    before = contents(root)
    planned = Planned(root.source.requests, lambda number, name, key: "before" if name == "put" else None)
    with pytest.raises(CommitError):
        compact(fresh(planned), 0.5, 0.05)
    assert contents(root) == before
    unreadable = Planned(root.source.requests, lambda number, name, key: "before" if name == "range" else None)
    with pytest.raises(OSError, match="the store failed"):
        compact(fresh(unreadable), 0.5)


def test_damage_is_refused_and_not_written_anew() -> None:
    root = mixed()
    entry = root.reading(root.newest()).entry(b"f00")
    assert entry is not None
    requests = root.source.requests
    data = bytearray(requests.get(f"pack/{entry.pack}").data)
    data[entry.offset] ^= 1
    requests.put(f"pack/{entry.pack}", bytes(data))
    state = root.newest()
    with pytest.raises(RecoveryError, match="not what was written"):
        compact(fresh(requests), 0.5)
    assert root.newest() == state
