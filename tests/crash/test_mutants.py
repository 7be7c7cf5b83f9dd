"""Each sync, each check and each order of steps is needed: where one is missing, a scenario ends in a mix, or fails."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import txfiles
from tests.crash import mutants, mutated
from tests.crash.mutant_cases import CASES
from tests.crash.mutant_scenarios import EXTRA
from tests.crash.mutants import PROTOCOL, finds, is_course, is_scenario, likely, scenarios, table
from tests.support import DEEP
from txfiles.testing import explore

ALL = mutants.mutants()
NEEDED = [name for name in ALL if is_scenario(table().get(name, ""))]
BY_TEST = {name: found for name, found in table().items() if found.startswith("tests/")}
SPARE = [name for name in ALL if table().get(name, "").startswith("-")]
HERE = {**CASES, **EXTRA}  # the other scenarios are explored where they are


def _is_quick(name: str) -> bool:
    """Without a sync or in another order; of the conditions those whose scenario takes no time."""
    return re.search(r" is (True|False)( \(\d+\))?$", name) is None or all(map(is_course, likely(name)))


ONE_CRASH = re.compile(
    "failed-sync"  # killed between a failed sync and its note: only that process was told (A4)
    # these take a state that is the only one allowed for that of a commit that returned: so is that of one not begun
    "|fresh-root|new-root|half-made-root|copied-root|overwritten-since-head|directory-again|over-process|after-process"
    "|links-out-unsynced"
)


@pytest.mark.parametrize("name", HERE)
def test_nothing_is_found_without_a_mutant(name: str) -> None:
    deep = (256,) if ONE_CRASH.match(name) else (256, 8)
    explore(HERE[name], deep if DEEP else (32,))


@pytest.mark.parametrize(
    "name", [name if _is_quick(name) else pytest.param(name, marks=pytest.mark.deep) for name in NEEDED]
)
def test_a_mutant_is_found(name: str) -> None:
    tried = likely(name)
    assert any(finds(scenario, ALL[name]) for scenario in tried), (
        f"not found in {tried}: python -m tests.crash.mutants --write looks everywhere"
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.deep] if number % 20 else []) for number, name in enumerate(BY_TEST)]
)
def test_a_mutant_is_found_by_a_test(name: str) -> None:
    assert mutated.finds(BY_TEST[name], name)


@pytest.mark.deep
@pytest.mark.parametrize("name", SPARE)
def test_what_could_go_is_missed_by_nobody(name: str) -> None:
    found = [scenario for scenario in scenarios() if finds(scenario, ALL[name])]
    assert not found, f"{name} is said to be no loss: {table()[name]}"


@pytest.mark.deep
def test_the_table_is_of_today() -> None:
    assert list(table()) == list(ALL)


def test_every_call_that_syncs_has_a_mutant() -> None:
    """In whatever module: one that is new has to be looked for, too."""
    there = []
    for path in Path(txfiles.__path__[0]).rglob("*.py"):
        if path.name in ("system.py", "fsyncs.py") or "testing" in path.parts:
            continue
        named = [
            node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Attribute)
        ]
        there += [
            f"{path.parent.name}.{path.stem}"
            for node in named
            if node.attr in ("sync_file", "sync_data", "sync_dir", "fsync")
        ]
    assert set(there) <= set(PROTOCOL)
    primitive = re.compile(r": no sync_(file|data|dir)( \(\d+\))?$")
    assert len(there) == sum(primitive.search(name) is not None for name in ALL)
