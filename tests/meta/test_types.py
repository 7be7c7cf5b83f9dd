"""What a type checker sees of the package: every public name has a type that none has to guess."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.procs import CHECKOUT

pytestmark = pytest.mark.needs("module:pyright", "node")


def test_every_public_name_has_a_known_type(tmp_path: Path) -> None:
    options = ["--pythonpath", sys.executable, "--verifytypes", "txfiles", "--ignoreexternal", "--outputjson"]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    argv = [sys.executable, "-m", "pyright", *options]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, encoding="utf-8")
    found = json.loads(done.stdout)["typeCompleteness"]
    wrong = [symbol for symbol in found["symbols"] if not symbol["isTypeKnown"]]
    assert [(symbol["name"], symbol["diagnostics"]) for symbol in wrong] == []
    assert found["completenessScore"] == 1
    assert len(found["symbols"]) > 300
