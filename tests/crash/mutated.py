"""A plugin for pytest: what is collected runs while the package is the mutant that `TXFILES_MUTANT` names."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.crash.mutants import applied, mutants

_HERE = Path(__file__).parents[2]
_stack = ExitStack()


def pytest_collection_finish() -> None:
    _stack.enter_context(applied(mutants()[os.environ["TXFILES_MUTANT"]]))


def finds(test: str, mutant: str) -> bool:
    """Whether the test, named as pytest does, fails with the mutant."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", __name__, test]
    environment = {**os.environ, "TXFILES_MUTANT": mutant}
    done = subprocess.run(command, cwd=_HERE, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode == 1
