"""A half-done commit is as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.boundary import tree
from tests.support.halfdone import NEW, OLD, die, everything, journal_of, of_kind, staged
from txfiles import recover, status


@pytest.mark.parametrize("applied", [-1, 0, 1, 2, 3])
def test_as_much_is_applied_as_was_asked_for(root: Path, applied: int) -> None:
    die(root, applied)
    assert journal_of(root).suffix == (".intent" if applied == -1 else ".committed")
    assert status(root).pending[0].paths == ["a", "b", "sub", "sub/c"]
    assert len([name for name in NEW if NEW[name] is not None and tree(root).get(name) == NEW[name]]) == max(applied, 0)
    if applied < 2:
        assert staged(root, 1).read_bytes() == NEW["b"]
    assert len(of_kind(root, "old")) == 2
    assert set(everything(root)) > set(tree(root))
    recover(root)
    assert tree(root) == (OLD if applied == -1 else NEW)
