"""Listings against a dict, on trees of small nodes, with changes that are in the tree and such that are not yet."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.objects.faulty import fresh, made, memory, writing
from tests.objects.scenarios import flushed
from tests.objects.test_prices import counted, name
from txfiles.objects import tree

PARTS = st.sampled_from([b"a", b"a-", b"a0", b"b", b"b.c", b"\xff", b"zz"])
PATHS = st.lists(PARTS, min_size=1, max_size=3).map(b"/".join)


def model_listing(files: set[bytes], directory: bytes) -> dict[bytes, str]:
    prefix = directory + b"/" if directory else b""
    found: dict[bytes, str] = {}
    for path in files:
        if path.startswith(prefix):
            first, slash, _ = path[len(prefix) :].partition(b"/")
            found[first] = "dir" if slash else "file"
    return found


def fits(path: bytes, files: set[bytes]) -> bool:
    return not any(other.startswith(path + b"/") or path.startswith(other + b"/") for other in files)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(PATHS, st.booleans(), st.booleans()), max_size=40), st.sampled_from([2, 3, 128]))
def test_listings_against_a_dict(steps: list[tuple[bytes, bool, bool]], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "LEAF", size)
        patch.setattr(tree, "INNER", max(3, size))
        requests = made(memory())
        root = fresh(requests)
        files: set[bytes] = set()
        for path, flush, deletes in steps:
            if deletes and path in files:
                files.remove(path)
                change = writing({}, deletes=(path,))
            elif fits(path, files):
                files.add(path)
                change = writing({path: b"x"})
            else:
                continue
            root.commit(flushed(change) if flush else change)
        directories = {b"", *files, *(path.rpartition(b"/")[0] for path in files)}
        directories |= {above.rpartition(b"/")[0] for above in directories}
        for reading in (root.reading(root.newest()), fresh(requests).reading(root.newest())):
            for directory in directories:
                assert reading.listing(directory) == model_listing(files, directory)
                assert list(reading.listing(directory)) == sorted(model_listing(files, directory))


@pytest.mark.parametrize("files", [10_000, pytest.param(1_000_000, marks=pytest.mark.deep)])
def test_a_root_of_many_directories_is_listed_level_by_level(files: int) -> None:
    """Not one request after the other: those of a level go together, one for each pack."""
    root, requests = counted(files)
    found = root.reading(root.newest()).listing(b"")
    assert found == dict.fromkeys(sorted({name(number)[:4] for number in range(files)}), "dir")
    packs = len(requests.inner.list("pack/"))
    assert requests.counts["range"] <= 3 * packs
