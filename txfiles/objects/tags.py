"""Tags: names of states that are kept. A tag is a copy of the state's `HEAD`, and a line in the current one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from txfiles.errors import SnapshotExpiredError
from txfiles.objects import state as _state
from txfiles.objects.requests import Denied, RequestError
from txfiles.objects.state import State, Tag
from txfiles.objects.wait import Backoff, os_error

if TYPE_CHECKING:
    from txfiles.objects.root import Root

_TRIES = 8


class _Again(Exception):
    """The copy is below the floor: gc may delete it."""


def tag(root: Root, name: str, state: State, timeout: float | None = 10.0) -> None:
    """Keep a state under a name, in the place of what had the name. Raises `SnapshotExpiredError`, `OSError`."""

    def alter(now: State) -> State:
        retained = any((kept.seq, kept.id) == (state.seq, state.id) for kept in now.tags.values())
        if state.seq < now.expired and not retained:
            message = f"the state {state.seq} of {root.shown} has expired; take a new snapshot"
            raise SnapshotExpiredError(message, path=root.shown)
        if _state.seq_of(snap) < now.floor:
            raise _Again
        return replace(now, tags={**now.tags, name: Tag(snap, state.seq, state.id)})

    while True:
        snap = _state.new_name(root.state().seq)
        _put(root, f"snap/{snap}", _state.encode(state, "snapshot"))
        try:
            root.alter(alter, timeout)
        except _Again:
            continue
        return


def untag(root: Root, name: str, timeout: float | None = 10.0) -> None:
    """Let a state go. Raises `KeyError` if nothing has the name."""

    def alter(now: State) -> State:
        if name not in now.tags:
            raise KeyError(name)
        return replace(now, tags={tag: kept for tag, kept in now.tags.items() if tag != name})

    root.alter(alter, timeout)


def _put(root: Root, key: str, data: bytes) -> None:
    backoff = Backoff(root.source.clock)
    for left in reversed(range(_TRIES)):
        try:
            root.source.requests.put(key, data)
            return
        except RequestError as error:
            if not left or isinstance(error, Denied):
                raise os_error(root.shown, error) from error.cause
            backoff.pause()
