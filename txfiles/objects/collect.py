"""Garbage: what no state refers to any more. Any number of runs at once, stopped anywhere; no clock is trusted.

An object may be deleted once its name is below `floor` and a state at or after that floor does not refer to it: a
commit refers only to what it read from the state that it replaces, and to its own packs, which it checks against the
floor. So what is unreferenced there stays so. Every read that fails ends the run: "could not be read" is not "refers to
nothing".
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from txfiles.errors import RecoveryError
from txfiles.objects import settle, tree
from txfiles.objects import state as _state
from txfiles.objects.requests import Missing, RequestError
from txfiles.objects.state import HEAD, State
from txfiles.objects.wait import os_error, reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles.objects.requests import Got, Listed
    from txfiles.objects.root import Root

_KINDS = ("pack", "hist", "snap")


@dataclass
class Collected:
    """What a run did: how many objects it condemned and deleted, the floor now, and the lists it has finished."""

    condemned: int = 0
    deleted: int = 0
    floor: int = 0
    lists: list[str] = field(default_factory=list)


def collect(
    root: Root, grace_commits: int, grace_seconds: float, told: Callable[[str, int], None] = lambda what, n: None
) -> Collected:
    """One run. Objects go only two runs and the grace after nothing refers to them. Raises `OSError`, `RecoveryError`.

    The grace is for readers of old snapshots: that many commits, and seconds between two times of the store.
    """
    state = root.newest()
    done = Collected(floor=state.floor)
    _delete_condemned(root, state, grace_commits, grace_seconds, done)
    told("deleted", done.deleted)
    _condemn(root, state, done)
    told("condemned", done.condemned)
    done.floor = root.alter(lambda now: _raise_floor(now, state)).floor
    return done


def _raise_floor(now: State, seen: State) -> State:
    return replace(now, floor=max(now.floor, seen.nextfloor), nextfloor=max(now.nextfloor, seen.seq))


def listed(root: Root, kind: str) -> list[tuple[int, Listed]]:
    """The objects whose key has exactly our pattern, with the number in it."""
    found = reading(root.source.clock, root.shown, lambda: root.source.requests.list(f"{kind}/"))
    pairs = ((_state.seq_of_key(one.key, kind), one) for one in found)
    return [(seq, one) for seq, one in pairs if seq is not None]


def _get(root: Root, key: str) -> Got:
    return reading(root.source.clock, root.shown, lambda: root.source.requests.get(key))


# -- deleting what was condemned earlier ------------------------------------------------------------------------


def _delete_condemned(root: Root, state: State, grace_commits: int, grace_seconds: float, done: Collected) -> None:
    lists = [(seq, one) for seq, one in listed(root, "gc") if seq + grace_commits <= state.seq]
    if grace_seconds > 0:
        lists = _old_enough(root, lists, grace_seconds)
    if not lists:
        return
    expired = max(seq for seq, _ in lists)
    now = root.alter(lambda state: replace(state, expired=max(state.expired, min(expired, state.seq))))
    kept = _kept_by_tags(root, now, max(now.floor, expired))
    for _, one in lists:
        try:
            keys = _state.decode_condemned(_get(root, one.key).data, f"{root.shown}: {one.key}")
        except Missing:
            continue  # another run has finished it
        for key in keys:
            if key not in kept:
                _delete(root, key)
                done.deleted += 1
        _delete(root, one.key)
        done.lists.append(one.key)


def _old_enough(root: Root, lists: list[tuple[int, Listed]], seconds: float) -> list[tuple[int, Listed]]:
    """By the times that the store gave to the list and to `HEAD`, which the last run has replaced."""
    try:
        now = _get(root, HEAD).modified
    except Missing as error:
        raise RecoveryError(f"{root.shown}: {HEAD} is gone", path=root.shown) from error.cause
    return [(seq, one) for seq, one in lists if now - one.modified >= seconds]


def _delete(root: Root, key: str) -> None:
    def delete() -> None:
        root.source.requests.delete(key)

    reading(root.source.clock, root.shown, delete)


# -- condemning what nothing refers to --------------------------------------------------------------------------


def _condemn(root: Root, state: State, done: Collected) -> None:
    candidates = {one.key for kind in _KINDS for seq, one in listed(root, kind) if seq < state.floor}
    if not candidates:
        return
    kept = _kept(root, [state, *_tagged(root, state)], state.floor)
    kept |= {f"snap/{tag.snap}" for tag in state.tags.values()}
    if any(key.startswith("hist/") for key in candidates):
        kept |= _blocks(root, state)
    condemned = sorted(candidates - kept)
    done.condemned = len(condemned)
    if condemned:
        key = f"gc/{_state.new_name(state.seq)}"
        try:
            root.source.requests.put(key, _state.encode_condemned(condemned))
        except RequestError as error:
            raise os_error(root.shown, error) from error.cause


def _kept(root: Root, states: list[State], floor: int) -> set[str]:
    """The packs below the floor that states refer to."""
    packs = {entry.pack for state in states for entry in state.delta.values() if entry is not None and entry.pack}
    nodes = root.reading(states[0])
    packs |= tree.packs_below(nodes, [state.root for state in states if state.root is not None], floor)
    return {f"pack/{pack}" for pack in packs}


def _kept_by_tags(root: Root, state: State, below: int) -> set[str]:
    """What the tags of a state retain; after `expired` none can be put on a state before it any more."""
    states = _tagged(root, state)
    kept = {f"snap/{tag.snap}" for tag in state.tags.values()}
    return kept | _kept(root, states, below) if states else kept


def retained(root: Root, state: State) -> set[str]:
    """The objects that the tags of a state retain."""
    return _kept_by_tags(root, state, state.seq + 1)


def _tagged(root: Root, state: State) -> list[State]:
    return [tagged(root, tag.snap) for tag in state.tags.values()]


def tagged(root: Root, snap: str) -> State:
    """The state that a tag retains. Raises `RecoveryError` if its object is not there."""
    key = f"snap/{snap}"
    known: State | None = root.source.cache.get(key, 0)
    if known is not None:
        return known
    try:
        got = _get(root, key)
    except Missing as error:
        message = f"{root.shown}: {key} is missing although a tag retains it; something else deleted it"
        raise RecoveryError(message, path=root.shown) from error.cause
    state = _state.decode(got.data, f"{root.shown}: {key}", "snapshot")
    root.source.cache.put(key, 0, state, 4 * len(got.data))
    return state


def _blocks(root: Root, state: State) -> set[str]:
    """The blocks of ids; they stay for ever."""
    kept = set()
    block = state.hist[0] if state.hist is not None else None
    while block is not None:
        kept.add(f"hist/{block}")
        block = settle.read_block(root.source, block).before
    return kept
