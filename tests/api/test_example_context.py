"""The four-file save: it survives its kills, and the usual way does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "context_manager.py"


def _run(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), str(directory), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_four_files_agree_after_every_kill(tmp_path: Path) -> None:
    done = _run(tmp_path, "--kills", "8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the four files agree") == 8
    assert "0 torn" in done.stdout


def test_the_usual_way_tears_them(tmp_path: Path) -> None:
    done = _run(tmp_path, "--kills", "25", "--naive")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "TORN" in done.stdout
