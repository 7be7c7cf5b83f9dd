"""The price list: how many requests a commit and a read cost, and how large nodes and trees are."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.objects.faulty import Counted, contents, fresh, made, memory, writing
from txfiles.objects import tree
from txfiles.objects.change import Change
from txfiles.objects.state import Entry, State, checksum, encode, new_id, new_name
from txfiles.objects.tree import Pack

SMALL, LARGE = 500, 50_000


def filled(number: int) -> Any:
    """A root with so many files in its tree, and an empty delta."""
    requests = memory()
    pack = Pack(new_name(0))
    digest = checksum(b"")
    changes: dict[bytes, Entry | None] = {
        b"d%03d/f%07d" % (n % 100, n): Entry(f"{new_id()}.0", 0, digest, None, b"") for n in range(number)
    }
    reading = fresh(made(requests)).reading(State(0, new_id()))
    root = tree.update(reading, None, changes, pack)
    requests.put(f"pack/{pack.name}", b"".join(pack.pieces))
    requests.put("HEAD", encode(State(1, new_id(), root=root, files=number)))
    return requests


def scattered(number: int, of: int, size: int) -> dict[bytes, bytes]:
    rng = random.Random(1)
    chosen = (rng.randrange(of) for _ in range(number))
    return {b"d%03d/f%07d" % (n % 100, n): bytes([n % 251]) * size for n in chosen}


def spent(requests: Any, change: Change, *, warm: bool) -> dict[str, int]:
    """The requests of a commit; of a cold one with all that it takes to begin."""
    counted = Counted(requests)
    root = fresh(counted)
    if warm:
        root.reading(root.newest()).prefetch(list(change.writes))
        for path in change.writes:
            root.reading(root.state()).file_above(path)
            root.reading(root.state()).first_below(path)
        counted.counts.clear()
    root.commit(change)
    counts = counted.counts
    return {"put": counts["put"], "get": counts["get"] + counts["range"]}


COMMITS = [(4, SMALL, 1), (4, LARGE, 2), (32, LARGE, 2)]


@pytest.mark.parametrize(
    ("of", "number", "size", "puts"),
    [*((of, *commit) for of in (100, 10_000) for commit in COMMITS), (10_000, 1000, SMALL, 2)],
)
def test_a_warm_commit(of: int, number: int, size: int, puts: int) -> None:
    files = scattered(number, of, size)
    assert spent(filled(of), writing(files), warm=True) == {"put": puts, "get": 0}


@pytest.mark.parametrize(("of", "number", "gets"), [(100, 4, 2), (10_000, 4, 6), (10_000, 32, 30), (10_000, 1000, 110)])
def test_a_cold_commit(of: int, number: int, gets: int) -> None:
    """HEAD, the root, and a leaf for each file at most. A level of nodes in one pack is one request."""
    found = spent(filled(of), writing(scattered(number, of, SMALL)), warm=False)
    assert found["get"] <= gets


def test_a_flush_comes_every_few_dozen_commits() -> None:
    counted = Counted(made(memory()))
    root = fresh(counted)
    root.newest()
    counted.counts.clear()
    for n in range(200):
        root.commit(writing({b"d/%d" % (n * 4 + k): b"x" * SMALL for k in range(4)}))
    assert counted.counts["get"] == 0
    assert 200 + 2 <= counted.counts["put"] <= 200 + 8
    assert counted.counts["range"] <= 20


def test_opening_is_one_request_and_a_poll_transfers_nothing() -> None:
    counted = Counted(filled(100))
    root = fresh(counted)
    root.newest()
    assert counted.counts == {"get": 1}
    assert root.newest() is root.state()
    assert counted.counts == {"get": 2}


def test_a_million_files_are_three_levels_of_small_nodes() -> None:
    root = fresh(filled(10_000))
    state = root.newest()
    reading = root.reading(state)
    assert state.root is not None
    top = reading.load(state.root)
    assert isinstance(top, tree.Inner)
    assert all(isinstance(reading.load(ref), tree.Leaf) for ref in top.refs)
    sizes = [ref.length for ref in top.refs]
    assert 2_000 < sum(sizes) / len(sizes) < 12_000
    per_leaf = 10_000 / len(top.refs)
    assert per_leaf * (tree.INNER * 0.5) ** 2 > 1_000_000


def test_a_listing_passes_over_subtrees() -> None:
    counted = Counted(filled(10_000))
    root = fresh(counted)
    reading = root.reading(root.newest())
    counted.counts.clear()
    assert len(reading.listing(b"d050")) == 100
    assert counted.counts["range"] <= 4
    assert len(reading.listing(b"")) == 100


def test_names_against_a_dict_through_many_flushes() -> None:
    """Leaves that split, empty and join again."""
    rng = random.Random(7)
    root = fresh(made(memory()))
    model: dict[bytes, bytes] = {}
    for round_number in range(30):
        files = {b"%d/%d" % (rng.randrange(5), rng.randrange(4000)): b"%d" % round_number for _ in range(700)}
        share = 0.9 if round_number % 7 == 6 else 0.1
        gone = tuple(k for k in model if k not in files and rng.random() < share)
        change = writing(files, deletes=gone)
        root.commit(change)
        model.update(files)
        for key in gone:
            del model[key]
        if round_number % 5 == 4:
            assert contents(fresh(root.source.requests)) == model
    root.commit(writing({}, deletes=tuple(model)))
    assert contents(fresh(root.source.requests)) == {}
    assert root.state().root is None


def test_staging_many_files_takes_time_that_grows_with_their_number() -> None:
    """Counted in questions to the tree, not in seconds."""
    from txfiles.objects.staging import Staged

    def asked(number: int) -> int:
        root = fresh(made(memory()))
        staged = Staged(root.reading(root.newest()))
        calls = 0
        inner = staged.kind_of

        def kind_of(path: bytes) -> str | None:
            nonlocal calls
            calls += 1
            return inner(path)

        staged.kind_of = kind_of  # type: ignore[method-assign]
        with staged.step():
            for n in range(number):
                path = b"deep/er/%d/%d" % (n % 10, n)
                writer = staged.tokens.new(path)
                writer.write(b"x")
                staged.make_parents(path)
                staged.put(path, writer.finish(staged.meta_for_new(path), None))  # type: ignore[arg-type]
        return calls

    assert asked(2000) <= 2 * asked(1000) + 100
