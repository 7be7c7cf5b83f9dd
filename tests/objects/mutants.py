"""Mistakes that this engine must not make. Each is what an exploration or a storm has to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from txfiles.errors import CommitError
from txfiles.objects import change, collect
from txfiles.objects import state as _state
from txfiles.objects.change import Change, Move, Put
from txfiles.objects.commit import Attempt, Committer
from txfiles.objects.keeper import Known
from txfiles.objects.root import Root
from txfiles.objects.state import HEAD, State, new_id


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """A pack below the floor is referred to all the same."""
    patch.setattr(Committer, "_below_floor", lambda self, content, state: False)


def recent_not_consulted(patch: pytest.MonkeyPatch) -> None:
    """Only the last transaction is taken for committed."""
    patch.setattr(State, "has", lambda self, tid: tid == self.id)


def refusal_is_final(patch: pytest.MonkeyPatch) -> None:
    """A 412 is taken for a lost race without a look."""

    def forget(self: Committer, attempt: Attempt) -> None:
        self._doubt = None
        self._root.__dict__["_known"] = None

    patch.setattr(Committer, "_no_verdict", forget)


def ambiguous_is_before(patch: pytest.MonkeyPatch) -> None:
    """No answer is taken for "not done"."""

    def fail(self: Committer, attempt: Attempt, error: Any) -> None:
        self._end(attempt, CommitError("mutant"))

    patch.setattr(Committer, "_doubtful", fail)


def no_validation(patch: pytest.MonkeyPatch) -> None:
    """What was read is not looked at again."""
    patch.setattr(Change, "validate", lambda self, reading: None)


def no_fence_commit(patch: pytest.MonkeyPatch) -> None:
    """`recover` says "before" while the PUT is still under way."""
    patch.setattr(Root, "_fence", lambda self, timeout: None)


def unreadable_is_empty(patch: pytest.MonkeyPatch) -> None:
    """gc takes a state that it cannot read for one that refers to nothing."""
    inner = collect._kept

    def kept(*arguments: Any) -> set[str]:
        try:
            return inner(*arguments)
        except OSError:
            return set()

    patch.setattr(collect, "_kept", kept)


def deleted_head_is_new(patch: pytest.MonkeyPatch) -> None:
    """A root whose HEAD is gone is begun anew."""
    inner = Root.refresh

    def refresh(self: Root) -> Known:
        try:
            return inner(self)
        except Exception as error:
            if "HEAD" not in str(error):
                raise
            state = State(seq=0, id=new_id())
            self._known = Known(state, self.source.requests.put(HEAD, _state.encode(state), "create"))
            return self._known

    patch.setattr(Root, "refresh", refresh)


def tags_not_marked(patch: pytest.MonkeyPatch) -> None:
    """gc asks the current state alone."""
    patch.setattr(collect, "_tagged", lambda root, state: [])


def expired_not_told(patch: pytest.MonkeyPatch) -> None:
    """Tags may be put on states whose packs are about to go."""
    inner = Root.alter

    def alter(self: Root, change: Callable[[State], State], timeout: float | None = 10.0) -> State:
        return inner(self, lambda now: replace(change(now), expired=0), timeout)

    patch.setattr(Root, "alter", alter)


def moved_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """Compacting brings back what it has read, whatever is there now."""
    inner = Change.apply

    def apply(self: Change, reading: Any, places: Any) -> State:
        for path, write in self.writes.items():
            if isinstance(write, Move) and write.entry is not None:
                reading.state = replace(reading.state, delta={**reading.state.delta, path: write.entry})
        return inner(self, reading, places)

    patch.setattr(Change, "apply", apply)


def moved_files_stay(patch: pytest.MonkeyPatch) -> None:
    """A file that is copied is looked for where it lay when it was read."""
    inner = change._entry

    def entry(put: Any, old: Any, reading: Any, places: Any) -> Any:
        if getattr(put, "origin", None) is None:
            return inner(put, old, reading, places)
        return LAIN[put.origin]._replace(version=put.version)

    LAIN.clear()
    validate = Change.validate

    def remembering(self: Change, reading: Any) -> None:
        for write in self.writes.values():
            if isinstance(write, Put) and write.origin is not None:
                LAIN.setdefault(write.origin, reading.entry(write.origin[0]))
        validate(self, reading)

    patch.setattr(change, "_entry", entry)
    patch.setattr(Change, "validate", remembering)


LAIN: dict[Any, Any] = {}

MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]] = {
    no_fence: ("a slow writer and gc",),
    recent_not_consulted: ("two writers",),
    refusal_is_final: ("two writers",),
    ambiguous_is_before: ("two writers",),
    no_validation: ("two writers",),
    no_fence_commit: ("an unknown outcome settled beside a writer",),
    moved_without_a_look: ("compacting, a writer and gc",),
    moved_files_stay: ("compacting, a copy and gc",),
    tags_not_marked: ("a tag and gc",),
    expired_not_told: ("a tag and gc",),
}
