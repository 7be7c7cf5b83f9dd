"""Each step and condition of what holds back the exceptions of signal handlers is missed when it is taken out."""

from __future__ import annotations

import pytest

from tests.unit.disk.interrupt_mutants import finds, mutants, table

FOUND = {name: found_by for name, found_by in table().items() if not found_by.startswith("-")}


def test_the_table_is_complete() -> None:
    assert list(table()) == list(mutants())


@pytest.mark.parametrize("name", FOUND)
def test_a_mutant_is_found(name: str) -> None:
    assert finds(FOUND[name], mutants()[name])
