"""The price list: how many requests a commit and a read make, on roots of 100 to 1,000,000 files."""

from __future__ import annotations

import threading
from functools import cache

import pytest

from tests.objects.faulty import Counted, contents, fresh, made, memory, writing
from txfiles.objects.root import Root

DEEP = pytest.mark.deep
SIZES = [100, 10_000, pytest.param(1_000_000, marks=DEEP)]
AT_ONCE = 20_000  # files of one commit while a large root is made


def name(number: int) -> bytes:
    return b"d%03d/f%07d" % (number % 997, number)


@cache
def objects(files: int) -> dict[str, bytes]:
    """Those of a root of so many files of 100 bytes."""
    requests = made(memory(""))
    root = fresh(requests)
    for start in range(0, files, AT_ONCE):
        root.commit(writing({name(n): b"x" * 100 for n in range(start, min(start + AT_ONCE, files))}), None)
    return {one.key: requests.get(one.key).data for one in requests.list("")}


def counted(files: int) -> tuple[Root, Counted]:
    requests = memory("")
    for key, data in objects(files).items():
        requests.put(key, data)
    return fresh(counting := Counted(requests)), counting


def taken(requests: Counted) -> tuple[int, int]:
    """PUTs and GETs since the last time."""
    puts, gets = requests.counts["put"], requests.counts["get"] + requests.counts["range"]
    requests.counts.clear()
    return puts, gets


@pytest.mark.parametrize("files", SIZES)
def test_four_small_files_are_one_put_and_no_get(files: int) -> None:
    root, requests = counted(files)
    change = {name(n * files // 4): b"new" for n in range(4)}
    root.commit(writing(change))
    taken(requests)
    for _ in range(3):
        root.commit(writing(change))
        puts, gets = taken(requests)
        assert (puts, gets) in ((1, 0), (2, 0)), "two where the delta goes into the tree"
    assert contents(root)[name(0)] == b"new"


@pytest.mark.parametrize(("files", "gets"), [(100, 2), (10_000, 6), pytest.param(1_000_000, 10, marks=DEEP)])
def test_a_cold_commit_of_four_small_files(files: int, gets: int) -> None:
    root, requests = counted(files)
    root.newest()
    root.commit(writing({name(n * files // 4): b"new" for n in range(4)}))
    assert requests.counts["put"] <= 2
    assert taken(requests)[1] <= gets


@pytest.mark.parametrize("files", SIZES)
@pytest.mark.parametrize(("number", "size"), [(4, 50_000), (32, 50_000), (1000, 500)])
def test_any_number_of_files_is_two_puts(files: int, number: int, size: int) -> None:
    root, requests = counted(files)
    change = {name(n * files // number if files > number else n): b"y" * size for n in range(number)}
    root.commit(writing(change))
    taken(requests)
    root.commit(writing(change))
    puts, gets = taken(requests)
    assert puts <= 2
    assert gets <= (0 if files < 1_000_000 else 1000)


@pytest.mark.parametrize(("files", "gets"), [(100, 1), (10_000, 2), pytest.param(1_000_000, 3, marks=DEEP)])
def test_a_cold_look_at_one_of_many_files(files: int, gets: int) -> None:
    root, requests = counted(files)
    reading = root.reading(root.newest())
    taken(requests)
    entry = reading.entry(name(files // 2))
    assert entry is not None
    assert taken(requests)[1] <= gets
    reading.entry(name(files // 2))
    assert taken(requests) == (0, 0), "a node is read once"


@pytest.mark.parametrize("files", SIZES)
def test_polling_is_one_get(files: int) -> None:
    root, requests = counted(files)
    root.newest()
    taken(requests)
    root.newest()
    assert taken(requests) == (0, 1)


def test_a_group_is_one_put() -> None:
    """Sixteen transactions that wait for one another share a `HEAD`."""
    root, requests = counted(100)
    root.newest()
    taken(requests)
    release = threading.Event()
    put = requests.inner.put

    def slow(*args: object) -> object:
        release.wait(10)
        return put(*args)

    requests.inner.put = slow
    threads = [threading.Thread(target=root.commit, args=(writing({b"g%d" % n: b"x"}),)) for n in range(17)]
    for thread in threads:
        thread.start()
    while len(root.committer._queue) < 16:  # one leads, and is held up in its PUT
        release.wait(0.01)
    release.set()
    for thread in threads:
        thread.join()
    assert taken(requests)[0] <= 3
    assert len(contents(root)) == 117
