"""Every mutant of the protocol is found by the scenario that is named beside it; nothing is found without a mutant."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.crash import mutants
from tests.crash.mutant_scenarios import EVERYTHING, EXTRA
from tests.support import DEEP
from txfiles.testing import explore

Outcomes = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """What became of the mutants of the chosen tests: all are run together, in processes that never saw the package."""
    chosen = {item.name for item in request.session.items}
    return _run([mutant.name for mutant in mutants.MUTANTS if f"test_a_mutant_is_found[{mutant.name}]" in chosen])


def _run(names: list[str], *options: str) -> Outcomes:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.mutants", *options, *names],
        cwd=mutants.ROOT,
        env={**os.environ, "PYTHONPATH": str(mutants.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    assert not done.stderr
    return {outcome["name"]: outcome for outcome in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", EXTRA)
def test_nothing_is_found_without_a_mutant(name: str) -> None:
    explore(EVERYTHING[name], (256, 8) if DEEP else (32,))


@pytest.mark.parametrize("mutant", [mutant.name for mutant in mutants.MUTANTS])
def test_a_mutant_is_found(outcomes: Outcomes, mutant: str) -> None:
    assert outcomes[mutant]["found"] == mutants.BY_NAME[mutant].killer, outcomes[mutant]["told"]


@pytest.mark.deep
@pytest.mark.parametrize("mutant", [mutant.name for mutant in mutants.SPARE])
def test_what_could_go_is_missed_by_nobody(mutant: str) -> None:
    outcome = _run([mutant], "--all")[mutant]
    assert not outcome["found"], outcome["told"]


def test_a_mutant_that_no_longer_fits_is_reported() -> None:
    with pytest.raises(ValueError, match="no longer fits"):
        mutants.Mutant("none", "_durable", "not in the source", "", "replace-1").source()
