"""Writers with nothing in common but the bucket, in a model of its latency with a virtual time: none starves."""

from __future__ import annotations

import pytest

from benchmarks.objects import Crowd, Modelled, change, crowd, new_store, opened
from benchmarks.virtual import VirtualClock
from txfiles.objects.state import HEAD, State, encode, new_id
from txfiles.objects.turn import Turn

STARVED = 5.0  # seconds


def run(writers: int, seconds: float, *, seed: int = 0, jitter: float = 0.0) -> Crowd:
    got = crowd(writers, seconds, grouped=False, seed=seed, jitter=jitter)
    assert got.files == sum(min(20, number) for number in got.commits), "nothing is lost"
    return got


@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_none_of_64_writers_waits_for_five_seconds(jitter: float) -> None:
    got = run(64, 9, jitter=jitter)
    assert got.longest < STARVED
    assert got.rate > 20


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("jitter", [0.0, 0.1, 0.3])
def test_none_of_64_writers_waits_for_five_seconds_for_long(seed: int, jitter: float) -> None:
    assert run(64, 30, seed=seed, jitter=jitter).longest < STARVED


@pytest.mark.parametrize("writers", [2, 4, 16])
def test_few_writers_take_turns(writers: int) -> None:
    got = run(writers, 10)
    assert got.rate > 15
    assert got.longest < 2
    first, *others = sorted(got.commits, reverse=True)
    assert first < 2 * others[0] + 33, "one may be alone for a second at first"
    assert others[0] < 1.5 * others[-1]


def test_the_figures_are_those_of_the_seed() -> None:
    assert run(4, 5, seed=1) == run(4, 5, seed=1) != run(4, 5, seed=2)


def test_a_writer_alone_leaves_little_time() -> None:
    """Nine parts of ten of what it could do, with one PUT a commit; what it leaves is for those that always lose."""
    got = run(1, 10)
    assert 0.9 / 0.03 < got.rate < 1 / 0.03
    assert got.puts == 1.0
    assert got.longest < 0.1


def test_who_comes_back_later_does_not_wait_for_a_queue_that_is_gone() -> None:
    store, clock = new_store(), VirtualClock()
    store.put(HEAD, encode(State(seq=7, id=new_id(), waited=60_000)))
    root = opened(Modelled(store, clock))
    root.commit(change({b"a": b"1"}))
    assert clock.now() < 0.5
    assert root.state().waited < 500
    began = clock.now()
    root.commit(change({b"a": b"2"}))
    root.commit(change({b"a": b"3"}))
    assert clock.now() - began < 0.5


@pytest.mark.parametrize("mistake", ["nobody holds back", "nobody leaves a moment"])
def test_without_turns_writers_starve(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    if mistake == "nobody holds back":
        monkeypatch.setattr(Turn, "waited", lambda self: 0)
    else:
        monkeypatch.setattr("txfiles.objects.turn.ALONE", 1e9)
    assert run(16, 8).longest > STARVED
