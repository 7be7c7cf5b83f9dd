"""A check that cannot fail is worse than none: the explorations find each of these mistakes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.objects.explorations import EXPLORATIONS
from tests.objects.mutants import MUTANTS
from txfiles.errors import RecoveryError


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_explorations_find_a_mutant(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    for name in MUTANTS[mutant]:
        with pytest.raises((AssertionError, RecoveryError)):
            EXPLORATIONS[name].run()
