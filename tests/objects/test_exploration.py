"""The real code under a scheduler that switches at every request: every schedule within the bounds."""

from __future__ import annotations

import pytest

from tests.objects.explorations import EXPLORATIONS


@pytest.mark.parametrize("name", EXPLORATIONS)
def test_every_schedule_within_the_bounds(name: str) -> None:
    assert EXPLORATIONS[name].run() > 20


@pytest.mark.deep
@pytest.mark.parametrize("name", EXPLORATIONS)
def test_every_schedule_within_wider_bounds(name: str) -> None:
    assert EXPLORATIONS[name].run(deep=True) > 1000
