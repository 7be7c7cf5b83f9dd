"""Mistakes that this engine must not make. Each is what an exploration or a storm has to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from txfiles.errors import CommitError
from txfiles.objects import collect
from txfiles.objects import state as _state
from txfiles.objects.change import Change
from txfiles.objects.commit import Attempt, Committer, Known
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
        from dataclasses import replace

        return inner(self, lambda now: replace(change(now), expired=0), timeout)

    patch.setattr(Root, "alter", alter)


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]] = {
    no_fence: ("a slow writer and gc",),
    recent_not_consulted: ("two writers",),
    refusal_is_final: ("two writers",),
    ambiguous_is_before: ("two writers",),
    no_validation: ("two writers",),
    no_fence_commit: ("an unknown outcome settled beside a writer",),
    tags_not_marked: ("a tag and gc",),
    expired_not_told: ("a tag and gc",),
}
